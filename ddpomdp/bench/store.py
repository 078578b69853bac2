"""The folder of a run.

    run.json                 what is run: suite, options, versions, cells; a resume must agree with all of it
    rows/<cell>.jsonl        one row per episode; the file exists exactly when the cell is done
    failures/<cell>.json     why a cell failed; gone when it succeeds
    pictures/<cell>/...      pictures for the report
    results.json report.html derived, see results.py and report.py

Every file is written whole or not at all, by the one process that holds the folder's lock.
"""

import hashlib
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ddpomdp._version import __version__
from ddpomdp.bench import strictjson
from ddpomdp.bench.lock import lock
from ddpomdp.bench.suite import CELL_ID, Cell, Output, Picture, Row, Suite
from ddpomdp.options import UsageError

FORMAT = 1
_COMPARED = ("format", "suite", "options", "versions", "group_by", "metrics", "cells")
_OURS = {"rows", "failures", ".lock", ".run.json.tmp"}  # what a kill before the first run.json may leave


@dataclass(frozen=True)
class Store:
    """A run's folder, open for reading; writing is for whoever came through `hold` or `begin`."""

    folder: Path
    run: dict[str, Any]  # run.json

    def done(self) -> set[str]:
        """Ids of the cells that are complete."""
        return {path.stem for path in (self.folder / "rows").glob("*.jsonl")} & self.run["cells"].keys()

    def failures(self) -> dict[str, dict[str, Any]]:
        """The failures by cell id: error, traceback, attempts."""
        paths = (self.folder / "failures").glob("*.json")
        return {path.stem: strictjson.loads(path.read_text("utf-8")) for path in sorted(paths)}

    def rows(self, cell: str) -> list[Row]:
        """The rows of a complete cell; a damaged file raises `UsageError` with file and line."""
        path = self.folder / "rows" / f"{cell}.jsonl"
        rows = []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            try:
                rows.append(strictjson.loads(line))
            except ValueError as error:
                raise UsageError(f"{path} line {number}: {error}") from None
        return rows

    def digest(self, cell: str) -> str:
        """SHA-256 of a complete cell's rows."""
        return hashlib.sha256((self.folder / "rows" / f"{cell}.jsonl").read_bytes()).hexdigest()

    def pictures(self) -> list[Picture]:
        """All pictures, in the order of the cells."""
        found = []
        for cell in self.run["cells"]:
            index = self.folder / "pictures" / cell / "index.json"
            for entry in strictjson.loads(index.read_text("utf-8")) if index.is_file() else ():
                path = index.parent / Path(entry["file"]).name
                data = path.read_bytes() if path.suffix == ".png" else path.read_text("utf-8")
                found.append(Picture(entry["title"], data, entry["caption"]))
        return found

    def write(self, cell: Cell, output: Output) -> None:
        """Make `cell` done with `output`: pictures first, then the rows in one rename."""
        folder = self.folder / "pictures" / cell.id
        index = []
        for number, picture in enumerate(output.pictures):
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{number}.{'png' if isinstance(picture.data, bytes) else 'svg'}"
            strictjson.write_atomic(folder / name, picture.data)
            index.append({"file": name, "title": picture.title, "caption": picture.caption})
        if index:
            strictjson.write_atomic(folder / "index.json", strictjson.dumps(index))
        lines = "".join(strictjson.dumps(row) + "\n" for row in output.rows)
        strictjson.write_atomic(self.folder / "rows" / f"{cell.id}.jsonl", lines)
        (self.folder / "failures" / f"{cell.id}.json").unlink(missing_ok=True)

    def write_failure(self, cell: Cell, failure: Mapping[str, Any]) -> None:
        """Record why `cell` failed."""
        text = strictjson.dumps(strictjson.strict(dict(failure)), indent=1)
        strictjson.write_atomic(self.folder / "failures" / f"{cell.id}.json", text)

    def note_end(self, **facts: Any) -> None:
        """Add `facts` to the last entry of `starts` in run.json."""
        self.run["starts"][-1] |= facts
        strictjson.write_atomic(self.folder / "run.json", strictjson.dumps(self.run, indent=1))


