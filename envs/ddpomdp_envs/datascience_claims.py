"""What claims of DataScience-v0 say of files: by bits, newest first, without a look at single entries.

What the entries of a row say is turned around once per log: for each thing that can be said, a number whose bit k is
entry k. What a set of entries says last is then a comparison of highest bits. A row of K places has D numbers, of up
to 32 places each, lowest first.

Axis letters: P parent place, N slot, M row, K claim of a row, W words of a claim set, D number.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp import byvalue
from ddpomdp.claims import RECORDED, VERDICT, WORD, Log, unpack
from ddpomdp.pytree import once, pytree

FILES = ("X_train", "y_train", "X_test", "model", "submission")
X_TRAIN, Y_TRAIN, X_TEST, MODEL, SUBMISSION = (1 << i for i in range(len(FILES)))
EVERY = 2 ** len(FILES) - 1
# Kinds of claims; bits of each: files saved (5), then missing (5) and mismatch (1), or score (7) and tunes (3).
SAVED_FILES, TRAINED, TUNED, LEAKY = range(4)
HALF = WORD // 2

Digits = Sequence[jax.Array]  # D numbers uint32[...], lowest first


@pytree
class Said:
    """What a log's claims say: D numbers uint32[M] each, whose bits are entries of the row."""

    saved: list[list[jax.Array]]  # per file
    missing: list[list[jax.Array]]  # per file
    mismatch: list[jax.Array]  # X_test does not fit
    fits: list[jax.Array]  # X_test is there, and nothing is said against it
    trained: list[jax.Array]
    tuned: list[jax.Array]
    leaky: list[jax.Array]


def said(log: Log) -> Said:
    """What a log's claims say."""
    files = len(FILES)
    by_bit = once(_turned, once(_codes, log))
    return Said(by_bit[:files], by_bit[files : 2 * files], *by_bit[2 * files :])


def _codes(log: Log) -> jax.Array:
    """uint32[K, M]: per entry a bit for each thing that `Said` has, in its order; 0 of what is no claim."""
    kind, flags = log.head & 15, (log.head >> 4) & (RECORDED | VERDICT)
    payload = (log.fixed >> jnp.uint32(16)).astype(jnp.int32)
    scored = (kind == TRAINED) | (kind == TUNED)
    misfit = ~scored & ((payload >> 10) & 1 == 1)
    fits = ~scored & ~misfit & ((payload & X_TEST) != 0)
    code = payload & jnp.where(scored, EVERY, 2**10 - 1)
    for bit, flag in enumerate((misfit, fits, kind == TRAINED, kind == TUNED, kind == LEAKY), 10):
        code = code | (flag.astype(jnp.int32) << bit)
    return jnp.where(flags == RECORDED, code, 0).astype(jnp.uint32)


def _turned(code: jax.Array) -> list[list[jax.Array]]:
    """Per bit of a code uint32[K, M]: D numbers uint32[M] whose bit k is that of entry k."""
    numbers = []
    for start in range(0, code.shape[0], WORD):
        low, high = code[start : start + HALF], code[start + HALF : start + WORD]
        # Two entries of sixteen bits side by side: half the shifts.
        both = once(lambda low, high: low | (high << jnp.uint32(HALF)) if high.shape[0] else low, low, high)
        numbers.append(both)
    pair = jnp.uint32(1 | (1 << HALF))
    bit_of = lambda both, bit: functools.reduce(  # noqa: E731
        jnp.bitwise_or, [((both[k] >> jnp.uint32(bit)) & pair) << jnp.uint32(k) for k in range(HALF)]
    )
    return [[bit_of(both, bit) for both in numbers] for bit in range(15)]


def digits(words: jax.Array, log: Log) -> list[jax.Array]:
    """D numbers uint32[..., M] whose bits are the entries of each row in sets uint32[..., W]."""
    if log.per_row <= HALF:
        return [unpack(words, log).astype(jnp.uint32)]
    rows = words.reshape(*words.shape[:-1], log.count.shape[0], -1)
    return [rows[..., d] for d in range(rows.shape[-1])]


