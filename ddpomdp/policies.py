"""Policies: (observation, legal, carry) -> turn. Random, scripted, frozen and learned ones are all this."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ddpomdp.env import Env
from ddpomdp.harness import WAIT, WAIT_FOR
from ddpomdp.pytree import in_rank
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


def lines_of(turns: Iterable) -> tuple[tuple[int, ...], ...]:
    """Turns int32[1+A] as the lines of a `Script`."""
    return tuple(tuple(int(token) for token in turn) for turn in turns)


@dataclass(frozen=True)
class Script:
    """The root follows a list of turns; everyone else follows the task's worker rule.

    Lines in `repeated` are said again and again while they are legal, others once; a line that is not legal when its
    turn comes is left out (up to `SKIP` in a row). The last line is repeated. A `wait` that ran into its deadline with
    children still out is said again.

    The lines are the policy's parameters, and take no part in comparing policies: all scripts of one environment are
    one program, so that those of about the same length share a compilation.
    """

    env: Env
    lines: tuple[tuple[int, ...], ...] = field(compare=False)  # turns of the root
    repeated: tuple[int, ...] = field(default=(), compare=False)  # indices of lines

    SKIP = 4
    PAD = 8

    def init(self, env: Env) -> tuple[jax.Array, jax.Array]:
        """(lines int32[L, 1+A], repeated bool[L]), filled up with the last line to a multiple of `PAD`."""
        padding = -len(self.lines) % self.PAD
        lines = jnp.asarray((*self.lines, *(self.lines[-1],) * padding), jnp.int32)
        return lines, jnp.asarray([index in self.repeated for index in range(len(lines))])

    def carry(self, env: Env) -> jax.Array:
        """int32[N]: next line of the script."""
        return jnp.zeros(env.spec.capacity, jnp.int32)

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """The script's line for the root, the worker rule for the rest; blocked lives wait."""
        lines, stays = params
        last = lines.shape[0] - 1
        is_root = (ts.uid == 0) & ts.alive
        free = is_root & ~ts.blocked
        # One life follows the script, so its line is one number.
        mine = lambda x: jnp.sum(jnp.where(in_rank(is_root, x), x, 0), axis=0, keepdims=True, dtype=x.dtype)  # noqa: E731
        acts, line, legal = jnp.any(free), mine(carry)[0], jax.tree.map(mine, ts.legal)
        said = line - 1
        # Only waits with something to wait for count; `children_out` is the bound of `wait`.
        out = legal.bounds[0, 0] > 1
        came_back = (said >= 0) & (lines[said, 0] == WAIT) & (lines[said, 1] == WAIT_FOR.index("all")) & out
        line = jnp.where(acts & came_back, said, line)
        for _ in range(self.SKIP):
            mute = ~self.env.harness.is_legal(legal, lines[line][None])[0]
            line = jnp.where(acts & mute & (line < last), line + 1, line)
        turns = jnp.where(free[:, None], lines[line], self.env.worker_turns(ts))
        turns = jnp.where((is_root & ts.blocked)[:, None], 0, turns)
        onward = jnp.where(stays[line], line, jnp.minimum(line + 1, last))
        return turns, jnp.where(free, onward, carry), {}


@dataclass(frozen=True)
class ByRole:
    """Different policies for different roles. Parameters are a dict by role: parts may be left out of a gradient."""

    parts: tuple[tuple[str, Policy], ...]
    roles: tuple[str, ...]

    def init(self, env: Env) -> dict[str, Any]:
        """Parameters of each part, by role."""
        return {role: part.init(env) for role, part in self.parts}

    def carry(self, env: Env) -> dict[str, Any]:
        """Memory of each part, by role."""
        return {role: part.carry(env) for role, part in self.parts}

    def act(self, params: Any, key: jax.Array, carry: Any, ts: TimeStep) -> tuple[jax.Array, Any, Any]:
        """Each slot's turn from the part of its role; aux holds `logp` and the parts' own, by role."""
        turns = jnp.zeros_like(ts.events.tokens)
        logp = jnp.zeros(turns.shape, jnp.float32)
        memory, auxes = {}, {}
        for role, part in self.parts:
            chosen, memory[role], aux = part.act(params[role], key, carry[role], ts)
            mine = (ts.observation.self[:, self.roles.index(role)] > 0)[:, None]  # the first features name the role
            turns = jnp.where(mine, chosen, turns)
            if isinstance(aux, dict) and "logp" in aux:
                logp = jnp.where(mine, aux["logp"], logp)
            auxes[role] = aux
        return turns, memory, {"logp": logp, "parts": auxes}


def by_role(policies: Mapping[str, Any]) -> ByRole:
    """Compose a policy from one per role; every role of the environment needs one.

    Args:
      policies: a policy per role name; at least one knows its environment (attribute `env`).

    Raises:
      ValueError: a role is missing or unknown.
    """
    env = next((part.env for part in policies.values() if hasattr(part, "env")), None)
    if env is None:
        raise ValueError("by_role: none of the policies knows its environment (attribute `env`)")
    roles = env.spec.roles
    if set(policies) != set(roles):
        raise ValueError(f"policies for roles {', '.join(policies)}: the roles are {', '.join(roles)}")
    return ByRole(tuple((role, policies[role]) for role in roles), roles)
