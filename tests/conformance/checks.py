"""More checks of Slurm's commands, by name; ``mock.slurm_conformance`` has the first ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from . import checks_environment, checks_jobs, checks_refusals

Check = Callable[[Mapping[str, str], Path], None]

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): value
    for module in (checks_environment, checks_jobs, checks_refusals)
    for name, value in vars(module).items()
    if name.startswith("check_")
}