def both(one: Digits, other: Digits) -> list[jax.Array]:
    """Entries in both."""
    return [a & b for a, b in zip(one, other, strict=True)]


def some(entries: Digits) -> jax.Array:
    """bool[...]: whether there is an entry."""
    return functools.reduce(jnp.bitwise_or, entries) != 0


def later(one: Digits, other: Digits) -> jax.Array:
    """bool[...]: whether the last entry of `one` stands behind that of `other`; no entry stands before all."""
    behind = jnp.bool_(False)
    for a, b in zip(one, other, strict=True):
        # The highest bit of a is above that of b: it survives the exclusive or, and a is more.
        behind = jnp.where((a | b) == 0, behind, (a > b) & ((a ^ b) > b))
    return behind


def last(entries: Digits) -> jax.Array:
    """int32[...]: place of the last entry, -1 of none."""
    place = jnp.full(entries[0].shape, -1, jnp.int32)
    for d, number in enumerate(entries):
        place = jnp.where(number == 0, place, WORD * d + WORD - 1 - lax.clz(number).astype(jnp.int32))
    return place


def latest(held: Digits, of: Said) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(saved, missing: bits int32[...]; mismatch int32[...]: 2 said, 1 since denied, 0 nothing) by the newest claims.

    Among the entries `held`; `of` has its numbers in the same order.
    """
    saved = missing = jnp.int32(0)
    for bit in range(len(FILES)):
        yes, no = both(held, of.saved[bit]), both(held, of.missing[bit])
        saved = saved | (later(yes, no).astype(jnp.int32) << bit)
        missing = missing | (later(no, yes).astype(jnp.int32) << bit)
    against, denied = both(held, of.mismatch), both(held, of.fits)
    mismatch = jnp.where(later(against, denied), 2, jnp.where(some(denied), 1, 0))
    return saved, missing, mismatch


def read(log: Log, known: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """What claims known to parents uint32[P, W] say of rows: saved, missing, mismatch, newest score, leak [P, M]."""
    held, of = digits(known, log), said(log)
    saved, missing, mismatch = latest(held, of)
    trained, tuned, leaky = (both(held, x) for x in (of.trained, of.tuned, of.leaky))
    newest = last([a | b for a, b in zip(trained, tuned, strict=True)])
    row = jnp.arange(log.count.shape[0])
    score = jnp.where(newest >= 0, (byvalue.payload(log)[row, jnp.maximum(newest, 0)] >> 5) & 127, -1)
    return saved, missing, mismatch, score, later(leaky, trained)


def heard(received: jax.Array, log: Log, row: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What entries uint32[N, W] say of a row int32[N] of each life, by `latest`; row 0 is heard before it."""
    of = said(log)
    first = lambda numbers: [number[..., 0] for number in numbers]  # noqa: E731
    own = lambda numbers: [at_row(number, row) for number in numbers]  # noqa: E731
    in_order = lambda numbers: [*first(numbers), *own(numbers)]  # noqa: E731
    held = once(in_order, digits(received, log))
    return latest(held, jax.tree.map(in_order, of, is_leaf=_is_digits))


def _is_digits(x: object) -> bool:
    return isinstance(x, list) and not isinstance(x[0], list)


def at_row(table: jax.Array, row: jax.Array) -> jax.Array:
    """[N]: the entry of a table [M] or [N, M] at rows int32[N]. Few rows are chosen by number, which is vectorised."""
    num_rows = table.shape[-1]
    if num_rows > 8:
        return table[row] if table.ndim == 1 else jnp.take_along_axis(table, row[:, None], axis=1)[:, 0]
    chosen = jnp.broadcast_to(table[..., 0], row.shape)
    for index in range(1, num_rows):
        chosen = jnp.where(row == index, table[..., index], chosen)
    return chosen
