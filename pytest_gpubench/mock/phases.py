"""Marks of how far a job has come: written by its servers and steps, read where a fault waits for a phase."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["clear", "mark", "since"]


def mark(folder: Path, job: int, phase: str) -> None:
    """Note that a phase of a job begins now; later marks of the same phase do not count."""
    with contextlib.suppress(OSError):
        (folder / "spool" / str(job) / f"phase-{phase}").touch(exist_ok=False)


def since(folder: Path, job: int, phase: str) -> float | None:
    """When the phase began (seconds since the epoch), None when it has not."""
    try:
        return os.stat(folder / "spool" / str(job) / f"phase-{phase}").st_mtime
    except OSError:
        return None


def clear(folder: Path, job: int) -> None:
    """Forget all marks: the job starts again."""
    for path in (folder / "spool" / str(job)).glob("phase-*"):
        path.unlink(missing_ok=True)
