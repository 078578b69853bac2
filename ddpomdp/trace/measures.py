"""What a trace says about a team: the survey's evaluation layers E1 to E4 and its five operational metrics.

Each is one function of the document. Traces of this package also carry event records, from which more follows; a trace
of another system gives what its fields allow. What cannot be computed is None with the reason, or the number the file
itself states under `metrics`, and then says so. Source of all but those marked "form ours": C. Zhang, arXiv 2605.02801,
section 9 and Table 13. Definitions leave room; what we chose stands with each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpomdp.critical_path import Timeline
from ddpomdp.enums import EventKind

LAYERS = {"success": "E1", "parallelism": "E2", "collaboration": "E3", "overhead": "E4"}
IDLE_RESULTS = ("nothing", "fault", "refused", "illegal")  # of a tool call that did nothing for the task
_COSTS = ("wall_s", "serial_s")  # numbers of `info` that stand under costs
_ACTIONS = ("orchestrator_decision", "spawn", "despawn", "message", "tool_call", "return", "aggregate")


@dataclass(frozen=True)
class Measure:
    """One number of a trace.

    Attributes:
      value: the number; None where there is none.
      layer: success, parallelism, collaboration or overhead.
      operational: one of the survey's five operational metrics.
      source: "computed" from the events, or "stated" by the file; "" where there is none.
      reason: why there is none.
    """

    value: float | None
    layer: str
    operational: bool = False
    source: str = ""
    reason: str = ""


@dataclass(frozen=True)
class _Own:
    """What a trace of this package has beyond the document."""

    events: Any  # Event arrays [T, N]
    time: Timeline


class _NoneOf(Exception):
    """Why a metric has no value."""


def metrics(trace: Any) -> dict[str, Measure]:
    """Every metric of a `Trace`, by name."""
    own = None if trace.head is None else _Own(trace.arrays, trace.timeline)
    return _measure(trace.document, own)


def layers(measures: dict[str, Measure]) -> list[str]:
    """The survey's codes of the layers that have a value; it calls three or more of them MAS-native."""
    present = {measure.layer for measure in measures.values() if measure.value is not None}
    return [code for layer, code in LAYERS.items() if layer in present]


def recorded(document: dict[str, Any], events: Any, time: Timeline) -> dict[str, float]:
    """The `metrics` of a document that is being written: what has a value, and the task's own measures."""
    info = document["events"][0]["ddpomdp"]["info"]
    stated = {name: value for name, value in info.items() if isinstance(value, float) and name not in _COSTS}
    stated |= {"task_success": task_success({**document, "metrics": stated}, None)} if info else {}
    measures = _measure({**document, "metrics": stated}, _Own(events, time))
    return stated | {name: measure.value for name, measure in measures.items() if measure.value is not None}


def _measure(document: dict[str, Any], own: _Own | None) -> dict[str, Measure]:
    stated = document.get("metrics", {})
    out = {}
    for name, (layer, operational, rule) in _RULES.items():
        try:
            out[name] = Measure(float(rule(document, own)), layer, operational, "computed")
        except _NoneOf as reason:
            if name in stated:
                out[name] = Measure(float(stated[name]), layer, operational, "stated")
            else:
                out[name] = Measure(None, layer, operational, "", str(reason))
    return out


# Success -----------------------------------------------------------------------------------------------------------


def task_success(document: dict[str, Any], own: _Own | None) -> float:
    """E1: whether the task was solved, 0 or 1, or else the quality of the answer, 0 to 1.

    task_success = metrics.task_success, else metrics.success, else metrics.quality: no event says it, the file does.
    """
    stated = document.get("metrics", {})
    for name in ("task_success", "success", "quality"):
        if name in stated:
            return float(stated[name])
    raise _NoneOf("metrics states no task_success, success or quality")


# Parallelism -------------------------------------------------------------------------------------------------------


