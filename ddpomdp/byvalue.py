"""Logs whose rows hold many claims: votes are counted by value, not by pairs of entries.

For tasks with `by_value`: every claim is a vote of its own, a row has up to 128 places, any number of entries enters a
row in a tick, and summaries leave verdicts out instead of garbling claims. A task may have notes: entries that stand
in the log from the start, one per level of detail, and are told by messages of that level. A verdict's value is that of
the claim it speaks of; the place of that claim stands in the low seven bits of the verdict's luck (`subject`).

Axis letters: N slot, P parent place, M row, K claim of a row, V value, W words of a claim set, G words of a row.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp import claims
from ddpomdp.claims import ACCEPT, RECORDED, TAINTED, UNTRUSTED, VERDICT, Log, NewClaims
from ddpomdp.pytree import once, pytree, replace
from ddpomdp.state import Board

VALUES = 8
PLACES = (16, 32, 64, 128)  # K: a word holds two rows, or a row takes whole words
SUBJECT = 127
FEW_WORDS = 8
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
    return of_rows(bits_of(flags), flags.shape[-1])


def row_words(rows: jax.Array, per_row: int) -> jax.Array:
    """uint32[..., W]: all places of the rows bool[..., M]."""
    full = jnp.where(rows, jnp.uint32(2 ** min(per_row, claims.WORD) - 1), jnp.uint32(0))[..., None]
    return of_rows(jnp.broadcast_to(full, (*rows.shape, max(per_row // claims.WORD, 1))), per_row)


# The entries of a row as K bits in G words. Per life and row that is one number instead of K flags, and what one asks
# of it (how many, the first, the last) is one instruction.


def row_of(words: jax.Array, row: jax.Array, per_row: int) -> jax.Array:
    """uint32[N, ..., G]: the bits of row int32[N, ...] in each life's set uint32[N, W]."""
    place = row * per_row
    if words.shape[-1] > FEW_WORDS:
        at = jax.vmap(lambda words, place: words[place])
        column = lambda i: at(words, (place >> 5) + i)  # noqa: E731
    else:  # chosen by number: vectorised, a gather is not
        each = [words[:, i].reshape(-1, *(1,) * (row.ndim - 1)) for i in range(words.shape[-1])]

        def column(i: int) -> jax.Array:
            chosen = jnp.broadcast_to(each[i], row.shape)
            for word in range(i + 1, len(each)):
                chosen = jnp.where((place >> 5) + i == word, each[word], chosen)
            return chosen

    if per_row >= claims.WORD:
        return jnp.stack([column(i) for i in range(per_row // claims.WORD)], axis=-1)
    return (column(0) >> (place & 31).astype(jnp.uint32) & jnp.uint32(2**per_row - 1))[..., None]


def bits_of(flags: jax.Array) -> jax.Array:
    """uint32[..., G] of flags bool[..., K]."""
    size = min(flags.shape[-1], claims.WORD)
    bit = jnp.uint32(1) << jnp.arange(size, dtype=jnp.uint32)
    return claims.union(jnp.where(flags.reshape(*flags.shape[:-1], -1, size), bit, jnp.uint32(0)), flags.ndim)


def by_row(words: jax.Array, per_row: int) -> jax.Array:
    """uint32[..., M, G] of sets uint32[..., W]."""
    if per_row >= claims.WORD:
        return words.reshape(*words.shape[:-1], -1, per_row // claims.WORD)
    shift = per_row * jnp.arange(claims.WORD // per_row, dtype=jnp.uint32)
    return ((words[..., None] >> shift) & jnp.uint32(2**per_row - 1)).reshape(*words.shape[:-1], -1, 1)


def of_rows(bits: jax.Array, per_row: int) -> jax.Array:
    """uint32[..., W] of rows uint32[..., M, G]."""
    if per_row >= claims.WORD:
        return bits.reshape(*bits.shape[:-2], -1)
    return claims.pack(bits[..., 0], per_row)


def size(bits: jax.Array) -> jax.Array:
    """int32[...]: how many entries of a row are in bits uint32[..., G]."""
    return claims.size(bits)


def last(bits: jax.Array) -> jax.Array:
    """int32[...]: the last place k in bits uint32[..., G], -1 if there is none."""
    place = claims.WORD - 1 - lax.clz(bits).astype(jnp.int32) + _first_place(bits)
    return jnp.max(jnp.where(bits != 0, place, -1), axis=-1)


def first(bits: jax.Array, per_row: int) -> jax.Array:
    """int32[...]: the first place k in bits uint32[..., G], `per_row` if there is none."""
    lowest = bits & (~bits + jnp.uint32(1))
    place = claims.WORD - 1 - lax.clz(lowest).astype(jnp.int32) + _first_place(bits)
    return jnp.min(jnp.where(bits != 0, place, per_row), axis=-1)


def only(place: jax.Array, like: jax.Array) -> jax.Array:
    """uint32[..., G] in the shape of bits `like` with place k int32[...] alone, nothing for -1."""
    return claims.bit_of(place, like.shape[-1])


def _first_place(bits: jax.Array) -> jax.Array:
    return claims.WORD * jnp.arange(bits.shape[-1], dtype=jnp.int32)


def digits(numbers: jax.Array, count: int) -> list[jax.Array]:
    """uint32[..., G] `count` times: the entries of a row whose number int32[..., K] has binary digit 0, 1, .. set."""
    planes = lambda numbers: [bits_of((numbers >> digit) & 1 == 1) for digit in range(count)]  # noqa: E731
    return once(planes, numbers)


def with_number(planes: list[jax.Array], number: jax.Array) -> jax.Array:
    """uint32[..., G]: the entries whose number has the digits of `number` int32[...], of planes as `digits` gives."""
    entries = jnp.uint32(2**32 - 1)
    for digit, plane in enumerate(planes):
        zero = ((number >> digit) & 1).astype(jnp.uint32) - jnp.uint32(1)  # all bits where the digit is 0
        entries = entries & (plane ^ zero[..., None])
    return entries


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
    log = replace(
        log,
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
        claims = known & self.claim
        return claims & row_words(several_values(self.log, by_row(claims, self.log.per_row)), self.log.per_row)

    def best(self, known: jax.Array) -> jax.Array:
        """Subset of known claims: per row the most confident one (the earliest of equals)."""
        per_row = self.log.per_row
        held = by_row(known & self.claim, per_row)
        confidence = (self.log.fixed.T & jnp.uint32(0xFFFF)).astype(jnp.int32)
        # From the highest binary digit down: who has it leaves behind who has not.
        for digit in reversed(digits(confidence, 16)):
            more = held & digit
            held = jnp.where(jnp.any(more != 0, axis=-1, keepdims=True), more, held)
        earliest = first(held, per_row)
        return of_rows(only(jnp.where(earliest < per_row, earliest, -1), held), per_row)


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
    held = by_row(known, log.per_row)[..., None, :]  # [P, M, 1, G]
    planes = [plane[:, None] for plane in _value_digits(log)]
    of_value = with_number(planes, jnp.arange(VALUES, dtype=jnp.int32))  # [M, V, G]
    verdict, accepted = (bits_of(flag(log, bit))[:, None] for bit in (VERDICT, ACCEPT))
    of, about = held & of_value & ~verdict, held & of_value & verdict
    return ValueVotes(
        claims=size(of),
        accepts=size(about & accepted),
        rejects=size(about & ~accepted),
        first=first(of, log.per_row),
        latest=last(of),
    )


def _value_digits(log: Log) -> list[jax.Array]:
    return digits(value(log), (VALUES - 1).bit_length())


def several_values(log: Log, claims: jax.Array) -> jax.Array:
    """bool[..., M]: whether claims uint32[..., M, G] of each row have different values: a binary digit of them does."""
    some = lambda bits: jnp.any(bits != 0, axis=-1)  # noqa: E731
    return functools.reduce(
        jnp.logical_or, [some(claims & digit) & some(claims & ~digit) for digit in _value_digits(log)]
    )


def newest(log: Log, known: jax.Array) -> jax.Array:
    """int32[..., M]: place k of the newest claim known of each row, -1 where none is."""
    return last(by_row(known, log.per_row) & ~bits_of(flag(log, VERDICT)))


def verdict_on(log: Log, known: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32[..., M]: accepts minus rejects known of the claim at place k int32[..., M] of each row, and how many.

    Returns (net, verdicts).
    """
    about = by_row(known, log.per_row) & bits_of(flag(log, VERDICT) & (subject(log) == place[..., None]))
    number = size(about)
    return 2 * size(about & bits_of(flag(log, ACCEPT))) - number, number


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
