"""Search-v0 in the suite `calibration`: item-F1, speed-ups, widths and stragglers beside the published numbers.

**Time to reach an F1** is read off teams that attend to a part of the rows only: one agent to its first m rows, a
swarm of six to six chunks of c. Between neighbouring parts F1 and time are interpolated, seed by seed.

**Width** is the number of searchers, all returns read together at the end unless it says "as they come".
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ddpomdp.bench import Cell, Output, Section, Table
from ddpomdp.bench.stats import difference, summarise
from ddpomdp.bench.suite import Row
from ddpomdp.registry import made
from ddpomdp_envs import lineup
from ddpomdp_envs.tables import by_seed, interval, signed

ENV, PRESET = "Search-v0", "calibration"
SHAPE_OF = "strong"  # the environment that is compiled; the other model lends it its numbers
BAND_PP = 5.0  # largest error that counts as agreement
BAND_SPEED = 0.20
K25, WIDESEEK = "arXiv 2602.02276", "arXiv 2602.04634"


@dataclass(frozen=True)
class Score:
    """A published item-F1 and the setting that should reproduce it; without `banded` it is printed beside only."""

    quantity: str
    model: str
    policy: str
    value: float
    source: str
    in_fit: bool = True  # whether the laws were fitted to it: then agreement is no evidence
    banded: bool = True


SCORES = (
    Score("K2.5, one agent", "strong", "single", 0.727, K25),
    Score("K2.5, agent swarm", "strong", "swarm-12-standard", 0.790, K25),
    Score("Qwen3-4B, one agent", "weak", "single", 0.201, WIDESEEK),
    Score("Qwen3-4B, 10 workers, untrained", "weak", "swarm-10-standard", 0.312, WIDESEEK),
    Score("Qwen3-4B, 10 workers, trained", "weak", "swarm-10-detailed", 0.400, WIDESEEK, banded=False),
)


@dataclass(frozen=True)
class SpeedUp:
    """A published ratio of the time that one agent and a swarm take to reach an item-F1."""

    f1: float
    value: float
    in_fit: bool
    banded: tuple[str, ...] = ()  # clocks in which agreement is asked for


CLOCKS = {"critical_steps": "critical steps", "wall_s": "seconds"}
SPEED_UPS = (
    SpeedUp(0.3, 3.0, True, ("critical_steps",)),
    SpeedUp(0.4, 3.0, False),
    SpeedUp(0.5, 3.2, False),
    SpeedUp(0.6, 3.7, False),
    SpeedUp(0.7, 4.5, True, ("critical_steps", "wall_s")),
)
WORKERS = 6
PARTS, CHUNKS = (8, 16, 24, 32, 40, 48), (1, 2, 3, 4, 5, 6, 8)
WIDTHS = (2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40)
PEAK = (6, 16)
EARLY = (10, 20, 40)  # widths read as they come too
STRAGGLERS, STRAGGLER_BAND = 10, (1.3, 2.3)
KEPT = ("quality", "tokens", "wall_s", "critical_steps")  # of a watched episode


@cache
def plays() -> dict[str, tuple[str, dict[str, Any]]]:
    """{label: (policy, its options)}."""
    swarms = {f"swarm-{n}-standard": {"n": n, "brief": "standard"} for n in {*WIDTHS, 12}}
    swarms["swarm-10-detailed"] = {"n": 10, "brief": "detailed"}
    swarms |= {f"swarm-{n}-as-they-come": {"n": n, "brief": "standard", "as_they_come": True} for n in EARLY}
    swarms |= {f"swarm-{WORKERS}-chunk-{c}": {"n": WORKERS, "brief": "standard", "chunk": c} for c in CHUNKS}
    alone = {"single": {}} | {f"single-rows-{m}": {"rows": m} for m in PARTS}
    return {label: ("swarm", o) for label, o in swarms.items()} | {label: ("single", o) for label, o in alone.items()}


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """The setting of each number under each seed."""
    asked = [(score.model, score.policy) for score in SCORES]
    asked += [("weak", f"swarm-{n}-standard") for n in WIDTHS]
    asked += [("weak", f"swarm-{n}-as-they-come") for n in EARLY]
    asked += [("strong", f"single-rows-{m}") for m in PARTS]
    asked += [("strong", f"swarm-{WORKERS}-chunk-{c}") for c in CHUNKS]
    asked += [("strong", f"swarm-{STRAGGLERS}-standard")]
    for model, label in dict.fromkeys(asked):
        for seed in options["seeds"]:
            env = made(ENV, preset=PRESET, model=model)
            settings = {"policy": label, "episodes": options["episodes"]}
            yield lineup.cell(env, PRESET, model, label, seed, settings)


def run(cell: Cell) -> Output:
    """Play the episodes of a cell."""
    import jax

    import ddpomdp
    from ddpomdp.bench import episode

    setting = cell.settings
    env = made(ENV, preset=PRESET, model=SHAPE_OF)
    numbers = made(ENV, preset=PRESET, model=setting["model"]).params
    name, options = plays()[setting["policy"]]
    policy = ddpomdp.policy(name, env, **options)
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    if setting["policy"] == f"swarm-{STRAGGLERS}-standard":
        return Output(_watched(env, policy, numbers, keys))
    return Output(episode.rows(episode.play(env, policy, policy.init(env), keys, numbers, env.spec.max_ticks)))


def _watched(env: Any, policy: Any, numbers: Any, keys: Any) -> list[Row]:
    """One row per episode, with how late the last return of the team is: its time since the spawn over the mean."""
    began, last, total, count, info = _watching(env, policy)(policy.init(env), numbers, keys)
    mean = total.sum(axis=0) / count.sum(axis=0) - began.max(axis=0)
    late = (last.max(axis=0) - began.max(axis=0)) / mean
    return [{name: x[b].item() for name, x in info.items()} | {"straggler": late[b].item()} for b in range(len(late))]


@cache
def _watching(env: Any, policy: Any) -> Any:
    """A function of (parameters, numbers, keys) that plays: per tick [T,B] of spawns and returns, and what ended."""
    import jax
    import jax.numpy as jnp

    from ddpomdp.enums import EventKind
    from ddpomdp.rollouts import episodes

    def record(ts: Any, turns: Any, aux: Any, next_ts: Any) -> Any:
        events = next_ts.events
        called = lambda kind: events.valid & (events.kind == kind)  # noqa: E731
        at = events.arrival_ms
        returns, spawns = called(EventKind.RETURN), called(EventKind.SPAWN)
        latest = lambda flags: jnp.max(jnp.where(flags, at, 0), axis=-1)  # noqa: E731
        return latest(spawns), latest(returns), jnp.sum(jnp.where(returns, at, 0), axis=-1), jnp.sum(returns, axis=-1)

    @jax.jit
    def play(params: Any, numbers: Any, keys: Any) -> Any:
        luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        batch = episodes(env, policy, params, keys, luck, env.spec.max_ticks, numbers, record)
        return batch.recorded, {name: batch.ts.info[name] for name in KEPT}

    def played(*args: Any) -> tuple[Any, ...]:
        recorded, info = play(*args)
        return *(np.asarray(x).astype(np.float64) for x in recorded), {name: np.asarray(x) for name, x in info.items()}

    return played


# What the rows say ---------------------------------------------------------------------------------------------------


def analysis(rows: list[Row]) -> dict[str, Any]:
    """Everything beside the published numbers, from the rows of Search-v0 alone."""
    scores = []
    for score in SCORES:
        ours = summarise(by_seed(rows, "quality", model=score.model, policy=score.policy))
        error = None if ours["mean"] is None else 100 * (ours["mean"] - score.value)
        within = error is not None and abs(error) <= BAND_PP
        scores.append({**asdict(score), "ours": ours, "error_pp": error, "within": within})
    return {"numbers": scores, "speed": _speed(rows), "width": _width(rows), "stragglers": _stragglers(rows)}


def _speed(rows: list[Row]) -> list[dict[str, Any]]:
    """Ratios of the times to reach an F1, by clock."""
    lines = []
    for clock in CLOCKS:
        for speed in SPEED_UPS:
            alone = _time_to(rows, [f"single-rows-{m}" for m in PARTS], speed.f1, clock)
            swarm = _time_to(rows, [f"swarm-{WORKERS}-chunk-{c}" for c in CHUNKS], speed.f1, clock)
            ours = summarise({seed: [alone[seed] / swarm[seed]] for seed in alone if seed in swarm})
            if ours["mean"] is None:
                continue
            error = ours["mean"] / speed.value - 1
            within = abs(error) <= BAND_SPEED if clock in speed.banded else None
            lines.append({**asdict(speed), "clock": clock, "ours": ours, "error": error, "within": within})
    return lines


def _time_to(rows: list[Row], labels: list[str], f1: float, clock: str) -> dict[int, float]:
    """{seed: time at which the mean F1 of growing parts comes to `f1`}; without seeds that never come to it."""
    parts = [
        (by_seed(rows, "quality", model="strong", policy=label), by_seed(rows, clock, model="strong", policy=label))
        for label in labels
    ]
    times = {}
    for seed in set.intersection(*(set(quality) for quality, _ in parts)):
        reached = [0.0, *(float(np.mean(quality[seed])) for quality, _ in parts)]
        spent = [0.0, *(float(np.mean(time[seed])) for _, time in parts)]
        for (low, high), (before, after) in zip(pairwise(reached), pairwise(spent), strict=True):
            if low < f1 <= high:
                times[seed] = before + (after - before) * (f1 - low) / (high - low)
                break
    return times


def _width(rows: list[Row]) -> dict[str, Any]:
    """F1 by width, the best width, and how far it is above both ends."""
    of = lambda label: by_seed(rows, "quality", model="weak", policy=label)  # noqa: E731
    curve = [{"width": n, "ours": summarise(of(f"swarm-{n}-standard"))} for n in WIDTHS]
    early = [{"width": n, "ours": summarise(of(f"swarm-{n}-as-they-come"))} for n in EARLY]
    found = {
        "curve": [line for line in curve if line["ours"]["mean"] is not None],
        "early": [line for line in early if line["ours"]["mean"] is not None],
    }
    if len(found["curve"]) < len(WIDTHS):
        return found
    peak = max(curve, key=lambda line: line["ours"]["mean"])["width"]
    above = {n: difference(of(f"swarm-{peak}-standard"), of(f"swarm-{n}-standard")) for n in (WIDTHS[0], WIDTHS[-1])}
    errors = {n: _standard_errors(gain) for n, gain in above.items()}
    within = PEAK[0] <= peak <= PEAK[1] and all(error is not None and error > 2 for error in errors.values())
    margins = [{"width": n, "gain": gain, "standard_errors": errors[n]} for n, gain in above.items()]
    return found | {"peak": peak, "above": margins, "within": within}


def _standard_errors(gain: Mapping[str, Any]) -> float | None:
    """Mean over its standard error; None where seeds do not differ."""
    values = list(gain["per_seed"].values())
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return gain["mean"] / error if error else None


def _stragglers(rows: list[Row]) -> list[dict[str, Any]]:
    """The slowest worker's time over the mean, by model."""
    lines = []
    for model in ("strong", "weak"):
        own = [row for row in rows if row["model"] == model and "straggler" in row]
        ours = summarise(by_seed(own, "straggler"))
        if ours["mean"] is not None:
            within = STRAGGLER_BAND[0] <= ours["mean"] <= STRAGGLER_BAND[1]
            lines.append({"model": model, "ours": ours, "within": within})
    return lines


