"""Checks that take a minute or two on a real cluster, whatever its settings.

Each runs on a cluster of its own, all at once, while the other checks go on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .backends import Backend, real_backend

Check = Callable[[Backend, Path], None]

PATIENCE = 240.0
MIN_JOB_AGE = 5
"""Seconds; slurmctld looks for jobs to forget once a minute."""


class SlowChecks:
    """Starts the checks when it is made."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(checks)))
        self._results: dict[str, Future[None]] = {
            name: self._pool.submit(_on_a_cluster, check) for name, check in checks.items()
        }

    def result(self, name: str) -> None:
        """Wait for a check; raises what it raised."""
        self._results[name].result(timeout=PATIENCE)

    def close(self) -> None:
        """Wait for all."""
        self._pool.shutdown(wait=True)


def _on_a_cluster(check: Check) -> None:
    with real_backend(min_job_age=MIN_JOB_AGE) as backend, tempfile.TemporaryDirectory() as folder:
        check(backend, Path(folder))
