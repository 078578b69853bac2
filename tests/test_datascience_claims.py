"""What claims of DataScience-v0 say last, against a walk through the entries one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddpomdp import byvalue
from ddpomdp.claims import RECORDED, VERDICT, Log
from ddpomdp.pytree import replace
from ddpomdp_envs.datascience_claims import FILES, LEAKY, TRAINED, TUNED, at_row, heard, later, read, said

ROWS, NOTES, READERS = 4, 3, 40


def written(per_row: int, rng: np.random.Generator) -> Log:
    """A log of random entries of all kinds, rows filled to different heights, one of them full."""
    log = byvalue.empty_log(ROWS, per_row, NOTES)
    count = np.asarray([per_row, per_row // 2, NOTES, per_row - 1])
    entry = (np.arange(per_row)[:, None] >= NOTES) & (np.arange(per_row)[:, None] < count)
    kind, payload = rng.integers(0, 4, (per_row, ROWS)), rng.integers(0, 2**11, (per_row, ROWS))
    flags = np.where(rng.random((per_row, ROWS)) < 0.9, RECORDED, RECORDED | VERDICT)
    head = np.where(entry, kind | flags << 4 | 5 << 11, np.asarray(log.head))
    return Log(
        head=jnp.asarray(head, jnp.int32),
        fixed=jnp.asarray(np.where(entry, payload << 16, 0), jnp.uint32),
        count=jnp.asarray(count, jnp.int32),
    )


def walked(log: Log, entries: list[tuple[int, int]]) -> tuple[int, int, int, int, bool]:
    """(saved, missing, mismatch, newest score, leak) after hearing entries (row, k) in order."""
    head, fixed = np.asarray(log.head), np.asarray(log.fixed)
    states, mismatch, score, leak = dict.fromkeys(range(len(FILES)), ""), 0, -1, False
    for row, k in entries:
        kind, flags, payload = head[k, row] & 15, head[k, row] >> 4 & 127, int(fixed[k, row] >> 16)
        if flags & VERDICT or not flags & RECORDED:
            continue
        scored = kind in (TRAINED, TUNED)
        for bit in states:
            yes, no = payload >> bit & 1, not scored and payload >> (5 + bit) & 1
            states[bit] = "both" if yes and no else "yes" if yes else "no" if no else states[bit]
        if not scored and payload >> 10 & 1:
            mismatch = 2
        elif not scored and payload >> 2 & 1:
            mismatch = 1
        score = payload >> 5 & 127 if scored else score
        leak = kind == LEAKY or (leak and kind != TRAINED)
    bits = lambda state: sum(1 << bit for bit, is_ in states.items() if is_ == state)  # noqa: E731
    return bits("yes"), bits("no"), mismatch, score, leak


@pytest.mark.parametrize("per_row", [16, 32, 64])
def test_the_newest_claims_count(per_row):
    rng = np.random.default_rng(per_row)
    log = written(per_row, rng)
    share = rng.choice([0.05, 0.3, 1.0], READERS)[:, None, None]
    held = rng.random((READERS, ROWS, per_row)) < share
    known = byvalue.words_of(jnp.asarray(held))
    row = jnp.asarray(rng.integers(0, ROWS, READERS), jnp.int32)
    places = lambda n, m: [(m, k) for k in range(per_row) if held[n, m, k]]  # noqa: E731
    both = lambda n: places(n, 0) + places(n, int(row[n]))  # noqa: E731
    mails = [walked(log, both(n))[:3] for n in range(READERS)]
    assert np.array_equal(np.stack(jax.jit(heard)(known, log, row), axis=-1), mails)
    boards = [[walked(log, places(n, m)) for m in range(ROWS)] for n in range(READERS)]
    assert np.array_equal(np.stack(jax.jit(read)(log, known), axis=-1), boards)
    kept = replace(log, said=said(log))
    assert np.array_equal(np.stack(jax.jit(read)(kept, known), axis=-1), boards)
    seen = np.asarray(boards).reshape(-1, 5)
    assert {0, 1, 2} <= set(seen[:, 2]) and set(seen[:, 4]) == {0, 1} and {-1} < set(seen[:, 3])


def test_the_highest_bit_decides():
    number = lambda *x: jnp.asarray(x, jnp.uint32)  # noqa: E731
    one, other = number(0, 1, 0b100, 0b101, 0b110, 2**31, 5), number(0, 0, 0b011, 0b110, 0b101, 2**30, 0)
    assert later([one], [other]).tolist() == [False, True, True, False, False, True, True]
    # The higher number comes first; the lower one counts where neither has a bit in it.
    assert later([one, number(*[0] * 7)], [other, number(0, 0, 1, 0, 0, 0, 1)]).tolist() == [
        *(False, True, False, False, False, True, False),
    ]


@pytest.mark.parametrize("rows", [1, 4, 12])
def test_rows_are_chosen(rows):
    table = jnp.arange(2 * rows).reshape(2, rows)
    row = jnp.asarray([rows - 1, 0])
    assert at_row(table[0], row).tolist() == [rows - 1, 0] and at_row(table, row).tolist() == [rows - 1, rows]