def parallelism_efficiency(document: dict[str, Any], own: _Own | None) -> float:
    """E2: how many times faster than the same calls one after another.

    T_serial / T_parallel; T_serial = sum of the durations of all calls (waits take none), T_parallel = wall-clock. With
    n agents at work all the time it is n. Of another system: costs.serial_s / costs.wall_clock_s.
    """
    costs = document["costs"]
    if own is None and "serial_s" not in costs:
        raise _NoneOf("events have no durations, and costs no serial_s")
    if not costs["wall_clock_s"]:
        raise _NoneOf("the wall-clock is 0")
    return costs["serial_s"] / costs["wall_clock_s"]


def useful_agent_utilisation(document: dict[str, Any], own: _Own | None) -> float:
    """E2: task-relevant sub-agent actions / all sub-agent actions.

    A sub-agent is any agent but the first that decides or spawns. Its actions are its events except tool results,
    safety events and human interventions. Task-relevant are tool calls and returns; here, more strictly, a tool call
    that came to something (result not nothing, fault, refused or illegal) and was no useless repeat (its channel
    `tool` not negative), and a return that carried a claim.
    """
    root = _orchestrator(document)
    actions = [e for e in document["events"] if e["type"] in _ACTIONS and e["agent"] not in (root, "env")]
    if not actions:
        raise _NoneOf("no sub-agent acted")
    return sum(map(_is_relevant, actions)) / len(actions)


def critical_steps(document: dict[str, Any], own: _Own | None) -> float:
    """E2: the root's critical steps at the end (Kimi K2.5, arXiv 2602.02276; costs per call in the task's card)."""
    info = {} if own is None else document["events"][0]["ddpomdp"]["info"]
    if "critical_steps" not in info:
        raise _NoneOf("nothing states the critical steps")
    return info["critical_steps"]


# Collaboration -----------------------------------------------------------------------------------------------------


def message_redundancy(document: dict[str, Any], own: _Own | None) -> float:
    """E3: semantically duplicate messages / all inter-agent messages.

    Here a message is a duplicate if it carried no claim, or reached agents that act later and none of them newly knew
    a claim between the two; messages that meet at one receiver share its news. Returns are no messages. Of another
    system: a message whose content_ref its receiver was already sent.
    """
    messages = [event for event in document["events"] if event["type"] == "message"]
    if not messages:
        raise _NoneOf("there are no messages")
    if own is None:
        if any("content_ref" not in message for message in messages):
            raise _NoneOf("messages have no content_ref to compare")
        seen, duplicates = set(), 0
        for message in sorted(messages, key=lambda message: message["t"]):
            what = (message.get("to"), message["content_ref"])
            duplicates += what in seen
            seen.add(what)
        return duplicates / len(messages)
    calls, edges = own.time.calls, own.time.edges.of("message")
    sent = np.flatnonzero(calls.kind == EventKind.MESSAGE)
    news = _news(own)
    told = {
        source: any(news(int(calls.uid[t]), int(calls.row[source]), int(calls.row[t])) for t in edges.target[mine])
        for source in np.unique(edges.source).tolist()
        for mine in [edges.source == source]
    }
    empty = calls.claims_sent[sent] == 0
    return sum(bool(e) or told.get(s) is False for e, s in zip(empty, sent.tolist(), strict=True)) / len(sent)


def unread_returns(document: dict[str, Any], own: _Own | None) -> float:
    """E3, form ours: returns that nobody aggregated / all returns."""
    returns = {event["id"] for event in document["events"] if event["type"] == "return"}
    if not returns:
        raise _NoneOf("there are no returns")
    read = {edge["src"] for edge in document["edges"] if edge["type"] == "aggregate"}
    if own is None and not read:
        raise _NoneOf("no edge says which returns were aggregated")
    return len(returns - read) / len(returns)


