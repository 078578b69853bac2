"""Rollouts and branches: the one place that calls `step` in a loop.

Axis letters: T tick, B episode, N slot, A argument position, U life, K turn, S luck.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ddpomdp.enums import LifeEnd
from ddpomdp.env import Env
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.pytree import arrays, in_rank, pytree
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
    noise, params = jax.random.fold_in(luck, 2), arrays(params)
    state, ts = env.reset(key, luck, env_params)

    def tick(carry, _):
        state, ts, memory = carry
        turns, memory, aux = policy.act(params, noise, memory, ts)
        state, next_ts = env.step(luck, state, turns, env_params)
        memory = renewed(env, policy, memory, ts, next_ts)
        logp = aux["logp"] if isinstance(aux, dict) and "logp" in aux else jnp.zeros(turns.shape, jnp.float32)
        return (state, next_ts, memory), (ts, turns, logp, aux, next_ts, left_early(ts, next_ts))

    (state, _, _), (seen, turns, logp, aux, after, left) = jax.lax.scan(
        tick, (state, ts, policy.carry(env)), None, length=num_ticks
    )
    weights = (env.params if env_params is None else env_params).weights
    return Rollout(
        ts=seen,
        turns=turns,
        logp=logp,
        aux=aux,
        next_ts=after,
        late_reward=late_reward(state, after.events.uid, left, jnp.sum(after.team_return), weights),
        state=state,
    )


@pytree
class Batch:
    """Episodes played to their end."""

    recorded: Any  # [T,...]  what was asked for, per tick; zeros after the last episode's end
    noted: Any  # [T,B,...]  what `note` gave, likewise; () without
    ts: TimeStep  # [B,...]  the last one
    state: State  # [B,...]
    ticks: jax.Array  # int32[B]  ticks until the end


@pytree
class Fork:
    """A decision at which an episode leaves the one that its keys give. Axis B: episodes."""

    tick: jax.Array  # int32[B]  no tick: none
    slot: jax.Array  # int32[B]
    own: jax.Array  # keys[B]   the policy's noise in that slot at that tick
    luck: jax.Array  # keys[B]   from that tick on, for everyone


def episodes(
    env: Env,
    policy: Policy,
    params: Any,
    keys: jax.Array,
    luck: jax.Array,
    num_ticks: int,
    env_params: Params,
    record: Callable[[TimeStep, jax.Array, Any, TimeStep], Any],
    note: Callable[[State, TimeStep, TimeStep, State], Any] | None = None,
    fork: Fork | None = None,
) -> Batch:
    """A batch of episodes until all have ended, and `num_ticks` ticks at most, keeping only what is asked for.

    The same episodes as `rollout` with the same keys.

    Args:
      env: the environment.
      policy: a `Policy`.
      params: its parameters.
      keys: keys [B], draw the tasks.
      luck: keys [B], draw the rest; the policy's noise comes from fold_in(luck, 2).
      num_ticks: static T.
      env_params: numbers of the environment.
      record: (ts, turns, aux, next_ts), each with leading axis B, to what is kept of a tick.
      note: (state before, ts, next_ts, state after) of one episode to what else is kept of a tick, for whoever may know
        more than the agents: coaches.
      fork: where each episode goes on with other luck, and one slot with noise of its own; aux is then per slot.
    """
    params = arrays(params)
    noise = jax.vmap(lambda key: jax.random.fold_in(key, 2))(luck)
    state, ts = jax.vmap(lambda key, luck: env.reset(key, luck, env_params))(keys, luck)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (keys.shape[0], *x.shape)), policy.carry(env))

    def one(luck: jax.Array, noise: jax.Array, fork: Fork | None, t: jax.Array, now: tuple) -> tuple[Any, ...]:
        state, ts, memory = now
        if fork is not None:
            luck = jnp.where(t >= fork.tick, fork.luck, luck)
            noise = jnp.where(t >= fork.tick, jax.random.fold_in(fork.luck, 2), noise)
        turns, memory, aux = policy.act(params, noise, memory, ts)
        if fork is not None:
            other, _, other_aux = policy.act(params, fork.own, now[2], ts)
            here = (jnp.arange(turns.shape[0]) == fork.slot) & (t == fork.tick)
            mine = lambda new, old: jnp.where(in_rank(here, old), new, old)  # noqa: E731
            turns, aux = jax.tree.map(mine, (other, other_aux), (turns, aux))
        after, next_ts = env.step(luck, state, turns, env_params)
        noted = note(state, ts, next_ts, after) if note else ()
        return after, next_ts, renewed(env, policy, memory, ts, next_ts), turns, aux, noted

    def all_of(t: jax.Array, state: State, ts: TimeStep, memory: Any) -> tuple[Any, ...]:
        play = jax.vmap(one, in_axes=(0, 0, 0, None, 0))
        state, next_ts, memory, turns, aux, noted = play(luck, noise, fork, t, (state, ts, memory))
        return state, next_ts, memory, (record(ts, turns, aux, next_ts), noted)

    def tick(carry: tuple) -> tuple:
        t, state, ts, memory, ticks, log = carry
        state, next_ts, memory, kept = all_of(t, state, ts, memory)
        log = jax.tree.map(lambda log, x: log.at[t].set(x), log, kept)
        return t + 1, state, next_ts, memory, ticks + (~ts.last).astype(jnp.int32), log

    kept = jax.eval_shape(all_of, jnp.int32(0), state, ts, memory)[-1]
    log = jax.tree.map(lambda x: jnp.zeros((num_ticks, *x.shape), x.dtype), kept)
    start = (jnp.int32(0), state, ts, memory, jnp.zeros(keys.shape[0], jnp.int32), log)
    goes_on = lambda carry: (carry[0] < num_ticks) & ~jnp.all(carry[2].last)  # noqa: E731
    _, state, ts, _, ticks, log = jax.lax.while_loop(goes_on, tick, start)
    recorded, noted = log
    return Batch(recorded=recorded, noted=noted, ts=ts, state=state, ticks=ticks)


def renewed(env: Env, policy: Policy, memory: Any, ts: TimeStep, next_ts: TimeStep) -> Any:
    """Memory per slot, with the rows of slots that have a new life reset."""
    fresh = policy.carry(env)
    new = next_ts.alive & (next_ts.uid != ts.uid)
    return jax.tree.map(lambda f, m: jnp.where(in_rank(new, m), f, m), fresh, memory)


def left_early(ts: TimeStep, next_ts: TimeStep) -> jax.Array:
    """bool[N]: whose life left in this tick, before the episode's end. Who leaves in the last tick is paid then."""
    ends = next_ts.last & ~ts.last
    return (next_ts.events.end_reason == LifeEnd.DESPAWNED) & ~ends[..., None]


def late_reward(
    state: State, uid: jax.Array, left: jax.Array, team: jax.Array, weights: dict[str, jax.Array]
) -> jax.Array:
    """f32[U]: what fell due to each life after it had ended: the team's reward and gains of its claims.

    Args:
      state: at the end.
      uid: int32[...], of the events of all ticks.
      left: bool[...], what `left_early` gave in every tick.
      team: f32[], what the team was paid.
      weights: of the channels.
    """
    num_uids = state.late.shape[0]
    place = jnp.where(left, uid, num_uids).reshape(-1)
    gone = jnp.zeros(num_uids, bool).at[place].set(True, mode="drop")
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
    state, params = arrays(state), arrays(params)
    turns_K = jnp.asarray(turns_K, jnp.int32)
    ts = env.view(state, env_params)
    memory = arrays(policy.carry(env) if memory is None else memory)
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
