"""Transcripts of Claude Code sessions: one record per line, sub-agents in files of their own or inline.

The format is not specified and changes; read here are `uuid`, `parentUuid`, `sessionId`, `agentId`, `isSidechain`,
`timestamp`, `message` and `toolUseResult.agentId`. A team is a session: `<session>.jsonl` with
`<session>/subagents/*.jsonl`, or `agent-*.jsonl` beside it that name the session. An agent is known by session and
agent id, so neither files that repeat the session's id nor short ids that recur in other sessions are mixed up.

The order of records plays no part: links and times do. A record whose parent was never written hangs from the root, a
cycle of parents is cut above its first record, a repeated `uuid` counts once. A sub-agent is linked to the call that
spawned it by the agent id in the call's result, else by its prompt.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddpomdp.trace.importers import lines
from ddpomdp.trace.importers.parents import forest, nearest
from ddpomdp.trace.importers.team import Imported, Team, ref, team_shape
from ddpomdp.trace.importers.times import nanoseconds
from ddpomdp.trace.text import TraceError, short

FORMAT = "claude-code"
SPAWNING = ("Task", "Agent")
MESSAGING = ("SendMessage",)
MAIN = "main"
_TOKENS = ("input_tokens", "output_tokens", "cache_creation_input_tokens")


@dataclass(slots=True)
class _Block:
    """A part of a message: kind is call, result or text."""

    kind: str
    id: str = ""
    tool: str = ""
    to: str | None = None
    content: str = ""  # reference
    error: bool = False


@dataclass(slots=True)
class _Record:
    """What is kept of a line."""

    uuid: str
    parent: str | None
    agent: str | None  # None: the session's own thread
    side: bool
    at: int | None
    role: str = ""  # user, assistant, "" for a record that only links
    blocks: list[_Block] = field(default_factory=list)
    message: str | None = None
    tokens: tuple[int, ...] = ()
    cached: int = 0
    answers_for: str | None = None  # the agent that a result is of


def is_record(value: Any) -> bool:
    """Whether a value looks like a line of a transcript."""
    return isinstance(value, dict) and "sessionId" in value and ("uuid" in value or "message" in value)


def teams(path: Path, strict: bool) -> Iterator[Imported]:
    """The teams of a transcript, or of a folder of them, session by session; errors as of `import_all`."""
    for files in _sessions(path):
        yield from _teams(files, strict)


# Files ------------------------------------------------------------------------------------------------------------


def _sessions(path: Path) -> Iterator[list[Path]]:
    """Files of one session each: the parent's, if there is one, then its sub-agents'."""
    if not path.is_dir():
        beside = [file for file in sorted(path.parent.glob("agent-*.jsonl")) if _session_of(file) == path.stem]
        yield [path, *sorted((path.with_suffix("") / "subagents").glob("*.jsonl")), *(f for f in beside if f != path)]
        return
    groups: dict[Path, list[Path]] = defaultdict(list)
    for file in sorted(path.rglob("*.jsonl")):
        if not file.is_file():
            continue
        owner = file.with_suffix("")
        if file.parent.name == "subagents":
            owner = file.parent.parent
        elif file.name.startswith("agent-") and (session := _session_of(file)):
            owner = file.parent / session
        groups[owner].append(file)
    for owner in sorted(groups):
        yield sorted(groups[owner], key=lambda file: (file.with_suffix("") != owner, file))


def _session_of(file: Path) -> str | None:
    """The session that a file's first record names, if it can be told."""
    head = lines.head(file, 1) if file.is_file() else []
    name = head[0].get("sessionId") if head and isinstance(head[0], dict) else None
    return name if isinstance(name, str) and name and "/" not in name and "\\" not in name else None


# Lines ------------------------------------------------------------------------------------------------------------