def rows_of(cell: Cell, output: list[Row] | Output, metrics: Sequence[str]) -> Output:
    """`output` of a cell as strict rows stamped with cell, seed, episode and settings.

    ValueError if there is no row, if a row lacks one of `metrics`, or if it contradicts its stamp.
    """
    output = output if isinstance(output, Output) else Output(output)
    if not output.rows:
        raise ValueError("the cell gave no row; allowed: one per episode")
    rows = []
    for episode, row in enumerate(output.rows):
        row = strictjson.strict(row)
        stamp = strictjson.plain({"cell": cell.id, "seed": cell.seed, "episode": episode, **cell.settings})
        if lacking := [key for key in metrics if key not in row]:
            raise ValueError(f"row {episode} lacks {', '.join(lacking)}; it has {', '.join(row)}")
        if wrong := [key for key in stamp if key in row and row[key] != stamp[key]]:
            raise ValueError(f"row {episode} contradicts the cell in {', '.join(wrong)}")
        rows.append({**stamp, **row})
    return Output(rows, output.pictures)


def describe(suite: Suite, options: Mapping[str, Any], cells: Sequence[Cell]) -> dict[str, Any]:
    """The content of run.json for a fresh run, except `starts`."""
    packages = dict.fromkeys(("jax", "jaxlib", "numpy", *suite.packages))
    return strictjson.strict(
        {
            "format": FORMAT,
            "suite": suite.name,
            "description": suite.description,
            "options": options,
            "versions": {
                "ddpomdp": __version__,
                "python": platform.python_version(),
                **{package: _version(package) for package in packages},
            },
            "group_by": suite.group_by,
            "metrics": [metric.key for metric in suite.metrics],
            "cells": {
                cell.id: {"seed": cell.seed, "settings": cell.settings, "provenance": cell.provenance} for cell in cells
            },
            "environment": {
                "system": platform.system(),
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
            },
        }
    )


def read(folder: Path) -> Store:
    """The run in `folder`; a folder without one raises `UsageError`."""
    path = folder / "run.json"
    try:
        run = strictjson.loads(path.read_text("utf-8"))
        missing = [key for key in (*_COMPARED, "starts") if key not in run]
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no run (no run.json)") from None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from None
    if missing or run["format"] != FORMAT:
        raise UsageError(f"{path}: not a run of format {FORMAT} ({', '.join(missing) or run['format']})")
    if odd := [cell for cell in run["cells"] if not CELL_ID.fullmatch(cell)]:
        raise UsageError(f"{path}: {odd[0][:80]!r} cannot be the id of a cell")
    return Store(folder, run)


@contextmanager
def hold(folder: Path) -> Iterator[Store]:
    """The run in `folder`, locked; `Busy` (a `UsageError`) if another process holds it."""
    read(folder)
    with lock(folder):
        yield read(folder)


@contextmanager
def begin(folder: Path, description: dict[str, Any], *, resume: bool) -> Iterator[Store]:
    """Start a run in `folder`, or with `resume` go on with the one there.

    `UsageError`: another process holds the folder, it has a run and `resume` is off, its run differs from
    `description` (with the differences), it has files of others, or it cannot be written.
    """
    try:
        for name in ("rows", "failures"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None
    with lock(folder):
        starts = []
        if (folder / "run.json").exists():
            run = read(folder).run
            if not resume:
                raise UsageError(f"{folder} already holds a run; --resume continues it, or choose another --out")
            if changes := strictjson.differences(_compared(run), _compared(description)):
                shown = "; ".join(changes[:8]) + (f"; and {len(changes) - 8} more" if len(changes) > 8 else "")
                raise UsageError(f"{folder} holds another run, choose another --out; differences: {shown}")
            starts = run["starts"]
        elif foreign := sorted(set(os.listdir(folder)) - _OURS):
            raise UsageError(f"{folder} holds other files ({', '.join(foreign[:3])}); choose another --out")
        for leftover in (path for name in ("rows", "failures") for path in (folder / name).glob(".*.tmp")):
            leftover.unlink()
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        start = {"command": shlex.join(["ddpomdp", *sys.argv[1:]]), "time": now}
        store = Store(folder, {**description, "starts": [*starts, start]})
        store.note_end()
        yield store


def _compared(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in _COMPARED}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
