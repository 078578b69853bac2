"""The suites `quick`, for every change, and `learning`: do learners end above what they start from, and by how much?

Training cells run `ddpomdp_baselines.train` from the base policy. In `learning` every policy plays the same evaluation
episodes, so that differences are paired.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ddpomdp.bench import QUALITY, TOKENS, WALL_S, Cell, Curve, Metric, Output, Section, Suite, Table
from ddpomdp.bench.stats import difference, t_975
from ddpomdp.bench.suite import Row
from ddpomdp.options import choose, whole
from ddpomdp.registry import made
from ddpomdp_envs.lineup import BRIEFS, LINEUPS, WIDTHS, cell, policy_cell, policy_of
from ddpomdp_envs.lineup import run as run_policy
from ddpomdp_envs.search_env import ID as ENV
from ddpomdp_envs.tables import by_seed, interval, ratio

REWARD = Metric("reward", "Reward", better="higher")
MODELS = LINEUPS[ENV].models


def _training_cell(preset: str, model: str, algorithm: str, seed: int, **settings: Any) -> Cell:
    """A training run; its settings are no policy's, so that it stays out of the headline tables unless it says so."""
    from ddpomdp_baselines import algorithms

    choose("algorithm", algorithm, algorithms.names())
    whole("updates", settings["updates"], 1, 10**6)
    settings = {"algorithm": algorithm, **settings}
    return cell(made(ENV, preset=preset, model=model), preset, model, f"train-{algorithm}", seed, settings)


def _trained(cell: Cell) -> Any:
    """The result of a cell's run."""
    from ddpomdp_baselines.train import train

    setting = cell.settings
    with TemporaryDirectory() as folder:
        return train(
            setting["env"],
            setting["algorithm"],
            env_options={"preset": setting["preset"], "model": setting["model"]},
            options={"eval_episodes": 0, "save_every": setting["updates"]},
            seed=cell.seed,
            updates=setting["updates"],
            out=folder,
        )


# quick -------------------------------------------------------------------------------------------------------------

SPARED = ("swarm-10-standard", "swarm-256-standard")  # of other suites
ALL_MODELS = tuple(dict.fromkeys(model for lineup in LINEUPS.values() for model in lineup.models))
ALL_POLICIES = tuple(
    dict.fromkeys(label for lineup in LINEUPS.values() for label in lineup.policies if label not in SPARED)
)
ASKED = (("envs", "env", LINEUPS), ("models", "model", ALL_MODELS), ("policies", "policy", ALL_POLICIES))


def quick_cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """Task by task its policies with its models under each seed; for Search-v0 a training run and one large episode."""
    for names, kind, allowed in ASKED:
        for name in options[names]:
            choose(kind, name, allowed)
    preset = options["preset"]
    for env in options["envs"]:
        lineup = LINEUPS[env]
        models = [model for model in options["models"] if model in lineup.models]
        for model, policy in itertools.product(models, options["policies"]):
            if policy not in lineup.policies:
                continue
            for seed in options["seeds"]:
                first = model == models[0] and seed == options["seeds"][0] and policy in lineup.pictures
                yield policy_cell(env, preset, model, policy, seed, options["episodes"], picture=first)
        if env == ENV:
            for algorithm in options["algorithms"] if models else ():
                yield _training_cell(preset, models[0], algorithm, 0, updates=options["updates"])
            if options["large"]:
                yield policy_cell(ENV, "k2.6", "strong", "swarm-256-standard", 0, 1, picture=True, measured=False)


def quick_run(cell: Cell) -> Output:
    """Episodes of a policy, or one row per update of a training run."""
    return Output(_trained(cell).curves[cell.seed]) if "algorithm" in cell.settings else run_policy(cell)


def quick_analysis(rows: list[Row]) -> dict[str, Any]:
    """Each team against the single agent with the same model on the same tasks, seed by seed."""
    name = lambda row: (row["env"], row["preset"], row["model"])  # noqa: E731
    cells = dict.fromkeys((*name(row), row["policy"]) for row in rows if "policy" in row)
    against = []
    for env, preset, model, policy in cells:
        if policy in ("single", "random") or (env, preset, model, "single") not in cells:
            continue
        where = {"env": env, "preset": preset, "model": model}
        get = lambda key, policy=policy, where=where: (  # noqa: E731
            by_seed(rows, key, **where, policy=policy),
            by_seed(rows, key, **where, policy="single"),
        )
        against.append(
            {
                "env": env,
                "preset": preset,
                "model": model,
                "policy": policy,
                "quality": difference(*get("quality")),
                "speedup": ratio(*get("wall_s")),
                "tokens": ratio(*reversed(get("tokens"))),
            }
        )
    return {"against_single": against, "training": _rises(rows)}


