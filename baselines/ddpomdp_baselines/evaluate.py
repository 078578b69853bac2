"""Policies on common evaluation episodes: the same tasks with the same luck for every policy."""

from typing import Any

import jax
import numpy as np

from ddpomdp.bench import episode
from ddpomdp.env import Env
from ddpomdp.params import Params

EVALUATION = 0x65766171  # folded into the seed: no training episode shares its key
BATCH = 250  # episodes at a time


def evaluation_keys(seed: int, episodes: int) -> jax.Array:
    """Keys [episodes] of the evaluation episodes of a seed."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), EVALUATION), episodes)


def evaluate(
    env: Env, policy: Any, params: Any, *, seed: int = 0, episodes: int = 2_000, env_params: Params | None = None
) -> list[dict[str, Any]]:
    """One row per evaluation episode, in order: reward of the root, quality, tokens, seconds, ...

    Args:
      env: the environment, played to its horizon.
      policy: a `Policy`.
      params: its parameters.
      seed: names the episodes: the same seed, the same episodes, whatever the policy.
      episodes: how many.
      env_params: numbers to use instead of `env.params`.
    """
    keys = evaluation_keys(seed, episodes)
    numbers = env.params if env_params is None else env_params
    rows: list[dict[str, Any]] = []
    for first in range(0, episodes, BATCH):
        some = keys[np.arange(first, first + min(BATCH, episodes)) % episodes]  # one shape: the last batch wraps round
        rows += episode.rows(episode.play(env, policy, params, some, numbers, env.spec.max_ticks))
    return rows[:episodes]


def means(rows: list[dict[str, Any]], names: tuple[str, ...] = ("reward", "quality", "tokens", "wall_s", "births")):
    """Means of some columns."""
    return {name: float(np.mean([row[name] for row in rows])) for name in names}
