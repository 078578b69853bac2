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
from ddpomdp.rollouts import episodes
from ddpomdp.timestep import Event, TimeStep

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
    kinds = jnp.arange(len(EventKind), dtype=jnp.int32)

    def record(ts: TimeStep, turns: jax.Array, aux: Any, next_ts: TimeStep) -> tuple[jax.Array, jax.Array, Event]:
        events = next_ts.events
        reward = jnp.sum(jnp.where(events.uid == 0, next_ts.reward, 0.0), axis=-1)
        counts = events.valid & ((events.kind != EventKind.WAIT) | events.is_decision)
        calls = jnp.sum(counts[..., None] & (events.kind[..., None] == kinds), axis=1, dtype=jnp.int32)
        return reward, calls, jax.tree.map(lambda x: x[0], events)

    batch = episodes(env, policy, params, keys, luck, num_ticks, env_params, record)
    reward, calls, events = batch.recorded
    return Played(
        reward=jnp.sum(reward, axis=0),
        ticks=batch.ticks,
        stop_reason=batch.ts.stop_reason,
        calls=jnp.sum(calls, axis=0),
        info=batch.ts.info,
        events=events,
    )


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
