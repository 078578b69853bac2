"""A call as a language model writes it, understood or refused in words that the model can use.

`understand` takes text around JSON, code fences, the call objects of chat-completion endpoints, arguments as a string,
numbers as strings, other case, and leaves out what has one legal value. What it cannot read is a `Refused`, whatever
was given; nothing is guessed where two readings are possible.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddpomdp.views import loosejson
from ddpomdp.views.grammar import Calls, Values
from ddpomdp.views.loosejson import shown

NAME_KEYS = ("tool", "name", "tool_name", "action", "function")
ARGS_KEYS = ("args", "arguments", "parameters", "input", "tool_input", "action_input")
SHAPE = '{"tool": "...", "args": {...}}'
MAX_CALLS = 64  # in one text, to be compared

_WHOLE = re.compile(r"([+-]?[0-9]{1,18})(\.0{1,18})?")


class Refused(ValueError):
    """A call that was not understood or is not legal; the message says what was wrong and what is allowed."""


def understand(said: Any, legal: Calls, known: Calls) -> dict[str, Any]:
    """The exact call `{"tool": ..., "args": {...}}` that was meant.

    Args:
      said: a text, or an object: a call, a message or a call object of a chat-completion endpoint.
      legal: what may be called now.
      known: what may be called at all.

    Raises:
      Refused: everything else, with what was got, what is allowed, and the closest match.
    """
    try:
        name, args = _one_call(said)
    except loosejson.Unfit as error:
        raise Refused(f"the call cannot be taken: {error}") from None
    except loosejson.Unreadable as error:
        raise Refused(f"no call can be read: {error}, at character {error.at + 1}; write one as {SHAPE}") from None
    tool = _tool(name, legal, known)
    arguments, given = legal[tool], _named(tool, args, legal[tool])
    return {
        "tool": tool,
        "args": {
            argument: _value(tool, argument, given, values, known[tool][argument])
            for argument, values in arguments.items()
        },
    }


# From what was said to a name and arguments -----------------------------------------------------------------------


def _one_call(said: Any) -> tuple[str, Mapping[str, Any]]:
    fault = None
    if isinstance(said, str):
        found, fault = loosejson.objects(said)
    elif isinstance(said, Mapping):
        found = [loosejson.plain(said)]
    else:
        raise Refused(f"got {shown(said)}; a call is an object such as {SHAPE}, or a text with one")
    calls = [call for value in found for call in _calls(value)]
    if len(calls) > MAX_CALLS:
        raise Refused(f"got {len(calls)} calls; a turn is one call, written as {SHAPE}")
    distinct = [call for i, call in enumerate(calls) if call not in calls[:i]]
    if not distinct and fault is not None:
        raise fault
    if not distinct:
        raise Refused(f"there is no call in it; write one as {SHAPE}")
    if len(distinct) > 1:
        names = ", ".join(shown(name, 20) for name, _ in distinct[:4])
        raise Refused(f"got {len(distinct)} different calls ({names}); a turn is one call")
    return distinct[0]


def _calls(value: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The calls that an object holds: itself, those of a chat message, or none."""
    if isinstance(value.get("tool_calls"), list) and value["tool_calls"]:
        return [call for item in value["tool_calls"] if isinstance(item, dict) for call in _calls(item)]
    for key in ("function", "function_call"):
        if isinstance(value.get(key), dict):
            return _calls(value[key])
    if isinstance(value.get("content"), str) and "role" in value:  # a chat message without call objects
        return [call for item in loosejson.objects(value["content"])[0] for call in _calls(item)]
    named = [key for key in NAME_KEYS if isinstance(value.get(key), str)]
    if not named:
        return []
    given = [key for key in ARGS_KEYS if key in value]
    if len(named) > 1 or len(given) > 1:
        clash = named if len(named) > 1 else given
        raise Refused(f"got both {clash[0]!r} and {clash[1]!r} in one call; write it as {SHAPE}")
    if given:
        return [(value[named[0]], _arguments(value[given[0]]))]
    return [(value[named[0]], {key: item for key, item in value.items() if key not in (named[0], "id", "type")})]


def _arguments(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = loosejson.value(value) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"args: got {shown(value)}, must be an object such as {{}}")
    return value


# From a name and arguments to a call of the harness ---------------------------------------------------------------


def _tool(name: str, legal: Calls, known: Calls) -> str:
    wanted = _folded(name.removeprefix("functions."))
    for tool in legal:
        if _folded(tool) == wanted:
            return tool
    for tool in known:
        if _folded(tool) == wanted:
            raise Refused(f"tool: {tool} is not legal now; allowed now: {', '.join(legal)}")
    raise Refused(f"tool: there is no {shown(name)}{_closest(wanted, legal)}; allowed now: {', '.join(legal)}")


def _named(tool: str, args: Mapping[str, Any], arguments: Mapping[str, Values]) -> dict[str, Any]:
    """Given values by the exact names of their arguments."""
    names, given = {_folded(name): name for name in arguments}, {}
    for key, value in args.items():
        name = names.get(_folded(key))
        if name is None:
            allowed = ", ".join(arguments) or "none"
            raise Refused(
                f"{tool} has no argument {shown(key)}{_closest(_folded(key), arguments)}; arguments: {allowed}"
            )
        if name in given:
            raise Refused(f"{tool}.{name} is given twice")
        given[name] = value
    return given


def _value(tool: str, argument: str, given: Mapping[str, Any], legal: Values, known: Values) -> str | int:
    field, allowed = f"{tool}.{argument}", ", ".join(map(str, legal))
    if argument not in given or (given[argument] is None and len(legal) == 1):
        if len(legal) == 1:
            return legal[0]
        raise Refused(f"{field} is missing; allowed now: {allowed}")
    value = given[argument]
    for candidate in legal:
        if _same(value, candidate):
            return candidate
    if any(_same(value, candidate) for candidate in known):
        raise Refused(f"{field}: {shown(value)} is not legal now; allowed now: {allowed}")
    near = _closest(value, legal) if isinstance(value, str) else _nearest(value, legal)
    raise Refused(f"{field}: got {shown(value)}{near}; allowed now: {allowed}")


def _same(given: Any, value: str | int) -> bool:
    """Whether a given value means an allowed one; 1, "1" and 1.0 mean 1, True does not."""
    if isinstance(given, bool):
        return False
    if isinstance(given, str):
        if isinstance(value, str):
            return _folded(given) == _folded(value)
        number = _WHOLE.fullmatch(given.strip())
        return number is not None and int(number.group(1)) == value
    return isinstance(given, int | float) and isinstance(value, int) and given == value


def _folded(word: str) -> str:
    """A word for comparison: case, blanks and hyphens do not count."""
    return word[:200].strip().casefold().replace("-", "_").replace(" ", "_")


def _closest(word: str, allowed: Iterable[str | int]) -> str:
    close = difflib.get_close_matches(_folded(word), [str(value) for value in allowed], n=1)
    return f", closest is {close[0]}" if close else ""


def _nearest(value: Any, allowed: Values) -> str:
    numbers = [number for number in allowed if isinstance(number, int)]
    if isinstance(value, bool) or not isinstance(value, int | float) or not numbers:
        return ""
    return f", closest is {min(numbers, key=lambda number: abs(number - value))}"
