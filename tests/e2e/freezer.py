"""A control group of one's own for everything that the jobs of a test cluster run.

Slurm follows processes through the freezer hierarchy (proctrack/cgroup), as clusters do. Its other way, by
parent ids (proctrack/linuxproc), loses what outlives its parent: with vLLM's API server killed, its engine
and workers went on for ever, no scancel reached them, and no look at /proc/*/environ found them either, as
they rename themselves.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from .processes import kill_all

MOUNTED = Path("/sys/fs/cgroup/freezer")
PREFIX = "gpubench-"


def has_freezer() -> bool:
    """True when the kernel has the hierarchy, mounted or not."""
    try:
        controllers = Path("/proc/cgroups").read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[0] == "freezer" and line.split()[-1] == "1" for line in controllers)


class Freezer:
    """The control group of one cluster, and the folder that Slurm takes for the root of all hierarchies."""

    def __init__(self, folder: Path) -> None:
        """Makes both; OSError or CalledProcessError where the kernel has no freezer."""
        self.folder = folder
        self._private = folder / "hierarchy"
        folder.mkdir()
        if MOUNTED.is_dir():
            root = MOUNTED
        else:
            root = self._private
            root.mkdir()
            subprocess.run(
                ["mount", "-t", "cgroup", "-o", "freezer", "cgroup", str(root)], check=True, timeout=10
            )
        end_orphans(root)
        self.group = root / f"{PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        self.group.mkdir()
        # Slurm names its groups by node and job only: two clusters in one hierarchy would share them.
        (folder / "freezer").symlink_to(self.group)

    def conf(self) -> str:
        """The text of cgroup.conf."""
        return f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.folder}\nCgroupAutomount=no\n"

    def pids(self, node: str | None = None) -> list[int]:
        """The processes of the jobs, their slurmstepd included, on one node or on all."""
        return members(self.group / f"slurm_{node}" if node else self.group)

    def remove(self) -> None:
        """Kills what is left and removes the group."""
        end_group(self.group)
        if self._private.is_dir():
            subprocess.run(["umount", str(self._private)], check=True, timeout=10)


def members(group: Path) -> list[int]:
    """The ids of the processes in a control group and in those below it."""
    found: set[int] = set()
    for listing in group.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):  # a step's group goes when the step does
            found.update(map(int, listing.read_text().split()))
    return sorted(found)


def end_group(group: Path, seconds: float = 10.0) -> None:
    """Kills what runs in a control group and removes it; raises TimeoutError when something does not die."""
    end = time.monotonic() + seconds
    while left := members(group):
        if time.monotonic() > end:
            raise TimeoutError(f"processes {left} do not die")
        kill_all(left)
        time.sleep(0.05)
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
    group.rmdir()


def end_orphans(root: Path) -> None:
    """Ends what clusters left whose test process is gone (killed with SIGKILL): nobody else would."""
    for group in root.glob(f"{PREFIX}*"):
        owner = group.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError, TimeoutError):
                end_group(group)
