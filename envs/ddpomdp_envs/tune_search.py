"""The grid search behind Search-v0's policy `heuristic`: `python -m ddpomdp_envs.tune_search --out FILE`.

Two stages per model, on preset `small`, topology `swarm`, reward `outcome`:

1. every point of the grid plays the episodes of one seed, so that points meet the same tasks with the same luck;
2. the best ten play fresh episodes, and the best of those is chosen. Its mean there is a little optimistic, as it is
   the highest of ten; whoever reports the policy's reward plays it on seeds of evaluation, which tuning never uses.

A point is the options of policy `swarm`. All scripts of about the same length are one compiled program, and the model
is numbers, so that the whole search compiles twice. The file is the same byte for byte on the same machine.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ddpomdp
from ddpomdp.bench import episode
from ddpomdp.bench.strictjson import dumps, write_atomic
from ddpomdp.harness import BRIEFS
from ddpomdp.progress import progress
from ddpomdp_envs.search_env import swarm

COMMAND = "python -m ddpomdp_envs.tune_search --out envs/ddpomdp_envs/tuned/search.json"
SETTING = {"preset": "small", "topology": "swarm", "reward": "outcome"}
MODELS = ("strong", "weak")
EVALUATION_SEEDS = range(10)  # of suites; tuning stays away from them
ROWS, CHUNK = 48, 4  # of preset `small`: its rows, and the one chunk it offers beside an even split

Point = dict[str, Any]  # options of `swarm`

TEAMS: tuple[Point, ...] = (
    *({"n": n} for n in (1, 2, 4, 8, 12)),
    *({"n": n, "spread": True} for n in (3, 5, 6, 7, 9, 10, 11, 13, 14, 15)),
    *({"n": n, "lead_rows": ROWS - CHUNK * n} for n in (7, 8, 9, 10, 11)),
)
PLANS: tuple[Point, ...] = (
    {},
    {"rule": "last"},
    {"rule": "union"},
    {"rounds": ["missing"]},
    {"rounds": ["missing"], "wait": "half"},
    {"rounds": ["conflicting"]},
    {"rounds": ["again"]},
    {"rounds": ["again"], "wait": "half"},
    {"rounds": ["missing", "missing"]},
    {"rounds": ["missing", "conflicting"]},
)  # without checkers `verdict` and `best` decide as `majority`


@dataclass(frozen=True)
class Effort:
    """How much is played."""

    first_seeds: tuple[int, ...] = (10_000,)
    first_episodes: int = 128  # per seed
    second_seeds: tuple[int, ...] = tuple(range(10_001, 10_009))
    second_episodes: int = 256  # per seed
    kept: int = 10


@cache
def environments() -> dict[str, Any]:
    """The environment with each model; made once, as compilations belong to one."""
    return {model: ddpomdp.make("Search-v0", model=model, **SETTING) for model in MODELS}


def grid() -> list[Point]:
    """Every point, in the order in which ties are decided."""
    return [{**team, "brief": brief, **plan} for team, brief, plan in itertools.product(TEAMS, reversed(BRIEFS), PLANS)]


def measure(env: Any, model: Any, point: Point, seeds: Sequence[int], episodes: int) -> dict[str, Any]:
    """What a point earns with the numbers of `model`: mean and standard error over all episodes, means by seed."""
    policy = swarm(env, **point)
    lines = policy.init(env)
    rows = []
    for seed in seeds:
        keys = jax.random.split(jax.random.key(seed), episodes)
        rows.append(episode.play(env, policy, lines, keys, model.params, env.spec.max_ticks))
    mean = lambda values: round(math.fsum(values.ravel().tolist()) / values.size, 6)  # noqa: E731
    stack = lambda get: np.asarray([np.asarray(get(played)) for played in rows])  # noqa: E731
    reward = stack(lambda played: played.reward)
    return {
        "reward": mean(reward),
        "standard_error": round(float(np.std(reward, ddof=1, dtype=np.float64)) / math.sqrt(reward.size), 6),
        "episodes": reward.size,
        "item_f1": mean(stack(lambda played: played.info["quality"])),
        "tokens": mean(stack(lambda played: played.info["tokens"])),
        "wall_s": mean(stack(lambda played: played.info["wall_s"])),
        "illegal": int(stack(lambda played: played.info["illegal"]).sum()),
        "reward_by_seed": {str(seed): mean(reward[i]) for i, seed in enumerate(seeds)},
    }


def tune(points: Sequence[Point], effort: Effort, done: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """The file's content: per model the best point and its runners-up, and where they come from.

    Args:
      points: options of `swarm`.
      effort: seeds and episodes of both stages.
      done: called after each evaluation with a few words.
    """
    used = {*effort.first_seeds, *effort.second_seeds}
    if used & set(EVALUATION_SEEDS) or len(used) < len(effort.first_seeds) + len(effort.second_seeds):
        raise ValueError(f"seeds: got {sorted(used)}, allowed: different ones for the two stages, none of 0 to 9")
    env = environments()[MODELS[0]]
    models = {}
    for name, model in environments().items():
        first = []
        for point in points:
            first.append(measure(env, model, point, effort.first_seeds, effort.first_episodes)["reward"])
            done(f"{name}: best so far {max(first):.3f}")
        order = sorted(range(len(points)), key=lambda i: (-first[i], i))[: effort.kept]
        second = []
        for i in order:
            second.append(measure(env, model, points[i], effort.second_seeds, effort.second_episodes))
            done(f"{name}: {second[-1]['reward']:.3f} on fresh seeds")
        ranked = sorted(range(len(order)), key=lambda j: (-second[j]["reward"], j))
        entries = [{"options": points[order[j]], **second[j], "first_stage_reward": first[order[j]]} for j in ranked]
        models[name] = {
            **entries[0],
            "evaluations": len(points) + len(order),
            "runners_up": [{k: v for k, v in entry.items() if k != "reward_by_seed"} for entry in entries[1:]],
        }
    return {
        "env": env.id,
        "env_version": env.version,
        **SETTING,
        "harness": env.harness.digest,
        "command": COMMAND,
        "policy": "swarm",
        "grid": {"points": len(points), "teams": TEAMS, "briefs": BRIEFS, "plans": PLANS},
        "seeds": {
            "first_stage": effort.first_seeds,
            "second_stage": effort.second_seeds,
            "evaluation": list(EVALUATION_SEEDS),
        },
        "models": models,
    }


def text_of(result: dict[str, Any]) -> str:
    """The file's text."""
    return dumps(result, indent=1) + "\n"


def main(args: Sequence[str] | None = None) -> int:
    """Search and write the file."""
    parser = argparse.ArgumentParser(prog="python -m ddpomdp_envs.tune_search", description="Tune the heuristic.")
    parser.add_argument("--out", type=Path, required=True, help="file to write; the shipped one is tuned/search.json")
    out = parser.parse_args(args).out
    if not out.absolute().parent.is_dir():
        parser.error(f"cannot write {out}: no folder {out.absolute().parent}")
    points, effort = grid(), Effort()
    total = len(MODELS) * (len(points) + min(effort.kept, len(points)))
    with progress("tuning Search-v0", total, "evaluations") as done:
        result = tune(points, effort, done)
    write_atomic(out, text_of(result))
    for name, best in result["models"].items():
        print(f"{name}: {best['reward']:.4f} ± {best['standard_error']:.4f}, {best['options']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
