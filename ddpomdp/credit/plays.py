"""The three compiled programs behind credit: go to a moment of an episode, ask for alternatives, play on from there.

Each takes batches of any length in chunks of one size, so that an environment and a policy compile each program once.

Axis letters: B lane, T tick, N slot, A argument position, U life, K alternative.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.env import Env
from ddpomdp.harness import RETURN
from ddpomdp.luck import threefry
from ddpomdp.params import Params
from ddpomdp.policies import Policy
from ddpomdp.rollouts import renewed
from ddpomdp.state import State
from ddpomdp.timestep import TimeStep

LANES = 256  # of a chunk, where memory allows
LOGGED = 2**22  # hashes of events that a chunk may keep


@dataclass(frozen=True)
class Player:
    """An environment, a policy and their numbers."""

    env: Env
    policy: Policy
    params: Any
    env_params: Params
    at_most: int = LANES  # episodes of a chunk: fewer where a world is large and few episodes are wanted

    @property
    def lanes(self) -> int:
        """Episodes of a chunk."""
        spec = self.env.spec
        return min(int(np.clip(LOGGED // (spec.max_ticks * spec.capacity), 8, LANES)), self.at_most)

    def ordinary(self, keys: jax.Array, luck: jax.Array) -> "Ordinary":
        """Whole episodes, in numpy, episodes first."""
        return self._chunked(_until, keys, luck, np.full(len(keys), self.env.spec.max_ticks, np.int32), part=0)

    def advance(self, keys: jax.Array, luck: jax.Array, until: np.ndarray) -> "Moment":
        """Moments [B] before tick `until` int[B] of the episodes that these keys give."""
        return self._chunked(_until, keys, luck, np.asarray(until, np.int32), part=1)

    def alternatives(self, keys: jax.Array, moment: "Moment", slot: np.ndarray, uniform: bool) -> np.ndarray:
        """int32[B, K, 1+A]: what that slot might do instead, by keys [B, K]: the policy's draws, or any legal turn."""
        program = partial(_alternatives, uniform=uniform)
        return self._chunked(program, keys, moment.ts, moment.memory, np.asarray(slot, np.int32))

    def play_on(
        self,
        moment: "Moment",
        luck: jax.Array,
        slot: np.ndarray | None = None,
        turn: np.ndarray | None = None,
        names: np.ndarray | None = None,
        muted: np.ndarray | None = None,
    ) -> "PlayedOn":
        """Episodes from moments to their end, one turn changed or some lives muted.

        Args:
          moment: moments [B].
          luck: keys [B].
          slot: int[B], whose next turn is changed; None: nobody's.
          turn: int32[B, 1+A], to what.
          names: uint32[U, 2], lineages of lives that may be muted.
          muted: bool[B, U], who returns what is new to it, nothing at first, as soon as it may, and else waits.
        """
        lanes, width = luck.shape[0], 1 + self.env.spec.num_args
        slot = np.full(lanes, -1) if slot is None else slot
        turn = np.zeros((lanes, width)) if turn is None else turn
        count = 0 if names is None else len(names)
        room = -(-max(count, 1) // self.env.spec.capacity) * self.env.spec.capacity
        names = np.zeros((0, 2), np.uint32) if names is None else names
        muted = np.zeros((lanes, 0), bool) if muted is None else muted
        names = np.pad(names, ((0, room - count), (0, 0))).astype(np.uint32)
        muted = np.pad(muted, ((0, 0), (0, room - count)))
        ints = np.asarray(slot, np.int32), np.asarray(turn, np.int32)
        return self._chunked(partial(_play_on, names=names), moment, luck, *ints, muted)

    def _chunked(self, program: Callable, *batched: Any, part: int | None = None) -> Any:
        """What the program gives over the batch (or one part of it), a chunk at a time, in numpy.

        The last chunk is filled up with lanes from its start. Everything between programs is numpy, as slices of
        other lengths would be small programs of their own.
        """
        count, lanes = jax.tree.leaves(batched)[0].shape[0], self.lanes
        parts = []
        for start in range(0, count, lanes):
            size = min(lanes, count - start)
            index = start + np.arange(lanes) % size
            chunk = jax.tree.map(lambda x: x[index], batched)  # noqa: B023
            out = program(self.env, self.policy, self.params, self.env_params, *chunk)
            parts.append(jax.tree.map(lambda x: np.asarray(x)[:size], out if part is None else out[part]))  # noqa: B023
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *parts)


