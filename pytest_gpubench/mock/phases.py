"""Marks of how far a job has come: written by its servers and steps, read where a fault waits for a phase."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

__all__ = ["clear", "current_job", "mark", "since"]


def current_job(folder: Path) -> tuple[int, str]:
    """Id and name of the job that the calling process belongs to; 0 and "" outside of jobs.

    The name comes from the controller: a step that was started from outside has another SLURM_JOB_NAME.
    """
    text = os.environ.get("SLURM_JOB_ID", "")
    if not text.isdigit():
        return 0, ""
    for kind in ("active", "ended"):
        with contextlib.suppress(OSError):
            return int(text), str(json.loads((folder / kind / f"{text}.json").read_text())["name"])
    return int(text), ""


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