def consensus_quality(document: dict[str, Any], own: _Own | None) -> float:
    """E3: quality of the answer / quality of the best answer among the claims returned to the root.

    The channel orchestration_aggregation; 1 means that aggregation lost nothing.
    """
    if own is None or "orchestration_aggregation" not in document["rewards"]:
        raise _NoneOf("nothing states how good an answer the returns allowed")
    if not document["costs"]["sub_agents"]:
        raise _NoneOf("there was no sub-agent to agree with")
    return document["rewards"]["orchestration_aggregation"]


# Overhead ----------------------------------------------------------------------------------------------------------


def protocol_overhead(document: dict[str, Any], own: _Own | None) -> float:
    """E4: (orchestration + message + tool-management tokens) / all tokens.

    Tool-management tokens are those of tool calls that came to nothing (result nothing, fault, refused, illegal): the
    work of a tool call is the task's. Of another system: costs.tokens_orchestration, tokens_message and, if stated,
    tokens_tool_management, over costs.tokens.
    """
    costs = document["costs"]
    if own is None and not {"tokens_orchestration", "tokens_message"} & set(costs):
        raise _NoneOf("costs do not tell tokens_orchestration and tokens_message apart")
    if not costs["tokens"]:
        raise _NoneOf("no tokens were spent")
    managing = costs.get("tokens_tool_management", 0)
    if own is not None:
        managing = sum(
            _tokens(event) for event in document["events"] if event["type"] == "tool_call" and _is_idle(event)
        )
    return (costs.get("tokens_orchestration", 0) + costs.get("tokens_message", 0) + managing) / costs["tokens"]


def tokens_per_delegation(document: dict[str, Any], own: _Own | None) -> float:
    """E4: tokens of spawn and delegate calls / children handed work by them (spawned, or resumed by a delegation)."""
    if own is None:
        raise _NoneOf("events have no tokens")
    events = document["events"]
    hands = [e for e in events if e["type"] == "spawn" or e.get("decision") == "delegate"]
    ids = {event["id"] for event in hands}
    handed = sum(edge["src"] in ids and edge["type"] in ("spawn", "causal") for edge in document["edges"])
    if not handed:
        raise _NoneOf("nobody was handed work")
    return sum(map(_tokens, hands)) / handed


def error_amplification(document: dict[str, Any], own: _Own | None) -> float:
    """E4: downstream corrupted events / initial corrupted events.

    Initial: untrusted tool results. Downstream: events into which a safety_flow edge leads. 0: nothing spread.
    """
    initial = _initial(document)
    if not initial:
        raise _NoneOf("no tool result is untrusted")
    targets = {edge["dst"] for edge in document["edges"] if edge["type"] == "safety_flow"}
    if own is None and not targets:
        raise _NoneOf("no safety_flow edge says what was corrupted downstream")
    return len(targets - initial) / len(initial)


def injection_flow(document: dict[str, Any], own: _Own | None) -> float:
    """E4, form ours: agents into which a safety_flow edge leads / all agents that act."""
    if not any("trusted" in event for event in document["events"]):
        raise _NoneOf("no event says whether it is trusted")
    targets = {edge["dst"] for edge in document["edges"] if edge["type"] == "safety_flow"}
    if own is None and _initial(document) and not targets:
        raise _NoneOf("no safety_flow edge says what was corrupted downstream")
    agents = {event["agent"] for event in document["events"] if event["type"] in _ACTIONS} - {"env"}
    reached = {event["agent"] for event in document["events"] if event["id"] in targets}
    return len(reached & agents) / max(len(agents), 1)


_RULES: dict[str, tuple[str, bool, Callable[[dict[str, Any], _Own | None], float]]] = {
    "task_success": ("success", False, task_success),
    "parallelism_efficiency": ("parallelism", True, parallelism_efficiency),
    "useful_agent_utilisation": ("parallelism", True, useful_agent_utilisation),
    "critical_steps": ("parallelism", False, critical_steps),
    "message_redundancy": ("collaboration", True, message_redundancy),
    "unread_returns": ("collaboration", False, unread_returns),
    "consensus_quality": ("collaboration", False, consensus_quality),
    "protocol_overhead": ("overhead", True, protocol_overhead),
    "tokens_per_delegation": ("overhead", False, tokens_per_delegation),
    "error_amplification": ("overhead", True, error_amplification),
    "injection_flow": ("overhead", False, injection_flow),
}


