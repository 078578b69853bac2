"""A trace as Chrome trace-event JSON, which ui.perfetto.dev and chrome://tracing open."""

import json
from typing import Any

from ddpomdp.trace.trace import Trace

FLOWS = ("spawn", "message", "causal", "return", "aggregate", "safety_flow")
_PID = 1


def to_perfetto(trace: Trace) -> str:
    """The JSON text: one track per agent, a slice per call, an arrow per edge between agents. Times in microseconds.

    A slice of ours lasts as long as the call, and a chosen wait until its agent's next event. Events of another system
    have no duration: a tool call lasts until its result (the tool_dependency or return edge), others 1 ms.
    """
    ends = _ends(trace)
    agents = list(dict.fromkeys(event["agent"] for event in trace.events))
    out: list[dict[str, Any]] = [_meta("process_name", 0, trace.document.get("system") or trace.document["task_id"])]
    for tid, agent in enumerate(agents):
        out += [_meta("thread_name", tid, agent), _meta("thread_sort_index", tid, tid)]
    track = {agent: tid for tid, agent in enumerate(agents)}
    slices = {}
    for event in trace.events:
        begin, tid = round(event["t"] * 1e6), track[event["agent"]]
        end = max(ends.get(event["id"], begin + 1000), begin + 1)
        shared = {"name": _title(event), "cat": event["type"], "pid": _PID, "tid": tid, "args": _details(event)}
        if event["type"] == "tool_result":
            out.append({**shared, "ph": "i", "ts": begin, "s": "t"})
            continue
        slices[event["id"]] = (tid, begin, end)
        out.append({**shared, "ph": "X", "ts": begin, "dur": end - begin})
    number = 0
    for edge in trace.edges:
        if edge["type"] not in FLOWS or edge["src"] not in slices or edge["dst"] not in slices:
            continue
        (source, begun, left), (target, begins, _) = slices[edge["src"]], slices[edge["dst"]]
        if source == target:
            continue
        number += 1
        flow = {"name": edge["type"], "cat": edge["type"], "id": number, "pid": _PID}
        # An arrow begins inside its slice: just before the end of the call.
        out.append({**flow, "ph": "s", "tid": source, "ts": min(left - 1, max(begins, begun))})
        out.append({**flow, "ph": "f", "bp": "e", "tid": target, "ts": begins})
    about = {name: trace.document[name] for name in ("trace_id", "task_id", "topology") if name in trace.document}
    document = {
        "traceEvents": out,
        "displayTimeUnit": "ms",
        "otherData": about | {"rewards": trace.document["rewards"]},
    }
    return json.dumps(document, allow_nan=False)


def _ends(trace: Trace) -> dict[str, int]:
    """The end of each event in microseconds, where it is known."""
    ends = {}
    if trace.head is not None:
        calls = trace.timeline.calls
        for row, uid, end in zip(calls.row.tolist(), calls.uid.tolist(), calls.end_ms.tolist(), strict=True):
            ends[f"t{row + 1}u{uid}"] = end * 1000
        return ends
    at = {event["id"]: event for event in trace.events}
    for edge in trace.edges:
        source, target = at[edge["src"]], at[edge["dst"]]
        if source["type"] == "tool_call" and target["type"] == "tool_result":
            ends[edge["src"]] = round(target["t"] * 1e6)
    return ends


def _title(event: dict[str, Any]) -> str:
    return event.get("tool") or event.get("decision") or event["type"]


def _details(event: dict[str, Any]) -> dict[str, Any]:
    record = event.get("ddpomdp", {})
    kept = {name: value for name, value in event.items() if name != "ddpomdp"}
    return kept | {
        name: value for name, value in record.items() if name in ("call", "cost_tokens", "result_code", "channels")
    }


def _meta(name: str, tid: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if name.endswith("index") else "name"
    return {"ph": "M", "name": name, "pid": _PID, "tid": tid, "args": {key: value}}
