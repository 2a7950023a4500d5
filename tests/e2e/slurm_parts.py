"""The parts of a test cluster: Debian's programs, and the compiled plugin that plays Pyxis."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .freezer import has_freezer

HERE = Path(__file__).resolve().parent
SPANK_HEADER = Path("/usr/include/slurm/spank.h")
CLIENTS = ("srun", "sbatch", "salloc", "scancel", "squeue", "scontrol", "sinfo")
PROGRAMS = ("munged", "slurmctld", "slurmd", *CLIENTS, "setpriv")
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def program(name: str) -> str:
    """The path of a program, the system folders included, which a user's PATH may lack."""
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; .ci/install-system installs it")
    return found


def missing_parts(*, pyxis: bool = True) -> list[str]:
    """What keeps a RealSlurm from starting here, one short phrase each; empty when it can."""
    missing = [] if os.geteuid() == 0 else ["not root"]
    wanted = (*PROGRAMS, "gcc") if pyxis else PROGRAMS
    missing += [f"no {name}" for name in wanted if shutil.which(name, path=SYSTEM_PATH) is None]
    if pyxis and not SPANK_HEADER.exists():
        missing.append(f"no {SPANK_HEADER} (libslurm-dev)")
    if not has_freezer():
        missing.append("no cgroup freezer in this kernel")
    return missing


def compile_pyxis(target: Path) -> Path:
    """Compiles the SPANK plugin that plays Pyxis; raises CalledProcessError when gcc refuses."""
    sources = [str(HERE / name) for name in ("spank_pyxis.c", "spank_mounts.c")]
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([program("gcc"), *flags, "-o", str(target), *sources], timeout=60, check=True)
    return target
