"""What each agent may call, derived only from what it may know: a few integers per agent. Axis letter: N slot."""

import jax
import jax.numpy as jnp

from ddpomdp import clocks
from ddpomdp.harness import (
    AGGREGATE,
    DELEGATE,
    DESPAWN,
    FIRST_TASK_TOOL,
    GROUPS,
    MESSAGE,
    RETURN,
    SPAWN,
    STOP,
    WAIT_FOR,
    Legal,
)
from ddpomdp.params import Params
from ddpomdp.pytree import rows, stacked
from ddpomdp.rules import Rules
from ddpomdp.state import State


def legal(rules: Rules, state: State, params: Params) -> Legal:
    """What each agent may call next, from what it knows: a few integers per agent."""
    lives, topology, roster = state.lives, rules.topology, rules.config.roster
    below = clocks.children(lives, state.place_slot)
    own = lambda x: jnp.where(lives.place >= 0, rows(x, lives.place), 0)  # noqa: E731
    count, idle, out = own(below.count), own(below.idle), own(below.out)
    free = lives.alive & ~lives.returned & ~lives.blocked & ~state.ended
    held = (out > 0) & (own(below.unread) == 0) & ~lives.lifted if rules.config.lead_blocks else jnp.zeros_like(free)
    is_lead = lives.role == 0
    has_parent = lives.home >= 0
    num_claims = jnp.sum(lives.newest >= 0, axis=-1, dtype=jnp.int32)
    may_spawn = is_lead & (lives.depth < topology.max_depth) if topology.spawn else jnp.zeros_like(free)
    tools: list[jax.Array] = [jnp.zeros_like(free)] * len(rules.harness.tools)
    tools[SPAWN] = may_spawn
    tools[DELEGATE] = idle > 0 if topology.down else jnp.zeros_like(free)
    tools[DESPAWN] = jnp.zeros_like(free) if topology.crew else count > 0
    tools[RETURN] = has_parent & ~held
    tools[AGGREGATE] = is_lead & ((num_claims > 0) | (count > 0)) & ~held
    tools[STOP] = ~has_parent & ~held
    has_row = lives.cursor < lives.end
    worked = rules.task.legal(lives.task, lives.role, has_row, num_claims, params.task)
    for i, allowed in enumerate(worked):
        tools[FIRST_TASK_TOOL + i] = allowed & ~held
    whom = jnp.zeros_like(lives.uid)
    if topology.up:
        whom = whom | has_parent.astype(jnp.int32)
    if topology.down:
        whom = whom | ((count > 0).astype(jnp.int32) << 1)
    if topology.peers:
        whom = whom | (has_parent.astype(jnp.int32) << 2)
    if topology.down and (topology.spawn or topology.crew):
        listed = jnp.minimum(count, roster)
        whom = whom | (((1 << listed) - 1) << len(GROUPS))
    tools[MESSAGE] = whom > 0
    bits = jnp.ones_like(lives.uid)  # wait
    for i, allowed in enumerate(tools):
        bits = bits | (allowed.astype(jnp.int32) << i)
    bits = jnp.where(free, bits, 1)
    roles = len(rules.harness.spawnable)
    if topology.sub_leads:  # the last spawnable role is `lead`, only where its depth leaves room below
        roles = jnp.where(lives.depth + 1 < topology.max_depth, roles, roles - 1)
    bounds = [
        jnp.where(free & (out > 0), jnp.int32(len(WAIT_FOR)), 1),
        jnp.where(free, jnp.int32(roles), 0),
        jnp.where(free & tools[DELEGATE], 1 + jnp.minimum(idle, roster), 0),
        jnp.where(free, jnp.minimum(count, 0 if topology.crew else roster), 0),
        jnp.where(free, rules.task.claim_bound(lives.role, num_claims), 0),
    ]
    alive = lives.alive & ~state.ended
    return Legal(
        tools=jnp.where(alive, bits, 1),
        whom=jnp.where(free, whom, 0),
        bounds=stacked([jnp.broadcast_to(bound, bits.shape).astype(jnp.int32) for bound in bounds]),
    )
