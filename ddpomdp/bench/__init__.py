"""Benchmarks: a suite is cells, a way to run one, and what the rows say; a run is a folder that can be resumed."""

from ddpomdp.bench.suite import (
    QUALITY,
    TOKENS,
    WALL_S,
    Cell,
    Curve,
    Metric,
    Output,
    Picture,
    Section,
    Suite,
    Table,
    find,
    names,
)

__all__ = [
    "QUALITY",
    "TOKENS",
    "WALL_S",
    "Cell",
    "Curve",
    "Metric",
    "Output",
    "Picture",
    "Section",
    "Suite",
    "Table",
    "find",
    "names",
]
