"""The claim log: one append-only record of task content, and what each life knows of it as a set of bits.

Place in the log is (row, k), k below a static number of claims per row; bit `row * K + k` of a life's set says that it
knows the claim there. Sending a claim shares a reference, so provenance is exact and a message is an OR. A verdict is
an entry like any other: it speaks of the claim at another k of its row. The garbled form of a claim (what a summary
may turn it into) is an entry too, written beside the claim when the claim is made; nobody knows it until it is sent.

Axis letters: N slot, M row, K claim of a row, L = M K, W = L / 32 words of a set, P parent place.
"""

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from ddpomdp.harness import CLAIMS, DETAILS
from ddpomdp.pytree import once, pytree, where_needed

if TYPE_CHECKING:
    from ddpomdp.byvalue import Choices, ValueMasks

WORD = 32
# Flags of an entry.
RECORDED, VERDICT, TAINTED, UNTRUSTED, HAS_TWIN, IS_TWIN, ACCEPT = (1 << i for i in range(7))
MAX_VALUE = 2**4 - 1


@pytree
class Log:
    """All entries of an episode, packed; read it through `entry`."""

    head: jax.Array  # int32[K,M]   value, flags << 4, origin uid << 11
    fixed: jax.Array  # uint32[K,M]  confidence, luck << 16, both in units of 2**-16
    count: jax.Array  # int32[M]     entries written per row
    said: Any = None  # what the task keeps of the entries that stood here when the last tick ended (`Task.said`)

    @property
    def per_row(self) -> int:
        """K."""
        return self.head.shape[0]


@pytree
class Entry:
    """Entries of the log, any shape."""

    value: jax.Array  # int32  of a verdict: the place k of the claim it speaks of
    flags: jax.Array  # int32
    origin: jax.Array  # int32  uid
    confidence: jax.Array  # int32  in 2**-16


def entry(log: Log, place: jax.Array) -> Entry:
    """Entries at places int32[...] of the log (row * K + k; negative ones read place 0: mask the result)."""
    row, k = row_and_k(place, log.per_row)
    head = log.head[k, row]
    return Entry(
        value=head & MAX_VALUE,
        flags=(head >> 4) & 127,
        origin=head >> 11,
        confidence=(log.fixed[k, row] & jnp.uint32(0xFFFF)).astype(jnp.int32),
    )


def row_and_k(place: jax.Array, per_row: int) -> tuple[jax.Array, jax.Array]:
    """(row, k) of places int32[...]; of negative ones (0, 0). `per_row` is a power of two."""
    place = jnp.maximum(place, 0)
    return place >> (per_row.bit_length() - 1), place & (per_row - 1)


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
    """A log without entries; claims per row divide 32, so that a word holds whole rows, and a verdict names one."""
    if not 1 <= per_row <= MAX_VALUE + 1 or WORD % per_row:
        raise ValueError(f"claims per row: got {per_row}, allowed: 1, 2, 4, 8, 16")
    zero = jnp.zeros((per_row, num_rows), jnp.int32)
    return Log(head=zero, fixed=zero.astype(jnp.uint32), count=zero[0])


def values(log: Log) -> list[jax.Array]:
    """int32[M] per k: the values of entries (of a verdict: the place of the claim it speaks of)."""
    return [log.head[k] & MAX_VALUE for k in range(log.per_row)]


