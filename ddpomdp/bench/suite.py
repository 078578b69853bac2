"""A benchmark in one value: which cells, how to run one, what its rows say.

A `Suite` is found through the entry-point group `ddpomdp.suites`; the entry point is a `Suite` or a function without
arguments that returns one. A cell is the unit of work and of resuming: one setting under one seed, many episodes.
This file never imports jax: a suite does that inside `cells` and `run`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ddpomdp import plugins
from ddpomdp.options import UsageError, bad_input, merge

GROUP = "ddpomdp.suites"
STAMPS = ("cell", "seed", "episode")  # every row begins with these, then the cell's settings

Row = dict[str, Any]

CELL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,119}")


@dataclass(frozen=True)
class Cell:
    """One setting under one seed: done or not done as a whole."""

    id: str  # also a file name: up to 120 of letters, digits and . _ + = -
    seed: int
    settings: Mapping[str, Any]  # env, policy, their options, episodes ...: JSON values, copied into every row
    provenance: Mapping[str, str] = field(default_factory=dict)  # env version, harness digest: a resume compares them

    def __post_init__(self) -> None:
        if not CELL_ID.fullmatch(self.id):
            raise UsageError(f"cell id {self.id[:80]!r}; allowed: 1 to 120 letters, digits and . _ + = -")
        if type(self.seed) is not int or self.seed < 0:
            raise UsageError(f"cell {self.id}: seed {self.seed!r}; allowed: integers from 0")
        if clash := sorted(set(STAMPS) & set(self.settings)):
            raise UsageError(f"cell {self.id}: settings may not be called {', '.join(clash)}")


@dataclass(frozen=True)
class Metric:
    """A number in every row of a measured cell, and how the report shows it."""

    key: str
    title: str
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    range: tuple[float, float] | None = None  # of the axis; None: of the data


QUALITY = Metric("quality", "Quality", better="higher", range=(0.0, 1.0))
TOKENS = Metric("tokens", "Tokens", better="lower")
WALL_S = Metric("wall_s", "Time", unit="s", better="lower")


@dataclass(frozen=True)
class Picture:
    """A picture for the report: PNG bytes or SVG text."""

    title: str
    data: bytes | str
    caption: str = ""


@dataclass(frozen=True)
class Curve:
    """Lines with optional bands; a point is (x, y) or (x, y, low, high). Few points are marked."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Iterable[tuple[float, ...]]]
    caption: str = ""
    x_scale: Literal["linear", "log"] = "linear"  # on a logarithmic axis only what is above 0 is seen
    y_scale: Literal["linear", "log"] = "linear"
    dashed: tuple[str, ...] = ()  # lines that are a reference, not measured


@dataclass(frozen=True)
class Table:
    """Text and numbers in columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report after the headline tables."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    curves: tuple[Curve, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Output:
    """What running a cell gives: one row per episode, and pictures the report shows under "Traces"."""

    rows: list[Row]
    pictures: tuple[Picture, ...] = ()


def no_analysis(rows: list[Row]) -> dict[str, Any]:
    """No results beyond the headline tables."""
    return {}


def no_sections(rows: list[Row], results: dict[str, Any]) -> tuple[Section, ...]:
    """No part of the report beyond the headline tables and traces."""
    return ()


@dataclass(frozen=True)
class Suite:
    """A benchmark. With several jobs it travels to worker processes, so its functions must be module-level.

    The headline tables average `metrics` over the rows whose cells have every setting in `group_by`: one table per
    value of all but the last, one line per value of the last. Other cells (training runs, say) are for `analyse`.
    """

    name: str
    description: str
    cells: Callable[[dict[str, Any]], Iterable[Cell]]  # options -> what to run, in report order
    run: Callable[[Cell], list[Row] | Output]
    options: Mapping[str, Any] = field(default_factory=dict)  # with defaults; the command line may override them
    metrics: tuple[Metric, ...] = (QUALITY, TOKENS, WALL_S)  # the first one is the score
    group_by: tuple[str, ...] = ("env", "policy")
    analyse: Callable[[list[Row]], dict[str, Any]] = no_analysis  # further results, recomputable from the rows
    sections: Callable[[list[Row], dict[str, Any]], Iterable[Section]] = no_sections
    packages: tuple[str, ...] = ()  # further distributions whose versions a resume compares

    def __post_init__(self) -> None:
        if not self.group_by or not self.metrics:
            raise UsageError(f"suite {self.name}: group_by and metrics need one entry at least")

    def plan(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Cell, ...]]:
        """All options and all cells. Unknown options, no cell, or one cell id twice: `UsageError`."""
        options = merge(self.options, given, f"suite {self.name}")
        with bad_input():
            cells = tuple(self.cells(dict(options)))
        if not cells:
            raise UsageError(f"suite {self.name} has no cell under the options {options}")
        seen: set[str] = set()
        for cell in cells:
            if cell.id.lower() in seen:  # also on file systems that ignore case
                raise UsageError(f"suite {self.name} has the cell {cell.id} twice (a seed or setting given twice?)")
            seen.add(cell.id.lower())
        return options, cells


def names() -> list[str]:
    """The suites that installed packages offer."""
    return list(plugins.found(GROUP))


def find(name: str) -> Suite:
    """The suite called `name`; an unknown name raises `UsageError` with what is allowed."""
    value = plugins.load(GROUP, name, "suite")
    with bad_input():
        suite = value if isinstance(value, Suite) else value()
    if not isinstance(suite, Suite):
        raise UsageError(f"suite {name!r} gave a {type(suite).__name__}; allowed: ddpomdp.bench.Suite")
    return suite
