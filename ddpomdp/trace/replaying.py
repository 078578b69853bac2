"""Replay: play the recorded turns again under the recorded keys, and hold every event against the record."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddpomdp.enums import StopReason
from ddpomdp.env import Env
from ddpomdp.params import Params
from ddpomdp.rollouts import Rollout, late_reward, left_early
from ddpomdp.state import State
from ddpomdp.timestep import TimeStep
from ddpomdp.trace import records
from ddpomdp.trace.head import environment, is_exact, random_key
from ddpomdp.trace.text import TraceError, short
from ddpomdp.trace.trace import Trace

TOLERANCE = 1e-5  # of floats on another JAX version or kind of device


class Difference(ValueError):
    """A replay that does not give what was recorded.

    Attributes:
      tick: from 1; None for what is said of the whole episode.
      slot: None for what is said of the whole episode.
      field: such as `clock_ms` or `channels.team`.
      recorded, replayed: the two values.
    """

    def __init__(self, tick: int | None, slot: int | None, field: str, recorded: Any, replayed: Any):
        where = "the episode" if tick is None else f"tick {tick}, slot {slot}"
        super().__init__(f"{where}: {field} was recorded as {short(recorded)}, replayed as {short(replayed)}")
        self.tick, self.slot, self.field, self.recorded, self.replayed = tick, slot, field, recorded, replayed


def replay(trace: Trace, env: Env | None = None) -> Rollout:
    """The episode of a trace, played again.

    Integers and flags must be equal; so must floats, to the last bit on the same JAX version and kind of device,
    elsewhere to 1e-5.

    Args:
      trace: one written by ddpomdp.
      env: use this environment, if it is the one the trace names, rather than make and compile it anew.

    Returns:
      The `Rollout`, its policy's `logp` zero and `aux` empty.

    Raises:
      TraceError: the trace is of another system, or of another version, harness or options, with what differs.
      Difference: the first event that came out otherwise, by tick, slot and field.
    """
    seen, turns, after, state = [], [], [], None
    made = _environment(trace, env)
    for before, turn, now, reached in _ticks(trace, *made):
        seen.append(before)
        turns.append(turn)
        after.append(now)
        state = reached
    assert state is not None  # a trace has at least one tick
    stack = lambda trees: jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *trees)  # noqa: E731
    first, then = stack(seen), stack(after)
    team = jnp.sum(then.team_return)
    late = late_reward(state, then.events.uid, left_early(first, then), team, made[1].weights)
    _check_late(trace.head or {}, np.asarray(late))
    zero = jnp.zeros((len(turns), *turns[0].shape), jnp.float32)
    return Rollout(
        ts=first,
        turns=jnp.asarray(np.stack(turns)),
        logp=zero,
        aux={},
        next_ts=then,
        late_reward=late,
        state=state,
    )


def verify(trace: Trace, env: Env | None = None) -> int:
    """Replay without keeping anything but the events; returns the number of ticks. Raises as `replay`."""
    return sum(1 for _ in _ticks(trace, *_environment(trace, env)))


@partial(jax.jit, static_argnames="env")
def _reset(env: Env, key: jax.Array, luck: jax.Array, params: Params) -> tuple[State, TimeStep]:
    return env.reset(key, luck, params)


@partial(jax.jit, static_argnames="env")
def _step(env: Env, luck: jax.Array, state: State, turns: jax.Array, params: Params) -> tuple[State, TimeStep]:
    return env.step(luck, state, turns, params)


def _environment(trace: Trace, env: Env | None) -> tuple[Env, Params]:
    if trace.head is None:
        raise TraceError("this trace was not written by ddpomdp: it does not say how to play it again")
    made, params = environment(trace.head, env)
    if trace.head["slots"] != made.spec.capacity:
        raise TraceError(f"got {trace.head['slots']}; this environment has {made.spec.capacity}", "ddpomdp.slots")
    return made, params


def _ticks(trace: Trace, env: Env, params: Params) -> Iterator[tuple[TimeStep, np.ndarray, TimeStep, State]]:
    """Play tick by tick, each checked before it is given out: (seen before, turns, what came of them, state)."""
    head: Any = trace.head
    recorded = trace.arrays
    tolerance = 0.0 if is_exact(head) else TOLERANCE
    luck = random_key(head["luck"])
    state, ts = _reset(env, random_key(head["key"]), luck, params)
    for row in range(head["ticks"]):
        turns = recorded.tokens[row]
        before = ts
        state, ts = _step(env, luck, state, jnp.asarray(turns), params)
        mine = jax.tree.map(lambda x: x[row], recorded)  # noqa: B023
        got = jax.tree.map(np.asarray, ts.events)
        for _, slot, field, was, now in records.differences(mine, got, tolerance):
            raise Difference(row + 1, slot, field, was, now)
        yield before, turns, ts, state
    _check_end(head, ts, tolerance)


def _check_end(head: dict[str, Any], ts: TimeStep, tolerance: float) -> None:
    reason = StopReason(int(ts.stop_reason)).name.lower()
    if head["stop_reason"] != reason:
        raise Difference(None, None, "stop_reason", head["stop_reason"], reason)
    for name, was in head["info"].items():
        now = np.asarray(ts.info[name]).item() if name in ts.info else None
        near = isinstance(now, float) and abs(was - now) <= tolerance * max(1, abs(was))
        if was != now and not near:
            raise Difference(None, None, f"info.{name}", was, now)


def _check_late(head: dict[str, Any], late: np.ndarray) -> None:
    """Late rewards, if recorded; to 1e-5, for they were summed in one program there and step by step here."""
    for uid in range(len(late)) if "late_reward" in head else ():
        was, now = head["late_reward"].get(str(uid), 0.0), float(late[uid])
        if abs(was - now) > TOLERANCE * max(1, abs(was)):
            raise Difference(None, None, f"late_reward of uid {uid}", was, now)