def _rises(rows: list[Row]) -> list[dict[str, Any]]:
    """Mean reward over the first and the last tenth of each training run's updates."""
    runs: dict[tuple, list[Row]] = {}
    for row in rows:
        if "algorithm" in row:
            runs.setdefault((row["model"], row["algorithm"], row["seed"]), []).append(row)
    lines = []
    for (model, algorithm, seed), run in runs.items():
        tenth = max(1, len(run) // 10)
        mean = lambda part: math.fsum(row["reward"] for row in part) / len(part)  # noqa: E731
        lines.append(
            {
                "model": model,
                "algorithm": algorithm,
                "seed": seed,
                "first": mean(run[:tenth]),
                "last": mean(run[-tenth:]),
                "updates": len(run),
                "decisions": run[-1]["total_decisions"],
            }
        )
    return lines


def quick_sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """Teams against the single agent, and quality over width by brief."""
    lines = tuple(
        (
            line["env"],
            f"{line['policy']}, {line['model']}",
            f"{100 * line['quality']['mean']:+.1f}".replace("-", "−"),
            interval(line["quality"], 100, 1),
            line["speedup"]["mean"],
            line["tokens"]["mean"],
        )
        for line in results["analysis"]["against_single"]
    )
    if lines:
        names = ", ".join(f"{lineup.quality} in {env}" for env, lineup in LINEUPS.items())
        text = f"Quality ({names}) less that of one agent with the same model on the same tasks, paired seed by seed."
        columns = ("Task", "Team", "Quality, pp", "95% interval", "Times as fast", "Times the tokens")
        yield Section("Against one agent", text, tables=(Table(columns, lines),))
    quality = {
        (entry["group"]["model"], entry["group"]["policy"]): entry["metrics"]["quality"]
        for entry in results["table"]
        if entry["group"]["env"] == ENV
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
        yield Section("Width and brief", f"{ENV}. Bands are 95% intervals over seeds.", curves=tuple(curves))

    training = results["analysis"]["training"]
    if training:
        lines = tuple(
            (f"{run['algorithm']}, {run['model']}", run["updates"], run["decisions"], run["first"], run["last"])
            for run in training
        )
        columns = ("Run", "Updates", "Decisions", "Reward, first tenth", "Reward, last tenth")
        rewards: dict[str, list[tuple[float, ...]]] = {}
        for row in rows:
            if "algorithm" in row:
                rewards.setdefault(f"{row['algorithm']}, {row['model']}", []).append((row["update"], row["reward"]))
        curve = Curve("A short training run", "update", "reward", rewards)
        text = "From the base policy, on episodes that no table here shows; one seed, so no interval."
        yield Section("Training", text, tables=(Table(columns, lines),), curves=(curve,))


def _point(x: float, summary: Mapping[str, Any]) -> tuple[float, ...]:
    """A point of a curve, with its interval where there is one."""
    ends = () if summary["low"] is None else (summary["low"], summary["high"])
    return (x, summary["mean"], *ends)


def quick() -> Suite:
    """The suite of `make bench`."""
    return Suite(
        name="quick",
        description="Every task with random, scripted, base and learned policies, and one short training run.",
        cells=quick_cells,
        run=quick_run,
        options={
            "seeds": list(range(10)),
            "episodes": 64,
            "preset": "small",
            "envs": list(LINEUPS),
            "models": list(ALL_MODELS),
            "policies": list(ALL_POLICIES),
            "algorithms": ["dr_mas"],
            "updates": 60,
            "large": True,
        },
        metrics=(QUALITY, REWARD, TOKENS, WALL_S),
        group_by=("env", "preset", "model", "policy"),
        analyse=quick_analysis,
        sections=quick_sections,
    )


# learning ----------------------------------------------------------------------------------------------------------

REFERENCES = ("base", "heuristic", "single", "learned")
KEPT = ("reward", "quality", "tokens", "wall_s", "births")
TOTALS = ("total_episodes", "total_decisions", "total_simulated_tokens", "total_simulated_s")


def learning_cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """References on the evaluation episodes, and every algorithm with each model under each seed."""
    whole("episodes", options["episodes"], 1, 100_000)
    preset = options["preset"]
    for model in options["models"]:
        choose("model", model, MODELS)
        for policy in REFERENCES:
            yield replace(policy_cell(ENV, preset, model, policy, 0, options["episodes"]), id=f"{ENV}.{model}.{policy}")
        for algorithm in options["algorithms"]:
            for seed in options["seeds"]:
                settings = {"policy": algorithm, "updates": options["updates"], "episodes": options["episodes"]}
                yield _training_cell(preset, model, algorithm, seed, **settings)


def learning_run(cell: Cell) -> Output:
    """One row per evaluation episode; those of a trained policy carry what its training took."""
    import ddpomdp
    from ddpomdp_baselines.evaluate import evaluate

    setting = cell.settings
    env = made(ENV, preset=setting["preset"], model=MODELS[0])
    numbers = made(ENV, preset=setting["preset"], model=setting["model"]).params
    totals: dict[str, Any] = {}
    if "algorithm" in setting:
        began = time.perf_counter()
        result = _trained(cell)
        last = result.curves[cell.seed][-1]
        totals = {name: last[name] for name in TOTALS} | {"training_wall_s": time.perf_counter() - began}
        policy = ddpomdp.policy("base", env, model=setting["model"])  # the same network with other weights
        params = result.of_seed(cell.seed)
    else:
        policy = policy_of(env, setting["policy"], setting["model"])
        params = policy.init(env)
    rows = evaluate(env, policy, params, episodes=setting["episodes"], env_params=numbers)
    return Output([{name: row[name] for name in KEPT} | totals for row in rows])


def learning_analysis(rows: list[Row]) -> dict[str, Any]:
    """Each algorithm less each reference on the same episodes, and what training took.

    With D[s, e] the difference in reward of seed s on episode e: the mean of all, and mean +- t_{0.975, S-1} times the
    root of var_s(mean_e D) / S + var_e(mean_s D) / E, which holds the spread of seeds and of episodes.
    """
    rewards: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        rewards.setdefault((row["model"], row["policy"]), {}).setdefault(row["seed"], []).append(row["reward"])
    lines, took = [], []
    for (model, policy), seeds in rewards.items():
        if policy in REFERENCES:
            continue
        table = np.asarray(list(seeds.values()))
        for reference in REFERENCES:
            if (model, reference) in rewards:
                against = np.asarray(rewards[model, reference][0])
                lines.append({"model": model, "algorithm": policy, "reference": reference, **_paired(table - against)})
        last = {row["seed"]: row for row in rows if (row["model"], row["policy"]) == (model, policy)}
        names = (*TOTALS, "training_wall_s")
        means = {name: math.fsum(row[name] for row in last.values()) / len(last) for name in names}
        took.append({"model": model, "algorithm": policy, "seeds": len(last), **means})
    return {"differences": lines, "training": took}


def _paired(table: np.ndarray) -> dict[str, Any]:
    """Mean and 95% interval of differences f64[S, E]; no interval with fewer than two seeds or episodes."""
    seeds, episodes = table.shape
    mean = float(table.mean())
    low = high = None
    if seeds > 1 and episodes > 1:
        spread = table.mean(axis=1).var(ddof=1) / seeds + table.mean(axis=0).var(ddof=1) / episodes
        half = t_975(seeds - 1) * math.sqrt(spread)
        low, high = mean - half, mean + half
    return {"mean": mean, "low": low, "high": high, "seeds": seeds, "episodes": episodes}


def learning_sections(rows: list[Row], results: dict[str, Any]) -> Iterable[Section]:
    """The differences, and what training took."""
    lines = tuple(
        (f"{line['algorithm']}, {line['model']}", line["reference"], f"{line['mean']:+.4f}", interval(line, digits=4))
        for line in results["analysis"]["differences"]
    )
    columns = ("Algorithm", "Less", "Reward", "95% interval")
    text = (
        "Reward on the same evaluation episodes, paired; intervals hold the spread of training seeds and of episodes."
    )
    yield Section("Against the references", text, tables=(Table(columns, lines),))
    lines = tuple(
        (
            f"{run['algorithm']}, {run['model']}",
            run["seeds"],
            *(round(run[name]) for name in (*TOTALS, "training_wall_s")),
        )
        for run in results["analysis"]["training"]
    )
    columns = ("Algorithm", "Seeds", "Episodes", "Decisions", "Simulated tokens", "Simulated seconds", "Wall time, s")
    yield Section("What training took", "Means per seed.", tables=(Table(columns, lines),))


def learning() -> Suite:
    """Trained policies against what they start from and against the tuned heuristic."""
    return Suite(
        name="learning",
        description="Algorithms from the base policy, on evaluation episodes common to all policies.",
        cells=learning_cells,
        run=learning_run,
        options={
            "seeds": list(range(10)),
            "episodes": 2_000,
            "preset": "small",
            "models": list(MODELS),
            "algorithms": ["grpo", "dr_mas"],
            "updates": 150,
        },
        metrics=(REWARD, QUALITY, TOKENS, WALL_S),
        group_by=("env", "preset", "model", "policy"),
        analyse=learning_analysis,
        sections=learning_sections,
    )
