"""DataScience-v0 in the suite `calibration`: success, quality and metrics of chains beside the published numbers.

Every cell is the hand-over chain of policy `chain` with the tunes of its model, on preset `calibration`; turn caps are
numbers too, so all cells are one compiled program.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ddpomdp.bench import Cell, Output, Section, Table
from ddpomdp.bench.stats import summarise
from ddpomdp.bench.suite import Row
from ddpomdp.registry import made
from ddpomdp_envs.datascience import MODELS

ENV, PRESET = "DataScience-v0", "calibration"
SHAPE_OF, CAP = "qwen3-4b", 4
CAPS = (1, 2, 3, 4, 6, 8, 12)
BAND_PP = 5.0
QUALITY_BAND = (0.43, 0.52)
MAPPA, DSBENCH = "arXiv 2601.23228", "arXiv 2409.07703"


@dataclass(frozen=True)
class Success:
    """A published success rate."""

    quantity: str
    model: str
    value: float
    source: str
    in_fit: bool = True


SUCCESSES = (
    Success("MAPPA, untrained", "qwen3-4b", 0.500, MAPPA),
    Success("MAPPA, trained", "qwen3-4b-mappa", 0.667, MAPPA),
    Success("AutoGen, GPT-4", "gpt-4", 0.8784, DSBENCH),
    Success("AutoGen, GPT-4o", "gpt-4o", 0.7162, DSBENCH),
    Success("AutoGen, GPT-4o mini", "gpt-4o-mini", 0.2297, DSBENCH),
    Success("AutoGen, GPT-3.5", "gpt-3.5", 0.0811, DSBENCH),
)
# A stage-by-stage sketch fitted to the same numbers, not a published curve: only the shape is checked.
SKETCH = (0.14, 0.29, 0.42, 0.51, 0.63, 0.69, 0.73)
# (model, task type) -> the published mean, failures as the law has them; not used in the fit.
METRICS = (
    ("qwen3-4b", "accuracy", 0.583, 0.03),
    ("qwen3-4b-mappa", "accuracy", 0.719, 0.03),
    ("qwen3-4b", "RMSE %", 24.9, 3.0),
    ("qwen3-4b-mappa", "RMSE %", 14.6, 3.0),
)
SECONDS = (("gpt-4", 77), ("gpt-4o", 104), ("gpt-4o-mini", 27), ("gpt-3.5", 27))


def place(model: str, cap: int = CAP) -> Any:
    """The environment in which a model plays under a cap of turns."""
    return made(ENV, preset=PRESET, model=model, turn_cap=cap)


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Each model at the published cap, and the untrained one at every cap, under each seed."""
    settings = [(success.model, CAP) for success in SUCCESSES] + [(SHAPE_OF, cap) for cap in CAPS if cap != CAP]
    for model, cap in settings:
        env = place(model, cap)
        for seed in options["seeds"]:
            setting = {"env": ENV, "preset": PRESET, "model": model, "policy": f"chain-cap-{cap}", "cap": cap}
            provenance = {f"{ENV} version": env.version, f"{ENV} {PRESET} {cap} harness": env.harness.digest}
            name = f"{ENV}.{PRESET}.{model}.cap{cap}.s{seed}"
            yield Cell(name, seed, setting | {"episodes": options["episodes"]}, provenance)


def run(cell: Cell) -> Output:
    """Play the episodes of a cell."""
    import jax

    import ddpomdp
    from ddpomdp.bench import episode

    setting = cell.settings
    env = place(SHAPE_OF)
    numbers = place(setting["model"], setting["cap"]).params
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    policy = ddpomdp.policy("chain", env, tune=MODELS[setting["model"]].tunes)
    return Output(episode.rows(episode.play(env, policy, policy.init(env), keys, numbers, env.spec.max_ticks)))


