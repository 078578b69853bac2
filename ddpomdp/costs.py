"""What calls cost: tokens by purpose, durations, critical steps. Axis letters: N slot, P parent place."""

from functools import partial

import jax
import jax.numpy as jnp

from ddpomdp import claims, clocks, handout
from ddpomdp import luck as luck_
from ddpomdp.aggregation import Read
from ddpomdp.handout import Grants
from ddpomdp.harness import AGGREGATE, DELEGATE, DESPAWN, DETAILS, MESSAGE, RETURN, SPAWN, WAIT
from ddpomdp.luck import Purpose
from ddpomdp.params import Params
from ddpomdp.pytree import once, pytree, replace, rows, stacked
from ddpomdp.rules import Rules, per_parent
from ddpomdp.state import State
from ddpomdp.task import Worked
from ddpomdp.turns import Call


@pytree
class Bill:
    """What this tick's calls cost. Axis N slot."""

    tokens: jax.Array  # int32[N,4]  by COST_PURPOSES
    total: jax.Array  # int32[N]
    latency_ms: jax.Array  # int32[N]    0 for waits
    end_ms: jax.Array  # int32[N]
    steps: jax.Array  # int32[N]    critical steps after the call
    calls: jax.Array  # bool[N]     a turn other than wait
    plans: jax.Array  # bool[N]     the life's first hand-out


def bill(
    rules: Rules,
    life_keys: tuple[jax.Array, jax.Array],
    state: State,
    call: Call,
    grants: Grants,
    sent_count: jax.Array,
    reading: Read,
    worked: Worked,
    params: Params,
) -> Bill:
    """Tokens, duration and critical steps of this tick's calls."""
    lives, charges, tool = state.lives, params.charges, call.tool
    own = lambda x: jnp.where(lives.place >= 0, rows(x, lives.place), 0)  # noqa: E731
    hands = jnp.where(grants.spawns, grants.born, jnp.where(grants.delegates, grants.handed, 0))
    briefed = hands * charges.brief_tokens[grants.brief]
    if rules.hands_over:
        number = once(partial(handout.number_given, rules), state, grants, params)
        briefed = briefed + number * charges.claim_tokens[jnp.where(grants.brief == 2, 1, 0)]
    elif rules.task.hands_claims:  # claims a child takes over with its work have to be written down
        takes = rules.task.takes_claims
        chosen = per_parent(grants.target & takes(lives.role), lives.home, grants.holder)
        takers = jnp.where(grants.spawns, takes(grants.role) * grants.born, chosen)
        held = claims.size(rows(lives.known, grants.holder))
        briefed = briefed + takers * held * charges.claim_tokens[DETAILS.index("full")]
    hands, briefed = own(hands), own(briefed)
    is_hand = (tool == SPAWN) | (tool == DELEGATE)
    plans = is_hand & ~lives.planned & (hands > 0)
    detail = jnp.where(tool == MESSAGE, rules.arg(call, MESSAGE, "detail"), rules.arg(call, RETURN, "detail"))
    sends = (tool == MESSAGE) | (tool == RETURN)
    orchestration = jnp.where(is_hand, charges.hand_tokens + briefed, 0)
    orchestration = orchestration + jnp.where(plans, charges.plan_tokens, 0)
    aggregates = tool == AGGREGATE
    orchestration = orchestration + jnp.where(
        aggregates, charges.aggregate_tokens + charges.row_tokens * reading.num_rows, 0
    )
    orchestration = orchestration + jnp.where(tool == DESPAWN, charges.despawn_tokens, 0)
    message = jnp.where(sends, charges.send_tokens + sent_count * charges.claim_tokens[detail], 0)
    if charges.detail_tokens is not None:
        message = message + jnp.where(sends, charges.detail_tokens[detail], 0)
    work_tokens, work_steps, outside = rules.task.cost(tool, params.task)
    work = jnp.where(outside, 0, work_tokens)
    outside_tokens = jnp.where(outside, work_tokens, 0)
    if worked.effort is not None:
        work, outside_tokens, outside = worked.effort.tokens, worked.effort.tool_tokens, worked.effort.outside
        work_tokens = work + outside_tokens
    tokens = stacked([work, orchestration, message, outside_tokens])
    words = once(luck_.threefry, *life_keys, lives.turn, jnp.uint32(Purpose.SERVICE))
    total = work_tokens + orchestration + message
    calls = call.acts & (tool != WAIT)
    latency = jnp.where(calls, clocks.latency_ms(params.service, words, total, outside), 0)
    if worked.effort is not None and worked.effort.tool_ms is not None:
        latency = latency + jnp.where(calls, worked.effort.tool_ms, 0)
    steps = work_steps + jnp.where(is_hand, hands * charges.child_steps, 0)
    steps = steps + jnp.where(plans, charges.plan_steps, 0) + jnp.where(aggregates, charges.aggregate_steps, 0)
    return Bill(
        tokens=tokens,
        total=total,
        latency_ms=latency,
        end_ms=lives.clock_ms + latency,
        steps=jnp.maximum(lives.steps, reading.steps) + steps,
        calls=calls,
        plans=plans,
    )


def charge(rules: Rules, state: State, call: Call, bill: Bill, params: Params) -> State:
    """Move clocks and meters; waits are asked for."""
    lives = state.lives
    waits = call.acts & (call.tool == WAIT)
    below = clocks.children(lives, state.place_slot)
    out = jnp.where(lives.place >= 0, rows(below.out, lives.place), 0)
    mail = state.mail if rules.topology.listens else None
    lives = clocks.ask(lives, waits, rules.arg(call, WAIT, "for"), out, params.service, mail)
    hands = (call.tool == SPAWN) | (call.tool == DELEGATE)
    lives = replace(
        lives,
        turn=lives.turn + call.acts.astype(jnp.int32),
        clock_ms=lives.clock_ms + bill.latency_ms,
        steps=bill.steps,
        spent=lives.spent + bill.total,
        unreported=lives.unreported + bill.total,
        lifted=lives.lifted & ~hands,
        planned=lives.planned | bill.plans,
        last_tool=jnp.where(call.acts, call.tool, lives.last_tool),
    )
    return replace(state, lives=lives)
