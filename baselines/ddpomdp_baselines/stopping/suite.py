"""The suite `stopping`: heads and the rules in use on the same suppressed episodes, in three tasks and topologies.

A cell is a world under a seed; a row is one rule at one price (a multiple of the environment's own) and holds means
over that seed's test episodes. Rules are tuned and heads trained on other episodes of that seed, in groups of `GROUP`
for GRPO; all of them on the same. Where the stopping problem is known (`KNOWN`), test payoffs are expected ones on what
the lead knows, and regret is against Snell's rule on the same episodes.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ddpomdp.bench import Cell, Curve, Metric, Section, Suite, Table
from ddpomdp.bench.stats import difference, summarise
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, number, whole
from ddpomdp_envs.tables import by_seed, interval

GROUP = 4
TEST = 1_000_003  # added to a seed: its test episodes
LEAST_GAP = 1e-3  # quality points: a share of less than this says nothing
FIXED_RULES = ("always", "never", "fixed", "threshold", "patience", "stall", "budget", "random")
HEADS: dict[str, tuple[str, str, str]] = {  # estimator, form, payoff
    "margin": ("margin", "linear", "realised"),
    "expectation": ("expectation", "mlp", "realised"),
    "hazard": ("hazard", "mlp", "realised"),
    "grpo": ("grpo", "mlp", "realised"),
    "dr_grpo": ("dr_grpo", "mlp", "realised"),
}
TABLES = {
    "table-known": ("margin", "table", "known"),
    "table-fitted": ("fitted", "table", "known"),
    "table-realised": ("margin", "table", "realised"),
}
TRANSFERS = ("transfer-price", "transfer-horizon")
WORLDS: dict[str, tuple[str, dict[str, Any], int]] = {  # world, options, training episodes of the default
    "vote": ("vote", {}, 4_096),
    "alone": ("alone", {}, 4_096),
    "swarm": ("swarm", {}, 512),
    "crew": ("crew", {}, 512),
    "science": ("science", {}, 512),
    "swarm-8": ("swarm", {"searchers": 8}, 512),
}
KNOWN = ("vote", "alone")  # worlds whose information states are known
BEST = "margin"  # the head that claims are made for; where states are known, `table-realised`


def head_of(world: str) -> str:
    """The head that claims are made for."""
    return "table-realised" if world in KNOWN else BEST


def rules_of(world: str) -> list[str]:
    """All rules of a world, in report order."""
    known = [*TABLES, "snell"] if world in KNOWN else []
    team = ["transfer-team"] if world == "swarm-8" else []
    return [*FIXED_RULES, *HEADS, *known, *TRANSFERS, *team]


@cache
def _study(world: str, seed: int, train: int, test: int, steps: int, factors: tuple[float, ...]) -> dict[str, Any]:
    """Episodes and heads of a world under a seed."""
    from ddpomdp_baselines.stopping.head import Head
    from ddpomdp_baselines.stopping.worlds import world as make

    name, options, _ = WORLDS[world]
    made = make(name, **options)
    learn, judge = made.episodes(seed, train, GROUP), made.episodes(seed + TEST, test)
    prices = tuple(learn.price * factor for factor in factors)
    fit = lambda settings, data=learn, prices=prices: Head(*settings, prices=prices, steps=steps, seed=seed).fit(data)  # noqa: E731
    heads = {label: fit(settings) for label, settings in HEADS.items()}
    if world in KNOWN:
        heads |= {label: fit(settings) for label, settings in TABLES.items()}
    best = {**HEADS, **TABLES}[head_of(world)]
    for factor, price in zip(factors, prices, strict=True):  # for each price a head that has never met it
        rest = tuple(p for p in prices if p != price) or prices
        heads[f"transfer-price@{factor:g}"] = fit(best, prices=rest)
    half = learn.until(max(learn.here.shape[1] // 2 + 1, 2))
    heads["transfer-horizon"] = fit(HEADS["margin"], data=half)
    return {"made": made, "learn": learn, "judge": judge, "heads": heads}


def _rows(world: str, seed: int, factor: float, train: int, test: int, steps: int, factors: tuple[float, ...]) -> Any:
    """Every rule's row at one price."""
    from ddpomdp_baselines.stopping import report, rules
    from ddpomdp_baselines.stopping.head import Fitted

    study = _study(world, seed, train, test, steps, factors)
    learn, judge, heads = study["learn"], study["judge"], study["heads"]
    price, kind = learn.price * factor, "known" if judge.known is not None else "realised"
    stops: dict[str, Any] = {}
    for label in rules_of(world):
        if label in rules.RULES:
            stops[label] = (label, rules.tuned(label, learn, price))
        elif label == "transfer-price":
            stops[label] = heads[f"{label}@{factor:g}"]
        elif label == "transfer-team":
            stops[label] = _study("swarm", seed, train, test, steps, factors)["heads"][BEST]
        elif label in heads:
            stops[label] = heads[label]
    times = {label: report.stop_times(stop, judge, price) for label, stop in stops.items()}
    reference = None
    if world in KNOWN:
        times["snell"] = reference = report.snell_times(study["made"].process, judge, price)
    found = {row["rule"]: row for row in report.evaluate(times, judge, price, kind=kind, reference=reference)}
    best = head_of(world)
    # The head's own times, shuffled over episodes: does it look at the state at all?
    marginal = np.bincount(times[best], minlength=judge.here.shape[1]) / len(judge)
    pays = np.where(
        judge.here, judge.net(price, kind), judge.net(price, kind)[np.arange(len(judge)), judge.last][:, None]
    )
    spent = np.where(judge.here, judge.cost, judge.cost[np.arange(len(judge)), judge.last][:, None])
    value, cost = float((pays @ marginal).mean()), float((spent @ marginal).mean())
    mean_time = float(np.arange(len(marginal)) @ marginal)
    found["random"] = {"value": value, "quality": value + price * cost, "cost": cost, "decisions": mean_time}
    found["random"] |= {"early": None, "late": None}
    hulls = {label: report.frontier(label, judge, kind) for label in rules.RULES}
    tuned_value = lambda label: rules.at(learn.net(price), report.stop_times(stops[label], learn, price)).mean()  # noqa: E731
    best_rule = max(FIXED_RULES[:-1], key=tuned_value)
    exact = _bars(world, price) if world in KNOWN else {}
    exact |= {label: report.exact(study["made"].process, heads[label], price).value for label in TABLES if exact}
    out = []
    for label in rules_of(world):
        row = {"factor": factor, "rule": label}
        row |= {name: found[label][name] for name in ("value", "quality", "cost", "decisions", "early", "late")}
        row["regret"] = found["snell"]["value"] - row["value"] if world in KNOWN else None
        row["prophet"] = float(rules.at(judge.net(price, kind), report.hindsight(judge, price, kind)).mean())
        row["equal_cost"] = row["quality"] - max(report.quality_at(hull, row["cost"]) for hull in hulls.values())
        row |= {"best_rule": best_rule} | ({"exact": exact.get(label)} if exact else {})
        fitted, size = stops.get(label), {"slope": None, "error": None}
        if label in (best, *HEADS, *TABLES) and isinstance(fitted, Fitted):
            size = report.calibration(fitted, judge, price, kind)
        row |= {"slope": size["slope"], "calibration_error": size["error"]}
        out.append(row)
    return out


