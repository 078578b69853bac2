"""The one container of arrays: a frozen dataclass registered as a pytree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun

T = TypeVar("T")

__all__ = ["Fields", "arrays", "flags", "in_rank", "once", "pytree", "replace", "rows", "stacked", "where_needed"]


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass registered as a JAX pytree; fields with metadata static=True are static."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def arrays(tree: T) -> T:
    """The tree with JAX arrays for leaves: numpy's (a stored episode, say) know neither `.at` nor traced indices."""
    return jax.tree.map(jnp.asarray, tree)


def in_rank(flags: jax.Array, like: jax.Array) -> jax.Array:
    """Flags [N] in the rank of an array [N, ...], to select its rows."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index], with -1 (nobody) reading row 0: mask the result before use. A single row is broadcast, not gathered."""
    if x.shape[0] == 1:
        return jnp.broadcast_to(x[0], (*index.shape, *x.shape[1:]))
    return x[jnp.maximum(index, 0)]


@pytree
class Fields:
    """Columns of a table that stand in one word: `count` numbers of `width` bits, the first in the lowest."""

    word: jax.Array  # int32[...]
    width: int = field(metadata={"static": True})
    count: int = field(metadata={"static": True})


def flags(*columns: jax.Array) -> jax.Array:
    """int32[...]: flags bool[...] as the bits of a word, the first in the lowest."""
    word = columns[0].astype(jnp.int32)
    for bit, column in enumerate(columns[1:], 1):
        word = word | (column.astype(jnp.int32) << bit)
    return word


def stacked(columns: Sequence[jax.Array | Fields]) -> jax.Array:
    """[..., F] of arrays [...] of one shape: `jnp.stack(columns, axis=-1)`, each column computed once.

    `Fields` are as many columns, of the first array's type, or float32 where they come first. XLA:CPU joins columns
    element by element; choosing by number instead is vectorised, and up to seven times faster. More than sixteen are
    joined from tables of eight.
    """
    columns = once(lambda *columns: columns, *columns)
    if len(columns) < 3 and not any(isinstance(column, Fields) for column in columns):
        return jnp.stack(columns, axis=-1)
    if sum(map(_width, columns)) <= 16:
        return _table(*columns)
    return jnp.concatenate([once(_table, *part) for part in _cut(columns, 8)], axis=-1)


def _width(column: jax.Array | Fields) -> int:
    return column.count if isinstance(column, Fields) else 1


def _cut(columns: Sequence[jax.Array | Fields], size: int) -> list[list[jax.Array | Fields]]:
    """The columns in parts that are `size` wide, the last one up to that."""
    parts, room = [[]], size
    for column in columns:
        start, width = 0, _width(column)
        while start < width:
            if not room:
                parts, room = [*parts, []], size
            taken = min(room, width - start)
            if isinstance(column, Fields):
                part = Fields(column.word >> (start * column.width), column.width, taken)
            else:
                part = column
            parts[-1].append(part)
            start, room = start + taken, room - taken
    return parts


def _table(*columns: jax.Array | Fields) -> jax.Array:
    """[..., F]: the column of each place, chosen by its number."""
    number, start = np.arange(sum(map(_width, columns))), 0
    table = jnp.float32(0)
    for column in columns:
        if isinstance(column, Fields):
            shift = np.clip(number - start, 0, column.count - 1) * column.width
            values = ((column.word[..., None] >> shift) & (2**column.width - 1)).astype(table.dtype)
        else:
            values = jnp.broadcast_to(column[..., None], (*column.shape, len(number)))
        table = jnp.where(number >= start, values, table) if start else values
        start += _width(column)
    return table


def once(fn: Callable[..., T], *args: Any) -> T:
    """fn(*args), computed once: the results are buffers, not formulas for the compiler to repeat.

    XLA:CPU re-derives shared intermediates inside the fusion of each of their consumers, which makes a step several
    times slower and its compilation explode. A call that it may not inline is a fence that it respects
    (`optimization_barrier` is dropped before fusion), and one that costs no copies. Elsewhere a barrier is enough.
    See docs/performance.md.
    """
    if not _traced(args):
        return fn(*args)
    if jax.default_backend() != "cpu":
        return lax.optimization_barrier(fn(*args))

    def call(*args: Any) -> T:
        return fn(*args)

    call.__name__ = _name(fn)
    # The metadata of a result is that of the call which makes it.
    return cast(T, set_xla_metadata(jax.jit(call)(*args), inlineable="false"))


def _name(fn: Callable[..., Any]) -> str:
    """What profiles call it."""
    return getattr(fn, "func", fn).__name__


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def where_needed(needed: jax.Array, fn: Callable[..., T], otherwise: T, *args: Any) -> T:
    """fn(*args) where `needed` bool[], else `otherwise`; a batch in which nobody needs it does not run fn at all.

    Under `vmap` a plain `lax.cond` runs both sides for everyone. Results that fn hands on from `args` as they stand in
    `otherwise` pass by; arguments that are also part of `otherwise` are changed in place.
    """
    if not _traced((needed, args)):
        return fn(*args) if needed else otherwise
    closed = jax.make_jaxpr(fn)(*args)
    flat, (old, structure) = jax.tree.leaves(args), jax.tree.flatten(otherwise)
    came = {id(var): value for var, value in zip(closed.jaxpr.invars, flat, strict=True)}
    keeps = [came.get(id(var)) is x for var, x in zip(closed.jaxpr.outvars, old, strict=True)]
    changing = [x for x, keep in zip(old, keeps, strict=True) if not keep]
    place = {id(x): i for i, x in enumerate(changing)}
    rest = [x for x in flat if id(x) not in place]

    def part(changing: list, rest: list) -> list:
        others = iter(rest)
        given = [changing[place[id(x)]] if id(x) in place else next(others) for x in flat]
        with jax.named_scope(_name(fn)):
            made = jaxpr_as_fun(closed)(*given)
        return [x for x, keep in zip(made, keeps, strict=True) if not keep]

    new = iter(_where_any(needed, part, changing, rest))
    return jax.tree.unflatten(structure, [x if keep else next(new) for x, keep in zip(old, keeps, strict=True)])


def _where_any(needed: jax.Array, fn: Callable[[list, list], list], old: list, rest: list) -> list:
    """fn(old, rest) where needed, else old."""

    @jax.custom_batching.custom_vmap
    def choose(needed: jax.Array, old: list, rest: list) -> list:
        # A loop of no or one trip works in place; a conditional copies what it hands on.
        once = lambda carry: (jnp.bool_(False), fn(carry[1], rest))  # noqa: E731
        return lax.while_loop(lambda carry: carry[0], once, (needed, old))[1]

    @choose.def_vmap
    def batched(size: int, in_batched: Any, needed: jax.Array, old: list, rest: list) -> tuple[list, list]:
        flag, _, axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        old = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(old, in_batched[1], strict=True)]

        def each(needed: jax.Array, old: list, rest: list) -> list:
            return [jnp.where(needed, a, b) for a, b in zip(fn(old, rest), old, strict=True)]

        every = jax.vmap(each, in_axes=(flag, 0, axes))
        some = lambda old, rest: every(rest[0], old, rest[1:])  # noqa: E731
        return _where_any(jnp.any(needed), some, old, [needed, *rest]), [True] * len(old)

    return choose(needed, old, rest)
