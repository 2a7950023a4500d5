"""A client step that waits for a controller that cannot be reached, as long as nothing has run yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytest_gpubench.slurm.answers import Answer, classify
from pytest_gpubench.world import Clock, CommandResult, ProcessHandle

__all__ = ["ClientStep"]

PAUSE_SECONDS = 2.0
_READ = 64 * 1024


class ClientStep:
    """A :class:`~pytest_gpubench.world.ProcessHandle`; ``start`` starts srun, whose output goes to ``log``.

    srun gives up when the controller is out of reach at that moment. Then no client ran, the server is as it
    was, and the measurement is not lost: srun is started again for ``patience`` seconds. Once anything but
    srun has written into the log, its end is the end.
    """

    def __init__(
        self, start: Callable[[], ProcessHandle], log: Path, clock: Clock, *, patience: float
    ) -> None:
        self._start = start
        self._log = log
        self._clock = clock
        self._deadline = clock.monotonic() + patience
        self._again_at: float | None = None
        self._offset = self._size()
        self._process = start()

    @property
    def pid(self) -> int:
        """Process id of the latest srun."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status of the step, None while it runs or is to be started again."""
        now = self._clock.monotonic()
        if self._again_at is not None:
            if now < self._again_at:
                return None
            self._again_at = None
            self._offset = self._size()
            self._process = self._start()
        status = self._process.poll()
        if status is None or status == 0 or now >= self._deadline or not self._nothing_ran():
            return status
        self._again_at = now + PAUSE_SECONDS
        return None

    def terminate(self, grace: float) -> int | None:
        """End it; it is not started again."""
        self._again_at = None
        self._deadline = self._clock.monotonic()
        return self._process.terminate(grace)

    def _nothing_ran(self) -> bool:
        try:
            with open(self._log, "rb") as stream:
                stream.seek(self._offset)
                text = stream.read(_READ).decode("utf-8", "replace")
        except OSError:
            return False
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines or not all(line.startswith("srun: ") for line in lines):
            return False
        answer = classify(CommandResult(("srun",), 1, "", text))
        # A lost answer to the question for the allocation comes before any step, too.
        return answer is Answer.UNREACHABLE or (
            answer is Answer.UNCLEAR and "confirm allocation" in text.lower()
        )

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0
