"""A picture of a trace."""

from pathlib import Path
from typing import Any

from ddpomdp.trace.trace import Trace


def plot(trace: Trace, path: str | Path | None = None, **options: Any) -> bytes:
    """Draw a trace of ours as lanes over logical time; `path` and `options` as for `picture.draw`.

    Raises:
      TraceError: the trace is of another system, whose events have no durations.
      ImportError: matplotlib (extra `plot`) is not installed.
    """
    from ddpomdp import picture

    arrays = trace.arrays
    given = trace.head["harness"] if trace.head else {}
    names = {"role_names": given["roles"], "tool_names": [tool["name"] for tool in given["tools"]]}
    return picture.draw(arrays, path, **names | options)
