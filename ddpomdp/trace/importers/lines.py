"""JSON files of one record per line, read one line at a time, so that a file of any size needs little memory."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ddpomdp.trace import text as text_
from ddpomdp.trace.text import TraceError

MAX_LINE = 32 * 2**20  # bytes


def records(path: Path) -> Iterator[tuple[int, Any, TraceError | None]]:
    """(line number, value, None), or (line number, None, what is wrong with the line); empty lines are skipped.

    Raises:
      TraceError: the file cannot be opened or read.
    """
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    while not line.endswith(b"\n") and (line := file.readline(MAX_LINE)):
                        pass
                    yield number, None, TraceError(f"more than {MAX_LINE:,} bytes", line=number, column=1)
                elif line.strip():
                    yield number, *_parsed(line, number)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def head(path: Path, most: int) -> list[Any]:
    """The values of the first `most` lines that hold one each; TraceError where the file cannot be read."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    return [value for _, value, fault in islice(records(path), most) if fault is None]


def _parsed(line: bytes, number: int) -> tuple[Any, TraceError | None]:
    try:
        return text_.parse(text_.decode(line.rstrip(b"\r\n"))), None
    except TraceError as error:
        return None, TraceError(error.reason, error.path, number, error.column or 1)
