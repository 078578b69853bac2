"""Values against JSON Schema, as far as schema.json needs it: every fault with its path.

schema.json is a public file that any validator reads; this reads the same file, so that `import ddpomdp` needs no
validator and a fault names its field the way the rest of the package does. Keywords: $ref, type, enum, const, required,
properties, additionalProperties, items, minItems, maxItems, minLength, pattern, minimum, maximum, anyOf. Stricter than
the standard in one place: an integer is written without a point.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from ddpomdp.trace.text import Path_, short

_TYPES = {
    "object": (dict, "an object"),
    "array": (list, "a list"),
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "null": (type(None), "null"),
}


@cache
def schema() -> dict[str, Any]:
    """The schema of the format, as shipped."""
    return json.loads((files("ddpomdp.trace") / "schema.json").read_text("utf-8"))


def faults(value: Any, name: str, path: Path_ = ()) -> Iterator[tuple[Path_, str]]:
    """Yield (path, what is wrong) for `value` against the definition `name` of schema.json, in document order."""
    yield from _faults(value, schema()["$defs"][name], path)


def _faults(value: Any, rule: dict[str, Any], path: Path_) -> Iterator[tuple[Path_, str]]:
    if "$ref" in rule:
        yield from _faults(value, schema()["$defs"][rule["$ref"].removeprefix("#/$defs/")], path)
    kind = rule.get("type")
    if kind is not None and not _is(value, kind):
        yield path, f"got {short(value)}; allowed: {_TYPES[kind][1]}"
        return
    if "const" in rule and value != rule["const"]:
        yield path, f"got {short(value)}; allowed: {short(rule['const'])}"
    if "enum" in rule and value not in rule["enum"]:
        yield path, f"got {short(value)}; allowed: {', '.join(map(str, rule['enum']))}"
    if isinstance(value, dict):
        yield from _object_faults(value, rule, path)
    elif isinstance(value, list):
        low, high = rule.get("minItems", 0), rule.get("maxItems", len(value))
        if not low <= len(value) <= high:
            allowed = f"at least {low:,}" if "maxItems" not in rule else f"{low:,} to {high:,}"
            yield path, f"has {len(value):,} entries; allowed: {allowed}"
        if "items" in rule:
            for index, part in enumerate(value):
                yield from _faults(part, rule["items"], (*path, index))
    elif isinstance(value, str):
        if len(value) < rule.get("minLength", 0):
            yield path, "is empty; allowed: a string with at least one character"
        if "pattern" in rule and not re.search(rule["pattern"], value):
            yield path, f"got {short(value)}; allowed: {rule['pattern']}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < rule.get("minimum", value):
            yield path, f"got {short(value)}; allowed: at least {rule['minimum']}"
        if value > rule.get("maximum", value):
            yield path, f"got {short(value)}; allowed: at most {rule['maximum']}"
    if "anyOf" in rule:
        tried = [list(_faults(value, other, path)) for other in rule["anyOf"]]
        yield from min(tried, key=len)


def _object_faults(value: dict[str, Any], rule: dict[str, Any], path: Path_) -> Iterator[tuple[Path_, str]]:
    for name in rule.get("required", ()):
        if name not in value:
            yield path, f"lacks the field {name!r}"
    known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
    for name, part in value.items():
        if name in known:
            yield from _faults(part, known[name], (*path, name))
        elif others is False:
            yield path, f"has the unknown field {short(name)}; allowed: {', '.join(known)}"
        elif isinstance(others, dict):
            yield from _faults(part, others, (*path, name))


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind][0])
