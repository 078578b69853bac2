"""Containers and fences."""

import jax
import jax.numpy as jnp
import pytest

from ddpomdp.pytree import stacked


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, bool])
def test_columns_stand_side_by_side(count, dtype):
    columns = [jax.random.normal(jax.random.key(i), (3, 5)).astype(dtype) for i in range(count)]
    expected = jnp.stack(columns, axis=-1)
    for table in (stacked(columns), jax.jit(stacked)(columns), jax.vmap(stacked)(columns)):
        assert table.dtype == expected.dtype and bool(jnp.all(table == expected))


def test_columns_keep_what_is_no_number():
    columns = [jnp.asarray([jnp.nan, 1.0]), jnp.asarray([jnp.inf, 2.0]), jnp.asarray([-0.0, 3.0])]
    table = jax.jit(stacked)(columns)
    assert jnp.isnan(table[0, 0]) and jnp.isinf(table[0, 1]) and jnp.signbit(table[0, 2])
    assert table[1].tolist() == [1.0, 2.0, 3.0]
