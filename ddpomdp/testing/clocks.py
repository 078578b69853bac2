"""Time and cost: clocks go forward, calls take time, and totals are the sums of events."""

import numpy as np

from ddpomdp.enums import EventKind, LifeEnd
from ddpomdp.testing.checks import check
from ddpomdp.testing.episodes import Trial
from ddpomdp.timestep import COST_PURPOSES


@check("clocks.forward")
def forward(trial: Trial) -> int:
    """A life's clock never runs backwards, nor does the wall-clock; a call is decided after the last ended."""
    turns = 0
    for episode in trial.episodes:
        events, wall = episode.after.events, episode.after.info["wall_s"]
        episode.must(np.diff(wall, prepend=0.0) >= 0, "wall_s", got=wall)
        same = (events.uid[1:] == events.uid[:-1]) & (events.uid[1:] >= 0)
        later = events.clock_ms[1:] >= events.clock_ms[:-1] + events.latency_ms[:-1]
        said = "a clock is not behind the end of the call before"
        episode.must(~same | later, said, clock=events.clock_ms[1:], before=events.clock_ms[:-1])
        there = events.uid >= 0
        episode.must(~there | (events.clock_ms >= 0), "a clock", got=events.clock_ms)
        turns += int(same.sum())
    return turns


@check("clocks.latency")
def latency(trial: Trial) -> int:
    """A call takes 1 ms at least and arrives after it was decided; waits take no latency."""
    calls = 0
    for episode in trial.episodes:
        events = episode.after.events
        call = (events.uid >= 0) & (events.kind != EventKind.WAIT)
        episode.must(~call | (events.latency_ms >= 1), "latency of a call", ms=events.latency_ms, kind=events.kind)
        episode.must(call | (events.latency_ms == 0), "latency of a wait", ms=events.latency_ms)
        arrives = events.arrival_ms >= events.clock_ms + events.latency_ms
        lost = (events.kind == EventKind.RETURN) & (events.end_reason == LifeEnd.DESPAWNED)  # it arrives nowhere
        episode.must(~call | lost | arrives, "arrival", arrival=events.arrival_ms, clock=events.clock_ms)
        calls += int(call.sum())
    return calls


@check("clocks.newborn")
def newborn(trial: Trial) -> int:
    """A newborn's clock starts where the call that bore it ends."""
    births = 0
    for episode in trial.episodes:
        events = episode.after.events
        for tick, slot in zip(*np.nonzero(episode.born[:-1]), strict=True):
            mother = np.flatnonzero(events.uid[tick] == events.parent_uid[tick + 1, slot])
            start, end = (
                events.clock_ms[tick + 1, slot],
                events.clock_ms[tick, mother] + events.latency_ms[tick, mother],
            )
            ok = np.ones((tick + 1, slot + 1), bool)
            ok[-1, -1] = len(mother) == 1 and (start == end).all()
            episode.must(
                ok, f"a newborn's clock {start} is its parent's {end.tolist()}", uid=events.uid[tick + 1, slot]
            )
            births += 1
    return births


@check("clocks.totals")
def totals(trial: Trial) -> int:
    """Tokens are >= 0; tokens by purpose, turns, decisions and refusals are the sums of the events."""
    spent = 0
    for episode in trial.episodes:
        events, info = episode.after.events, episode.after.info
        episode.must(events.cost_tokens >= 0, "tokens", got=events.cost_tokens)
        counted = {f"tokens_{name}": events.cost_tokens[..., i] for i, name in enumerate(COST_PURPOSES)}
        counted |= {
            "tokens": events.cost_tokens,
            "turns": events.kind != EventKind.WAIT,
            "decisions": events.is_decision,
            "illegal": (events.uid >= 0) & ~events.valid,
            "refused_births": np.where(events.kind == EventKind.SPAWN, events.refused, 0),
        }
        for name, per_event in counted.items():
            total = episode.sums(per_event)
            episode.must(total == info[name], name, events=total, info=info[name])
        serial = episode.sums(events.latency_ms) / 1000
        close = np.isclose(info["serial_s"], serial, rtol=1e-5, atol=1e-3)
        episode.must(close, "serial_s", events=serial, info=info["serial_s"])
        spent += int(info["tokens"][-1])
    return spent