def player(env: Env, policy: Any, params: Any, env_params: Params | None = None) -> Player:
    """A `Player`; numbers of the environment default to its own."""
    return Player(env, policy, params, env.params if env_params is None else env_params)


def away(env: Env) -> np.ndarray:
    """int32[1+A]: what an absent life says as soon as it may: what is new to it, nothing at first, at least detail."""
    return env.harness.turn("return", claims="new")


class Moment(NamedTuple):
    """Episodes at a moment, [B] each."""

    state: State
    ts: TimeStep
    memory: Any  # of the policy

    def at(self, lanes: np.ndarray) -> "Moment":
        """Those lanes, in that order."""
        return jax.tree.map(lambda x: x[lanes], self)


class Ordinary(NamedTuple):
    """Whole episodes."""

    returns: Any  # f32[B]        the team's
    ticks: Any  # int32[B]
    decides: Any  # bool[B,T,N]
    kind: Any  # int32[B,T,N]
    decision: Any  # int32[B,T,N]
    tokens: Any  # int32[B,T,N,1+A]


class PlayedOn(NamedTuple):
    """Episodes played from a state on."""

    returns: Any  # f32[B]        the team's, from there on
    ticks: Any  # int32[B]      ticks played
    log: Any  # uint32[B,T,N] hash of each life's event, 0 where it took no turn of its own


_static = partial(jax.jit, static_argnums=(0, 1))


@_static
def _until(
    env: Env, policy: Policy, params: Any, env_params: Params, keys: jax.Array, luck: jax.Array, until: jax.Array
) -> tuple[Ordinary, Moment]:
    """Play each episode to its tick int32[B]: what happened, and where it stands."""
    state, ts = jax.vmap(lambda key, luck: env.reset(key, luck, env_params))(keys, luck)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (keys.shape[0], *x.shape)), policy.carry(env))

    def one(luck: jax.Array, goes_on: jax.Array, now: Moment) -> tuple[Moment, Any]:
        turns, memory, _ = policy.act(params, jax.random.fold_in(luck, 2), now.memory, now.ts)
        state, ts = env.step(luck, now.state, turns, env_params)
        after = Moment(state, ts, renewed(env, policy, memory, now.ts, ts))
        kept = ts.team_return, ts.events.is_decision, ts.events.kind, ts.events.decision, ts.events.tokens
        kept = jax.tree.map(lambda x: jnp.where(goes_on & ~now.ts.last, x, jnp.zeros_like(x)), kept)
        return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), after, now), kept

    def tick(carry: tuple) -> tuple:
        t, now, ticks, log = carry
        runs = (t < until) & ~now.ts.last
        now, kept = jax.vmap(one)(luck, t < until, now)
        log = jax.tree.map(lambda log, x: log.at[t].set(x), log, kept)
        return t + 1, now, ticks + runs.astype(jnp.int32), log

    start = Moment(state, ts, memory)
    shapes = jax.eval_shape(jax.vmap(one), luck, until > 0, start)[1]
    log = jax.tree.map(lambda x: jnp.zeros((env.spec.max_ticks, *x.shape), x.dtype), shapes)
    goes_on = lambda carry: (carry[0] < jnp.max(until)) & ~jnp.all(carry[1].ts.last)  # noqa: E731
    carry = (jnp.int32(0), start, jnp.zeros_like(until), log)
    _, now, ticks, (paid, *events) = jax.lax.while_loop(goes_on, tick, carry)
    return Ordinary(jnp.sum(paid, axis=0), ticks, *(jnp.moveaxis(x, 1, 0) for x in events)), now


