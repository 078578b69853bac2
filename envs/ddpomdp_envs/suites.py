"""Policies of the tasks in benchmark cells, their tables, and the suite `calibration` against the published numbers.

All episodes of one environment shape share two compilations, one for scripts and one for the random policy: the model
is numbers (`env.params`), and so are the lines of a script. Episode e of seed s starts from the same key under every
policy and model, so that they meet the same tasks with the same luck.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from ddpomdp.bench import Cell, Output, Picture, Section, Suite, Table
from ddpomdp.bench.stats import summarise
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, whole
from ddpomdp_envs import datascience_suites, math_suites

ENV = "Search-v0"
MODELS = ("strong", "weak")
SHAPE_OF = "strong"  # the environment that is compiled; other models lend it their numbers
WIDTHS, BRIEFS = (4, 8, 12), ("short", "standard", "detailed")

# Policies by the label in the tables: name and options for `ddpomdp.policy`.
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "single": ("single", {}),
    **{f"swarm-{n}-{brief}": ("swarm", {"n": n, "brief": brief}) for n in WIDTHS for brief in BRIEFS},
    "swarm-10-standard": ("swarm", {"n": 10, "brief": "standard"}),
    "swarm-256-standard": ("swarm", {"n": 256, "brief": "standard"}),
    **{name: (name, {}) for name in ("heuristic", "base", "learned")},
}
OF_MODEL = ("heuristic", "base", "learned")  # policies that differ with the model


@cache
def make_env(env: str, preset: str, model: str) -> Any:
    """The same object for the same options, so that its cells share their compilations."""
    import ddpomdp

    return ddpomdp.make(env, preset=preset, model=model)


def policy_cell(
    preset: str, model: str, policy: str, seed: int, episodes: int, picture: str = "", measured: bool = True
) -> Cell:
    """One policy with one model under one seed; `picture` is the title of a picture of the first episode.

    A cell that is not measured serves its picture only and stays out of the tables.
    """
    choose("policy", policy, POLICIES)
    whole("episodes", episodes, 1, 100_000)
    settings = {"policy" if measured else "shown": policy, "episodes": episodes}
    return search_cell(preset, model, policy, seed, settings | ({"picture": picture} if picture else {}))


def search_cell(preset: str, model: str, what: str, seed: int, settings: Mapping[str, Any]) -> Cell:
    """A cell of Search-v0: `what` stands in its id, and what a resume compares is the environment's."""
    env = make_env(ENV, preset, model)
    provenance = {f"{ENV} version": env.version, f"{ENV} {preset} harness": env.harness.digest}
    settings = {"env": ENV, "preset": preset, "model": model, **settings}
    return Cell(f"{ENV}.{preset}.{model}.{what}.s{seed}", seed, settings, provenance)


def policy_of(label: str, env: Any, model: str) -> Any:
    """The policy that a label of `POLICIES` stands for."""
    import ddpomdp

    name, options = POLICIES[label]
    of_model = {"model": model} if name in OF_MODEL else {}
    return ddpomdp.policy(name, env, **options, **of_model)


def run_policy(cell: Cell) -> Output:
    """Play the episodes of a cell, and draw the first one where the cell says so."""
    import jax

    from ddpomdp.bench import episode

    setting = cell.settings
    env = make_env(setting["env"], setting["preset"], SHAPE_OF)
    numbers = make_env(setting["env"], setting["preset"], setting["model"]).params
    policy = policy_of(setting["policy"] if "policy" in setting else setting["shown"], env, setting["model"])
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    played = episode.play(env, policy, policy.init(env), keys, numbers, env.spec.max_ticks)
    rows = episode.rows(played)
    if "picture" not in setting:
        return Output(rows)
    first = rows[0]
    caption = f"Item-F1 {first['quality']:.2f}, {first['births']} agents born, {first['tokens']:,} tokens."
    return Output(rows, (Picture(setting["picture"], episode.draw(played, env), caption),))


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
            yield policy_cell("calibration", number.model, number.policy, seed, options["episodes"])


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
    return other.run(cell) if other else run_policy(cell)


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
