"""One process per folder. The operating system holds the lock, so it ends with its holder, however that ends."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ddpomdp.options import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

_FAR = 1 << 30  # on Windows a locked byte cannot be read, so one far behind the owner's name is locked


class Busy(UsageError):
    """Another process works in the folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; if another process holds it, `Busy` names its host and process id.

    The file `.lock` stays; a lock left by a killed process or copied from another machine holds nobody back.
    """
    with open(folder / ".lock", "a+", encoding="utf-8") as file:
        if not _try(file):
            raise Busy(f"{folder} is in use by {_owner(file)}; wait for it to end or choose another folder")
        file.truncate(0)
        file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            _release(file)


def _try(file: IO[str]) -> bool:
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(_FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _release(file: IO[str]) -> None:
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        file.seek(_FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


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
    if os.name != "posix":
        return True  # there, asking would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
