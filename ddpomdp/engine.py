"""The engine: the fixed order of moves that a step is.

A turn flows one way: check -> grants and costs -> returns, despawns -> messages, delegations -> task tools ->
aggregation -> ends -> spawns -> removal -> gate, waits, mail -> legality. Every effect reads the state at the start of
the tick unless it says otherwise. Shared limits serve requests in the order of parent's uid, then uid.

Axis letters: N slot, P parent place, M row, K claim of a row, W words of a claim set, Q queue place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import claims as claims_
from ddpomdp import clocks as clocks_
from ddpomdp import luck as luck_
from ddpomdp import messages as messages_
from ddpomdp.claims import Masks
from ddpomdp.clocks import FAR
from ddpomdp.enums import Group, ResultCode, StopReason
from ddpomdp.harness import (
    AGGREGATE,
    BOUNDS,
    DELEGATE,
    DESPAWN,
    DETAILS,
    FIRST_TASK_TOOL,
    GROUPS,
    MESSAGE,
    RETURN,
    SELECTORS,
    SPAWN,
    STOP,
    WAIT,
    WAIT_FOR,
    Harness,
    Legal,
)
from ddpomdp.luck import Purpose
from ddpomdp.messages import Posted
from ddpomdp.params import Params
from ddpomdp.pytree import once, pytree, replace, rows
from ddpomdp.state import Lives, Mail, State, Totals
from ddpomdp.task import Task, Worked, Working
from ddpomdp.topology import Topology

NEXT, MISSING, CONFLICTING, AGAIN = range(len(SELECTORS))


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and rules that need a new compilation when changed."""

    capacity: int  # N
    max_lives: tuple[int, ...]  # per role
    max_ticks: int
    max_turns: int | None  # turns other than wait, all agents together
    max_tokens: int | None
    roster: int  # R
    observed_claims: int  # C
    frozen_roles: tuple[int, ...]
    lead_blocks: bool
    strict_order: bool  # only the smallest clock acts: the slow reference schedule


@pytree
class Call:
    """A tick's turns, checked. Axis N slot."""

    tool: jax.Array  # int32[N]    executed tool; WAIT for illegal and forced turns
    args: list[jax.Array]  # int32[N] per argument position, 0 where the turn was illegal
    acts: jax.Array  # bool[N]     takes a turn of its own
    valid: jax.Array  # bool[N]
    legal_count: jax.Array  # int32[N]
    is_decision: jax.Array  # bool[N]


@pytree
class Grants:
    """What parents get of what they asked for. Axes P parent place, N slot."""

    holder: jax.Array  # int32[P]    slot, -1 none
    spawns: jax.Array  # bool[P]
    asked: jax.Array  # int32[P]    births asked for
    born: jax.Array  # int32[P]    births granted
    role: jax.Array  # int32[P]    role of the newborns
    first_uid: jax.Array  # int32[P]
    first_free: jax.Array  # int32[P]    rank of the first free slot used
    delegates: jax.Array  # bool[P]
    target: jax.Array  # bool[N]     child that is handed work
    ordinal: jax.Array  # int32[N]    its place among the children handed work
    handed: jax.Array  # int32[P]    children handed work by delegation
    base: jax.Array  # int32[P]    first queue place handed out (selector `again`: offset in the window)
    limit: jax.Array  # int32[P]    end of what can be handed out
    chunk: jax.Array  # int32[P]    rows per child
    again: jax.Array  # bool[P]     windows wrap around inside the parent's window
    listed: jax.Array  # bool[P]     rows were picked and appended to the queue
    picked: jax.Array  # bool[P,M]   the rows appended
    to_workers: jax.Array  # bool[P]     work goes to lives that do not hand it on
    brief: jax.Array  # int32[P]
    appended: jax.Array  # int32[P]    rows appended to the queue
    refused_rows: jax.Array  # int32[P]
    empty: jax.Array  # bool[P]     an empty selection


