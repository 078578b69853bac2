"""Channels: one number per slot and tick each; reward = weights . channels, so any composite re-weights a trace.

Survey codes (R1 .. R8) stand in docs/codes.md.
"""

import jax
import jax.numpy as jnp

from ddpomdp import byvalue
from ddpomdp.claims import unpack
from ddpomdp.claims import values as values_of
from ddpomdp.engine import Tick
from ddpomdp.params import Params
from ddpomdp.rules import Rules
from ddpomdp.state import State
from ddpomdp.timestep import CHANNELS

PARALLEL_FULL = 10  # births at which the parallelism bonus is full


def wall_s(root_clock_ms: jax.Array) -> jax.Array:
    """f32[]: wall-clock of the episode so far, seconds: the root's clock."""
    return root_clock_ms.astype(jnp.float32) * jnp.float32(1e-3)


def serial_s(state: State) -> jax.Array:
    """f32[]: sum of all call durations, seconds."""
    return state.totals.serial_s.astype(jnp.float32) + state.totals.serial_ms.astype(jnp.float32) * jnp.float32(1e-3)


def orchestration(rules: Rules, state: State, root_clock_ms: jax.Array, root: jax.Array) -> dict[str, jax.Array]:
    """The five orchestration channels, f32[] each, with n lives born below the root (n = 0 gives 0 throughout).

    parallel    = min(n, 10) / 10                          more agents, whatever they do (PARL instantiation; form ours)
    finish      = lives that returned at least once / n    whatever their windows held (PARL finish; form ours)
    speedup     = max(0, 1 - wall-clock / serial time)
    split       = rows handed to workers exactly once / M
    aggregation = quality / quality of the best value per row among claims returned to the root (1 if that is 0)
    """
    n = state.totals.births.astype(jnp.float32)
    some = n > 0
    per_life = state.totals.returned_lives.astype(jnp.float32) / jnp.maximum(n, 1.0)
    serial = serial_s(state)
    ratio = wall_s(root_clock_ms) / jnp.maximum(serial, 1e-3)
    once = jnp.mean((state.assigned == 1).astype(jnp.float32))
    told = state.told_root | jnp.where(root[:, None], state.lives.known, jnp.uint32(0)).max(axis=0)
    if rules.by_value:
        held, values = byvalue.flags_of(told & state.masks.claim, state.log), byvalue.value(state.log)
    else:
        held, values = unpack(told & state.masks.claim, state.log), values_of(state.log)
    best = rules.task.best_quality(state.task, values, held)
    values = {
        "orchestration_parallel": jnp.minimum(n, PARALLEL_FULL) / PARALLEL_FULL,
        "orchestration_finish": per_life,
        "orchestration_speedup": jnp.maximum(0.0, 1.0 - ratio),
        "orchestration_split": once,
        "orchestration_aggregation": jnp.where(best > 0, state.quality / jnp.maximum(best, 1e-9), 1.0),
    }
    return {name: jnp.where(some, value, 0.0) for name, value in values.items()}


def channels(rules: Rules, state: State, tick: Tick, params: Params) -> dict[str, jax.Array]:
    """f32[N] per channel for this tick.

    team        quality - price_token * tokens - price_second * wall-clock, at the end, the same for every living life
    individual  marginal gain in quality when this life's claim enters the answer, in row order; sums to the quality
    role        +.01 per task call whose work is right in the caller's role, -.01 per one whose work is wrong
    tool        +.01 per useful task call, -.01 per own fault, illegal turn or useless repeat
    debate      +.01 per verdict that agrees with the truth, -.01 per one that does not; -.01 per message that tells
                nothing its sender had not told before; at the end, to the root, +.01 per row on which it knows several
                answers and has chosen the right one
    orchestration_*  at the end, to the root
    process is a coach's, who speaks after the episode (`ddpomdp.coach`): 0 here.

    Amounts of role, tool and debate are ours; what is right in a role, and a verdict, are the task's (its card).
    """
    before = tick.before
    lives = tick.before.lives
    root = lives.alive & (lives.uid == 0)
    here = lives.alive & ~before.ended
    ends = state.ended & ~before.ended
    root_clock = jnp.max(jnp.where(root, state.lives.clock_ms, 0))
    tokens = jnp.sum(state.totals.tokens).astype(jnp.float32)
    team = state.quality - params.price_token * tokens - params.price_second * wall_s(root_clock)
    illegal = here & ~tick.call.valid
    zero = jnp.zeros(lives.uid.shape, jnp.float32)
    values: dict[str, jax.Array] = dict.fromkeys(CHANNELS, zero)
    values["team"] = jnp.where(here & ends, team, zero)
    values["individual"] = jnp.where(here, tick.gain, zero)
    if tick.worked.role is not None:
        values["role"] = jnp.where(here, 0.01 * tick.worked.role, zero)
    if tick.worked.verdict is not None:
        settled = jnp.where(root & ends, resolved(rules, state), zero)
        values["debate"] = jnp.where(here, 0.01 * (tick.worked.verdict - tick.repeats + settled), zero)
    values["tool"] = jnp.where(here, 0.01 * (tick.worked.useful - illegal.astype(jnp.float32)), zero)
    for name, value in orchestration(rules, state, root_clock, root).items():
        values[name] = jnp.where(root & ends, value, zero)
    return values


def resolved(rules: Rules, state: State) -> jax.Array:
    """f32[]: rows in dispute before the root that its answer settles rightly."""
    if not hasattr(rules.task, "resolved"):
        return jnp.float32(0)
    board = jax.tree.map(lambda x: x[0], state.board)
    return jnp.sum(rules.further.resolved(state.task, board, state.answer)).astype(jnp.float32)


def weigh(values: dict[str, jax.Array], weights: dict[str, jax.Array]) -> jax.Array:
    """f32[N]: sum over channels of weight x value."""
    return sum((weights[name] * values[name] for name in CHANNELS), start=jnp.zeros_like(values["team"]))