def _orchestrator(document: dict[str, Any]) -> str:
    events = [e for e in document["events"] if e["agent"] != "env"] or document["events"]
    decides = [e for e in events if e["type"] in ("orchestrator_decision", "spawn")]
    return min(decides or events, key=lambda event: event["t"])["agent"] if document["events"] else ""


def _is_relevant(event: dict[str, Any]) -> bool:
    record = event.get("ddpomdp")
    if event["type"] not in ("tool_call", "return") or not isinstance(record, dict):
        return event["type"] in ("tool_call", "return")
    if event["type"] == "return":
        return record.get("claims_sent", 0) > 0
    return not _is_idle(event) and record.get("channels", {}).get("tool", 0) >= 0


def _is_idle(event: dict[str, Any]) -> bool:
    return event["ddpomdp"].get("result_code", "nothing") in IDLE_RESULTS


def _tokens(event: dict[str, Any]) -> int:
    return sum(event["ddpomdp"].get("cost_tokens", {}).values())


def _initial(document: dict[str, Any]) -> set[str]:
    """Untrusted tool results; not those whose caller was told untrusted claims in the same turn."""
    events = document["events"]
    told = {
        event["id"]
        for event in events
        if isinstance(r := event.get("ddpomdp"), dict) and r.get("claims_received", 0) > 0
    }
    untrusted = (event for event in events if event["type"] == "tool_result" and event.get("trusted") is False)
    return {event["id"] for event in untrusted if event["id"].removesuffix("r") not in told}


def _news(own: _Own) -> Callable[[int, int, int], bool]:
    """Whether a life newly knew a claim in rows [first, last)."""
    row, slot = np.nonzero((own.events.uid >= 0) & (own.events.claims_received > 0))
    uid = own.events.uid[row, slot]
    order = np.lexsort((row, uid))
    key = uid[order].astype(np.int64) * 2**32 + row[order]
    at = lambda life, r: int(np.searchsorted(key, life * 2**32 + r))  # noqa: E731
    return lambda life, first, last: at(life, first) < at(life, last)


def scale(trace: Any) -> dict[str, Any]:
    """How large a trace is and what it records: the survey's reporting checklist (its Table 14)."""
    document = trace.document
    events = [event for event in document["events"] if event["agent"] != "env"]
    count = lambda kind: sum(event["type"] == kind for event in events)  # noqa: E731
    tools = {event["agent"] for event in events} - {
        event["agent"] for event in events if event["type"] != "tool_result"
    }
    agents = {event["agent"] for event in events} - tools
    born, gone = count("spawn"), count("despawn")
    untrusted = [event for event in events if event.get("trusted") is False]
    return {
        "topology": document.get("topology", "unknown"),
        "roles": sorted({str(event["role"]) for event in events if "role" in event}),
        "population": "dynamic" if born or gone else "fixed",
        "events": len(events),
        "edges": len(document["edges"]),
        "agents": len(agents),
        "sub_agents": document["costs"].get("sub_agents", max(len(agents) - 1, 0)),
        "messages": count("message"),
        "tool_calls": count("tool_call"),
        "wall_clock_s": document["costs"]["wall_clock_s"],
        "tokens": document["costs"]["tokens"],
        "reward_channels": [name for name, value in document["rewards"].items() if value],
        "untrusted_tool_results": sum(event["type"] == "tool_result" for event in untrusted),
        "untrusted_messages": sum(event["type"] in ("message", "return") for event in untrusted),
        "human_interventions": count("human_intervention"),
        "safety_events": count("safety_event"),
    }
