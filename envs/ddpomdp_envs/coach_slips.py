"""How simulated coaches slip: scores with noise, and scores that are lost on their way.

The rubrics (answers_coach.py, datascience_coach.py) share this. Axis letters: T tick, N slot.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.options import UsageError

LOST = 5.0  # stands in for a score that is lost


def check_rates(coach: Any) -> None:
    """UsageError where `accuracy` or `parse_failure` of a coach is a plain number and no probability."""
    for name in ("accuracy", "parse_failure"):
        value = getattr(coach, name)
        if isinstance(value, int | float) and not 0 <= value <= 1:
            raise UsageError(f"{name}: got {value!r}, allowed: 0 to 1")


def slips(score: jax.Array, noise: Any, parse_failure: Any, keys: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """(f32[T, N], bool[T, N]): scores with a normal of standard deviation `noise` added, and which of them are lost.

    Args:
      score: f32[T, N].
      noise: f32[].
      parse_failure: f32[], probability that a score is lost.
      keys: two, of the noise and of what is lost.
    """
    lost = jax.random.uniform(keys[1], score.shape) < parse_failure
    return score + noise * jax.random.normal(keys[0], score.shape), lost


def heard(score: jax.Array, lost: jax.Array) -> jax.Array:
    """Scores f32 as they arrive: `LOST` for those lost, the others within 0 to 10."""
    return jnp.clip(jnp.where(lost, LOST, score), 0.0, 10.0)
