"""One team of a transcript on its way to a trace: events and edges as they are found, then the document.

The document is valid under the survey's schema. Its first event, `e0` of the agent `env`, tells under `import` where it
comes from, labels, and what the source does not say (`unknown`: numbers the schema requires are 0 there). Every event
is reached from `e0`. Nothing depends on the order in which events and edges were added.
"""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpomdp.trace.check import Problem, _cyclic
from ddpomdp.trace.document import HEAD
from ddpomdp.trace.text import Path_, TraceError, short, spell
from ddpomdp.trace.trace import Trace

MAX_EVENTS = 500_000


@dataclass(frozen=True)
class Imported:
    """A team as a trace, and what became of its records.

    Attributes:
      trace: of another system, so it cannot be replayed.
      format: of the source.
      source: the file.
      records_in: records of the source; = records_kept + left out + repeated.
      records_kept: those that are events, or are accounted for in them.
      counts: how many records were `repeated`, had parents that do not exist (`dangling`), closed a cycle (`cycles`).
      problems: what is wrong; each record left out is the `record` of exactly one.
    """

    trace: Trace
    format: str
    source: Path
    records_in: int
    records_kept: int
    counts: dict[str, int]
    problems: list[Problem]

    @property
    def left_out(self) -> list[tuple[str, int]]:
        """The records left out: (file, line) or (field, index)."""
        return [problem.record for problem in self.problems if problem.record]


def ref(content: Any) -> str:
    """A reference to a text or a JSON value: its hash and length, not itself."""
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, ensure_ascii=False)
    data = text.encode("utf-8", "surrogatepass")
    return f"sha256:{hashlib.sha256(data).hexdigest()[:32]}/{len(data)}"


