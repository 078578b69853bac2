"""Running cells, here or in worker processes; a cell's failure and a worker's death are results like others."""

import contextlib
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError

from ddpomdp.bench.results import measured
from ddpomdp.bench.room import make_room
from ddpomdp.bench.store import rows_of
from ddpomdp.bench.suite import Cell, Output, Suite
from ddpomdp.options import UsageError

ATTEMPTS = 3  # for a cell whose worker dies; a cell that raises is not tried again within one start


@dataclass(frozen=True)
class Failure:
    """Why a cell gave no rows."""

    error: str
    traceback: str = ""
    attempts: int = 1


def attempt(suite: Suite, cell: Cell) -> Output | Failure:
    """Run one cell; whatever it raises becomes a `Failure`."""
    metrics = [metric.key for metric in suite.metrics] if measured(cell.settings, suite.group_by) else []
    make_room()
    try:
        return rows_of(cell, suite.run(cell), metrics)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def require_portable(suite: Suite) -> None:
    """Raise `UsageError` if `suite` cannot travel to worker processes."""
    try:
        ForkingPickler.dumps(suite)
    except (AttributeError, TypeError, PicklingError) as error:  # which one depends on the kind of object
        raise UsageError(f"suite {suite.name} cannot travel to worker processes: {error}") from error


def outcomes(suite: Suite, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Output | Failure]]:
    """Each cell with its outcome, as they come; `jobs` > 1 runs them in that many fresh processes."""
    if jobs == 1:
        for cell in cells:
            yield cell, attempt(suite, cell)
        return
    queue = deque((cell, 1) for cell in cells)
    workers = [_Worker(suite, *queue.popleft()) for _ in range(min(jobs, len(cells)))]
    try:
        while workers:
            ready = wait([worker.pipe for worker in workers])
            for place, worker in enumerate(workers):
                if worker.pipe not in ready:
                    continue
                cell, tries = worker.cell, worker.tries
                outcome = worker.outcome()
                if outcome is None:  # it died
                    cause = worker.end()
                    if tries < ATTEMPTS:
                        queue.append((cell, tries + 1))
                    else:
                        outcome = Failure(f"its worker process died {tries} times, last by {cause}", attempts=tries)
                    if queue:
                        workers[place] = _Worker(suite, *queue.popleft())
                elif queue:
                    worker.give(*queue.popleft())
                else:
                    worker.end()
                if outcome:
                    yield cell, outcome
            workers = [worker for worker in workers if not worker.ended]
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A fresh process that runs one cell at a time and ends with its parent."""

    def __init__(self, suite: Suite, cell: Cell, tries: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.ended = False
        self.process = context.Process(target=_serve, args=(theirs, suite), daemon=True)
        self.process.start()
        theirs.close()
        self.give(cell, tries)

    def give(self, cell: Cell, tries: int) -> None:
        self.cell, self.tries = cell, tries
        with contextlib.suppress(OSError):  # if it is dead, reading from it will say so
            self.pipe.send(cell)

    def outcome(self) -> Output | Failure | None:
        """The outcome of its cell; None if the process died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(timeout=5)
            return None

    def end(self) -> str:
        """End the process and say what had ended it already."""
        code = self.process.exitcode
        self.ended = True
        self.pipe.close()
        self.process.terminate()
        self.process.join()
        if code is not None and code < 0:
            return f"{signal.Signals(-code).name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
        return f"exit code {code}"


def _serve(pipe: Connection, suite: Suite) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while True:
        try:
            pipe.send(attempt(suite, pipe.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
