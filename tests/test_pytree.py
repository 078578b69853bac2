"""Containers and fences."""

import jax
import jax.numpy as jnp
import pytest

from ddpomdp.pytree import Fields, flags, stacked


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 45])
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


def test_numbers_in_a_word_are_columns():
    word = jnp.asarray([0b1_0110, 0x7FFF_0321])
    bits, digits = Fields(word, 1, 5), Fields(word, 4, 3)
    expected = jnp.asarray([[0, 1, 1, 0, 1, 9, 6, 1, 0, -2], [1, 0, 0, 0, 0, 8, 1, 2, 3, -3]], jnp.float32)
    columns = [bits, jnp.asarray([9.0, 8.0]), digits, jnp.asarray([-2.0, -3.0])]
    for table in (stacked(columns), jax.jit(stacked)(columns)):
        assert table.dtype == jnp.float32 and bool(jnp.all(table == expected))
    wide = jax.jit(stacked)(columns * 5)  # joined from three tables
    assert bool(jnp.all(wide == jnp.tile(expected, (1, 5))))
    alone = stacked([digits])
    assert alone.dtype == jnp.float32 and alone.tolist() == [[6, 1, 0], [1, 2, 3]]
    assert flags(jnp.asarray([True, False]), jnp.asarray([True, True])).tolist() == [3, 2]
