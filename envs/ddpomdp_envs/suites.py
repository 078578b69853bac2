"""Benchmark suites over the tasks: `quick` for every change, `calibration` against the published numbers.

All episodes of one environment shape share two compilations, one for scripts and one for the random policy: the model
is numbers (`env.params`), and so are the lines of a script. Episode e of seed s starts from the same key under every
policy and model, so that they meet the same tasks with the same luck.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from ddpomdp.bench import QUALITY, TOKENS, WALL_S, Cell, Curve, Metric, Output, Picture, Section, Suite, Table
from ddpomdp.bench.stats import difference, summarise
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, whole

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
}


@cache
def _make(env: str, preset: str, model: str) -> Any:
    import ddpomdp

    return ddpomdp.make(env, preset=preset, model=model)


def _cell(
    preset: str, model: str, policy: str, seed: int, episodes: int, picture: str = "", measured: bool = True
) -> Cell:
    """One policy with one model under one seed; `picture` is the title of a picture of the first episode.

    A cell that is not measured serves its picture only and stays out of the tables.
    """
    choose("policy", policy, POLICIES)
    whole("episodes", episodes, 1, 100_000)
    env = _make(ENV, preset, model)
    settings = {"env": ENV, "preset": preset, "model": model, "policy" if measured else "shown": policy}
    settings |= {"episodes": episodes} | ({"picture": picture} if picture else {})
    provenance = {f"{ENV} version": env.version, f"{ENV} {preset} harness": env.harness.digest}
    return Cell(f"{ENV}.{preset}.{model}.{policy}.s{seed}", seed, settings, provenance)


def _run(cell: Cell) -> Output:
    """Play the episodes of a cell, and draw the first one where the cell says so."""
    import jax

    import ddpomdp
    from ddpomdp.bench import episode

    setting = cell.settings
    env = _make(setting["env"], setting["preset"], SHAPE_OF)
    numbers = _make(setting["env"], setting["preset"], setting["model"]).params
    name, options = POLICIES[setting["policy"] if "policy" in setting else setting["shown"]]
    policy = ddpomdp.policy(name, env, **options)
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    played = episode.play(env, policy, policy.init(env), keys, numbers, env.spec.max_ticks)
    rows = episode.rows(played)
    if "picture" not in setting:
        return Output(rows)
    first = rows[0]
    caption = f"Item-F1 {first['quality']:.2f}, {first['births']} agents born, {first['tokens']:,} tokens."
    return Output(rows, (Picture(setting["picture"], episode.draw(played, env), caption),))


def _by_seed(rows: Iterable[Row], key: str, **wanted: Any) -> dict[int, list[float]]:
    """{seed: values of `key`} over the rows with the wanted settings."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if all(row.get(name) == value for name, value in wanted.items()):
            values.setdefault(row["seed"], []).append(row[key])
    return values


def _ratio(values: Mapping[int, list[float]], reference: Mapping[int, list[float]]) -> dict[str, Any]:
    """Summary of reference mean / mean, seed by seed."""
    mean = lambda xs: sum(xs) / len(xs)  # noqa: E731
    return summarise({seed: [mean(reference[seed]) / mean(xs)] for seed, xs in values.items() if seed in reference})


def _interval(summary: Mapping[str, Any], scale: float = 1.0, digits: int = 3) -> str:
    """`low to high`, or a dash where there is no interval."""
    if summary["low"] is None:
        return "–"
    return f"{scale * summary['low']:.{digits}f} to {scale * summary['high']:.{digits}f}".replace("-", "−")


# quick -------------------------------------------------------------------------------------------------------------

QUICK_POLICIES = ("random", "single", *(f"swarm-{n}-{brief}" for n in WIDTHS for brief in BRIEFS))
PICTURES = {"single": "One agent does it all", "swarm-12-standard": "A swarm of 12 searchers"}


