"""Aggregation: what parents read, what survives their attention, and what they decide.

Axis letters: N slot, P parent place, M row, W words of a claim set.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp import byvalue, claims
from ddpomdp.claims import Comparisons, Facts, NewClaims, Votes
from ddpomdp.clocks import FAR
from ddpomdp.harness import AGGREGATE
from ddpomdp.params import Params
from ddpomdp.pytree import once, pytree, replace, rows, where_needed
from ddpomdp.rules import Rules
from ddpomdp.state import Board, State
from ddpomdp.turns import Call


@pytree
class Read:
    """What aggregating parents read. Axes P parent place, N slot, W words."""

    reads: jax.Array  # bool[P]
    read: jax.Array  # bool[N]     children read
    heard: jax.Array  # uint32[P,W] claims in what was read
    kept: jax.Array  # uint32[P,W] claims newly known
    load: jax.Array  # f32[P]
    num_rows: jax.Array  # int32[N]    rows with a known claim
    spent: jax.Array  # int32[N]    tokens its children report
    steps: jax.Array  # int32[N]    their critical steps
    refused: jax.Array  # bool[N]     aggregation without a parent place


def nothing(state: State, call: Call) -> Read:
    """Of a tick in which nobody aggregates."""
    p = state.place_slot.shape[0]
    zero, no = jnp.zeros_like(call.tool), jnp.zeros_like(call.acts)
    words = jnp.zeros((p, state.lives.known.shape[1]), jnp.uint32)
    return Read(
        reads=jnp.zeros(p, bool),
        read=no,
        heard=words,
        kept=words,
        load=jnp.zeros(p, jnp.float32),
        num_rows=zero,
        spent=zero,
        steps=zero,
        refused=no,
    )


def read(rules: Rules, state: State, call: Call, compare: Comparisons, params: Params) -> Read:
    """What aggregating parents read: returns that have arrived by their clock, as far as attention reaches."""
    lives, holder, masks = state.lives, state.place_slot, state.masks
    at = lambda x: rows(x, holder)  # noqa: E731
    reads = (holder >= 0) & (at(call.tool) == AGGREGATE)
    place = jnp.arange(holder.shape[0], dtype=jnp.int32)[:, None]
    unread = lives.alive & lives.returned & lives.unread
    read = unread[None, :] & (lives.home[None, :] == place) & reads[:, None]
    read = read & (lives.arrival_ms[None, :] <= at(lives.clock_ms)[:, None])  # [P, N]
    offers = once(claims.told, lives.known, lives.fresh, lives.offer[:, 0], lives.offer[:, 1], masks, compare)
    heard = claims.union(jnp.where(read[:, :, None], offers[None], jnp.uint32(0)), axis=1)
    reading = params.reading
    weight = reading.load(lives.offered, lives.offer[:, 1])
    load = at(lives.load) + jnp.sum(jnp.where(read, weight[None, :], 0.0), axis=-1)
    known = at(lives.known)
    kept = heard & ~known & once(partial(survivors, rules), state, load, params)
    some = claims.in_rows((known | kept) & masks.claim, state.log)
    seated = lives.alive & (lives.place >= 0)
    own = lambda x: jnp.where(seated, rows(x, lives.place), 0)  # noqa: E731
    return Read(
        reads=reads,
        read=jnp.any(read, axis=0),
        heard=heard,
        kept=jnp.where(reads[:, None], kept, jnp.uint32(0)),
        load=jnp.where(reads, load, at(lives.load)),
        num_rows=own(jnp.sum(some, axis=-1, dtype=jnp.int32)),
        spent=own(jnp.sum(jnp.where(read, lives.unreported[None, :], 0), axis=-1, dtype=jnp.int32)),
        steps=own(jnp.max(jnp.where(read, lives.steps[None, :], 0), axis=-1)),
        refused=(call.tool == AGGREGATE) & (lives.place < 0),
    )


def survivors(rules: Rules, state: State, load: jax.Array, params: Params) -> jax.Array:
    """uint32[P, W]: entries whose fixed luck survives a reading load f32[P]."""
    share = params.reading.capacity / jnp.maximum(load, params.reading.capacity)
    if rules.by_value:  # no overload law
        return jnp.full((load.shape[0], state.lives.known.shape[1]), jnp.uint32(2**32 - 1))
    bound = jnp.ceil(share * 2.0**16).astype(jnp.int32)[:, None]  # luck has a grain of 2**-16
    luck = (state.log.fixed >> jnp.uint32(16)).astype(jnp.int32)  # [K, M]
    bits = jnp.zeros((load.shape[0], luck.shape[1]), jnp.int32)
    for k in range(state.log.per_row):
        bits = bits | ((luck[k] < bound).astype(jnp.int32) << k)
    return claims.pack(bits, state.log.per_row)


def settle(
    rules: Rules, before: State, state: State, call: Call, reading: Read, worked: NewClaims, params: Params
) -> tuple[State, jax.Array]:
    """Parents who read decide by their rule; the root's decision is the answer. Boards are brought up to date.

    Returns each slot's marginal gain in quality f32[N].
    """
    entered = jnp.any(worked.made)
    masks, said = where_needed(entered, rules.kept, (state.masks, state.log.said), state.log)
    state = replace(state, masks=masks, log=replace(state.log, said=said))
    # A board speaks of what its parent knows, and entries of the log never change.
    known, knew = (rows(s.lives.known, s.place_slot) for s in (state, before))
    learns = jnp.any(known != knew) | jnp.any(state.place_slot != before.place_slot)
    unchanged = state, jnp.zeros_like(before.lives.load)
    needed = (learns & ~before.ended) | jnp.any(reading.reads)
    return where_needed(needed, partial(decide, rules), unchanged, before, state, call, reading, params)


def decide(
    rules: Rules, before: State, state: State, call: Call, reading: Read, params: Params
) -> tuple[State, jax.Array]:
    """What `settle` does where somebody reads or learns. A sub-lead keeps the claims of the winning values only."""
    lives, log = state.lives, state.log
    holder = state.place_slot
    rule = rows(rules.rule(call), holder)
    facts: Any = log if rules.by_value else claims.facts(log)
    count = byvalue.votes if rules.by_value else partial(claims.votes, log)
    votes = once(count, facts, rows(lives.known, holder))
    answers, winners, keep = once(rules.task.aggregate, state.task, facts, votes, rule, params.task)
    reads = reading.reads[0]  # the root holds place 0
    answer = jnp.where(reads, answers[0], state.answer)
    won = jnp.where(reads, winners[0], state.answer_claim)
    gains = jnp.where(reads, rules.task.gains(state.task, state.answer, answer), 0.0)
    speaker = jnp.where(won >= 0, won, state.answer_claim)  # of a retracted row: the former one
    origin = partial(byvalue.origin, log) if rules.by_value else lambda k: claims.at(facts.origin, k, -1)
    author, gains = once(lambda k, gains: (origin(k), gains), speaker, gains)
    earned = jnp.zeros_like(state.late).at[jnp.where(author >= 0, author, FAR)].add(gains, mode="drop")
    uid = jnp.where(before.lives.alive, before.lives.uid, FAR)
    gain = jnp.where(before.lives.alive, rows(earned, before.lives.uid), 0.0)
    if holder.shape[0] > 1:
        prunes = reading.reads & (jnp.arange(holder.shape[0]) > 0)
        own = lambda x: rows(x, lives.place)  # noqa: E731
        verdicts = claims.pack(~facts.claim & (2**log.per_row - 1), log.per_row)
        stays = claims.pack(keep, log.per_row) | verdicts
        drops = (lives.place >= 0) & own(prunes)
        known = jnp.where(drops[:, None], lives.known & own(stays), lives.known)
        left = jnp.stack(claims.newest(known & state.masks.claim, lives.newest.shape[1]), axis=-1)
        lives = replace(lives, known=known, newest=jnp.where(drops[:, None], left, lives.newest))
        votes = once(claims.votes, log, facts, rows(known, holder))
    if hasattr(rules.task, "decided"):
        decided = once(rules.further.decided, state.task, answer)
        state = replace(state, task=decided)
    return replace(
        state,
        lives=lives,
        board=show(rules, state, facts, votes, rows(lives.known, holder), params),
        answer=answer,
        answer_claim=won,
        quality=jnp.where(reads, rules.task.quality(state.task, answer), state.quality),
        late=state.late + earned.at[uid].set(0.0, mode="drop"),
        told_root=jnp.where(reads, state.told_root | reading.heard[0], state.told_root),
    ), gain


def show(rules: Rules, state: State, facts: Any, votes: Any, known: jax.Array, params: Params) -> Board:
    """Parents' boards: what they know uint32[P, W] in votes, and what the task adds."""
    if not rules.by_value:
        return tally(facts, votes)
    extra = rules.further.observe_board(state.task, state.log, known, params.task)
    return byvalue.boards(state.log, votes, extra)


def tally(facts: Facts, votes: Votes) -> Board:
    """Parents' boards from their votes."""
    places = range(len(facts.value))
    top = claims.winner(votes.origins, votes.known, facts)
    value = claims.at(facts.value, top, -1)
    every, second = jnp.zeros_like(top), jnp.zeros_like(top)
    for k in places:
        held = (votes.known >> k) & 1 == 1
        every = every | jnp.where(held, 1 << facts.value[k], 0)
        second = jnp.maximum(second, jnp.where(held & (facts.value[k] != value), votes.origins[k], 0))
    return Board(
        values=jax.lax.population_count(every),
        top_value=value,
        top_origins=claims.at(votes.origins, top, 0),
        second_origins=second,
        confidence=claims.at(facts.confidence, top, 0),
        accepts=claims.at(votes.accepts, top, 0),
        rejects=claims.at(votes.rejects, top, 0),
        extra=[],
    )
