"""What `step` returns: TimeStep, Observation, Event. Field names are the public contract.

Axis letters: N slot, A argument position, C claim, P parent place, R roster row, M subtask (row).
"""

from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.harness import Legal
from ddpomdp.pytree import pytree

CHANNELS = (
    "team",
    "individual",
    "role",
    "process",
    "tool",
    "debate",
    "orchestration_parallel",
    "orchestration_finish",
    "orchestration_speedup",
    "orchestration_split",
    "orchestration_aggregation",
)

COST_PURPOSES = ("task", "orchestration", "message", "tool")


@pytree
class Observation:
    """What each agent sees by its clock; rows of empty slots and empty roster rows are zero.

    Feature names are in `env.spec`. Rosters and boards exist for at most P parents, without the N axis.
    """

    self: jax.Array  # f32[N,.]
    claims: jax.Array  # f32[N,C,.]   newest known claims, newest first
    last_result: jax.Array  # f32[N,.]     what came of the agent's own last call
    parent_slot: jax.Array  # int32[P]     slot of the parent whose roster and board follow, -1 none
    roster: jax.Array  # f32[P,R,.]   its children: idle and read, returned unread, failed, running
    roster_uid: jax.Array  # int32[P,R]   -1 empty
    board: jax.Array  # f32[P,M,.]   task rows as that parent knows them


@pytree
class Event:
    """One record per slot and tick: a turn and what came of it; rows with uid -1 are empty slots."""

    tick: jax.Array  # int32[N]
    uid: jax.Array  # int32[N]     -1 none
    slot: jax.Array  # int32[N]
    role: jax.Array  # int32[N]
    parent_uid: jax.Array  # int32[N]     -1 none
    kind: jax.Array  # int32[N]     EventKind; WAIT for forced waits too
    decision: jax.Array  # int32[N]     Decision; NONE where is_decision is False
    tokens: jax.Array  # int32[N,1+A] the turn as executed by a frozen role or given by the caller
    valid: jax.Array  # bool[N]      False: an illegal turn, executed as wait
    legal_count: jax.Array  # int32[N]     number of complete calls that were legal
    is_decision: jax.Array  # bool[N]      the life acted and more than one call was legal
    target_uid: jax.Array  # int32[N]     child addressed by delegate, despawn, message; -1 none or a group
    target_group: jax.Array  # int32[N]     Group of a message
    claims_sent: jax.Array  # int32[N]
    claims_received: jax.Array  # int32[N]     newly known by mail or reading
    refused: jax.Array  # int32[N]     what did not fit: births, rows, claims, a message to one child
    latency_ms: jax.Array  # int32[N]
    clock_ms: jax.Array  # int32[N]     when the turn was decided
    arrival_ms: jax.Array  # int32[N]     end of the call; of a return: when it arrives at the parent
    cost_tokens: jax.Array  # int32[N,4]   by COST_PURPOSES
    result_code: jax.Array  # int32[N]     ResultCode
    trusted: jax.Array  # bool[N]      no untrusted tool result came in with this call
    tainted: jax.Array  # bool[N]      a tainted claim was made or received
    end_reason: jax.Array  # int32[N]     LifeEnd, in the life's last tick
    channels: dict[str, jax.Array]  # f32[N] each


@pytree
class TimeStep:
    """One tick seen from outside; each row speaks of the one life in that slot."""

    observation: Observation
    legal: Legal
    reward: jax.Array  # f32[N]       weights . channels
    channels: dict[str, jax.Array]  # f32[N] each
    terminated: jax.Array  # bool[N]      stop, budget, despawn
    truncated: jax.Array  # bool[N]      horizon, or cut when the root stopped
    alive: jax.Array  # bool[N]      acts next (idle and blocked lives are alive: they wait)
    uid: jax.Array  # int32[N]     -1 empty; a life's last tick still names it
    lineage: jax.Array  # uint32[N,2]
    turn: jax.Array  # int32[N]     own turn number of the next turn
    blocked: jax.Array  # bool[N]      the next turn is a forced wait
    last: jax.Array  # bool[]       the episode has ended
    stop_reason: jax.Array  # int32[]      StopReason
    events: Event
    info: dict[str, Any]  # numeric scalars, fixed keys

    @property
    def team_return(self) -> jax.Array:
        """f32[]: what the team is paid in this tick, the same for everyone: 0 but in the tick that ends the episode."""
        paid = self.events.uid >= 0
        most = jnp.max(jnp.where(paid, self.channels["team"], -jnp.inf), axis=-1)
        return jnp.where(jnp.any(paid, axis=-1), most, 0.0)