class Engine:
    """`step` and the moves it is made of. Holds static settings only; use it through `ddpomdp.env.Env`."""

    def __init__(self, task: Task, harness: Harness, topology: Topology, config: Config, offered: Mapping):
        """Bind the static parts; `offered` maps (tool, argument) to the numbers its values stand for."""
        self.task, self.harness, self.topology, self.config = task, harness, topology, config
        self.offered = {name: np.asarray(values, np.int32) for name, values in offered.items()}

    # Reset -------------------------------------------------------------------------------------------------------

    def reset(self, key: jax.Array, luck: jax.Array, params: Params) -> State:
        """The state before the first turn: the root alone, its window the whole queue."""
        task, config = self.task, self.config
        n, p, m = config.capacity, self.topology.max_parents, task.num_rows
        words = claims_.num_words(m, task.per_row)
        slots = jnp.arange(n, dtype=jnp.int32)
        root = slots == 0
        zeros, no = jnp.zeros(n, jnp.int32), jnp.zeros(n, bool)
        lives = Lives(
            alive=root,
            uid=jnp.where(root, 0, -1),
            role=zeros,
            depth=zeros,
            lineage=jnp.where(root[:, None], jnp.asarray(luck_.ROOT_LINEAGE, jnp.uint32), jnp.uint32(0)),
            home=zeros - 1,
            place=jnp.where(root, 0, -1),
            turn=zeros,
            clock_ms=zeros,
            steps=zeros,
            since_ms=zeros,
            blocked=no,
            waiting=zeros,
            wait_left=zeros,
            deadline_ms=zeros,
            lifted=no,
            returned=no,
            unread=no,
            arrival_ms=zeros,
            offer=jnp.zeros((n, 2), jnp.int32),
            offered=zeros,
            ever_returned=no,
            start=zeros,
            end=jnp.where(root, m, 0),
            cursor=zeros,
            brief=jnp.where(root, 2, 0),
            handed_ms=zeros,
            planned=no,
            again=zeros,
            rank=zeros,
            known=jnp.zeros((n, words), jnp.uint32),
            fresh=jnp.zeros((n, words), jnp.uint32),
            newest=jnp.full((n, config.observed_claims), -1, jnp.int32),
            load=jnp.zeros(n, jnp.float32),
            spent=zeros,
            unreported=zeros,
            last_tool=zeros - 1,
            last_code=zeros,
            last_value=zeros - 1,
            task=task.life(n),
        )
        mail = Mail(
            claims=jnp.zeros((n, words), jnp.uint32),
            count=zeros,
            arrival_ms=zeros,
            steps=zeros,
            sender=zeros - 1,
            load=jnp.zeros(n, jnp.float32),
        )
        queue = jnp.where(jnp.arange(4 * m) < m, jnp.arange(4 * m), 0).astype(jnp.int32)
        zero = jnp.int32(0)
        totals = Totals(
            tokens=jnp.zeros(4, jnp.int32),
            **{name: zero for name in Totals.__dataclass_fields__ if name != "tokens"},
        )
        facts = task.init(key, luck, params.task)
        answer = jnp.zeros(m, jnp.int32)
        state = State(
            lives=lives,
            mail=mail,
            log=claims_.empty_log(m, task.per_row),
            legal=Legal(tools=zeros, whom=zeros, bounds=jnp.zeros((n, len(BOUNDS)), jnp.int32)),
            place_slot=jnp.where(jnp.arange(p) == 0, 0, -1).astype(jnp.int32),
            queue=queue,
            queue_len=jnp.int32(m),
            assigned=jnp.zeros(m, jnp.int32),
            answer=answer,
            answer_origin=jnp.full((m, 2), -1, jnp.int32),
            told_root=jnp.zeros(words, jnp.uint32),
            quality=task.quality(facts, answer),
            late=jnp.zeros(sum(config.max_lives), jnp.float32),
            next_uid=jnp.int32(1),
            born=jnp.zeros(len(task.roles), jnp.int32).at[0].set(1),
            totals=totals,
            task=facts,
            tick=zero,
            ended=jnp.bool_(False),
            stop_reason=zero,
        )
        return replace(state, legal=self.legal(state, params))

    # Turns -------------------------------------------------------------------------------------------------------

    def arg(self, call: Call, tool: int, name: str, default: int = 0) -> jax.Array:
        """int32[N]: token of an argument of `tool`; `default` where the grammar has left it out."""
        for position, argument in enumerate(self.harness.tools[tool].arguments):
            if argument.name == name:
                return call.args[position]
        return jnp.full_like(call.tool, default)

    def number(self, call: Call, holder: jax.Array, tool: int, name: str) -> jax.Array:
        """int32[P]: the number an argument of each parent's call stands for (rows, children, level; -1: even split)."""
        return jnp.asarray(self.offered[tool, name])[rows(self.arg(call, tool, name), holder)]

    def check(self, state: State, turns: jax.Array) -> Call:
        """Who acts, and with which call: illegal turns become `wait`, forced turns are waits."""
        lives, harness = state.lives, self.harness
        acts = lives.alive & ~lives.returned & ~lives.blocked & ~state.ended
        ok = harness.is_legal(state.legal, turns)
        takes = acts & ok
        count = jnp.where(lives.alive & ~state.ended, harness.legal_count(state.legal), 0)
        return Call(
            tool=jnp.where(takes, turns[:, 0], WAIT),
            args=[jnp.where(takes, turns[:, 1 + i], 0) for i in range(harness.num_args)],
            acts=acts,
            valid=ok & lives.alive & ~state.ended,
            legal_count=count,
            is_decision=acts & (count > 1),
        )

    def order_key(self, state: State) -> jax.Array:
        """int32[N]: shared limits serve requests by this key: parent's uid, then uid."""
        lives = state.lives
        parent = jnp.where(lives.home >= 0, rows(lives.uid, rows(state.place_slot, lives.home)), -1)
        return (parent + 1) * jnp.int32(sum(self.config.max_lives) + 1) + lives.uid

    # Grants ------------------------------------------------------------------------------------------------------

    def grant(
        self, state: State, call: Call, masks: Masks, leaving: jax.Array, order: jax.Array
    ) -> tuple[State, Grants]:
        """Serve this tick's spawns and delegations as far as slots, lives, places and the queue allow."""
        lives = state.lives
        spawner = (call.tool == SPAWN) & ~leaving
        state = self._seat(state, spawner, order)
        lives = state.lives
        holder = state.place_slot
        held = holder >= 0
        tool = jnp.where(held & ~rows(leaving, holder), rows(call.tool, holder), WAIT)
        at = lambda x: rows(x, holder)  # noqa: E731
        spawns, delegates = tool == SPAWN, tool == DELEGATE

        # Whom a delegation reaches.
        to = at(self.arg(call, DELEGATE, "to"))
        mine = lives.alive & (lives.home >= 0)
        to_n, delegates_n = rows(to, lives.home), rows(delegates, lives.home)
        idle = lives.returned & ~lives.unread
        target = mine & delegates_n & idle & ((to_n == 0) | (lives.rank == to_n - 1)) & ~leaving
        ordinal = jnp.where(to_n == 0, lives.rank, 0)
        handed = _count(target, lives.home, holder)

        number = lambda tool, name: self.number(call, holder, tool, name)  # noqa: E731
        asked = jnp.where(spawns, number(SPAWN, "count"), 0)
        role = number(SPAWN, "role")
        selector = jnp.where(delegates, at(self.arg(call, DELEGATE, "rows")), NEXT)
        chunk = jnp.where(spawns, number(SPAWN, "chunk"), number(DELEGATE, "chunk"))
        brief = jnp.where(spawns, number(SPAWN, "brief"), number(DELEGATE, "brief"))
        workers = jnp.where(spawns, asked, handed)

        # What can be handed out.
        start, end, cursor = at(lives.start), at(lives.end), at(lives.cursor)
        span = end - start
        selection = self._selection(state, masks, holder, selector)  # bool[P, M]
        available = jnp.where(selector == AGAIN, span, jnp.maximum(end - cursor, 0))
        listed = (selector == MISSING) | (selector == CONFLICTING)
        available = jnp.where(listed, jnp.sum(selection, axis=-1, dtype=jnp.int32), available)
        chunk = jnp.where(chunk < 0, _ceil_div(available, jnp.maximum(workers, 1)), chunk)
        wanted_rows = jnp.minimum(available, chunk * workers)

        # Serve in order: births from free slots and lives, appended rows from the queue's rest.
        free = jnp.sum(~lives.alive, dtype=jnp.int32)
        lives_left = jnp.asarray(self.config.max_lives, jnp.int32) - state.born
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
            queue = jax.lax.cond(add > 0, _append, lambda q, *_: q, queue, queue_len, selection[j], add)
            queue_len, room = queue_len + add, room - add
        base = jnp.where(listed, base_list, cursor)
        limit = jnp.where(listed, base_list + appended, end)
        again = delegates & (selector == AGAIN)
        base = jnp.where(again, at(lives.again) + chunk, base)  # one chunk on: another child's rows
        hands = (spawns & (born > 0)) | (delegates & (handed > 0))
        return replace(state, queue=queue, queue_len=queue_len), Grants(
            holder=holder,
            spawns=spawns,
            asked=asked,
            born=born,
            role=role,
            first_uid=state.next_uid + first_free,
            first_free=first_free,
            delegates=delegates,
            target=target,
            ordinal=ordinal,
            handed=handed,
            base=base,
            limit=limit,
            chunk=chunk,
            again=again,
            listed=delegates & listed,
            picked=selection & (jnp.cumsum(selection, axis=-1, dtype=jnp.int32) <= appended[:, None]),
            to_workers=jnp.where(spawns, role != 0, _count(target & (lives.role != 0), lives.home, holder) > 0),
            brief=brief,
            appended=appended,
            refused_rows=jnp.where(delegates & listed, wanted_rows - appended, 0),
            empty=hands & (available == 0),
        )

    def _seat(self, state: State, spawner: jax.Array, order: jax.Array) -> State:
        """Give spawners without a parent place one of the free places, in order."""
        num_places = state.place_slot.shape[0]
        if num_places == 1:
            return state
        lives, place_slot, place = state.lives, state.place_slot, state.lives.place
        waiting = jnp.where(spawner & (place < 0), order, FAR)
        for _ in range(num_places - 1):  # the root always has a place
            slot = jnp.argmin(waiting).astype(jnp.int32)
            free = jnp.argmin(place_slot >= 0).astype(jnp.int32)
            fits = (waiting[slot] < FAR) & (place_slot[free] < 0)
            place_slot = place_slot.at[free].set(jnp.where(fits, slot, place_slot[free]))
            place = place.at[slot].set(jnp.where(fits, free, place[slot]))
            waiting = waiting.at[slot].set(FAR)
        return replace(state, place_slot=place_slot, lives=replace(lives, place=place))

    def _selection(self, state: State, masks: Masks, holder: jax.Array, selector: jax.Array) -> jax.Array:
        """bool[P, M]: rows that `missing` or `conflicting` picks, for each parent, among rows it has handed out."""
        lives, log, m = state.lives, state.log, masks
        known = rows(lives.known, holder)
        per_row = lambda words: jnp.any(claims_.unpack(words, log), axis=-1)  # noqa: E731
        place = jnp.arange(state.queue.shape[0], dtype=jnp.int32)[None, :]
        inside = (place >= rows(lives.start, holder)[:, None]) & (place < rows(lives.cursor, holder)[:, None])
        if self.topology.max_parents == 1:  # the root's window is the task itself: queue place = row
            handed = inside[:, : log.count.shape[0]]
        else:
            handed = jax.vmap(lambda mask: jnp.zeros(log.count.shape, bool).at[state.queue].max(mask))(inside)
        missing = handed & ~per_row(known & m.claim)
        return jnp.where((selector == MISSING)[:, None], missing, per_row(claims_.disputed(known, m)))

    def windows(
        self, grants: Grants, lives: Lives, place: jax.Array, ordinal: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(start, end) int32[N] of the window handed to the `ordinal`-th child of each slot's `place`."""
        at = lambda x: rows(x, place)  # noqa: E731
        holder = rows(grants.holder, place)
        start = at(grants.base) + ordinal * at(grants.chunk)
        end = jnp.minimum(start + at(grants.chunk), at(grants.limit))
        start = jnp.minimum(start, at(grants.limit))
        own_start, own_end = rows(lives.start, holder), rows(lives.end, holder)
        span = own_end - own_start
        offset = (at(grants.base) + ordinal * at(grants.chunk)) % jnp.maximum(span, 1)
        again_start = own_start + offset
        again_end = jnp.minimum(again_start + at(grants.chunk), own_end)
        again = at(grants.again)
        return jnp.where(again, again_start, start), jnp.where(again, again_end, end)

    # The step ----------------------------------------------------------------------------------------------------

    def step(self, luck: jax.Array, state: State, turns: jax.Array, params: Params) -> tuple[State, "Tick"]:
        """One tick: turns int32[N, 1+A] of all slots; only living, running, unblocked lives act."""
        before = state
        call = once(self.check, state, turns)
        masks, order, leaving = once(self.overview, state, call)
        state, grants = once(self.grant, state, call, masks, leaving, order)
        seat = state.lives.place
        chosen, sent, sent_count = once(self.payload, state, call, masks)
        board = once(self.read, state, call, masks, params)
        bill = once(self.bill, luck, state, call, grants, sent_count, board, params)
        state = once(self.charge, state, call, bill, params)
        state = once(self.hand_back, state, call, leaving, sent_count, bill)
        state, posted = once(self.send, state, call, leaving, chosen, sent, sent_count, params)
        state = once(self.delegate, state, grants, bill, params)
        state, worked, place, refused_claim = once(self.work, before, state, call, masks, order, bill, params)
        state, gain = once(self.settle, state, board, params)
        state = once(self.end, state, call, bill)
        state, born = once(self.bear, luck, before, state, grants, params)
        state, lost_mail = once(self.remove, state, leaving)
        state, received, opened = once(self.open_mail, state, board, masks, worked, place, params)
        state = replace(state, legal=once(self.legal, state, params))
        tick = Tick(
            before=before,
            call=call,
            order=order,
            grants=grants,
            bill=bill,
            leaving=leaving,
            sent_count=sent_count,
            posted=posted,
            worked=worked,
            place=place,
            refused_claim=refused_claim,
            board=board,
            gain=gain,
            born=born,
            lost_mail=lost_mail,
            opened=opened,
            empty_sent=((call.tool == MESSAGE) | (call.tool == RETURN)) & (sent_count == 0),
            seat=seat,
            received=received,
        )
        return self.account(state, tick), tick

    def overview(self, state: State, call: Call) -> tuple[Masks, jax.Array, jax.Array]:
        """The log's masks, the order in which shared limits serve, and who leaves in this tick."""
        return claims_.masks(state.log), self.order_key(state), self.leaving(state, call)

    def leaving(self, state: State, call: Call) -> jax.Array:
        """bool[N]: children whose parent despawns them in this tick."""
        lives = state.lives
        who = self.arg(call, DESPAWN, "who")
        despawns = rows(call.tool, state.place_slot) == DESPAWN
        despawns = despawns & (state.place_slot >= 0)
        target = jnp.where(despawns, rows(who, state.place_slot), -1)
        return lives.alive & (lives.home >= 0) & (rows(target, lives.home) == lives.rank)

    def payload(self, state: State, call: Call, masks: Masks) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(claims chosen, claims as told) uint32[N, W] and how many int32[N], of messages and returns."""
        lives = state.lives
        messages, returns = call.tool == MESSAGE, call.tool == RETURN
        sends = messages | returns
        which = jnp.where(messages, self.arg(call, MESSAGE, "claims"), self.arg(call, RETURN, "claims"))
        chosen = claims_.select(lives.known, lives.fresh, which, masks)
        chosen = jnp.where(sends[:, None], chosen, jnp.uint32(0))
        summary = self.arg(call, MESSAGE, "detail") == DETAILS.index("summary")
        told = jnp.where(summary[:, None], claims_.summarised(chosen, masks), chosen)
        return chosen, told, claims_.size(chosen)

    def read(self, state: State, call: Call, masks: Masks, params: Params) -> "Board":
        """What aggregating parents read and decide: returns that have arrived by their clock, then the rule."""
        lives, log, holder = state.lives, state.log, state.place_slot
        at = lambda x: rows(x, holder)  # noqa: E731
        reads = (holder >= 0) & (at(call.tool) == AGGREGATE)
        place = jnp.arange(holder.shape[0], dtype=jnp.int32)[:, None]
        unread = lives.alive & lives.returned & lives.unread
        read = unread[None, :] & (lives.home[None, :] == place) & reads[:, None]
        read = read & (lives.arrival_ms[None, :] <= at(lives.clock_ms)[:, None])  # [P, N]
        offers = claims_.select(lives.known, lives.fresh, lives.offer[:, 0], masks)
        summary = lives.offer[:, 1] == DETAILS.index("summary")
        offers = jnp.where(summary[:, None], claims_.summarised(offers, masks), offers)
        heard = claims_.union(jnp.where(read[:, :, None], offers[None], jnp.uint32(0)), axis=1)
        reading = params.reading
        weight = reading.per_message + lives.offered.astype(jnp.float32) * reading.per_claim[lives.offer[:, 1]]
        load = at(lives.load) + jnp.sum(jnp.where(read, weight[None, :], 0.0), axis=-1)
        known = at(lives.known)
        kept = heard & ~known & self.survivors(state, load, params)
        known = known | kept
        rule = at(self.arg(call, AGGREGATE, "rule"))
        answer, winner, keep = self.task.aggregate(state.task, log, known, rule, params.task)
        some = jnp.any(claims_.unpack(known & masks.claim, log), axis=-1)
        num_rows = jnp.sum(some, axis=-1, dtype=jnp.int32)
        own = lambda x, other: jnp.where(lives.place >= 0, rows(x, lives.place), other)  # noqa: E731
        return Board(
            reads=reads,
            read=jnp.any(read, axis=0),
            heard=heard,
            kept=jnp.where(reads[:, None], kept, jnp.uint32(0)),
            load=jnp.where(reads, load, at(lives.load)),
            answer=answer,
            winner=winner,
            keep=claims_.pack(keep.reshape(keep.shape[0], -1)),
            num_rows=own(num_rows, 0),
            spent=own(jnp.sum(jnp.where(read, lives.unreported[None, :], 0), axis=-1, dtype=jnp.int32), 0),
            steps=own(jnp.max(jnp.where(read, lives.steps[None, :], 0), axis=-1), 0),
            refused=(call.tool == AGGREGATE) & (lives.place < 0),
        )

    def survivors(self, state: State, load: jax.Array, params: Params) -> jax.Array:
        """uint32[P, W]: entries whose fixed luck survives a reading load f32[P]."""
        share = params.reading.capacity / jnp.maximum(load, params.reading.capacity)
        luck = state.log.entries[:, claims_.LUCK].astype(jnp.float32) * jnp.float32(2.0**-16)
        return claims_.pack(luck[None, :] < share[:, None])

    def bill(
        self,
        luck: jax.Array,
        state: State,
        call: Call,
        grants: Grants,
        sent_count: jax.Array,
        board: "Board",
        params: Params,
    ) -> "Bill":
        """Tokens, duration and critical steps of this tick's calls."""
        lives, charges, tool = state.lives, params.charges, call.tool
        own = lambda x: jnp.where(lives.place >= 0, rows(x, lives.place), 0)  # noqa: E731
        hands = jnp.where(grants.spawns, grants.born, jnp.where(grants.delegates, grants.handed, 0))
        briefed = hands * charges.brief_tokens[grants.brief]
        if self.task.hands_claims:  # what a child is handed to work on has to be written down
            takes = self.task.takes_claims
            chosen = _count(grants.target & takes(lives.role), lives.home, grants.holder)
            takers = jnp.where(grants.spawns, takes(grants.role) * grants.born, chosen)
            briefed = briefed + takers * grants.chunk * charges.claim_tokens[DETAILS.index("full")]
        hands, briefed = own(hands), own(briefed)
        is_hand = (tool == SPAWN) | (tool == DELEGATE)
        plans = is_hand & ~lives.planned & (hands > 0)
        detail = jnp.where(tool == MESSAGE, self.arg(call, MESSAGE, "detail"), self.arg(call, RETURN, "detail"))
        sends = (tool == MESSAGE) | (tool == RETURN)
        orchestration = jnp.where(is_hand, charges.hand_tokens + briefed, 0)
        orchestration = orchestration + jnp.where(plans, charges.plan_tokens, 0)
        aggregates = tool == AGGREGATE
        orchestration = orchestration + jnp.where(
            aggregates, charges.aggregate_tokens + charges.row_tokens * board.num_rows, 0
        )
        orchestration = orchestration + jnp.where(tool == DESPAWN, charges.despawn_tokens, 0)
        message = jnp.where(sends, charges.send_tokens + sent_count * charges.claim_tokens[detail], 0)
        work_tokens, work_steps, outside = self.task.cost(tool, params.task)
        work = jnp.where(outside, 0, work_tokens)
        outside_tokens = jnp.where(outside, work_tokens, 0)
        tokens = jnp.stack([work, orchestration, message, outside_tokens], axis=-1)
        life_keys = luck_.life_key(luck, lives.lineage)
        words = luck_.threefry(*life_keys, lives.turn, jnp.uint32(Purpose.SERVICE))
        total = work_tokens + orchestration + message
        calls = call.acts & (tool != WAIT)
        latency = jnp.where(calls, clocks_.latency_ms(params.service, words, total, outside), 0)
        steps = work_steps + jnp.where(is_hand, hands * charges.child_steps, 0)
        steps = steps + jnp.where(plans, charges.plan_steps, 0) + jnp.where(aggregates, charges.aggregate_steps, 0)
        return Bill(
            tokens=tokens,
            total=total,
            latency_ms=latency,
            end_ms=lives.clock_ms + latency,
            steps=jnp.maximum(lives.steps, board.steps) + steps,
            calls=calls,
            plans=plans,
            life_keys=life_keys,
        )

    def charge(self, state: State, call: Call, bill: "Bill", params: Params) -> State:
        """Move clocks and meters; waits are asked for."""
        lives = state.lives
        waits = call.acts & (call.tool == WAIT)
        below = clocks_.children(lives, state.place_slot)
        out = jnp.where(lives.place >= 0, rows(below.out, lives.place), 0)
        lives = clocks_.ask(lives, waits, self.arg(call, WAIT, "for"), out, params.service)
        hands = (call.tool == SPAWN) | (call.tool == DELEGATE)
        lives = replace(
            lives,
            turn=lives.turn + call.acts.astype(jnp.int32),
            clock_ms=lives.clock_ms + bill.latency_ms,
            steps=bill.steps,
            spent=lives.spent + bill.total,
            unreported=lives.unreported + bill.total,
            lifted=lives.lifted & ~hands,
            last_tool=jnp.where(call.acts, call.tool, lives.last_tool),
        )
        return replace(state, lives=lives)

    def hand_back(self, state: State, call: Call, leaving: jax.Array, sent_count: jax.Array, bill: "Bill") -> State:
        """Returns: the worker is idle and unread until its parent reads it."""
        lives = state.lives
        returns = (call.tool == RETURN) & ~leaving
        offer = jnp.stack([self.arg(call, RETURN, "claims"), self.arg(call, RETURN, "detail")], axis=-1)
        lives = replace(
            lives,
            returned=lives.returned | returns,
            unread=lives.unread | returns,
            ever_returned=lives.ever_returned | returns,
            arrival_ms=jnp.where(returns, jnp.maximum(bill.end_ms, lives.since_ms), lives.arrival_ms),
            offer=jnp.where(returns[:, None], offer, lives.offer),
            offered=jnp.where(returns, sent_count, lives.offered),
        )
        return replace(state, lives=lives)

    def send(
        self,
        state: State,
        call: Call,
        leaving: jax.Array,
        chosen: jax.Array,
        sent: jax.Array,
        sent_count: jax.Array,
        params: Params,
    ) -> tuple[State, Posted]:
        """Messages go into mailbox places."""
        is_message = call.tool == MESSAGE
        to = self.arg(call, MESSAGE, "to")
        reading = params.reading
        detail = self.arg(call, MESSAGE, "detail")
        mail, posted = messages_.post(
            state.mail,
            state.lives,
            state.place_slot,
            leaving,
            group=jnp.where(is_message & (to < len(GROUPS)), to + 1, Group.NONE),
            row=jnp.where(is_message & (to >= len(GROUPS)), to - len(GROUPS), -1),
            sent=sent,
            load=reading.per_message + sent_count.astype(jnp.float32) * reading.per_claim[detail],
            end_ms=state.lives.clock_ms,
            steps=state.lives.steps,
            peers=self.topology.peers,
        )
        told = jnp.where(is_message[:, None], chosen, jnp.uint32(0))
        lives = replace(state.lives, fresh=state.lives.fresh & ~told)
        return replace(state, mail=mail, lives=lives), posted

    def delegate(self, state: State, grants: Grants, bill: "Bill", params: Params) -> State:
        """Idle children are handed new windows; the parent's own window moves on."""
        lives = state.lives
        keys = bill.life_keys
        words = luck_.threefry(*keys, lives.turn, jnp.uint32(Purpose.HANDOUT))
        siblings = rows(grants.handed, lives.home)
        lives = self._hand(lives, grants, grants.target, lives.home, grants.ordinal, siblings, words, params)
        start = jnp.maximum(lives.clock_ms, rows(lives.clock_ms, rows(grants.holder, lives.home)))
        steps = jnp.maximum(lives.steps, rows(lives.steps, rows(grants.holder, lives.home)))
        target = grants.target
        lives = replace(
            lives,
            clock_ms=jnp.where(target, start, lives.clock_ms),
            handed_ms=jnp.where(target, start, lives.handed_ms),
            since_ms=jnp.where(target, start, lives.since_ms),
            steps=jnp.where(target, steps, lives.steps),
            returned=lives.returned & ~target,
        )
        return self._move_on(replace(state, lives=lives), grants, grants.delegates & (grants.handed > 0), grants.handed)

    def _hand(self, lives, grants, handed, place, ordinal, siblings, words, params):
        """Give windows to the lives in `handed`; a badly understood brief may copy a sibling's window."""
        understood, copies = self.task.brief(rows(grants.brief, place), words, params.task)
        step = 1 + (words[1] >> jnp.uint32(16)).astype(jnp.int32) % jnp.maximum(siblings - 1, 1)
        other = jnp.where(copies & (siblings > 1), (ordinal + step) % jnp.maximum(siblings, 1), ordinal)
        start, end = self.windows(grants, lives, place, other)
        known = lives.known
        if self.task.hands_claims:
            takes = handed & self.task.takes_claims(lives.role)
            known = jnp.where(takes[:, None], known | rows(rows(known, grants.holder), place), known)
        return replace(
            lives,
            start=jnp.where(handed, start, lives.start),
            end=jnp.where(handed, end, lives.end),
            cursor=jnp.where(handed, start, lives.cursor),
            brief=jnp.where(handed, rows(grants.brief, place), lives.brief),
            again=jnp.where(handed, 0, lives.again),
            fresh=jnp.where(handed[:, None], jnp.uint32(0), lives.fresh),
            known=known,
            task=self.task.handed(lives.task, handed, understood),
        )

    def _move_on(self, state: State, grants: Grants, hands: jax.Array, workers: jax.Array) -> State:
        """Advance the windows of parents bool[P] that handed work to `workers` int32[P], and note which rows went."""
        lives = state.lives
        own = lambda x: rows(x, lives.place)  # noqa: E731
        mine = (lives.place >= 0) & own(hands)
        onward = mine & ~own(grants.again) & ~own(grants.listed)
        taken = jnp.minimum(lives.cursor + own(grants.chunk * workers), jnp.maximum(lives.end, lives.cursor))
        span = jnp.maximum(lives.end - lives.start, 1)
        lives = replace(
            lives,
            cursor=jnp.where(onward, taken, lives.cursor),
            again=jnp.where(mine & own(grants.again), own(grants.base) % span, lives.again),
            planned=lives.planned | mine,
        )
        # Rows handed to workers; what goes to a sub-lead is counted when it hands it on.
        m = state.assigned.shape[0]
        place = jnp.arange(state.queue.shape[0], dtype=jnp.int32)[None, :]
        counted = (hands & grants.to_workers)[:, None]
        amount = (grants.chunk * workers)[:, None]
        until = jnp.minimum(grants.base[:, None] + amount, grants.limit[:, None])
        region = (place >= grants.base[:, None]) & (place < until)
        first, last = rows(lives.start, grants.holder)[:, None], rows(lives.end, grants.holder)[:, None]
        around = (place - first - grants.base[:, None]) % jnp.maximum(last - first, 1) < amount
        region = jnp.where(grants.again[:, None], around & (place >= first) & (place < last), region)
        region = region & counted & ~grants.listed[:, None]
        if self.topology.max_parents == 1:
            given = jnp.sum(region[:, :m], axis=0, dtype=jnp.int32)
        else:
            total = jnp.sum(region, axis=0, dtype=jnp.int32)
            given = jnp.zeros(m, jnp.int32).at[state.queue].add(total)
        picked = grants.picked & counted & grants.listed[:, None]
        given = given + jnp.sum(picked, axis=0, dtype=jnp.int32)
        return replace(state, lives=lives, assigned=state.assigned + given)

    def work(
        self, before: State, state: State, call: Call, masks: Masks, order: jax.Array, bill: "Bill", params: Params
    ) -> tuple[State, Worked, jax.Array, jax.Array]:
        """Task tools act; their claims enter the log."""
        lives = before.lives
        worked = self.task.act(
            before.task,
            state.lives.task,
            Working(
                tool=jnp.where(call.acts, call.tool, WAIT),
                argument=call.args[0],
                role=lives.role,
                uid=lives.uid,
                row=before.queue[jnp.clip(lives.cursor, 0, before.queue.shape[0] - 1)],
                has_row=lives.cursor < lives.end,
                known=lives.known,
                newest=lives.newest,
                claims=masks.claim,
                life_keys=bill.life_keys,
                turn=lives.turn,
            ),
            before.log,
            params.task,
        )
        log, place, refused = claims_.record(before.log, worked.claims, lives.uid, order)
        core = (call.tool < FIRST_TASK_TOOL) & call.acts
        code = jnp.where(core, jnp.where(call.valid, ResultCode.DONE, ResultCode.ILLEGAL), worked.code)
        code = jnp.where(refused, ResultCode.REFUSED, code)
        acts = call.acts
        lives = replace(
            state.lives,
            task=worked.life,
            cursor=state.lives.cursor + worked.advance.astype(jnp.int32),
            last_code=jnp.where(acts, code, state.lives.last_code),
            last_value=jnp.where(acts, worked.value, state.lives.last_value),
        )
        return replace(state, lives=lives, log=log), worked, place, refused

    def settle(self, state: State, board: "Board", params: Params) -> tuple[State, jax.Array]:
        """The root's aggregation becomes the answer; returns each slot's marginal gain in quality f32[N]."""
        lives, log = state.lives, state.log
        reads = board.reads[0]  # the root holds place 0
        answer = jnp.where(reads, board.answer[0], state.answer)
        winner = board.winner[0]
        k = jnp.maximum(winner, 0)[:, None]
        of = lambda column: jnp.take_along_axis(log.column(column), k, axis=1)[:, 0]  # noqa: E731
        origin = jnp.stack([of(claims_.ORIGIN), of(claims_.ORIGIN_SLOT)], axis=-1)
        origin = jnp.where((winner >= 0)[:, None], origin, -1)
        origin = jnp.where(reads, origin, state.answer_origin)
        gains = jnp.where(reads, self.task.gains(state.task, state.answer, answer), 0.0)
        author = jnp.where((origin[:, :1] >= 0), origin, state.answer_origin)  # a retracted row: its former author
        uid, slot = author[:, 0], author[:, 1]
        here = (uid >= 0) & (rows(lives.uid, slot) == uid)
        gain = jnp.zeros(lives.uid.shape, jnp.float32).at[jnp.where(here, slot, FAR)].add(gains, mode="drop")
        late = state.late.at[jnp.where((uid >= 0) & ~here, uid, FAR)].add(gains, mode="drop")
        # Parents who read: what they know, what it cost them, what their children spent.
        own = lambda x: rows(x, lives.place)  # noqa: E731
        mine = (lives.place >= 0) & own(board.reads)
        prunes = mine & (lives.uid != 0)
        known = jnp.where(prunes[:, None], lives.known & own(board.keep), lives.known)
        lives = replace(
            lives,
            unread=lives.unread & ~board.read,
            unreported=jnp.where(board.read, 0, lives.unreported + board.spent),
            spent=lives.spent + board.spent,
            load=jnp.where(mine, own(board.load), lives.load),
            known=known,
            lifted=lives.lifted,
        )
        quality = jnp.where(reads, self.task.quality(state.task, answer), state.quality)
        told = jnp.where(reads, state.told_root | board.heard[0], state.told_root)
        return replace(
            state, lives=lives, answer=answer, answer_origin=origin, quality=quality, late=late, told_root=told
        ), gain

    def end(self, state: State, call: Call, bill: "Bill") -> State:
        """Whether the episode ends in this tick, and why: stopped, budget, horizon in this precedence."""
        config, totals = self.config, state.totals
        tokens = totals.tokens + jnp.sum(bill.tokens, axis=0, dtype=jnp.int32)
        turns = totals.turns + jnp.sum(bill.calls, dtype=jnp.int32)
        stopped = jnp.any((call.tool == STOP) & call.acts)
        spent = jnp.bool_(False)
        if config.max_turns is not None:
            spent = spent | (turns >= config.max_turns)
        if config.max_tokens is not None:
            spent = spent | (jnp.sum(tokens) >= config.max_tokens)
        tick = state.tick + jnp.where(state.ended, 0, 1)
        horizon = tick >= config.max_ticks
        reason = jnp.where(horizon, StopReason.HORIZON, StopReason.RUNNING)
        reason = jnp.where(spent, StopReason.BUDGET, reason)
        reason = jnp.where(stopped, StopReason.STOPPED, reason).astype(jnp.int32)
        return replace(
            state,
            tick=tick,
            ended=state.ended | (reason > 0),
            stop_reason=jnp.where(state.ended, state.stop_reason, reason),
            totals=replace(totals, tokens=tokens, turns=turns),
        )

    def bear(
        self, luck: jax.Array, before: State, state: State, grants: Grants, params: Params
    ) -> tuple[State, jax.Array]:
        """Births, in slots that were free at the start of the tick; none in an ending tick. Returns bool[N]."""
        lives = state.lives
        born = jnp.where(state.ended, 0, grants.born)
        free = ~before.lives.alive
        rank = jnp.cumsum(free, dtype=jnp.int32) - 1
        place = jnp.arange(born.shape[0], dtype=jnp.int32)[:, None]
        first = grants.first_free[:, None]
        here = free[None, :] & (rank[None, :] >= first) & (rank[None, :] < first + born[:, None])  # [P, N]
        newborn = jnp.any(here, axis=0)
        home = jnp.sum(jnp.where(here, place, 0), axis=0)
        ordinal = rank - rows(grants.first_free, home)
        parent = rows(grants.holder, home)
        at = lambda x: rows(x, parent)  # noqa: E731
        lineage = luck_.child_lineage(at(lives.lineage), at(before.lives.turn), ordinal)
        start, zero = at(lives.clock_ms), jnp.zeros_like(home)
        fill = lambda new, old: jnp.where(newborn.reshape(-1, *(1,) * (old.ndim - 1)), new, old)  # noqa: E731
        role = fill(rows(grants.role, home), lives.role)
        fresh_task = jax.tree.map(fill, self.task.life(newborn.shape[0]), lives.task)
        lives = Lives(
            alive=lives.alive | newborn,
            uid=fill(rows(grants.first_uid, home) + ordinal, lives.uid),
            role=role,
            depth=fill(at(lives.depth) + 1, lives.depth),
            lineage=fill(lineage, lives.lineage),
            home=fill(home, lives.home),
            place=fill(-1, lives.place),
            turn=fill(0, lives.turn),
            clock_ms=fill(start, lives.clock_ms),
            steps=fill(at(lives.steps), lives.steps),
            since_ms=fill(start, lives.since_ms),
            blocked=fill(False, lives.blocked),
            waiting=fill(0, lives.waiting),
            wait_left=fill(0, lives.wait_left),
            deadline_ms=fill(0, lives.deadline_ms),
            lifted=fill(False, lives.lifted),
            returned=fill(False, lives.returned),
            unread=fill(False, lives.unread),
            arrival_ms=fill(0, lives.arrival_ms),
            offer=fill(0, lives.offer),
            offered=fill(0, lives.offered),
            ever_returned=fill(False, lives.ever_returned),
            start=fill(0, lives.start),
            end=fill(0, lives.end),
            cursor=fill(0, lives.cursor),
            brief=fill(0, lives.brief),
            handed_ms=fill(start, lives.handed_ms),
            planned=fill(False, lives.planned),
            again=fill(0, lives.again),
            rank=fill(0, lives.rank),
            known=fill(jnp.uint32(0), lives.known),
            fresh=fill(jnp.uint32(0), lives.fresh),
            newest=fill(-1, lives.newest),
            load=fill(0.0, lives.load),
            spent=fill(0, lives.spent),
            unreported=fill(0, lives.unreported),
            last_tool=fill(-1, lives.last_tool),
            last_code=fill(0, lives.last_code),
            last_value=fill(-1, lives.last_value),
            task=fresh_task,
        )
        keys = luck_.life_key(luck, lives.lineage)
        words = luck_.threefry(*keys, zero, jnp.uint32(Purpose.HANDOUT))
        lives = self._hand(lives, grants, newborn, home, ordinal, rows(born, home), words, params)
        mail = messages_.emptied(state.mail, newborn)
        roles = jnp.arange(state.born.shape[0], dtype=jnp.int32)
        by_role = jnp.sum(jnp.where(grants.role[:, None] == roles, born[:, None], 0), axis=0, dtype=jnp.int32)
        state = replace(
            state,
            lives=lives,
            mail=mail,
            next_uid=state.next_uid + jnp.sum(born, dtype=jnp.int32),
            born=state.born + by_role,
        )
        return self._move_on(state, grants, grants.spawns & (born > 0), born), newborn

    def remove(self, state: State, leaving: jax.Array) -> tuple[State, jax.Array]:
        """Despawned lives go; their children are adopted by the nearest live ancestor. At the end all go.

        Returns int32[N]: messages lost with their receivers.
        """
        lives, place_slot = state.lives, state.place_slot
        leaving_place = (place_slot >= 0) & rows(leaving, place_slot)
        if self.topology.max_parents > 1:
            heir = jnp.arange(place_slot.shape[0], dtype=jnp.int32)
            up = jnp.where(leaving_place, rows(lives.home, place_slot), heir)
            for _ in range(self.topology.max_depth):
                heir = rows(up, heir)
            orphan = lives.alive & (lives.home >= 0) & rows(leaving_place, lives.home)
            parent = rows(place_slot, lives.home)
            # The parent's leave takes effect at the later of its parent's end and its own clock.
            grand = rows(place_slot, rows(lives.home, parent))
            left_ms = jnp.maximum(rows(lives.clock_ms, grand), rows(lives.clock_ms, parent))
            since = jnp.maximum(lives.since_ms, left_ms)
            lives = replace(
                lives,
                home=jnp.where(orphan, rows(heir, lives.home), lives.home),
                since_ms=jnp.where(orphan, since, lives.since_ms),
                arrival_ms=jnp.where(orphan, jnp.maximum(lives.arrival_ms, since), lives.arrival_ms),
            )
        alive = lives.alive & ~leaving & ~state.ended
        place = jnp.arange(place_slot.shape[0], dtype=jnp.int32)
        has_child = jnp.any(alive[None, :] & (lives.home[None, :] == place[:, None]), axis=-1)
        keeps = (place == 0) | (has_child & ~leaving_place)
        place_slot = jnp.where(keeps, place_slot, -1)
        own_place = jnp.where((lives.place >= 0) & rows(keeps, lives.place) & alive, lives.place, -1)
        lost = jnp.where(leaving, state.mail.count, 0)
        lives = replace(
            lives,
            alive=alive,
            uid=jnp.where(alive, lives.uid, -1),
            place=own_place,
        )
        empty = ~lives.alive & jnp.any(lives.alive)  # so that what is in flight at the end can be counted
        mail = messages_.emptied(state.mail, leaving | empty)
        return replace(state, lives=lives, mail=mail, place_slot=place_slot), lost

    def open_mail(
        self, state: State, board: "Board", masks: Masks, worked: Worked, made: jax.Array, params: Params
    ) -> tuple[State, jax.Array, jax.Array]:
        """Gate and release of waits, delivery of what has arrived, rosters.

        Returns claims newly known uint32[N, W] and messages opened int32[N].
        """
        lives = clocks_.gate(state.lives, state.mail, state.place_slot, self.config.strict_order)
        mail = state.mail
        opened = messages_.arrived(mail, lives)
        words = lives.known.shape[-1]
        own = lambda x: rows(x, lives.place)  # noqa: E731
        holds = lives.alive & (lives.place >= 0)
        load = lives.load + jnp.where(opened & holds, mail.load, 0.0)
        told = jnp.where(opened[:, None], mail.claims, jnp.uint32(0))
        kept = self.survivors(state, rows(load, state.place_slot), params)
        told = jnp.where(holds[:, None], told & own(kept), told)
        told = told | jnp.where((holds & own(board.reads))[:, None], own(board.kept), jnp.uint32(0))
        received = told & ~lives.known
        mine = claims_.bit_of(jnp.where(lives.alive, made, -1), words)
        is_claim = (worked.claims.flags & claims_.VERDICT) == 0
        newest = _push(lives.newest, jnp.where(is_claim, made, -1)[:, None])
        newest = _push(newest, claims_.newest(received & masks.claim, lives.newest.shape[-1]))
        lives = replace(
            lives,
            known=lives.known | received | mine,
            fresh=lives.fresh | received | mine,
            newest=newest,
            load=load,
            steps=jnp.where(opened, jnp.maximum(lives.steps, mail.steps), lives.steps),
            lifted=lives.lifted | opened,
        )
        lives = replace(lives, rank=self.ranks(lives, state.place_slot))
        count = jnp.where(opened, mail.count, 0)
        return replace(state, lives=lives, mail=messages_.emptied(mail, opened)), received, count

    def roster_order(self, lives: Lives, place_slot: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(slots int32[N] sorted by parent place, roster class, uid; start int32[P] of each place's children)."""
        clock = rows(lives.clock_ms, rows(place_slot, lives.home))
        arrived = lives.returned & lives.unread & (lives.arrival_ms <= clock)
        group = jnp.where(arrived, 1, 3)
        group = jnp.where(lives.returned & ~lives.unread, 0, group)
        num_places, num_uids = place_slot.shape[0], sum(self.config.max_lives) + 1
        child = lives.alive & (lives.home >= 0)
        key = (jnp.where(child, lives.home, num_places) * 4 + group) * num_uids + jnp.where(child, lives.uid, 0)
        n = key.shape[0]
        slots = jnp.arange(n, dtype=jnp.int32)
        if (num_places + 1) * 4 * num_uids * n < 2**31:
            packed = jnp.sort(key * n + slots)
            slots = packed % n
        else:
            slots = jax.lax.sort((key, slots), num_keys=1)[1]
        place = jnp.arange(num_places, dtype=jnp.int32)
        start = jnp.sum(child[None, :] & (lives.home[None, :] < place[:, None]), axis=-1, dtype=jnp.int32)
        return slots, start

    def ranks(self, lives: Lives, place_slot: jax.Array) -> jax.Array:
        """int32[N]: each child's row in its parent's roster."""
        slots, start = self.roster_order(lives, place_slot)
        position = jnp.zeros_like(slots).at[slots].set(jnp.arange(slots.shape[0], dtype=jnp.int32))
        return position - rows(start, lives.home)

    # Legality ----------------------------------------------------------------------------------------------------

    def legal(self, state: State, params: Params) -> Legal:
        """What each agent may call next, from what it knows: a few integers per agent."""
        lives, topology, roster = state.lives, self.topology, self.config.roster
        below = clocks_.children(lives, state.place_slot)
        own = lambda x: jnp.where(lives.place >= 0, rows(x, lives.place), 0)  # noqa: E731
        count, idle, out = own(below.count), own(below.idle), own(below.out)
        free = lives.alive & ~lives.returned & ~lives.blocked & ~state.ended
        held = (out > 0) & (own(below.unread) == 0) & ~lives.lifted if self.config.lead_blocks else jnp.zeros_like(free)
        is_lead = lives.role == 0
        has_parent = lives.home >= 0
        num_claims = jnp.sum(lives.newest >= 0, axis=-1, dtype=jnp.int32)
        may_spawn = is_lead & (lives.depth < topology.max_depth) if topology.spawn else jnp.zeros_like(free)
        tools: list[jax.Array] = [jnp.zeros_like(free)] * len(self.harness.tools)
        tools[SPAWN] = may_spawn
        tools[DELEGATE] = idle > 0
        tools[DESPAWN] = count > 0
        tools[RETURN] = has_parent & ~held
        tools[AGGREGATE] = is_lead & ((num_claims > 0) | (count > 0)) & ~held
        tools[STOP] = ~has_parent & ~held
        has_row = lives.cursor < lives.end
        worked = self.task.legal(lives.task, lives.role, has_row, num_claims, params.task)
        for i, allowed in enumerate(worked):
            tools[FIRST_TASK_TOOL + i] = allowed & ~held
        whom = has_parent.astype(jnp.int32) | ((count > 0).astype(jnp.int32) << 1)
        if topology.peers:
            whom = whom | (has_parent.astype(jnp.int32) << 2)
        if topology.spawn:
            listed = jnp.minimum(count, roster)
            whom = whom | (((1 << listed) - 1) << len(GROUPS))
        tools[MESSAGE] = whom > 0
        bits = jnp.ones_like(lives.uid)  # wait
        for i, allowed in enumerate(tools):
            bits = bits | (allowed.astype(jnp.int32) << i)
        bits = jnp.where(free, bits, 1)
        roles = len(self.harness.spawnable)
        if topology.sub_leads:  # the last spawnable role is `lead`, only where its depth leaves room below
            roles = jnp.where(lives.depth + 1 < topology.max_depth, roles, roles - 1)
        bounds = [
            jnp.where(free & (out > 0), len(WAIT_FOR), 1),
            jnp.where(free, roles, 0),
            jnp.where(free & (idle > 0), 1 + jnp.minimum(idle, roster), 0),
            jnp.where(free, jnp.minimum(count, roster), 0),
            jnp.where(free, self.task.claim_bound(lives.role, num_claims), 0),
        ]
        alive = lives.alive & ~state.ended
        return Legal(
            tools=jnp.where(alive, bits, 1),
            whom=jnp.where(free, whom, 0),
            bounds=jnp.stack([jnp.broadcast_to(b, bits.shape).astype(jnp.int32) for b in bounds], axis=-1),
        )

    # Accounts ----------------------------------------------------------------------------------------------------

    def account(self, state: State, tick: "Tick") -> State:
        """Counters of what happened."""
        totals, call, grants, posted = state.totals, tick.call, tick.grants, tick.posted
        before = tick.before
        count = lambda flags: jnp.sum(flags, dtype=jnp.int32)  # noqa: E731
        born = count(tick.born)
        first_return = (call.tool == RETURN) & ~tick.leaving & ~before.lives.ever_returned
        ms = totals.serial_ms + jnp.sum(tick.bill.latency_ms % 1000, dtype=jnp.int32)
        seconds = totals.serial_s + jnp.sum(tick.bill.latency_ms // 1000, dtype=jnp.int32) + ms // 1000
        unplaced = (call.tool == SPAWN) & ~tick.leaving & (tick.seat < 0)
        gone_unread = tick.leaving & before.lives.unread
        gone_unread = gone_unread | (tick.leaving & (call.tool == RETURN))
        late_ms = jnp.max(posted.late_ms)
        root_end = jnp.max(jnp.where(before.lives.uid == 0, tick.bill.end_ms, 0))
        excess_s = jnp.maximum(tick.bill.end_ms - root_end, 0) // 1000
        beyond = state.ended & ~before.ended & before.lives.alive
        adopted = tick.before.lives.alive & ~tick.leaving & (before.lives.home >= 0) & ~tick.born
        adopted = adopted & (state.lives.home != before.lives.home)
        totals = replace(
            totals,
            decisions=totals.decisions + count(call.is_decision),
            serial_s=seconds,
            serial_ms=ms % 1000,
            births=totals.births + born,
            returned_lives=totals.returned_lives + count(first_return),
            deaths=totals.deaths + count(tick.leaving),
            adopted=totals.adopted + count(adopted),
            illegal=totals.illegal + count(before.lives.alive & ~before.ended & ~call.valid),
            refused_births=totals.refused_births + jnp.sum(grants.asked, dtype=jnp.int32) - born,
            refused_places=totals.refused_places + count(unplaced) + count(tick.board.refused),
            refused_rows=totals.refused_rows + jnp.sum(grants.refused_rows, dtype=jnp.int32),
            refused_claims=totals.refused_claims + count(tick.refused_claim),
            empty_selections=totals.empty_selections + count(grants.empty) + count(tick.empty_sent),
            lost_returns=totals.lost_returns + count(gone_unread),
            mail_sent=totals.mail_sent + jnp.sum(posted.sent, dtype=jnp.int32),
            mail_delivered=totals.mail_delivered + jnp.sum(tick.opened, dtype=jnp.int32),
            mail_undeliverable=totals.mail_undeliverable
            + jnp.sum(posted.undeliverable, dtype=jnp.int32)
            + jnp.sum(tick.lost_mail, dtype=jnp.int32),
            mail_late=totals.mail_late + jnp.sum(posted.delivered_late, dtype=jnp.int32),
            mail_late_ms=jnp.maximum(totals.mail_late_ms, late_ms),
            beyond_end_s=totals.beyond_end_s + jnp.sum(jnp.where(beyond, excess_s, 0), dtype=jnp.int32),
        )
        return replace(state, totals=totals)


@pytree
class Bill:
    """What this tick's calls cost. Axis N slot."""

    tokens: jax.Array  # int32[N,4]  by COST_PURPOSES
    total: jax.Array  # int32[N]
    latency_ms: jax.Array  # int32[N]    0 for waits
    end_ms: jax.Array  # int32[N]
    steps: jax.Array  # int32[N]    critical steps after the call
    calls: jax.Array  # bool[N]     a turn other than wait
    plans: jax.Array  # bool[N]     first hand-out of a life
    life_keys: tuple[jax.Array, jax.Array]  # uint32[N] each


@pytree
class Board:
    """What aggregating parents read and decided. Axes P parent place, N slot, M row, W words."""

    reads: jax.Array  # bool[P]
    read: jax.Array  # bool[N]     children read
    heard: jax.Array  # uint32[P,W] claims in what was read
    kept: jax.Array  # uint32[P,W] claims newly known
    load: jax.Array  # f32[P]
    answer: jax.Array  # int32[P,M]  sets of values
    winner: jax.Array  # int32[P,M]  place k of the winning claim, -1 none
    keep: jax.Array  # uint32[P,W] what a sub-lead keeps
    num_rows: jax.Array  # int32[N]    rows with a known claim
    spent: jax.Array  # int32[N]    tokens its children report
    steps: jax.Array  # int32[N]    their critical steps
    refused: jax.Array  # bool[N]     aggregation without a parent place


@pytree
class Tick:
    """Everything that happened in a tick: what events and rewards are made from."""

    before: State
    call: Call
    order: jax.Array
    grants: Grants
    bill: Bill
    leaving: jax.Array  # bool[N]
    sent_count: jax.Array  # int32[N]
    posted: Posted
    worked: Worked
    place: jax.Array  # int32[N]    log place of the claim made, -1 none
    refused_claim: jax.Array  # bool[N]
    board: Board
    gain: jax.Array  # f32[N]      marginal gain in quality of the life's claims
    born: jax.Array  # bool[N]
    lost_mail: jax.Array  # int32[N]
    opened: jax.Array  # int32[N]    messages delivered
    empty_sent: jax.Array  # bool[N]     a message or return without a claim
    seat: jax.Array  # int32[N]    parent place held while requests were served
    received: jax.Array  # uint32[N,W]


def _push(newest: jax.Array, places: jax.Array) -> jax.Array:
    """Put places int32[N, c] (-1 none, at the end) in front of newest int32[N, C]; the rest moves back."""
    for i in reversed(range(places.shape[-1])):
        moved = jnp.concatenate([places[:, i : i + 1], newest[:, :-1]], axis=-1)
        newest = jnp.where(places[:, i : i + 1] >= 0, moved, newest)
    return newest


def _append(queue: jax.Array, length: jax.Array, selection: jax.Array, count: jax.Array) -> jax.Array:
    """Write the first `count` selected rows behind the queue's end."""
    position = jnp.cumsum(selection, dtype=jnp.int32) - 1
    index = jnp.where(selection & (position < count), length + position, queue.shape[0])
    return queue.at[index].set(jnp.arange(selection.shape[0], dtype=jnp.int32), mode="drop")


def _count(flags: jax.Array, home: jax.Array, holder: jax.Array) -> jax.Array:
    """int32[P]: flagged children of each place."""
    place = jnp.arange(holder.shape[0], dtype=jnp.int32)
    return jnp.sum(flags[None, :] & (home[None, :] == place[:, None]), axis=-1, dtype=jnp.int32)


def _ceil_div(a: jax.Array, b: jax.Array) -> jax.Array:
    return (a + b - 1) // b
