"""The xdist workers of a run, on file: the controller ends them by signal and sees when they are done.

xdist closes a worker's channel when a run is interrupted, kills it ten seconds later, and a worker takes
five of them to notice. Giving nodes back may take longer than that, so it is waited for here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

from pytest_gpubench.slurm.owner import Life, Owner
from pytest_gpubench.world import Clock

__all__ = ["WorkerRoll"]


class WorkerRoll:
    """One file per worker, from its start to the end of its session.

    Without a writable folder it is empty, and what is left is xdist's own way and the heartbeat.
    """

    def __init__(self, results: Path, run_id: str) -> None:
        self.folder = results / ".gpubench" / "workers" / run_id

    def enter(self, worker: str) -> None:
        """Called in a worker when its session starts."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file(worker).write_text(json.dumps(asdict(Owner.current())), encoding="utf-8")

    def leave(self, worker: str) -> None:
        """Called in a worker when it holds nothing any more and its rows are written."""
        with contextlib.suppress(OSError):
            self._file(worker).unlink(missing_ok=True)
            self.folder.rmdir()  # by the last one

    def present(self) -> dict[str, Owner]:
        """Worker -> process, of the workers that entered and did not leave; dead ones too."""
        found: dict[str, Owner] = {}
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found[path.stem] = Owner(**json.loads(path.read_text(encoding="utf-8")))
        return found

    def living(self) -> dict[str, Owner]:
        """Those of :meth:`present` that run on this host."""
        return {name: owner for name, owner in self.present().items() if owner.life() is Life.ALIVE}

    def recall(self, clock: Clock, timeout: float) -> list[str]:
        """SIGTERM to every living worker; returns those that have not left after ``timeout`` seconds."""
        for owner in self.living().values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(owner.pid, signal.SIGTERM)
        deadline = clock.monotonic() + timeout
        while (left := self.living()) and clock.monotonic() < deadline:
            clock.sleep(0.1)
        return list(left)

    def wait_dead(self, worker: str, clock: Clock, timeout: float) -> None:
        """Wait until the process of a worker that lost its connection is really gone; then forget it."""
        deadline = clock.monotonic() + timeout
        while worker in self.living() and clock.monotonic() < deadline:
            clock.sleep(0.05)
        self.leave(worker)

    def _file(self, worker: str) -> Path:
        return self.folder / f"{worker}.json"