def quick_cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Policies with each model under each seed, and one episode at scale."""
    preset, models = options["preset"], options["models"]
    for model in models:
        choose("model", model, MODELS)
        for policy in options["policies"]:
            for seed in options["seeds"]:
                first = model == models[0] and seed == options["seeds"][0] and policy in PICTURES
                picture = f"{PICTURES[policy]}: {ENV}, {preset}, {model}" if first else ""
                yield _cell(preset, model, policy, seed, options["episodes"], picture)
    if options["large"]:
        picture = f"A swarm of 256 searchers: {ENV}, k2.6, strong"
        yield _cell("k2.6", "strong", "swarm-256-standard", 0, 1, picture, measured=False)


def quick_analysis(rows: list[Row]) -> dict[str, Any]:
    """Each team against the single agent with the same model on the same tasks, seed by seed."""
    cells = dict.fromkeys((row["preset"], row["model"], row["policy"]) for row in rows if "policy" in row)
    against = []
    for preset, model, policy in cells:
        if policy in ("single", "random") or (preset, model, "single") not in cells:
            continue
        get = lambda key, policy=policy, preset=preset, model=model: (  # noqa: E731
            _by_seed(rows, key, preset=preset, model=model, policy=policy),
            _by_seed(rows, key, preset=preset, model=model, policy="single"),
        )
        against.append(
            {
                "preset": preset,
                "model": model,
                "policy": policy,
                "quality": difference(*get("quality")),
                "speedup": _ratio(*get("wall_s")),
                "tokens": _ratio(*reversed(get("tokens"))),
            }
        )
    return {"against_single": against}


def quick_sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """Teams against the single agent, and quality over width by brief."""
    lines = tuple(
        (
            f"{line['policy']}, {line['model']}",
            f"{100 * line['quality']['mean']:+.1f}".replace("-", "−"),
            _interval(line["quality"], 100, 1),
            line["speedup"]["mean"],
            line["tokens"]["mean"],
        )
        for line in results["analysis"]["against_single"]
    )
    if lines:
        text = "Item-F1 less that of the single agent with the same model on the same tasks, paired seed by seed."
        columns = ("Team", "Item-F1, pp", "95% interval", "Times as fast", "Times the tokens")
        yield Section("Against one agent", text, tables=(Table(columns, lines),))
    quality = {
        (entry["group"]["model"], entry["group"]["policy"]): entry["metrics"]["quality"] for entry in results["table"]
    }
    curves = []
    for model in dict.fromkeys(model for model, _ in quality):
        series = {f"{brief} brief": [(n, f"swarm-{n}-{brief}") for n in WIDTHS] for brief in BRIEFS}
        series["one agent"] = [(WIDTHS[0], "single"), (WIDTHS[-1], "single")]
        points = {
            name: [_point(n, quality[model, policy]) for n, policy in places if (model, policy) in quality]
            for name, places in series.items()
        }
        points = {name: line for name, line in points.items() if len(line) > 1}
        if len(points) > 1:
            curves.append(Curve(f"Width and brief, {model} model", "searchers", "item-F1", points))
    if curves:
        yield Section("Width and brief", "Bands are 95% intervals over seeds.", curves=tuple(curves))


def _point(x: float, summary: Mapping[str, Any]) -> tuple[float, ...]:
    """A point of a curve, with its interval where there is one."""
    ends = () if summary["low"] is None else (summary["low"], summary["high"])
    return (x, summary["mean"], *ends)


def quick() -> Suite:
    """The suite of `make bench`."""
    return Suite(
        name="quick",
        description="Every task with random and scripted policies, with a strong and a weak model.",
        cells=quick_cells,
        run=_run,
        options={
            "seeds": list(range(10)),
            "episodes": 64,
            "preset": "small",
            "models": ["strong", "weak"],
            "policies": list(QUICK_POLICIES),
            "large": True,
        },
        metrics=(QUALITY, Metric("reward", "Reward", better="higher"), TOKENS, WALL_S),
        group_by=("env", "preset", "model", "policy"),
        analyse=quick_analysis,
        sections=quick_sections,
    )


# calibration -------------------------------------------------------------------------------------------------------

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
    """The setting of each published number under each seed."""
    for number in PUBLISHED:
        for seed in options["seeds"]:
            yield _cell("calibration", number.model, number.policy, seed, options["episodes"])


def calibration_analysis(rows: list[Row]) -> dict[str, Any]:
    """Ours beside the published number, the error in percentage points, and whether it is inside the band."""
    lines = []
    for number in PUBLISHED:
        ours = summarise(_by_seed(rows, "quality", model=number.model, policy=number.policy))
        error = None if ours["mean"] is None else 100 * (ours["mean"] - number.value)
        within = error is not None and abs(error) <= BAND_PP
        lines.append({**asdict(number), "ours": ours, "error_pp": error, "within": within})
    return {"band_pp": BAND_PP, "numbers": lines}


def calibration_sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The table of the card."""
    lines = tuple(
        (
            line["quantity"],
            line["policy"],
            f"{line['value']:.3f}",
            f"{line['ours']['mean']:.3f}",
            _interval(line["ours"]),
            f"{line['error_pp']:+.1f}".replace("-", "−"),
            line["ours"]["episodes"],
            "yes" if line["in_fit"] else "no",
            "within" if line["within"] else "not within",
            line["source"],
        )
        for line in results["analysis"]["numbers"]
        if line["ours"]["mean"] is not None
    )
    columns = ("Published quantity", "Policy", "Published", "Ours", "95% interval", "Error, pp", "Episodes")
    columns = (*columns, "Used in the fit", f"Band {BAND_PP:g} pp", "Source")
    text = (
        "WideSearch item-F1. A number that was used in the fit of the laws only checks the fit: "
        "that the agent-level environment reproduces it is no validation."
    )
    yield Section("Published against ours", text, tables=(Table(columns, lines),))


def calibration() -> Suite:
    """The published numbers of each task, from the agents up."""
    return Suite(
        name="calibration",
        description="Published results that the simulated teams should reproduce under scripted policies.",
        cells=calibration_cells,
        run=_run,
        options={"seeds": list(range(10)), "episodes": 200},
        group_by=("env", "preset", "model", "policy"),
        analyse=calibration_analysis,
        sections=calibration_sections,
    )
