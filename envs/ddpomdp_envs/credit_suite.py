"""The suite `credit`: estimators against branched truth, at equal simulator turns.

In the middle decision of a kind of each of many episodes ("context") the truth is the advantage of the turn that was
made, over the policy's own alternatives, from branches with common luck. Every estimator then gets `BUDGET` other
branches of that context, `REPEATS` times over, and is scored by error, bias, variance and rank correlation.

Axis letters: C context, R repeat, K branch.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ddpomdp.bench import Cell, Metric, Section, Suite, Table
from ddpomdp.bench.stats import summarise
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, whole
from ddpomdp_envs.tables import by_seed, interval

TRUTH, BUDGET, REPEATS = 64, 8, 4
ESTIMATORS = {
    "shared": "mean return of the turn, less that of all contexts",
    "leave_one_out": "half the branches take the turn, half the policy's own; fresh luck each",
    "counterfactual": "pairs of the turn and the policy's own, common luck",
    "removal": "pairs of the turn and wait, common luck",
}


class World(NamedTuple):
    """An environment, who plays it, and the kinds of decision that are scored."""

    env: str
    options: dict[str, Any]
    policy: str
    of_policy: dict[str, Any]
    decisions: tuple[str, ...]


def _task(env: str, topology: str) -> World:
    return World(env, {"preset": "tiny", "topology": topology}, "random", {}, ("spawn", "tool"))


LAWS = ("Additive-v0", "Majority-v0", "Chain-v0")
WORLDS = {law: World(law, {}, "team", {"speak": 0.75}, ("tool", "communicate")) for law in LAWS} | {
    "Search-v0": _task("Search-v0", "swarm"),
    "Search-v0 centralized": _task("Search-v0", "centralized"),
    "Math-v0": _task("Math-v0", "swarm"),
    "DataScience-v0": _task("DataScience-v0", "swarm"),
}


@cache
def make(world: str) -> tuple[Any, Any]:
    """Environment and policy of a world, the same objects each time, so that its cells share their compilations."""
    import ddpomdp

    row = WORLDS[world]
    env = ddpomdp.make(row.env, **row.options)
    return env, ddpomdp.policy(row.policy, env, **row.of_policy)


@cache
def estimates(world: str, decision: str, seed: int, contexts: int) -> dict[str, Any]:
    """Truth f64[C] with its standard error, and f64[R, C] with ticks per context by estimator."""
    import jax

    from ddpomdp.credit.plays import player
    from ddpomdp.credit.signal import Contexts
    from ddpomdp.credit.units import decision_kind

    env, policy = make(world)
    plays = player(env, policy, policy.init(env))
    keys = jax.random.split(jax.random.key(seed), contexts)
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    found = Contexts(plays, keys, luck, decision_kind(decision), uniform=False)
    count = len(found.turn)

    def play(what: str, branches: int, salt: int) -> tuple[np.ndarray, np.ndarray]:
        """(returns f64[C, K], ticks int[C, K]) of branches that take the turn, the policy's own draw, or wait."""
        fresh = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, salt), branches))(found.luck)
        turn = np.repeat(found.turn[:, None], branches, axis=1)
        if what == "policy":
            draws = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, salt + 1_000), branches))(found.luck)
            turn = plays.alternatives(draws, found.moment, found.slot, False)
        if what == "wait":
            turn = np.zeros_like(turn)
        lanes = np.repeat(np.arange(count), branches)
        flat = fresh.reshape(count * branches)
        played = plays.play_on(found.moment.at(lanes), flat, found.slot[lanes], turn.reshape(len(lanes), -1))
        return played.returns.astype(np.float64).reshape(count, branches), played.ticks.reshape(count, branches)

    effect = play("turn", TRUTH, 10)[0] - play("policy", TRUTH, 10)[0]
    gives: dict[str, Any] = {name: [] for name in ESTIMATORS}
    costs: dict[str, Any] = {name: [] for name in ESTIMATORS}
    half = BUDGET // 2
    for repeat in range(REPEATS):
        whole_turn = play("turn", BUDGET, 20 + repeat)
        turn, other, none = (
            play("turn", half, 30 + repeat),
            play("policy", half, 30 + repeat),
            play("wait", half, 30 + repeat),
        )
        apart = play("policy", half, 40 + repeat)
        for name, value, parts in (
            ("shared", whole_turn[0].mean(1) - whole_turn[0].mean(), (whole_turn,)),
            ("leave_one_out", turn[0].mean(1) - apart[0].mean(1), (turn, apart)),
            ("counterfactual", (turn[0] - other[0]).mean(1), (turn, other)),
            ("removal", (turn[0] - none[0]).mean(1), (turn, none)),
        ):
            gives[name].append(value)
            costs[name].append(sum(part[1].sum(1) for part in parts))
    return {
        "truth": effect.mean(axis=1),
        "stderr": effect.std(axis=1, ddof=1) / TRUTH**0.5,
        "estimates": {name: np.stack(values) for name, values in gives.items()},
        "ticks": {name: np.mean(values, axis=0) for name, values in costs.items()},
    }


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Every estimator, at every kind of decision of every world, under every seed."""
    whole("contexts", options["contexts"], 8, 100_000)
    for world in options["worlds"]:
        choose("worlds", world, WORLDS)
        env, _ = make(world)
        provenance = {f"{env.id} version": env.version, f"{env.id} harness": env.harness.digest}
        where = {"world": world, "env": env.id, "topology": env.options["topology"]}
        for decision in WORLDS[world].decisions:
            for estimator in ESTIMATORS:
                for seed in options["seeds"]:
                    settings = where | {"decision": decision, "estimator": estimator, "contexts": options["contexts"]}
                    name = f"{world.replace(' ', '.')}.{decision}.{estimator}.s{seed}"
                    yield Cell(name, seed, settings, provenance)


def run(cell: Cell) -> list[Row]:
    """One row per context."""
    setting = cell.settings
    found = estimates(setting["world"], setting["decision"], cell.seed, setting["contexts"])
    values, ticks = found["estimates"][setting["estimator"]], found["ticks"][setting["estimator"]]
    return [
        {
            "truth": float(found["truth"][c]),
            "truth_stderr": float(found["stderr"][c]),
            "credit": float(values[0, c]),
            "squared_error": float(((values[:, c] - found["truth"][c]) ** 2).mean()),
            "bias": float(values[:, c].mean() - found["truth"][c]),
            "variance": float(values[:, c].var(ddof=1)),
            "ticks": float(ticks[c]),
        }
        for c in range(values.shape[1])
    ]


def rank_correlation(x: Iterable[float], y: Iterable[float]) -> float:
    """Spearman's: correlation of average ranks; 0 where one side is constant."""
    ranks = []
    for values in (np.asarray(list(x)), np.asarray(list(y))):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    if min(np.ptp(r) for r in ranks) == 0:
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def reliable(rows: list[Row]) -> float:
    """Share of the spread of the measured truth that is no sampling error: no estimator ranks better than its root."""
    truth = np.asarray([row["truth"] for row in rows])
    noise = np.mean([row["truth_stderr"] ** 2 for row in rows])
    return float(max(0.0, 1.0 - noise / truth.var(ddof=1))) if np.ptp(truth) > 0 else 0.0


