"""Numbers by seed, and how tables show them: common to the suites."""

from collections.abc import Iterable, Mapping
from typing import Any

from ddpomdp.bench.stats import summarise
from ddpomdp.bench.suite import Row


def by_seed(rows: Iterable[Row], key: str, **wanted: Any) -> dict[int, list[float]]:
    """{seed: values of `key`} over the rows with the wanted settings."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if all(row.get(name) == value for name, value in wanted.items()):
            values.setdefault(row["seed"], []).append(row[key])
    return values


def ratio(values: Mapping[int, list[float]], reference: Mapping[int, list[float]]) -> dict[str, Any]:
    """Summary of reference mean / mean, seed by seed."""
    mean = lambda xs: sum(xs) / len(xs)  # noqa: E731
    return summarise({seed: [mean(reference[seed]) / mean(xs)] for seed, xs in values.items() if seed in reference})


def interval(summary: Mapping[str, Any], scale: float = 1.0, digits: int = 3) -> str:
    """`low to high`, or a dash where there is no interval."""
    if summary["low"] is None:
        return "–"
    return f"{scale * summary['low']:.{digits}f} to {scale * summary['high']:.{digits}f}".replace("-", "−")


def signed(x: float, digits: int = 3) -> str:
    """A number with its sign."""
    return f"{x:+.{digits}f}".replace("-", "−")