class Team:
    """Events, edges and problems of one team; times are whole nanoseconds from any common start."""

    def __init__(self, format: str, source: Path, strict: bool):
        """Begin with nothing; in `strict` the first error is raised as a TraceError."""
        self.format, self.source, self.strict = format, source, strict
        self.events: dict[str, dict[str, Any]] = {}
        self.when: dict[str, int] = {}
        self.edges: set[tuple[str, str, str]] = set()
        self.problems: list[Problem] = []
        self.counts = {"repeated": 0, "dangling": 0, "cycles": 0}

    def problem(
        self,
        path: Path_ | str,
        reason: str,
        *,
        level: str = "error",
        line: int | None = None,
        column: int | None = None,
        record: tuple[str, int] | None = None,
    ) -> None:
        """Note what is wrong; `record` is the one left out for it, if any."""
        name = path if isinstance(path, str) else spell(path)
        if self.strict and level == "error":
            raise TraceError(f"{self.source}: {reason}", name, line, column)
        self.problems.append(Problem(name, reason, level, line, column, record))

    def event(self, name: str, at: int, type: str, agent: str, **fields: Any) -> bool:
        """Add an event; False if there is one of that id already, which stays."""
        if name in self.events:
            return False
        if len(self.events) >= MAX_EVENTS:
            raise TraceError(f"{self.source}: more than {MAX_EVENTS:,} events in one team")
        given = {key: value for key, value in fields.items() if value is not None}
        self.events[name] = {"id": name, "type": type, "agent": agent, **given}
        self.when[name] = at
        return True

    def edge(self, source: str | None, target: str | None, type: str) -> None:
        """Add an edge where both ends are events and differ."""
        if source in self.events and target in self.events and source != target:
            self.edges.add((source, target, type))  # pyright: ignore[reportArgumentType]

    def ordered(self) -> list[str]:
        """Ids in order of time, then id."""
        return sorted(self.events, key=lambda name: (self.when[name], name))

    def temporal(self, but: str = "") -> None:
        """Link each agent's events in order of time, `but` those of one that stands for nobody."""
        last: dict[str, str] = {}
        for name in self.ordered():
            agent = self.events[name]["agent"]
            if agent != but:
                self.edge(last.get(agent), name, "temporal")
                last[agent] = name

    def returns(self, spawns: dict[str, str], results: dict[str, str], root: str) -> None:
        """Tell what a transcript has no word for: returns and the aggregation, among events whose decision is "text".

        Args:
          spawns: the event that spawned each sub-agent, by its name; a sub-agent's last text is its return.
          results: the event in which that return arrives, by sub-agent.
          root: whose last text, if a return has arrived before it, is taken as the aggregation (`inferred`).
        """
        last: dict[str, str] = {}
        for name in self.ordered():
            if self.events[name].get("decision") == "text":
                last[self.events[name]["agent"]] = name
        final, read = last.get(root), []
        for child, spawn in sorted(spawns.items()):
            if child == root or (told := last.get(child)) is None:
                continue
            event, parent = self.events[told], self.events[spawn]["agent"]
            del event["decision"]
            event |= {"type": "return", "to": parent}
            self.edge(told, results.get(child), "return")
            if final is not None and parent == root and self.when[told] < self.when[final]:
                read.append(told)
        if final is not None and read:
            self.events[final] |= {"type": "aggregate", "inferred": True}
            for name in read:
                self.edge(name, final, "aggregate")

    def finish(
        self,
        *,
        system: str,
        task_id: str,
        topology: str,
        costs: dict[str, float],
        records_in: int,
        metrics: dict[str, float] | None = None,
        about: dict[str, Any] | None = None,
        unknown: tuple[str, ...] = (),
    ) -> Imported | None:
        """The trace; None if there is no event.

        Args:
          costs: what the source states; tokens and wall_clock_s are 0 where it does not, tool_calls and messages are
            counted.
          about: what else stands under `import` of the first event.
          unknown: names of costs that the source does not state.
        """
        if not self.events:
            return None
        order = self.ordered()
        start, place = self.when[order[0]], {name: i for i, name in enumerate(order)}
        core = _cyclic([(source, target) for source, target, _ in self.edges])
        closing = {e for e in self.edges if e[0] in core and e[1] in core and place[e[0]] > place[e[1]]}
        for source, target, _ in sorted(closing):
            self.counts["cycles"] += 1
            self.problem("edges", f"closes a cycle, from {short(source)} back to {short(target)}", level="warning")
        edges = self.edges - closing
        reached = {target for _, target, _ in edges}
        edges |= {(HEAD, name, "causal") for name in order if name not in reached}
        events = [{**self.events[name], "t": (self.when[name] - start) / 1e9} for name in order]
        names = ("id", "t", "type", "agent")
        events = [{name: e[name] for name in names} | {k: e[k] for k in sorted(e) if k not in names} for e in events]
        lines = "\n".join(json.dumps(e, sort_keys=True) for e in (task_id, *events, *sorted(edges)))
        left = sum(problem.record is not None for problem in self.problems)
        kept = records_in - left - self.counts["repeated"]
        told = {"format": self.format, "source": self.source.name, "records": records_in, "left_out": left}
        told |= self.counts | (about or {}) | ({"unknown": list(unknown)} if unknown else {})
        first = {"id": HEAD, "t": 0.0, "type": "orchestrator_decision", "agent": "env", "decision": "import"}
        types = [event["type"] for event in events]
        counted = {"tool_calls": types.count("tool_call"), "messages": types.count("message")}
        document = {
            "trace_id": f"{self.format}-{hashlib.sha256(lines.encode()).hexdigest()[:24]}",
            "task_id": task_id or "unknown",
            "system": system,
            "topology": topology,
            "events": [first | {"import": told}, *events],
            "edges": [{"src": a, "dst": b, "type": kind} for a, b, kind in sorted(edges)],
            "rewards": {},
            "costs": {"tokens": 0, "wall_clock_s": 0, **counted} | costs,
            "metrics": metrics or {},
        }
        trace = Trace(document)
        return Imported(trace, self.format, self.source, records_in, kept, dict(self.counts), self.problems)


def team_shape(parents: dict[str, str]) -> str:
    """The topology of a team by the parent of each agent that has one: hierarchical if children have children."""
    if not parents:
        return "mixed"
    children: dict[str, list[str]] = defaultdict(list)
    for child, parent in parents.items():
        children[parent].append(child)
    return "hierarchical" if any(child in children for child in parents) else "swarm"
