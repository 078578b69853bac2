"""JSON as language models write it: objects found in running text, read with patience and never evaluated.

Beside strict JSON this takes single quotes, commas before a closing bracket, keys without quotes, Python's True, False
and None, and line breaks in strings. It refuses what has no one meaning: doubled keys, NaN and infinities, numbers that
overflow, half surrogate pairs, nesting. Size, depth and the work for a text are bounded, whatever the text.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

MAX_CHARS = 200_000  # of a text
MAX_DEPTH = 12  # lists and objects in one another
MAX_VALUES = 10_000  # of a text
MAX_DIGITS = 18  # of an integer

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"-?[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}  # the part of a string before a quote or backslash
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class Unfit(ValueError):
    """What must not be taken, whatever the text around it says."""


class Unreadable(ValueError):
    """What is no JSON; `at` is the place in the text."""

    def __init__(self, reason: str, at: int):
        """Say what is wrong at the `at`-th character, from 0."""
        super().__init__(reason)
        self.at = at


def objects(text: str) -> tuple[list[dict[str, Any]], Unreadable | None]:
    """All objects in a text that are not inside another one, in order, and what is wrong where a brace begins none.

    Of several faults the one met furthest on is told: that is how far a writer came.

    Raises:
      Unfit: doubled keys, numbers that are not finite, nesting, size.
    """
    reader, found, at = _Reader(text), [], 0
    furthest: Unreadable | None = None
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = reader.value(at, 0)
            found.append(value)
        except Unreadable as error:
            if furthest is None or error.at > furthest.at:
                furthest = error
            at += 1
    return found, furthest


def value(text: str) -> Any:
    """The one value that a text spells, nothing beside it; Unfit as of `objects`, Unreadable."""
    reader = _Reader(text)
    read, at = reader.value(reader.skip(0), 0)
    if reader.skip(at) < len(text):
        raise Unreadable("text after the value", at)
    return read


def plain(given: Any) -> Any:
    """A copy of a value made of dicts, lists, strings, numbers, booleans and None; Unfit for any other, by its type."""
    return _copy(given, 0, [0])


def shown(given: Any, limit: int = 60) -> str:
    """A value of unknown worth in few characters, all of them printable ASCII."""
    if isinstance(given, str):
        text = ascii(given[: limit + 1])
    elif isinstance(given, bool | float) or given is None:
        text = repr(given)
    elif isinstance(given, int):
        text = str(given) if abs(given) < 10**MAX_DIGITS else f"a whole number of more than {MAX_DIGITS} digits"
    else:
        text = f"a {type(given).__name__}" + (f" of {len(given)}" if isinstance(given, list | dict) else "")
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class _Reader:
    def __init__(self, text: str):
        if len(text) > MAX_CHARS:
            raise Unfit(f"{len(text):,} characters, allowed: at most {MAX_CHARS:,}")
        self.text, self.values, self.work = text, 0, 0

    def skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        assert match is not None
        return match.end()

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """(value, place after it) of the value that begins at a place."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise Unfit(f"more than {MAX_VALUES:,} values")
        char = self.text[at : at + 1]
        if char == "{" or char == "[":
            if depth == MAX_DEPTH:
                raise Unfit(f"nested more than {MAX_DEPTH} deep")
            return self.object(at + 1, depth + 1) if char == "{" else self.list(at + 1, depth + 1)
        if char == '"' or char == "'":
            return self.string(at)
        if match := _NUMBER.match(self.text, at):
            return _number(match), match.end()
        if match := _WORD.match(self.text, at):
            word = match.group()
            if word in _CONSTANTS:
                return _CONSTANTS[word], match.end()
            if word.lstrip("-").casefold() in ("nan", "inf", "infinity"):
                raise Unfit(f"{word} is no finite number")
        raise Unreadable(f"got {shown(char)} where a value must stand" if char else "the text ends unfinished", at)

    def list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while self.text[(at := self.skip(at)) : at + 1] != "]":
            item, at = self.value(at, depth)
            items.append(item)
            at = self.comma(at, "]")
        return items, at + 1

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        while self.text[(at := self.skip(at)) : at + 1] != "}":
            key, at = self.key(at)
            if key in members:
                raise Unfit(f"the key {shown(key)} stands twice in one object")
            at = self.skip(at)
            if self.text[at : at + 1] != ":":
                raise Unreadable(f"no colon after the key {shown(key)}", at)
            members[key], at = self.value(self.skip(at + 1), depth)
            at = self.comma(at, "}")
        return members, at + 1

    def comma(self, at: int, closing: str) -> int:
        """The place of the next item or of the closing bracket."""
        at = self.skip(at)
        char = self.text[at : at + 1]
        if char == ",":
            return at + 1
        if char != closing:
            got = f"got {shown(char)}" if char else "the text ends"
            raise Unreadable(f"{got} where a comma or {closing} must stand", at)
        return at

    def key(self, at: int) -> tuple[str, int]:
        if self.text[at : at + 1] in ('"', "'"):
            return self.string(at)
        if (match := _WORD.match(self.text, at)) and not match.group().startswith("-"):
            return match.group(), match.end()
        char = self.text[at : at + 1]
        raise Unreadable(f"got {shown(char)} where a key must stand" if char else "the text ends unfinished", at)

    def string(self, at: int) -> tuple[str, int]:
        start, quote, parts = at, self.text[at], []
        at += 1
        while True:
            match = _PLAIN[quote].match(self.text, at)
            assert match is not None
            parts.append(match.group())
            at = match.end()
            # Every failed beginning may scan the rest of the text once: this bounds all of them together.
            self.work += len(match.group()) + 1
            if self.work > 4 * MAX_CHARS:
                raise Unfit("too tangled to read")
            if at >= len(self.text):
                raise Unreadable("a string without its closing quote", start)
            if self.text[at] == quote:
                return _whole("".join(parts)), at + 1
            letter = self.text[at + 1 : at + 2]
            if letter == "u" and (match := _HEX.match(self.text, at + 2)):
                parts.append(chr(int(match.group(), 16)))
                at = match.end()
            elif letter in _ESCAPES:
                parts.append(_ESCAPES[letter])
                at += 2
            else:
                raise Unreadable("an unknown escape in a string", at)


