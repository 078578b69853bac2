"""Means with intervals whose unit is the seed, by a formula that anyone can recompute.

Episodes of one seed share a policy's training and a task stream, so they are averaged first; the 95% interval is
Student's t over the seed means x_1 .. x_n: mean(x) +- t_{0.975, n-1} sd(x) / sqrt(n). It holds the spread between
seeds and between episodes, needs no random numbers, and covers 95% when the seed means are close to normal.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Value = float | None
_T_975 = (  # quantiles of Student's t at 0.975, for 1 to 10, 11 to 20, 21 to 30 degrees of freedom
    (
        12.70620474,
        4.30265273,
        3.18244631,
        2.77644511,
        2.57058184,
        2.44691185,
        2.36462425,
        2.30600414,
        2.26215716,
        2.22813885,
    ),
    (
        2.20098516,
        2.17881283,
        2.16036866,
        2.14478669,
        2.13144955,
        2.1199053,
        2.10981558,
        2.10092204,
        2.09302405,
        2.08596345,
    ),
    (
        2.07961384,
        2.07387307,
        2.06865761,
        2.06389856,
        2.05953855,
        2.05552944,
        2.05183052,
        2.04840714,
        2.04522964,
        2.04227246,
    ),
)
_Z_975 = 1.959963984540054


def t_975(df: int) -> float:
    """The 0.975 quantile of Student's t for `df` >= 1: a table to 30, then an expansion (error < 1e-7)."""
    if df < 1:
        raise ValueError(f"df {df}; allowed: integers from 1")
    if df <= 30:
        return _T_975[(df - 1) // 10][(df - 1) % 10]
    z = _Z_975  # Abramowitz and Stegun 26.7.5
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, 1))


def summarise(values: Mapping[Any, Sequence[Value]]) -> dict[str, Any]:
    """The mean over seeds, with a 95% interval, of `values[seed]` = one number per episode (None: missing).

    Returns mean, low, high (None where not estimable: see note), seeds, episodes, missing, per_seed and note.
    """
    known = {seed: [x for x in episodes if x is not None] for seed, episodes in values.items()}
    per_seed = {str(seed): math.fsum(xs) / len(xs) for seed, xs in known.items() if xs}
    mean, low, high, note = _interval(list(per_seed.values()))
    episodes = sum(map(len, known.values()))
    return {
        "mean": mean,
        "low": low,
        "high": high,
        "seeds": len(per_seed),
        "episodes": episodes,
        "missing": sum(map(len, values.values())) - episodes,
        "per_seed": per_seed,
        "note": note,
    }


def difference(values: Mapping[Any, Sequence[Value]], reference: Mapping[Any, Sequence[Value]]) -> dict[str, Any]:
    """`summarise` of the paired differences, seed by seed, over the seeds that both have."""
    ours, theirs = summarise(values)["per_seed"], summarise(reference)["per_seed"]
    return summarise({seed: [ours[seed] - theirs[seed]] for seed in ours if seed in theirs})


def _interval(means: list[float]) -> tuple[Value, Value, Value, str]:
    """Mean, low, high and why there is no interval."""
    n = len(means)
    if n == 0:
        return None, None, None, "no value"
    mean = math.fsum(means) / n
    if n == 1:
        return mean, None, None, "one seed: no interval"
    if max(means) - min(means) <= 1e-12 * max(1.0, abs(max(means))):
        return mean, None, None, "all seeds equal: no interval"
    sd = math.sqrt(math.fsum((x - mean) ** 2 for x in means) / (n - 1))
    half = t_975(n - 1) * sd / math.sqrt(n)
    return mean, mean - half, mean + half, ""
