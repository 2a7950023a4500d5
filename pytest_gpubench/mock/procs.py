"""Finding and ending the processes of jobs.

Every process of a job carries MARK in its environment, as a cgroup would hold it on a real node: a process
that starts a session of its own is found all the same. A program that sets its process title (vllm-router)
overwrites the environment that /proc shows; it is found by the session of its task. The helpers that the
mock itself forks (the keeper of a job, the keeper of a step) are in a registry of files, since a fork does
not change what /proc shows of the environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["MARK", "Registry", "alive", "end_all", "enter_session", "marked", "start_time"]

MARK = "GPUBENCH_MOCK_TASK"
"""Environment variable of a job's processes: ``<state folder>:<job id>:<step>``."""


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode("latin-1")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> str | None:
    """Start of a process in clock ticks after boot; None when it is gone or a zombie. Tells reused ids
    apart."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return fields[19]


def alive(pid: int, started: str | None = None) -> bool:
    """True when the process runs (and is the one that started at ``started``)."""
    found = start_time(pid)
    return found is not None and (started is None or found == started)


def marked(prefix: str) -> Iterator[int]:
    """Ids of the living processes whose mark begins with ``prefix``; never our own."""
    wanted = f"{MARK}={prefix}".encode()
    own = os.getpid()
    sessions = _sessions(prefix)
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                data = stream.read()
        except OSError:
            continue
        if data.startswith(wanted) or b"\0" + wanted in data:
            if start_time(int(name)) is not None:
                yield int(name)
        elif sessions and MARK.encode() not in data:
            fields = _stat(int(name))
            if fields is not None and fields[0] not in "ZX" and int(fields[3]) in sessions:
                yield int(name)


def enter_session(folder: Path, pid: int, mark: str) -> None:
    """Note that the task ``pid`` leads a session whose processes belong to ``mark``."""
    path = folder / "sessions"
    path.mkdir(exist_ok=True)
    (path / str(pid)).write_text(f"{start_time(pid)} {mark}")


def _sessions(prefix: str) -> set[int]:
    """Session ids of the noted tasks whose mark begins with ``prefix``."""
    found: set[int] = set()
    folder = Path(prefix.partition(":")[0]) / "sessions"
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            started, _, mark = (folder / name).read_text().partition(" ")
        except OSError:
            continue
        # A dead leader's id is not given to another process while its session has processes.
        if mark.startswith(prefix) and start_time(int(name)) in (None, started):
            found.add(int(name))
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process; those that are gone are no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end_all(prefix: str, deadline: float = 5.0) -> list[int]:
    """KILL all processes marked with ``prefix`` until none is left or ``deadline`` s passed; returns
    survivors."""
    end = time.monotonic() + deadline
    while True:
        found = list(marked(prefix))
        if not found or time.monotonic() > end:
            return found
        send(found, signal.SIGKILL)
        time.sleep(0.01)


class Registry:
    """Files named by process id that list the mock's own helper processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, what: str) -> None:
        """Enter the calling process."""
        path = self.folder / str(os.getpid())
        path.write_text(f"{start_time(os.getpid())} {what}\n")

    def remove(self) -> None:
        """Take the calling process out."""
        (self.folder / str(os.getpid())).unlink(missing_ok=True)

    def living(self) -> list[int]:
        """Ids of entered processes that still run."""
        found = []
        for path in self.folder.iterdir():
            try:
                started = path.read_text().split()[0]
            except (OSError, IndexError):
                continue
            if path.name.isdigit() and alive(int(path.name), started):
                found.append(int(path.name))
        return found
