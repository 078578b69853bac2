"""Log-log slopes with intervals, and the verdict whether a signal falls as something grows.

A point is (x, d, error of log d). The global slope is the weighted least squares fit of log d on log x; its interval
comes from the errors, widened by the scatter about the line. A local slope joins two neighbouring points.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Z = 1.959963984540054  # standard normal quantile of 0.975
RESOLVED = 0.5  # largest error of log d of a point that counts
FLAT = -0.1  # above it nothing falls

Point = tuple[float, float, float]


def log_error(value: float, stderr: float) -> float:
    """Error of log(value); infinite where the value is not positive."""
    return abs(stderr / value) if value > 0 else math.inf


def fit(points: Sequence[Point]) -> dict[str, float | None]:
    """slope, low and high (95%) of log d on log x; None with fewer than two points or x all the same.

    slope = sum w (u - U)(v - V) / S,  S = sum w (u - U)^2,  u = log x, v = log d, w = error^-2, U, V their means by w;
    stderr = S^(-1/2) max(1, (chi^2 / (n - 2))^(1/2)), and S^(-1/2) for two points.
    """
    known = [(math.log(x), math.log(d), max(error, 1e-3)) for x, d, error in points if d > 0 and x > 0]
    if len(known) < 2:
        return {"slope": None, "low": None, "high": None}
    weight = [error**-2 for _, _, error in known]
    total = math.fsum(weight)
    middle_u = math.fsum(w * u for w, (u, _, _) in zip(weight, known, strict=True)) / total
    middle_v = math.fsum(w * v for w, (_, v, _) in zip(weight, known, strict=True)) / total
    spread = math.fsum(w * (u - middle_u) ** 2 for w, (u, _, _) in zip(weight, known, strict=True))
    if spread <= 0:
        return {"slope": None, "low": None, "high": None}
    slope = math.fsum(w * (u - middle_u) * (v - middle_v) for w, (u, v, _) in zip(weight, known, strict=True)) / spread
    chi = math.fsum(
        w * (v - middle_v - slope * (u - middle_u)) ** 2 for w, (u, v, _) in zip(weight, known, strict=True)
    )
    scatter = math.sqrt(chi / (len(known) - 2)) if len(known) > 2 else 1.0
    half = Z * max(1.0, scatter) / math.sqrt(spread)
    return {"slope": slope, "low": slope - half, "high": slope + half}


def local(points: Sequence[Point]) -> list[dict[str, float | None]]:
    """The slope between each point and the next, with x from and to."""
    return [{"from": a[0], "to": b[0], **fit([a, b])} for a, b in pairwise(points)]


def verdict(points: Sequence[Point]) -> dict[str, Any]:
    """Does d fall with x? `answer` "holds", "fails" or "undecided", `law` which shape, and what both rest on.

    Points whose log d has an error above 1/2 count as not resolved and enter no slope. With fewer than two others, or
    with an interval about -0.1, the question is undecided. It holds where the interval lies below -0.1 and fails where
    it lies above. The law is "square root" where the interval touches [-0.6, -0.4] and no local slope lies outside
    [-0.8, -0.2]; "faster than any power" where local slopes, two at least, steepen below -1; "none" where it fails; of
    two sizes it is not said.
    """
    good = [point for point in points if point[2] <= RESOLVED and point[1] > 0 and math.isfinite(point[1])]
    slope, steps = fit(good), local(good)
    out = {**slope, "local": steps, "points": len(points), "resolved": len(good)}
    low, high = slope["low"], slope["high"]
    if low is None or high is None:
        return {**out, "answer": "undecided", "law": "not resolved"}
    falls = [step["slope"] for step in steps if step["slope"] is not None]
    answer = "holds" if high < FLAT else "fails" if low > FLAT else "undecided"
    steepens = len(falls) > 1 and all(b < a for a, b in pairwise(falls)) and falls[-1] < -1
    if answer == "fails":
        law = "none"
    elif len(good) < 3:
        law = "too few sizes"
    elif steepens:
        law = "faster than any power"
    elif answer == "holds" and high >= -0.6 and low <= -0.4 and all(-0.8 <= x <= -0.2 for x in falls):
        law = "square root"
    else:
        law = "other"
    return {**out, "answer": answer, "law": law}
