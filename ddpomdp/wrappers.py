"""Wrappers: batching, automatic reset, episode statistics. `Env.step` itself never resets."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from ddpomdp.env import Env
from ddpomdp.params import Params
from ddpomdp.pytree import pytree, where_needed
from ddpomdp.state import State
from ddpomdp.timestep import TimeStep

AutoReset = Literal["same_step", "next_step", "off"]


@pytree
class Running:
    """State of a `Vector`: episodes, the luck of each, and the key of the next reset. Axis B."""

    state: State
    luck: jax.Array  # keys [B]
    key: jax.Array  # keys [B]
    done: jax.Array  # bool[B]     next_step: the episode ended in the step before
    returns: jax.Array  # f32[B]      team reward of the present episode so far
    ticks: jax.Array  # int32[B]
    episodes: jax.Array  # int32[B]
    last_return: jax.Array  # f32[B]      of the episode that ended last
    last_ticks: jax.Array  # int32[B]


class Vector:
    """A batch of episodes with automatic reset.

    `autoreset`: "same_step" returns the first observation of the new episode in the step that ends the old one, with
    the old one's last TimeStep as `final`; "next_step" resets in the step after; "off" never resets.
    """

    def __init__(self, env: Env, num_envs: int, autoreset: AutoReset = "same_step"):
        """Batch `env`; ValueError for a batch below 1 or an unknown mode."""
        if num_envs < 1:
            raise ValueError(f"num_envs: got {num_envs}, must be at least 1")
        if autoreset not in ("same_step", "next_step", "off"):
            raise ValueError(f"autoreset: got {autoreset!r}, allowed: same_step, next_step, off")
        self.env, self.num_envs, self.autoreset = env, num_envs, autoreset

    def reset(self, key: jax.Array, params: Params | None = None) -> tuple[Running, TimeStep]:
        """Start `num_envs` episodes; episode b starts from the b-th of keys split from `key`."""
        keys = jax.random.split(key, self.num_envs)
        state, ts = jax.vmap(lambda key: self.env.reset(key, params=params))(keys)
        zero = jnp.zeros(self.num_envs, jnp.float32)
        ints = jnp.zeros(self.num_envs, jnp.int32)
        running = Running(
            state=state,
            luck=jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys),
            key=jax.vmap(lambda k: jax.random.fold_in(k, 3))(keys),
            done=jnp.zeros(self.num_envs, bool),
            returns=zero,
            ticks=ints,
            episodes=ints,
            last_return=zero,
            last_ticks=ints,
        )
        return running, ts

    def step(
        self, running: Running, turns: jax.Array, params: Params | None = None
    ) -> tuple[Running, TimeStep, TimeStep]:
        """One tick of every episode: turns int32[B, N, 1+A]. Returns (running, ts, final).

        `final` is the TimeStep before any reset: equal to `ts` where no episode was reset.
        """
        return jax.vmap(self._step, in_axes=(0, 0, None))(running, turns, params)

    def _step(self, running: Running, turns: jax.Array, params: Params | None) -> tuple[Running, TimeStep, TimeStep]:
        state, final = self.env.step(running.luck, running.state, turns, params)
        ends = final.last & ~running.state.ended
        returns = running.returns + final.team_return
        ticks = running.ticks + jnp.where(running.state.ended, 0, 1)
        last_return = jnp.where(ends, returns, running.last_return)
        last_ticks = jnp.where(ends, ticks, running.last_ticks)
        luck, key, ts = running.luck, running.key, final
        resets = ends if self.autoreset == "same_step" else running.done & (self.autoreset == "next_step")
        if self.autoreset != "off":
            state, ts, luck, key = where_needed(resets, self._fresh, (state, ts, luck, key), key, params)
        running = Running(
            state=state,
            luck=luck,
            key=key,
            done=ends,
            returns=jnp.where(resets, 0.0, returns),
            ticks=jnp.where(resets, 0, ticks),
            episodes=running.episodes + ends.astype(jnp.int32),
            last_return=last_return,
            last_ticks=last_ticks,
        )
        return running, ts, final

    def _fresh(self, key: jax.Array, params: Params | None) -> tuple[State, TimeStep, jax.Array, jax.Array]:
        """(state, ts, luck, key of the next reset) of a new episode."""
        luck = jax.random.fold_in(key, 1)
        return *self.env.reset(key, luck, params), luck, jax.random.fold_in(key, 3)


def auto_reset(env: Env, num_envs: int, mode: AutoReset = "same_step") -> Vector:
    """A batch of episodes that reset by themselves; see `Vector`."""
    return Vector(env, num_envs, mode)


def statistics(running: Running) -> dict[str, Any]:
    """Episodes finished per environment, and return and length of the last one."""
    return {"episodes": running.episodes, "return": running.last_return, "ticks": running.last_ticks}
