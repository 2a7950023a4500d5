"""Processes of a test cluster: started so that they die with us, found through /proc, ended by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


class Deadline:
    """A point in time to wait for; `what` says in the TimeoutError what was waited for."""

    def __init__(self, seconds: float, what: str) -> None:
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._what = what

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def check(self, detail: str = "") -> None:
        """Raises TimeoutError when the time is up."""
        if self.left() == 0.0:
            raise TimeoutError(f"{self._what}: not within {self._seconds:g} s{detail and ': ' + detail}")


def wait_until(condition: Callable[[], bool], seconds: float, what: str, *, every: float = 0.1) -> None:
    """Asks until `condition` holds; raises TimeoutError naming `what` when it does not in time."""
    deadline = Deadline(seconds, what)
    while not condition():
        deadline.check()
        time.sleep(every)


def start_daemon(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a daemon in its own session, output appended to `log`; the kernel ends it when we die."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=None if env is None else dict(env),
        )


def stop_daemons(*processes: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    """SIGTERM to all, then SIGKILL to those alive after `seconds`; also a stopped (SIGSTOP) daemon ends."""
    deadline = Deadline(seconds, "end of daemons")
    for process in processes:
        process.terminate()
        process.send_signal(signal.SIGCONT)
    for process in processes:
        try:
            process.wait(timeout=deadline.left())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10.0)


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it is gone or is not ours to see."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return {key: value for key, _, value in pairs}


def command_of(pid: int) -> str:
    """The command line of a process, for messages; empty when it is gone or is a zombie."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def find_processes(belongs: Callable[[int], bool]) -> list[int]:
    """The ids of all live processes, ourselves excepted, for which `belongs` holds; zombies do not count."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if pid != os.getpid() and command_of(pid) and belongs(pid))


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to each; one that is gone already is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
