"""Handing out work: windows into the task's queue of rows, served as far as slots, lives and the queue allow.

The task's rows form a queue; each life owns a window of it; children get consecutive chunks from the cursor of their
parent's window, at any depth. Axis letters: N slot, P parent place, M row, Q queue place.
"""

from functools import partial

import jax
import jax.numpy as jnp

from ddpomdp import claims
from ddpomdp import luck as luck_
from ddpomdp.byvalue import Choices
from ddpomdp.claims import Comparisons
from ddpomdp.clocks import FAR
from ddpomdp.harness import DELEGATE, SELECTORS, SPAWN, WAIT
from ddpomdp.luck import Purpose
from ddpomdp.params import Params
from ddpomdp.pytree import once, pytree, replace, rows
from ddpomdp.rules import Rules, per_parent
from ddpomdp.state import State
from ddpomdp.turns import Call

NEXT, MISSING, CONFLICTING, AGAIN = range(len(SELECTORS))


@pytree
class Grants:
    """What parents get of what they asked for. Axes P parent place, N slot."""

    holder: jax.Array  # int32[P]    slot, -1 none
    spawns: jax.Array  # bool[P]
    born: jax.Array  # int32[P]    births granted
    role: jax.Array  # int32[P]    role of the newborns
    first_uid: jax.Array  # int32[P]
    first_free: jax.Array  # int32[P]    rank of the first free slot used
    delegates: jax.Array  # bool[P]
    seat: jax.Array  # int32[N]    own parent place while requests are served, -1 none
    target: jax.Array  # bool[N]     child that is handed work
    ordinal: jax.Array  # int32[N]    its place among the children handed work
    handed: jax.Array  # int32[P]    children handed work by delegation
    base: jax.Array  # int32[P]    first queue place handed out (selector `again`: start of the window)
    limit: jax.Array  # int32[P]    end of what can be handed out
    chunk: jax.Array  # int32[P]    rows per child
    again: jax.Array  # bool[P]     the whole window goes out once more
    chunks: jax.Array  # int32[P]    `again`: chunks that the window is cut into
    shift: jax.Array  # int32[P]    `again`: the chunk of the first child
    listed: jax.Array  # bool[P]     rows were picked and appended to the queue
    picked: jax.Array  # bool[P,M]   the rows appended
    brief: jax.Array  # int32[P]
    refused_rows: jax.Array  # int32[P]
    empty: jax.Array  # bool[P]     an empty selection


