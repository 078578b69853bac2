"""Event arrays [T, N] to sparse records and back, without loss.

A record is one row of `Event` with the usual values left out: parent_uid and target_uid -1, decision and target_group
none, valid, is_decision and trusted true, result_code nothing, end_reason alive, arrival_ms = clock_ms + latency_ms,
everything else 0, false or empty. Enumerations are written as words. Forced waits (nobody chose them) are kept beside
the records as runs: `ticks` [first, last] with otherwise equal fields. Axis letters: T tick, N slot, A argument
position, E entry (a row of one life).
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ddpomdp.enums import Decision, EventKind, Group, LifeEnd, ResultCode
from ddpomdp.timestep import CHANNELS, COST_PURPOSES, Event
from ddpomdp.trace.text import Path_

MAX_CELLS = 4_000_000  # T x N of the arrays a file may ask for

_WORDS: dict[str, type[IntEnum]] = {
    "kind": EventKind,
    "decision": Decision,
    "target_group": Group,
    "result_code": ResultCode,
    "end_reason": LifeEnd,
}
_INTS = ("legal_count", "claims_sent", "claims_received", "refused", "latency_ms", "clock_ms")
_UIDS = ("parent_uid", "target_uid")  # -1 none
_ALWAYS = ("uid", "slot", "role", "clock_ms", "legal_count")
_SCALARS = ("uid", "slot", "role", *_WORDS, *_INTS, *_UIDS, "arrival_ms", "valid", "is_decision", "trusted", "tainted")
_USUAL = {"valid": True, "is_decision": True, "trusted": True, "parent_uid": -1, "target_uid": -1}
_FORCED = {"kind": 0, "decision": 0, "valid": True, "is_decision": False, "legal_count": 1}


def encode(events: Event) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(records, forced waits) of event arrays [T, N]; records by tick, then uid.

    Raises:
      ValueError: arrays of another shape, a code that is no member of its enumeration, a channel that is not finite.
    """
    columns = _columns(events)
    row, slot = np.nonzero(columns["uid"] >= 0)
    order = np.lexsort((columns["uid"][row, slot], row))
    row, slot = row[order], slot[order]
    entries = {name: column[row, slot] for name, column in columns.items()}
    tokens, costs = np.asarray(events.tokens)[row, slot], np.asarray(events.cost_tokens)[row, slot]
    channels = {name: np.asarray(events.channels[name])[row, slot] for name in in_order(events.channels)}
    for name, values in channels.items():
        if not np.isfinite(values).all():
            raise ValueError(f"channel {name} holds {values[~np.isfinite(values)][0]}; a trace holds finite numbers")
    forced = ~tokens.any(axis=1)
    for name in ("kind", "decision", "valid", "is_decision"):
        forced &= entries[name] == _FORCED[name]
    same = _continues(row, entries, tokens, costs, channels, forced)
    records, waits = [], []
    for at in range(len(row)):
        if same[at] >= 0:
            continue
        record = _record({name: values[at].item() for name, values in entries.items()}, bool(forced[at]))
        if costs[at].any():
            paid = zip(COST_PURPOSES, costs[at].tolist(), strict=True)
            record["cost_tokens"] = {purpose: count for purpose, count in paid if count}
        if some := {name: float(values[at]) for name, values in channels.items() if values[at] != 0}:
            record["channels"] = some
        if forced[at]:
            waits.append((at, record))
        else:
            records.append({"tick": int(row[at]) + 1, **record, "tokens": tokens[at].tolist()})
    last = {at: int(row[at]) for at, _ in waits}
    for at in np.flatnonzero(same >= 0).tolist():
        last[same[at]] = int(row[at])
    runs = [{"ticks": [int(row[at]) + 1, last[at] + 1], **record} for at, record in waits]
    return records, sorted(runs, key=lambda run: (run["uid"], run["ticks"][0]))


def in_order(channels: Iterable[str]) -> list[str]:
    """Names of channels in the order in which they are written, whatever order a compiled function left them in."""
    return sorted(channels, key=lambda name: (CHANNELS.index(name) if name in CHANNELS else len(CHANNELS), name))


def decode(
    num_ticks: int,
    num_slots: int,
    num_args: int,
    channels: Sequence[str],
    records: Sequence[tuple[Path_, dict[str, Any]]],
    waits: Sequence[tuple[Path_, dict[str, Any]]],
) -> tuple[Event, list[tuple[Path_, str]]]:
    """The event arrays of checked records (each with its path), and what does not fit: (path, reason)."""
    if num_ticks * num_slots > MAX_CELLS:
        return _empty(1, 1, num_args, channels), [
            ((), f"{num_ticks:,} ticks x {num_slots:,} slots; allowed: {MAX_CELLS:,}")
        ]
    events = _empty(num_ticks, num_slots, num_args, channels)
    wrong: list[tuple[Path_, str]] = []
    for path, record in (*records, *waits):
        first, last = record["ticks"] if "ticks" in record else (record["tick"], record["tick"])
        slot = record["slot"]
        if not 1 <= first <= last <= num_ticks:
            wrong.append((path, f"ticks {first} to {last}; allowed: 1 to {num_ticks}"))
        elif slot >= num_slots:
            wrong.append(((*path, "slot"), f"got {slot}; allowed: 0 to {num_slots - 1}"))
        elif "tokens" in record and len(record["tokens"]) != 1 + num_args:
            wrong.append(((*path, "tokens"), f"has {len(record['tokens'])} entries; allowed: {1 + num_args}"))
        elif unknown := [name for name in record.get("channels", ()) if name not in events.channels]:
            wrong.append(((*path, "channels"), f"got the channel {unknown[0]!r}; allowed: {', '.join(channels)}"))
        elif (events.uid[first - 1 : last, slot] >= 0).any():
            wrong.append((path, f"slot {slot} holds two lives in ticks {first} to {last}"))
        else:
            _put(events, record, slice(first - 1, last), slot)
    return events, wrong


