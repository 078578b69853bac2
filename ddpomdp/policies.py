"""Policies: (observation, legal, carry) -> turn. Random, scripted, frozen and learned ones are all this."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ddpomdp.env import Env
from ddpomdp.timestep import TimeStep


class Policy(Protocol):
    """What `rollout` needs. A policy's noise comes from its key, the lives' lineages and their own turn numbers."""

    def init(self, env: Env) -> Any:
        """Parameters to start from."""
        ...

    def carry(self, env: Env) -> Any:
        """Memory per slot, leading axis N, as a newborn has it."""
        ...

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """(turns int32[N, 1+A], carry, aux); aux may hold `logp` f32[N, 1+A]."""
        ...


@dataclass(frozen=True)
class Random:
    """Uniform over legal tokens, position by position."""

    env: Env

    def init(self, env: Env) -> tuple:
        """No parameters."""
        return ()

    def carry(self, env: Env) -> tuple:
        """No memory."""
        return ()

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """A uniform legal turn for every slot."""
        return self.env.sample_turns(key, ts), carry, {}


@dataclass(frozen=True)
class Script:
    """The lead follows a list of turns; everyone else follows the task's worker rule.

    A `wait` is repeated while children are still out (a deadline came first), any other turn is made once. The last
    turn is repeated if the episode has not ended. A turn that is not legal when its time comes is left out.
    """

    env: Env
    lead: tuple[tuple[int, ...], ...]  # turns of the root

    def init(self, env: Env) -> tuple:
        """No parameters."""
        return ()

    def carry(self, env: Env) -> jax.Array:
        """int32[N]: next line of the script."""
        return jnp.zeros(env.spec.capacity, jnp.int32)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """The script's line for the root, the worker rule for the rest; blocked lives wait."""
        lines = jnp.asarray(self.lead, jnp.int32)
        is_root = (ts.uid == 0) & ts.alive
        free = is_root & ~ts.blocked
        harness = self.env.harness
        # Skip lines that cannot be said now, at most all of them.
        line = carry
        for _ in range(len(self.lead)):
            mute = ~harness.is_legal(ts.legal, lines[jnp.minimum(line, len(self.lead) - 1)])
            line = jnp.where(free & mute & (line < len(self.lead) - 1), line + 1, line)
        said = lines[jnp.minimum(line, len(self.lead) - 1)]
        turns = jnp.where(free[:, None], said, self.env.worker_turns(ts))
        turns = jnp.where((is_root & ts.blocked)[:, None], 0, turns)
        return turns, jnp.where(free, jnp.minimum(line + 1, len(self.lead) - 1), carry), {}


@dataclass(frozen=True)
class ByRole:
    """Different policies for different roles."""

    parts: tuple[tuple[int, Policy], ...]

    def init(self, env: Env) -> tuple:
        """Parameters of each part."""
        return tuple(part.init(env) for _, part in self.parts)

    def carry(self, env: Env) -> tuple:
        """Memory of each part."""
        return tuple(part.carry(env) for _, part in self.parts)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """Each slot's turn from the part of its role."""
        turns = jnp.zeros_like(ts.events.tokens)
        carries, auxes = [], []
        role = jnp.argmax(ts.observation.self[:, : len(self.parts)], axis=-1)
        for (index, part), p, c in zip(self.parts, params, carry, strict=True):
            chosen, c, aux = part.act(p, key, c, ts)
            turns = jnp.where((role == index)[:, None], chosen, turns)
            carries.append(c)
            auxes.append(aux)
        return turns, tuple(carries), tuple(auxes)


def by_role(env: Env, policies: Mapping[str, Policy]) -> ByRole:
    """Compose a policy from one per role; every role of the environment needs one.

    Raises:
      ValueError: a role is missing or unknown.
    """
    roles = env.spec.roles
    unknown = sorted(set(policies) - set(roles))
    missing = [name for name in roles if name not in policies]
    if unknown or missing:
        raise ValueError(f"policies for roles {', '.join(policies)}: the roles are {', '.join(roles)}")
    return ByRole(tuple((i, policies[name]) for i, name in enumerate(roles)))


PolicyFactory = Callable[..., Policy]
