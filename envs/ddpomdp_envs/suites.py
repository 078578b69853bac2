"""The suite `calibration` against the published numbers, task by task."""

from collections.abc import Iterable, Mapping
from typing import Any

from ddpomdp.bench import Cell, Output, Section, Suite
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, whole
from ddpomdp_envs import datascience_suites, math_suites, search_suites

# Each task's numbers, cells and tables: what they are called in the results, and where they stand.
TASKS: dict[str, tuple[str, Any]] = {
    search_suites.ENV: ("search", search_suites),
    math_suites.ENV: ("math", math_suites),
    datascience_suites.ENV: ("data_science", datascience_suites),
}


def calibration_cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """The setting of each published number under each seed, task by task."""
    whole("episodes", options["episodes"], 1, 100_000)
    for name in options["envs"]:
        choose("envs", name, TASKS)
        yield from TASKS[name][1].cells(options)


def calibration_analysis(rows: list[Row]) -> dict[str, Any]:
    """Ours beside the published numbers, by task."""
    own = {env: [row for row in rows if row["env"] == env] for env in TASKS}
    return {short: task.analysis(own[env]) for env, (short, task) in TASKS.items() if own[env]}


def calibration_sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The tables of the cards."""
    for short, task in TASKS.values():
        if short in results["analysis"]:
            yield from task.sections(results["analysis"][short])


def run_calibration(cell: Cell) -> Output:
    """A cell of any task."""
    return TASKS[cell.settings["env"]][1].run(cell)


def calibration() -> Suite:
    """The published numbers of each task, from the agents up."""
    return Suite(
        name="calibration",
        description="Published results that the simulated teams should reproduce under scripted policies.",
        cells=calibration_cells,
        run=run_calibration,
        options={"envs": list(TASKS), "seeds": list(range(10)), "episodes": 200},
        group_by=("env", "preset", "model", "policy"),
        analyse=calibration_analysis,
        sections=calibration_sections,
    )
