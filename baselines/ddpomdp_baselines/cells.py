"""Cells: entries of a flat batch that share their ids, and sums over them that every entry can read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Cells:
    """A partition of E entries. Dead entries share one extra place, so no sum of a cell ever holds one of them."""

    ids: jax.Array  # int32[E] in [0, places); dead entries hold `places`
    places: int  # how many cells there is room for

    def total(self, x: jax.Array) -> jax.Array:
        """Sum of x over the cell of each entry, [E]."""
        return self._read(jax.ops.segment_sum(x, self.ids, self.places + 1))

    def least(self, x: jax.Array) -> jax.Array:
        """Smallest x in the cell of each entry, [E]."""
        return self._read(jax.ops.segment_min(x, self.ids, self.places + 1))

    def most(self, x: jax.Array) -> jax.Array:
        """Largest x in the cell of each entry, [E]."""
        return self._read(jax.ops.segment_max(x, self.ids, self.places + 1))

    def _read(self, table: jax.Array) -> jax.Array:
        return jnp.take(table, self.ids, mode="clip")

    def first(self) -> jax.Array:
        """bool[E]: the one entry of each cell that stands for it; no dead entry does."""
        place = jnp.arange(self.ids.shape[0], dtype=jnp.int32)
        return (self.least(place) == place) & (self.ids < self.places)


def check_sizes(sizes: Sequence[int] | None, length: int) -> None:
    """ValueError unless `sizes` is None or `length` whole numbers from 1 whose product an int32 can hold."""
    if sizes is None:
        return
    sizes = tuple(sizes)
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes)
    if len(sizes) != length or not whole or math.prod(sizes) >= 2**31 - 1:
        raise ValueError(f"sizes: got {sizes!r}, allowed: {length} whole numbers from 1, product below 2**31 - 1")


def in_range(columns: Sequence[jax.Array], sizes: Sequence[int] | None) -> jax.Array | bool:
    """bool[E]: every id lies in [0, its size); True where no sizes are given."""
    if sizes is None:
        return True
    inside: jax.Array | bool = True
    for column, size in zip(columns, sizes, strict=True):
        inside = inside & (column >= 0) & (column < size)
    return inside


def partition(columns: Sequence[jax.Array], live: jax.Array, sizes: Sequence[int] | None) -> Cells:
    """Cells of the live entries whose ids agree in every column; without columns all live entries are one cell.

    With `sizes` a cell is numbered arithmetically, as a place in an array of that shape. Without, entries are sorted:
    that takes any int32, and is slow where sorting is slow.

    Args:
      columns: int32[E] each.
      live: bool[E], False: the entry is in no cell.
      sizes: ids of live entries lie in [0, size), one size per column; None if not known.
    """
    if sizes is None and columns:
        return _sorted(columns, live)
    ids = jnp.zeros(live.shape, jnp.int32)
    for column, size in zip(columns, sizes or (), strict=True):
        ids = ids * size + column
    places = math.prod(sizes or ())
    return Cells(jnp.where(live, ids, places), places)


def _sorted(columns: Sequence[jax.Array], live: jax.Array) -> Cells:
    """Number the distinct rows of `columns` in sorted order, dead entries last."""
    places = live.shape[0]
    order = jnp.lexsort((*reversed(columns), ~live))
    starts = jnp.zeros(live.shape, bool)
    for column in columns:
        line = column[order]
        starts = starts | jnp.concatenate([jnp.zeros(places and 1, bool), line[1:] != line[:-1]])
    ids = jnp.zeros(live.shape, jnp.int32).at[order].set(jnp.cumsum(starts, dtype=jnp.int32))
    return Cells(jnp.where(live, ids, places), places)
