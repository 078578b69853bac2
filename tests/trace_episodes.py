"""Episodes for the tests of traces: one environment, compiled once for playing and for replaying alike.

Axis letters: T tick, N slot.
"""

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import play

from ddpomdp.enums import StopReason
from ddpomdp.trace import Trace, replaying

GARBLED = 3  # every so many ticks one turn is not legal


@dataclass(frozen=True)
class Episode:
    """What was played, and how."""

    key: jax.Array
    luck: jax.Array
    events: Any  # Event, numpy [T, N]
    last: Any  # TimeStep at the end
    trace: Trace


@cache
def env() -> Any:
    """Search-v0 with poisoned rows, small."""
    return play.make_shape("swarm")


@cache
def game() -> Any:
    """The environment with the very functions that replay it, as `play.Run` takes it."""
    made = env()
    return SimpleNamespace(
        env=made,
        reset=lambda key, luck: replaying._reset(made, key, luck, made.params),
        step=lambda luck, state, turns, params: replaying._step(made, luck, state, jnp.asarray(turns), params),
        sample=jax.jit(made.sample_turns),
    )


def finished(run: play.Run, seen: list[Any], seed: int, policy: str) -> Episode:
    """The episode of a run, of whose ticks `seen` holds the TimeSteps."""
    key = jax.random.key(seed)
    events = jax.tree.map(lambda *x: np.stack([np.asarray(y) for y in x]), *(ts.events for ts in seen))
    last = seen[-1]
    trace = Trace.from_events(
        env(),
        events,
        key,
        run.luck,
        policy=policy,
        env_params=run.params,
        stop_reason=StopReason(int(last.stop_reason)).name.lower(),
        info=last.info,
    )
    return Episode(key, run.luck, events, last, trace)


@cache
def random_episode(seed: int, garbled: bool = False, most: int = 60) -> Episode:
    """Random legal turns, the root stopping late; with `garbled`, some turns no harness allows."""
    run, seen = play.Run(game(), seed), []
    rng = np.random.default_rng(seed)
    while not run.ts.last and len(seen) < most:
        turns = np.array(game().sample(jax.random.fold_in(run.luck, 2), run.ts))
        stop = env().harness.tool("stop")
        turns[turns[:, 0] == stop] = 0 if len(seen) < 25 else stop
        turns[turns[:, 0] == stop, 1:] = 0
        if garbled and len(seen) % GARBLED == 0:
            turns[rng.integers(len(turns)), rng.integers(turns.shape[1])] = rng.integers(-5, 40)
        seen.append(run.take(turns))
    return finished(run, seen, seed, "random")


@cache
def scripted_episode(seed: int = 0) -> Episode:
    """Two searchers work their windows and talk; the lead reads, hands out again, dismisses one and stops."""
    run, seen = play.Run(game(), seed), []

    def step(**calls: Any) -> None:
        seen.append(run.step(**calls))

    def work(*uids: int) -> None:
        """Search while there are rows, then return."""
        for _ in range(60):
            busy = [u for u in uids if not run.of(u, "returned")]
            if not busy:
                return
            calls = {}
            for u in busy:
                tool = "search" if run.may(u, "search") else "return"
                calls[f"u{u}"] = tool if tool == "search" else ("return", {"claims": "all", "detail": "full"})
            step(**calls)
        raise AssertionError("the searchers never return")

    def free() -> None:
        while run.ts.blocked[run.slot(0)]:
            step()

    step(u0=("spawn", {"role": "searcher", "count": 2, "chunk": "even", "brief": "detailed"}))
    step(u0=("message", {"to": "children", "claims": "all", "detail": "full"}), u1="search", u2="search")
    step(u1="search", u2="search")
    step(u1=("message", {"to": "parent", "claims": "all", "detail": "full"}))
    free_calls = {"u0": ("wait", {"for": "all"})}
    work(1, 2)
    free()
    step(**free_calls) if not run.may(0, "aggregate") else None
    free()
    step(u0=("aggregate", {"rule": "majority"}))
    free()
    step(u0=("delegate", {"to": "all_idle", "rows": "again"}))
    work(1, 2)
    free()
    step(u0=("wait", {"for": "all"})) if not run.may(0, "aggregate") else None
    free()
    step(u0=("aggregate", {"rule": "majority"}))
    free()
    step(u0=("despawn", {"who": "row_0"}))
    free()
    step(u0="stop")
    return finished(run, seen, seed, "script")