def record(log: Log, new: NewClaims, uid: jax.Array, order: jax.Array) -> tuple[Log, jax.Array, jax.Array]:
    """Write this tick's claims; at most two per row and tick, in `order` int32[N] (distinct), the rest is refused.

    Returns the log, the place int32[N] (-1: not recorded) and refused bool[N]. A claim that would have a twin but
    finds room for itself only is recorded without.
    """
    num_rows, per_row = log.count.shape[0], log.per_row
    row = jnp.where(new.made, new.row, num_rows)  # out of range: dropped
    safe = jnp.minimum(row, num_rows - 1)
    big = jnp.int32(2**30)
    waiting, count = new.made, log.count
    k = jnp.full_like(uid, per_row)
    twin = jnp.zeros_like(new.made)
    for _ in range(min(2, per_row)):
        first = jnp.full(num_rows, big, jnp.int32).at[row].min(jnp.where(waiting, order, big), mode="drop")
        used = count[safe]
        wins = waiting & (first[safe] == order) & (used < per_row)
        twin = twin | (wins & new.twin & (used + 1 < per_row))
        k = jnp.where(wins, used, k)
        count = count.at[jnp.where(wins, safe, num_rows)].add(jnp.where(wins & twin, 2, 1), mode="drop")
        waiting = waiting & ~wins
    written = k < per_row
    both = lambda own, other: jnp.concatenate([own, other])  # noqa: E731
    flags = new.flags | RECORDED | jnp.where(twin, HAS_TWIN, 0)
    head = both(new.value | (flags << 4), new.twin_value | ((RECORDED | IS_TWIN) << 4)) | (both(uid, uid) << 11)
    fixed = jnp.minimum(new.confidence, 2**16 - 1).astype(jnp.uint32) | (new.luck & jnp.uint32(0xFFFF0000))
    at = (both(k, jnp.where(twin, k + 1, per_row)), both(safe, safe))
    log = Log(
        head=log.head.at[at].set(head, mode="drop"),
        fixed=log.fixed.at[at].set(both(fixed, fixed), mode="drop"),
        count=count,
    )
    return log, jnp.where(written, safe * per_row + k, -1), waiting


# Sets --------------------------------------------------------------------------------------------------------------


