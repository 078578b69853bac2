"""The grid search behind the policies called `heuristic`: points of a grid are options of one scripted policy.

Two stages per model, under one preset, topology and reward:

1. every point of the grid plays the episodes of one seed, so that points meet the same tasks with the same luck;
2. the best ten play fresh episodes, and the best of those is chosen. Its mean there is a little optimistic, as it is
   the highest of ten; whoever reports the policy's reward plays it on seeds of evaluation, which tuning never uses.

All scripts of about the same length are one compiled program, and the model is numbers, so that a whole search compiles
few times. The file is the same byte for byte on the same machine.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ddpomdp
from ddpomdp.bench import episode
from ddpomdp.bench.strictjson import dumps, write_atomic
from ddpomdp.progress import progress

EVALUATION_SEEDS = range(10)  # of suites; tuning stays away from them

Point = dict[str, Any]  # options of the policy


@dataclass(frozen=True)
class Effort:
    """How much is played."""

    first_seeds: tuple[int, ...] = (10_000,)
    first_episodes: int = 128  # per seed
    second_seeds: tuple[int, ...] = tuple(range(10_001, 10_009))
    second_episodes: int = 256  # per seed
    kept: int = 10


@dataclass(frozen=True)
class Search:
    """What is searched."""

    env_id: str
    setting: Mapping[str, Any]  # preset, topology, reward
    models: tuple[str, ...]
    policy: str  # name, in the file
    script: Callable[..., Any]  # env, options of a point -> policy
    grid: Mapping[str, Any]  # what the points are made of, in the file
    command: str
    quality: str = "quality"  # name of the quality in the file

    def environments(self) -> dict[str, Any]:
        """The environment with each model; a caller makes them once, as compilations belong to one."""
        return {model: ddpomdp.make(self.env_id, model=model, **self.setting) for model in self.models}


def measure(search: Search, env: Any, model: Any, point: Point, seeds: Sequence[int], episodes: int) -> dict[str, Any]:
    """What a point earns with the numbers of `model`: mean and standard error over all episodes, means by seed."""
    policy = search.script(env, **point)
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
        search.quality: mean(stack(lambda played: played.info["quality"])),
        "tokens": mean(stack(lambda played: played.info["tokens"])),
        "wall_s": mean(stack(lambda played: played.info["wall_s"])),
        "illegal": int(stack(lambda played: played.info["illegal"]).sum()),
        "reward_by_seed": {str(seed): mean(reward[i]) for i, seed in enumerate(seeds)},
    }


def tune(
    search: Search,
    environments: Mapping[str, Any],
    points: Sequence[Point],
    effort: Effort,
    done: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """The file's content: per model the best point and its runners-up, and where they come from.

    Args:
      search: what is searched.
      environments: `search.environments()`.
      points: options of the policy.
      effort: seeds and episodes of both stages.
      done: called after each evaluation with a few words.
    """
    used = {*effort.first_seeds, *effort.second_seeds}
    if used & set(EVALUATION_SEEDS) or len(used) < len(effort.first_seeds) + len(effort.second_seeds):
        raise ValueError(f"seeds: got {sorted(used)}, allowed: different ones for the two stages, none of 0 to 9")
    env = environments[search.models[0]]
    models = {}
    for name, model in environments.items():
        first = []
        for point in points:
            first.append(measure(search, env, model, point, effort.first_seeds, effort.first_episodes)["reward"])
            done(f"{name}: best so far {max(first):.3f}")
        order = sorted(range(len(points)), key=lambda i: (-first[i], i))[: effort.kept]
        second = []
        for i in order:
            second.append(measure(search, env, model, points[i], effort.second_seeds, effort.second_episodes))
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
        **search.setting,
        "harness": env.harness.digest,
        "command": search.command,
        "policy": search.policy,
        "grid": {"points": len(points), **search.grid},
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


def main(
    search: Search, points: Sequence[Point], run: Callable[..., dict[str, Any]], args: Sequence[str] | None = None
) -> int:
    """Search by `run(points, effort, done)` and write the file."""
    program, _, shipped = search.command.partition(" --out ")
    parser = argparse.ArgumentParser(prog=program, description="Tune the heuristic.")
    parser.add_argument("--out", type=Path, required=True, help=f"file to write; the shipped one is {shipped}")
    out = parser.parse_args(args).out
    if not out.absolute().parent.is_dir():
        parser.error(f"cannot write {out}: no folder {out.absolute().parent}")
    effort = Effort()
    total = len(search.models) * (len(points) + min(effort.kept, len(points)))
    with progress(f"tuning {search.env_id}", total, "evaluations") as done:
        result = run(points, effort, done)
    write_atomic(out, text_of(result))
    for name, best in result["models"].items():
        print(f"{name}: {best['reward']:.4f} ± {best['standard_error']:.4f}, {best['options']}")
    return 0