@cache
def _bars(world: str, price: float) -> dict[str, float]:
    """Exact values of the best fixed number, the best threshold and Snell's rule; what ends an episode left out."""
    from ddpomdp_baselines.stopping import oracle
    from ddpomdp_baselines.stopping.worlds import world as make

    name, options, _ = WORLDS[world]
    process = make(name, **options).process
    rules = {"fixed": oracle.fixed(process, price)[1], "threshold": oracle.threshold(process, price)[1]}
    return {name: rule.value for name, rule in rules.items()} | {"snell": oracle.snell(process, price).value}


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Every world under every seed."""
    for name, low in (("test", 16), ("steps", 1)):
        whole(name, options[name], low, 10**6)
    whole("train", options["train"], 2 * GROUP, 10**6, none=True)
    for factor in options["factors"]:
        number("factors", factor, 0.0, 1e6)
    from ddpomdp_baselines.stopping.worlds import world as make

    for world in options["worlds"]:
        choose("worlds", world, WORLDS)
        name, of_world, train = WORLDS[world]
        env = make(name, **of_world).env
        provenance = {f"{world} version": env.version, f"{world} harness": env.harness.digest}
        settings = {"env": env.id, "topology": env.options["topology"], "world": world, "test": options["test"]}
        settings |= {"train": options["train"] or train, "steps": options["steps"], "factors": list(options["factors"])}
        for seed in options["seeds"]:
            yield Cell(f"{world}.s{seed}", seed, settings, provenance)


def run(cell: Cell) -> list[Row]:
    """Every rule at every price, on the same episodes."""
    s = cell.settings
    sizes = s["train"], s["test"], s["steps"], tuple(s["factors"])
    return [row for factor in s["factors"] for row in _rows(s["world"], cell.seed, factor, *sizes)]


def analyse(rows: list[Row]) -> dict[str, Any]:
    """By world and price: every rule; the head less every other rule, paired seed by seed; the verdict; transfer."""
    table, against, verdicts, transfers = [], [], [], []
    for world, factor in dict.fromkeys((row["world"], row["factor"]) for row in rows):
        mine = [row for row in rows if (row["world"], row["factor"]) == (world, factor)]
        value = {rule: by_seed(mine, "value", rule=rule) for rule in dict.fromkeys(row["rule"] for row in mine)}
        head, at = head_of(world), {"world": world, "factor": factor}
        names = (
            "value",
            "quality",
            "cost",
            "decisions",
            "early",
            "late",
            "regret",
            "equal_cost",
            "slope",
            "calibration_error",
        )
        figures = {
            rule: {name: summarise(by_seed(mine, name, rule=rule)) for name in (*names, "prophet")} for rule in value
        }
        exact = [row for row in mine if row.get("exact") is not None]
        for rule in value:
            short = {name: _short(figure) for name, figure in figures[rule].items()}
            table.append({**at, "rule": rule, **short, **_exactly(exact, rule)})
        less = {rule: difference(value[head], value[rule]) for rule in value if head in value and rule != head}
        against += [{**at, "head": head, "rule": rule, **line} for rule, line in less.items()]
        for rule in (rule for rule in (*TRANSFERS, "transfer-team") if rule in value):
            home = head if rule == "transfer-price" else BEST  # of the same form
            if home in value:
                transfers.append({**at, "rule": rule, "home": home, **difference(value[rule], value[home])})
        fixed = {rule: line for rule, line in less.items() if rule in FIXED_RULES}
        if fixed:
            nearest = min(fixed, key=lambda rule: fixed[rule]["mean"])
            equal = figures[head]["equal_cost"]
            early, late = (figures[head][name]["mean"] for name in ("early", "late"))
            verdicts.append(
                {**at, "head": head, "seeds": len(equal["per_seed"]), "nearest": nearest, "over": fixed[nearest]}
                | {"beats_every_rule": all(_above(line) for line in fixed.values()), "equal_cost": equal}
                | {"beats_at_equal_cost": _above(equal), "late_to_early": late / early if early else None}
            )
    return {"rules": table, "against": against, "verdicts": verdicts, "transfers": transfers}


def _above(line: Mapping[str, Any]) -> bool:
    """Whether the whole interval lies above 0."""
    return line["low"] is not None and line["low"] > 0


def _exactly(rows: list[Row], rule: str) -> dict[str, Any]:
    """Exact value, and the share of the gap between the best fixed number, or threshold, and Snell that it closes."""
    value = {name: by_seed(rows, "exact", rule=name) for name in (rule, "fixed", "threshold", "snell")}
    closed = {}
    for bar in ("fixed", "threshold"):
        gap = {seed: value["snell"][seed][0] - low for seed, (low,) in value[bar].items()}
        share = {
            seed: [(mine - value[bar][seed][0]) / gap[seed]]
            for seed, (mine,) in value[rule].items()
            if gap[seed] > LEAST_GAP
        }
        closed[bar] = _short(summarise(share))
    return {"exact": _short(summarise(value[rule])), "closed": closed}


def _short(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Without the values of single seeds, which stand in the rows."""
    return {name: summary[name] for name in ("mean", "low", "high")}


def sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """Verdicts, errors and calibration, frontiers."""
    found = results["analysis"]
    show = lambda x, digits=4: "" if x is None else f"{x:+.{digits}f}".replace("-", "−")  # noqa: E731
    lines = tuple(
        (
            line["world"],
            line["factor"],
            line["seeds"],
            line["nearest"],
            f"{show(line['over']['mean'])} ({interval(line['over'], digits=4)})",
            f"{show(line['equal_cost']['mean'])} ({interval(line['equal_cost'], digits=4)})",
            "yes" if line["beats_every_rule"] else "no",
            "yes" if line["beats_at_equal_cost"] else "no",
            "" if line["late_to_early"] is None else f"{line['late_to_early']:.1f}",
        )
        for line in found["verdicts"]
    )
    columns = ("World", "Price", "Seeds", "Next best rule", "Head less it", "Quality at equal cost")
    text = (
        "The head against the rules in use: its value less that of the best of them at this price, and its quality "
        "less the best that any mixture of any rule's levels reaches on the test episodes at the head's cost. Beaten "
        "is what the 95% interval over seeds lies above. Late to early: stops after the best time over stops before "
        "it, 2 among failures of real teams (MAST, arXiv 2503.13657)."
    )
    table = Table((*columns, "Beats every rule", "And at equal cost", "Late to early"), lines)
    yield Section("Does the head beat the rules in use?", text, tables=(table,))
    lines = tuple(
        (
            line["world"],
            line["factor"],
            line["rule"],
            show(line["exact"]["mean"]),
            *(f"{show(share['mean'], 3)} ({interval(share, digits=3)})" for share in line["closed"].values()),
        )
        for line in found["rules"]
        if line["exact"]["mean"] is not None
    )
    if lines:
        text = "Exact values on what the lead knows, and the share of the gap to Snell's rule that a table closes."
        columns = ("World", "Price", "Rule", "Exact value", "Closed over best fixed", "Over best threshold")
        yield Section("How close to the optimum?", text, tables=(Table(columns, lines),))
    lines = tuple(
        (line["world"], line["factor"], line["head"], line["rule"], show(line["mean"]), interval(line, digits=4))
        for line in found["against"]
    )
    columns = ("World", "Price", "Head", "Less", "Value", "95% interval")
    text = "On the same test episodes, paired seed by seed; price as a multiple of the environment's own."
    yield Section("The head against every rule", text, tables=(Table(columns, lines),))
    lines = tuple(
        (line["world"], line["factor"], line["rule"], line["home"], show(line["mean"]), interval(line, digits=4))
        for line in found["transfers"]
    )
    text = (
        "Heads that were trained elsewhere, less one of the same form that was trained here: at the other prices only, "
        "on the first half of the decisions, with four searchers instead of eight."
    )
    columns = ("World", "Price", "Head", "Less", "Value", "95% interval")
    yield Section("Transfer", text, tables=(Table(columns, lines),))
    lines = tuple(
        (
            line["world"],
            line["factor"],
            line["rule"],
            *(show(line[name]["mean"]) for name in ("value", "regret", "equal_cost")),
            *(show(line[name]["mean"], 2) for name in ("decisions", "early", "late", "slope")),
            show(line["calibration_error"]["mean"]),
        )
        for line in found["rules"]
    )
    columns = (
        "World",
        "Price",
        "Rule",
        "Value",
        "Regret",
        "Quality over the best frontier",
        "Decisions",
        "Early",
        "Late",
    )
    text = (
        "Regret is against Snell's rule where it is known. Early and late are against Snell's times there, elsewhere "
        "against the best time in hindsight, which no rule can know. Published, of real teams: premature termination "
        "6.2, unaware of termination 12.4 per cent of failures, early to late 1 : 2 (MAST, arXiv 2503.13657)."
    )
    yield Section("Errors and calibration", text, tables=(Table((*columns, "Slope", "Calibration error"), lines),))
    for world in dict.fromkeys(line["world"] for line in found["rules"]):
        shown = ("fixed", "threshold", "patience", "grpo", head_of(world), "snell")
        points = {
            rule: sorted(
                (line["cost"]["mean"], line["quality"]["mean"])
                for line in found["rules"]
                if (line["world"], line["rule"]) == (world, rule)
            )
            for rule in shown
        }
        points = {rule: line for rule, line in points.items() if len(line) > 1}
        if points:
            curve = Curve(f"Frontier, {world}", "cost, tokens", "quality", points)
            yield Section(f"Frontier, {world}", "One point per price.", curves=(curve,))


def stopping() -> Suite:
    """When to stop: heads against the rules in use."""
    return Suite(
        name="stopping",
        description="Stopping heads against the rules in use and the optimal stop, on suppressed episodes.",
        cells=cells,
        run=run,
        options={
            "worlds": ["vote", "alone", "science", "swarm", "crew"],
            "seeds": list(range(10)),
            "factors": [1, 2, 4, 8],
            "train": None,
            "test": 512,
            "steps": 400,
        },
        metrics=(
            Metric("value", "Value", better="higher"),
            Metric("quality", "Quality", better="higher", range=(0.0, 1.0)),
            Metric("cost", "Cost", unit="tokens", better="lower"),
            Metric("decisions", "Decisions"),
        ),
        group_by=("world", "factor", "rule"),
        analyse=analyse,
        sections=sections,
    )
