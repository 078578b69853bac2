"""From a head and event arrays to the document: events, edges, rewards, costs and metrics under the survey's schema.

Everything in the document follows from the head and the records, so a file is checked by writing it again (check.py).
What the schema has no word for, and how edges are drawn, is said in docs/traces.md. Axis letters: T tick, N slot.
"""

import hashlib
import json
import math
from bisect import bisect_left
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np

from ddpomdp import picture
from ddpomdp.critical_path import Timeline, timeline
from ddpomdp.enums import EventKind, Group
from ddpomdp.harness import Harness
from ddpomdp.timestep import COST_PURPOSES, Event
from ddpomdp.trace.records import in_order

HEAD = "e0"
EDGE_TYPES = ("temporal", "causal", "spawn", "message", "tool_dependency", "return", "aggregate", "safety_flow")
TYPES = {
    EventKind.WAIT: "orchestrator_decision",
    EventKind.SPAWN: "spawn",
    EventKind.DELEGATE: "orchestrator_decision",
    EventKind.MESSAGE: "message",
    EventKind.RETURN: "return",
    EventKind.AGGREGATE: "aggregate",
    EventKind.FOLD: "aggregate",
    EventKind.DESPAWN: "despawn",
    EventKind.STOP: "orchestrator_decision",
    EventKind.TOOL: "tool_call",
}
TOPOLOGIES = {
    **{name: name for name in ("centralized", "planner_executor_critic", "debate", "swarm", "hierarchical")},
    "single": "mixed",
    "independent": "mixed",
    "managed": "harness",
}
DECISIONS = ("wait", "delegate", "stop")


def document(
    head: dict[str, Any], harness: Harness, events: Event, records: list[dict[str, Any]], waits: list[dict[str, Any]]
) -> dict[str, Any]:
    """The whole trace as plain data.

    Args:
      head: as head.py writes it.
      harness: the one the head describes.
      events: arrays [T, N] of one episode.
      records, waits: what `records.encode` makes of them.

    Raises:
      ValueError: events that are not one episode.
    """
    from ddpomdp.trace import measures

    time = timeline(events)
    names = _names(events, harness.roles)
    told = [_event(record, names, harness) for record in records]
    results = [_result(event) for event in told if event["type"] == "tool_call"]
    _name_born(told, time, events, names)
    first = {"id": HEAD, "t": 0.0, "type": "orchestrator_decision", "agent": "env", "decision": "reset"}
    first["ddpomdp"] = head | {"waits": waits}
    ordered = sorted([*told, *results], key=_when)
    name = dict(harness.topology).get("name")
    out = {
        "trace_id": _trace_id(head, records),
        "task_id": f"{head['env']}/{'-'.join(f'{word:08x}' for word in head['key']['words'])}",
        "system": f"ddpomdp {head['package']}",
        "topology": TOPOLOGIES.get(str(name), "unknown"),
        "events": [first, *ordered],
        "edges": _edges([first, *ordered], events, time),
        "rewards": _rewards(events),
        "costs": _costs(head, events, names),
    }
    out["metrics"] = measures.recorded(out, events, time)
    return out


def _when(event: dict[str, Any]) -> tuple[int, int, int, bool]:
    """Order of events: time, tick, life, the call before its result."""
    record = event["ddpomdp"]
    tick, _, uid = event["id"][1:].removesuffix("r").partition("u")
    return record["clock_ms"], int(tick), int(uid), "of" in record


def event_id(tick: int, uid: int) -> str:
    """The id of the turn of a life in a tick."""
    return f"t{tick}u{uid}"


