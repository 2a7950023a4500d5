"""The heartbeat: a file whose change tells a job that its controlling process still lives."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["Heartbeat"]


class Heartbeat:
    """Rewrites every watched file with a growing number; a daemon thread, so it beats while tests wait."""

    def __init__(self, interval: float = 5.0) -> None:
        self.interval = interval
        self._files: set[Path] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._count = 0

    def add(self, path: Path) -> None:
        """Beat in ``path`` from now on; the first beat is written before this returns."""
        with self._lock:
            self._files.add(path)
            self._beat([path])
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpubench-heartbeat", daemon=True)
                self._thread.start()

    def remove(self, path: Path) -> None:
        """Stop beating in ``path``."""
        with self._lock:
            self._files.discard(path)

    def keep(self, path: Path, seconds: float) -> None:
        """Stop beating in ``path`` only after a while: its script is busy stopping ranks."""
        timer = threading.Timer(seconds, self.remove, [path])
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self.interval + 1.0)

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            with self._lock:
                self._beat(list(self._files))

    def _beat(self, files: list[Path]) -> None:
        self._count += 1
        for path in files:
            try:
                # In place and of one length: on a full disk a file that is there can still be overwritten.
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    os.write(handle, b"%d %012d\n" % (os.getpid(), self._count))
                finally:
                    os.close(handle)
            except OSError:
                continue  # the job ends itself when this lasts; there is nothing better to do here
