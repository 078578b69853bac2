"""The claim log: one append-only record of task content, and what each life knows of it as a set of bits.

Place in the log is (row, k), k below a static number of claims per row; bit `row * K + k` of a life's set says that it
knows the claim there. Sending a claim shares a reference, so provenance is exact and a message is an OR. A verdict is
an entry like any other: it speaks of the claim at another k of its row. The garbled form of a claim (what a summary
may turn it into) is an entry too, written beside the claim when the claim is made; nobody knows it until it is sent.

Axis letters: N slot, M row, K claim of a row, L = M K, W = L / 32 words of a set, P parent place.
"""

import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp.harness import CLAIMS
from ddpomdp.pytree import pytree, replace

WORD = 32
# Columns of an entry.
VALUE, CONFIDENCE, ORIGIN, ORIGIN_SLOT, LUCK, FLAGS = range(6)
COLUMNS = 6
# Bits of FLAGS.
RECORDED, VERDICT, TAINTED, UNTRUSTED, HAS_TWIN, IS_TWIN, ACCEPT = (1 << i for i in range(7))


@pytree
class Log:
    """All claims of an episode, as integers (confidence and luck in units of 2**-16)."""

    entries: jax.Array  # int32[L,6]  value, confidence, origin uid, origin slot, luck, flags
    count: jax.Array  # int32[M]    entries written per row

    @property
    def per_row(self) -> int:
        """K."""
        return self.entries.shape[0] // self.count.shape[0]

    def column(self, index: int) -> jax.Array:
        """One column as int32[M, K]."""
        return self.entries[:, index].reshape(self.count.shape[0], self.per_row)

    def flag(self, bit: int) -> jax.Array:
        """bool[M, K]: entries with a flag set."""
        return (self.column(FLAGS) & bit) != 0


@pytree
class NewClaims:
    """What task tools produced in a tick, one place per slot."""

    made: jax.Array  # bool[N]
    row: jax.Array  # int32[N]
    value: jax.Array  # int32[N]     of a verdict: the k of the claim judged
    confidence: jax.Array  # int32[N]
    luck: jax.Array  # uint32[N]    fixed luck of the claim
    flags: jax.Array  # int32[N]
    twin: jax.Array  # bool[N]      a summary garbles this claim
    twin_value: jax.Array  # int32[N]


def empty_log(num_rows: int, per_row: int) -> Log:
    """A log without entries; claims per row must divide 32, so that a word of a set holds whole rows."""
    if per_row < 1 or WORD % per_row:
        raise ValueError(f"claims per row: got {per_row}, allowed: 1, 2, 4, 8, 16, 32")
    return Log(
        entries=jnp.zeros((num_rows * per_row, COLUMNS), jnp.int32).at[:, ORIGIN].set(-1),
        count=jnp.zeros(num_rows, jnp.int32),
    )


def record(log: Log, new: NewClaims, uid: jax.Array, order: jax.Array) -> tuple[Log, jax.Array, jax.Array]:
    """Write this tick's claims; at most two per row and tick, in `order` int32[N] (distinct), the rest is refused.

    Returns the log, the place int32[N] (-1: not recorded) and refused bool[N]. A claim that would have a twin but
    finds room for itself only is recorded without.
    """
    num_rows, per_row = log.count.shape[0], log.per_row
    row = jnp.where(new.made, new.row, num_rows)  # out of range: dropped
    big = jnp.int32(2**30)
    place = jnp.full(uid.shape, -1, jnp.int32)
    waiting = new.made
    slots = jnp.arange(uid.shape[0], dtype=jnp.int32)
    entries, count = log.entries, log.count
    for _ in range(min(2, per_row)):
        first = jnp.full(num_rows, big, jnp.int32).at[row].min(jnp.where(waiting, order, big), mode="drop")
        safe = jnp.minimum(row, num_rows - 1)
        used = count[safe]
        wins = waiting & (first[safe] == order) & (used < per_row)
        twin = wins & new.twin & (used + 1 < per_row)
        index = jnp.where(wins, safe * per_row + used, log.entries.shape[0])
        flags = new.flags | RECORDED | jnp.where(twin, HAS_TWIN, 0)
        luck = (new.luck >> jnp.uint32(16)).astype(jnp.int32)
        entry = jnp.stack([new.value, new.confidence, uid, slots, luck, flags], axis=-1)
        entries = entries.at[index].set(entry, mode="drop")
        twin_index = jnp.where(twin, index + 1, log.entries.shape[0])
        twin_flags = jnp.full_like(flags, RECORDED | IS_TWIN)
        twin_entry = jnp.stack([new.twin_value, new.confidence, uid, slots, luck, twin_flags], axis=-1)
        entries = entries.at[twin_index].set(twin_entry, mode="drop")
        count = count.at[jnp.where(wins, safe, num_rows)].add(1 + twin.astype(jnp.int32), mode="drop")
        place = jnp.where(wins, index, place)
        waiting = waiting & ~wins
    return replace(log, entries=entries, count=count), place, waiting