class _Session:
    """The records of one session, as they are read."""

    def __init__(self, source: Path, strict: bool):
        self.team, self.lines = Team(FORMAT, source, strict), 0
        self.records: dict[str, _Record] = {}

    def take(self, value: dict[str, Any], file: Path, line: int) -> None:
        self.lines += 1
        try:
            record = _record(value)
        except _Unfit as error:
            self.team.problem(f"{file.name}.{error.path}", error.reason, line=line, column=1, record=(str(file), line))
            return
        if record is not None:  # None: titles, snapshots and the like, no part of the tree
            self.keep(record)

    def keep(self, record: _Record) -> None:
        known = self.records.get(record.uuid)
        if known is None:
            self.records[record.uuid] = record
            return
        self.team.counts["repeated"] += 1
        if repr(record) < repr(known):  # the same one, in whatever order they come
            self.records[record.uuid] = record

    def absorb(self, other: "_Session") -> None:
        self.lines += other.lines
        self.team.counts["repeated"] += other.team.counts["repeated"]
        self.team.problems += other.team.problems
        for record in other.records.values():
            self.keep(record)


class _Unfit(ValueError):
    def __init__(self, path: str, reason: str):
        super().__init__(reason)
        self.path, self.reason = path, reason


def _teams(files: list[Path], strict: bool) -> Iterator[Imported]:
    sessions: dict[str, _Session] = {}
    lost: list[tuple[Path, int, TraceError]] = []
    for file in files:
        for number, value, fault in lines.records(file):
            if fault is not None or not isinstance(value, dict):
                lost.append((file, number, fault or TraceError("is no object", "", number, 1)))
                continue
            name = value.get("sessionId")
            name = name if isinstance(name, str) else ""  # records without a session go to the first one
            session = sessions.setdefault(name, _Session(files[0], strict))
            session.take(value, file, number)
    if not sessions and lost:
        file, number, fault = lost[0]
        raise TraceError(f"{file}: {fault.reason}", fault.path, number, fault.column)
    if "" in sessions and len(sessions) > 1:
        nameless = sessions.pop("")
        sessions[min(sessions)].absorb(nameless)
    for i, (name, session) in enumerate(sorted(sessions.items())):
        for file, number, fault in lost if i == 0 else ():  # a line that cannot be read names no session
            session.lines += 1
            session.team.problem(file.name, fault.reason, line=number, column=fault.column, record=(str(file), number))
        if (found := _team(name or files[0].stem, session)) is not None:
            yield found


def _record(value: dict[str, Any]) -> _Record | None:
    """A line as a record, None where it is no part of the tree; `_Unfit` where it cannot be kept."""
    uuid, kind = value.get("uuid"), value.get("type")
    speaks = kind in ("user", "assistant")
    if uuid is None and not speaks:
        return None
    if not isinstance(uuid, str) or not uuid:
        raise _Unfit("uuid", f"got {short(uuid)}; allowed: a name")
    parent, agent = value.get("parentUuid"), value.get("agentId")
    for name, link in (("parentUuid", parent), ("agentId", agent)):
        if link is not None and not isinstance(link, str):
            raise _Unfit(name, f"got {short(link)}; allowed: a name or null")
    at = _time(value.get("timestamp")) if speaks or "timestamp" in value else None
    record = _Record(uuid, parent, agent or None, value.get("isSidechain") is True, at)
    if speaks:
        record.role = str(kind)
        _read_message(record, value.get("message"))
        result = value.get("toolUseResult")
        if isinstance(result, dict) and isinstance(result.get("agentId"), str):
            record.answers_for = result["agentId"]
    return record


def _time(stamp: Any) -> int:
    """Nanoseconds of an ISO time; `_Unfit` for anything else."""
    if (at := nanoseconds(stamp)) is None:
        raise _Unfit("timestamp", f"got {short(stamp)}; allowed: a date and time such as 2026-01-31T12:00:00Z")
    return at


def _read_message(record: _Record, message: Any) -> None:
    if not isinstance(message, dict):
        raise _Unfit("message", f"got {short(message)}; allowed: an object")
    content = message.get("content")
    if isinstance(content, str):
        record.blocks.append(_Block("text", content=ref(content)))
    elif isinstance(content, list):
        record.blocks += [block for part in content if (block := _block(part)) is not None]
    else:
        raise _Unfit("message.content", f"got {short(content)}; allowed: a text or a list")
    usage, name = message.get("usage"), message.get("id")
    record.message = name if isinstance(name, str) else None
    if isinstance(usage, dict):
        number = lambda key: usage[key] if type(usage.get(key)) is int and usage[key] >= 0 else 0  # noqa: E731
        record.tokens, record.cached = tuple(map(number, _TOKENS)), number("cache_read_input_tokens")


