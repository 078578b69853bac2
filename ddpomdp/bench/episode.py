"""Episodes in numbers: a batch played to its end, one row each, and the events of the first for a picture.

Axis letters: B episode, T tick, N slot.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import EventKind, StopReason
from ddpomdp.env import Env
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.pytree import pytree
from ddpomdp.rollouts import renewed
from ddpomdp.timestep import Event

REFUSED = ("refused_births", "refused_places", "refused_rows", "refused_claims")  # of TimeStep.info


@pytree
class Played:
    """A batch of episodes."""

    reward: jax.Array  # f32[B]       of the root
    ticks: jax.Array  # int32[B]
    stop_reason: jax.Array  # int32[B]     RUNNING: the ticks ran out first
    calls: jax.Array  # int32[B,10]  calls that meant something, by EventKind; forced waits are not counted
    info: dict[str, jax.Array]  # [B] each      TimeStep.info at the end
    events: Event  # [T,N]        of the first episode; rows after its end have no valid turn


@partial(jax.jit, static_argnames=("env", "policy", "num_ticks"))
def play(env: Env, policy: Policy, params: Any, keys: jax.Array, env_params: Params, num_ticks: int) -> Played:
    """Play one episode per key until all have ended, and `num_ticks` ticks at most.

    The same episodes as `rollout` with the same key, without keeping what was seen on the way.

    Args:
      env: the environment.
      policy: a `Policy`.
      params: its parameters.
      keys: keys [B].
      env_params: numbers of the environment: `env.params`, or those of another model.
      num_ticks: static T.
    """
    luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    noise = jax.vmap(lambda key: jax.random.fold_in(key, 2))(luck)
    state, ts = jax.vmap(lambda key, luck: env.reset(key, luck, env_params))(keys, luck)
    fresh = policy.carry(env)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (keys.shape[0], *x.shape)), fresh)
    batch = keys.shape[0]
    recorded = jax.tree.map(lambda x: jnp.zeros((num_ticks, *x.shape[1:]), x.dtype), ts.events)

    def one(luck: jax.Array, noise: jax.Array, state: Any, ts: Any, memory: Any) -> tuple[Any, ...]:
        turns, memory, _ = policy.act(params, noise, memory, ts)
        state, next_ts = env.step(luck, state, turns, env_params)
        events = next_ts.events
        reward = jnp.sum(jnp.where(events.uid == 0, next_ts.reward, 0.0))
        counts = events.valid & ((events.kind != EventKind.WAIT) | events.is_decision)
        kinds = jnp.arange(len(EventKind), dtype=jnp.int32)
        calls = jnp.sum(counts[:, None] & (events.kind[:, None] == kinds[None]), axis=0, dtype=jnp.int32)
        return state, next_ts, renewed(env, policy, memory, ts, next_ts), reward, calls, (~ts.last).astype(jnp.int32)

    def tick(carry: tuple) -> tuple:
        t, state, ts, memory, reward, calls, ticks, recorded = carry
        state, ts, memory, paid, made, ran = jax.vmap(one)(luck, noise, state, ts, memory)
        recorded = jax.tree.map(lambda log, x: log.at[t].set(x[0]), recorded, ts.events)
        return t + 1, state, ts, memory, reward + paid, calls + made, ticks + ran, recorded

    start = (
        jnp.int32(0),
        state,
        ts,
        memory,
        jnp.zeros(batch, jnp.float32),
        jnp.zeros((batch, len(EventKind)), jnp.int32),
        jnp.zeros(batch, jnp.int32),
        recorded,
    )
    goes_on = lambda carry: (carry[0] < num_ticks) & ~jnp.all(carry[2].last)  # noqa: E731
    _, _, ts, _, reward, calls, ticks, recorded = jax.lax.while_loop(goes_on, tick, start)
    return Played(reward=reward, ticks=ticks, stop_reason=ts.stop_reason, calls=calls, info=ts.info, events=recorded)


def rows(played: Played) -> list[dict[str, Any]]:
    """One row per episode: reward, everything in `TimeStep.info`, refused, stop reason, ticks, calls by kind."""
    info = {name: np.asarray(value).tolist() for name, value in played.info.items()}
    refused = np.sum([np.asarray(played.info[name]) for name in REFUSED], axis=0).tolist()
    reward, ticks = np.asarray(played.reward).tolist(), np.asarray(played.ticks).tolist()
    reasons, calls = np.asarray(played.stop_reason).tolist(), np.asarray(played.calls).tolist()
    return [
        {
            "reward": reward[b],
            **{name: values[b] for name, values in info.items()},
            "refused": refused[b],
            "stop_reason": StopReason(reasons[b]).name.lower(),
            "ticks": ticks[b],
            "calls": {kind.name.lower(): calls[b][kind] for kind in EventKind},
        }
        for b in range(len(reward))
    ]


def first_events(played: Played) -> Event:
    """The events of the first episode as NumPy arrays [T, N], up to its end."""
    return jax.tree.map(lambda x: np.asarray(x)[: int(played.ticks[0])], played.events)


def draw(played: Played, env: Env, **options: Any) -> bytes:
    """A picture of the first episode, with the names of the environment; options as for `picture.draw`."""
    from ddpomdp import picture

    names: Mapping[str, Any] = {"role_names": env.spec.roles, "tool_names": env.spec.tools}
    return picture.draw(first_events(played), **names, **options)
