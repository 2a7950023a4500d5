"""Progress on the terminal: counts, an estimate of the end, CI's group markers, and xdist's workers.

A worker has no terminal. It appends its events to a file of the results folder, and a thread of the
controller prints what the files have grown by.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_gpubench.serving.narrator import Event

__all__ = ["ProgressFiles", "ProgressPrinter", "append_events"]

_ENDINGS = frozenset({"passed", "failed", "error", "xfailed"})


class ProgressPrinter:
    """Turns events into lines. ``total`` is the number of points, 0 when it is not known."""

    def __init__(
        self,
        write: Callable[[str], None],
        env: Mapping[str, str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._now = now
        self._style = "buildkite" if env.get("BUILDKITE") else "github" if env.get("GITHUB_ACTIONS") else ""
        self._open: str | None = None
        self._began: float | None = None
        self._done = 0
        self.total = 0

    def __call__(self, event: Event) -> None:
        """Print one event."""
        if self._began is None:
            self._began = self._now()
        if event.kind == "submitted":
            self._group(event.where)
        if event.log:
            self._write(f"[{event.where} {event.log}] {event.detail}")
            return
        detail = event.detail
        if event.point:
            detail = ": ".join(part for part in (event.point, detail) if part)
            if event.kind in _ENDINGS:
                self._done += 1
                detail += self._count()
        words = ": ".join(part for part in (event.where, event.kind, detail) if part)
        self._write(f"[gpubench] {words}")

    def close(self) -> None:
        """End an open group."""
        if self._style == "github" and self._open is not None:
            self._write("::endgroup::")
        self._open = None

    def _count(self) -> str:
        if not self.total:
            return ""
        left = self.total - self._done
        text = f" (point {self._done} of {self.total}"
        if left > 0 and self._began is not None:
            spent = self._now() - self._began
            text += f", about {_duration(spent / self._done * left)} to go"
        return text + ")"

    def _group(self, where: str) -> None:
        if not self._style or where == self._open:
            return
        if self._style == "buildkite":
            self._write(f"--- gpubench {where}")
        else:
            self.close()
            self._write(f"::group::gpubench {where}")
        self._open = where


class ProgressFiles:
    """Prints what workers append to ``folder``; a daemon thread, polled twice a second."""

    def __init__(self, folder: Path, sink: Callable[[Event], None]) -> None:
        self._folder = folder
        self._sink = sink
        self._offsets: dict[Path, int] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gpubench-progress", daemon=True)

    def start(self) -> None:
        """Begin; files of an earlier run are passed over."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.jsonl"):
                path.unlink()
        self._thread.start()

    def close(self) -> None:
        """Print the rest and end."""
        self._stop.set()
        self._thread.join(2.0)
        self.poll()

    def poll(self) -> None:
        """Print what has come since the last call."""
        with self._lock:
            for path in sorted(self._folder.glob("*.jsonl")):
                self._read(path)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            with contextlib.suppress(OSError):
                self.poll()

    def _read(self, path: Path) -> None:
        try:
            with open(path, "rb") as source:
                source.seek(self._offsets.get(path, 0))
                data = source.read()
        except OSError:
            return
        end = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + end
        for line in data[:end].splitlines():
            try:
                self._sink(Event(**json.loads(line)))
            except (ValueError, TypeError):
                continue  # a line of another version, or torn by a kill


def append_events(path: Path) -> Callable[[Event], None]:
    """A sink for a worker: one line of JSON per event; a full disk costs the line, not the run."""

    def sink(event: Event) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as target:
                target.write(json.dumps(event.as_dict()) + "\n")

    return sink


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
