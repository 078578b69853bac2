"""Logs whose rows hold many claims: votes are counted by value, not by pairs of entries.

For tasks with `by_value`: every claim is a vote of its own, a row has up to 128 places, any number of entries enters a
row in a tick, and summaries leave verdicts out instead of garbling claims. A task may have notes: entries that stand
in the log from the start, one per level of detail, and are told by messages of that level. A verdict's value is that of
the claim it speaks of; the place of that claim stands in the low seven bits of the verdict's luck (`subject`).

Axis letters: N slot, P parent place, M row, K claim of a row, V value, W words of a claim set.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp import claims
from ddpomdp.claims import ACCEPT, RECORDED, TAINTED, UNTRUSTED, VERDICT, Log, NewClaims
from ddpomdp.pytree import pytree
from ddpomdp.state import Board

VALUES = 8
PLACES = (16, 32, 64, 128)  # K: a word holds two rows, or a row takes whole words
SUBJECT = 127
NOTE = 7  # value of a note's levels: of no claim in a task that has notes


def empty_log(num_rows: int, per_row: int, notes: int = 0) -> Log:
    """A log without entries but the levels of a task's notes; `per_row` is one of `PLACES`."""
    if per_row not in PLACES or num_rows * per_row % claims.WORD:
        raise ValueError(f"claims per row: got {per_row} with {num_rows} rows, allowed: {PLACES}, together whole words")
    zero = jnp.zeros((per_row, num_rows), jnp.int32)
    head = zero.at[:notes].set(NOTE | (RECORDED | VERDICT) << 4)
    return Log(head=head, fixed=zero.astype(jnp.uint32), count=zero[0] + notes)


def flags_of(words: jax.Array, log: Log) -> jax.Array:
    """bool[..., M, K]: which entries are in sets uint32[..., W]."""
    bits = (words[..., None] >> jnp.arange(claims.WORD, dtype=jnp.uint32)) & jnp.uint32(1)
    return (bits == 1).reshape(*words.shape[:-1], log.count.shape[0], log.per_row)


def words_of(flags: jax.Array) -> jax.Array:
    """uint32[..., W] of flags bool[..., M, K]."""
    return claims.pack(flags.reshape(*flags.shape[:-2], -1).astype(jnp.int32), 1)