def _columns(events: Any) -> dict[str, np.ndarray]:
    """The scalar fields as arrays [T, N]."""
    shape = np.shape(events.uid)
    if len(shape) != 2:
        raise ValueError(f"events.uid has shape {shape}; one episode is [T, N] (ticks x slots)")
    tick = np.asarray(events.tick)
    if shape[0] == 0 or (tick != np.arange(1, shape[0] + 1)[:, None]).any():
        raise ValueError("events do not begin with the first tick after a reset, or leave ticks out")
    return {name: np.asarray(getattr(events, name)) for name in _SCALARS}


def _continues(
    row: np.ndarray,
    entries: dict[str, np.ndarray],
    tokens: np.ndarray,
    costs: np.ndarray,
    channels: dict[str, np.ndarray],
    forced: np.ndarray,
) -> np.ndarray:
    """int64[E]: for a forced wait that repeats the life's row before it, the entry its run begins with; else -1."""
    by_life = np.argsort(entries["uid"], kind="stable")
    same = np.zeros(len(by_life), bool)
    before, here = by_life[:-1], by_life[1:]
    same[1:] = forced[here] & forced[before] & (row[here] == row[before] + 1)
    for values in (*entries.values(), *channels.values()):
        same[1:] &= values[here] == values[before]
    same[1:] &= (costs[here] == costs[before]).all(axis=1) & (tokens[here] == tokens[before]).all(axis=1)
    begins = np.maximum.accumulate(np.where(same, -1, np.arange(len(same)))) if len(same) else by_life
    out = np.full(len(by_life), -1)
    out[by_life[same]] = by_life[begins[same]]
    return out


def _record(row: dict[str, Any], forced: bool) -> dict[str, Any]:
    usual = _USUAL | {"arrival_ms": row["clock_ms"] + row["latency_ms"]} | (_FORCED if forced else {})
    kept = {}
    for name in _SCALARS:
        value = row[name]
        if value == usual.get(name, 0) and not (name in _ALWAYS or (name == "kind" and not forced)):
            continue
        if forced and name == "legal_count" and value == 1:
            continue
        kept[name] = _WORDS[name](value).name.lower() if name in _WORDS else value
    return kept


def _empty(num_ticks: int, num_slots: int, num_args: int, channels: Sequence[str]) -> Event:
    shape = (num_ticks, num_slots)
    fields: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in _SCALARS}
    for name in ("uid", *_UIDS):
        fields[name] = np.full(shape, -1, np.int32)
    for name in ("valid", "is_decision", "trusted", "tainted"):
        fields[name] = np.zeros(shape, bool)
    fields["slot"] = np.broadcast_to(np.arange(num_slots, dtype=np.int32), shape)
    fields |= {
        "tick": np.broadcast_to(np.arange(1, num_ticks + 1, dtype=np.int32)[:, None], shape),
        "tokens": np.zeros((*shape, 1 + num_args), np.int32),
        "cost_tokens": np.zeros((*shape, len(COST_PURPOSES)), np.int32),
        "channels": {name: np.zeros(shape, np.float32) for name in channels},
    }
    return Event(**fields)


def _put(events: Any, record: dict[str, Any], rows: slice, slot: int) -> None:
    """Write a record into its rows."""
    forced = "ticks" in record
    latency = record.get("latency_ms", 0)
    usual = _USUAL | {"arrival_ms": min(record["clock_ms"] + latency, 2**31 - 1)} | (_FORCED if forced else {})
    for name in _SCALARS:
        if name == "slot":
            continue
        value = record.get(name, usual.get(name, 0))
        getattr(events, name)[rows, slot] = _WORDS[name][value.upper()] if isinstance(value, str) else value
    events.tokens[rows, slot] = record.get("tokens", 0)
    for purpose, count in record.get("cost_tokens", {}).items():
        events.cost_tokens[rows, slot, COST_PURPOSES.index(purpose)] = count
    for name, value in record.get("channels", {}).items():
        events.channels[name][rows, slot] = value


def differences(old: Any, new: Any, tolerance: float = 0.0) -> Iterator[tuple[int, int, str, Any, Any]]:
    """Yield (row, slot, field, old, new) where two event arrays differ, row by row; floats by more than `tolerance`.

    Args:
      old, new: event arrays of one shape [T, N] or [N] (one row).
      tolerance: of channels, relative to the larger of 1 and the value.
    """
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in (*_SCALARS, "tick", "tokens", "cost_tokens")}
    pairs |= {f"channels.{name}": (old.channels[name], new.channels[name]) for name in old.channels}
    found = []
    for order, (name, (a, b)) in enumerate(pairs.items()):
        a, b = np.asarray(a), np.asarray(b)
        differ = a != b
        if tolerance and a.dtype.kind == "f":
            differ = ~(np.abs(a - b) <= tolerance * np.maximum(1, np.abs(a)))
        width = 3 if name in ("tokens", "cost_tokens") else 2
        a, b, differ = (x if x.ndim == width else x[None] for x in (a, b, differ))
        where = differ.any(axis=-1) if width == 3 else differ
        found += [
            (*cell, order, name, a[tuple(cell)].tolist(), b[tuple(cell)].tolist())
            for cell in np.argwhere(where)[:1000].tolist()
        ]
    for row, slot, _, name, was, now in sorted(found, key=lambda item: item[:3]):
        yield row, slot, name, was, now
