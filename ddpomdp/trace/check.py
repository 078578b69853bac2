"""Whether a document is a trace: fields, ids, edges; and of our own, whether it is what ddpomdp would write.

Two readings. `checked` takes all or nothing. `salvaged` takes what can be taken from a trace of any system: events and
edges that cannot are left out, each one listed, so that records in = records kept + records listed as left out. What is
kept does not depend on the order in which events and edges stand.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ddpomdp.trace import schema
from ddpomdp.trace.text import Path_, TraceError, places, short, spell

MOST = 100  # problems that are given a line and a column
OWN = "ddpomdp"  # the field of an event that says the trace is ours
_VOCABULARY = ("id", "t", "type", "agent", "role", "from", "to", "tool", "content_ref", "trusted", "decision", OWN)


@dataclass(frozen=True)
class Problem:
    """Something wrong in a trace.

    Attributes:
      path: the field, such as `events[3].t`.
      reason: what is wrong.
      level: "error", or "warning" where the trace can be used as it is.
      line, column: from 1, where there is a text.
      record: ("events", index) or ("edges", index) where that record cannot be kept.
    """

    path: str
    reason: str
    level: str = "error"
    line: int | None = None
    column: int | None = None
    record: tuple[str, int] | None = None

    def __str__(self) -> str:
        where = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{self.level}: {where}{self.path or 'the document'}: {self.reason}"


_Fault = tuple[Path_, str]


def is_own(document: Any) -> bool:
    """Whether the document claims to be written by ddpomdp."""
    events = document.get("events") if isinstance(document, dict) else None
    return isinstance(events, list) and any(isinstance(event, dict) and OWN in event for event in events)


def checked(document: Any, text: str | None = None) -> tuple[dict[str, Any], Any]:
    """A document that is a trace in every respect, in the order in which it is written, and its event arrays.

    Args:
      document: plain data.
      text: what it was read from, for lines and columns.

    Returns:
      The document, and the arrays [T, N]; None for a trace of another system.

    Raises:
      TraceError: the first thing that is wrong.
    """
    first = next(_faults_of_kind(document), None)
    if first is None and is_own(document):
        again, events, faults = _rewritten(document)
        if not faults:
            return again, events
        first = faults[0]
    elif first is None:
        errors = [problem for problem in _graph(document) if problem[2] == "error"]
        if not errors:
            return document, None
        first = errors[0][:2]
    path, reason = first
    line, column = places(text, [path])[path] if text else (None, None)
    raise TraceError(reason, spell(path), line, column)


def problems(document: Any, text: str | None = None) -> list[Problem]:
    """Everything that is wrong with a document; empty where `checked` takes it without a word."""
    found: list[tuple[Path_, str, str]] = [(*fault, "error") for fault in _faults_of_kind(document)]
    if not found and is_own(document):
        found = [(*fault, "error") for fault in _rewritten(document)[2]]
    elif not found:
        found = _graph(document)
    return _placed(found, text, set())


def salvaged(document: Any, text: str | None = None) -> tuple[dict[str, Any] | None, list[Problem]]:
    """What can be kept of a trace of any system, and what is wrong with it.

    Returns:
      The document (None if nothing can be kept) and the problems; each record left out is named by exactly one.
    """
    found: list[tuple[Path_, str, str]] = []
    if is_own(document):
        own = problems(document, text)
        if not own:
            return _rewritten(document)[0], []
        found.append(
            ((), f"not as ddpomdp wrote it, and no longer replayable: {own[0].path}: {own[0].reason}", "warning")
        )
        document = {**document, "events": [_without_own(event) for event in document["events"]]}
    faults = list(schema.faults(document, "any_trace"))
    fatal = [(*fault, "error") for fault in faults if len(fault[0]) < 2 or fault[0][0] not in ("events", "edges")]
    if fatal:
        every = {(kind, i) for kind in ("events", "edges") for i in range(_length(document, kind))}
        return None, _placed([*found, *fatal], text, every)
    bad = {}
    for path, reason in faults:
        bad.setdefault(path[:2], (path, reason, "error"))
    found += bad.values()
    kept = {kind: [i for i in range(len(document[kind])) if (kind, i) not in bad] for kind in ("events", "edges")}
    lost = set(bad)
    for path, reason, level in _graph(document, kept):
        found.append((path, reason, level))
        if level == "error":
            lost.add(path[:2])
    out = {**document}
    for kind, order in kept.items():
        out[kind] = [document[kind][i] for i in order if (kind, i) not in lost]
    return out if out["events"] else None, _placed(found, text, lost if out["events"] else set(_every(document)))


def _every(document: Any) -> Iterator[tuple[str, int]]:
    return ((kind, i) for kind in ("events", "edges") for i in range(_length(document, kind)))


def _length(document: Any, kind: str) -> int:
    records = document.get(kind) if isinstance(document, dict) else None
    return len(records) if isinstance(records, list) else 0


def _without_own(event: Any) -> Any:
    return {name: value for name, value in event.items() if name != OWN} if isinstance(event, dict) else event


def _faults_of_kind(document: Any) -> Iterator[_Fault]:
    return schema.faults(document, "own_trace" if is_own(document) else "any_trace")


def _placed(found: list[tuple[Path_, str, str]], text: str | None, lost: set[Any]) -> list[Problem]:
    """As problems, with lines and columns; each of `lost` is given to one problem, made up where there is none."""
    where = places(text, [path for path, _, _ in found[:MOST]]) if text and found else {}
    left, out = set(lost), []
    for path, reason, level in found:
        record: Any = path[:2] if level == "error" and path[:2] in left else None
        left.discard(path[:2] if record else None)
        out.append(Problem(spell(path), reason, level, *where.get(path, (None, None)), record))
    return out + [Problem(spell(path), "left out with the rest", record=path) for path in sorted(left)]


# Graph -------------------------------------------------------------------------------------------------------------


def _graph(document: dict[str, Any], kept: dict[str, list[int]] | None = None) -> list[tuple[Path_, str, str]]:
    """What is wrong with ids, edges and names, as (path, reason, level); the records are sound one by one.

    An error is about a record that cannot be kept. Doubled ids: the copy that sorts first is kept. Cycles: the edges of
    a cycle that do not lead forward in (time, id) are left out, so that what stays does not depend on the order.
    """
    events, edges = document["events"], document["edges"]
    kept = kept or {"events": list(range(len(events))), "edges": list(range(len(edges)))}
    found: list[tuple[Path_, str, str]] = []
    copies: dict[str, list[int]] = defaultdict(list)
    for i in kept["events"]:
        copies[events[i]["id"]].append(i)
    when: dict[str, tuple[float, str]] = {}
    for name, places_ in copies.items():
        ordered = sorted(places_, key=lambda i: _canonical(events[i])) if len(places_) > 1 else places_
        when[name] = (events[ordered[0]]["t"], name)
        found += [(("events", i, "id"), f"{short(name)} stands {len(places_)} times", "error") for i in ordered[1:]]
    good, once = [], set()
    for i in kept["edges"]:
        source, target, kind = (edges[i][name] for name in ("src", "dst", "type"))
        if unknown := next((name for name in ("src", "dst") if edges[i][name] not in when), None):
            found.append((("edges", i, unknown), f"no event has the id {short(edges[i][unknown])}", "error"))
        elif source == target:
            found.append((("edges", i), f"leads from {short(source)} to itself", "error"))
        elif (source, target, kind) in once:
            found.append((("edges", i), "stands twice", "error"))
        else:
            once.add((source, target, kind))
            good.append(i)
    core = _cyclic([(edges[i]["src"], edges[i]["dst"]) for i in good])
    for i in good:
        source, target = edges[i]["src"], edges[i]["dst"]
        if when[source] >= when[target] and source in core and target in core:
            found.append((("edges", i), f"closes a cycle, from {short(source)} back to {short(target)}", "error"))
        elif when[source][0] > when[target][0]:
            found.append((("edges", i), f"leads back in time, {when[source][0]} to {when[target][0]} s", "warning"))
    known = {event["agent"] for i in kept["events"] if (event := events[i])}
    known |= {event.get(name) for i in kept["events"] for name in ("tool",) if (event := events[i])}
    known |= {event.get("to") for i in kept["events"] if (event := events[i])["type"] == "spawn"}
    for i in kept["events"]:
        for name in ("from", "to"):
            if name in events[i] and events[i][name] not in known:
                found.append((("events", i, name), f"{short(events[i][name])} is no agent that acts", "warning"))
    return found


def _canonical(event: Any) -> str:
    return json.dumps(event, sort_keys=True, ensure_ascii=False)


def _cyclic(pairs: list[tuple[str, str]]) -> set[str]:
    """The ids that lie on or between cycles: what is left when ends without predecessor or successor are taken off."""
    core: set[str] = {name for pair in pairs for name in pair}
    for forward in (True, False):
        after, degree = defaultdict(list), Counter()
        for a, b in pairs:
            a, b = (a, b) if forward else (b, a)
            if a in core and b in core:
                after[a].append(b)
                degree[b] += 1
        free = [name for name in core if not degree[name]]
        while free:
            name = free.pop()
            core.discard(name)
            for other in after[name]:
                degree[other] -= 1
                if not degree[other]:
                    free.append(other)
    return core


# Our own -----------------------------------------------------------------------------------------------------------


def _rewritten(document: dict[str, Any]) -> tuple[dict[str, Any], Any, list[_Fault]]:
    """(document as ddpomdp writes it, event arrays, where the given one differs); its fields are sound one by one."""
    from ddpomdp.trace import records
    from ddpomdp.trace.document import document as write
    from ddpomdp.trace.head import harness as harness_of

    given = document["events"]
    heads = [i for i, event in enumerate(given) if "format" in event[OWN]]
    if len(heads) != 1:
        return document, None, [(("events",), f"{len(heads)} events carry a head; allowed: 1")]
    at: Path_ = ("events", heads[0], OWN)
    head = {name: value for name, value in given[heads[0]][OWN].items() if name != "waits"}
    try:
        harness = harness_of(head)
        digest, num_args = harness.digest, harness.num_args
    except (TypeError, ValueError) as error:
        return document, None, [((*at, "harness"), str(error))]
    if digest != head["harness"]["digest"]:
        reason = f"got {head['harness']['digest']}; the harness written here has {digest}"
        return document, None, [((*at, "harness", "digest"), reason)]
    if num_args > 100:
        return document, None, [((*at, "harness", "tools"), f"a tool has {num_args} arguments; allowed: 100")]
    told = [(("events", i, OWN), event[OWN]) for i, event in enumerate(given) if "tokens" in event[OWN]]
    waits = [((*at, "waits", i), wait) for i, wait in enumerate(given[heads[0]][OWN]["waits"])]
    faults = [fault for path, record in told for fault in _misfits(path, record, harness)]
    faults += [fault for path, wait in waits for fault in _misfits(path, wait, harness)]
    if faults:
        return document, None, faults
    channels = list(head["weights"])
    events, faults = records.decode(head["ticks"], head["slots"], num_args, channels, told, waits)
    if faults:
        return document, None, faults
    try:
        again = write(head, harness, events, *records.encode(events))
    except (ValueError, KeyError, OverflowError) as error:
        return document, None, [(("events",), f"the events are not one episode: {error}")]
    faults = list(islice(_unlike(document, again), 1000))
    return _with_extras(document, again), events, faults


def _misfits(path: Path_, record: dict[str, Any], harness: Any) -> Iterator[_Fault]:
    """Where a record contradicts itself or its harness."""
    from ddpomdp.enums import EventKind
    from ddpomdp.harness import kind_and_decision

    if record["role"] >= len(harness.roles):
        yield (*path, "role"), f"got {record['role']}; allowed: 0 to {len(harness.roles) - 1}"
    if "tokens" not in record:
        return
    kinds, _ = kind_and_decision(len(harness.tools))
    tool = record["tokens"][0]
    known = 0 <= tool < len(harness.tools)
    if record.get("valid", True) and not known:
        yield (*path, "tokens", 0), f"got {tool}; allowed: 0 to {len(harness.tools) - 1}"
        return
    kind = EventKind(int(kinds[tool])) if record.get("valid", True) else EventKind.WAIT
    if record["kind"] != kind.name.lower():
        yield (*path, "kind"), f"got {short(record['kind'])}; the tokens say {short(kind.name.lower())}"


def _unlike(given: dict[str, Any], again: dict[str, Any]) -> Iterator[_Fault]:
    """Where a document differs from the one written again; events by id, edges as a set."""
    place = {}
    for i, event in enumerate(given["events"]):
        if event["id"] in place:
            yield ("events", i, "id"), f"{short(event['id'])} stands twice"
        place[event["id"]] = i
    for event in again["events"]:
        if (i := place.pop(event["id"], None)) is None:
            yield ("events",), f"lacks the event {short(event['id'])}"
            continue
        theirs = {name: value for name, value in given["events"][i].items() if name in _VOCABULARY}
        yield from _differing(theirs, event, ("events", i))
    for name, i in place.items():
        yield ("events", i), f"no record explains the event {short(name)}"
    edges = Counter((edge["src"], edge["dst"], edge["type"]) for edge in again["edges"])
    for i, edge in enumerate(given["edges"]):
        key = (edge["src"], edge["dst"], edge["type"])
        if not edges[key]:
            yield ("edges", i), f"does not follow from the records, or stands twice: {short(list(key), 100)}"
        edges[key] -= 1
    for key, count in edges.items():
        if count > 0:
            yield ("edges",), f"lacks the edge {short(list(key), 100)}"
    for name in again:
        if name not in ("events", "edges"):
            yield from _differing(given[name], again[name], (name,))


def _differing(given: Any, again: Any, path: Path_) -> Iterator[_Fault]:
    if isinstance(given, dict) and isinstance(again, dict):
        for name in again:
            if name not in given:
                yield path, f"lacks the field {name!r}"
            else:
                yield from _differing(given[name], again[name], (*path, name))
        for name in given:
            if name not in again:
                yield (*path, name), "does not follow from the records"
    elif isinstance(given, list) and isinstance(again, list) and len(given) == len(again):
        for i, (a, b) in enumerate(zip(given, again, strict=True)):
            yield from _differing(a, b, (*path, i))
    elif given != again or isinstance(given, bool) != isinstance(again, bool):
        yield path, f"got {short(given)}; the records say {short(again)}"


def _with_extras(given: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """The document written again, with the free fields that the given events had."""
    extras = {
        event["id"]: {name: value for name, value in event.items() if name not in _VOCABULARY}
        for event in given["events"]
    }
    return {**again, "events": [event | extras.get(event["id"], {}) for event in again["events"]]}
