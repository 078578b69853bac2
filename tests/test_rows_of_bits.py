"""Rows of a log by value as bits: K entries in G words. Worked by hand; axis letters as in `ddpomdp.byvalue`."""

import jax.numpy as jnp
import numpy as np
import pytest

from ddpomdp import byvalue
from ddpomdp.pytree import replace

ENTRIES = {16: (3, 9), 128: (3, 100)}  # places k of row 1, by K


@pytest.fixture(scope="module", params=sorted(ENTRIES))
def row(request):
    """(K, flags bool[1, 2, K], the row's bits uint32[1, 2, G]): row 0 is empty."""
    per_row = request.param
    flags = np.zeros((1, 2, per_row), bool)
    flags[0, 1, list(ENTRIES[per_row])] = True
    return per_row, jnp.asarray(flags), byvalue.bits_of(jnp.asarray(flags))


def test_how_many_the_first_and_the_last(row):
    per_row, _, bits = row
    low, high = ENTRIES[per_row]
    assert bits.shape == (1, 2, max(per_row // 32, 1))
    assert byvalue.size(bits).tolist() == [[0, 2]]
    assert byvalue.first(bits, per_row).tolist() == [[per_row, low]]
    assert byvalue.last(bits).tolist() == [[-1, high]]
    alone = byvalue.only(byvalue.last(bits), bits)
    assert byvalue.size(alone).tolist() == [[0, 1]] and (byvalue.last(alone) == byvalue.last(bits)).all()


def test_sets_are_rows_side_by_side(row):
    per_row, flags, bits = row
    words = byvalue.of_rows(bits, per_row)
    assert (words == byvalue.words_of(flags)).all() and words.shape == (1, 2 * per_row // 32)
    assert (byvalue.by_row(words, per_row) == bits).all()
    for which in (0, 1):
        assert (byvalue.row_of(words, jnp.asarray([which]), per_row) == bits[:, which]).all()
    many = byvalue.row_of(words, jnp.asarray([[1, 0, 1]]), per_row)  # several rows per life
    assert (many == bits[:, jnp.asarray([1, 0, 1])]).all()


def test_many_words_are_looked_up_alike():
    rows = 2 * byvalue.FEW_WORDS
    words = jnp.arange(2 * rows, dtype=jnp.uint32).reshape(2, rows)
    asked = jnp.asarray([5, rows - 1])
    assert byvalue.row_of(words, asked, 32)[:, 0].tolist() == [5, 2 * rows - 1]
    assert byvalue.row_of(words, asked // 2, 64).tolist() == [[4, 5], [2 * rows - 2, 2 * rows - 1]]


def test_entries_with_a_number(row):
    per_row = row[0]
    planes = [plane[:, None] for plane in byvalue.digits(jnp.asarray([np.arange(per_row) % 5]), 3)]
    bits = np.asarray(byvalue.with_number(planes, jnp.arange(8)))[0]  # [8, G]
    flags = (bits[..., None] >> np.arange(min(per_row, 32), dtype=np.uint32)) & 1
    for number in range(8):
        places = np.flatnonzero(flags[number].reshape(-1)).tolist()
        assert places == [k for k in range(per_row) if k % 5 == number]


def test_several_values(row):
    per_row = row[0]
    log = byvalue.empty_log(2, per_row)
    head = log.head.at[:4, 1].set(jnp.asarray([6, 6, 7, 2]))
    log = replace(log, head=head)

    def several(*places):
        flags = jnp.zeros((1, 2, per_row), bool).at[0, 1, jnp.asarray(places)].set(True)
        return byvalue.several_values(log, byvalue.bits_of(flags)).tolist()

    assert several(0, 1) == [[False, False]]
    assert several(0, 2) == [[False, True]]
    assert several(1, 3) == [[False, True]]