def _block(part: Any) -> _Block | None:
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind == "tool_use" and isinstance(part.get("id"), str) and isinstance(part.get("name"), str):
        given: dict[str, Any] = part["input"] if isinstance(part.get("input"), dict) else {}
        to = next((given[key] for key in ("recipient", "to") if isinstance(given.get(key), str) and given[key]), None)
        # The prompt of a spawn is what its child's first record repeats.
        prompt = given.get("prompt") if part["name"] in SPAWNING else None
        return _Block("call", part["id"], part["name"] or "?", to, ref(prompt if isinstance(prompt, str) else given))
    if kind == "tool_result" and isinstance(part.get("tool_use_id"), str):
        return _Block(
            "result", part["tool_use_id"], content=ref(part.get("content")), error=part.get("is_error") is True
        )
    if kind == "text" and isinstance(part.get("text"), str):
        return _Block("text", content=ref(part["text"]))
    return None


# The team ---------------------------------------------------------------------------------------------------------


def _team(session: str, given: _Session) -> Imported | None:
    team, records = given.team, given.records
    key = {name: (record.at or 0, name) for name, record in records.items()}
    parents, dangling, cut = forest({name: record.parent for name, record in records.items()}, key)
    for name in dangling:
        said = f"{short(name)} hangs from {short(records[name].parent)}, which was never written; put under the root"
        team.problem("parentUuid", said, level="warning")
    for name in cut:
        team.problem("parentUuid", f"a cycle of parents is cut above {short(name)}", level="warning")
    team.counts["dangling"], team.counts["cycles"] = len(dangling), len(cut)
    agents = _agents(records, parents)
    order = sorted((name for name, record in records.items() if record.role), key=lambda name: key[name])
    calls = _events(team, records, agents, order)
    _thread(team, records, parents, order)
    born = _spawns(team, records, agents, order, calls)
    team.returns(born, {child: f"r:{spawn[2:]}" for child, spawn in born.items()}, MAIN)
    usage: dict[str, tuple[tuple[int, ...], int]] = {}
    for name in order:  # a message is told several times; the last telling counts
        if records[name].tokens:
            usage[records[name].message or name] = (records[name].tokens, records[name].cached)
    times = [records[name].at or 0 for name in order]
    costs: dict[str, float] = {
        "tokens": sum(sum(tokens) for tokens, _ in usage.values()),
        "cache_read_tokens": sum(cached for _, cached in usage.values()),
        "wall_clock_s": (max(times) - min(times)) / 1e9 if times else 0,
        "sub_agents": len(set(agents.values()) - {MAIN}),
    }
    return team.finish(
        system="Claude Code",
        task_id=session,
        topology=team_shape({child: team.events[spawn]["agent"] for child, spawn in born.items()}),
        costs=costs,
        records_in=given.lines,
        about={"session": session},
        unknown=() if usage else ("tokens",),
    )


def _agents(records: dict[str, _Record], parents: dict[str, str | None]) -> dict[str, str]:
    """The name of each record's agent: by agent id, an inline side chain by its first record, else the main thread."""
    found: dict[str, str] = {}
    for start in records:
        path = []
        name: str | None = start
        while name is not None and name not in found:
            record, parent = records[name], parents[name]
            if record.agent is not None:
                found[name] = f"agent_{record.agent}"
            elif not record.side:
                found[name] = MAIN
            elif parent is None or not records[parent].side or records[parent].agent is not None:
                found[name] = f"sidechain_{name}"
            else:
                path.append(name)
                name = parent
        for member in path:
            found[member] = found[name]  # pyright: ignore[reportArgumentType]
    return found


