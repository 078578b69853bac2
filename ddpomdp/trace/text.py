"""Text to values: JSON read strictly, every refusal with line, column and field.

A trace file may come from anywhere. The C parser of the standard library reads it; what that parser lets through
(doubled keys, NaN, 1e999, half surrogate pairs, endless digits) or trips over (100,000 brackets) is refused here. Only
then a second, slow reader goes through the text to say where: it keeps its own stack, so depth cannot hurt it.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddpomdp.options import UsageError

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 64
MAX_CONTAINERS = 4_000_000  # lists and objects: a 64 MiB file of `[],[],` would take gigabytes
MAX_DIGITS = 18
MAX_PLACED = 4 * 2**20

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NAMED = re.compile(r"true|false|null")
_NOT_JSON = re.compile(r"-?Infinity|NaN|nan|inf")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")

Path_ = tuple[str | int, ...]


class TraceError(UsageError):
    """A trace that cannot be used: what is wrong, in which field, at which line and column.

    Attributes:
      reason: what is wrong, without the place.
      path: the field, such as `events[3].t`; "" for the whole text.
      line, column: from 1; None where there is no text.
    """

    def __init__(self, reason: str, path: str = "", line: int | None = None, column: int | None = None):
        where = [f"line {line}, column {column}"] if line else []
        super().__init__(": ".join(filter(None, (", ".join([*where, path] if path else where), reason))))
        self.reason, self.path, self.line, self.column = reason, path, line, column


def read(path: str | Path) -> str:
    """The text of a file of at most `MAX_BYTES` bytes; `TraceError` where it cannot be read."""
    path = Path(path)
    try:
        if not path.is_file():
            raise TraceError(f"{path}: no such file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise TraceError(f"{path}: {size:,} bytes; allowed: at most {MAX_BYTES:,}")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return decode(data)


def decode(data: bytes) -> str:
    """`data` as text; anything but UTF-8 without a byte-order mark is refused."""
    if len(data) > MAX_BYTES:
        raise TraceError(f"{len(data):,} bytes; allowed: at most {MAX_BYTES:,}")
    for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"):
        if data.startswith(mark):
            raise TraceError(f"byte 0: a byte-order mark ({mark.hex(' ')}); allowed: UTF-8 without one")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"byte {error.start}: not UTF-8 ({data[error.start]:#04x})") from None


def parse(text: str) -> Any:
    """The value that `text` spells; `TraceError` with line, column and field for anything but strict JSON."""
    if len(text) > MAX_BYTES:
        raise TraceError(f"{len(text):,} characters; allowed: at most {MAX_BYTES:,}")
    if text.startswith("\ufeff"):
        raise TraceError("byte 0: a byte-order mark; allowed: UTF-8 without one")
    if text.count("[") + text.count("{") > MAX_CONTAINERS:
        raise TraceError(f"more than {MAX_CONTAINERS:,} lists and objects")
    try:
        value = json.loads(text, parse_constant=_refuse, parse_int=_short_int, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise (_fault(text) or TraceError(" ".join(str(error).split()))) from None
    if _is_unfit(value):
        raise _fault(text) or TraceError("a number or a string that JSON cannot hold")
    return value


def places(text: str, paths: Sequence[Path_]) -> dict[Path_, tuple[int | None, int | None]]:
    """Line and column, from 1, of the values at `paths` in valid JSON `text`, or of the nearest value around them.

    (None, None) in a text of more than `MAX_PLACED` characters: the slow reader would take seconds.
    """
    if not paths or len(text) > MAX_PLACED:
        return dict.fromkeys(paths, (None, None))
    wanted = {path[:n] for path in paths for n in range(len(path) + 1)}
    lengths = {len(path) for path in wanted}
    found: dict[Path_, tuple[int, int]] = {}

    def note(stack: list[list[Any]], at: int) -> None:
        if len(stack) in lengths and (path := tuple(level[1] for level in stack)) in wanted:
            found[path] = _line_column(text, at)
            if len(found) == len(wanted):
                raise _Found

    with contextlib.suppress(_Found):
        _walk(text, note)
    return {path: next(found[path[:n]] for n in range(len(path), -1, -1) if path[:n] in found) for path in paths}


class _Found(Exception):
    """Nothing is left to look for."""


def spell(path: Path_) -> str:
    """`path` as people write it: `events[3].ddpomdp.tick`."""
    parts = [
        f"[{part}]" if isinstance(part, int) else f".{part}" if _WORD.fullmatch(part) else f"[{short(part)}]"
        for part in path
    ]
    return "".join(parts).removeprefix(".")


def short(value: Any, limit: int = 40) -> str:
    """`value` as JSON in few characters."""
    if isinstance(value, list | dict) and len(value) > 8:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    text = json.dumps(value[: limit + 1] if isinstance(value, str) else value, default=repr)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _line_column(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _fault(text: str) -> TraceError | None:
    """What the slow reader finds wrong first."""
    try:
        _walk(text, lambda stack, at: None)
    except TraceError as error:
        return error
    return None


def _walk(text: str, note: Callable[[list[list[Any]], int], None]) -> None:
    """Read `text` value by value: `note(stack, position)` at each; a stack level is [closing bracket, key, keys]."""
    stack: list[list[Any]] = []
    at, expect = 0, "value"

    def wrong(reason: str, position: int) -> TraceError:
        path = tuple(level[1] for level in stack if level[1] is not None)
        line, column = _line_column(text, position)
        return TraceError(reason, spell(path), line, column)

    while True:
        char = text[at : at + 1]
        if char and char in " \t\n\r" and (space := _SPACE.match(text, at)):
            at = space.end()
            char = text[at : at + 1]
        if expect == "end":
            if char:
                raise wrong("text after the end of the document", at)
            return
        if not char:
            raise wrong("the text ends here, unfinished" if text.strip() else "the text is empty", at)
        if (char == "]" and expect == "first value") or (char == "}" and expect == "first key"):
            stack.pop()
            at, expect = at + 1, "comma" if stack else "end"
        elif expect in ("value", "first value"):
            note(stack, at)
            if char in "[{":
                if len(stack) == MAX_DEPTH:
                    raise wrong(f"nested more than {MAX_DEPTH} deep", at)
                stack.append(["]", 0, None] if char == "[" else ["}", None, set()])
                at, expect = at + 1, "first value" if char == "[" else "first key"
            else:
                at, expect = _scalar(text, at, wrong), "comma" if stack else "end"
        elif expect in ("key", "first key"):
            if char != '"':
                raise wrong(f"got {short(char)} where a key in quotes must stand", at)
            end = _string(text, at, wrong)
            key = json.loads(text[at:end]) if "\\" in text[at:end] else text[at + 1 : end - 1]
            stack[-1][1] = key
            if key in stack[-1][2]:
                raise wrong(f"the key {short(key)} stands twice in one object", at)
            stack[-1][2].add(key)
            at, expect = end, "colon"
        elif expect == "colon":
            if char != ":":
                raise wrong(f"got {short(char)} where a colon must stand", at)
            at, expect = at + 1, "value"
        else:
            closing, key, _ = stack[-1]
            if char == closing:
                stack.pop()
                at, expect = at + 1, "comma" if stack else "end"
            elif char == ",":
                stack[-1][1] = key + 1 if closing == "]" else None
                at, expect = at + 1, "value" if closing == "]" else "key"
            else:
                raise wrong(f"got {short(char)} where a comma or {closing} must stand", at)


def _string(text: str, at: int, wrong: Callable[[str, int], TraceError]) -> int:
    match = _STRING.match(text, at)
    if match is None:
        raise wrong("a string that is unfinished, or holds a control character or an unknown escape", at)
    if "\\u" in match.group() and _is_half(json.loads(match.group())):
        raise wrong("half a surrogate pair in a string", at)
    return match.end()


def _scalar(text: str, at: int, wrong: Callable[[str, int], TraceError]) -> int:
    if text[at] == '"':
        return _string(text, at, wrong)
    if match := _NAMED.match(text, at):
        return match.end()
    if match := _NOT_JSON.match(text, at):
        raise wrong(f"{match.group()} is not JSON; allowed: finite numbers", at)
    match = _NUMBER.match(text, at)
    if match is None:
        raise wrong(f"got {short(text[at])} where a value must stand", at)
    whole = match.group(1) is None and match.group(2) is None
    if whole and len(match.group().lstrip("-")) > MAX_DIGITS:
        raise wrong(f"an integer of {len(match.group().lstrip('-')):,} digits; allowed: at most {MAX_DIGITS}", at)
    if not whole and not math.isfinite(float(match.group())):
        raise wrong(f"{short(match.group())} is too large; allowed: finite numbers", at)
    return match.end()


def _is_half(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_unfit(value: Any) -> bool:
    """Whether anything in `value` is infinite, half a surrogate pair or nested too deep."""
    stack = [(value, 0)]
    while stack:
        here, depth = stack.pop()
        if isinstance(here, str):
            if not here.isascii() and _is_half(here):
                return True
        elif isinstance(here, float):
            if not math.isfinite(here):
                return True
        elif isinstance(here, list | dict):
            if depth == MAX_DEPTH:
                return True
            if isinstance(here, dict):
                if any(not key.isascii() and _is_half(key) for key in here):
                    return True
                here = here.values()
            stack += [(part, depth + 1) for part in here if not isinstance(part, int)]
    return False


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short_int(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return record
