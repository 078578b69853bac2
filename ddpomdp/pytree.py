"""The one container of arrays: a frozen dataclass registered as a pytree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

T = TypeVar("T")

__all__ = ["once", "pytree", "replace", "rows"]


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass registered as a JAX pytree; fields with metadata static=True are static."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index], with -1 (nobody) reading row 0: mask the result before use. A single row is broadcast, not gathered."""
    if x.shape[0] == 1:
        return jnp.broadcast_to(x[0], (*index.shape, *x.shape[1:]))
    return x[jnp.maximum(index, 0)]


def once(fn: Callable[..., T], *args: Any) -> T:
    """fn(*args), computed once: the results are buffers, not formulas for the compiler to repeat.

    XLA:CPU re-derives shared intermediates inside the fusion of each of their consumers, which makes a step several
    times slower and its compilation explode. The fence it respects is a loop whose trip count it cannot know
    (`optimization_barrier` alone is dropped before fusion). Results that are arguments pass by. Elsewhere a barrier
    is enough. See docs/performance.md.
    """
    closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    flat = jax.tree.leaves(args)
    arrives = {id(var): value for var, value in zip(closed.jaxpr.invars, flat, strict=True)}
    passing = [arrives.get(id(var)) for var in closed.jaxpr.outvars]
    run = jaxpr_as_fun(closed)
    made = lambda: [x for x, old in zip(run(*flat), passing, strict=True) if old is None]  # noqa: E731
    if jax.default_backend() == "cpu":
        shapes = [a for a, old in zip(closed.out_avals, passing, strict=True) if old is None]
        empty = [jnp.zeros(a.shape, a.dtype) for a in shapes]
        start = lax.optimization_barrier(jnp.int32(0))
        new = lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, made()), (start, empty))[1]
    else:
        new = lax.optimization_barrier(made())
    fresh = iter(new)
    leaves = [next(fresh) if old is None else old for old in passing]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)
