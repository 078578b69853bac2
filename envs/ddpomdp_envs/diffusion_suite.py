"""The suite `diffusion`: how the signal of a credit changes as a trace, or a team, grows.

In every structure of `diffusion_worlds`, at every size: the effect delta of one decision in the middle of the episode
from forced branches with common luck, the spread sigma of each estimator's credit from ordinary episodes, d = delta /
sigma, and rho, the correlation of the credit with the true advantage at even odds. Errors: of delta from its contexts,
of sigma as that of a standard deviation of n values, (2 n)^(-1/2) sigma; contexts of all seeds are independent.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ddpomdp.bench import Cell, Curve, Metric, Section, Suite, Table
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, whole
from ddpomdp_envs import slopes
from ddpomdp_envs.diffusion_worlds import LEVELS, STRUCTURES, exact, sizes, world

ESTIMATORS = ("shared", "leave_one_out", "counterfactual", "removal")
SAMPLES = 4  # other episodes of leave_one_out, alternatives of counterfactual
TURNS = 1_000_000  # decisions that the z-scores may spend
WORK = 2**16  # contexts of a cell times its size are about this at most, and 64 to `contexts`
SATURATED = 0.7  # rho from which d says little


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Every structure at every size under every seed; all estimators in one cell."""
    choose("level", options["level"], LEVELS)
    whole("contexts", options["contexts"], 16, 1_000_000)
    for structure in options["structures"]:
        choose("structures", structure, STRUCTURES)
        row = STRUCTURES[structure]
        for size in sizes(structure, options["level"]):
            env, _, _ = world(structure, size)
            provenance = {f"{row.env} version": env.version, f"{row.env} harness": env.harness.digest}
            contexts = max(min(options["contexts"], row.most, WORK // size), min(options["contexts"], 64))
            for seed in options["seeds"]:
                settings = {"env": row.env, "structure": structure, "size": size, "contexts": contexts}
                name = structure.replace(", ", "-").replace(" ", "-")
                yield Cell(f"{name}.{size}.s{seed}", seed, settings, provenance)


def run(cell: Cell) -> list[Row]:
    """One row per estimator."""
    import jax

    from ddpomdp.credit.plays import LANES, Player
    from ddpomdp.credit.signal import effect_size, signals

    setting = cell.settings
    row = STRUCTURES[setting["structure"]]
    env, policy, numbers = world(setting["structure"], setting["size"])
    plays = Player(env, policy, policy.init(env), numbers.params, at_most=min(LANES, setting["contexts"]))
    found = signals(
        plays,
        jax.random.key(cell.seed),
        "tool",
        ESTIMATORS,
        setting["contexts"],
        SAMPLES,
        uniform=row.uniform,
        before=row.before,
    )
    known = exact(setting["structure"], setting["size"]) or {}
    rows = []
    for estimator, signal in found.items():
        d = effect_size(signal["delta"], signal["sigma"])
        rows.append(
            {
                "estimator": estimator,
                **signal,
                "d": d if math.isfinite(d) else None,
                "rho": correlation(signal["delta"], signal["sigma"]),
                **{f"exact_{name}": known.get(name) for name in ("delta", "sigma", "rho")},
            }
        )
    return rows


def correlation(delta: float, sigma: float) -> float:
    """rho at even odds, (delta / 2) / ((delta / 2)^2 + sigma^2)^(1/2); 0 where delta is."""
    total = math.hypot(delta / 2, sigma)
    return delta / 2 / total if total > 0 else 0.0


def pooled(rows: list[Row]) -> dict[str, Any]:
    """One estimator at one size over all seeds: means by contexts, with errors."""
    n = math.fsum(row["n"] for row in rows)
    mean = lambda name: math.fsum(row["n"] * row[name] for row in rows) / n  # noqa: E731
    delta, sigma = mean("delta"), math.sqrt(math.fsum(row["n"] * row["sigma"] ** 2 for row in rows) / n)
    stderr = math.sqrt(math.fsum((row["n"] * row["stderr"]) ** 2 for row in rows)) / n
    sigma_error = 1 / math.sqrt(2 * n)
    error = math.hypot(slopes.log_error(delta, stderr), sigma_error)
    rho = correlation(delta, sigma)
    d = delta / sigma if sigma > 0 else None
    half = slopes.Z * error
    bounds = [correlation(delta * math.exp(sign * half), sigma) if error < 10 else None for sign in (-1, 1)]
    turns, one, every = mean("decisions"), mean("extra_one"), mean("extra_all")
    z = lambda extra: None if d is None else d / 2 * math.sqrt(TURNS / (turns * (1 + extra)))  # noqa: E731
    return {
        "contexts": int(n),
        "calls": mean("many"),
        "decisions": turns,
        "delta": delta,
        "delta_stderr": stderr,
        "sigma": sigma,
        "sigma_stderr": sigma * sigma_error,
        "d": d,
        "log_error": error if math.isfinite(error) else None,
        "rho": rho,
        "rho_low": bounds[0],
        "rho_high": bounds[1],
        "coupling": mean("coupling"),
        "z_one": z(one),
        "z_all": z(every),
        **{f"exact_{name}": rows[0][f"exact_{name}"] for name in ("delta", "sigma", "rho")},
    }


def analyse(rows: list[Row]) -> dict[str, Any]:
    """By structure and estimator: the series over sizes, slopes of d, delta and sigma, and the verdict."""
    series = []
    for structure, estimator in dict.fromkeys((row["structure"], row["estimator"]) for row in rows):
        mine = [row for row in rows if (row["structure"], row["estimator"]) == (structure, estimator)]
        grows = STRUCTURES[structure].grows
        points = []
        for size in sorted({row["size"] for row in mine}):
            point = pooled([row for row in mine if row["size"] == size])
            points.append({"size": size, "x": float(size) if grows == "team" else point["calls"], **point})
        found = slopes.verdict([(p["x"], p["d"] or 0.0, _error(p)) for p in points])
        numerator = slopes.fit(
            [(p["x"], p["delta"], slopes.log_error(p["delta"], p["delta_stderr"])) for p in points if resolved(p)]
        )
        denominator = slopes.fit(
            [(p["x"], p["sigma"], slopes.log_error(p["sigma"], p["sigma_stderr"])) for p in points if p["sigma"] > 0]
        )
        saturated = sum(p["rho"] >= SATURATED for p in points)
        series.append(
            {
                "structure": structure,
                "estimator": estimator,
                "grows": grows,
                "points": points,
                **{f"verdict_{k}" if k in ("points", "local") else k: v for k, v in found.items()},
                "slope_delta": numerator,
                "slope_sigma": denominator,
                "saturated": saturated,
            }
        )
    return {"series": series, "turns_of_z": TURNS, "samples": SAMPLES}


def _error(point: Mapping[str, Any]) -> float:
    return math.inf if point["log_error"] is None else point["log_error"]


def resolved(point: Mapping[str, Any]) -> bool:
    """Whether a point of a series counts: its effect is positive, and known well enough."""
    return point["delta"] > 0 and _error(point) <= slopes.RESOLVED


# Report ------------------------------------------------------------------------------------------------------------


def sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The verdicts, then a part per structure."""
    series = results["analysis"]["series"]
    yield Section("Does the signal fall with trace length?", VERDICTS, tables=(verdicts(series),))
    for structure in dict.fromkeys(line["structure"] for line in series):
        mine = [line for line in series if line["structure"] == structure]
        row = STRUCTURES[structure]
        about = f"{row.env}: {row.assumes}. Expected slope of the shared outcome: {row.expected}."
        yield Section(structure, about, tables=(table(mine),), curves=(figure(mine),))


VERDICTS = (
    "Slope of log d on log size, with 95% interval; d is the effect of one decision over the spread of its credit. "
    "Holds: the interval lies below −0.1; fails: above. A verdict is one of its structure: what it assumes stands "
    "beside it. Local slopes join neighbouring sizes: where they differ, no single power describes the fall. Sizes "
    "whose d has an error above one half (of log d) are not resolved and enter no slope."
)


def verdicts(series: list[dict[str, Any]]) -> Table:
    """One line per structure and estimator."""
    columns = ("Structure", "Grows", "Estimator", "Answer", "Law", "Slope of d", "95% interval", "Local slopes")
    columns = (*columns, "Slope of delta", "Slope of sigma", "Resolved", "Saturated", "Expected of shared", "Assumes")
    lines = []
    for line in series:
        row = STRUCTURES[line["structure"]]
        lines.append(
            (
                line["structure"],
                line["grows"],
                line["estimator"],
                line["answer"],
                line["law"],
                _number(line["slope"]),
                "–" if line["low"] is None else f"{_number(line['low'])} to {_number(line['high'])}",
                ", ".join(_number(step["slope"]) for step in line["verdict_local"]) or "–",
                _number(line["slope_delta"]["slope"]),
                _number(line["slope_sigma"]["slope"]),
                f"{line['resolved']} of {line['verdict_points']}",
                f"{line['saturated']} of {line['verdict_points']}",
                row.expected if line["estimator"] == "shared" else "",
                row.assumes,
            )
        )
    return Table(columns, tuple(lines))


def table(series: list[dict[str, Any]]) -> Table:
    """Numerator and denominator apart, size by size."""
    columns = (
        "Estimator",
        "Size",
        "Task calls",
        "Decisions",
        "Delta",
        "± 1 s.e.",
        "Exact",
        "Sigma",
        "Exact",
        "d",
        "rho",
    )
    columns = (*columns, "Exact", "Coupling", "z, one decision", "z, all decisions", "Contexts")
    lines = []
    for line in series:
        for p in line["points"]:
            own = line["estimator"] == "shared"  # closed forms are those of the shared outcome; delta is everyone's
            lines.append(
                (
                    line["estimator"],
                    f"{p['size']:,}",
                    f"{p['calls']:,.0f}",
                    f"{p['decisions']:,.0f}",
                    _number(p["delta"], 5),
                    _number(p["delta_stderr"], 5),
                    _number(p["exact_delta"], 5),
                    _number(p["sigma"], 4),
                    _number(p["exact_sigma"] if own else None, 4),
                    _number(p["d"], 3),
                    _number(p["rho"], 3),
                    _number(p["exact_rho"] if own else None, 3),
                    _number(p["coupling"], 3),
                    _number(p["z_one"], 1),
                    _number(p["z_all"], 2),
                    f"{p['contexts']:,}",
                )
            )
    caption = f"z: what {TURNS:,} decisions of simulated play buy, if one decision is credited or all of its kind."
    return Table(columns, tuple(lines), caption)


def figure(series: list[dict[str, Any]]) -> Curve:
    """rho against size, one line per estimator, and the closed form of the shared outcome."""
    lines: dict[str, list[tuple[float, ...]]] = {}
    for line in series:
        lines[line["estimator"]] = [
            (p["x"], p["rho"], p["rho_low"], p["rho_high"]) for p in line["points"] if resolved(p)
        ]
    known = [
        (p["x"], p["exact_rho"])
        for line in series
        if line["estimator"] == "shared"
        for p in line["points"]
        if p["exact_rho"]
    ]
    dashed = ()
    if known:
        lines["shared, exact"], dashed = known, ("shared, exact",)
    team = series[0]["grows"] == "team"
    return Curve(
        title="Correlation of the credit with the true advantage",
        x_label="Workers in the team, same work in all" if team else "Calls of the task's tools in an episode",
        y_label="rho, credit against true advantage",
        lines={name: points for name, points in lines.items() if points},
        caption="1: the credit of an episode is the decision's true advantage. 0.01: it takes 10,000 episodes to see "
        "it. Both axes are logarithmic; a straight line is a power law. Bands: 95% intervals.",
        x_scale="log",
        y_scale="log",
        dashed=dashed,
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}".replace("-", "−")


def diffusion() -> Suite:
    """How the signal of one decision changes with the length of the trace and the size of the team."""
    return Suite(
        name="diffusion",
        description="Signal of one decision's credit against trace length and team size, by structure and estimator.",
        cells=cells,
        run=run,
        options={"structures": list(STRUCTURES), "level": "usual", "seeds": [0, 1], "contexts": 1_024},
        metrics=(
            Metric("rho", "rho", better="higher"),
            Metric("delta", "Effect of one decision"),
            Metric("sigma", "Spread of its credit", better="lower"),
            Metric("coupling", "Coupling"),
        ),
        group_by=("structure", "size", "estimator"),
        analyse=analyse,
        sections=sections,
    )
