"""What Slurm does, as checks that hold on a real cluster and on the mocked one.

Every check takes the environment that reaches the cluster and an empty folder that all nodes see. The cluster
has the idle nodes gb300-[01-02] with gpu:b300:4 each, one partition ``batch`` with a limit of four hours and
30 minutes by default, no accounting, the default PrivateData and EnforcePartLimits, and a KillWait of a few
seconds; the caller may administer it. Seen with Slurm 22.05.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from . import conformance_jobs, conformance_steps, conformance_trouble

Check = Callable[[Mapping[str, str], Path], None]

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): value
    for module in (conformance_jobs, conformance_steps, conformance_trouble)
    for name, value in vars(module).items()
    if name.startswith("check_")
}
"""Every check by its name."""

SLOW = ("time_limit", "purge")
"""Checks that take minutes on a real cluster; ``purge`` wants a MinJobAge of some seconds."""
