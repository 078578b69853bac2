"""Failure logs of the Who&When data set (arXiv 2505.00212): messages in order, with the decisive error labelled.

Messages have no time: `t` is the place of a message, in "seconds" that mean steps. Speakers stand in `name`, or in
`role` as `Orchestrator (-> WebSurfer)`; what the one addressed says next is its return. Else a message is heard by who
speaks next. The event of the labelled step has
`mistake` and `mistake_reason`; all three labels stand under `import.labels` of the first event.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddpomdp.trace import text as text_
from ddpomdp.trace.importers.team import Imported, Team, ref
from ddpomdp.trace.text import TraceError, short

FORMAT = "who-and-when"
STEP_NS = 10**9
_ROLE = re.compile(r"(?P<agent>[^()]{1,200}?)\s*(\((?P<note>[^()]{0,200})\))?\s*")
_STEP = re.compile(r"[0-9]{1,9}")
# Keys that the published files spell in two ways.
_CORRECT = ("is_correct", "is_corrected")
_TRUTH = ("ground_truth", "groundtruth")


def is_log(value: Any) -> bool:
    """Whether a value looks like one of the data set's files."""
    return isinstance(value, dict) and "history" in value and ("mistake_step" in value or "mistake_agent" in value)


def teams(path: Path, strict: bool) -> Iterator[Imported]:
    """The team of a file; errors as of `import_all`."""
    text = text_.read(path)
    try:
        log = text_.parse(text)
    except TraceError as error:
        raise TraceError(f"{path}: {error.reason}", error.path, error.line, error.column) from None
    if not isinstance(log, dict) or not isinstance(log.get("history"), list):
        raise TraceError(f"{path}: no list of messages", "history")
    found = _team(path, log, strict)
    if found is not None:
        yield found


def _team(path: Path, log: dict[str, Any], strict: bool) -> Imported | None:
    team, history = Team(FORMAT, path, strict), log["history"]
    step = _step(team, log, len(history))
    spoken: list[tuple[str, str, str]] = []  # event, speaker, addressee
    for i, message in enumerate(history):
        said = _message(message)
        if isinstance(said, str):
            team.problem(("history", i), said, record=("history", i))
            continue
        agent, to, kind, decision = said
        label = {"mistake": True, "mistake_reason": _text(log.get("mistake_reason"))} if i == step else {}
        team.event(
            f"s{i}",
            i * STEP_NS,
            kind,
            agent,
            to=to or None,
            role=message["role"] if isinstance(message.get("role"), str) else None,
            decision=decision,
            content_ref=ref(message["content"]),
            **label,
        )
        spoken.append((f"s{i}", agent, to))
    _link(team, spoken)
    labels = {name: log.get(f"mistake_{name}") for name in ("agent", "reason")}
    speaker = team.events.get(f"s{step}", {}).get("agent")
    if step is not None and labels["agent"] != speaker:
        reason = f"got {short(labels['agent'])}; step {step} is spoken by {short(speaker)}"
        team.problem("mistake_agent", reason, level="warning")
    correct = next((log[name] for name in _CORRECT if name in log), None)
    solved = {"true": 1.0, "false": 0.0}.get(str(correct).lower())
    about = {"labels": {"agent": _text(labels["agent"]), "step": step, "reason": _text(labels["reason"])}}
    about |= {"clock": "steps"} | ({"question": ref(log["question"])} if "question" in log else {})
    truth = next((log[name] for name in _TRUTH if name in log), None)
    about |= {"ground_truth": ref(truth)} if truth is not None else {}
    return team.finish(
        system="Who&When",
        task_id=_text(log.get("question_ID")) or path.stem,
        topology="centralized" if any(to for *_, to in spoken) else "mixed",
        costs={},
        metrics={} if solved is None else {"task_success": solved},
        records_in=len(history),
        about=about,
        unknown=("tokens", "wall_clock_s"),
    )


def _step(team: Team, log: dict[str, Any], length: int) -> int | None:
    """The labelled step, which the files spell as text; None where there is none that can be used."""
    given = log.get("mistake_step")
    if given is None:
        return None
    whole = given if type(given) is int else int(given) if isinstance(given, str) and _STEP.fullmatch(given) else None
    if whole is None or not 0 <= whole < length:
        team.problem("mistake_step", f"got {short(given)}; allowed: 0 to {length - 1}, a message of the history")
        return None
    return whole


def _message(message: Any) -> tuple[str, str, str, str | None] | str:
    """(agent, addressee or "", type, decision) of a message, or why it cannot be kept."""
    if not isinstance(message, dict):
        return f"got {short(message)}; allowed: an object"
    if not isinstance(message.get("content"), str):
        return "has no content that is a text"
    speaker = message.get("name") if isinstance(message.get("name"), str) else message.get("role")
    match = _ROLE.fullmatch(speaker) if isinstance(speaker, str) else None
    if match is None:
        return "has no speaker: name or role must be a short text"
    agent, note = match["agent"].strip(), (match["note"] or "").strip()
    if note.startswith("->"):
        return agent, note[2:].strip(), "message", None
    if note:
        return agent, "", "orchestrator_decision", "stop" if "termination" in note else note
    return agent, "", "human_intervention" if agent == "human" else "message", None


def _link(team: Team, spoken: list[tuple[str, str, str]]) -> None:
    """Each message reaches its addressee's next message, or else whoever speaks next."""
    asked: dict[str, str] = {}
    for i, (event, agent, to) in enumerate(spoken):
        if to:
            asked[to] = agent
        elif agent in asked and team.events[event]["type"] == "message":
            boss = asked.pop(agent)
            team.events[event] |= {"type": "return", "to": boss}
            spoken[i] = (event, agent, boss)
    upcoming: dict[str, str] = {}
    for i in range(len(spoken) - 1, -1, -1):
        event, agent, to = spoken[i]
        after = spoken[i + 1] if i + 1 < len(spoken) else None
        heard = upcoming.get(to) if to else after[0] if after and after[1] != agent else None
        kind = team.events[event]["type"]
        team.edge(event, heard, kind if kind in ("message", "return") else "causal")
        upcoming[agent] = event
    team.temporal()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None if value is None else short(value, 200)