def num_words(num_rows: int, per_row: int) -> int:
    """W: words of a set."""
    return -(-num_rows * per_row // WORD)


def pack(groups: jax.Array, per_row: int) -> jax.Array:
    """uint32[..., W] of rows given as K-bit numbers int32[..., M]."""
    rows = WORD // per_row
    if groups.shape[-1] % rows:
        groups = jnp.pad(groups, [(0, 0)] * (groups.ndim - 1) + [(0, -groups.shape[-1] % rows)])
    groups = groups.reshape(*groups.shape[:-1], -1, rows).astype(jnp.uint32)
    words = groups[..., 0]
    for i in range(1, rows):  # a sum along so short an axis is not vectorised
        words = words | (groups[..., i] << jnp.uint32(per_row * i))
    return words


def unpack(words: jax.Array, log: Log) -> jax.Array:
    """int32[..., M]: each row's K bits of sets uint32[..., W]."""
    per_row, num_rows = log.per_row, log.count.shape[0]
    rows = WORD // per_row
    groups = words[..., None] >> (per_row * jnp.arange(rows, dtype=jnp.uint32))
    return (groups & jnp.uint32(2**per_row - 1)).astype(jnp.int32).reshape(*words.shape[:-1], -1)[..., :num_rows]


def in_rows(words: jax.Array, log: Log) -> jax.Array:
    """bool[..., M]: whether sets uint32[..., W] hold an entry of each row."""
    if log.per_row <= WORD // 2:
        return unpack(words, log) != 0
    return jnp.any(words.reshape(*words.shape[:-1], log.count.shape[0], -1) != 0, axis=-1)


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


def union_and_shared(words: jax.Array, axis: int = 0) -> tuple[jax.Array, jax.Array]:
    """(union of sets along an axis, what is in two of them at least)."""

    def both(one: tuple[jax.Array, jax.Array], other: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return one[0] | other[0], one[1] | other[1] | (one[0] & other[0])

    none = jnp.uint32(0)
    return lax.reduce((words, jnp.zeros_like(words)), (none, none), both, (axis,))


@pytree
class Facts:
    """What the log says of itself, as K-bit numbers per row (bit k: entry k): makes votes and selections cheap."""

    claim: jax.Array  # int32[M]    entries that are claims, not verdicts
    value: list[jax.Array]  # int32[M] per k
    confidence: list[jax.Array]  # int32[M] per k
    origin: list[jax.Array]  # int32[M] per k
    same: list[jax.Array]  # int32[M] per k: claims with the value of entry k
    before: list[jax.Array]  # int32[M] per k: earlier claims with the value and the origin of entry k
    accepts: list[jax.Array]  # int32[M] per k: verdicts that accept a claim with the value of entry k
    rejects: list[jax.Array]  # int32[M] per k: verdicts that reject one


def facts(log: Log) -> Facts:
    """The facts of a log."""
    claim, same, before, accepts, rejects = once(_relations, log)
    places = range(log.per_row)
    return Facts(
        claim=claim,
        value=values(log),
        confidence=[(log.fixed[k] & jnp.uint32(0xFFFF)).astype(jnp.int32) for k in places],
        origin=[log.head[k] >> 11 for k in places],
        same=same,
        before=before,
        accepts=accepts,
        rejects=rejects,
    )


def _bits(flags: list[jax.Array]) -> jax.Array:
    """int32[M] with bit k from the k-th of flags bool[M]."""
    parts = [flag.astype(jnp.int32) << k for k, flag in enumerate(flags)]
    return functools.reduce(jnp.bitwise_or, parts)


def _flags(log: Log) -> list[jax.Array]:
    return [(log.head[k] >> 4) & 127 for k in range(log.per_row)]


def _claims(log: Log) -> jax.Array:
    """int32[M]: K bits, the entries that are claims."""
    return _bits([(flags & (RECORDED | VERDICT)) == RECORDED for flags in _flags(log)])


def _relations(log: Log) -> tuple[jax.Array, list[jax.Array], list[jax.Array], list[jax.Array], list[jax.Array]]:
    """(claim, same, before, accepts, rejects) of `Facts`."""
    places = range(log.per_row)
    value, flags = values(log), _flags(log)
    origin = [log.head[k] >> 11 for k in places]
    is_verdict = [(f & VERDICT) != 0 for f in flags]
    accepts = [(f & ACCEPT) != 0 for f in flags]
    claim = _claims(log)
    same, before, yes, no = [], [], [], []
    for k in places:
        equal = _bits([value[j] == value[k] for j in places]) & claim
        same.append(equal)
        author = _bits([origin[j] == origin[k] for j in range(k)]) if k else jnp.zeros_like(equal)
        before.append(equal & author)
        # A verdict's value is the place of the claim it speaks of.
        about = [is_verdict[j] & ((equal >> value[j]) & 1 == 1) for j in places]
        yes.append(_bits([about[j] & accepts[j] for j in places]))
        no.append(_bits([about[j] & ~accepts[j] for j in places]))
    return claim, same, before, yes, no


@pytree
class Masks:
    """What the log says of its entries, as sets."""

    claim: jax.Array  # uint32[W]     entries that are claims
    twin: jax.Array  # uint32[W]     claims with a garbled twin in the next place
    tainted: jax.Array  # uint32[W]
    untrusted: jax.Array  # uint32[W]


def masks(log: Log) -> Masks:
    """The masks of a log."""
    flags = _flags(log)
    set_of = lambda flag: pack(_bits([(f & flag) != 0 for f in flags]), log.per_row)  # noqa: E731
    return Masks(
        claim=pack(_claims(log), log.per_row),
        twin=set_of(HAS_TWIN),
        tainted=set_of(TAINTED),
        untrusted=set_of(UNTRUSTED),
    )


@pytree
class Comparisons:
    """How claims of one row compare, as sets: one per distance d = 1 .. K-1 inside a row. For `best` and `disputed`."""

    differ: list[jax.Array]  # uint32[W] per d: claims here and d places on have different values
    above: list[jax.Array]  # uint32[W] per d: the claim d places on is more confident
    below: list[jax.Array]  # uint32[W] per d: the claim d places on is at most as confident


def uncompared(log: Log, claim: jax.Array) -> Comparisons:
    """Where nobody asks."""
    none = [jnp.zeros_like(claim)] * (log.per_row - 1)
    return Comparisons(none, none, none)


def compared(log: Log, claim: jax.Array) -> Comparisons:
    """The comparisons of a log whose claims are the set `claim`."""
    per_row, value = log.per_row, values(log)
    confidence = [log.fixed[k] & jnp.uint32(0xFFFF) for k in range(per_row)]
    differ, above, below = [], [], []
    for d in range(1, per_row):
        pairs = range(per_row - d)
        unequal = pack(_bits([value[k] != value[k + d] for k in pairs]), per_row)
        more = pack(_bits([confidence[k + d] > confidence[k] for k in pairs]), per_row)
        # Both are claims of one row.
        inside = sum(1 << bit for bit in range(WORD) if bit % per_row + d < per_row)
        both = claim & (claim >> jnp.uint32(d)) & jnp.uint32(inside)
        differ.append(both & unequal)
        above.append(both & more)
        below.append(both & ~more)
    return Comparisons(differ, above, below)


def disputed(known: jax.Array, compare: "Comparisons | Choices") -> jax.Array:
    """Subset of known claims uint32[..., W] whose row holds another known claim with a different value."""
    if not isinstance(compare, Comparisons):
        return compare.disputed(known)
    chosen = jnp.zeros_like(known)
    for i, differ in enumerate(compare.differ):
        d = jnp.uint32(i + 1)
        pair = known & (known >> d) & differ
        chosen = chosen | pair | (pair << d)
    return chosen


def best(known: jax.Array, claim: jax.Array, compare: "Comparisons | Choices") -> jax.Array:
    """Subset of known claims: per row the most confident one (the earliest of equals)."""
    if not isinstance(compare, Comparisons):
        return compare.best(known)
    beaten = jnp.zeros_like(known)
    for i, (above, below) in enumerate(zip(compare.above, compare.below, strict=True)):
        d = jnp.uint32(i + 1)
        pair = known & (known >> d)
        beaten = beaten | (pair & above) | ((pair & below) << d)
    return known & claim & ~beaten


def is_comparison(which: jax.Array) -> jax.Array:
    """Whether a choice `which` int32[...] of `CLAIMS` compares claims."""
    return (which == CLAIMS.index("best")) | (which == CLAIMS.index("disputed"))


def select(
    known: jax.Array,
    fresh: jax.Array,
    which: jax.Array,
    m: "Masks | ValueMasks",
    compare: "Comparisons | Choices",
) -> jax.Array:
    """Claims chosen by the token `which` int32[N] of `CLAIMS` from sets uint32[N, W].

    Verdicts go along with `all` and `new`.
    """
    chosen = jnp.where((which == CLAIMS.index("new"))[..., None], known & fresh, known)
    if isinstance(compare, Comparisons):
        return _select_compared(chosen, known, which, m.claim, compare)
    # Comparisons by value are worked out for whole sets, where somebody asks.
    asked = jnp.any(is_comparison(which))
    return where_needed(asked, _select_compared, chosen, chosen, known, which, m.claim, compare)


def _select_compared(
    chosen: jax.Array, known: jax.Array, which: jax.Array, claim: jax.Array, compare: "Comparisons | Choices"
) -> jax.Array:
    """What `select` has chosen, with the choices that compare claims."""
    which = which[..., None]
    chosen = jnp.where(which == CLAIMS.index("best"), best(known, claim, compare), chosen)
    return jnp.where(which == CLAIMS.index("disputed"), disputed(known, compare), chosen)


def told(
    known: jax.Array,
    fresh: jax.Array,
    which: jax.Array,
    detail: jax.Array,
    m: "Masks | ValueMasks",
    compare: "Comparisons | Choices",
) -> jax.Array:
    """Claims chosen by `which` int32[N] as they are told at `detail` int32[N] of `DETAILS`."""
    chosen = select(known, fresh, which, m, compare)
    return at_detail(chosen, detail, m)


def at_detail(chosen: jax.Array, detail: jax.Array, m: "Masks | ValueMasks") -> jax.Array:
    """What of chosen entries uint32[N, W] is told at `detail` int32[N]."""
    summary = (detail == DETAILS.index("summary"))[..., None]
    return jnp.where(summary, summarised(chosen, m), chosen if isinstance(m, Masks) else m.noted(chosen, detail))


def summarised(sent: jax.Array, m: "Masks | ValueMasks") -> jax.Array:
    """What a summary of the set `sent` tells: claims with a twin are replaced by their garbled form."""
    if not isinstance(m, Masks):
        return m.summarised(sent)
    garbled = sent & m.twin
    return (sent & ~garbled) | (garbled << jnp.uint32(1))


def prefix_count(flags: jax.Array) -> jax.Array:
    """int32[..., n]: how many of flags bool[..., n] are set before each place; exclusive prefix sum by bit counts."""
    n = flags.shape[-1]
    words = pack(flags.astype(jnp.int32), 1)
    total, before = jnp.zeros(words.shape[:-1], jnp.int32), []
    for i in range(words.shape[-1]):
        before.append(total)
        total = total + lax.population_count(words[..., i]).astype(jnp.int32)
    lower = (jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32)) - jnp.uint32(1)
    inside = lax.population_count(words[..., None] & lower).astype(jnp.int32)
    return (jnp.stack(before, axis=-1)[..., None] + inside).reshape(*flags.shape[:-1], -1)[..., :n]


def newest(words: jax.Array, count: int) -> list[jax.Array]:
    """int32[...] `count` times: the last places of a set in log order, newest first, -1 where there are fewer."""
    found = []
    base = jnp.arange(words.shape[-1], dtype=jnp.int32) * WORD
    for _ in range(count):
        top = base + (WORD - 1 - lax.clz(words).astype(jnp.int32))
        place = jnp.max(jnp.where(words != 0, top, -1), axis=-1)
        found.append(place)
        words = words & ~bit_of(place, words.shape[-1])
    return found


# Votes -------------------------------------------------------------------------------------------------------------


@pytree
class Votes:
    """What sets of known entries say about each row; lists run over the K places of a row."""

    known: jax.Array  # int32[P,M]  K bits: known claims
    origins: list[jax.Array]  # int32[P,M] per k: distinct origins among known claims with this claim's value
    accepts: list[jax.Array]  # int32[P,M] per k: known verdicts that accept a claim with this value
    rejects: list[jax.Array]  # int32[P,M] per k: known verdicts that reject one


def votes(log: Log, f: Facts, known: jax.Array) -> Votes:
    """Count votes among known entries uint32[P, W]."""
    places = range(log.per_row)
    held = unpack(known, log)
    claims = held & f.claim
    first = jnp.zeros_like(held)  # one claim per value and origin
    for k in places:
        first = first | jnp.where((claims & f.before[k]) == 0, claims & (1 << k), 0)
    count = lax.population_count
    return Votes(
        known=claims,
        origins=[count(first & f.same[k]) for k in places],
        accepts=[count(held & f.accepts[k]) for k in places],
        rejects=[count(held & f.rejects[k]) for k in places],
    )


def winner(score: list[jax.Array], known: jax.Array, f: Facts, tie: jax.Array | None = None) -> jax.Array:
    """int32[P, M]: the k with the highest score among known claims (K bits), -1 if none is known.

    Ties between values are broken by four bits of `tie` uint32[M] per value (the row's luck), then by lower k.
    """
    best, top = jnp.full(known.shape, -(2**30), jnp.int32), jnp.full(known.shape, -1, jnp.int32)
    for k, points in enumerate(score):
        if tie is not None:
            nibble = (tie >> (4 * f.value[k]).astype(jnp.uint32)) & jnp.uint32(15)
            points = points * 16 + nibble.astype(jnp.int32)
        wins = ((known >> k) & 1 == 1) & (points > best)
        best, top = jnp.where(wins, points, best), jnp.where(wins, k, top)
    return top


def at(columns: list[jax.Array], place: jax.Array, empty: int) -> jax.Array:
    """columns[place], elementwise: int32[P, M]; `empty` where place is -1."""
    chosen = jnp.full(place.shape, empty, jnp.int32)
    for k, column in enumerate(columns):
        chosen = jnp.where(place == k, column, chosen)
    return chosen