def analysis(rows: list[Row]) -> dict[str, Any]:
    """What came out beside what was published, from the rows of DataScience-v0 alone."""
    at = lambda model, cap: [r for r in rows if r["model"] == model and r["policy"] == f"chain-cap-{cap}"]  # noqa: E731
    mean = lambda values: sum(values) / len(values) if values else None  # noqa: E731

    def of(played: list[Row], key: str) -> dict[str, Any]:
        by_seed: dict[int, list[float]] = {}
        for row in played:
            by_seed.setdefault(row["seed"], []).append(row[key])
        return summarise(by_seed)

    successes, quality = [], []
    for line in SUCCESSES:
        played = at(line.model, CAP)
        ours = of(played, "success")
        error = None if ours["mean"] is None else 100 * (ours["mean"] - line.value)
        within = error is not None and abs(error) <= BAND_PP
        successes.append({**asdict(line), "ours": ours, "error_pp": error, "within": within})
        given = mean([row["quality"] for row in played if row["success"] == 1])
        inside = given is not None and QUALITY_BAND[0] <= given <= QUALITY_BAND[1]
        quality.append({"model": line.model, "ours": given, "within": inside})
    caps = [
        {"cap": cap, "sketch": sketch, "ours": mean([row["success"] for row in at(SHAPE_OF, cap)])}
        for cap, sketch in zip(CAPS, SKETCH, strict=True)
    ]
    metrics = []
    for model, name, value, band in METRICS:
        type_ = [row for row in at(model, CAP) if (row["regression"] == 1) == name.startswith("RMSE")]
        every = mean([row["metric"] for row in type_])
        valid = mean([row["metric"] for row in type_ if row["success"] == 1])
        within = every is not None and abs(every - value) <= band
        metrics.append({"model": model, "metric": name, "published": value, "band": band, "within": within})
        metrics[-1] |= {"ours": every, "given_success": valid}
    seconds = [
        {"model": model, "published": value, "ours": mean([row["wall_s"] for row in at(model, CAP)])}
        for model, value in SECONDS
    ]
    return {"successes": successes, "quality": quality, "caps": caps, "metrics": metrics, "seconds": seconds}


def sections(result: Mapping[str, Any]) -> Iterable[Section]:
    """The tables of the card."""
    show = lambda x, digits=3: "–" if x is None else f"{x:.{digits}f}"  # noqa: E731
    verdict = lambda within: "within" if within else "not within"  # noqa: E731
    successes = tuple(
        (
            *(line["quantity"], line["model"], show(line["value"]), show(line["ours"]["mean"])),
            "–" if line["ours"]["low"] is None else f"{line['ours']['low']:.3f} to {line['ours']['high']:.3f}",
            f"{line['error_pp']:+.1f}".replace("-", "−"),
            *(line["ours"]["episodes"], "yes" if line["in_fit"] else "no", verdict(line["within"]), line["source"]),
        )
        for line in result["successes"]
        if line["ours"]["mean"] is not None
    )
    quality = tuple((q["model"], show(q["ours"]), verdict(q["within"])) for q in result["quality"] if q["ours"])
    caps = tuple((c["cap"], show(c["sketch"], 2), show(c["ours"])) for c in result["caps"] if c["ours"] is not None)
    metrics = tuple(
        (
            *(m["model"], m["metric"], f"{m['published']:g}", show(m["ours"]), show(m["given_success"])),
            verdict(m["within"]),
        )
        for m in result["metrics"]
        if m["ours"] is not None
    )
    seconds = tuple((s["model"], s["published"], show(s["ours"], 0)) for s in result["seconds"] if s["ours"])
    columns = ("Published quantity", "Model", "Published", "Ours", "95% interval", "Error, pp", "Episodes")
    columns = (*columns, "Used in the fit", f"Band {BAND_PP:g} pp", "Source")
    text = (
        "Success of the hand-over chain, four turns per agent. Success rates and the quality given success were used "
        "in the fit: they check the build and validate nothing. Metrics and seconds were not, and most of them miss."
    )
    yield Section(
        "DataScience-v0: published against ours",
        text,
        tables=(
            Table(columns, successes, "Valid submissions."),
            Table(
                ("Model", "Ours", f"Band {QUALITY_BAND[0]:g} to {QUALITY_BAND[1]:g}"), quality, "Quality given success."
            ),
            Table(("Turns per agent", "Sketch", "Ours"), caps, "Success, untrained; the sketch is no publication."),
            Table(("Model", "Metric", "Published", "Ours", "Given success", "In its band"), metrics, "Metrics."),
            Table(("Model", "Published", "Ours"), seconds, "Seconds per task; weak teams give up early, ours do not."),
        ),
    )
