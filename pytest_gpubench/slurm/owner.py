"""Who wrote a journal, and whether that process still lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Life", "Owner"]


class Life(Enum):
    """ELSEWHERE: another host or another container; nothing here can tell."""

    ALIVE = "alive"
    GONE = "gone"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Owner:
    """A process, so that a later one of the same pid is not taken for it. Empty: not to be had."""

    pid: int
    host: str
    boot_id: str = ""
    start: str = ""  # clock ticks since boot, /proc/<pid>/stat
    namespace: str = ""  # of process ids: a container sees other ones under the same host name

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), _boot_id(), _start(pid), _namespace())

    def life(self) -> Life:
        """Alive, gone, or not to be told from here."""
        if self.host != socket.gethostname() or self.pid <= 0:
            return Life.ELSEWHERE
        if self.boot_id and _boot_id() and self.boot_id != _boot_id():
            return Life.GONE
        if self.namespace != _namespace():
            return Life.ELSEWHERE
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return Life.GONE
        except PermissionError:
            pass  # somebody else's process
        now = _start(self.pid)
        if self.start and now != self.start:
            return Life.GONE
        return Life.ALIVE

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _start(pid: int) -> str:
    """Start time, empty when the process is gone or a zombie. The name in brackets may hold blanks."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
