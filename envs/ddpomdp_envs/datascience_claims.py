"""What claims of DataScience-v0 say of files: by bits, newest first, without a look at single entries.

What the entries of a row say is turned around once per log: for each thing that can be said, K bits in G words, bit k
for entry k (as in `ddpomdp.byvalue`). What a set of entries says last is then a comparison of highest bits.

Axis letters: S thing that can be said, P parent place, N slot, M row, K claim of a row, W words of a claim set, G words
of a row.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ddpomdp import byvalue
from ddpomdp.claims import RECORDED, VERDICT, WORD, Log
from ddpomdp.pytree import once

FILES = ("X_train", "y_train", "X_test", "model", "submission")
X_TRAIN, Y_TRAIN, X_TEST, MODEL, SUBMISSION = (1 << i for i in range(len(FILES)))
EVERY = 2 ** len(FILES) - 1
# Kinds of claims; bits of each: files saved (5), then missing (5) and mismatch (1), or score (7) and tunes (3).
SAVED_FILES, TRAINED, TUNED, LEAKY = range(4)
# What can be said beside saved and missing, five files each: X_test does not fit; it is there and nothing is said
# against it; a model was trained, tuned, or leaks.
MISFIT, FITS, IS_TRAINED, IS_TUNED, IS_LEAKY = range(10, 15)
HALF = WORD // 2

Bits = Sequence[jax.Array]  # G words uint32[...], those of the first entries first


def said(log: Log) -> jax.Array:
    """uint32[S, M, G]: which entries are claims that say a thing."""
    return _turned(once(_codes, log))


def _codes(log: Log) -> jax.Array:
    """uint32[K, M]: per entry a bit for each thing that can be said; 0 of what is no claim."""
    kind, flags = log.head & 15, (log.head >> 4) & (RECORDED | VERDICT)
    payload = (log.fixed >> jnp.uint32(16)).astype(jnp.int32)
    scored = (kind == TRAINED) | (kind == TUNED)
    misfit = ~scored & ((payload >> 10) & 1 == 1)
    fits = ~scored & ~misfit & ((payload & X_TEST) != 0)
    code = payload & jnp.where(scored, EVERY, 2**10 - 1)
    for bit, flag in enumerate((misfit, fits, kind == TRAINED, kind == TUNED, kind == LEAKY), MISFIT):
        code = code | (flag.astype(jnp.int32) << bit)
    return jnp.where(flags == RECORDED, code, 0).astype(jnp.uint32)


def _turned(code: jax.Array) -> jax.Array:
    """uint32[S, M, G] of codes uint32[K, M]: bit k of a thing is the thing's bit in code k."""
    words = []
    thing, pair = jnp.arange(IS_LEAKY + 1, dtype=jnp.uint32)[:, None], jnp.uint32(1 | (1 << HALF))
    for start in range(0, code.shape[0], WORD):
        low, high = code[start : start + HALF], code[start + HALF : start + WORD]
        # Two entries of sixteen bits side by side: half the shifts.
        both = once(lambda low, high: low | (high << jnp.uint32(HALF)) if high.shape[0] else low, low, high)
        bits = [((both[k] >> thing) & pair) << jnp.uint32(k) for k in range(HALF)]
        words.append(functools.reduce(jnp.bitwise_or, bits))
    return jnp.stack(words, axis=-1)


def split(bits: jax.Array) -> list[jax.Array]:
    """The words of bits uint32[..., G]."""
    return [bits[..., g] for g in range(bits.shape[-1])]


def both(one: Bits, other: Bits) -> list[jax.Array]:
    """Entries in both."""
    return [a & b for a, b in zip(one, other, strict=True)]


def later(one: Bits, other: Bits) -> jax.Array:
    """bool[...]: whether the last entry of `one` stands behind that of `other`; no entry stands before all."""
    behind = jnp.bool_(False)
    for a, b in zip(one, other, strict=True):
        # The highest bit of a is above that of b: it survives the exclusive or, and a is more.
        behind = jnp.where((a | b) == 0, behind, (a > b) & ((a ^ b) > b))
    return behind


def latest(held: Bits, of: Sequence[Bits]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(saved, missing: bits int32[...]; mismatch int32[...]: 2 said, 1 since denied, 0 nothing) by the newest claims.

    Among the entries `held`; `of` are those that say each thing, in the same order.
    """
    saved = missing = jnp.int32(0)
    for bit in range(len(FILES)):
        yes, no = both(held, of[bit]), both(held, of[len(FILES) + bit])
        saved = saved | (later(yes, no).astype(jnp.int32) << bit)
        missing = missing | (later(no, yes).astype(jnp.int32) << bit)
    against, denied = both(held, of[MISFIT]), both(held, of[FITS])
    some = functools.reduce(jnp.bitwise_or, denied) != 0
    return saved, missing, jnp.where(later(against, denied), 2, jnp.where(some, 1, 0))


def read(log: Log, known: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """What claims known to parents uint32[P, W] say of rows: saved, missing, mismatch, newest score, leak [P, M]."""
    held, of = byvalue.by_row(known, log.per_row), _said(log)
    saved, missing, mismatch = latest(split(held), [split(thing) for thing in of])
    newest = byvalue.last(held & (of[IS_TRAINED] | of[IS_TUNED]))
    row = jnp.arange(log.count.shape[0])
    score = jnp.where(newest >= 0, (byvalue.payload(log)[row, jnp.maximum(newest, 0)] >> 5) & 127, -1)
    leak = later(split(held & of[IS_LEAKY]), split(held & of[IS_TRAINED]))
    return saved, missing, mismatch, score, leak


def heard(received: jax.Array, log: Log, row: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What entries uint32[N, W] say of a row int32[N] of each life, by `latest`; row 0 is heard before it."""

    def in_order(bits: jax.Array) -> list[jax.Array]:
        words = split(bits)
        return [word[..., 0] for word in words] + [at_row(word, row) for word in words]

    held = once(in_order, byvalue.by_row(received, log.per_row))
    return latest(held, [in_order(thing) for thing in _said(log)])


def _said(log: Log) -> jax.Array:
    return said(log) if log.said is None else log.said


def at_row(table: jax.Array, row: jax.Array) -> jax.Array:
    """[N]: the entry of a table [M] or [N, M] at rows int32[N]. Few rows are chosen by number, which is vectorised."""
    num_rows = table.shape[-1]
    if num_rows > 8:
        return table[row] if table.ndim == 1 else jnp.take_along_axis(table, row[:, None], axis=1)[:, 0]
    chosen = jnp.broadcast_to(table[..., 0], row.shape)
    for index in range(1, num_rows):
        chosen = jnp.where(row == index, table[..., index], chosen)
    return chosen
