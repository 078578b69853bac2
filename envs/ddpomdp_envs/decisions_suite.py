"""The suite `decisions`: for each of O1 to O5 a scripted policy with one option swept, all else fixed.

An option with an order has two ends, and the question is whether something between them beats both: then there is a
decision to learn. The best value between is chosen on the first half of the seeds, its margins are taken on the rest,
so that choosing does not flatter them. Episode e of seed s meets the same task under every value.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpomdp.bench import Cell, Curve, Metric, Output, Section, Suite, Table
from ddpomdp.bench.stats import difference, summarise
from ddpomdp.bench.suite import Row
from ddpomdp.options import UsageError, choose, whole
from ddpomdp.registry import made
from ddpomdp_envs.tables import by_seed, interval

KINDS = ("O1", "O2", "O3", "O4", "O5")
KEPT = ("reward", "quality", "tokens", "wall_s")
REWARD = Metric("reward", "Reward", better="higher")


@dataclass(frozen=True)
class Sweep:
    """One decision of one task.

    Attributes:
      env: the task.
      kind: O1 to O5.
      asks: the question, in words.
      policy: the scripted policy.
      option: what is swept.
      values: from one end to the other, or in any order; a dict holds other options that go with the value.
      ordered: whether the first and the last value are ends.
      fixed: the policy's other options.
      where: options of the environment beside the preset.
    """

    env: str
    kind: str
    asks: str
    policy: str
    option: str
    values: tuple[Any, ...]
    ordered: bool = True
    fixed: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What the rows call it."""
        return f"{self.env} {self.kind}"

    def label(self, value: Any) -> str:
        """A value in the tables."""
        value = value[self.option] if isinstance(value, dict) else value
        return str(len(value)) if isinstance(value, tuple) else str(value)

    def options(self, value: Any) -> dict[str, Any]:
        """The policy's options."""
        return {**self.fixed, **(value if isinstance(value, dict) else {self.option: value})}


_CREW, _SWARM = {"topology": "planner_executor_critic"}, {"topology": "swarm"}
# Eight variants, and a roster that lists the whole team.
_WIDE = {**_SWARM, "num_subtasks": 8, "counts": (1, 2, 3, 4, 6, 8), "roster": 10}
_LEVELS = ("short", "standard", "detailed")
SWEEPS = (
    Sweep("Search-v0", "O1", "how many searchers", "swarm", "n", (1, 2, 4, 8, 12, 15)),
    Sweep(
        *("Search-v0", "O2", "rows the lead keeps, four for each searcher", "swarm", "lead_rows"),
        tuple({"lead_rows": 48 - 4 * n, "n": n} for n in (12, 11, 9, 7, 4, 1)),
    ),
    Sweep("Search-v0", "O3", "detail of the brief", "swarm", "brief", _LEVELS, fixed={"n": 12}),
    Sweep(
        *("Search-v0", "O4", "rule of merging", "swarm", "rule", ("majority", "verdict", "best", "last", "union")),
        ordered=False,
        fixed={"n": 12, "redundancy": 2},
    ),
    Sweep(
        *("Search-v0", "O5", "rounds over missing rows", "swarm", "rounds"),
        ((), ("missing",), ("missing",) * 2, ("missing",) * 3),
        fixed={"n": 12},
    ),
    Sweep("Math-v0", "O1", "solutions per problem", "vote", "n", (1, 2, 4, 8, 12, 15), where=_SWARM),
    Sweep(
        *("Math-v0", "O2", "problems given to the executor", "team", "run", ("never", "cue", "always")),
        fixed={"rule": "last"},
        where=_CREW,
    ),
    Sweep(
        *("Math-v0", "O3", "what the verifier is given", "team", "evidence", _LEVELS),
        fixed={"samples": 4, "k": 2},
        where=_CREW,
    ),
    Sweep(
        *("Math-v0", "O4", "rule of choosing", "team", "rule", ("last", "majority", "verdict", "best")),
        ordered=False,
        fixed={"samples": 4, "k": 2, "evidence": "detailed"},
        where=_CREW,
    ),
    Sweep("Math-v0", "O5", "rounds of solving", "solve_verify", "k", (1, 2, 3, 4, 6, 8), where=_CREW),
    Sweep(
        "DataScience-v0", "O1", "how many modelers, a variant each", "variants", "n", (1, 2, 3, 4, 6, 8), where=_WIDE
    ),
    Sweep(
        *("DataScience-v0", "O2", "whom rework is sent to", "variants", "whom", ("engineer", "modeler", "both")),
        ordered=False,
        fixed={"n": 1, "rework": 2},
        where=_WIDE,
    ),
    Sweep(
        *("DataScience-v0", "O4", "rule of picking among checked variants", "variants", "rule"),
        ("last", "best", "verdict"),
        ordered=False,
        fixed={"n": 4, "check": True},
        where=_WIDE,
    ),
    Sweep("DataScience-v0", "O3", "detail of the schema note", "chain", "note", ("list", "short", "standard", "full")),
    Sweep(
        *("DataScience-v0", "O5", "tunes of the modeler", "chain", "tune", (0, 1, 2, 3, 4, 5, 7)),
        fixed={"note": "standard"},
        where={"turn_cap": 8},
    ),
)
CORNERS = (
    "Not every decision has an end to fall off: rounds of rework and the cap of turns in DataScience-v0 pay until they "
    "pay nothing, and have no sweep."
)


