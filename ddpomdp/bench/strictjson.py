"""JSON that any parser reads, in files that are whole or absent."""

import json
import math
import os
from pathlib import Path
from typing import Any

FLAG = "nonfinite"  # the key of a record that names its numbers that were NaN or infinite


def plain(value: Any) -> Any:
    """`value` as plain Python data: array-likes become numbers and lists; TypeError names what JSON cannot hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if type(value) in (bool, int, float, str, type(None)) else _base(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {_name(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):  # NumPy and JAX, neither imported here
        return plain(value.tolist())
    raise TypeError(f"got a {type(value).__name__}; allowed: numbers, strings, null, lists, mappings, arrays")


def strict(record: dict[str, Any]) -> dict[str, Any]:
    """`record` as plain data, each NaN or infinity replaced by null and named under `nonfinite` by its dotted path."""
    flags: dict[str, str] = {}
    cleaned = _without_nonfinite(plain(record), "", flags)
    return {**cleaned, FLAG: flags} if flags else cleaned


def dumps(value: Any, indent: int | None = None) -> str:
    """Strict JSON text of plain data; NaN or infinity raises ValueError."""
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)


def loads(text: str) -> Any:
    """The value of strict JSON text; NaN, infinity and doubled keys raise ValueError."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_distinct)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write `data` so that after a kill at any moment `path` is its old self or its new self."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":  # the rename itself must reach the disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Every number and string in nested `value` by its dotted path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        return {path: value}
    flat: dict[str, Any] = {} if value else {path: value}
    for key, part in parts:
        flat |= flatten(part, f"{path}.{key}" if path else str(key))
    return flat


def differences(old: Any, new: Any, tolerance: float = 0.0) -> list[str]:
    """One line per place where nested `new` differs from `old`, numbers by more than the relative `tolerance`."""
    old, new = flatten(old), flatten(new)
    absent = object()
    lines = []
    for path in {**old, **new}:
        a, b = old.get(path, absent), new.get(path, absent)
        if not _same(a, b, tolerance):
            lines.append(f"{path}: {'absent' if a is absent else repr(a)} -> {'absent' if b is absent else repr(b)}")
    return lines


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if type(a) is float and type(b) is float:
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=0.0) or a == b
    return type(a) is type(b) and a == b


def _without_nonfinite(value: Any, path: str, flags: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        flags[path] = "nan" if value != value else "inf" if value > 0 else "-inf"
        return None
    if isinstance(value, list):
        return [_without_nonfinite(part, f"{path}.{i}", flags) for i, part in enumerate(value)]
    if isinstance(value, dict):
        return {k: _without_nonfinite(part, f"{path}.{k}" if path else k, flags) for k, part in value.items()}
    return value


def _base(value: Any) -> Any:
    """The built-in value of an enum, a NumPy scalar or another subclass of a built-in type."""
    return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"got the key {key!r}; allowed: strings")
    return key


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return record
