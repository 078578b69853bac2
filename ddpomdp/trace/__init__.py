"""Traces: episodes as files. See docs/traces.md for the format.

`Trace.from_rollout`, `Trace.from_json`, `to_json`; `validate`, `salvage`; `replay`; `metrics`; `to_networkx`,
`to_perfetto`, `plot`; `import_file`, `import_all` for transcripts of other systems.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpomdp.trace.check import Problem
    from ddpomdp.trace.drawing import plot
    from ddpomdp.trace.files import salvage, validate
    from ddpomdp.trace.graph import to_networkx
    from ddpomdp.trace.importers import Imported, import_all, import_file
    from ddpomdp.trace.measures import Measure, metrics
    from ddpomdp.trace.perfetto import to_perfetto
    from ddpomdp.trace.replaying import Difference, replay
    from ddpomdp.trace.text import TraceError
    from ddpomdp.trace.trace import Trace

_HOMES = {
    "Problem": "check",
    "salvage": "files",
    "validate": "files",
    "to_networkx": "graph",
    "Imported": "importers",
    "import_all": "importers",
    "import_file": "importers",
    "Measure": "measures",
    "metrics": "measures",
    "to_perfetto": "perfetto",
    "plot": "drawing",
    "Difference": "replaying",
    "replay": "replaying",
    "TraceError": "text",
    "Trace": "trace",
}

__all__ = [
    "Difference",
    "Imported",
    "Measure",
    "Problem",
    "Trace",
    "TraceError",
    "import_all",
    "import_file",
    "metrics",
    "plot",
    "replay",
    "salvage",
    "to_networkx",
    "to_perfetto",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Load a public name at first use; no module here bears the name of a function, which it would hide."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'ddpomdp.trace' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddpomdp.trace.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names."""
    return sorted(__all__)
