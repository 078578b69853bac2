"""Options: `key=value` words read strictly, presets, values checked, and refusals that say what is allowed."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "none": None, "None": None}


class UsageError(ValueError):
    """Input that cannot be used; the command line prints it as one line and exits with code 2."""


@contextmanager
def bad_input() -> Iterator[None]:
    """A ValueError or ImportError in here is for the user to mend, so it becomes a `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def refusal(what: str, got: object, allowed: Iterable[str]) -> str:
    """One line that names `got`, the closest of `allowed`, and all of `allowed`."""
    allowed, name = sorted(map(str, allowed)), str(got)
    close = difflib.get_close_matches(name, allowed, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    shown = ", ".join(allowed[:30]) + (f" and {len(allowed) - 30} more" if len(allowed) > 30 else "")
    name = name if len(name) <= 80 else f"{name[:77]}..."
    return f"unknown {what} {name!r}{hint} (allowed: {shown or 'none'})"


def choose(name: str, got: object, allowed: Iterable[str]) -> None:
    """`UsageError` unless `got` is one of `allowed`."""
    if not isinstance(got, str) or got not in (allowed := list(allowed)):
        raise UsageError(refusal(name, got, allowed))


def whole(name: str, got: object, low: int, high: int, none: bool = False) -> None:
    """`UsageError` unless `got` is an int in low..high (or None where that is allowed)."""
    if none and got is None:
        return
    if isinstance(got, bool) or not isinstance(got, int) or not low <= got <= high:
        raise UsageError(f"{name}: got {got!r}, allowed: whole numbers {low} to {high}{' or None' if none else ''}")


def number(name: str, got: object, low: float, high: float) -> None:
    """`UsageError` unless `got` is a finite number in low..high."""
    if isinstance(got, bool) or not isinstance(got, int | float) or not low <= got <= high:
        raise UsageError(f"{name}: got {got!r}, allowed: numbers {low:g} to {high:g}")


def truth(name: str, got: object) -> None:
    """`UsageError` unless `got` is True or False."""
    if not isinstance(got, bool):
        raise UsageError(f"{name}: got {got!r}, allowed: True, False")


def indices(name: str, got: object, allowed: tuple[str, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    """Places in `names`, in order, of the list `got` of some of `allowed`; else `UsageError`."""
    if not isinstance(got, list | tuple) or not all(one in allowed for one in got):
        raise UsageError(f"{name}: got {got!r}, allowed: a list of {', '.join(allowed)}")
    return tuple(sorted(names.index(one) for one in set(got)))


def resolve(
    env_id: str, defaults: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """All options of an environment: defaults, then the preset's, then the given ones.

    Raises:
      UsageError: an unknown option or preset, with close matches and what is allowed.
    """
    for name in given:
        if name != "preset" and name not in defaults:
            raise UsageError(refusal(f"option of {env_id}", name, ("preset", *defaults)))
    preset = given.get("preset", "small")
    choose("preset", preset, presets)
    return {"preset": preset, **defaults, **presets[preset], **{k: v for k, v in given.items() if k != "preset"}}


def parse_value(text: str) -> Any:
    """The value that `text` spells: bool, null, int, float, list (`[1,2]` or `1,2`) or string; nothing is evaluated.

    Quotes make a string of anything: `"1,2"`. Numbers that overflow, `nan` and broken lists raise `UsageError`.
    """
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith(('"', "[")):
        return _parse_json(text) if text.startswith('"') or _is_json(text) else _parse_list(text)
    if "," in text:
        return [parse_value(part) for part in text.split(",")]
    if _INT.fullmatch(text):
        if len(text) > 18:
            raise UsageError(f"got {text[:80]!r}; an integer has at most 18 digits")
        return int(text)
    if _FLOAT.fullmatch(text):
        return _finite(float(text), text)
    if text.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        raise UsageError(f"got {text!r}; a number must be finite (quote it for a string)")
    return text


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """A nested dict of `key=value` words; dots nest. Other words, doubled and clashing keys raise `UsageError`."""
    options: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise UsageError(f"got {word!r}; an option is spelled key=value, the key in letters, digits, _ and dots")
        *parents, leaf = key.split(".")
        place = options
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UsageError(f"option {key!r} clashes with {parent!r}, which already has a value")
        if leaf in place:
            raise UsageError(f"option {key!r} is given twice")
        place[leaf] = parse_value(text)
    return options


def merge(defaults: Mapping[str, Any], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`defaults` overridden by `given`; unknown names and values of another type than the default raise `UsageError`.

    A default of None takes any value, a float takes an int, a list takes one value.
    """
    merged = dict(defaults)
    for name, value in given.items():
        if name not in defaults:
            raise UsageError(refusal(f"option of {what}", name, defaults))
        merged[name] = _as_type_of(defaults[name], value, name)
    return merged


def _as_type_of(default: Any, value: Any, name: str) -> Any:
    if default is None:
        return value
    if isinstance(default, list | tuple):
        return list(value) if isinstance(value, list | tuple) else [value]
    if type(default) is float and type(value) is int:
        return float(value)
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        return merge(default, value, name)
    if type(value) is not type(default):
        raise UsageError(f"option {name!r} got {value!r}; allowed: {_kind(default)}, such as {default!r}")
    return value


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a word"}
    return names.get(type(value), type(value).__name__)


def _parse_list(text: str) -> list[Any]:
    """A flat list of bare words, such as `[heuristic, random]`."""
    inner = text[1:-1]
    if not text.endswith("]") or any(mark in inner for mark in '[]"'):
        raise UsageError(f"got {text!r}; a list is spelled [1,2,3], nested or quoted ones as JSON")
    return [parse_value(part) for part in inner.split(",")] if inner.strip() else []


def _is_json(text: str) -> bool:
    try:
        _parse_json(text)
    except UsageError:
        return False
    return True


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=lambda number: _finite(float(number), number))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"got {text[:80]!r}, which is not valid JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise UsageError(f"got {name}; a number must be finite")


def _finite(number: float, text: str) -> float:
    if not math.isfinite(number):
        raise UsageError(f"got {text[:80]!r}; a number must be finite")
    return number
