"""Live progress: an event on every change of state, at most one a minute in between.

The narrator only makes events. ``progress.py`` prints them, or hands them from an xdist worker to the
controller, which counts and prints for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_gpubench.reasons import Phase
from pytest_gpubench.recipe.types import Deployment

__all__ = ["Event", "Narrator"]

QUIET_SECONDS = 60.0


@dataclass(frozen=True)
class Event:
    """``kind``: what happened (submitted, pending, nodes, loaded, ready, passed, …); texts are for people."""

    kind: str
    where: str = ""  # recipe/deployment
    detail: str = ""
    point: str = ""
    log: str = ""  # a rank's name, for a line of its log

    def as_dict(self) -> dict[str, str]:
        """Plain values, for a line of JSON."""
        return asdict(self)


class Narrator:
    """Sends events to ``sink``; the default drops them. ``now`` is any monotonic clock."""

    def __init__(
        self, sink: Callable[[Event], None] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._sink = sink or (lambda event: None)
        self._now = now
        self._last = now()
        self._pending: dict[str, str] = {}
        self._offsets: dict[Path, int] = {}
        self.stream_logs = False

    def send_to(self, sink: Callable[[Event], None]) -> None:
        """Send events to ``sink`` from now on."""
        self._sink = sink

    def say(self, deployment: Deployment, what: str, detail: str = "") -> None:
        """A change of state of a deployment."""
        self._emit(Event(what, _where(deployment), detail))

    def line(self, text: str) -> None:
        """A line about the run as a whole."""
        self._emit(Event("", detail=text))

    def point(self, deployment: Deployment, point_id: str, status: str, detail: str = "") -> None:
        """A point ended."""
        self._emit(Event(status, _where(deployment), detail, point_id))

    def pending(self, deployment: Deployment, reason: str) -> None:
        """A pending reason, said when it changes."""
        key = _where(deployment)
        if self._pending.get(key) != reason:
            self._pending[key] = reason
            self.say(deployment, "pending", reason)

    def waiting(self, deployment: Deployment, phase: Phase, spent: float, detail: str) -> None:
        """Called in every wait loop; speaks only after a quiet minute."""
        if self._now() - self._last >= QUIET_SECONDS:
            self.say(deployment, f"still {phase.doing}", f"{spent:.0f} s{', ' + detail if detail else ''}")

    def logs(self, deployment: Deployment, folder: Path, names: tuple[str, ...]) -> None:
        """With ``stream_logs``: the lines that the ranks' logs have grown by; bounded per call."""
        if not self.stream_logs:
            return
        for name in names:
            for line in self._grown(folder / f"{name}.log"):
                self._sink(Event("log", _where(deployment), line, log=name))

    def _grown(self, path: Path) -> list[str]:
        from pytest_gpubench.results.text import clean

        try:
            with open(path, "rb") as source:
                source.seek(self._offsets.get(path, 0))
                data = source.read(64 * 1024)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + end
        return [clean(line) for line in data[:end].decode("utf-8", "replace").splitlines() if line.strip()]

    def _emit(self, event: Event) -> None:
        self._last = self._now()
        self._sink(event)


def _where(deployment: Deployment) -> str:
    return f"{deployment.recipe}/{deployment.id}"
