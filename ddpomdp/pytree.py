"""The one container of arrays: a frozen dataclass registered as a pytree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

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
    times slower and its compilation explode. A call that it may not inline is a fence that it respects
    (`optimization_barrier` is dropped before fusion), and one that costs no copies. Elsewhere a barrier is enough.
    See docs/performance.md.
    """
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        return fn(*args)
    if jax.default_backend() != "cpu":
        return lax.optimization_barrier(fn(*args))

    def call(*args: Any) -> T:
        return fn(*args)

    call.__name__ = getattr(fn, "func", fn).__name__  # what profiles show
    # The metadata of a result is that of the call which makes it.
    return set_xla_metadata(jax.jit(call)(*args), inlineable="false")


def where_needed(needed: jax.Array, fn: Callable[..., T], otherwise: T, *args: Any) -> T:
    """fn(*args) where `needed` bool[], else `otherwise`; a batch in which nobody needs it does not run fn at all."""

    @jax.custom_batching.custom_vmap
    def choose(needed: jax.Array, otherwise: T, args: tuple) -> T:
        return lax.cond(needed, lambda args, _: fn(*args), lambda _, old: old, args, otherwise)

    @choose.def_vmap
    def batched(size: int, in_batched: Any, needed: jax.Array, otherwise: T, args: tuple) -> tuple[T, Any]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        old = jax.tree.map(
            lambda x, batched: x if batched else jnp.broadcast_to(x, (size, *x.shape)), otherwise, in_batched[1]
        )
        pick = lambda flag, new, old: jax.tree.map(lambda a, b: jnp.where(flag, a, b), new, old)  # noqa: E731
        each = jax.vmap(lambda flag, old, args: pick(flag, fn(*args), old), in_axes=(axes[0], 0, axes[2]))
        some = jnp.any(needed)
        return where_needed(some, each, old, needed, old, args), jax.tree.map(lambda _: True, old)

    return choose(needed, otherwise, args)
