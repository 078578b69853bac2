"""The engine: the fixed order of moves that a step is.

A turn flows one way: check -> grants and costs -> returns, messages, ends -> task tools -> births and hand-outs ->
removal -> gate, waits, mail -> aggregation -> legality. Every effect reads the state at the start of the tick unless it
says otherwise.

Axis letters: N slot, P parent place, M row, W words of a claim set, Q queue place.
"""

import functools
from functools import partial

import jax
import jax.numpy as jnp

from ddpomdp import aggregation, byvalue, claims, costs, handout, legality, messages, population, reports
from ddpomdp import luck as luck_
from ddpomdp import turns as turns_
from ddpomdp.aggregation import Read
from ddpomdp.claims import Comparisons
from ddpomdp.costs import Bill
from ddpomdp.enums import ResultCode, StopReason
from ddpomdp.handout import Grants
from ddpomdp.harness import AGGREGATE, BOUNDS, DELEGATE, FIRST_TASK_TOOL, MESSAGE, RETURN, SPAWN, STOP, WAIT, Legal
from ddpomdp.messages import Posted
from ddpomdp.params import Params
from ddpomdp.pytree import once, pytree, replace, rows, where_needed
from ddpomdp.rules import Rules
from ddpomdp.state import Board, Lives, Mail, State, Totals
from ddpomdp.task import Worked, Working
from ddpomdp.turns import Call


