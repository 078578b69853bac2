"""Episodes under random legal turns, recorded as numpy: what the checks look at. Axis letters: T tick, N slot."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import LifeEnd
from ddpomdp.harness import AGGREGATE, FIRST_TASK_TOOL, RETURN, SPAWN, STOP
from ddpomdp.pytree import replace
from ddpomdp.testing.trees import difference, numpy


class Broken(AssertionError):
    """A rule is broken; the message says what was got and where."""


WORK = (-1 << FIRST_TASK_TOOL) | (1 << SPAWN) | (1 << RETURN) | (1 << AGGREGATE)


def sample(
    env: Any, key: jax.Array, ts: Any, may_stop: Any = True, may_wait: Any = True, busy: Any = False
) -> jax.Array:
    """Random legal turns int32[N, 1+A].

    Without `stop`, or `wait` where another call is legal, if they may not; where they can, the busy spawn, work, return
    and aggregate.
    """
    tools = jnp.where(may_stop, ts.legal.tools, ts.legal.tools & ~(1 << STOP))
    tools = jnp.where(may_wait | (tools == 1), tools, tools & ~1)
    tools = jnp.where(busy & ((tools & WORK) != 0), tools & WORK, tools)
    return env.sample_turns(key, replace(ts, legal=replace(ts.legal, tools=tools)))


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode until its end, or until it was cut. Everything but the states is numpy."""

    index: int
    key: jax.Array
    luck: jax.Array
    seen: Any  # TimeStep [T, ...]  before the turn
    turns: np.ndarray  # int32[T,N,1+A]
    after: Any  # TimeStep [T, ...]  what the turn led to
    states: list[Any]  # T+1 of them: before each turn, and the last
    odd: str | None  # how the outputs of a step differed in form from those of `reset`

    @cached_property
    def ended(self) -> bool:
        """Whether the end was reached."""
        return bool(self.after.last[-1])

    @cached_property
    def born(self) -> np.ndarray:
        """bool[T,N]: lives born in the tick."""
        return self.after.alive & ~self.seen.alive

    @cached_property
    def ends(self) -> np.ndarray:
        """bool[T,N]: lives that ended in the tick, by their events."""
        return self.after.events.end_reason != LifeEnd.ALIVE

    def sums(self, per_tick: np.ndarray) -> np.ndarray:
        """[T]: of [T] or [T, N], summed up to each tick in 64 bits."""
        rows = per_tick.reshape(len(per_tick), -1)
        return np.cumsum(rows.sum(axis=1, dtype=np.float64 if rows.dtype.kind == "f" else np.int64))

    def must(self, ok: Any, said: str, **got: Any) -> None:
        """`Broken` unless all of `ok` bool[T] or [T, N, ...] holds, showing the arrays `got` at the first place."""
        ok = np.asarray(ok)
        if ok.all():
            return
        at = tuple(int(i) for i in np.argwhere(~ok)[0])
        shown = []
        for name, value in got.items():
            value = np.asarray(value)
            value = value[at[: value.ndim]] if value.ndim else value
            shown.append(f"{name} {value.tolist()}")
        place = ", ".join(f"{axis} {i}" for axis, i in zip(("tick", "slot", "column"), at, strict=False))
        raise Broken(f"{said}: got {', '.join(shown) or 'the contrary'} in episode {self.index}, {place}")


def want(ok: Any, said: str) -> None:
    """`Broken` unless `ok`."""
    if not ok:
        raise Broken(said)


@lru_cache(maxsize=8)
def compiled_rule(harness: Any) -> Any:
    """The harness's own `is_legal`, compiled."""
    return jax.jit(harness.is_legal)


class Trial:
    """An environment on trial: its compiled functions and the episodes played with them."""

    def __init__(self, env: Any, num_episodes: int, max_ticks: int, seed: int, compiled: bool):
        self.env, self.spec, self.seed, self.compiled = env, env.spec, seed, compiled
        self.num_episodes, self.max_ticks = num_episodes, min(max_ticks, env.spec.max_ticks)
        self.traced: dict[str, int] = {}
        self.reset, self.step, self.observe = (self._compile(name) for name in ("reset", "step", "observe"))
        self.sample_turns = self._compile("sample_turns")
        self.sample = self._compile("sample", lambda *args: sample(env, *args))
        self.is_legal = compiled_rule(env.harness)

    def _compile(self, name: str, function: Any = None) -> Any:
        """A function of the environment, compiled; counts how often it is traced."""
        function = function or getattr(self.env, name)
        if self.compiled:
            return function

        def traced(*args: Any) -> Any:
            self.traced[name] = self.traced.get(name, 0) + 1
            return function(*args)

        return jax.jit(traced)

    @cached_property
    def episodes(self) -> list[Episode]:
        """The episodes, played at first use."""
        return [self._play(index) for index in range(self.num_episodes)]

    @cached_property
    def long(self) -> Episode:
        """The episode in which most lives were born, the longest of those: for what is looked at in one only."""
        return max(self.episodes, key=lambda episode: (int(episode.born.sum()), len(episode.turns)))

    def keys(self, index: int) -> tuple[jax.Array, jax.Array]:
        """(key of the task, luck) of an episode."""
        key = jax.random.fold_in(jax.random.key(self.seed), index)
        return key, jax.random.fold_in(key, 1)

    def choose(self, index: int, luck: jax.Array, ts: Any) -> np.ndarray:
        """The turns int32[N, 1+A] of an episode's policy.

        In every eighth it may stop, in another only with a team; in every second it may wait, in every fourth it works.
        """
        may_stop = index % 8 == 3 or (index % 8 == 7 and int(np.sum(ts.alive)) > 1)
        may_wait = index % 2 == 1
        return np.array(self.sample(jax.random.fold_in(luck, 2), ts, may_stop, may_wait, index % 4 == 2))

    def _play(self, index: int) -> Episode:
        key, luck = self.keys(index)
        state, ts = self.reset(key, luck)
        first = (state, ts)
        states, shown, turns, odd = [state], [numpy(ts)], [], None
        for _ in range(self.max_ticks):
            turn = self.choose(index, luck, ts)
            state, ts = self.step(luck, state, turn)
            odd = odd or difference((state, ts), first)
            if odd and len(turns):
                break
            states.append(state)
            shown.append(numpy(ts))
            turns.append(turn)
            if shown[-1].last:
                break
        seen, after = (jax.tree.map(lambda *xs: np.stack(xs), *part) for part in (shown[:-1], shown[1:]))
        return Episode(index, key, luck, seen, np.stack(turns), after, states, odd)

    def places(self, count: int, per_episode: int = 3) -> Iterator[tuple[Episode, int]]:
        """Up to `count` pairs (episode, tick) spread over the episodes, never the first tick only."""
        for episode in self.episodes[: -(-count // per_episode)]:
            length = len(episode.turns)
            for tick in sorted({length * (1 + i) // (1 + per_episode) for i in range(per_episode)}):
                yield episode, tick
