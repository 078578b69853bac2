"""Reports: returns, messages on their way, and what has arrived. Axis letters: N slot, W words of a claim set."""

import jax
import jax.numpy as jnp

from ddpomdp import claims, clocks, messages
from ddpomdp.aggregation import Read, survivors
from ddpomdp.costs import Bill
from ddpomdp.enums import Group
from ddpomdp.harness import DETAILS, GROUPS, MESSAGE, RETURN
from ddpomdp.messages import Posted
from ddpomdp.params import Params
from ddpomdp.population import rosters
from ddpomdp.pytree import once, replace, rows
from ddpomdp.rules import Rules
from ddpomdp.state import State
from ddpomdp.task import Worked
from ddpomdp.turns import Call


def payload(rules: Rules, state: State, call: Call) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(claims chosen, claims as told) uint32[N, W] and how many int32[N], of messages and returns."""
    lives = state.lives
    messages, returns = call.tool == MESSAGE, call.tool == RETURN
    sends = messages | returns
    which = jnp.where(messages, rules.arg(call, MESSAGE, "claims"), rules.arg(call, RETURN, "claims"))
    masks = state.masks
    chosen = claims.select(lives.known, lives.fresh, which, masks)
    chosen = jnp.where(sends[:, None], chosen, jnp.uint32(0))
    summary = rules.arg(call, MESSAGE, "detail") == DETAILS.index("summary")
    told = jnp.where(summary[:, None], claims.summarised(chosen, masks), chosen)
    return chosen, told, claims.size(chosen)


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
    call: Call,
    leaving: jax.Array,
    chosen: jax.Array,
    sent: jax.Array,
    sent_count: jax.Array,
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
        load=reading.per_message + sent_count.astype(jnp.float32) * reading.per_claim[detail],
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
    lives = clocks.gate(state.lives, state.mail, state.place_slot, rules.config.strict_order)
    mail = state.mail
    opened = messages.arrived(mail, lives)
    words = lives.known.shape[-1]
    own = lambda x: rows(x, lives.place)  # noqa: E731
    holds = lives.alive & (lives.place >= 0)
    reads = holds & own(reading.reads)
    load = jnp.where(reads, own(reading.load), lives.load) + jnp.where(opened & holds, mail.load, 0.0)
    told = jnp.where(opened[:, None], mail.claims, jnp.uint32(0))
    kept = once(survivors, state, rows(load, state.place_slot), params)
    told = jnp.where(holds[:, None], told & own(kept), told)
    told = told | jnp.where(reads[:, None], own(reading.kept), jnp.uint32(0))
    heard = told & ~lives.known
    received = heard | (taken & ~lives.known)
    mine = claims.bit_of(jnp.where(lives.alive, made, -1), words)
    is_claim = (worked.claims.flags & claims.VERDICT) == 0
    latest = once(lambda words: claims.newest(words, lives.newest.shape[-1]), received & state.masks.claim)
    newest = _push(lives.newest, [*latest, jnp.where(is_claim, made, -1)])
    lives = replace(
        lives,
        known=lives.known | received | mine,
        fresh=lives.fresh | heard | mine,  # what was handed over with the work is not news to the parent
        newest=newest,
        load=load,
        steps=jnp.where(opened, jnp.maximum(lives.steps, mail.steps), lives.steps),
        lifted=lives.lifted | opened,
        unread=lives.unread & ~reading.read,
        unreported=jnp.where(reading.read, 0, lives.unreported + reading.spent),
        spent=lives.spent + reading.spent,
    )
    rank, roster = rosters(rules, lives, state.place_slot)
    going = lives.alive & ~state.ended
    lives = replace(
        lives,
        rank=jnp.where(lives.alive, rank, lives.rank),
        alive=going,
        blocked=lives.blocked & going,
        uid=jnp.where(going, lives.uid, -1),
    )
    state = replace(
        state,
        lives=lives,
        mail=messages.emptied(mail, opened),
        roster_slot=jnp.where(before.ended, state.roster_slot, roster),
    )
    return state, heard, jnp.where(opened, mail.count, 0)


def _push(newest: jax.Array, places: list[jax.Array]) -> jax.Array:
    """Put places int32[N] each (first: newest; -1: none) in front of newest int32[N, C]; the rest moves back."""
    columns = [newest[:, i] for i in range(newest.shape[1])]
    for place in reversed(places):
        moved = [place, *columns[:-1]]
        columns = [jnp.where(place >= 0, new, old) for new, old in zip(moved, columns, strict=True)]
    return jnp.stack(columns, axis=-1)
