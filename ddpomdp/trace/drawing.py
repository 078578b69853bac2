"""A picture of a trace."""

from pathlib import Path
from typing import Any

from ddpomdp.trace.trace import Trace


def plot(trace: Trace, path: str | Path | None = None, **options: Any) -> bytes:
    """Draw a trace as lanes over time: ours as `picture.draw` does, one of another system as dots.

    Args:
      trace: the trace.
      path: where to write the picture; suffix `.png` or `.svg`. None: write nothing, return PNG.
      options: as for `picture.draw`; for another system's trace `title`, `width_in` and `dpi`.

    Raises:
      ImportError: matplotlib (extra `plot`) is not installed.
      ValueError: unknown suffix, width or dpi out of range.
    """
    from ddpomdp import picture

    if trace.head is None:
        return _dots(trace, path, **options)
    arrays = trace.arrays
    given = trace.head["harness"]
    names = {"role_names": given["roles"], "tool_names": [tool["name"] for tool in given["tools"]]}
    return picture.draw(arrays, path, **names | options)


def _dots(trace: Trace, path: str | Path | None, *, title: str = "", width_in: float = 12.0, dpi: int = 120) -> bytes:
    from ddpomdp.trace import dots

    suffix = Path(path).suffix.lower() if path is not None else ".png"
    if suffix not in (".png", ".svg"):
        raise ValueError(f"path ends in {suffix!r}; a picture is written as .png or .svg")
    if not 4 <= width_in <= 60 or not 40 <= dpi <= 600:
        raise ValueError(f"width_in={width_in}, dpi={dpi}; allowed are 4 to 60 inches, 40 to 600 dots per inch")
    picture = dots.draw(trace.document, suffix, title, width_in, dpi)
    if path is not None:
        Path(path).write_bytes(picture)
    return picture
