"""`Trace`: an episode as a document under the survey's trace schema, with all that replaying it needs.

    trace = Trace.from_rollout(env, rollout, key, policy="random")
    text = trace.to_json()
    assert Trace.from_json(text).to_json() == text

Axis letters: T tick, N slot.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ddpomdp.trace import check
from ddpomdp.trace import text as text_

_LISTS = ("events", "edges")


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace, of ours or of another system; compare two by `to_json`, or by `fingerprint` whatever their order."""

    document: dict[str, Any]

    @classmethod
    def from_rollout(
        cls,
        env: Any,
        rollout: Any,
        key: Any,
        luck: Any = None,
        *,
        policy: str = "unknown",
        env_params: Any = None,
    ) -> "Trace":
        """The trace of a `Rollout`.

        Args:
          env: its environment.
          rollout: one episode, from its reset on; what comes after its end is left out.
          key: the key it was played with.
          luck: its luck; default fold_in(key, 1), as for `rollout`.
          policy: who played, for readers.
          env_params: the numbers it was played with; default those of `env`.

        Raises:
          ValueError: several episodes at once, or a number that JSON cannot hold.
        """
        from ddpomdp.enums import StopReason

        after = rollout.next_ts
        last = np.asarray(after.last)
        if last.ndim != 1:
            raise ValueError(f"rollout: axes {last.shape} of `last`; a trace holds one episode, [T]")
        ticks = int(np.argmax(last)) + 1 if last.any() else len(last)
        return cls.from_events(
            env,
            _cut(after.events, ticks),
            key,
            luck,
            policy=policy,
            env_params=env_params,
            stop_reason=StopReason(int(after.stop_reason[ticks - 1])).name.lower(),
            info={name: np.asarray(value)[ticks - 1] for name, value in after.info.items()},
            late_reward=np.asarray(rollout.late_reward) if last.any() else None,
        )

    @classmethod
    def from_played(
        cls, env: Any, played: Any, key: Any, *, policy: str = "unknown", env_params: Any = None
    ) -> "Trace":
        """The trace of the first episode of `bench.episode.play`, whose key was `key`."""
        from ddpomdp.enums import StopReason

        return cls.from_events(
            env,
            _cut(played.events, int(played.ticks[0])),
            key,
            policy=policy,
            env_params=env_params,
            stop_reason=StopReason(int(played.stop_reason[0])).name.lower(),
            info={name: np.asarray(value)[0] for name, value in played.info.items()},
        )

    @classmethod
    def from_events(
        cls,
        env: Any,
        events: Any,
        key: Any,
        luck: Any = None,
        *,
        policy: str = "unknown",
        env_params: Any = None,
        stop_reason: str = "running",
        info: dict[str, Any] | None = None,
        late_reward: Any = None,
    ) -> "Trace":
        """The trace of event arrays [T, N] from a reset on; what is not given is not checked when it is replayed."""
        import jax

        from ddpomdp.trace import records
        from ddpomdp.trace.document import document
        from ddpomdp.trace.head import harness, head

        events = jax.tree.map(np.asarray, events)
        rows, waits = records.encode(events)
        info = info or {}
        start = head(
            env,
            key=key,
            luck=luck,
            policy=policy,
            env_params=env_params,
            num_ticks=events.uid.shape[0],
            stop_reason=stop_reason,
            wall_ms=_wall_ms(events, info),
            info=info,
            late_reward=late_reward,
        )
        return cls(document(start, harness(start), events, rows, waits))

    @classmethod
    def from_json(cls, source: str | bytes) -> "Trace":
        """The trace that a text spells, ours or under the survey's schema; all or nothing.

        A trace of ours must be as ddpomdp wrote it: every field is compared with what follows from the records. Free
        fields of events are kept, and the order of events and edges does not matter.

        Raises:
          TraceError: what is wrong, with line, column and field.
        """
        text = text_.decode(source) if isinstance(source, bytes) else source
        document, events = check.checked(text_.parse(text), text)
        trace = cls(document)
        if events is not None:
            trace.__dict__["arrays"] = events
        return trace

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """The trace in a file, as `from_json` reads it."""
        return cls.from_json(text_.read(path))

    def to_json(self) -> str:
        """Strict JSON, one event and one edge a line: the same trace is the same text, byte for byte."""
        parts = []
        for name, value in self.document.items():
            if name in _LISTS and value:
                lines = ",\n".join(f"  {_dumps(record)}" for record in value)
                parts.append(f"{_dumps(name)}: [\n{lines}\n ]")
            else:
                parts.append(f"{_dumps(name)}: {_dumps(value)}")
        return "{\n " + ",\n ".join(parts) + "\n}\n"

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file that is whole or as it was before."""
        from ddpomdp.bench.strictjson import write_atomic

        write_atomic(Path(path), self.to_json())

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events as plain data."""
        return self.document["events"]

    @property
    def edges(self) -> list[dict[str, str]]:
        """The edges as plain data."""
        return self.document["edges"]

    @property
    def rewards(self) -> dict[str, float]:
        """Every reward channel over the episode: the team's once, the others summed over lives."""
        return self.document["rewards"]

    @property
    def costs(self) -> dict[str, float]:
        """Totals: tokens, wall_clock_s, tool_calls, messages and, of ours, more."""
        return self.document["costs"]

    @cached_property
    def head(self) -> dict[str, Any] | None:
        """What replaying needs; None for a trace of another system."""
        records = (event.get(check.OWN) for event in self.events)
        return next((record for record in records if isinstance(record, dict) and "format" in record), None)

    @cached_property
    def arrays(self) -> Any:
        """The events as arrays [T, N] (`Event`), as `step` returned them.

        Raises:
          TraceError: the trace is of another system, which has no such records.
        """
        from ddpomdp.trace import records
        from ddpomdp.trace.head import harness

        if self.head is None:
            raise text_.TraceError("this trace was not written by ddpomdp: it has no event records")
        told = [((), event[check.OWN]) for event in self.events if "tokens" in event[check.OWN]]
        waits = [((), wait) for wait in self.head["waits"]]
        channels = list(self.head["weights"])
        size = self.head["ticks"], self.head["slots"], harness(self.head).num_args
        events, faults = records.decode(*size, channels, told, waits)
        if faults:
            raise text_.TraceError(faults[0][1])
        return events

    @cached_property
    def timeline(self) -> Any:
        """Calls, edges and the critical path (`critical_path.Timeline`) of a trace of ours."""
        from ddpomdp.critical_path import timeline

        return timeline(self.arrays)

    @property
    def fingerprint(self) -> str:
        """A hash of the events and edges in which their order plays no part."""
        lines = sorted(json.dumps(record, sort_keys=True) for name in _LISTS for record in self.document[name])
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _cut(events: Any, ticks: int) -> Any:
    import jax

    return jax.tree.map(lambda x: np.asarray(x)[:ticks], events)


def _wall_ms(events: Any, info: dict[str, Any]) -> int:
    """The root's clock at the end: exact where it stopped, else from `info`, else the latest time of any event."""
    from ddpomdp.critical_path import timeline
    from ddpomdp.enums import EventKind

    row, slot = np.nonzero((events.uid == 0) & events.valid & (events.kind == EventKind.STOP))
    if row.size:
        return int(events.clock_ms[row[-1], slot[-1]]) + int(events.latency_ms[row[-1], slot[-1]])
    if "wall_s" in info:
        return round(float(info["wall_s"]) * 1000)
    return timeline(events).wall_ms