def _number(match: re.Match[str]) -> int | float:
    text = match.group()
    if match.group(1) is None and match.group(2) is None:
        if len(text.lstrip("+-")) > MAX_DIGITS:
            raise Unfit(f"an integer of {len(text.lstrip('+-')):,} digits, allowed: at most {MAX_DIGITS}")
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise Unfit(f"{text[:40]} is no finite number")
    return number


def _whole(text: str) -> str:
    """A string, its surrogate pairs joined; Unfit for half a pair."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Unfit("half a surrogate pair in a string") from None


def _copy(given: Any, depth: int, count: list[int]) -> Any:
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise Unfit(f"more than {MAX_VALUES:,} values")
    if depth > MAX_DEPTH:
        raise Unfit(f"nested more than {MAX_DEPTH} deep")
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, str):
        if len(given) > MAX_CHARS:
            raise Unfit(f"a string of {len(given):,} characters, allowed: at most {MAX_CHARS:,}")
        return _whole(str(given))
    if isinstance(given, int):
        if abs(given) >= 10**MAX_DIGITS:
            raise Unfit(f"an integer of more than {MAX_DIGITS} digits")
        return int(given)
    if isinstance(given, float):
        if not math.isfinite(given):
            raise Unfit(f"{given} is no finite number")
        return float(given)
    if isinstance(given, list | tuple):
        return [_copy(item, depth + 1, count) for item in given]
    if isinstance(given, Mapping):
        if not all(isinstance(key, str) for key in given):
            raise Unfit("a key that is no string")
        return {_whole(str(key)): _copy(item, depth + 1, count) for key, item in given.items()}
    raise Unfit(f"a {type(given).__name__}, allowed: objects, lists, strings, numbers, booleans and null")
