"""The log of a training run, in step with its checkpoints.

    curves.jsonl   one row per update: strict JSON, a number that is NaN or infinite is null and named in `nonfinite`
    curves.csv     the same numbers
    timing.jsonl   what the clock said, kept apart since no two runs agree on it
    tensorboard/   the curves once more, on request

A resumed run cuts them to the update it starts from, so curves.* end byte for byte as in a run without a break.
"""

import csv
import importlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ddpomdp.bench import strictjson
from ddpomdp.options import UsageError, bad_input, whole

FILES = _CURVES, _TABLE, _TIMING = "curves.jsonl", "curves.csv", "timing.jsonl"
_TENSORBOARD = ("tensorboardX", "torch.utils.tensorboard")


class Curves:
    """A run's log, for the one process that holds the run's folder."""

    def __init__(self, folder: str | os.PathLike[str], after: int, *, tensorboard: bool = False):
        """Cut the log in `folder` to the rows of updates up to `after` and make it ready for more.

        Args:
          folder: folder of the run; it exists.
          after: number of updates done, 0 for a fresh run.
          tensorboard: write TensorBoard's files too, if tensorboardX or PyTorch's writer is installed.

        Raises:
          UsageError: the log cannot be read, with file and line, or not be written.
        """
        self._folder = Path(folder)
        self._last = {_CURVES: after, _TIMING: after}
        self._columns: list[str] = []
        with self._disk(), bad_input():
            rows = cut(self._folder / _CURVES, after)
            cut(self._folder / _TIMING, after)
            strictjson.write_atomic(self._folder / _TABLE, "".join(map(self._table_lines, rows)))
        self._board = _board(self._folder / "tensorboard", after + 1) if tensorboard else None

    def write(self, update: int, values: Mapping[str, Any]) -> None:
        """Add a row, which readers see at once.

        Args:
          update: number of updates done, larger than in the row before.
          values: numbers, truth values, words or None by name; the same names in every row.

        Raises:
          ValueError: `update` does not grow, or names or values are not as said.
          UsageError: the disk refuses.
        """
        row = self._row(_CURVES, update, values)
        lines = self._table_lines(row)
        self._append(_CURVES, update, strictjson.dumps(row) + "\n")
        self._append(_TABLE, update, lines)
        if self._board:
            for name, value in values.items():
                if value is not None and not isinstance(value, str):
                    self._board.add_scalar(name, float(value), update)
            self._board.flush()

    def write_timing(self, update: int, values: Mapping[str, Any]) -> None:
        """Add a row of clock readings; as `write`, but names may change from row to row."""
        self._append(_TIMING, update, strictjson.dumps(self._row(_TIMING, update, values)) + "\n")

    def sync(self) -> None:
        """Put all rows on the disk: before each checkpoint, so that none can outlive the rows that led to it.

        Raises:
          UsageError: the disk refuses.
        """
        with self._disk():
            for name in FILES:
                with open(self._folder / name, "r+b") as file:
                    os.fsync(file.fileno())

    def _row(self, name: str, update: int, values: Mapping[str, Any]) -> dict[str, Any]:
        whole("update", update, self._last[name] + 1, 2**63 - 1)
        if taken := {"update", strictjson.FLAG} & values.keys():
            raise ValueError(f"got a value named {', '.join(sorted(taken))}; that name is taken")
        row = strictjson.plain({"update": update, **values})
        if nested := [key for key, value in row.items() if isinstance(value, dict | list)]:
            raise ValueError(f"{', '.join(nested)}: allowed: single numbers, truth values, words, None")
        return strictjson.strict(row)

    def _table_lines(self, row: dict[str, Any]) -> str:
        """`row` as a line of CSV, below the header if it is the first."""
        columns = [name for name in row if name != strictjson.FLAG]
        first = not self._columns
        self._columns = self._columns or columns
        if columns != self._columns:
            raise ValueError(f"row {row['update']} has {', '.join(columns)}; allowed: {', '.join(self._columns)}")
        cells = row | row.get(strictjson.FLAG, {})
        text = io.StringIO()
        lines = [columns] if first else []
        csv.writer(text, lineterminator="\n").writerows([*lines, [_cell(cells[name]) for name in columns]])
        return text.getvalue()

    def _append(self, name: str, update: int, text: str) -> None:
        self._last[name] = update
        with self._disk(), open(self._folder / name, "a", encoding="utf-8", newline="") as file:
            file.write(text)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"cannot write the curves in {self._folder}: {error.strerror}") from error


def cut(path: Path, after: int) -> list[dict[str, Any]]:
    """Cut a file of JSON lines to the rows with `update` up to `after`, whole or not at all, and return these.

    A last line without its end, left by a process killed while writing, goes too. An absent file becomes an empty one.

    Raises:
      UsageError: a line is not a row, with file and line.
      OSError: the disk refuses.
    """
    data = path.read_bytes() if path.exists() else None
    kept, rows = [], []
    for number, line in enumerate((data or b"").splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            row = strictjson.loads(line.decode())
            if row["update"] <= after:
                kept.append(line)
                rows.append(row)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} line {number} is not a row of curves: {error}") from None
    if b"".join(kept) != data:
        strictjson.write_atomic(path, b"".join(kept))
    return rows


def _cell(value: Any) -> str:
    """A CSV cell: numbers and truth values as JSON spells them, None as nothing."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _board(folder: Path, first: int) -> Any:
    """A TensorBoard writer that hides earlier rows from update `first` on; None if no package has one."""
    for name in _TENSORBOARD:
        with suppress(ImportError):
            return importlib.import_module(name).SummaryWriter(log_dir=str(folder), purge_step=first)
    return None