def reset(rules: Rules, key: jax.Array, luck: jax.Array, params: Params) -> State:
    """The state before the first turn: the root alone, its window the whole queue."""
    task, config = rules.task, rules.config
    n, p, m, passes = config.capacity, rules.topology.max_parents, task.num_rows, rules.passes
    words = claims.num_words(m, task.per_row)
    slots = jnp.arange(n, dtype=jnp.int32)
    root = slots == 0
    zeros, no = jnp.zeros(n, jnp.int32), jnp.zeros(n, bool)
    lives = Lives(
        alive=root,
        seen=root,
        uid=jnp.where(root, zeros, -1),
        role=zeros,
        depth=zeros,
        lineage=jnp.where(root[:, None], jnp.asarray(luck_.ROOT_LINEAGE, jnp.uint32), jnp.uint32(0)),
        home=zeros - 1,
        place=jnp.where(root, zeros, -1),
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
        end=jnp.where(root, passes * m, zeros),
        cursor=zeros,
        brief=jnp.where(root, 2, zeros),
        handed_ms=zeros,
        handed_rows=zeros,
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
    # As many places again as rows and three more for what selectors list, or four times the rows behind the passes.
    places = jnp.arange(4 * m if passes == 1 else (passes + 4) * m, dtype=jnp.int32)
    queue = jnp.where(places < passes * m, places % m, 0)
    zero = jnp.int32(0)
    totals = Totals(
        tokens=jnp.zeros(4, jnp.int32),
        **{name: zero for name in Totals.__dataclass_fields__ if name != "tokens"},
    )
    facts = task.init(key, luck, params.task)
    answer = jnp.zeros(m, jnp.int32)
    log = rules.empty_log()
    none = jnp.zeros((p, m), jnp.int32)
    board = Board(none, none - 1, none, none, none, none, none, [])
    if rules.by_value:
        known = jnp.zeros((p, words), jnp.uint32)
        extra = rules.further.observe_board(facts, log, known, params.task)
        board = byvalue.boards(log, byvalue.votes(log, known), extra)
    state = State(
        lives=lives,
        mail=mail,
        log=log,
        masks=rules.masks(log),
        board=board,
        roster_slot=jnp.full((p, config.roster), -1, jnp.int32),
        legal=Legal(tools=zeros, whom=zeros, bounds=jnp.zeros((n, len(BOUNDS)), jnp.int32)),
        place_slot=jnp.where(jnp.arange(p) == 0, 0, -1).astype(jnp.int32),
        queue=queue,
        queue_len=jnp.int32(passes * m),
        assigned=jnp.zeros(m, jnp.int32),
        answer=answer,
        answer_claim=jnp.full(m, -1, jnp.int32),
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
    if rules.topology.crew:
        state = population.crew(rules, state)
    return replace(state, legal=legality.legal(rules, state, params))


@pytree
class Tick:
    """Everything that happened in a tick: what events and rewards are made from."""

    before: State
    call: Call
    grants: Grants
    bill: Bill
    leaving: jax.Array  # bool[N]
    sent_count: jax.Array  # int32[N]
    repeats: jax.Array  # bool[N]     a message that tells nothing its sender had not told before
    posted: Posted
    worked: Worked
    place: jax.Array  # int32[N]    log place of the claim made, -1 none
    refused_claim: jax.Array  # bool[N]
    reading: Read
    gain: jax.Array  # f32[N]      marginal gain in quality of the life's claims
    born: jax.Array  # bool[N]
    lost_mail: jax.Array  # int32[N]
    opened: jax.Array  # int32[N]    messages delivered
    received: jax.Array  # uint32[N,W]


def step(rules: Rules, luck: jax.Array, state: State, turns: jax.Array, params: Params) -> tuple[State, Tick]:
    """One tick: turns int32[N, 1+A] of all slots; only living, running, unblocked lives act."""

    def move(f, *args):
        return once(partial(f, rules), *args)

    def when(needed, f, otherwise, *args):
        return where_needed(needed, partial(f, rules), otherwise, *args)

    before = state
    call = once(partial(turns_.check, rules.harness), state, turns)
    anyone = lambda *tools: functools.reduce(jnp.logical_or, [jnp.any(call.tool == tool) for tool in tools])  # noqa: E731
    hands, sends, reads = anyone(SPAWN, DELEGATE), anyone(MESSAGE, RETURN), anyone(AGGREGATE)
    order, leaving = move(population.overview, state, call)
    claim = state.masks.claim
    if rules.by_value:
        compare = byvalue.Choices(claim, state.log)
    else:
        alike = claims.uncompared(state.log, claim)
        compare = where_needed(comparing(rules, state, call), claims.compared, alike, state.log, claim)
    granted = state, handout.nothing(rules, state)
    state, grants = when(hands, grant, granted, state, call, leaving, order, compare, params)
    nothing = jnp.zeros_like(state.lives.known)
    chosen, sent, sent_count = when(sends, reports.payload, (nothing, nothing, call.tool * 0), state, call, compare)
    reading = when(reads, aggregation.read, aggregation.nothing(state, call), state, call, compare, params)
    priced = reports.priced(rules, state, sent, sent_count)
    life_keys = luck_.life_key(luck, before.lives.lineage)
    worked = act(rules, before, call, life_keys, params)
    bill = move(costs.bill, life_keys, state, call, grants, priced, reading, worked, params)
    state = move(take_effect, state, call, leaving, bill, priced, params)
    letters = state, chosen, sent, priced
    state, posted = when(sends, reports.send, (state, messages.nothing(state)), *letters, call, leaving, params)
    state, place, refused_claim = move(work, before, state, call, order, grants, reading, worked)
    unborn = jnp.zeros_like(leaving)
    state, born, taken = when(hands, populate, (state, unborn, nothing), luck, before, state, grants, params)
    parts = hands | jnp.any(leaving)
    state, lost_mail = when(parts, population.remove, (state, call.tool * 0), before, state, leaving)
    state, received, opened = move(reports.open_mail, before, state, reading, worked, place, taken, params)
    state, gain = move(aggregation.settle, before, state, call, reading, worked.claims, params)
    state = replace(state, legal=move(legality.legal, state, params))
    tick = Tick(
        before=before,
        call=call,
        grants=grants,
        bill=bill,
        leaving=leaving,
        sent_count=sent_count,
        repeats=(call.tool == MESSAGE) & ~jnp.any((chosen & before.lives.fresh) != 0, axis=-1),
        posted=posted,
        worked=worked,
        place=place,
        refused_claim=refused_claim,
        reading=reading,
        gain=gain,
        born=born,
        lost_mail=lost_mail,
        opened=opened,
        received=received,
    )
    return move(account, state, tick), tick


def take_effect(
    rules: Rules,
    state: State,
    call: Call,
    leaving: jax.Array,
    bill: Bill,
    sent_count: jax.Array,
    params: Params,
) -> State:
    """Calls take their time and cost; returns are on their way; the episode may end."""
    state = costs.charge(rules, state, call, bill, params)
    state = reports.hand_back(rules, state, call, leaving, sent_count, bill)
    return end(rules, state, call, bill)


def comparing(rules: Rules, state: State, call: Call) -> jax.Array:
    """bool[]: whether somebody chooses, reads or hands out by how claims compare."""
    sends = [(call.tool == tool) & claims.is_comparison(rules.arg(call, tool, "claims")) for tool in (MESSAGE, RETURN)]
    reads = jnp.any(call.tool == AGGREGATE) & state.lives.unread & claims.is_comparison(state.lives.offer[:, 0])
    hands = (call.tool == DELEGATE) & (rules.arg(call, DELEGATE, "rows") == handout.CONFLICTING)
    return jnp.any(sends[0] | sends[1] | reads | hands)


def grant(
    rules: Rules,
    state: State,
    call: Call,
    leaving: jax.Array,
    order: jax.Array,
    compare: Comparisons | byvalue.Choices,
    params: Params,
) -> tuple[State, Grants]:
    """What spawns and delegations are granted, with a parent place for whoever needs one."""
    seated = population.seat(rules, state, call, leaving, order)
    return handout.grant(rules, seated, call, leaving, order, compare, params)


def populate(
    rules: Rules, luck: jax.Array, before: State, state: State, grants: Grants, params: Params
) -> tuple[State, jax.Array, jax.Array]:
    """Births, and work for newborns and idle children.

    Returns who was born bool[N] and claims taken over from parents uint32[N, W].
    """
    state, born = population.bear(rules, before, state, grants)
    state, taken = handout.hand_out(rules, luck, state, grants, born, params)
    return state, born, taken


def act(rules: Rules, before: State, call: Call, life_keys: tuple[jax.Array, jax.Array], params: Params) -> Worked:
    """What comes of this tick's task tools, by the state at the start of the tick."""
    lives = before.lives
    return once(
        rules.task.act,
        before.task,
        lives.task,
        Working(
            tool=jnp.where(call.acts, call.tool, WAIT),
            argument=call.args[0],
            role=lives.role,
            uid=lives.uid,
            row=before.queue[jnp.clip(lives.cursor, 0, before.queue.shape[0] - 1)],
            has_row=lives.cursor < lives.end,
            known=lives.known,
            newest=lives.newest,
            claims=before.masks.claim,
            life_keys=life_keys,
            turn=lives.turn,
            tainted=before.masks.tainted,
            untrusted=before.masks.untrusted,
        ),
        before.log,
        params.task,
    )


def work(
    rules: Rules,
    before: State,
    state: State,
    call: Call,
    order: jax.Array,
    grants: Grants,
    reading: Read,
    worked: Worked,
) -> tuple[State, jax.Array, jax.Array]:
    """What came of task tools is told; claims enter the log."""
    record = byvalue.record if rules.by_value else claims.record
    log, place, refused = record(before.log, worked.claims, before.lives.uid, order)
    core = (call.tool < FIRST_TASK_TOOL) & call.acts
    code = jnp.where(core, jnp.where(call.valid, ResultCode.DONE, ResultCode.ILLEGAL), worked.code)
    born = jnp.where(grants.seat >= 0, rows(grants.born, grants.seat), 0)
    nothing = call.acts & (((call.tool == SPAWN) & (born == 0)) | reading.refused)
    code = jnp.where(nothing, ResultCode.REFUSED, code)
    # A claim that found no place is not one: its author is told that nothing was found.
    shown = jnp.where(refused, ResultCode.EMPTY, code)
    acts = call.acts
    lives = replace(
        state.lives,
        task=worked.life,
        cursor=state.lives.cursor + worked.advance.astype(jnp.int32),
        last_code=jnp.where(acts, shown, state.lives.last_code),
        last_value=jnp.where(acts, jnp.where(refused, -1, worked.value), state.lives.last_value),
    )
    facts = state.task if worked.facts is None else worked.facts
    return replace(state, lives=lives, log=log, task=facts), place, refused


def end(rules: Rules, state: State, call: Call, bill: Bill) -> State:
    """Whether the episode ends in this tick, and why: stopped, budget, horizon in this precedence."""
    config, totals = rules.config, state.totals
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


def account(rules: Rules, state: State, tick: Tick) -> State:
    """Counters of what happened."""
    totals, call, grants, posted = state.totals, tick.call, tick.grants, tick.posted
    before = tick.before
    count = lambda flags: jnp.sum(flags, dtype=jnp.int32)  # noqa: E731
    born = count(tick.born)
    first_return = (call.tool == RETURN) & ~tick.leaving & ~before.lives.ever_returned
    ms = totals.serial_ms + jnp.sum(tick.bill.latency_ms % 1000, dtype=jnp.int32)
    seconds = totals.serial_s + jnp.sum(tick.bill.latency_ms // 1000, dtype=jnp.int32) + ms // 1000
    empty_sent = ((call.tool == MESSAGE) | (call.tool == RETURN)) & (tick.sent_count == 0)
    unplaced = (call.tool == SPAWN) & ~tick.leaving & (tick.grants.seat < 0)
    asked = jnp.sum(handout.births_asked(rules, call), dtype=jnp.int32)
    gone_unread = tick.leaving & before.lives.unread
    gone_unread = gone_unread | (tick.leaving & (call.tool == RETURN))
    late_ms = jnp.max(posted.late_ms)
    root_end = state.lives.clock_ms[state.place_slot[0]]
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
        refused_births=totals.refused_births + asked - born,
        refused_places=totals.refused_places + count(unplaced) + count(tick.reading.refused),
        refused_rows=totals.refused_rows + jnp.sum(grants.refused_rows, dtype=jnp.int32),
        refused_claims=totals.refused_claims + count(tick.refused_claim),
        empty_selections=totals.empty_selections + count(grants.empty) + count(empty_sent),
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
