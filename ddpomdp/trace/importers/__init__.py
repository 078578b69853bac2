"""Transcripts of real teams as traces: one file per format, what they share in team.py.

`import_file` gives one team, `import_all` every team of a file or folder, one at a time. An importer keeps what
happened, who did it and what led to what; of texts it keeps only a hash and a length. What it cannot keep is listed.
"""

from collections.abc import Iterator
from pathlib import Path

from ddpomdp.options import choose
from ddpomdp.trace import text as text_
from ddpomdp.trace.importers import atif, claude_code, lines, otel, whowhen
from ddpomdp.trace.importers.team import Imported
from ddpomdp.trace.text import TraceError

IMPORTERS = {
    "who-and-when": whowhen.teams,
    "claude-code": claude_code.teams,
    "otel": otel.teams,
    "atif": atif.teams,
}
SAMPLE_LINES = 50  # looked at to tell a format
__all__ = ["IMPORTERS", "Imported", "detect", "import_all", "import_file"]


def import_all(path: str | Path, format: str | None = None, strict: bool = False) -> Iterator[Imported]:
    """Every team of a file, or of a folder of transcripts, one after the other.

    Args:
      path: the file or folder.
      format: "who-and-when", "claude-code", "otel" or "atif"; None tells it from the content.
      strict: refuse what would otherwise be left out and listed.

    Raises:
      TraceError: the file cannot be read, is of no known format, holds no team; in `strict`, the first fault in it.
      ValueError: an unknown format, with those there are.
    """
    path = Path(path)
    if format is None:
        format = detect(path)
        if format is None:
            raise TraceError(f"{path}: no transcript of a known format; allowed: {', '.join(IMPORTERS)}")
    choose("format", format, IMPORTERS)
    return IMPORTERS[format](path, strict)


def import_file(path: str | Path, format: str | None = None, strict: bool = False) -> Imported:
    """The one team of a transcript; arguments and errors as of `import_all`.

    Raises:
      TraceError: there are several teams, too.
    """
    teams = import_all(path, format, strict)
    first = next(teams, None)
    if first is None:
        raise TraceError(f"{path}: there is no event in it")
    if next(teams, None) is not None:
        raise TraceError(f"{path}: more than one team; import_all, or an --out that is a folder, takes them all")
    return first


def detect(path: Path) -> str | None:
    """The format of a transcript, None for a trace under the survey's schema and for what is not known.

    Raises:
      TraceError: the file cannot be read.
    """
    if path.is_dir():
        return "claude-code"
    head = lines.head(path, SAMPLE_LINES)
    if any(claude_code.is_record(value) for value in head):
        return "claude-code"
    if any(otel.is_batch(value) for value in head):
        return "otel"
    if path.suffix.lower() == ".jsonl":
        return None
    try:
        value = text_.parse(text_.read(path))
    except TraceError:
        return None  # whoever reads it as a trace says what is wrong, and where
    if whowhen.is_log(value):
        return "who-and-when"
    if atif.is_trajectory(value):
        return "atif"
    return "otel" if otel.is_batch(value) else None
