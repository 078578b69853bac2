"""Spans under OpenTelemetry's conventions for generative AI, or OpenInference's, as JSON.

Two spellings: OTLP (`resourceSpans`, one object or one per line) and the SDK's own (`context`, `parent_id`). A team is
a trace id. Nesting says who works for whom: a link between spans is no parent, and is counted only.

| span | events |
| --- | --- |
| `invoke_agent`, AGENT | `spawn` by the agent around it, the second time `delegate`; `return` at its end |
| `execute_tool`, TOOL | `tool_call`, and `tool_result` at its end |
| `chat`, `text_completion`, `generate_content`, LLM | `orchestrator_decision` of the agent around it |
| `create_agent` | `spawn` |
| anything else | none; what is inside it belongs to what is around it |

A span whose parent is missing hangs from the root. An attribute that should hold JSON and does not was cut on its way:
the span is kept and its event names the attribute under `cut`.
"""

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpomdp.trace import text as text_
from ddpomdp.trace.importers import lines
from ddpomdp.trace.importers.parents import forest, nearest
from ddpomdp.trace.importers.team import Imported, Team, ref, team_shape
from ddpomdp.trace.importers.times import nanoseconds
from ddpomdp.trace.text import TraceError, short

FORMAT = "otel"
NOBODY = "unknown"  # the agent of spans that no agent's span is around
_KINDS = {
    "invoke_agent": "agent",
    "create_agent": "create",
    "execute_tool": "tool",
    "chat": "model",
    "text_completion": "model",
    "generate_content": "model",
    "AGENT": "agent",
    "TOOL": "tool",
    "LLM": "model",
}
_AGENT = ("gen_ai.agent.id", "gen_ai.agent.name", "agent.name", "graph.node.id")
_NAME = ("gen_ai.agent.name", "agent.name", "gen_ai.agent.id", "graph.node.id")
_TOOL = ("gen_ai.tool.name", "tool.name")
_INPUT = ("gen_ai.usage.input_tokens", "llm.token_count.prompt")
_OUTPUT = ("gen_ai.usage.output_tokens", "llm.token_count.completion")
# Attributes that hold JSON as a text.
_CONTENT = ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.input.messages", "gen_ai.output.messages")
_OPENS = re.compile(r"\s*[\[{]")


@dataclass(slots=True)
class _Span:
    id: str
    parent: str | None
    start: int
    end: int
    kind: str  # agent, create, tool, model or ""
    agent: str | None
    name: str
    tool: str
    tokens: int
    content: str | None
    links: int
    failed: bool
    cut: list[str] = field(default_factory=list)


def is_batch(value: Any) -> bool:
    """Whether a value looks like spans."""
    if isinstance(value, list):
        return bool(value) and is_batch(value[0])
    if not isinstance(value, dict):
        return False
    return "resourceSpans" in value or ("context" in value and ("parent_id" in value or "start_time" in value))


def teams(path: Path, strict: bool) -> Iterator[Imported]:
    """The teams of a file, trace id by trace id; errors as of `import_all`."""
    found: dict[str, list[tuple[str, dict[str, Any], int | None]]] = defaultdict(list)
    lost: list[tuple[str, str, int | None]] = []
    for where, value, line in _values(path, lost):
        for place, span in _spans(value, where):
            trace = _trace_id(span)
            if trace is None:
                lost.append((place, "is no span with a trace id", line))
            else:
                found[trace].append((place, span, line))
    if not found:
        place, reason, line = lost[0] if lost else ("", "there are no spans in it", None)
        raise TraceError(f"{path}: {reason}", place, line, 1 if line else None)
    for i, trace in enumerate(sorted(found)):
        team = Team(FORMAT, path, strict)
        for n, (place, reason, line) in enumerate(lost if i == 0 else ()):
            team.problem(place, reason, line=line, record=("unread", n))
        imported = _team(trace, team, found[trace], len(lost) if i == 0 else 0)
        if imported is not None:
            yield imported


# Spellings --------------------------------------------------------------------------------------------------------


def _values(path: Path, lost: list[tuple[str, str, int | None]]) -> Iterator[tuple[str, Any, int | None]]:
    """(place, value, line) of a file that is one JSON value, or one per line."""
    text = None
    if path.suffix.lower() != ".jsonl":
        text = text_.read(path)
        try:
            yield "", text_.parse(text), None
            return
        except TraceError as error:
            first = text.lstrip().split("\n", 1)
            if len(first) < 2 or not _is_value(first[0]):
                raise TraceError(f"{path}: {error.reason}", error.path, error.line, error.column) from None
    for number, value, fault in lines.records(path):
        if fault is not None:
            lost.append((f"line {number}", fault.reason, number))
        else:
            yield f"line {number}", value, number


def _is_value(text: str) -> bool:
    try:
        text_.parse(text)
    except TraceError:
        return False
    return True


