"""How good rules are on the same suppressed episodes: value, regret, errors, calibration, quality at equal cost.

Axis letters: B episode, T decision.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ddpomdp.options import UsageError
from ddpomdp_baselines.stopping import known, oracle, rules
from ddpomdp_baselines.stopping.head import Fitted
from ddpomdp_baselines.stopping.rules import at
from ddpomdp_baselines.stopping.trajectories import Suppressed


def evaluate(
    stops: Mapping[str, np.ndarray | Fitted | tuple[str, float]],
    data: Suppressed,
    price: float,
    *,
    kind: str = "realised",
    reference: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """One row per rule: what it is worth on these episodes, and when it stops against a reference.

    Args:
      stops: by name, a fitted head (taken without chance), (rule, level) of `rules`, or times int[B].
      data: suppressed episodes, the same for all.
      price: quality points per token.
      kind: payoff of stopping, "realised" or "known".
      reference: times int[B] to count early and late stops against; default the best time of each episode in hindsight,
        which nobody can know.

    Returns:
      rule, value (payoff less price x cost) with stderr, quality, cost, decisions (mean time), early, late (shares).
    """
    net = data.net(price, kind)
    reference = hindsight(data, price, kind) if reference is None else reference
    rows = []
    for name, stop in stops.items():
        time = stop_times(stop, data, price)
        paid = at(net, time)
        rows.append(
            {
                "rule": name,
                "value": float(paid.mean()),
                "stderr": float(paid.std(ddof=1) / len(paid) ** 0.5) if len(paid) > 1 else None,
                "quality": float(at(data.payoff(kind), time).mean()),
                "cost": float(at(data.cost, time).mean()),
                "decisions": float(time.mean()),
                "early": float((time < reference).mean()),
                "late": float((time > reference).mean()),
            }
        )
    return rows


def stop_times(stop: np.ndarray | Fitted | tuple[str, float], data: Suppressed, price: float) -> np.ndarray:
    """int[B]: when a head, a rule at a level, or given times stop."""
    if isinstance(stop, Fitted):
        return rules.times(stop.wants(data, price), data)
    if isinstance(stop, tuple):
        return rules.stop_times(*stop, data)
    if stop.shape != (len(data),) or np.any((stop < 0) | (stop > data.last)):
        raise UsageError(f"times: got shape {stop.shape}, allowed: one decision of each of {len(data)} episodes")
    return stop


def hindsight(data: Suppressed, price: float, kind: str = "realised") -> np.ndarray:
    """int[B]: the best time of each episode once all is known, the earliest of equals."""
    return np.argmax(np.where(data.here, data.net(price, kind), -np.inf), axis=1)


def snell_times(process: known.Process, data: Suppressed, price: float) -> np.ndarray:
    """int[B]: when Snell's rule stops on these episodes."""
    if data.cell is None:
        raise UsageError("snell: the information states of these episodes are not known")
    wants = np.concatenate(oracle.snell(process, price).stops)[data.cell]
    return rules.times(wants, data)


def exact(process: known.Process, fitted: Fitted, price: float) -> oracle.Worth:
    """What a head of form `table` is worth, without sampling error. States it never met stop."""
    weight = fitted.table(price)
    weight = np.pad(weight, (0, max(sum(process.sizes) - len(weight), 0)))
    stops = [weight[first : first + size] <= 0 for first, size in zip(process.offsets, process.sizes, strict=True)]
    return oracle.worth(process, price, stops)


def share_of_gain(process: known.Process, value: float, price: float, over: str = "fixed") -> float:
    """(value - V_rule) / (V_Snell - V_rule), with the best fixed rule or the best threshold as the rule.

    As a share of the value itself a regret is always small; this is the part that can be learned.
    """
    bar = {"fixed": oracle.fixed, "threshold": oracle.threshold}[over](process, price)[1].value
    return (value - bar) / (oracle.snell(process, price).value - bar)


def realised_margin(fitted: Fitted, data: Suppressed, price: float, kind: str = "realised") -> np.ndarray:
    """f64[B, T]: what going on by the head's own rule pays on top of stopping; 0 at the last decision."""
    net, wants = data.net(price, kind), fitted.wants(data, price)
    future, out = at(net, data.last), np.zeros_like(net)
    for t in reversed(range(net.shape[1])):
        goes = data.last > t
        out[:, t] = np.where(goes, future - net[:, t], 0.0)
        future = np.where(goes & wants[:, t], net[:, t], future)
    return out


def calibration(
    fitted: Fitted, data: Suppressed, price: float, kind: str = "realised", bins: int = 10
) -> dict[str, Any]:
    """Predicted margins against realised ones, over all decisions but the last of each episode.

    Returns:
      slope: of realised on predicted (1: right size); error: mean over bins of equal mass of |mean predicted - mean
      realised|, quality points; points: (mean predicted, mean realised) of each bin.
    """
    on = ~fitted.last(data)
    predicted = fitted.margin(data, price)[on]
    real = realised_margin(fitted, data, price, kind)[on]
    spread = predicted.var()
    slope = float(np.cov(predicted, real, ddof=0)[0, 1] / spread) if spread > 1e-12 else None
    parts = np.array_split(np.argsort(predicted, kind="stable"), bins)
    points = [(float(predicted[part].mean()), float(real[part].mean())) for part in parts if len(part)]
    return {"slope": slope, "error": float(np.mean([abs(p - r) for p, r in points])), "points": points}


def frontier(name: str, data: Suppressed, kind: str = "realised") -> np.ndarray:
    """f64[., 2]: (cost, quality) of a rule at all its levels, rising in cost, the upper hull: a mixture of two levels
    reaches what lies between.
    """
    rule = rules.RULES[name]
    payoff, points = data.payoff(kind), set()
    for level in rule.levels(data):
        time = rules.times(rule.wants(data, level), data)
        points.add((float(at(data.cost, time).mean()), float(at(payoff, time).mean())))
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while hull and hull[-1][0] == x:
            hull.pop()
        while len(hull) > 1 and (y - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) >= (hull[-1][1] - hull[-2][1]) * (
            x - hull[-2][0]
        ):
            hull.pop()
        hull.append((x, y))
    return np.asarray(hull)


def quality_at(frontier: np.ndarray, cost: float) -> float:
    """Quality of a frontier's mixture of this mean cost or less; -infinity where its cheapest level costs more."""
    return float(np.interp(cost, frontier[:, 0], np.maximum.accumulate(frontier[:, 1]), left=-np.inf))
