"""Run a suite into a folder: the cells that are not done, then results.json and report.html."""

import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpomdp.bench import report, results, store
from ddpomdp.bench.suite import Suite
from ddpomdp.bench.workers import Failure, outcomes, require_portable
from ddpomdp.options import UsageError
from ddpomdp.progress import progress

INTERRUPTED = 130  # the shell's code for Ctrl-C


def run(suite: Suite, folder: Path, given: Mapping[str, Any], *, resume: bool = False, jobs: int = 1) -> int:
    """Run the cells of `suite` under the options `given` that `folder` does not have yet, `jobs` at a time.

    Returns the exit code: 0 all cells done, 1 some failed (a resume tries these again), 130 after Ctrl-C.
    Bad options, a folder in use, with another run, or with a run while `resume` is off raise `UsageError`.
    """
    if jobs < 1:
        raise UsageError(f"jobs {jobs}; allowed: integers from 1")
    if jobs > 1:
        require_portable(suite)
    options, cells = suite.plan(given)
    with store.begin(folder, store.describe(suite, options, cells), resume=resume) as run_store:
        done = run_store.done()
        todo = [cell for cell in cells if cell.id not in done]
        if done:
            _say(f"{folder}: {len(done)} of {len(cells)} cells are done already")
        try:
            failed = _run_cells(run_store, suite, todo, jobs)
        except KeyboardInterrupt:
            words = [arg for arg in sys.argv[1:] if arg != "--resume"]
            if "--out" not in words and not any(word.startswith("--out=") for word in words):
                words += ["--out", str(folder)]
            _say(f"stopped with {len(run_store.done())} of {len(cells)} cells done; go on with:")
            _say(f"  ddpomdp {shlex.join(words)} --resume")
            return INTERRUPTED
        numbers = results.write(run_store, suite)
        report.write_if_possible(run_store, suite, numbers)
    if failed:
        _say(f"{failed} of {len(cells)} cells failed, see {folder / 'failures'}; --resume tries them again")
    return 1 if failed else 0


def _run_cells(run_store: store.Store, suite: Suite, todo: list, jobs: int) -> int:
    """Run `todo` and store each outcome; returns how many failed."""
    began, failed = time.monotonic(), 0
    with progress(f"bench {suite.name}", len(todo)) as advance:
        for cell, outcome in outcomes(suite, todo, jobs):
            if isinstance(outcome, Failure):
                failed += 1
                run_store.write_failure(cell, asdict(outcome))
            else:
                run_store.write(cell, outcome)
            advance(f"{failed} failed" if failed else "")
    device = _device() if jobs == 1 else None
    run_store.note_end(seconds=round(time.monotonic() - began, 1), cells=len(todo) - failed, jobs=jobs, device=device)
    return failed


def _device() -> str | None:
    """The kind of JAX's first device, if this process has used JAX."""
    jax = sys.modules.get("jax")
    return jax.devices()[0].device_kind if jax else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