def _spans(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, span) of everything in a value that may be one."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _spans(item, f"{where}[{i}]")
    elif isinstance(value, dict) and isinstance(value.get("resourceSpans"), list):
        for i, resource in enumerate(value["resourceSpans"]):
            scopes = resource.get("scopeSpans") if isinstance(resource, dict) else None
            for j, scope in enumerate(scopes if isinstance(scopes, list) else ()):
                spans = scope.get("spans") if isinstance(scope, dict) else None
                for k, span in enumerate(spans if isinstance(spans, list) else ()):
                    place = f"{where}.resourceSpans[{i}].scopeSpans[{j}].spans[{k}]".lstrip(".")
                    yield place, span if isinstance(span, dict) else {}
    else:
        yield where, value if isinstance(value, dict) else {}


def _trace_id(span: dict[str, Any]) -> str | None:
    context = span.get("context")
    name = context.get("trace_id") if isinstance(context, dict) else span.get("traceId")
    return name.removeprefix("0x") if isinstance(name, str) and name.removeprefix("0x") else None


class _Unfit(ValueError):
    def __init__(self, path: str, reason: str):
        super().__init__(reason)
        self.path, self.reason = path, reason


def _read(span: dict[str, Any]) -> _Span:
    """A span of either spelling; `_Unfit` where it cannot be kept."""
    context = span.get("context")
    if isinstance(context, dict):
        name, parent = context.get("span_id"), span.get("parent_id")
        start, end = _iso(span, "start_time"), _iso(span, "end_time")
        attributes: dict[str, Any] = span["attributes"] if isinstance(span.get("attributes"), dict) else {}
    else:
        name, parent = span.get("spanId"), span.get("parentSpanId")
        start, end = _nanos(span, "startTimeUnixNano"), _nanos(span, "endTimeUnixNano")
        attributes = _attributes(span.get("attributes"))
    if not isinstance(name, str) or not name:
        raise _Unfit("spanId", f"got {short(name)}; allowed: a name")
    if parent is not None and not isinstance(parent, str):
        raise _Unfit("parentSpanId", f"got {short(parent)}; allowed: a name or null")
    word = lambda *keys: next((v for k in keys if isinstance(v := attributes.get(k), str) and v), None)  # noqa: E731
    number = lambda *keys: next((v for k in keys if type(v := attributes.get(k)) is int and v >= 0), 0)  # noqa: E731
    kinds = (_KINDS.get(word(key) or "", "") for key in ("gen_ai.operation.name", "openinference.span.kind"))
    kind = next(filter(None, kinds), "")
    status, links, title = span.get("status"), span.get("links"), span.get("name")
    code = (status.get("code") or status.get("status_code")) if isinstance(status, dict) else None
    given = {key: attributes[key] for key in (*_CONTENT, "input.value", "output.value") if key in attributes}
    return _Span(
        id=name.removeprefix("0x"),
        parent=(parent or "").removeprefix("0x") or None,
        start=start,
        end=max(start, end),
        kind=kind,
        agent=word(*_AGENT),
        name=word(*_NAME) or (title if isinstance(title, str) and title else "agent"),
        tool=word(*_TOOL) or (title if isinstance(title, str) and title else "tool"),
        tokens=number(*_INPUT) + number(*_OUTPUT) if kind == "model" else 0,
        content=ref(given) if given else None,
        links=len(links) if isinstance(links, list) else 0,
        failed=code in (2, "ERROR", "STATUS_CODE_ERROR") or "error.type" in attributes,
        cut=[key for key in _CONTENT if _is_cut(attributes.get(key))],
    )


def _is_cut(value: Any) -> bool:
    """Whether a text begins as a JSON list or object and is none."""
    if not isinstance(value, str) or not _OPENS.match(value):
        return False
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return True
    return False


def _nanos(span: dict[str, Any], key: str) -> int:
    given = span.get(key)
    if type(given) is int and given >= 0:
        return given
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 20:
        return int(given)
    raise _Unfit(key, f"got {short(given)}; allowed: nanoseconds as a whole number")


def _iso(span: dict[str, Any], key: str) -> int:
    if (at := nanoseconds(span.get(key))) is None:
        raise _Unfit(key, f"got {short(span.get(key))}; allowed: a date and time")
    return at


def _attributes(given: Any) -> dict[str, Any]:
    """OTLP's list of keys and typed values as a dict; what is not of that shape is left out."""
    out: dict[str, Any] = {}
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict) and isinstance(item.get("key"), str) and isinstance(item.get("value"), dict):
            for kind, value in item["value"].items():
                digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
                out[item["key"]] = int(value) if kind == "intValue" and digits else value
    return out


# The team ---------------------------------------------------------------------------------------------------------


