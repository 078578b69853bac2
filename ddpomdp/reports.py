"""Reports: returns, messages on their way, and what has arrived. Axis letters: N slot, W words of a claim set."""

from functools import partial

import jax
import jax.numpy as jnp

from ddpomdp import claims, clocks, messages
from ddpomdp.aggregation import Read, survivors
from ddpomdp.claims import Comparisons
from ddpomdp.costs import Bill
from ddpomdp.enums import Group
from ddpomdp.harness import GROUPS, MESSAGE, RETURN
from ddpomdp.messages import Posted
from ddpomdp.params import Params
from ddpomdp.population import rosters
from ddpomdp.pytree import once, replace, rows, stacked, where_needed
from ddpomdp.rules import Rules
from ddpomdp.state import Lives, State
from ddpomdp.task import Worked
from ddpomdp.turns import Call


def payload(rules: Rules, state: State, call: Call, compare: Comparisons) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(claims chosen, claims as told) uint32[N, W] and how many int32[N], of messages and returns."""
    lives = state.lives
    messages, returns = call.tool == MESSAGE, call.tool == RETURN
    sends = messages | returns
    which = jnp.where(messages, rules.arg(call, MESSAGE, "claims"), rules.arg(call, RETURN, "claims"))
    which = jnp.where(sends, which, 0)  # the rest choose nothing: no comparisons for them
    chosen = claims.select(lives.known, lives.fresh, which, state.masks, compare)
    chosen = once(lambda chosen: jnp.where(sends[:, None], chosen, jnp.uint32(0)), chosen)
    detail = rules.arg(call, MESSAGE, "detail")
    if rules.by_value:  # a summary leaves verdicts out, so that it may tell less than was chosen
        detail = jnp.where(messages, detail, rules.arg(call, RETURN, "detail"))
    told = claims.at_detail(chosen, detail, state.masks)
    return chosen, told, claims.size(told if rules.by_value else chosen)


def priced(rules: Rules, state: State, told: jax.Array, sent_count: jax.Array) -> jax.Array:
    """int32[N]: entries that a message or return pays for; by value, verdicts are part of the solutions."""
    return claims.size(told & state.masks.claim) if rules.by_value else sent_count


def hand_back(rules: Rules, state: State, call: Call, leaving: jax.Array, sent_count: jax.Array, bill: Bill) -> State:
    """Returns: the worker is idle and unread until its parent reads it."""
    lives = state.lives
    returns = (call.tool == RETURN) & ~leaving
    offer = jnp.stack([rules.arg(call, RETURN, "claims"), rules.arg(call, RETURN, "detail")], axis=-1)
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
    rules: Rules,
    state: State,
    chosen: jax.Array,
    sent: jax.Array,
    sent_count: jax.Array,
    call: Call,
    leaving: jax.Array,
    params: Params,
) -> tuple[State, Posted]:
    """Messages go into mailbox places."""
    is_message = call.tool == MESSAGE
    to = rules.arg(call, MESSAGE, "to")
    reading = params.reading
    detail = rules.arg(call, MESSAGE, "detail")
    mail, posted = messages.post(
        state.mail,
        state.lives,
        state.place_slot,
        leaving,
        group=jnp.where(is_message & (to < len(GROUPS)), to + 1, Group.NONE),
        row=jnp.where(is_message & (to >= len(GROUPS)), to - len(GROUPS), -1),
        sent=sent,
        load=reading.load(sent_count, detail),
        end_ms=state.lives.clock_ms,
        steps=state.lives.steps,
        peers=rules.topology.peers,
    )
    told = jnp.where(is_message[:, None], chosen, jnp.uint32(0))
    lives = replace(state.lives, fresh=state.lives.fresh & ~told)
    return replace(state, mail=mail, lives=lives), posted


def open_mail(
    rules: Rules,
    before: State,
    state: State,
    reading: Read,
    worked: Worked,
    made: jax.Array,
    taken: jax.Array,
    params: Params,
) -> tuple[State, jax.Array, jax.Array]:
    """Gate and release of waits; what has arrived becomes known; meters of readers; rosters.

    Returns claims newly known by mail or reading uint32[N, W] and messages opened int32[N].
    """
    over = before.ended
    gated = clocks.gate(state.lives, state.mail, state.place_slot, rules.config.strict_order)
    lives = jax.tree.map(lambda new, old: old if new is old else jnp.where(over, old, new), gated, state.lives)
    state = replace(state, lives=lives)
    opened = messages.arrived(state.mail, lives) & ~over
    letters = jnp.where(opened, state.mail.count, 0)
    mine = claims.bit_of(made, lives.known.shape[-1])
    if worked.learns is not None:
        mine = mine | worked.learns
    is_claim = (worked.claims.flags & claims.VERDICT) == 0
    lives = replace(
        lives,
        known=lives.known | mine,
        fresh=lives.fresh | (mine & ~lives.known),
        newest=_push(lives.newest, [jnp.where(is_claim, made, -1)]),  # what one is told now comes in front
        lifted=lives.lifted | opened,
        unread=lives.unread & ~reading.read,
        unreported=jnp.where(reading.read, 0, lives.unreported + reading.spent),
        spent=lives.spent + reading.spent,
    )
    anything = jnp.any(opened) | jnp.any(reading.reads) | jnp.any(taken != 0)
    silence = replace(state, lives=lives), jnp.zeros_like(taken)
    state, heard = where_needed(anything, partial(hear, rules), silence, state, lives, reading, opened, taken, params)
    lives = state.lives
    rank, roster = rosters(rules, lives, state.place_slot)
    seen = jnp.where(over, lives.seen, before.lives.alive | lives.alive)
    mail = messages.emptied(state.mail, ~lives.alive)  # empty slots hold none, whatever stood there
    lives = replace(
        lives,
        rank=jnp.where(lives.alive, rank, lives.rank),
        seen=seen,
        uid=jnp.where(seen, lives.uid, -1),
    )
    roster = jnp.where(over, state.roster_slot, roster)
    state = replace(state, lives=lives, mail=mail, roster_slot=roster)
    return state, heard, letters


def hear(
    rules: Rules, state: State, lives: Lives, reading: Read, opened: jax.Array, taken: jax.Array, params: Params
) -> tuple[State, jax.Array]:
    """What mail, reading and a parent's hand-over tell becomes known, as far as attention reaches.

    Returns the state with `lives` so changed, and claims newly known by mail or reading uint32[N, W].
    """
    mail = state.mail
    own = lambda x: rows(x, lives.place)  # noqa: E731
    holds = lives.alive & (lives.place >= 0)
    reads = holds & own(reading.reads)
    load = jnp.where(reads, own(reading.load), lives.load) + jnp.where(opened & holds, mail.load, 0.0)
    told = jnp.where(opened[:, None], mail.claims, jnp.uint32(0))
    kept = once(partial(survivors, rules), state, rows(load, state.place_slot), params)
    told = jnp.where(holds[:, None], told & own(kept), told)
    told = told | jnp.where(reads[:, None], own(reading.kept), jnp.uint32(0))
    knew = state.lives.known
    heard = told & ~knew
    received = once(lambda heard, taken, knew: heard | (taken & ~knew), heard, taken, knew)
    latest = claims.newest(received & state.masks.claim, lives.newest.shape[-1])
    lives = replace(
        lives,
        known=lives.known | received,
        fresh=lives.fresh | heard,  # what was handed over with the work is not news to the parent
        newest=_push(lives.newest, latest),
        load=load,
        steps=jnp.where(opened, jnp.maximum(lives.steps, mail.steps), lives.steps),
    )
    if hasattr(rules.task, "hear"):
        tokens = jnp.where(reads, own(reading.load) - state.lives.load, 0.0) + jnp.where(opened, mail.load, 0.0)
        given = claims.size(taken & state.masks.claim).astype(jnp.float32)
        work = given * params.reading.per_claim[jnp.where(lives.brief == 2, 1, 0)]
        lives = replace(lives, task=rules.further.hear(lives.task, tokens + work, tokens, params.task))
    if hasattr(rules.task, "told"):
        place = jnp.clip(lives.cursor, 0, state.queue.shape[0] - 1)
        row = jnp.where(lives.cursor < lives.end, state.queue[place], 0)
        task = rules.further.told(lives.task, state.task, state.log, row, lives.role, received)
        lives = replace(lives, task=task)
    return replace(state, lives=lives, mail=messages.emptied(mail, opened)), heard


def _push(newest: jax.Array, places: list[jax.Array]) -> jax.Array:
    """Put places int32[N] each (first: newest; -1: none) in front of newest int32[N, C]; the rest moves back."""
    columns = [newest[:, i] for i in range(newest.shape[1])]
    for place in reversed(places):
        moved = [place, *columns[:-1]]
        columns = [jnp.where(place >= 0, new, old) for new, old in zip(moved, columns, strict=True)]
    return stacked(columns)