def row_words(rows: jax.Array, per_row: int) -> jax.Array:
    """uint32[..., W]: all places of the rows bool[..., M]."""
    if per_row >= claims.WORD:
        return jnp.where(jnp.repeat(rows, per_row // claims.WORD, axis=-1), jnp.uint32(2**32 - 1), jnp.uint32(0))
    return claims.pack(jnp.where(rows, 2**per_row - 1, 0), per_row)


def flag(log: Log, bit: int) -> jax.Array:
    """bool[M, K]: entries with a flag of `ddpomdp.claims`."""
    return (((log.head.T >> 4) & bit) != 0)  # fmt: skip


def value(log: Log) -> jax.Array:
    """int32[M, K]."""
    return log.head.T & claims.MAX_VALUE


def payload(log: Log) -> jax.Array:
    """int32[M, K]: sixteen bits of the task's own per entry (the upper half of `NewClaims.luck`)."""
    return (log.fixed.T >> jnp.uint32(16)).astype(jnp.int32)


def subject(log: Log) -> jax.Array:
    """int32[M, K]: of a verdict, the place in its row of the claim it speaks of."""
    return payload(log) & SUBJECT


def record(log: Log, new: NewClaims, uid: jax.Array, order: jax.Array) -> tuple[Log, jax.Array, jax.Array]:
    """Write this tick's entries, in `order` int32[N] (distinct) within a row, as long as the row has places.

    Returns the log, the place int32[N] (-1: not recorded) and refused bool[N].
    """
    num_rows, per_row, n = log.count.shape[0], log.per_row, uid.shape[0]
    row = jnp.where(new.made, new.row, num_rows)  # out of range: dropped
    slots = jnp.arange(n, dtype=jnp.int32)
    in_row, _, slot = lax.sort((row, order, slots), num_keys=2)
    added = jnp.zeros(num_rows + 1, jnp.int32).at[in_row].add(1)
    first = jnp.cumsum(added) - added
    rank = jnp.zeros(n, jnp.int32).at[slot].set(slots - first[in_row])
    safe = jnp.minimum(row, num_rows - 1)
    k = log.count[safe] + rank
    written = new.made & (k < per_row)
    at = (jnp.where(written, k, per_row), safe)
    head = new.value | ((new.flags | RECORDED) << 4) | (uid << 11)
    fixed = jnp.minimum(new.confidence, 2**16 - 1).astype(jnp.uint32) | (new.luck & jnp.uint32(0xFFFF0000))
    log = Log(
        head=log.head.at[at].set(head, mode="drop"),
        fixed=log.fixed.at[at].set(fixed, mode="drop"),
        count=jnp.minimum(log.count + added[:num_rows], per_row),
    )
    return log, jnp.where(written, safe * per_row + k, -1), new.made & ~written


@pytree
class ValueMasks:
    """What the log says of its entries, as sets; the counterpart of `claims.Masks`."""

    claim: jax.Array  # uint32[W]   entries that are claims
    tainted: jax.Array  # uint32[W]
    untrusted: jax.Array  # uint32[W]

    notes: tuple[jax.Array, ...] = ()  # uint32[W] each: a note's levels, from the shortest

    def summarised(self, sent: jax.Array) -> jax.Array:
        """A summary tells claims, not the verdicts on them, and no note."""
        return sent & self.claim

    def noted(self, sent: jax.Array, detail: jax.Array) -> jax.Array:
        """Notes are told up to the level `detail` int32[N]; the rest in full."""
        for level, note in enumerate(self.notes, start=1):
            sent = jnp.where((detail < level)[..., None], sent & ~note, sent)
        return sent


def masks(log: Log, notes: int = 0) -> ValueMasks:
    """The masks of a log whose first places of each row are the levels of a note."""
    place = jnp.arange(log.per_row)
    rows = jnp.ones((log.count.shape[0], 1), bool)
    return ValueMasks(
        claim=words_of(flag(log, RECORDED) & ~flag(log, VERDICT)),
        tainted=words_of(flag(log, TAINTED)),
        untrusted=words_of(flag(log, UNTRUSTED)),
        notes=tuple(words_of(rows & (place == level)) for level in range(notes)),
    )


@pytree
class Choices:
    """How claims of one row compare; the counterpart of `claims.Comparisons`, worked out where it is asked."""

    claim: jax.Array  # uint32[W]
    log: Log

    def disputed(self, known: jax.Array) -> jax.Array:
        """Subset of known claims uint32[..., W] whose row holds another known claim with a different value."""
        values = value(self.log)
        held = [claims.in_rows(known & self.claim & words_of(values == v), self.log) for v in range(VALUES)]
        different = functools.reduce(jnp.add, [there.astype(jnp.int32) for there in held])
        return known & self.claim & row_words(different > 1, self.log.per_row)

    def best(self, known: jax.Array) -> jax.Array:
        """Subset of known claims: per row the most confident one (the earliest of equals)."""
        held = flags_of(known & self.claim, self.log)
        confidence = (self.log.fixed.T & jnp.uint32(0xFFFF)).astype(jnp.int32)
        top = jnp.argmax(jnp.where(held, confidence, -1), axis=-1)
        return words_of(held & (jnp.arange(self.log.per_row) == top[..., None]))


@pytree
class ValueVotes:
    """What sets of known entries say about each row, by value."""

    claims: jax.Array  # int32[P,M,V]  known claims with the value: its votes
    accepts: jax.Array  # int32[P,M,V]  known verdicts that accept one of them
    rejects: jax.Array  # int32[P,M,V]
    first: jax.Array  # int32[P,M,V]  place k of the first known claim with the value, K if none
    latest: jax.Array  # int32[P,M,V]  place k of the last one, -1 if none


def votes(log: Log, known: jax.Array) -> ValueVotes:
    """Count votes among known entries uint32[P, W]."""
    per_row = log.per_row
    held = flags_of(known, log)  # [P, M, K]
    is_verdict, accepted, values = flag(log, VERDICT), flag(log, ACCEPT), value(log)
    places = jnp.arange(per_row, dtype=jnp.int32)
    columns = []
    for v in range(VALUES):
        here = held & (values == v)
        of = here & ~is_verdict
        about = here & is_verdict
        count = lambda flags: jnp.sum(flags, axis=-1, dtype=jnp.int32)  # noqa: E731
        columns.append(
            (
                count(of),
                count(about & accepted),
                count(about & ~accepted),
                jnp.min(jnp.where(of, places, per_row), axis=-1),
                jnp.max(jnp.where(of, places, -1), axis=-1),
            )
        )
    return ValueVotes(*(jnp.stack(column, axis=-1) for column in zip(*columns, strict=True)))


def newest(log: Log, known: jax.Array) -> jax.Array:
    """int32[..., M]: place k of the newest claim known of each row, -1 where none is."""
    held = flags_of(known, log) & ~flag(log, VERDICT)
    return jnp.max(jnp.where(held, jnp.arange(log.per_row, dtype=jnp.int32), -1), axis=-1)


def verdict_on(log: Log, known: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32[..., M]: accepts minus rejects known of the claim at place k int32[..., M] of each row, and how many.

    Returns (net, verdicts).
    """
    about = flags_of(known, log) & flag(log, VERDICT) & (subject(log) == place[..., None])
    number = jnp.sum(about, axis=-1, dtype=jnp.int32)
    return 2 * jnp.sum(about & flag(log, ACCEPT), axis=-1, dtype=jnp.int32) - number, number


def origin(log: Log, place: jax.Array) -> jax.Array:
    """int32[M]: uid of the author of the claim at place k int32[M] of each row, -1 of -1."""
    row = jnp.arange(log.count.shape[0])
    return jnp.where(place >= 0, log.head[jnp.maximum(place, 0), row] >> 11, -1)


def boards(log: Log, count: ValueVotes, extra: list[jax.Array]) -> Board:
    """Parents' boards from their votes; the leading value is that with most claims, then the first."""
    held = count.claims > 0
    ranked = jnp.where(held, count.claims * (log.per_row + 1) + (log.per_row - count.first), -1)
    top = jnp.argmax(ranked, axis=-1)
    pick = lambda x: jnp.take_along_axis(x, top[..., None], axis=-1)[..., 0]  # noqa: E731
    some = jnp.any(held, axis=-1)
    others = jnp.where(jnp.arange(VALUES) == top[..., None], 0, count.claims)
    row = jnp.arange(log.count.shape[0])
    first = jnp.where(some, pick(count.first), 0)
    confidence = (log.fixed[first, row] & jnp.uint32(0xFFFF)).astype(jnp.int32)
    only = lambda x, empty=0: jnp.where(some, x, empty)  # noqa: E731
    return Board(
        values=jnp.sum(held, axis=-1, dtype=jnp.int32),
        top_value=only(top, -1).astype(jnp.int32),
        top_origins=only(pick(count.claims)),
        second_origins=jnp.max(others, axis=-1),
        confidence=only(confidence),
        accepts=only(pick(count.accepts)),
        rejects=only(pick(count.rejects)),
        extra=extra,
    )
