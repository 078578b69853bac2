"""A tree on its way from the device: every bit arrives, in a batch and alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddpomdp.views.packed import fetch, pack

TREE = {
    "float": np.asarray([[0.1, -0.0, np.inf], [np.nan, 1e-45, -3.5]], np.float32),
    "word": np.asarray([0, 2**32 - 1, 2**31], np.uint32),
    "int": np.int32(-(2**31)),
    "small": (np.asarray([-128, 127], np.int8), np.zeros((0, 4), np.float32)),
    "flag": np.asarray([True, False]),
}


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def test_every_bit_arrives():
    packed = jax.jit(pack)(TREE)
    assert packed.words.shape == (6 + 3 + 1 + 2 + 0 + 2,)
    same(fetch(packed), TREE)


def test_a_batch_keeps_its_axes():
    trees = jax.tree.map(lambda x: np.stack([np.asarray(x), np.zeros_like(x), np.asarray(x)]), TREE)
    packed = jax.jit(jax.vmap(pack))(trees)
    assert packed.words.shape == (3, 14)
    same(fetch(packed), trees)


def test_what_has_no_words_is_refused():
    with pytest.raises(TypeError, match="float16 have no words"):
        pack({"half": jnp.float16(1)})
