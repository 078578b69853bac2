"""What is timed: our environments with a team kept busy, and peers beside them. See `ddpomdp.bench.speed`.

Counted are turns of living agents in running episodes: the root that acts or waits for its children counts, an empty
slot and a finished episode do not. The team is a scripted swarm that hands its rows out again and again, or plays
random turns without `stop`. Episodes restart in the tick they end, and every number that a step gives to a learner is
summed, so that the compiler can leave out nothing. Peers play random actions, with their own automatic reset.

Axis letters: B episode, T tick, N slot.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import ddpomdp
from ddpomdp import wrappers
from ddpomdp.harness import STOP
from ddpomdp.policies import Policy, Script, lines_of
from ddpomdp.pytree import in_rank, replace
from ddpomdp.rollouts import renewed


class Case(NamedTuple):
    """One measurement: a program of a key that gives numbers, `turns` among them, and how its numbers are read."""

    about: str
    build: Callable[[], Callable[[jax.Array], dict[str, jax.Array]]]
    slots: int = 0  # agents per tick and episode times ticks times episodes: where all slots were alive
    compiled: bool = True


class Unstopping:
    """Random turns without `stop`."""

    def __init__(self, env: ddpomdp.Env):
        self.env = env

    def init(self, env: ddpomdp.Env) -> tuple:
        """No parameters."""
        return ()

    def carry(self, env: ddpomdp.Env) -> tuple:
        """No memory."""
        return ()

    def act(self, params: Any, key: jax.Array, carry: Any, ts: Any) -> tuple[jax.Array, Any, Any]:
        """Uniform over legal tokens but `stop`."""
        tools = ts.legal.tools & ~(1 << STOP)
        legal = replace(ts.legal, tools=jnp.where(tools == 0, ts.legal.tools, tools))
        return self.env.sample_turns(key, replace(ts, legal=legal)), carry, {}


def ours(
    batch: int, ticks: int, swarm: int | None, preset: str, reset: wrappers.AutoReset = "same_step", **options: Any
) -> Case:
    """Search-v0 with a swarm of so many, or with random turns."""

    def build() -> Callable[[jax.Array], dict[str, jax.Array]]:
        env = ddpomdp.make("Search-v0", preset=preset, **options)
        busy = Unstopping(env) if swarm is None else ddpomdp.policy("swarm", env, n=swarm, redundancy=1_000)
        return played(env, busy, batch, ticks, reset)

    capacity = options.get("capacity") or {"small": 16, "stress": 300, "k2.6": 301, "k2.5": 101}[preset]
    about = f"Search-v0 {preset}, {'random turns' if swarm is None else f'swarm of {swarm}'}"
    return Case(f"{about}, batch {batch}, {ticks} ticks, reset {reset}", build, slots=batch * ticks * capacity)


def full(env_id: str, batch: int, ticks: int, teams: dict[str, tuple[int, ...]]) -> Case:
    """A task of preset `small` with a team that fills its slots, handed its rows again whenever all are back."""

    def build() -> Callable[[jax.Array], dict[str, jax.Array]]:
        env = ddpomdp.make(env_id, preset="small", topology="swarm")

        def turn(name: str, **given: Any) -> jax.Array:
            arguments = env.harness.tools[env.harness.tool(name)].arguments
            return env.harness.turn(name, **{a.name: given.get(a.name, a.values[0]) for a in arguments})

        lines = [turn("spawn", role=role, count=count, chunk=4) for role, counts in teams.items() for count in counts]
        lines += [turn("wait", **{"for": "all"}), turn("aggregate"), turn("delegate", to="all_idle", rows="again")] * 64
        return played(env, Script(env, lines_of([*lines, turn("stop")])), batch, ticks)

    return Case(f"{env_id} small, a full team, batch {batch}, {ticks} ticks", build, slots=batch * ticks * 16)


def played(
    env: ddpomdp.Env, policy: Policy, batch: int, ticks: int, reset: wrappers.AutoReset = "same_step"
) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """A program that plays `batch` episodes for so many ticks and counts."""
    params, vector = policy.init(env), wrappers.auto_reset(env, batch, reset)
    fresh = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), policy.carry(env))

    def run(key: jax.Array) -> dict[str, jax.Array]:
        running, ts = vector.reset(key)

        def tick(carry: tuple, _: None) -> tuple[tuple, None]:
            running, ts, memory, total, counts = carry
            noise = jax.vmap(lambda luck: jax.random.fold_in(luck, 2))(running.luck)
            turns, memory, _ = jax.vmap(lambda *x: policy.act(params, *x))(noise, memory, ts)
            running, next_ts, final = vector.step(running, turns)
            # After an episode's end the root is a new life, whose memory begins afresh.
            memory = jax.vmap(lambda m, a, b: renewed(env, policy, m, a, b))(memory, ts, next_ts)
            memory = jax.tree.map(lambda f, m: jnp.where(in_rank(final.last, m), f, m), fresh, memory)
            # What a learner takes: what came of the turns, and what is seen next.
            out = dataclasses.replace(final, observation=next_ts.observation, legal=next_ts.legal)
            total = total + summed(out)
            flags = ts.alive, final.events.is_decision, final.last
            counts = counts + jnp.stack([jnp.sum(flag, dtype=jnp.int32) for flag in flags])
            return (running, next_ts, memory, total, counts), None

        start = (running, ts, fresh, jnp.float32(0), jnp.zeros(3, jnp.int32))
        (_, _, _, total, counts), _ = jax.lax.scan(tick, start, length=ticks)
        return {"total": total, "turns": counts[0], "decisions": counts[1], "ends": counts[2]}

    return run


def lanes(batch: int, ticks: int, branches: bool) -> Case:
    """Search-v0, small: so many ordinary episodes, or so many branches of one mid-episode state; all slots counted."""

    def build() -> Callable[[jax.Array], dict[str, jax.Array]]:
        env = ddpomdp.make("Search-v0", preset="small")
        busy, random = ddpomdp.policy("swarm", env, n=15, redundancy=1_000), Unstopping(env)
        params = busy.init(env)
        turns = jnp.int32(batch * ticks * env.spec.capacity)

        def ordinary(key: jax.Array) -> dict[str, jax.Array]:
            def one(key: jax.Array) -> jax.Array:
                luck = jax.random.fold_in(key, 1)
                state, ts = env.reset(key, luck)
                start = (state, ts, busy.carry(env), jnp.float32(0))
                return jax.lax.scan(lambda c, _: (ticked(luck, *c), None), start, length=ticks)[0][3]

            return {"total": jnp.sum(jax.vmap(one)(jax.random.split(key, batch))), "turns": turns}

        def branched(key: jax.Array) -> dict[str, jax.Array]:
            luck = jax.random.fold_in(key, 1)
            state, ts = env.reset(key, luck)
            start = (state, ts, busy.carry(env), jnp.float32(0))
            middle = jax.lax.scan(lambda c, _: (ticked(luck, *c), None), start, length=16)[0]
            other = jax.vmap(lambda key: random.act((), key, (), middle[1])[0][0])(jax.random.split(key, batch))
            more = {"memory": middle[2], "num_ticks": ticks}
            returns = ddpomdp.branch(env, middle[0], 0, other, busy, params, luck[None], **more)
            return {"total": jnp.sum(returns), "turns": turns}

        def ticked(luck: jax.Array, state: Any, ts: Any, memory: Any, total: jax.Array) -> tuple:
            turns, memory, _ = busy.act(params, jax.random.fold_in(luck, 2), memory, ts)
            state, next_ts = env.step(luck, state, turns)
            return state, next_ts, renewed(env, busy, memory, ts, next_ts), total + next_ts.team_return

        return branched if branches else ordinary

    what = "branches of a state" if branches else "episodes"
    return Case(f"Search-v0 small, {batch} {what}, {ticks} ticks", build, slots=batch * ticks * 16)


def summed(tree: Any) -> jax.Array:
    """Every number of a tree in one."""
    return sum((jnp.sum(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)), start=jnp.float32(0))


# Peers -------------------------------------------------------------------------------------------------------------


def jaxmarl(name: str, batch: int, ticks: int) -> Case:
    """An environment of JaxMARL with random actions and its automatic reset."""

    def build() -> Callable[[jax.Array], dict[str, jax.Array]]:
        import jaxmarl as library  # pyright: ignore[reportMissingImports]

        env = library.make(name)
        spaces = [env.action_space(agent) for agent in env.agents]

        def run(key: jax.Array) -> dict[str, jax.Array]:
            _, state = jax.vmap(env.reset)(jax.random.split(key, batch))

            def tick(carry: tuple, index: jax.Array) -> tuple[tuple, None]:
                state, total = carry
                keys = jax.random.split(jax.random.fold_in(key, index), 1 + len(env.agents))
                many = [jax.random.split(k, batch) for k in keys]
                acts = {a: jax.vmap(s.sample)(k) for a, s, k in zip(env.agents, spaces, many[1:], strict=True)}
                obs, state, *rest = jax.vmap(env.step)(many[0], state, acts)
                return (state, total + summed((obs, rest))), None

            (_, total), _ = jax.lax.scan(tick, (state, jnp.float32(0)), jnp.arange(ticks))
            return {"total": total, "turns": jnp.int32(batch * ticks * len(env.agents))}

        return run

    return Case(f"JaxMARL {name}, batch {batch}, {ticks} steps", build)


def pettingzoo(ticks: int) -> Case:
    """Simple spread in Python, one environment, random actions."""

    def build() -> Callable[[Any], dict[str, Any]]:
        from mpe2 import simple_spread_v3  # pyright: ignore[reportMissingImports]

        env = simple_spread_v3.parallel_env()

        def run(_: Any) -> dict[str, Any]:
            turns = 0
            for _ in range(ticks):
                if not env.agents:
                    env.reset(seed=0)
                turns += len(env.agents)
                env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            return {"turns": turns}

        return run

    return Case(f"PettingZoo simple_spread, Python, {ticks} steps", build, compiled=False)


def gymnasium(steps: int) -> Case:
    """Steps of the Gymnasium view, and the milliseconds that one takes above its compiled program."""

    def build() -> Callable[[Any], dict[str, Any]]:
        import gymnasium as library
        import numpy as np

        env: Any = library.make("ddpomdp:ddpomdp/Search-v0", preset="small").unwrapped
        rng = np.random.default_rng(0)

        def run(_: Any) -> dict[str, Any]:
            env.reset(seed=0)
            whole, inside = [], []
            program = env._program
            for _ in range(steps):
                action = int(rng.choice(np.flatnonzero(env.action_masks())))
                turn = program.actions.turn(action, "action")
                began = time.perf_counter()
                jax.block_until_ready(program.one_step(env._luck, env._state, turn, False))
                inside.append(time.perf_counter() - began)
                began = time.perf_counter()
                *_, terminated, truncated, _ = env.step(action)
                whole.append(time.perf_counter() - began)
                if terminated or truncated:
                    env.reset()
            above = 1_000 * (statistics.median(whole) - statistics.median(inside))
            return {"turns": steps, "above_ms": above, "step_ms": 1_000 * statistics.median(whole)}

        return run

    return Case(f"Gymnasium view, small, {steps} steps", build, compiled=False)


# Three quarters of an episode: the growth of a team weighs little, and searchers have turns left to search.
CASES = {
    "small-64": ours(64, 256, 15, "small"),
    "small-1024": ours(1_024, 192, 15, "small"),
    "small-1024-random": ours(1_024, 192, None, "small"),
    # The other tasks beside Search-v0, all with fifteen workers.
    "math-1024": full("Math-v0", 1_024, 192, {"solver": (8, 1), "executor": (1, 1), "verifier": (4,)}),
    "datascience-1024": full("DataScience-v0", 1_024, 192, {"engineer": (4, 1), "modeler": (4, 1), "analyst": (4, 1)}),
    "stress": ours(1, 4_000, 299, "stress"),
    "k2.6": ours(1, 30, 300, "k2.6"),  # the 4,000 calls of an episode
    # Cost per turn against the size of the team, at about equal lanes.
    "slots-16": ours(1_024, 64, 15, "stress", capacity=16, num_subtasks=64),
    "slots-300": ours(54, 64, 299, "stress", num_subtasks=64),
    "slots-600": ours(27, 64, 599, "stress", capacity=600, num_subtasks=64),
    # What a reset costs: an episode of 256 ticks and the start of the next, against none.
    "reset-1024": ours(1_024, 264, 15, "small"),
    "no-reset-1024": ours(1_024, 264, 15, "small", "off"),
    # Branches of one state against as many episodes.
    "episodes-1024": lanes(1_024, 64, branches=False),
    "branches-1024": lanes(1_024, 64, branches=True),
    "gymnasium": gymnasium(300),
    "spread-64": jaxmarl("MPE_simple_spread_v3", 64, 256),
    "spread-1024": jaxmarl("MPE_simple_spread_v3", 1_024, 100),
    "smax-1024": jaxmarl("SMAX", 1_024, 25),
    "spread-python": pettingzoo(2_000),
}
