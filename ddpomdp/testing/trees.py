"""Trees of arrays compared bit by bit."""

from typing import Any

import jax
import numpy as np


def numpy(tree: Any) -> Any:
    """The tree with numpy copies of its arrays."""
    return jax.tree.map(np.array, tree)


def differing(a: Any, b: Any) -> list[str]:
    """Paths of leaves that are not bit-equal (keys excepted)."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    odd = [path for (path, x), y in pairs if np.asarray(x).tobytes() != np.asarray(y).tobytes()]
    return [jax.tree_util.keystr(path) for path in odd]


def form(tree: Any) -> tuple[Any, list[tuple[np.dtype, tuple[int, ...]]]]:
    """Structure, and dtype and shape of every leaf."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.dtype, x.shape) for x in leaves]


def difference(one: Any, other: Any) -> str | None:
    """How two trees differ in structure, dtype or shape, in words; None if they do not."""
    (structure, leaves), (other_structure, other_leaves) = form(one), form(other)
    if structure != other_structure:
        return f"structure {structure} against {other_structure}"
    if leaves == other_leaves:
        return None
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(one)]
    path, a, b = next(three for three in zip(paths, leaves, other_leaves, strict=True) if three[1] != three[2])
    return f"{jax.tree_util.keystr(path)} is {a[0]}{list(a[1])} against {b[0]}{list(b[1])}"
