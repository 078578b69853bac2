"""The one container of arrays: a frozen dataclass registered as a pytree."""

from dataclasses import dataclass, replace
from typing import TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import lax

T = TypeVar("T")

__all__ = ["materialise", "pytree", "replace", "rows"]


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass registered as a JAX pytree; fields with metadata static=True are static."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index] for index int32[P], with -1 (nobody) reading row 0: mask the result before use."""
    return x[jnp.maximum(index, 0)]


def materialise(tree: T, token: jax.Array) -> T:
    """Make XLA:CPU compute `tree` once instead of re-deriving it inside every consumer's fusion.

    A while loop with one trip whose count the compiler cannot know is the only fence it respects
    (`optimization_barrier` is dropped before fusion on CPU). `token` is any non-negative int32 scalar of the state.
    """

    def body(carry):
        return carry[0] + jnp.int32(1), carry[1]

    return lax.while_loop(lambda carry: carry[0] < jnp.int32(1), body, (jnp.minimum(token, jnp.int32(0)), tree))[1]
