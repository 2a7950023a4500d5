"""Signals: SIGTERM and SIGHUP unwind like Ctrl-C, and a release under way is never cut short.

pytest does not turn SIGTERM into teardown, so a cancelled CI job would leave its allocation behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]

REPEAT_SECONDS = 10.0
"""How long after an interruption further signals are taken for the same one: a second Ctrl-C, or CI that
sends SIGTERM to a group and then to each process, must not cut short what the first one set off."""
PATIENCE = b"\ngpubench: interrupted; giving the nodes back, which is bounded in time. Please wait.\n"


class Interrupts:
    """Installs handlers that raise KeyboardInterrupt, except inside :meth:`shield`, where they wait."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._depth = 0
        self._pending = False
        self._raised_at = float("-inf")
        self._previous: dict[int, Any] = {}

    def install(self) -> Callable[[], None]:
        """Install for SIGINT, SIGTERM, SIGHUP; returns what restores the previous handlers."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            current = signal.getsignal(number)
            if current is signal.SIG_IGN and number != signal.SIGTERM:
                continue  # nohup, or a background job of a shell script: that was meant
            self._previous[number] = signal.signal(number, self._handle)
        return self._restore

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Signals that arrive inside are raised at the end; the inside must be bounded in time."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._pending:
                self._pending = False
                raise self._interruption()

    @contextlib.contextmanager
    def absorb(self) -> Iterator[None]:
        """Signals that arrive inside are only noted: the run is ending anyway. Bounded, like a shield."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._pending = False

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        repeated = time.monotonic() - self._raised_at < REPEAT_SECONDS
        self.received = number
        if self._depth or repeated:
            self._pending = self._pending or not repeated
            with contextlib.suppress(OSError):
                os.write(2, PATIENCE)  # not through Python's buffers: a handler may run inside them
            return
        raise self._interruption()

    def _interruption(self) -> KeyboardInterrupt:
        self._raised_at = time.monotonic()
        return KeyboardInterrupt(signal.Signals(self.received).name if self.received else "interrupted")