def grant(
    rules: Rules,
    state: State,
    call: Call,
    leaving: jax.Array,
    order: jax.Array,
    compare: Comparisons | Choices,
    params: Params,
) -> tuple[State, Grants]:
    """Serve this tick's spawns and delegations as far as slots, lives, places and the queue allow."""
    lives = state.lives
    holder = state.place_slot
    held = holder >= 0
    tool = jnp.where(held & ~rows(leaving, holder), rows(call.tool, holder), WAIT)
    at = lambda x: rows(x, holder)  # noqa: E731
    spawns, delegates = tool == SPAWN, tool == DELEGATE

    # Whom a delegation reaches.
    to = at(rules.arg(call, DELEGATE, "to"))
    mine = lives.alive & (lives.home >= 0)
    to_n, delegates_n = rows(to, lives.home), rows(delegates, lives.home)
    idle = lives.returned & ~lives.unread & (lives.arrival_ms <= rows(at(lives.clock_ms), lives.home))
    target = mine & delegates_n & idle & ((to_n == 0) | (lives.rank == to_n - 1)) & ~leaving
    ordinal = jnp.where(to_n == 0, lives.rank, 0)
    handed = per_parent(target, lives.home, holder)

    number = lambda tool, name: rules.number(call, holder, tool, name)  # noqa: E731
    asked = jnp.where(spawns, number(SPAWN, "count"), 0)
    role = number(SPAWN, "role")
    selector = jnp.where(delegates, at(rules.arg(call, DELEGATE, "rows")), NEXT)
    chunk = jnp.where(spawns, number(SPAWN, "chunk"), number(DELEGATE, "chunk"))
    brief = jnp.where(spawns, number(SPAWN, "brief"), number(DELEGATE, "brief"))
    workers = jnp.where(spawns, asked, handed)

    # What can be handed out.
    start, end, cursor = at(lives.start), at(lives.end), at(lives.cursor)
    span = end - start
    first = target & (ordinal == 0)
    asked_of = jnp.max(
        jnp.where(first[None, :] & (lives.home[None, :] == jnp.arange(holder.shape[0])[:, None]), lives.role, 0), axis=1
    )
    selection = selected(rules, state, holder, selector, asked_of, compare, params)  # bool[P, M]
    position = claims.prefix_count(selection)
    upcoming = jnp.maximum(end - cursor, 0)
    if rules.passes > 1:  # a delegation ends with a pass
        num_rows = rules.task.num_rows
        upcoming = jnp.where(delegates, jnp.minimum(upcoming, num_rows - cursor % num_rows), upcoming)
    available = jnp.where(selector == AGAIN, span, upcoming)
    listed = (selector == MISSING) | (selector == CONFLICTING)
    if rules.hands_over:  # the task picks the rows of `again` too
        listed = listed | (selector == AGAIN)
    available = jnp.where(listed, jnp.sum(selection, axis=-1, dtype=jnp.int32), available)
    chunk = jnp.where(chunk < 0, (available + workers - 1) // jnp.maximum(workers, 1), chunk)
    wanted_rows = jnp.minimum(available, chunk * workers)

    # Serve in order: births from free slots and lives, appended rows from the queue's rest.
    free = jnp.sum(~lives.alive, dtype=jnp.int32)
    lives_left = jnp.asarray(rules.config.max_lives, jnp.int32) - state.born
    room = jnp.int32(state.queue.shape[0]) - state.queue_len
    num_places = holder.shape[0]
    born = jnp.zeros(num_places, jnp.int32)
    first_free, base_list, appended = born, born, born
    queue, queue_len, births = state.queue, state.queue_len, jnp.int32(0)
    in_turn = jnp.argsort(jnp.where(held, at(order), FAR)) if num_places > 1 else jnp.zeros(1, jnp.int32)
    for i in range(num_places):
        j = in_turn[i]
        here = jnp.arange(num_places) == j
        got = jnp.where(spawns[j], jnp.minimum(jnp.minimum(asked[j], free), lives_left[role[j]]), 0)
        born = jnp.where(here, got, born)
        first_free = jnp.where(here, births, first_free)
        births, free = births + got, free - got
        lives_left = lives_left.at[role[j]].add(-got)
        add = jnp.where(delegates[j] & listed[j], jnp.minimum(wanted_rows[j], room), 0)
        base_list = jnp.where(here, queue_len, base_list)
        appended = jnp.where(here, add, appended)
        queue = jax.lax.cond(add > 0, _append, lambda q, *_: q, queue, queue_len, selection[j], position[j], add)
        queue_len, room = queue_len + add, room - add
    base = jnp.where(listed, base_list, cursor)
    # A hand-out of coming rows ends where they do: of one pass, or of the window.
    limit = jnp.where(listed, base_list + appended, jnp.where(selector == AGAIN, end, cursor + upcoming))
    again = delegates & (selector == AGAIN) & ~listed
    base = jnp.where(again, start, base)
    chunks = jnp.maximum((span + chunk - 1) // jnp.maximum(chunk, 1), 1)
    hands = (spawns & (born > 0)) | (delegates & (handed > 0))
    return replace(state, queue=queue, queue_len=queue_len), Grants(
        holder=holder,
        spawns=spawns,
        born=born,
        role=role,
        first_uid=state.next_uid + first_free,
        first_free=first_free,
        delegates=delegates,
        seat=lives.place,
        target=target,
        ordinal=ordinal,
        handed=handed,
        base=base,
        limit=limit,
        chunk=chunk,
        again=again,
        chunks=chunks,
        shift=(at(lives.again) + 1) % chunks,  # one chunk on: another child's rows
        listed=delegates & listed,
        picked=selection & (position < appended[:, None]),
        brief=brief,
        refused_rows=jnp.where(delegates & listed, wanted_rows - appended, 0),
        empty=hands & (available == 0),
    )


def nothing(rules: Rules, state: State) -> Grants:
    """Of a tick in which nobody spawns or delegates."""
    p, n, m = state.place_slot.shape[0], state.lives.uid.shape[0], rules.task.num_rows
    zero, no, table = jnp.zeros(p, jnp.int32), jnp.zeros(p, bool), jnp.zeros((p, m), jnp.int32)
    return Grants(
        holder=state.place_slot,
        spawns=no,
        born=zero,
        role=zero,
        first_uid=zero,
        first_free=zero,
        delegates=no,
        seat=state.lives.place,
        target=jnp.zeros(n, bool),
        ordinal=jnp.zeros(n, jnp.int32),
        handed=zero,
        base=zero,
        limit=zero,
        chunk=zero,
        again=no,
        chunks=zero + 1,
        shift=zero,
        listed=no,
        picked=table > 0,
        brief=zero,
        refused_rows=zero,
        empty=no,
    )


def births_asked(rules: Rules, call: Call) -> jax.Array:
    """int32[N]: births that each life's call asks for."""
    count = jnp.asarray(rules.offered[SPAWN, "count"])[rules.arg(call, SPAWN, "count")]
    return jnp.where(call.tool == SPAWN, count, 0)


def handed_out(rules: Rules, state: State) -> jax.Array:
    """bool[P, M]: rows of its own window that each parent has handed out or worked on itself."""
    lives, holder, num_rows = state.lives, state.place_slot, rules.task.num_rows
    start, cursor = rows(lives.start, holder), rows(lives.cursor, holder)
    if rules.topology.max_parents == 1:  # the root's window is the task itself: queue place = row, pass by pass
        return _between(start, jnp.minimum(cursor, rules.passes * num_rows), num_rows)
    place = jnp.arange(state.queue.shape[0], dtype=jnp.int32)[None, :]
    inside = (place >= start[:, None]) & (place < cursor[:, None])
    return jax.vmap(lambda mask: jnp.zeros(num_rows, bool).at[state.queue].max(mask))(inside)


def selected(
    rules: Rules,
    state: State,
    holder: jax.Array,
    selector: jax.Array,
    role: jax.Array,
    compare: Comparisons | Choices,
    params: Params,
) -> jax.Array:
    """bool[P, M]: rows that `missing` or `conflicting` picks for each parent, among those it has handed out.

    `role` int32[P] is that of the first child asked, which a task may heed.
    """
    known, handed = rows(state.lives.known, holder), handed_out(rules, state)
    if rules.hands_over:
        return rules.further.select(state.task, state.log, known, selector, role, handed, params.task)
    held = claims.unpack(known & state.masks.claim, state.log)
    disputed = claims.unpack(claims.disputed(known, compare), state.log)
    return handed & jnp.where((selector == MISSING)[:, None], held == 0, disputed != 0)


def _between(start: jax.Array, end: jax.Array, num_rows: int) -> jax.Array:
    """bool[..., M]: rows at queue places start to end - 1 of a queue that holds the rows in order, pass by pass."""
    offset = jnp.arange(num_rows, dtype=jnp.int32) - (start % num_rows)[..., None]
    return jnp.where(offset < 0, offset + num_rows, offset) < (end - start)[..., None]


def window_rows(rules: Rules, grants: Grants, place: jax.Array, ordinal: jax.Array) -> jax.Array:
    """bool[N, M]: rows in the window of the `ordinal`-th child of each slot's `place` (one parent: the root)."""
    start, end = windows(grants, place, ordinal)
    plain = _between(start, end, rules.task.num_rows)
    at = lambda x: rows(x, place)  # noqa: E731
    where = grants.base[0] + claims.prefix_count(grants.picked[0])
    listed = grants.picked[0] & (where >= start[:, None]) & (where < end[:, None])
    return jnp.where(at(grants.listed)[:, None], listed, plain)


def entries_given(
    rules: Rules, state: State, grants: Grants, handed: jax.Array, ordinal: jax.Array, params: Params
) -> jax.Array:
    """uint32[N, W]: entries that go to the children bool[N] `handed` with their rows, by the task's own rule."""
    lives = state.lives
    window = window_rows(rules, grants, lives.home, ordinal)
    parent = rows(rows(lives.known, grants.holder), lives.home)
    level = rows(grants.brief, lives.home)
    words = rules.further.hand_over(state.log, state.masks, parent, window, lives.uid, lives.role, level)
    return jnp.where(handed[:, None], words, jnp.uint32(0))


def _append(
    queue: jax.Array, length: jax.Array, selection: jax.Array, position: jax.Array, count: jax.Array
) -> jax.Array:
    """Write the first `count` selected rows behind the queue's end."""
    index = jnp.where(selection & (position < count), length + position, queue.shape[0])
    return queue.at[index].set(jnp.arange(selection.shape[0], dtype=jnp.int32), mode="drop")


def windows(grants: Grants, place: jax.Array, ordinal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(start, end) int32[N] of the window handed to the `ordinal`-th child of each slot's `place`."""
    at = lambda x: rows(x, place)  # noqa: E731
    index = jnp.where(at(grants.again), (ordinal + at(grants.shift)) % at(grants.chunks), ordinal)
    start = at(grants.base) + index * at(grants.chunk)
    limit = at(grants.limit)
    return jnp.minimum(start, limit), jnp.minimum(start + at(grants.chunk), limit)


def number_given(rules: Rules, state: State, grants: Grants, params: Params) -> jax.Array:
    """int32[P]: claims that each parent writes down for the children it hands work to."""
    children = once(partial(entries_given, rules), state, grants, grants.target, grants.ordinal, params)
    mine = grants.target[None, :] & (state.lives.home[None, :] == jnp.arange(grants.holder.shape[0])[:, None])
    told = once(lambda children, claim: claims.size(children & claim), children, state.masks.claim)
    number = jnp.sum(jnp.where(mine, told[None, :], 0), axis=-1, dtype=jnp.int32)
    # The unborn get consecutive rows, at the first level, and each claim once.
    num_rows = rules.task.num_rows
    child = jnp.arange(told.shape[0], dtype=jnp.int32)
    start = grants.base[:, None] + child * grants.chunk[:, None]  # [P, N]
    length = jnp.where(
        child < grants.born[:, None], jnp.minimum(grants.limit[:, None] - start, grants.chunk[:, None]), 0
    )
    inside = _between(start, start + length, num_rows)
    times = once(lambda inside: jnp.sum(inside, axis=1, dtype=jnp.int32), inside)
    parent = rows(state.lives.known, grants.holder)
    every = jnp.ones((parent.shape[0], num_rows), bool)
    level, nobody = jnp.zeros_like(grants.role), jnp.full_like(grants.role, -1)
    unborn = rules.further.hand_over(state.log, state.masks, parent, every, nobody, grants.role, level)
    # At the first level: at most one claim a row.
    has = once(lambda unborn: claims.in_rows(unborn & state.masks.claim, state.log), unborn)
    return number + jnp.where(grants.spawns, jnp.sum(times * has, axis=-1, dtype=jnp.int32), 0)


def hand_out(
    rules: Rules, luck: jax.Array, state: State, grants: Grants, newborn: jax.Array, params: Params
) -> tuple[State, jax.Array]:
    """Newborns and idle children get windows; a badly understood brief may copy a sibling's. Parents move on.

    Returns the claims that children take over from their parent, uint32[N, W].
    """
    lives = state.lives
    place, handed = lives.home, newborn | grants.target
    born = jnp.where(state.ended, 0, grants.born)
    siblings = rows(jnp.where(grants.spawns, born, grants.handed), place)
    ordinal = jnp.where(newborn, lives.rank, grants.ordinal)
    k0, k1 = luck_.life_key(luck, lives.lineage)
    words = once(luck_.threefry, k0, k1, lives.turn, jnp.uint32(Purpose.HANDOUT))
    understood, copies = rules.task.brief(rows(grants.brief, place), words, params.task)
    step = 1 + luck_.below(words[1], 16, 16, siblings - 1)
    other = ordinal + jnp.where(copies & (siblings > 1), step, 0)
    other = jnp.where(other >= siblings, other - siblings, other)
    start, end = windows(grants, place, other)
    parent = rows(grants.holder, place)
    from_ms = jnp.maximum(lives.clock_ms, rows(lives.clock_ms, parent))
    set_ = lambda new, old: jnp.where(handed, new, old)  # noqa: E731
    own_start, own_end = windows(grants, place, ordinal)
    taken = jnp.zeros_like(lives.known)
    if rules.hands_over:
        taken = entries_given(rules, state, grants, handed, ordinal, params)
    elif rules.task.hands_claims:
        takes = handed & rules.task.takes_claims(lives.role)
        taken = jnp.where(takes[:, None], rows(rows(lives.known, grants.holder), place), taken)
    lives = replace(
        lives,
        clock_ms=set_(from_ms, lives.clock_ms),
        handed_ms=set_(from_ms, lives.handed_ms),
        since_ms=set_(from_ms, lives.since_ms),
        steps=set_(jnp.maximum(lives.steps, rows(lives.steps, parent)), lives.steps),
        returned=lives.returned & ~grants.target,
        start=set_(start, lives.start),
        end=set_(end, lives.end),
        cursor=set_(start, lives.cursor),
        brief=set_(rows(grants.brief, place), lives.brief),
        again=set_(0, lives.again),
        fresh=jnp.where(handed[:, None], jnp.uint32(0), lives.fresh),
        handed_rows=set_(own_end - own_start, lives.handed_rows),
        task=rules.task.handed(lives.task, handed, understood),
    )
    workers = jnp.where(grants.spawns, born, grants.handed)
    state = move_on(replace(state, lives=lives), grants, workers)
    if rules.topology.max_parents == 1:
        given = dealt(state.assigned.shape[0], rules.passes, grants, workers)
    else:
        counted = handed & (lives.role != 0)  # what goes to a sub-lead is counted when it hands it on
        given = coverage(state.queue, state.assigned.shape[0], counted, own_start, own_end)
    return replace(state, assigned=state.assigned + given), taken


def move_on(state: State, grants: Grants, workers: jax.Array) -> State:
    """Advance the windows of parents that handed work to `workers` int32[P]."""
    lives = state.lives
    own = lambda x: rows(x, lives.place)  # noqa: E731
    hands = (lives.place >= 0) & (own(workers) > 0)
    again = hands & own(grants.again)
    onward = hands & ~again & ~own(grants.listed)
    taken = jnp.minimum(lives.cursor + own(grants.chunk * workers), jnp.maximum(own(grants.limit), lives.cursor))
    lives = replace(
        lives,
        cursor=jnp.where(onward, taken, lives.cursor),
        again=jnp.where(again, own(grants.shift), lives.again),
    )
    return replace(state, lives=lives)


def dealt(num_rows: int, passes: int, grants: Grants, workers: jax.Array) -> jax.Array:
    """int32[M]: how often each row is in what the only parent hands to `workers` int32[1], all of them no leads.

    The root's window is the task itself: queue place = row, pass by pass. The same numbers as `coverage`, without a
    prefix sum.
    """
    row = jnp.arange(num_rows, dtype=jnp.int32)
    base, chunk, count = grants.base[0], grants.chunk[0], workers[0]
    if passes > 1:  # tasks with passes list the rows of `again`
        place = jnp.arange(passes * num_rows, dtype=jnp.int32)
        ahead = (place >= base) & (place < jnp.minimum(base + chunk * count, grants.limit[0]))
        times = jnp.sum(ahead.reshape(passes, num_rows), axis=0, dtype=jnp.int32)
        return jnp.where(count > 0, jnp.where(grants.listed[0], grants.picked[0], times), 0)
    ahead = (row >= base) & (row < jnp.minimum(base + chunk * count, grants.limit[0]))
    # `again`: the chunk of a row, counted from the first child's, comes once in every round of the children.
    whole = lambda a, b: jnp.floor(a / jnp.maximum(b, 1).astype(jnp.float32)).astype(jnp.int32)  # noqa: E731
    chunks = grants.chunks[0]
    place = whole(row - base + 0.5, chunk) - grants.shift[0]
    place = jnp.where(place < 0, place + chunks, place)
    rounds = whole(count - 1 - place + chunks + 0.5, chunks)
    inside = (row >= base) & (row < grants.limit[0])
    times = jnp.where(grants.listed[0], grants.picked[0], ahead).astype(jnp.int32)
    times = jnp.where(grants.again[0], jnp.where(inside, rounds, 0), times)
    return jnp.where(count > 0, times, 0)


def coverage(queue: jax.Array, num_rows: int, counted: jax.Array, start: jax.Array, end: jax.Array) -> jax.Array:
    """int32[M]: how often each row lies in the windows [start, end) of bool[N] `counted`."""
    num_places = queue.shape[0]
    change = jnp.zeros(num_places + 1, jnp.int32)
    change = change.at[jnp.where(counted, start, FAR)].add(1, mode="drop")
    change = change.at[jnp.where(counted, end, FAR)].add(-1, mode="drop")
    return jnp.zeros(num_rows, jnp.int32).at[queue].add(jnp.cumsum(change, dtype=jnp.int32)[:num_places])
