"""Schedules of reward weights: numbers passed to each update, so that annealing never compiles again.

A schedule is (kind, fraction): the weight goes from its full value to 0 over that fraction of training and stays there.

    linear   1 - x             cosine   (1 + cos(pi x)) / 2             staged   1 while x < 1             with x =
    progress / fraction, at most 1; constant: 1 throughout. Progress is update / updates.
"""

import math
from typing import Any

import jax.numpy as jnp

from ddpomdp.options import UsageError, choose, number
from ddpomdp.params import Params, RewardSpec
from ddpomdp.pytree import replace

KINDS = ("constant", "linear", "cosine", "staged")


def factor(schedule: Any, progress: float) -> float:
    """What is left of a weight at `progress` in [0, 1] of training.

    Raises:
      UsageError: not (kind, fraction) with a known kind and a fraction in (0, 1].
    """
    if not isinstance(schedule, list | tuple) or len(schedule) != 2:
        raise UsageError(f"schedule: got {schedule!r}, allowed: (kind, fraction), as in ('linear', 0.5)")
    kind, fraction = schedule
    choose("schedule", kind, KINDS)
    number("fraction of a schedule", fraction, 1e-6, 1.0)
    x = min(progress / fraction, 1.0)
    values = {"constant": 1.0, "linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2, "staged": float(x < 1)}
    return values[kind]


def scheduled(params: Params, spec: RewardSpec, progress: float) -> Params:
    """The numbers of an environment with the channel weights in force at `progress` of training."""
    left = {name: factor(schedule, progress) for name, schedule in spec.schedule.items()}
    weights = {
        name: weight * jnp.float32(left[name]) if name in left else weight for name, weight in params.weights.items()
    }
    return replace(params, weights=weights)
