"""Live progress: one line on every change of state, at most one a minute in between."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_gpubench.reasons import Phase
from pytest_gpubench.recipe.types import Deployment

__all__ = ["Narrator"]

QUIET_SECONDS = 60.0


class Narrator:
    """Sends lines to ``write``; the default drops them. ``now`` is any monotonic clock."""

    def __init__(
        self, write: Callable[[str], None] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write or (lambda line: None)
        self._now = now
        self._last_line = now()
        self._pending: dict[str, str] = {}

    def write_to(self, write: Callable[[str], None]) -> None:
        """Send lines to ``write`` from now on."""
        self._write = write

    def point(self, deployment: Deployment, point_id: str, status: str, detail: str = "") -> None:
        """A point ended."""
        self.say(deployment, status, f"{point_id}{': ' + detail if detail else ''}")

    def say(self, deployment: Deployment, what: str, detail: str = "") -> None:
        """A change of state."""
        self._emit(f"{deployment.recipe}/{deployment.id}: {what}{': ' + detail if detail else ''}")

    def line(self, text: str) -> None:
        """A line about the run as a whole."""
        self._emit(text)

    def pending(self, deployment: Deployment, reason: str) -> None:
        """A pending reason, said when it changes."""
        key = f"{deployment.recipe}/{deployment.id}"
        if self._pending.get(key) != reason:
            self._pending[key] = reason
            self.say(deployment, "pending", reason)

    def waiting(self, deployment: Deployment, phase: Phase, spent: float, detail: str) -> None:
        """Called in every wait loop; speaks only after a quiet minute."""
        if self._now() - self._last_line >= QUIET_SECONDS:
            self.say(deployment, f"still {phase.doing}", f"{spent:.0f} s{', ' + detail if detail else ''}")

    def _emit(self, line: str) -> None:
        self._last_line = self._now()
        self._write(line)