@partial(jax.jit, static_argnums=(0, 1), static_argnames="uniform")
def _alternatives(
    env: Env,
    policy: Policy,
    params: Any,
    env_params: Params,
    keys: jax.Array,
    ts: TimeStep,
    memory: Any,
    slot: jax.Array,
    *,
    uniform: bool,
) -> jax.Array:
    def of(keys: jax.Array, ts: TimeStep, memory: Any, slot: jax.Array) -> jax.Array:
        act = lambda key: env.sample_turns(key, ts) if uniform else policy.act(params, key, memory, ts)[0]  # noqa: E731
        return jax.vmap(lambda key: act(key)[slot])(keys)

    return jax.vmap(of)(keys, ts, memory, slot)


@_static
def _play_on(
    env: Env,
    policy: Policy,
    params: Any,
    env_params: Params,
    moment: Moment,
    luck: jax.Array,
    slot: jax.Array,
    turn: jax.Array,
    muted: jax.Array,
    *,
    names: jax.Array,
) -> PlayedOn:
    num_ticks, num_slots = env.spec.max_ticks, env.spec.capacity
    empty = jnp.asarray(away(env))
    noise = jax.vmap(lambda key: jax.random.fold_in(key, 2))(luck)

    def one(t, luck, noise, slot, turn, muted, state, ts, memory):
        turns, memory, _ = policy.act(params, noise, memory, ts)
        chosen = (jnp.arange(num_slots) == slot) & (t == 0)
        turns = jnp.where(chosen[:, None], turn, turns)
        mute = jnp.any(muted & jnp.all(ts.lineage[:, None, :] == names[None], axis=-1), axis=-1)
        back = mute & ((ts.legal.tools >> RETURN) & 1 == 1)
        turns = jnp.where(back[:, None], empty, jnp.where(mute[:, None], 0, turns))
        state, next_ts = env.step(luck, state, turns, env_params)
        memory = renewed(env, policy, memory, ts, next_ts)
        return state, next_ts, memory, next_ts.team_return, _hashes(ts, next_ts)

    def tick(carry: tuple) -> tuple:
        t, state, ts, memory, total, ticks, log = carry
        runs = ~ts.last
        state, ts, memory, paid, hashes = jax.vmap(partial(one, t))(luck, noise, slot, turn, muted, state, ts, memory)
        return t + 1, state, ts, memory, total + paid, ticks + runs.astype(jnp.int32), log.at[t].set(hashes)

    lanes = luck.shape[0]
    zero = jnp.zeros(lanes, jnp.float32)
    log = jnp.zeros((num_ticks, lanes, num_slots), jnp.uint32)
    start = (jnp.int32(0), *moment, zero, zero.astype(jnp.int32), log)
    goes_on = lambda carry: (carry[0] < num_ticks) & ~jnp.all(carry[2].last)  # noqa: E731
    _, _, _, _, total, ticks, log = jax.lax.while_loop(goes_on, tick, start)
    return PlayedOn(total, ticks, jnp.moveaxis(log, 1, 0))


def _hashes(ts: TimeStep, next_ts: TimeStep) -> jax.Array:
    """uint32[N]: a life's event by who it is, which of its turns, what it did and what came of it."""
    events = next_ts.events
    acts = ts.alive & (next_ts.turn != ts.turn) | (ts.alive & ~ts.blocked & (events.legal_count > 1))
    words = ts.lineage[:, 0], ts.lineage[:, 1]
    columns = [ts.turn, events.result_code, events.claims_received, events.claims_sent]
    columns += [events.tokens[:, i] for i in range(events.tokens.shape[1])]
    for first, second in zip(columns[::2], [*columns[1::2], ts.turn], strict=False):
        words = threefry(*words, first, second)
    return jnp.where(acts & (events.uid >= 0), words[0] | jnp.uint32(1), jnp.uint32(0))
