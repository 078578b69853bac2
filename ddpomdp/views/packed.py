"""A tree of arrays on its way from the device, as one array: to fetch an array costs about as much as to fetch many
numbers.

Axis letters: P word.
"""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.pytree import pytree


class Leaf(NamedTuple):
    """An array of the tree: where its words lie, and what they are."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: str  # float32, uint32, or one that int32 holds: bool, int8, int32


@pytree
class Packed:
    """A tree as words; further leading axes of `words` (a batch) are leading axes of every leaf."""

    words: jax.Array  # int32[..., P]
    leaves: tuple[Leaf, ...] = field(metadata={"static": True})
    structure: Any = field(metadata={"static": True})


def pack(tree: Any) -> Packed:
    """The tree's numbers, bit for bit, in the order of its leaves."""
    arrays, structure = jax.tree.flatten(tree)
    leaves, words, start = [], [], 0
    for array in arrays:
        leaves.append(Leaf(start, start + array.size, array.shape, array.dtype.name))
        words.append(_as_words(array).reshape(-1))
        start += array.size
    return Packed(words=jnp.concatenate(words), leaves=tuple(leaves), structure=structure)


def fetch(packed: Packed) -> Any:
    """The tree with NumPy's arrays for leaves; they may not be written to."""
    words = np.asarray(packed.words)
    arrays = [_of_words(words[..., leaf.start : leaf.stop], leaf) for leaf in packed.leaves]
    return jax.tree.unflatten(packed.structure, arrays)


def _as_words(array: jax.Array) -> jax.Array:
    if array.dtype in (jnp.float32, jnp.uint32):
        return jax.lax.bitcast_convert_type(array, jnp.int32)
    if array.dtype not in (jnp.bool_, jnp.int8, jnp.int32):
        raise TypeError(f"arrays of {array.dtype} have no words of 32 bits")
    return array.astype(jnp.int32)


def _of_words(words: np.ndarray, leaf: Leaf) -> np.ndarray:
    if leaf.dtype in ("float32", "uint32"):
        words = words.view(leaf.dtype)
    elif leaf.dtype != "int32":
        words = words.astype(leaf.dtype)
    return words.reshape((*words.shape[:-1], *leaf.shape))
