"""Random play shared by the tests: batches of episodes under random legal turns, as numpy.

Axis letters: T tick, B batch, N slot, P parent place.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import make, wrappers
from ddpomdp.pytree import replace
from ddpomdp.testing.episodes import sample
from ddpomdp.testing.trees import differing  # noqa: F401  the tests take it from here
from ddpomdp.topology import TOPOLOGIES, Topology

SHAPES: dict[str, dict[str, Any]] = {
    "swarm": {
        "preset": "tiny",
        "capacity": 6,
        "num_subtasks": 4,
        "max_ticks": 160,
        "poison": 0.2,
        "unanswerable": 0.2,
        "counts": (1, 2, 4),
    },
    "hierarchical": {
        "preset": "tiny",
        "topology": "hierarchical",
        "capacity": 10,
        "max_ticks": 64,
        "poison": 0.2,
        "unanswerable": 0.2,
        "counts": (1, 2, 4),
    },
    "narrow": {"preset": "tiny", "topology": "narrow", "capacity": 10, "max_ticks": 64, "counts": (1, 2)},
}
# Deeper than any topology of the table and with too few parent places, so that places are refused.
NARROW = Topology("narrow", spawn=True, max_depth=3, max_parents=3, sub_leads=True, peers=True)


def make_shape(name: str) -> Any:
    """One of `SHAPES` as an environment."""
    TOPOLOGIES["narrow"] = NARROW
    try:
        return make("Search-v0", **SHAPES[name])
    finally:
        del TOPOLOGIES["narrow"]


@dataclass(frozen=True)
class Played:
    """A batch of episodes back to back; everything numpy, axes [T, B, ...]."""

    env: Any
    before: Any  # what was seen before the turn: uid, alive, parent_uid, depth, place_holder_uid, clock_ms, returned
    turns: np.ndarray  # int32[T,B,N,1+A]
    after: Any  # TimeStep without observation, before any reset
    state: Any  # the same as `before`, after the step (of the new episode where one ended)


def _seen(running: Any, ts: Any) -> dict[str, jax.Array]:
    """What the checks need of the state, in terms of uids."""
    lives, holder = running.state.lives, running.state.place_slot
    parent = jnp.take(holder, jnp.maximum(lives.home, 0))
    return {
        "uid": ts.uid,
        "alive": ts.alive,
        "turn": ts.turn,
        "lineage": ts.lineage,
        "blocked": ts.blocked,
        "tools": ts.legal.tools,
        "parent_uid": jnp.where(lives.alive & (lives.home >= 0), jnp.take(lives.uid, parent), -1),
        "depth": lives.depth,
        "role": lives.role,
        "clock_ms": lives.clock_ms,
        "returned": lives.returned & lives.alive,
        "unread": lives.unread & lives.alive,
        "holder_uid": jnp.where(holder >= 0, jnp.take(lives.uid, jnp.maximum(holder, 0)), -1),
        "queue_len": running.state.queue_len,
    }


def random_play(env: Any, num_envs: int, num_ticks: int, seed: int = 0, stoppers: int = 8) -> Played:
    """Play `num_envs` episodes at a time for `num_ticks`.

    The root may stop in every `stoppers`-th of them only; in every second one nobody waits of free will.
    """
    vector = wrappers.Vector(env, num_envs, "same_step")
    may_stop = jnp.arange(num_envs) % stoppers == 0
    may_wait = jnp.arange(num_envs) % 2 == 1
    watch = jax.vmap(_seen)

    @jax.jit
    def play(key: jax.Array) -> Any:
        running, ts = vector.reset(key)

        def tick(carry: Any, _: Any) -> Any:
            running, ts = carry
            noise = jax.vmap(lambda luck: jax.random.fold_in(luck, 2))(running.luck)
            turns = jax.vmap(lambda *of: sample(env, *of))(noise, ts, may_stop, may_wait)
            before = watch(running, ts)
            running, ts, final = vector.step(running, turns)
            return (running, ts), (before, turns, replace(final, observation=None), watch(running, ts))

        return jax.lax.scan(tick, (running, ts), None, length=num_ticks)[1]

    before, turns, after, state = jax.tree.map(np.asarray, play(jax.random.key(seed)))
    return Played(env, before, turns, after, state)


class Game:
    """An environment with compiled `reset` and `step`, played call by call; compiled once per test run."""

    def __init__(self, env: Any):
        self.env = env
        self.reset, self.step, self.sample = jax.jit(env.reset), jax.jit(env.step), jax.jit(env.sample_turns)


@cache
def game(**options: Any) -> Game:
    """Search-v0 with options, or one of `SHAPES` by `shape`."""
    return Game(make_shape(options["shape"]) if "shape" in options else make("Search-v0", **options))


class Run:
    """One episode of a `Game`: calls by uid, everyone else waits."""

    def __init__(self, game: Game, seed: int = 0, **service: int):
        self.game, self.env = game, game.env
        self.luck = jax.random.key(1_000 + seed)
        self.state, self.ts = game.reset(jax.random.key(seed), self.luck)
        numbers = {name: jnp.int32(value) for name, value in service.items()}
        self.params = replace(self.env.params, service=replace(self.env.params.service, **numbers))

    def slot(self, uid: int) -> int:
        """Where a living uid is."""
        return int(np.flatnonzero(np.asarray(self.ts.uid) == uid)[0])

    def of(self, uid: int, name: str) -> Any:
        """A field of a life in the state, as numpy."""
        return np.asarray(getattr(self.state.lives, name))[self.slot(uid)]

    def turns(self, **calls: Any) -> np.ndarray:
        """int32[N, 1+A] from `u<uid>=("tool", {argument: value})`, a tool's name, or tokens."""
        turns = np.zeros((self.env.spec.capacity, 1 + self.env.spec.num_args), np.int32)
        for name, call in calls.items():
            call = (call, {}) if isinstance(call, str) else call
            is_named = isinstance(call[0], str)
            turns[self.slot(int(name[1:]))] = self.env.harness.turn(call[0], **call[1]) if is_named else call
        return turns

    def step(self, **calls: Any) -> Any:
        """Take a tick and return its TimeStep; every call given has to be legal."""
        turns = self.turns(**calls)
        ok = np.asarray(self.env.harness.is_legal(self.ts.legal, jnp.asarray(turns)))
        for name in calls:
            assert ok[self.slot(int(name[1:]))], f"{name}: {calls[name]} is not legal"
        return self.take(turns)

    def take(self, turns: np.ndarray) -> Any:
        """Take a tick with turns int32[N, 1+A] as they are."""
        self.state, self.ts = self.game.step(self.luck, self.state, turns, self.params)
        return self.ts

    def until_free(self, uid: int = 0, **calls: Any) -> None:
        """Let the others wait, or repeat their calls, until a life may decide."""
        for _ in range(100):
            if not self.ts.blocked[self.slot(uid)]:
                return
            self.step(**calls)
        raise AssertionError(f"{uid} stays blocked")

    def may(self, uid: int, tool: str) -> bool:
        """Whether a tool is legal."""
        return bool((int(self.ts.legal.tools[self.slot(uid)]) >> self.env.harness.tool(tool)) & 1)

    def info(self, name: str) -> float:
        """A number of `info`."""
        return self.ts.info[name].item()