def chosen(envs: Iterable[str], kinds: Iterable[str]) -> list[Sweep]:
    """The sweeps of some tasks and kinds. Raises `UsageError` for an unknown one, or where nothing is left."""
    tasks, wanted = list(envs), list(kinds)
    for name in tasks:
        choose("env", name, dict.fromkeys(sweep.env for sweep in SWEEPS))
    for kind in wanted:
        choose("kind", kind, KINDS)
    found = [sweep for sweep in SWEEPS if sweep.env in tasks and sweep.kind in wanted]
    if not found:
        raise UsageError(f"kinds: no sweep of {', '.join(wanted)} in {', '.join(tasks)}")
    return found


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Every value of every sweep under every seed."""
    whole("episodes", options["episodes"], 1, 100_000)
    for sweep in chosen(options["envs"], options["kinds"]):
        env = made(sweep.env, preset=options["preset"], **sweep.where)
        provenance = {f"{env.id} version": env.version, f"{sweep.id} harness": env.harness.digest}
        for value in sweep.values:
            label = sweep.label(value)
            settings = {"sweep": sweep.id, "env": sweep.env, "preset": options["preset"], "value": label}
            for seed in options["seeds"]:
                name = f"{sweep.env}.{sweep.kind}.{sweep.option}-{label}.s{seed}"
                yield Cell(name, seed, settings | {"episodes": options["episodes"]}, provenance)


def run(cell: Cell) -> Output:
    """Play the episodes of a cell."""
    import jax

    import ddpomdp
    from ddpomdp.bench import episode

    setting = cell.settings
    sweep = next(sweep for sweep in SWEEPS if sweep.id == setting["sweep"])
    env = made(sweep.env, preset=setting["preset"], **sweep.where)
    value = next(value for value in sweep.values if sweep.label(value) == setting["value"])
    policy = ddpomdp.policy(sweep.policy, env, **sweep.options(value))
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    played = episode.play(env, policy, policy.init(env), keys, env.params, env.spec.max_ticks)
    return Output([{name: row[name] for name in KEPT} for row in episode.rows(played)])


def analysis(rows: list[Row]) -> dict[str, Any]:
    """The map: per sweep the mean reward of every value, and the margins of the best one.

    Ordered: of the best value between over each end. Else: of the best value over the second.
    """
    lines = []
    for sweep in SWEEPS:
        own = [row for row in rows if row["sweep"] == sweep.id]
        labels = [label for label in map(sweep.label, sweep.values) if any(row["value"] == label for row in own)]
        if len(labels) < len(sweep.values):
            continue
        rewards = {label: by_seed(own, "reward", value=label) for label in labels}
        seeds = sorted(rewards[labels[0]])
        half = max(1, len(seeds) // 2)
        first, rest = seeds[:half], seeds[half:] or seeds
        part = lambda label, some, rewards=rewards: {seed: rewards[label][seed] for seed in some}  # noqa: E731
        mean = lambda label, some, part=part: summarise(part(label, some))["mean"]  # noqa: E731
        ranked = sorted(labels[1:-1] if sweep.ordered else labels, key=lambda label: -mean(label, first))
        best = ranked[0]
        rivals = (labels[0], labels[-1]) if sweep.ordered else ranked[1:2]
        margins = {rival: difference(part(best, rest), part(rival, rest)) for rival in rivals}
        worst = min(margin["mean"] for margin in margins.values())
        sure = all((margin["low"] if margin["low"] is not None else -math.inf) > 0 for margin in margins.values())
        lines.append(
            {
                "sweep": sweep.id,
                "asks": sweep.asks,
                "option": f"{sweep.policy}.{sweep.option}",
                "ordered": sweep.ordered,
                "values": {label: summarise(rewards[label]) for label in labels},
                "best": best,
                "margins": margins,
                "verdict": "yes" if sure else "no" if worst <= 0 else "undecided",
            }
        )
    return {"map": lines}


def sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The map as a table, and a curve per decision."""
    lines, curves = [], []
    for line in results["analysis"]["map"]:
        margins = "; ".join(
            f"{margin['mean']:+.4f} over {rival} ({interval(margin, digits=4)})".replace("-", "−")
            for rival, margin in line["margins"].items()
        )
        between = line["best"] if line["ordered"] else f"{line['best']} (no order)"
        lines.append((line["sweep"], line["asks"], line["option"], between, margins, line["verdict"]))
        points = [
            (place, summary["mean"], *((summary["low"], summary["high"]) if summary["low"] is not None else ()))
            for place, summary in enumerate(line["values"].values())
        ]
        x_label = f"{line['option']}: {', '.join(line['values'])}"
        curves.append(Curve(f"{line['sweep']}: {line['asks']}", x_label, "reward", {"mean": points}))
    columns = ("Decision", "What is decided", "Option", "Best between", "Margins in reward (95%)", "Beats both")
    text = (
        "The best value between the ends, chosen on the first half of the seeds, against both ends on the others; "
        f"without an order, the best against the second. {CORNERS}"
    )
    yield Section("Decision map", text, tables=(Table(columns, tuple(lines)),), curves=tuple(curves))


def decisions() -> Suite:
    """The decision map of the three tasks."""
    return Suite(
        name="decisions",
        description="One decision swept with all else fixed: is the best value between the ends?",
        cells=cells,
        run=run,
        options={
            "envs": list(dict.fromkeys(sweep.env for sweep in SWEEPS)),
            "kinds": list(KINDS),
            "preset": "small",
            "seeds": list(range(10)),
            "episodes": 128,
        },
        metrics=(REWARD, *(Metric(name, name.replace("_s", ", s").capitalize()) for name in KEPT[1:])),
        group_by=("sweep", "value"),
        analyse=analysis,
        sections=sections,
    )