def sections(result: Mapping[str, Any]) -> Iterable[Section]:
    """The tables of the card."""
    verdict = lambda within: "–" if within is None else "within" if within else "not within"  # noqa: E731
    shown = lambda line: f"{line['ours']['mean']:.3f}"  # noqa: E731
    scores = tuple(
        (
            *(line["quantity"], line["policy"], f"{line['value']:.3f}", shown(line), interval(line["ours"])),
            *(signed(line["error_pp"], 1), line["ours"]["episodes"], "yes" if line["in_fit"] else "no"),
            *(verdict(line["within"] if line["banded"] else None), line["source"]),
        )
        for line in result["numbers"]
        if line["ours"]["mean"] is not None
    )
    columns = ("Published quantity", "Policy", "Published", "Ours", "95% interval", "Error, pp", "Episodes")
    tables = [Table((*columns, "Used in the fit", f"Band {BAND_PP:g} pp", "Source"), scores, "Item-F1.")]
    speed = tuple(
        (
            *(f"{line['f1']:.1f}", CLOCKS[line["clock"]], f"{line['value']:.1f}", f"{line['ours']['mean']:.2f}"),
            *(interval(line["ours"], digits=2), f"{signed(100 * line['error'], 0)}%", line["ours"]["seeds"]),
            *("yes" if line["in_fit"] and line["clock"] == "critical_steps" else "no", verdict(line["within"])),
        )
        for line in result["speed"]
    )
    columns = ("Item-F1", "Clock", "Published", "Ours", "95% interval", "Error", "Seeds", "Used in the fit")
    if speed:
        text = f"Time of one agent over that of {WORKERS} workers, strong model ({K25}, figure 8)."
        tables.append(Table((*columns, f"Band {BAND_SPEED:.0%}"), speed, text))
    width = result["width"]
    early = {line["width"]: line["ours"] for line in width["early"]}
    curve = tuple(
        (
            *(line["width"], shown(line), interval(line["ours"])),
            f"{early[line['width']]['mean']:.3f}" if line["width"] in early else "–",
        )
        for line in width["curve"]
    )
    if len(curve) > 1:
        text = f"Item-F1 by width, weak model. Published in words: rises, then falls ({WIDESEEK})."
        if "peak" in width:
            ends = ", ".join(
                f"{signed(line['gain']['mean'], 3)} ({interval(line['gain'])}) above width {line['width']}"
                for line in width["above"]
            )
            text += f" Best at {width['peak']}: {ends}; {verdict(width['within'])} (a peak in {PEAK[0]} to {PEAK[1]},"
            text += " more than two standard errors above both ends)."
        tables.append(Table(("Searchers", "Read together", "95% interval", "Read as they come"), curve, text))
    late = tuple(
        (line["model"], f"{line['ours']['mean']:.2f}", interval(line["ours"], digits=2), verdict(line["within"]))
        for line in result["stragglers"]
    )
    if late:
        low, high = STRAGGLER_BAND
        text = f"Time of the slowest of {STRAGGLERS} workers over their mean, since the spawn."
        tables.append(Table(("Model", "Ours", "95% interval", f"Band {low} to {high}"), late, text))
    text = (
        "WideSearch. A number that was used in the fit of the laws only checks the fit: "
        "that the agent-level environment reproduces it is no validation."
    )
    yield Section("Search-v0: published against ours", text, tables=tuple(tables))
