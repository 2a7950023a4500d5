"""perf-eval's ``PERF_EVAL_SLURM_*`` and ``PERF_EVAL_BENCH_CLIENT_*`` environment keys as typed settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gpubench.recipe.problems import Problems, near
from pytest_gpubench.recipe.serve_args import split_text
from pytest_gpubench.recipe.slurm_forms import time_seconds
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = ["FoldedSettings", "fold_settings"]

_SLURM = "PERF_EVAL_SLURM_"
_CLIENT = "PERF_EVAL_BENCH_CLIENT_"
_TEXT = {
    "PARTITION": "partition",
    "ACCOUNT": "account",
    "QOS": "qos",
    "RESERVATION": "reservation",
    "MPI": "mpi",
    "SERVER_COMMAND": "server_command",
    "LAUNCHER": "launcher",
    "TIME": "time",
    "GRES": "gres",
}
_WORDS = {"EXTRA_SBATCH_ARGS": "extra_sbatch_args", "EXTRA_SRUN_ARGS": "extra_srun_args"}
_CONTAINER = ("CONTAINER_RUNTIME", "CONTAINER_MOUNTS", "CONTAINER_WORKDIR", "NO_CONTAINER_REMAP_ROOT")
# Understood, and decided by the launcher here: names and ports are per job, one task per node.
_LAUNCHER_DECIDES = (
    "REQUEST_GPUS",
    "GPUS_PER_NODE",
    "NTASKS_PER_NODE",
    "JOB_NAME",
    "VLLM_DISTRIBUTED_BACKEND",
)
_TRUE = ("1", "true", "yes", "on")
_CONTAINER_RUNTIMES = {
    "pyxis": "pyxis",
    "container": "pyxis",
    "none": "none",
    "native": "none",
    "auto": "auto",
}


@dataclass
class FoldedSettings:
    """Keyword arguments for SlurmSettings and ContainerSettings, as the environment keys give them."""

    slurm: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)


def fold_settings(env: Mapping[str, str], where: KeyPath, problems: Problems) -> FoldedSettings:
    """Read the launcher's keys out of a profile's (or recipe's) environment at ``where``.

    Empty values mean "not set", as in perf-eval's own script. A ``PERF_EVAL_SLURM_`` key that nobody
    reads is an error: it would be ignored in silence.
    """
    folded = FoldedSettings()
    for name, value in env.items():
        if name.startswith(_SLURM):
            _slurm_key(folded, name, value.strip(), (*where, name), problems)
        elif name.startswith(_CLIENT):
            _client_key(name, value.strip(), (*where, name), problems)
    if env.get(f"{_SLURM}REQUEST_GPUS", "1").strip().lower() not in _TRUE:
        folded.slurm["gres"] = None
    return folded


def _slurm_key(folded: FoldedSettings, name: str, value: str, where: KeyPath, problems: Problems) -> None:
    key = name.removeprefix(_SLURM)
    known = (*_TEXT, *_WORDS, *_CONTAINER, *_LAUNCHER_DECIDES)
    if key not in known:
        problems.add(where, f"unknown setting{near(name, [_SLURM + word for word in known])}", key=True)
    elif not value or key in _LAUNCHER_DECIDES:
        return
    elif key == "TIME":
        try:
            time_seconds(value)
        except ValueError as error:
            problems.add(where, f"{error} (got {value!r})")
            return
        folded.slurm["time"] = value
    elif key in _TEXT:
        folded.slurm[_TEXT[key]] = value
    elif key in _WORDS:
        _words(folded, key, value, where, problems)
    elif key == "CONTAINER_RUNTIME":
        if value not in _CONTAINER_RUNTIMES:
            problems.add(where, f"expected one of {', '.join(_CONTAINER_RUNTIMES)} (got {value!r})")
        folded.container["runtime"] = _CONTAINER_RUNTIMES.get(value, "auto")
    elif key == "CONTAINER_MOUNTS":
        folded.container["mounts"] = tuple(mount for mount in value.split(",") if mount)
    elif key == "CONTAINER_WORKDIR":
        folded.container["workdir"] = value
    elif key == "NO_CONTAINER_REMAP_ROOT":
        folded.container["remap_root"] = value.lower() not in _TRUE


def _words(folded: FoldedSettings, key: str, value: str, where: KeyPath, problems: Problems) -> None:
    try:
        words = split_text(value)
    except ValueError as error:
        problems.add(where, str(error))
        return
    if key == "EXTRA_SBATCH_ARGS" and "--exclusive" in words:
        words.remove("--exclusive")
        folded.slurm["exclusive"] = True
    folded.slurm[_WORDS[key]] = tuple(words)


def _client_key(name: str, value: str, where: KeyPath, problems: Problems) -> None:
    """The client is a step of the server's own allocation; only a wish for that can be met."""
    key = name.removeprefix(_CLIENT)
    known = ("RUNTIME", "CONTAINER_RUNTIME")
    if key not in known:
        problems.add(where, f"unknown setting{near(name, [_CLIENT + word for word in known])}", key=True)
    elif key == "RUNTIME" and value not in ("", "slurm", "docker", "native"):
        problems.add(where, f"expected slurm, docker or native (got {value!r})")
    elif key == "CONTAINER_RUNTIME" and value and value not in _CONTAINER_RUNTIMES:
        problems.add(where, f"expected one of {', '.join(_CONTAINER_RUNTIMES)} (got {value!r})")
