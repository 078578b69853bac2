"""Rollouts and branches: the one place that calls `step` in a loop.

Axis letters: T tick, N slot, A argument position, U life, K turn, S luck.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.enums import LifeEnd
from ddpomdp.env import Env
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.pytree import pytree
from ddpomdp.state import State
from ddpomdp.timestep import TimeStep


@pytree
class Rollout:
    """An episode, time-major. Tick t holds what was seen before turn t and, in `next_ts`, what came of it."""

    ts: TimeStep  # [T, ...]  seen before the turn
    turns: jax.Array  # int32[T,N,1+A]
    logp: jax.Array  # f32[T,N,1+A]  0 where the policy gives none
    aux: Any  # [T, ...]
    next_ts: TimeStep  # [T, ...]  what the turn led to: rewards, events, ends
    late_reward: jax.Array  # f32[U]  due to lives after they had ended
    state: State  # after the last tick


def rollout(
    env: Env,
    policy: Policy,
    params: Any,
    key: jax.Array,
    num_ticks: int,
    luck: jax.Array | None = None,
    env_params: Params | None = None,
) -> Rollout:
    """Run one episode for `num_ticks` ticks; ticks after its end change nothing.

    Args:
      env: the environment.
      policy: a `Policy`.
      params: its parameters.
      key: draws the task; the policy's noise comes from fold_in(luck, 2).
      num_ticks: static T.
      luck: default fold_in(key, 1). A group is one key and G values of luck (`jax.vmap` over `luck`).
      env_params: numbers to use instead of `env.params`.
    """
    luck = jax.random.fold_in(key, 1) if luck is None else luck
    noise = jax.random.fold_in(luck, 2)
    state, ts = env.reset(key, luck, env_params)

    def tick(carry, _):
        state, ts, memory = carry
        turns, memory, aux = policy.act(params, noise, memory, ts)
        state, next_ts = env.step(luck, state, turns, env_params)
        memory = renewed(env, policy, memory, ts, next_ts)
        logp = aux["logp"] if isinstance(aux, dict) and "logp" in aux else jnp.zeros(turns.shape, jnp.float32)
        return (state, next_ts, memory), (ts, turns, logp, aux, next_ts)

    (state, _, _), (seen, turns, logp, aux, after) = jax.lax.scan(
        tick, (state, ts, policy.carry(env)), None, length=num_ticks
    )
    weights = (env.params if env_params is None else env_params).weights
    return Rollout(
        ts=seen,
        turns=turns,
        logp=logp,
        aux=aux,
        next_ts=after,
        late_reward=late_reward(state, after, weights),
        state=state,
    )


def renewed(env: Env, policy: Policy, memory: Any, ts: TimeStep, next_ts: TimeStep) -> Any:
    """Memory per slot, with the rows of slots that have a new life reset."""
    fresh = policy.carry(env)
    new = next_ts.alive & (next_ts.uid != ts.uid)
    return jax.tree.map(lambda f, m: jnp.where(new.reshape(-1, *(1,) * (m.ndim - 1)), f, m), fresh, memory)


def late_reward(state: State, after: TimeStep, weights: dict[str, jax.Array]) -> jax.Array:
    """f32[U]: what fell due to each life after it had ended: the team's reward and gains of its claims."""
    num_uids = state.late.shape[0]
    ends = after.last & ~jnp.concatenate([jnp.zeros_like(after.last[:1]), after.last[:-1]])
    team = jnp.sum(after.team_return)
    gone_before = (after.events.end_reason == LifeEnd.DESPAWNED) & ~ends[
        :, None
    ]  # who leaves in the last tick is paid then
    left = jnp.where(gone_before, after.events.uid, num_uids)
    gone = jnp.zeros(num_uids, bool).at[left.reshape(-1)].set(True, mode="drop")
    return jnp.where(gone, weights["team"] * team, 0.0) + weights["individual"] * state.late


def branch(
    env: Env,
    state: State,
    slot: jax.Array | int,
    turns_K: jax.Array,
    policy: Policy,
    params: Any,
    luck_S: jax.Array,
    *,
    memory: Any = None,
    num_ticks: int | None = None,
    env_params: Params | None = None,
) -> jax.Array:
    """f32[K, S]: the team's return after copying a state, changing one turn and keeping the luck.

    Each luck is used for all K turns, so differences along K are effects; the original's luck and turn repeat the
    original, given the policy's memory at that state.

    Args:
      env: the environment.
      state: where to branch.
      slot: whose turn is changed.
      turns_K: int32[K, 1+A], alternatives for that slot's next turn.
      policy: plays everyone else now and everyone afterwards.
      params: its parameters.
      luck_S: keys [S].
      memory: the policy's memory at `state`; default a newborn's.
      num_ticks: ticks to play at most; default the horizon.
      env_params: numbers to use instead of `env.params`.
    """
    ts = env.view(state, env_params)
    memory = policy.carry(env) if memory is None else memory
    num_ticks = env.spec.max_ticks if num_ticks is None else num_ticks

    def play(turn: jax.Array, luck: jax.Array) -> jax.Array:
        noise = jax.random.fold_in(luck, 2)

        def tick(carry, first):
            state, ts, memory, total = carry
            turns, memory, _ = policy.act(params, noise, memory, ts)
            changed = turns.at[slot].set(turn)
            turns = jnp.where(first, changed, turns)
            state, next_ts = env.step(luck, state, turns, env_params)
            memory = renewed(env, policy, memory, ts, next_ts)
            total = total + next_ts.team_return
            return (state, next_ts, memory, total), None

        first = jnp.arange(num_ticks) == 0
        (_, _, _, total), _ = jax.lax.scan(tick, (state, ts, memory, jnp.float32(0)), first)
        return total

    return jax.vmap(lambda turn: jax.vmap(lambda luck: play(turn, luck))(luck_S))(turns_K)
