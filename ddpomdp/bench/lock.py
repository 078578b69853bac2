"""One process per folder. The operating system holds the lock, so it ends with its holder, however that ends."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ddpomdp.options import UsageError

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # a locked byte cannot be read, so one far behind the owner's name is locked

    def _take(file: IO[str]) -> None:
        file.seek(_FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _release(file: IO[str]) -> None:
        file.seek(_FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _take(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


class Busy(UsageError):
    """Another process works in the folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; if another process holds it, `Busy` names its host and process id.

    The file `.lock` stays; a lock left by a killed process or copied from another machine holds nobody back.
    """
    with open(folder / ".lock", "a+", encoding="utf-8") as file:
        try:
            _take(file)
        except (BlockingIOError, PermissionError):
            owner = _owner(file)
            raise Busy(f"{folder} is in use by {owner}; wait for it to end or choose another folder") from None
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            _release(file)


def _owner(file: IO[str]) -> str:
    """The holder's name; a holder that has just begun gets a second to write it over that of its predecessor."""
    text = "a process that has not named itself"
    for _ in range(20):
        file.seek(0)
        try:
            owner = json.loads(file.read())
            text = f"process {owner['pid']} on host {owner['host']}"
            if owner["host"] != socket.gethostname() or _alive(owner["pid"]):
                break
        except (ValueError, KeyError, TypeError):
            pass
        time.sleep(0.05)
    return text


def _alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # there, asking would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