# Sets --------------------------------------------------------------------------------------------------------------


def num_words(num_rows: int, per_row: int) -> int:
    """W: words of a set."""
    return -(-num_rows * per_row // WORD)


def pack(flags: jax.Array) -> jax.Array:
    """uint32[..., W] of bool[..., L]."""
    pad = [(0, 0)] * (flags.ndim - 1) + [(0, -flags.shape[-1] % WORD)]
    bits = jnp.pad(flags, pad).reshape(*flags.shape[:-1], -1, WORD).astype(jnp.uint32)
    return jnp.sum(bits << jnp.arange(WORD, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)


def unpack(words: jax.Array, log: Log) -> jax.Array:
    """bool[..., M, K] of uint32[..., W]."""
    bits = (words[..., None] >> jnp.arange(WORD, dtype=jnp.uint32)) & jnp.uint32(1)
    flat = bits.reshape(*words.shape[:-1], -1)[..., : log.entries.shape[0]]
    return flat.reshape(*words.shape[:-1], log.count.shape[0], log.per_row).astype(bool)


def bit_of(place: jax.Array, num_words: int) -> jax.Array:
    """uint32[..., W] with the bit of `place` int32[...] set; nothing for -1."""
    word = jnp.arange(num_words, dtype=jnp.int32)
    bit = jnp.uint32(1) << (place & (WORD - 1)).astype(jnp.uint32)
    here = (place[..., None] >= 0) & (word == (place[..., None] >> 5))
    return jnp.where(here, bit[..., None], jnp.uint32(0))


def size(words: jax.Array) -> jax.Array:
    """int32[...]: number of claims in a set."""
    return jnp.sum(lax.population_count(words), axis=-1).astype(jnp.int32)


def union(words: jax.Array, axis: int = 0) -> jax.Array:
    """Union of sets along an axis."""
    return lax.reduce(words, jnp.uint32(0), lax.bitwise_or, (axis,))


@pytree
class Masks:
    """Facts about the log, as sets, that make selections cheap: one entry per distance d = 1 .. K-1 inside a row."""

    claim: jax.Array  # uint32[W]     entries that are claims (not verdicts)
    twin: jax.Array  # uint32[W]     entries with a garbled twin in the next place
    differ: jax.Array  # uint32[K-1,W] claims here and d places on have different values
    above: jax.Array  # uint32[K-1,W] the claim d places on is more confident
    below: jax.Array  # uint32[K-1,W] the claim d places on is at most as confident


def masks(log: Log) -> Masks:
    """The masks of a log."""
    claim = log.flag(RECORDED) & ~log.flag(VERDICT)
    value, confidence = log.column(VALUE), log.column(CONFIDENCE)
    per_row = log.per_row
    differ, above, below = [], [], []
    for d in range(1, per_row):
        both = jnp.zeros_like(claim).at[:, :-d].set(claim[:, :-d] & claim[:, d:])
        here, there = slice(None, per_row - d), slice(d, None)
        pad = ((0, 0), (0, d))
        differ.append(pack((both & jnp.pad(value[:, here] != value[:, there], pad)).reshape(-1)))
        more = jnp.pad(confidence[:, there] > confidence[:, here], pad)
        above.append(pack((both & more).reshape(-1)))
        below.append(pack((both & ~more).reshape(-1)))
    none = jnp.zeros((0, num_words(*claim.shape)), jnp.uint32)
    return Masks(
        claim=pack(claim.reshape(-1)),
        twin=pack(log.flag(HAS_TWIN).reshape(-1)),
        differ=jnp.stack(differ) if differ else none,
        above=jnp.stack(above) if above else none,
        below=jnp.stack(below) if below else none,
    )


def disputed(known: jax.Array, m: Masks) -> jax.Array:
    """Subset of known claims uint32[..., W] whose row holds another known claim with a different value."""
    chosen = jnp.zeros_like(known)
    for i in range(m.differ.shape[0]):
        d = jnp.uint32(i + 1)
        pair = known & (known >> d) & m.differ[i]
        chosen = chosen | pair | (pair << d)
    return chosen


def best(known: jax.Array, m: Masks) -> jax.Array:
    """Subset of known claims: per row the most confident one (the earliest of equals)."""
    beaten = jnp.zeros_like(known)
    for i in range(m.above.shape[0]):
        d = jnp.uint32(i + 1)
        pair = known & (known >> d)
        beaten = beaten | (pair & m.above[i]) | ((pair & m.below[i]) << d)
    return known & m.claim & ~beaten


def select(known: jax.Array, fresh: jax.Array, which: jax.Array, m: Masks) -> jax.Array:
    """Claims chosen by the token `which` int32[N] of `CLAIMS` from sets uint32[N, W]; verdicts go along with `all`."""
    which = which[..., None]
    chosen = jnp.where(which == CLAIMS.index("new"), known & fresh, known)
    chosen = jnp.where(which == CLAIMS.index("best"), best(known, m), chosen)
    return jnp.where(which == CLAIMS.index("disputed"), disputed(known, m), chosen)


def summarised(sent: jax.Array, m: Masks) -> jax.Array:
    """What a summary of the set `sent` tells: claims with a twin are replaced by their garbled form."""
    garbled = sent & m.twin
    return (sent & ~garbled) | (garbled << jnp.uint32(1))


def newest(words: jax.Array, count: int) -> jax.Array:
    """int32[..., count]: the last places of a set in log order, newest first, -1 where there are fewer."""
    found = []
    base = jnp.arange(words.shape[-1], dtype=jnp.int32) * WORD
    for _ in range(count):
        top = base + (WORD - 1 - lax.clz(words).astype(jnp.int32))
        place = jnp.max(jnp.where(words != 0, top, -1), axis=-1)
        found.append(place)
        words = words & ~bit_of(place, words.shape[-1])
    return jnp.stack(found, axis=-1)


# Votes -------------------------------------------------------------------------------------------------------------


@pytree
class Tally:
    """What a set of known entries says about each row, per claim place."""

    known: jax.Array  # bool[P,M,K]   known claims (no verdicts)
    origins: jax.Array  # int32[P,M,K]  distinct origins among known claims with this claim's value
    accepts: jax.Array  # int32[P,M,K]  known verdicts that accept a claim with this value
    rejects: jax.Array  # int32[P,M,K]  known verdicts that reject one


def tally(log: Log, known: jax.Array) -> Tally:
    """Count votes among known entries uint32[P, W]."""
    num_rows, per_row = log.count.shape[0], log.per_row
    held = unpack(known, log)
    is_verdict = log.flag(VERDICT)
    claim = held & ~is_verdict & log.flag(RECORDED)
    verdict = held & is_verdict
    value, origin, accept = log.column(VALUE), log.column(ORIGIN), log.flag(ACCEPT)
    first, judged = [], []
    for k in range(per_row):
        repeat = jnp.zeros_like(claim[..., k])
        for j in range(k):
            same = (value[:, j] == value[:, k]) & (origin[:, j] == origin[:, k])
            repeat = repeat | (claim[..., j] & same)
        first.append(claim[..., k] & ~repeat)
        # The value of the claim a verdict at k speaks of.
        target = jnp.full(num_rows, -1, jnp.int32)
        for j in range(per_row):
            target = jnp.where((value[:, k] == j) & ~is_verdict[:, j], value[:, j], target)
        judged.append(target)
    origins, accepts, rejects = [], [], []
    for k in range(per_row):
        votes = sum((first[j] & (value[:, j] == value[:, k])).astype(jnp.int32) for j in range(per_row))
        about = [verdict[..., j] & (judged[j] == value[:, k]) for j in range(per_row)]
        yes = sum((about[j] & accept[:, j]).astype(jnp.int32) for j in range(per_row))
        no = sum((about[j] & ~accept[:, j]).astype(jnp.int32) for j in range(per_row))
        origins.append(jnp.where(claim[..., k], votes, 0))
        accepts.append(jnp.where(claim[..., k], yes, 0))
        rejects.append(jnp.where(claim[..., k], no, 0))
    stack = lambda parts: jnp.stack(parts, axis=-1)  # noqa: E731
    return Tally(known=claim, origins=stack(origins), accepts=stack(accepts), rejects=stack(rejects))


def winner(score: jax.Array, known: jax.Array, value: jax.Array, tie: jax.Array) -> jax.Array:
    """int32[P, M]: the k with the highest score among known claims, -1 if none is known.

    Ties between values are broken by four bits of `tie` uint32[M] per value (the row's luck), then by lower k.
    """
    nibble = (tie[:, None] >> (4 * value).astype(jnp.uint32)) & jnp.uint32(15)
    key = jnp.where(known, score * 16 + nibble.astype(jnp.int32), -(2**30))
    return jnp.where(jnp.any(known, axis=-1), jnp.argmax(key, axis=-1).astype(jnp.int32), -1)
