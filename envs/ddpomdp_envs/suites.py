"""Tables common to the suites, and the suite `calibration` against the published numbers."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ddpomdp.bench import Cell, Output, Section, Suite, Table
from ddpomdp.bench.stats import summarise
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose
from ddpomdp_envs import datascience_suites, lineup, math_suites

ENV = "Search-v0"


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


# calibration -------------------------------------------------------------------------------------------------------

# Tasks with tables of their own: what they are called in the results, and where their cells come from.
OTHERS: dict[str, tuple[str, Any]] = {
    math_suites.ENV: ("math", math_suites),
    datascience_suites.ENV: ("data_science", datascience_suites),
}
BAND_PP = 5.0  # largest error that counts as agreement


@dataclass(frozen=True)
class Published:
    """A published number and the setting that should reproduce it."""

    quantity: str
    model: str
    policy: str
    value: float
    source: str
    in_fit: bool  # whether the laws were fitted to it: then agreement is no evidence


PUBLISHED = (
    Published("K2.5, one agent", "strong", "single", 0.727, "arXiv 2602.02276", True),
    Published("K2.5, agent swarm", "strong", "swarm-12-standard", 0.790, "arXiv 2602.02276", True),
    Published("Qwen3-4B, one agent", "weak", "single", 0.201, "arXiv 2602.04634", True),
    Published("Qwen3-4B, 10 workers, untrained", "weak", "swarm-10-standard", 0.312, "arXiv 2602.04634", True),
)


def calibration_cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """The setting of each published number under each seed, task by task."""
    tasks = {ENV: search_cells, **{name: other.cells for name, (_, other) in OTHERS.items()}}
    for name in options["envs"]:
        choose("envs", name, tasks)
        yield from tasks[name](options)


def search_cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Those of Search-v0."""
    for number in PUBLISHED:
        for seed in options["seeds"]:
            yield lineup.policy_cell(ENV, "calibration", number.model, number.policy, seed, options["episodes"])


def calibration_analysis(rows: list[Row]) -> dict[str, Any]:
    """Ours beside the published number, the error in percentage points, and whether it is inside the band."""
    further = {}
    for name, (short, other) in OTHERS.items():
        if own := [row for row in rows if row["env"] == name]:
            further[short] = other.analysis(own)
    rows = [row for row in rows if row["env"] == ENV]
    lines = []
    for number in PUBLISHED:
        ours = summarise(by_seed(rows, "quality", model=number.model, policy=number.policy))
        error = None if ours["mean"] is None else 100 * (ours["mean"] - number.value)
        within = error is not None and abs(error) <= BAND_PP
        lines.append({**asdict(number), "ours": ours, "error_pp": error, "within": within})
    return {"band_pp": BAND_PP, "numbers": lines} | further


def calibration_sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The tables of the cards."""
    analysis = results["analysis"]
    if any(line["ours"]["mean"] is not None for line in analysis["numbers"]):
        yield search_section(analysis)
    for short, other in OTHERS.values():
        if short in analysis:
            yield from other.sections(analysis[short])


def search_section(analysis: Mapping[str, Any]) -> Section:
    """The table of Search-v0's card."""
    lines = tuple(
        (
            line["quantity"],
            line["policy"],
            f"{line['value']:.3f}",
            f"{line['ours']['mean']:.3f}",
            interval(line["ours"]),
            f"{line['error_pp']:+.1f}".replace("-", "−"),
            line["ours"]["episodes"],
            "yes" if line["in_fit"] else "no",
            "within" if line["within"] else "not within",
            line["source"],
        )
        for line in analysis["numbers"]
        if line["ours"]["mean"] is not None
    )
    columns = ("Published quantity", "Policy", "Published", "Ours", "95% interval", "Error, pp", "Episodes")
    columns = (*columns, "Used in the fit", f"Band {BAND_PP:g} pp", "Source")
    text = (
        "WideSearch item-F1. A number that was used in the fit of the laws only checks the fit: "
        "that the agent-level environment reproduces it is no validation."
    )
    return Section("Published against ours", text, tables=(Table(columns, lines),))


def run_calibration(cell: Cell) -> Output:
    """A cell of any task."""
    _, other = OTHERS.get(cell.settings["env"], (None, None))
    return other.run(cell) if other else lineup.run(cell)


def calibration() -> Suite:
    """The published numbers of each task, from the agents up."""
    return Suite(
        name="calibration",
        description="Published results that the simulated teams should reproduce under scripted policies.",
        cells=calibration_cells,
        run=run_calibration,
        options={"envs": [ENV, *OTHERS], "seeds": list(range(10)), "episodes": 200},
        group_by=("env", "preset", "model", "policy"),
        analyse=calibration_analysis,
        sections=calibration_sections,
    )
