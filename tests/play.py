"""Random play shared by the tests: batches of episodes under random legal turns, as numpy.

Axis letters: T tick, B batch, N slot, P parent place.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp import make, wrappers
from ddpomdp.harness import STOP
from ddpomdp.luck import Purpose, draw
from ddpomdp.pytree import replace
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
NARROW = Topology("narrow", spawn=True, max_depth=3, max_parents=3, sub_leads=True, peers=True, lead_works=False)


def make_shape(name: str) -> Any:
    """One of `SHAPES` as an environment."""
    TOPOLOGIES["narrow"] = NARROW
    try:
        return make("Search-v0", **SHAPES[name])
    finally:
        del TOPOLOGIES["narrow"]


def sample(env: Any, key: jax.Array, ts: Any, may_stop: Any = True, may_wait: Any = True) -> jax.Array:
    """Random legal turns int32[N, 1+A]; without `stop`, or `wait` where another call is legal, if they may not."""
    pairs = (2 + env.spec.num_args) // 2
    words = [draw(key, ts.lineage, ts.turn, Purpose.POLICY + i) for i in range(pairs)]
    flat = [word[:, i] for word in words for i in range(2)]
    tools = jnp.where(may_stop, ts.legal.tools, ts.legal.tools & ~(1 << STOP))
    tools = jnp.where(may_wait | (tools == 1), tools, tools & ~1)
    return env.harness.sample(flat[: 1 + env.spec.num_args], replace(ts.legal, tools=tools))


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
