"""Turns as the engine takes them: who acts, and with which call.

Axis letters: N slot, A argument position.
"""

import jax
import jax.numpy as jnp

from ddpomdp.harness import WAIT, Harness
from ddpomdp.pytree import once, pytree
from ddpomdp.state import State


@pytree
class Call:
    """A tick's turns, checked. Axis N slot."""

    tool: jax.Array  # int32[N]    executed tool; WAIT for illegal and forced turns
    args: list[jax.Array]  # int32[N] per argument position, 0 where the turn was illegal
    acts: jax.Array  # bool[N]     takes a turn of its own
    valid: jax.Array  # bool[N]
    legal_count: jax.Array  # int32[N]
    is_decision: jax.Array  # bool[N]


def check(harness: Harness, state: State, turns: jax.Array) -> Call:
    """Who acts, and with which call: illegal turns become `wait`, forced turns are waits."""
    lives = state.lives
    acts = lives.alive & ~lives.returned & ~lives.blocked & ~state.ended
    ok = once(harness.is_legal, state.legal, turns)
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
