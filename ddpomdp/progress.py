"""Progress on standard error: a bar with the time left on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 5.0
_showing: list[str] = []  # titles; what runs inside something that shows its progress stays silent


@contextmanager
def progress(title: str, total: int, unit: str = "cells") -> Iterator[Callable[[str], None]]:
    """Count to `total`; call the yielded function once per finished piece, with a few words on how things stand."""
    if _showing:
        yield lambda words: None
        return
    _showing.append(title)
    try:
        with _shown(title, total, unit) as advance:
            yield advance
    finally:
        _showing.pop()


@contextmanager
def _shown(title: str, total: int, unit: str) -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left"))
        with Progress(*columns, *times, TextColumn("{task.fields[words]}", markup=False), console=console) as bar:
            task = bar.add_task(title, total=total, words="")
            yield lambda words: bar.update(task, advance=1, words=words)
        return
    began = last = time.monotonic()
    done = 0

    def advance(words: str) -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if now - last >= LINE_EVERY_S or done == total:
            last = now
            left = (now - began) / done * (total - done)
            parts = (f"{title}: {done} of {total} {unit}", f"{now - began:.0f} s", f"about {left:.0f} s left", words)
            print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)

    yield advance


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """A spinner with the seconds so far while one long call runs; nothing when standard error is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(words, total=None)
        yield