def analyse(rows: list[Row]) -> dict[str, Any]:
    """The leaderboard: by world, topology, kind of decision and estimator, mean over seeds with intervals."""
    lines = []
    keys = ("env", "topology", "decision", "estimator")
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        setting = dict(zip(keys, key, strict=True))
        mine = [row for row in rows if all(row[name] == value for name, value in setting.items())]
        ranks = {
            seed: [
                rank_correlation(*([row[name] for row in mine if row["seed"] == seed] for name in ("credit", "truth")))
            ]
            for seed in sorted({row["seed"] for row in mine})
        }
        figures = {name: summarise(by_seed(mine, name)) for name in ("squared_error", "bias", "variance", "ticks")}
        lines.append({**setting, "rank_correlation": summarise(ranks), **figures, "truth_reliable": reliable(mine)})
    return {"leaderboard": lines, "branches": BUDGET, "repeats": REPEATS, "branches_of_truth": 2 * TRUTH}


def sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The leaderboard as a table, best rank correlation first within a kind of decision."""
    analysis = results["analysis"]
    place = lambda line: (line["env"], line["topology"], line["decision"])  # noqa: E731
    lines = sorted(analysis["leaderboard"], key=lambda x: (*place(x), -(x["rank_correlation"]["mean"] or 0)))
    table = tuple(
        (
            line["env"],
            line["topology"],
            line["decision"],
            line["estimator"],
            f"{line['rank_correlation']['mean']:.3f}",
            interval(line["rank_correlation"]),
            f"{line['squared_error']['mean']:.5f}",
            f"{line['bias']['mean']:+.4f}".replace("-", "−"),
            f"{line['variance']['mean']:.5f}",
            f"{line['ticks']['mean']:.0f}",
            f"{line['truth_reliable']:.2f}",
        )
        for line in lines
    )
    columns = ("World", "Topology", "Decision", "Estimator", "Rank correlation", "95% interval")
    columns = (*columns, "Squared error", "Bias", "Variance", "Ticks", "Truth reliable")
    text = (
        f"Each estimator has {BUDGET} branches of a context; the truth, the turn's advantage over the policy's own "
        f"alternatives, has {2 * TRUTH} others, and what share of its spread is no sampling error stands beside it. "
        + "; ".join(f"{k}: {v}" for k, v in ESTIMATORS.items())
        + "."
    )
    yield Section("Leaderboard", text, tables=(Table(columns, table),))


def credit() -> Suite:
    """Estimators of credit against the truth."""
    return Suite(
        name="credit",
        description="Credit estimators scored against branched truth at equal simulator turns.",
        cells=cells,
        run=run,
        options={"worlds": list(WORLDS), "seeds": list(range(5)), "contexts": 64},
        metrics=(
            Metric("squared_error", "Squared error", better="lower"),
            Metric("bias", "Bias"),
            Metric("variance", "Variance", better="lower"),
            Metric("ticks", "Simulated ticks", better="lower"),
        ),
        group_by=("env", "topology", "decision", "estimator"),
        analyse=analyse,
        sections=sections,
    )
