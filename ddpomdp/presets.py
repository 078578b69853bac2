"""Options of an environment: presets fill every one, explicit options override, bad ones are refused by name."""

import difflib
from collections.abc import Mapping
from typing import Any


def close_match(got: object, allowed: Mapping | tuple | list) -> str:
    """'; did you mean X?' or nothing."""
    close = difflib.get_close_matches(str(got), [str(name) for name in allowed], 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def choose(name: str, got: object, allowed: Mapping | tuple | list) -> None:
    """ValueError unless `got` is one of `allowed`."""
    if not isinstance(got, str) or got not in allowed:
        shown = ", ".join(str(value) for value in allowed)
        raise ValueError(f"unknown {name} {got!r}{close_match(got, allowed)}; allowed: {shown}")


def whole(name: str, got: object, low: int, high: int, none: bool = False) -> None:
    """ValueError unless `got` is an int in low..high (or None where that is allowed)."""
    if none and got is None:
        return
    if isinstance(got, bool) or not isinstance(got, int) or not low <= got <= high:
        raise ValueError(f"{name}: got {got!r}, allowed: whole numbers {low} to {high}{' or None' if none else ''}")


def number(name: str, got: object, low: float, high: float) -> None:
    """ValueError unless `got` is a finite number in low..high."""
    if isinstance(got, bool) or not isinstance(got, int | float) or not low <= got <= high:
        raise ValueError(f"{name}: got {got!r}, allowed: numbers {low:g} to {high:g}")


def resolve(
    env_id: str, defaults: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """All options of an environment: defaults, then the preset's, then the given ones.

    Raises:
      ValueError: an unknown option or preset, with close matches and what is allowed.
    """
    for name in given:
        if name != "preset" and name not in defaults:
            allowed = ("preset", *defaults)
            raise ValueError(
                f"{env_id} has no option {name!r}{close_match(name, allowed)}; options: {', '.join(allowed)}"
            )
    preset = given.get("preset", "small")
    choose("preset", preset, presets)
    return {"preset": preset, **defaults, **presets[preset], **{k: v for k, v in given.items() if k != "preset"}}
