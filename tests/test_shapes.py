"""One compilation per shape: what `reset` returns and what `step` returns have the same types, weak types included."""

import jax
import pytest

from ddpomdp import make


@pytest.mark.parametrize("topology", ["swarm", "hierarchical", "single"])
def test_reset_and_step_return_the_same_types(topology):
    env = make("Search-v0", preset="tiny", topology=topology)
    key = jax.eval_shape(lambda: jax.random.key(0))
    turns = jax.ShapeDtypeStruct((env.spec.capacity, 1 + env.spec.num_args), "int32")
    first = jax.eval_shape(env.reset, key)
    later = jax.eval_shape(env.step, key, first[0], turns)
    assert jax.tree.structure(first) == jax.tree.structure(later)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(later), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type), jax.tree_util.keystr(path)
