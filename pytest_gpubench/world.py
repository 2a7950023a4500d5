"""What touches the world, as arguments: a clock and a process runner, with their real versions.

Everything that waits or starts processes takes these, so that tests replace time and commands.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

__all__ = ["Clock", "CommandResult", "CommandRunner", "ProcessHandle", "SystemClock", "SystemRunner"]


class Clock(Protocol):
    """Time in seconds."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def time(self) -> float:
        """Seconds since the epoch (UTC)."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The real clock."""

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait; negative values are zero."""
        time.sleep(max(0.0, seconds))


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. ``returncode`` is None when it was killed at its timeout or never started."""

    argv: tuple[str, ...]
    returncode: int | None
    stdout: str
    stderr: str
    timed_out: bool = False
    missing: bool = False

    @property
    def ok(self) -> bool:
        """Exit status 0."""
        return self.returncode == 0

    def describe(self) -> str:
        """The command and its own words, for a message."""
        import shlex

        how = "not found" if self.missing else "timed out" if self.timed_out else f"exit {self.returncode}"
        words = (self.stderr.strip() or self.stdout.strip() or "no output")[:2000]
        return f"`{shlex.join(self.argv)}`: {how}: {words}"


class ProcessHandle(Protocol):
    """A started process in its own process group."""

    @property
    def pid(self) -> int:
        """Process id, also the process group id."""
        ...

    def poll(self) -> int | None:
        """Exit status, or None while it runs (negative: signal)."""
        ...

    def terminate(self, grace: float) -> int | None:
        """TERM to the group, KILL after ``grace`` seconds; returns the exit status."""
        ...


class CommandRunner(Protocol):
    """Runs commands without a shell and without standard input."""

    def run(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run to the end or to ``timeout`` seconds; never raises for a failing or missing command."""
        ...

    def start(
        self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> ProcessHandle:
        """Start in a new process group with output appended to the file ``log``; raises OSError."""
        ...


class SystemProcess:
    """A real child process that leads its own process group."""

    def __init__(self, popen: subprocess.Popen[bytes], sink: IO[bytes]) -> None:
        self._popen = popen
        self._sink = sink

    @property
    def pid(self) -> int:
        """Process id, also the process group id."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        status = self._popen.poll()
        if status is not None and not self._sink.closed:
            self._sink.close()
        return status

    def terminate(self, grace: float) -> int | None:
        """TERM to the group, KILL after ``grace`` seconds, reap."""
        import signal

        for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(self._popen.pid, number)
            except ProcessLookupError:
                pass
            except PermissionError:  # the leader is gone and the id belongs to somebody else
                break
            try:
                self._popen.wait(wait)
            except subprocess.TimeoutExpired:
                continue
            if number == signal.SIGTERM and _group_alive(self._popen.pid):
                continue  # the leader obeyed, a child did not
            break
        return self.poll()


def _group_alive(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class SystemRunner:
    """Runs real processes; ``env`` is the whole environment they get when a call names none."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.env = dict(os.environ if env is None else env)

    def run(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run to the end or to ``timeout`` seconds; the whole process group is killed at the timeout."""
        full = self.env if env is None else dict(env)
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=full,
                executable=_resolve(argv[0], full),
                start_new_session=True,
            )
        except OSError as err:
            return CommandResult(tuple(argv), None, "", str(err), missing=True)
        try:
            out, err_text = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            out, err_text = process.communicate()
            return CommandResult(tuple(argv), None, _text(out), _text(err_text), timed_out=True)
        except BaseException:
            # Ctrl-C while a Slurm command runs: do not leave it behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            raise
        return CommandResult(tuple(argv), process.returncode, _text(out), _text(err_text))

    def start(
        self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> SystemProcess:
        """Start in a new session; output is appended to ``log``."""
        full = self.env if env is None else dict(env)
        sink = open(log, "ab")  # noqa: SIM115 - owned by the handle
        try:
            popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=full,
                cwd=cwd,
                executable=_resolve(argv[0], full),
                start_new_session=True,
            )
        except OSError:
            sink.close()
            raise
        return SystemProcess(popen, sink)


def _resolve(program: str, env: Mapping[str, str]) -> str:
    """Find ``program`` on the PATH of ``env`` (Popen alone would search our own PATH)."""
    import shutil

    return shutil.which(program, path=env.get("PATH", os.defpath)) or program


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
