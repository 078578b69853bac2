"""Trajectories in the Agent Trajectory Interchange Format (ATIF v1, of the Harbor project) with their sub-agents.

A sub-agent is a trajectory named by a result's `subagent_trajectory_ref`: by `trajectory_id` among the parent's
`subagent_trajectories`, or by `trajectory_path`, which is read only if it is a file in the folder of the source or
below it. The call of that result is the spawn. Steps need no time: where one has none, `t` counts steps, a sub-agent's
between the call and its result.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpomdp.trace import text as text_
from ddpomdp.trace.importers.team import Imported, Team, ref, team_shape
from ddpomdp.trace.importers.times import nanoseconds
from ddpomdp.trace.text import Path_, TraceError, short, spell

FORMAT = "atif"
STEP_NS = 10**9
SOURCES = ("system", "user", "agent")
MAX_LEVELS = 16  # of sub-agents in one another


def is_trajectory(value: Any) -> bool:
    """Whether a value looks like an ATIF document."""
    return isinstance(value, dict) and isinstance(value.get("steps"), list) and "agent" in value


def teams(path: Path, strict: bool) -> Iterator[Imported]:
    """The team of a document; errors as of `import_all`."""
    document = _load(path)
    if not is_trajectory(document):
        raise TraceError(f"{path}: no agent and list of steps", "steps")
    reading = _Reading(Team(FORMAT, path, strict), document, _is_timed(document), {path.resolve()})
    reading.walk(document, (), None, 0)
    found = reading.finish()
    if found is not None:
        yield found


def _load(path: Path) -> Any:
    try:
        return text_.parse(text_.read(path))
    except TraceError as error:
        raise TraceError(f"{path}: {error.reason}", error.path, error.line, error.column) from None


def _is_timed(document: Any) -> bool:
    """Whether every step of a document and of those embedded in it has a time."""
    stack = [document]
    while stack:
        here = stack.pop()
        if not is_trajectory(here):
            continue
        for step in here["steps"]:
            if isinstance(step, dict) and nanoseconds(step.get("timestamp")) is None:
                return False
        embedded = here.get("subagent_trajectories")
        stack += embedded if isinstance(embedded, list) else []
    return True


@dataclass
class _Reading:
    """A team as it is read, trajectory by trajectory."""

    team: Team
    root: dict[str, Any]
    timed: bool
    opened: set[Path]
    seen: set[int] = field(default_factory=set)  # documents, by identity
    files: list[Any] = field(default_factory=list)  # documents of other files, kept so that identities stay theirs
    lead: str = ""
    trajectories: int = 0
    steps: int = 0
    clock: int = 0
    tokens: int = 0
    names: Counter[str] = field(default_factory=Counter)
    spawns: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)

    def walk(self, document: dict[str, Any], path: Path_, spawn: str | None, level: int) -> tuple[str, int]:
        """Read a trajectory: (name of its agent, time of its last step)."""
        self.seen.add(id(document))
        number, self.trajectories = self.trajectories, self.trajectories + 1
        about = document["agent"]
        given = about.get("name") if isinstance(about, dict) else None
        given = given if isinstance(given, str) and given else "agent"
        self.names[given] += 1
        agent = given if self.names[given] == 1 else f"{given}_{self.names[given]}"
        self.lead = self.lead or agent
        if spawn is not None:
            self.spawns[agent] = spawn
        briefed, last, end = number == 0, None, 0
        for i, step in enumerate(document["steps"]):
            self.steps += 1
            where, fault = (*path, "steps", i), _fault(step)
            if fault is not None:
                place = (*where, fault[0]) if fault[0] else where
                self.team.problem(place, fault[1], record=(spell((*path, "steps")), i))
                continue
            at = self._time(step)
            is_brief = step["source"] == "user" and not briefed
            briefed = briefed or is_brief
            made, end = self._step(document, step, f"{number}:{i}", at, agent, where, level, is_brief)
            for event in made:
                same = last is not None and self.team.events[last]["agent"] == self.team.events[event]["agent"]
                self.team.edge(last, event, "temporal" if same else "causal")
                if last is None:
                    self.team.edge(spawn, event, "spawn")
                last = event
        return agent, end

    def _time(self, step: dict[str, Any]) -> int:
        stamp = nanoseconds(step.get("timestamp")) if self.timed else self.clock + STEP_NS
        self.clock = self.clock if stamp is None else stamp  # a step of another file may lack a time: that of the last
        return self.clock

    def _step(
        self,
        document: dict[str, Any],
        step: dict[str, Any],
        key: str,
        at: int,
        agent: str,
        where: Path_,
        level: int,
        is_brief: bool,
    ) -> tuple[list[str], int]:
        """Add the events of a step: (their ids in order, time of the last)."""
        team, made, end = self.team, [], at
        message, results = step.get("message"), _results(step)
        if message and step["source"] == "agent":
            team.event(f"m:{key}", at, "orchestrator_decision", agent, decision="text", content_ref=ref(message))
            made.append(f"m:{key}")
        elif message and step["source"] == "user" and not is_brief:  # the brief is its parent's spawn
            team.event(f"m:{key}", at, "human_intervention", "human", to=agent, content_ref=ref(message))
            made.append(f"m:{key}")
        self.tokens += _tokens(step)
        spawning = {result.get("source_call_id") for result in results if _refs(result)}
        calls: dict[Any, tuple[str, str]] = {}
        for i, call in enumerate(step.get("tool_calls") or ()):
            name, tool = f"c:{key}:{i}", call["function_name"]
            calls[call["tool_call_id"]] = (name, tool)
            kind = "spawn" if call["tool_call_id"] in spawning else "tool_call"
            team.event(name, at, kind, agent, tool=tool, content_ref=ref(call.get("arguments")))
            made.append(name)
        for i, result in enumerate(results):
            name, place = f"r:{key}:{i}", (*where, "observation", "results", i)
            source, found = result.get("source_call_id"), self._named(document, result, place, level)
            call, tool = calls.get(source, (None, None))
            if source is not None and call is None:
                team.problem(place, f"{short(source)} answers no call of this step", level="warning")
            spawn = call
            if found and call is None:  # sub-agents that no call asked for
                spawn = f"s:{key}:{i}"
                team.event(spawn, at, "spawn", agent)
                made.append(spawn)
            for child in found:
                who, ended = self.walk(child, (*place, "subagent_trajectory"), spawn, level + 1)
                self.results[who], end = name, max(end, ended)
                if len(found) == 1 and spawn is not None:
                    team.events[spawn]["to"] = who
            end = end if self.timed else max(end, self.clock)
            team.event(name, end, "tool_result", agent, **{"from": tool, "content_ref": ref(result.get("content"))})
            team.edge(call, name, "tool_dependency")
            made.append(name)
        return made, end

    def _named(
        self, document: dict[str, Any], result: dict[str, Any], where: Path_, level: int
    ) -> list[dict[str, Any]]:
        """The sub-agents' trajectories that a result names and that have not been read yet."""
        found: list[dict[str, Any]] = []
        for i, given in enumerate(_refs(result)):
            child, reason = self._resolved(document, given)
            if child is not None and (id(child) in self.seen or any(child is other for other in found)):
                child, reason = None, "names a sub-agent a second time"
            elif child is not None and level == MAX_LEVELS:
                child, reason = None, f"sub-agents more than {MAX_LEVELS} deep"
            if child is None:
                self.team.problem((*where, "subagent_trajectory_ref", i), reason, level="warning")
            else:
                found.append(child)
        return found

    def _resolved(self, document: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        for key in ("trajectory_id", "session_id"):  # before v1.7 the session was the key
            name = given.get(key)
            embedded = [*_embedded(document), *_embedded(self.root)]
            child = next((t for t in embedded if t.get(key) == name), None) if isinstance(name, str) else None
            if child is not None:
                return child, ""
        path = given.get("trajectory_path")
        if not isinstance(path, str) or not path:
            return None, "names no trajectory that is embedded"
        folder = self.team.source.resolve().parent
        try:
            file = (folder / path).resolve()
            if not file.is_relative_to(folder) or not file.is_file():
                return None, f"{short(path)} is no file in or below the folder of the source"
            if file in self.opened:
                return None, f"{short(path)} was read already"
            self.opened.add(file)
            child = _load(file)
        except (TraceError, OSError, ValueError) as error:
            return None, f"{short(path)} cannot be read: {short(str(error), 200)}"
        if not is_trajectory(child):
            return None, f"{short(path)} is no trajectory"
        self.files.append(child)
        return child, ""

    def finish(self) -> Imported | None:
        """The trace."""
        team, root = self.team, self.root
        unread = [child for child in _embedded(root) if id(child) not in self.seen]
        for i, child in enumerate(unread):
            self.team.problem(
                "subagent_trajectories", "no result names this sub-agent; put under the root", level="warning"
            )
            self.walk(child, ("unnamed", i), None, 1)
        team.returns(self.spawns, self.results, self.lead)
        stated = root.get("final_metrics") if isinstance(root.get("final_metrics"), dict) else {}
        costs: dict[str, float] = {"tokens": self.tokens, "sub_agents": self.trajectories - 1}
        price = stated.get("total_cost_usd") if stated else None
        if isinstance(price, int | float) and not isinstance(price, bool):
            costs["cost_usd"] = price
        if self.timed and team.when:
            costs["wall_clock_s"] = (max(team.when.values()) - min(team.when.values())) / 1e9
        unknown = (("tokens",) if not self.tokens else ()) + (() if self.timed else ("wall_clock_s",))
        names = (root.get("trajectory_id"), root.get("session_id"), team.source.stem)
        return team.finish(
            system="ATIF",
            task_id=next(name for name in names if isinstance(name, str) and name),
            topology=team_shape({child: team.events[spawn]["agent"] for child, spawn in self.spawns.items()}),
            costs=costs,
            records_in=self.steps,
            about={"schema_version": short(root.get("schema_version"))} | ({} if self.timed else {"clock": "steps"}),
            unknown=unknown,
        )


def _fault(step: Any) -> tuple[str, str] | None:
    """(field, what is wrong) of a step that cannot be kept."""
    if not isinstance(step, dict):
        return "", f"got {short(step)}; allowed: an object"
    if step.get("source") not in SOURCES:
        return "source", f"got {short(step.get('source'))}; allowed: {', '.join(SOURCES)}"
    calls = step.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return "tool_calls", f"got {short(calls)}; allowed: a list"
    for call in calls or ():
        names = ("tool_call_id", "function_name")
        if not isinstance(call, dict) or not all(isinstance(call.get(name), str) and call[name] for name in names):
            return "tool_calls", f"got {short(call)}; allowed: an object with tool_call_id and function_name"
    return None


def _results(step: dict[str, Any]) -> list[dict[str, Any]]:
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    kept = [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []
    named = lambda result: isinstance(result.get("source_call_id"), str | None)  # noqa: E731
    return [result for result in kept if named(result)]


def _refs(result: dict[str, Any]) -> list[dict[str, Any]]:
    given = result.get("subagent_trajectory_ref")
    given = given if isinstance(given, list) else [given]
    return [item for item in given if isinstance(item, dict)]


def _embedded(document: dict[str, Any]) -> list[dict[str, Any]]:
    given = document.get("subagent_trajectories")
    return [child for child in given if is_trajectory(child)] if isinstance(given, list) else []


def _tokens(step: dict[str, Any]) -> int:
    metrics = step.get("metrics")
    counts = [metrics.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(metrics, dict) else []
    return sum(count for count in counts if type(count) is int and count > 0)
