"""Traces in files and texts of unknown worth: what is wrong with them, and what of them can be kept."""

from dataclasses import dataclass
from pathlib import Path

from ddpomdp.trace import check
from ddpomdp.trace import text as text_
from ddpomdp.trace.check import Problem
from ddpomdp.trace.trace import Trace


@dataclass(frozen=True)
class Salvaged:
    """What could be kept of a trace.

    Attributes:
      trace: None where nothing could.
      problems: what is wrong; each record left out is the `record` of exactly one.
      events_in, edges_in: how many the source had.
    """

    trace: Trace | None
    problems: list[Problem]
    events_in: int
    edges_in: int

    @property
    def left_out(self) -> list[tuple[str, int]]:
        """The records left out: ("events" or "edges", index)."""
        return [problem.record for problem in self.problems if problem.record]


def validate(source: str | bytes | Path) -> list[Problem]:
    """Everything that is wrong with a trace; empty if `Trace.from_json` takes it and nothing looks odd.

    Args:
      source: a path, or the text itself (a str with a brace or a line break is a text).

    Text that is no strict JSON has one problem, with its line and column: what comes after cannot be told.
    """
    try:
        text = _text(source)
        return check.problems(text_.parse(text), text)
    except text_.TraceError as error:
        return [Problem(error.path, error.reason, line=error.line, column=error.column)]


def salvage(source: str | bytes | Path) -> Salvaged:
    """What can be kept of a trace of any system; records in = records kept + records listed as left out.

    A trace of ours that is not as ddpomdp wrote it loses its records of turns, and can no longer be replayed.

    Raises:
      TraceError: the text is no strict JSON.
    """
    text = _text(source)
    value = text_.parse(text)
    document, problems = check.salvaged(value, text)
    counts = [check._length(value, kind) for kind in ("events", "edges")]
    return Salvaged(None if document is None else Trace(document), problems, *counts)


def _text(source: str | bytes | Path) -> str:
    if isinstance(source, bytes):
        return text_.decode(source)
    if isinstance(source, Path) or (source and not set(source) & set("{[\n")):
        return text_.read(source)
    return source