def _team(trace: str, team: Team, found: list[tuple[str, dict[str, Any], int | None]], unread: int) -> Imported | None:
    spans: dict[str, _Span] = {}
    for n, (place, given, line) in enumerate(found):
        try:
            span = _read(given)
        except _Unfit as error:
            path = f"{place}.{error.path}".lstrip(".")
            team.problem(path, error.reason, line=line, record=("spans", n))
            continue
        known = spans.get(span.id)
        team.counts["repeated"] += known is not None
        if known is None or repr(span) < repr(known):  # the same one, in whatever order they come
            spans[span.id] = span
    order = {name: (span.start, name) for name, span in spans.items()}
    parents, dangling, cut = forest({name: span.parent for name, span in spans.items()}, order)
    for name in dangling:
        said = f"{short(name)} hangs from {short(spans[name].parent)}, which is not there; put under the root"
        team.problem("parentSpanId", said, level="warning")
    for name in cut:
        team.problem("parentSpanId", f"a cycle of parents is cut above {short(name)}", level="warning")
    team.counts["dangling"], team.counts["cycles"] = len(dangling), len(cut)
    if links := sum(span.links for span in spans.values()):
        team.counts["links"] = links
    bosses = _events(team, spans, parents, sorted(spans, key=lambda name: order[name]))
    team.temporal(but=NOBODY)
    starts, ends = [s.start for s in spans.values()], [s.end for s in spans.values()]
    tokens = sum(span.tokens for span in spans.values())
    costs: dict[str, float] = {"tokens": tokens, "sub_agents": len(bosses)}
    if spans:
        costs["wall_clock_s"] = (max(ends) - min(starts)) / 1e9
    told = any(span.tokens for span in spans.values())
    return team.finish(
        system="OpenTelemetry",
        task_id=trace,
        topology=team_shape(bosses),
        costs=costs,
        records_in=len(found) + unread,
        about={"trace": trace},
        unknown=() if told else ("tokens",),
    )


def _events(team: Team, spans: dict[str, _Span], parents: dict[str, str | None], order: list[str]) -> dict[str, str]:
    """Add the events of all spans in order of time; gives the parent of each agent that has one."""
    outer = nearest(parents, {name: True for name in order if spans[name].kind == "agent"})
    around = nearest(parents, {name: True for name in order if spans[name].kind in ("agent", "tool")})
    names = _names([spans[name] for name in order if spans[name].kind in ("agent", "create")])
    bosses: dict[str, str] = {}
    started: set[str] = set()
    opened: dict[str, str] = {}  # how each inner agent's span is linked with what is inside it
    for name in order:
        span, within = spans[name], outer[name]
        boss = names[spans[within].agent or within] if within is not None else NOBODY
        fields: dict[str, Any] = {"content_ref": span.content, "cut": span.cut or None}
        fields["error"] = True if span.failed else None
        if span.kind == "model":
            team.event(_id(name), span.start, "orchestrator_decision", boss, decision="model", **fields)
        elif span.kind == "tool":
            team.event(_id(name), span.start, "tool_call", boss, tool=span.tool, **fields)
            team.event(_id(name, "result"), span.end, "tool_result", boss, **{"from": span.tool})
            team.edge(_id(name), _id(name, "result"), "tool_dependency")
        elif span.kind in ("agent", "create"):
            who = names[span.agent or name]
            first = who not in started
            started.add(who)
            if span.kind == "agent" and within is None and around[name] is None:
                team.event(_id(name), span.start, "orchestrator_decision", who, decision="start", **fields)
                team.event(_id(name, "end"), span.end, "orchestrator_decision", who, decision="stop")
                continue
            if who != boss and first:
                bosses[who] = boss
            call = {"decision": None if first else "delegate", "to": who}
            team.event(_id(name), span.start, "spawn" if first else "orchestrator_decision", boss, **call, **fields)
            if span.kind == "agent":
                team.event(_id(name, "end"), span.end, "return", who, to=boss)
                opened[name] = "spawn" if first else "causal"
    _bind(team, spans, outer, around, opened, order)
    return bosses


def _id(span: str, part: str = "") -> str:
    return f"s:{span}:{part}" if part else f"s:{span}"


def _bind(
    team: Team,
    spans: dict[str, _Span],
    outer: dict[str, str | None],
    around: dict[str, str | None],
    opened: dict[str, str],
    order: list[str],
) -> None:
    """Link each call of an agent with the first event inside it, and its return with what it returns into."""
    inside: dict[str, str] = {}
    for name in order:
        if (agent := outer[name]) is not None and _id(name) in team.events:
            inside.setdefault(agent, _id(name))
    told: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in team.ordered():
        told[team.events[event]["agent"]].append((team.when[event], event))
    for name, kind in sorted(opened.items()):
        end = _id(name, "end")
        team.edge(_id(name), inside.get(name, end), kind)
        tool, mine = around[name], told[team.events[_id(name)]["agent"]]
        if tool is not None and spans[tool].kind == "tool":
            team.edge(end, _id(tool, "result"), "return")
        elif (after := bisect_right(mine, (spans[name].end, end))) < len(mine):
            team.edge(end, mine[after][1], "return")


def _names(spans: list[_Span]) -> dict[str, str]:
    """An outside name for each agent: its own, or with a number where several agents share it."""
    ids: dict[str, str] = {}
    for span in spans:
        ids.setdefault(span.agent or span.id, span.name)
    sharing, number, out = Counter(ids.values()), Counter(), {}
    for key, name in ids.items():
        number[name] += 1
        out[key] = name if sharing[name] == 1 else f"{name}_{number[name]}"
    return out