def _trace_id(head: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """A name that two traces share only where environment, keys and all turns are the same."""
    what = [head[name] for name in ("env", "env_version", "options", "params", "weights", "key", "luck")]
    what += [head["harness"]["digest"], [(r["tick"], r["uid"], r["tokens"]) for r in records]]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _names(events: Any, roles: tuple[str, ...]) -> dict[int, str]:
    """The outside name of each life by uid; "" is nobody's."""
    row, slot = np.nonzero(events.uid >= 0)
    uids, first = np.unique(events.uid[row, slot], return_index=True)
    lives: Any = SimpleNamespace(uid=uids, role=events.role[row[first], slot[first]])
    return dict(zip(uids.tolist(), picture.names(lives, roles), strict=True))


def _event(record: dict[str, Any], names: dict[int, str], harness: Harness) -> dict[str, Any]:
    kind = EventKind[record["kind"].upper()]
    valid = record.get("valid", True)
    agent = names[record["uid"]]
    role = record["role"]
    event: dict[str, Any] = {
        "id": event_id(record["tick"], record["uid"]),
        "t": record["clock_ms"] / 1000,
        "type": TYPES[kind] if valid else "safety_event",
        "agent": agent,
        "role": harness.roles[role] if role < len(harness.roles) else f"role{role}",
    }
    if valid and kind.name.lower() in DECISIONS:
        event["decision"] = kind.name.lower()
    if valid and kind in (EventKind.MESSAGE, EventKind.RETURN):
        event["from"] = agent
    if to := _receiver(record, kind, names):
        event["to"] = to
    call = _call(record, to, harness)
    if kind == EventKind.TOOL and valid:
        event["tool"] = harness.tools[record["tokens"][0]].name if call else f"tool{record['tokens'][0]}"
    tokens = ".".join(map(str, record["tokens"]))
    event["content_ref"] = f"turn:{harness.digest}:{tokens}"
    if kind != EventKind.TOOL:
        event["trusted"] = record.get("trusted", True)
    event["ddpomdp"] = {**record, "call": call} if call else dict(record)
    return event


def _receiver(record: dict[str, Any], kind: EventKind, names: dict[int, str]) -> str | None:
    """Whom a call addresses: a name, or the group's."""
    named, group = names.get(record.get("target_uid", -1)), record.get("target_group", "none")
    if kind == EventKind.RETURN or (kind == EventKind.MESSAGE and group == Group.PARENT.name.lower()):
        return names.get(record.get("parent_uid", -1))
    if kind == EventKind.DELEGATE and named is None:
        return "idle children"
    return named if group == "none" else group


def _call(record: dict[str, Any], to: str | None, harness: Harness) -> dict[str, Any] | None:
    """The call as JSON, the addressed roster row by its name; None where the tokens spell none."""
    rows = max((len(argument.values) for tool in harness.tools for argument in tool.arguments), default=0)
    try:
        call = harness.to_json(record["tokens"], [to or "nobody"] * rows)
    except ValueError:
        return None
    return call


def _result(event: dict[str, Any]) -> dict[str, Any]:
    """The second event of a tool turn, at its end."""
    record = event["ddpomdp"]
    end_ms = record["clock_ms"] + record.get("latency_ms", 0)
    return {
        "id": f"{event['id']}r",
        "t": end_ms / 1000,
        "type": "tool_result",
        "agent": event["agent"],
        "role": event["role"],
        "from": event["tool"],
        "to": event["agent"],
        "tool": event["tool"],
        "content_ref": f"result:{event['id']}",
        "trusted": record.get("trusted", True),
        "ddpomdp": {
            "of": event["id"],
            "clock_ms": end_ms,
            "result_code": record.get("result_code", "nothing"),
        },
    }


def _name_born(told: list[dict[str, Any]], time: Timeline, events: Any, names: dict[int, str]) -> None:
    """Say at each spawn who was born; a single child is whom it is addressed to."""
    at = {event["id"]: event for event in told}
    for uid, call in zip(time.lives.uid.tolist(), time.lives.born_by.tolist(), strict=True):
        if call >= 0:
            spawn = at[event_id(int(time.calls.row[call]) + 1, int(time.calls.uid[call]))]
            spawn["ddpomdp"].setdefault("born", []).append(names[uid])
    for event in told:
        if len(born := event["ddpomdp"].get("born", ())) == 1:
            event["to"] = born[0]


def _edges(ordered: list[dict[str, Any]], events: Any, time: Timeline) -> list[dict[str, str]]:
    """All edges, each forward in the order of events; sorted by target, type, source."""
    place = {event["id"]: index for index, event in enumerate(ordered)}
    found: set[tuple[int, int, int]] = set()

    def join(source: str, target: str, kind: str) -> None:
        found.add((place[target], EDGE_TYPES.index(kind), place[source]))

    turns: dict[int, list[tuple[int, str]]] = defaultdict(list)  # of each life: (row, id)
    for event in ordered[1:]:
        record = event["ddpomdp"]
        if "of" not in record:
            turns[record["uid"]].append((record["tick"] - 1, event["id"]))
    for mine in turns.values():
        mine.sort()
        before = None
        for _, here in mine:
            if before:
                join(before, here, "temporal")
            before = here
            if f"{here}r" in place:
                join(here, f"{here}r", "tool_dependency")
                before = f"{here}r"
    if turns[0]:
        join(HEAD, turns[0][0][1], "causal")
    calls = time.calls
    ids = [event_id(row + 1, uid) for row, uid in zip(calls.row.tolist(), calls.uid.tolist(), strict=True)]
    for uid, call in zip(time.lives.uid.tolist(), time.lives.born_by.tolist(), strict=True):
        if call >= 0 and turns[uid]:
            join(ids[call], turns[uid][0][1], "spawn")
    for kind, name in (("delegate", "causal"), ("message", "message"), ("return", "aggregate")):
        edges = time.edges.of(kind)
        for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            join(ids[source], ids[target], name)
    for source, target in _woken(events, time):
        join(ids[source], ids[target], "return")
    for source, target in tainted_edges(events, time):
        join(ids[source], ids[target], "safety_flow")
    return [
        {"src": ordered[source]["id"], "dst": ordered[target]["id"], "type": EDGE_TYPES[kind]}
        for target, kind, source in sorted(found)
    ]


def _woken(events: Any, time: Timeline) -> list[tuple[int, int]]:
    """Each return, and the parent's first call that begins at or after its arrival."""
    calls = time.calls
    life = {uid: index for index, uid in enumerate(time.lives.uid.tolist())}
    bounds = np.searchsorted(calls.life, np.arange(len(time.lives) + 1)).tolist()
    starts, rows = calls.start_ms.tolist(), calls.row.tolist()
    pairs = []
    for source in np.flatnonzero((calls.kind == EventKind.RETURN) & (calls.arrival_ms >= 0)).tolist():
        parent = life.get(int(events.parent_uid[calls.row[source], calls.slot[source]]), -1)
        if parent < 0:
            continue
        low, high = bounds[parent], bounds[parent + 1]
        target = bisect_left(starts, int(calls.arrival_ms[source]), low, high)
        target = max(target, bisect_left(rows, rows[source] + 1, low, high))
        if target < high:
            pairs.append((source, target))
    return pairs


def tainted_edges(events: Any, time: Timeline) -> list[tuple[int, int]]:
    """Calls along which a tainted claim was received, as pairs of indices into `time.calls`.

    A message or a return whose sender had made or received a tainted claim before, into a life that newly knew a
    tainted claim from that message (between the two calls) or from that reading. Which claims a call carried is not
    recorded: where a clean and a tainted sender are heard at once, both edges stand.
    """
    calls = time.calls
    row, slot = np.nonzero(np.asarray(events.tainted) & (events.uid >= 0))
    at: dict[int, list[int]] = defaultdict(list)
    for r, uid in zip(row.tolist(), events.uid[row, slot].tolist(), strict=True):
        at[uid].append(r)
    pairs = []
    for kind in ("message", "return"):
        edges = time.edges.of(kind)
        for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            sender, receiver = at.get(int(calls.uid[source])), at.get(int(calls.uid[target]))
            sent, heard = int(calls.row[source]), int(calls.row[target])
            if not sender or not receiver or sender[0] >= sent:  # what comes in with a call is not sent on by it
                continue
            low, high = (sent, heard) if kind == "message" else (heard, heard + 1)
            if bisect_left(receiver, low) < bisect_left(receiver, high):
                pairs.append((source, target))
    return pairs


def _rewards(events: Any) -> dict[str, float]:
    """Every channel over the episode: the team's once, the others summed over lives and ticks."""
    here = np.asarray(events.uid) >= 0
    out = {}
    for name in in_order(events.channels):
        values = np.where(here, np.asarray(events.channels[name], np.float64), 0.0)
        if name == "team":
            most = np.where(here, values, -np.inf).max(axis=1)
            out[name] = math.fsum(most[np.isfinite(most)].tolist())
        else:
            out[name] = math.fsum(values[values != 0].tolist())
    return out


def _costs(head: dict[str, Any], events: Any, names: dict[int, str]) -> dict[str, int | float]:
    here = np.asarray(events.uid) >= 0
    valid = here & np.asarray(events.valid)
    kind = np.asarray(events.kind)
    tokens = np.asarray(events.cost_tokens, np.int64).sum(axis=(0, 1)).tolist()
    return {
        "tokens": sum(tokens),
        "wall_clock_s": head["wall_ms"] / 1000,
        "tool_calls": int((valid & (kind == EventKind.TOOL)).sum()),
        "messages": int((valid & (kind == EventKind.MESSAGE)).sum()),
        **{f"tokens_{purpose}": count for purpose, count in zip(COST_PURPOSES, tokens, strict=True)},
        "serial_s": int(np.asarray(events.latency_ms, np.int64)[here].sum()) / 1000,
        "turns": int((valid & (kind != EventKind.WAIT)).sum()),
        "decisions": int((here & np.asarray(events.is_decision)).sum()),
        "sub_agents": len(names) - 1,
    }