def _events(
    team: Team, records: dict[str, _Record], agents: dict[str, str], order: Iterable[str]
) -> dict[str, tuple[str, _Block]]:
    """Add an event for each call, result and text; gives (agent, call) by call id."""
    calls: dict[str, tuple[str, _Block]] = {}
    results: list[tuple[int, str, _Block]] = []
    answered_for = {
        block.id: record.answers_for
        for record in records.values()
        if record.answers_for
        for block in record.blocks
        if block.kind == "result"
    }
    briefed: set[str] = set()
    for name in order:
        record, agent = records[name], agents[name]
        at = record.at or 0
        for i, block in enumerate(record.blocks):
            if block.kind == "call":
                spawns = block.tool in SPAWNING or block.id in answered_for
                kind = "spawn" if spawns else "message" if block.tool in MESSAGING else "tool_call"
                tool = None if kind == "message" else block.tool
                if team.event(f"c:{block.id}", at, kind, agent, tool=tool, to=block.to, content_ref=block.content):
                    calls[block.id] = (agent, block)
            elif block.kind == "result":
                results.append((at, agent, block))
            elif record.role == "assistant":
                fields = {"decision": "text", "content_ref": block.content}
                team.event(f"m:{name}:{i}", at, "orchestrator_decision", agent, **fields)
            elif agent == MAIN:
                team.event(f"m:{name}:{i}", at, "human_intervention", "human", to=MAIN, content_ref=block.content)
            elif agent not in briefed:  # the brief of a sub-agent is its parent's spawn
                briefed.add(agent)
    for at, agent, block in results:
        call = calls.get(block.id)
        fields = {"from": call[1].tool if call else None, "content_ref": block.content}
        failed = {"is_error": True} if block.error else {}
        team.event(f"r:{block.id}", at, "tool_result", agent, **fields, **failed)
        if call is None:
            team.problem("tool_use_id", f"{short(block.id)} answers no call", level="warning")
        team.edge(f"c:{block.id}", f"r:{block.id}", "tool_dependency")
    for name in sorted(calls):
        if f"r:{name}" not in team.events and team.events[f"c:{name}"]["type"] != "message":
            said = f"the call {short(name)} of {short(calls[name][0])} has no result: unfinished"
            team.problem("tool_use", said, level="warning")
    return calls


def _thread(team: Team, records: dict[str, _Record], parents: dict[str, str | None], order: Iterable[str]) -> None:
    """Link the events of each record with each other, and with those of its nearest ancestor that has some."""
    inside: dict[str, list[str]] = {}
    for name in order:
        names = [
            f"{'c' if block.kind == 'call' else 'r'}:{block.id}" if block.kind != "text" else f"m:{name}:{i}"
            for i, block in enumerate(records[name].blocks)
        ]
        if names := [event for event in names if event in team.events]:
            inside[name] = names
    above = nearest(parents, inside)
    for name, names in inside.items():
        ancestor = above[name]
        chain = [inside[ancestor][-1], *names] if ancestor is not None else names
        for source, target in pairwise(chain):
            same = team.events[source]["agent"] == team.events[target]["agent"]
            team.edge(source, target, "temporal" if same else "causal")


def _spawns(
    team: Team,
    records: dict[str, _Record],
    agents: dict[str, str],
    order: list[str],
    calls: dict[str, tuple[str, _Block]],
) -> dict[str, str]:
    """Link each sub-agent to the call that spawned it; gives the spawn's event by sub-agent."""
    first: dict[str, str] = {}  # event
    prompt: dict[str, str] = {}
    for name in team.ordered():
        first.setdefault(team.events[name]["agent"], name)
    began: dict[str, int] = {}
    for name in order:
        began.setdefault(agents[name], records[name].at or 0)
        text = next((block.content for block in records[name].blocks if block.kind == "text"), None)
        if records[name].role == "user" and text:
            prompt.setdefault(agents[name], text)
    born: dict[str, str] = {}
    for record in records.values():
        child = f"agent_{record.answers_for}"
        for block in record.blocks if record.answers_for else ():
            if block.kind == "result" and block.id in calls and child in began and calls[block.id][0] != child:
                born[child] = min(born.get(child, f"c:{block.id}"), f"c:{block.id}")
    free: dict[str, list[str]] = defaultdict(list)
    for name in team.ordered():
        if team.events[name]["type"] == "spawn" and name not in born.values():
            free[team.events[name]["content_ref"]].append(name)
    for child in sorted(set(began) - {MAIN} - set(born), key=lambda agent: (began[agent], agent)):
        fitting = [name for name in free[prompt.get(child, "")] if team.events[name]["agent"] != child]
        if fitting:
            born[child] = fitting[0]
            free[prompt[child]].remove(fitting[0])
        else:
            team.problem(
                "agentId", f"no call is known to have spawned {short(child)}; put under the root", level="warning"
            )
    for child, spawn in sorted(born.items()):
        team.events[spawn]["to"] = child
        team.edge(spawn, first.get(child), "spawn")
    return born
