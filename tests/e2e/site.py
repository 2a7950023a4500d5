"""A site as its users have it: a checkout on a shared disk under a mount, a profile, recipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .real_slurm import RealSlurm
from .vllm_cpu import VllmCpu

WORKLOADS = Path(__file__).parents[2] / "workloads"
PROFILE = """\
GB300_SLURM:
  platform: gb300
  runtime: slurm
  env:
    {{VLLM_CPU_KVCACHE_SPACE: "1", VLLM_NO_USAGE_STATS: "1", OMP_NUM_THREADS: "1", VLLM_SERVER_DEV_MODE: "1"}}
  slurm: {{partition: batch, gres: "gpu:b300:4", exclusive: true, time: "00:20:00"}}
  container: {{runtime: pyxis, mounts: ["{shared}:/nfs_home"]}}
  models: {{staged: required, paths: {{example/tiny-opt: {model}}}}}
"""


@dataclass(frozen=True)
class Site:
    """``checkout`` lies on the shared disk that containers see as /nfs_home."""

    shared: Path
    env: Mapping[str, str]

    @property
    def checkout(self) -> Path:
        return self.shared / "checkout"

    @property
    def results(self) -> Path:
        return self.checkout / "results"

    def recipe(self, name: str, text: str) -> None:
        """Add a recipe."""
        (self.checkout / "workloads" / f"{name}.yaml").write_text(text, encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        """pytest as a user of the site starts it."""
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]

    def pytest(self, *arguments: str, seconds: float = 400.0) -> subprocess.CompletedProcess[str]:
        """Run pytest in the checkout to its end."""
        return subprocess.run(
            self.command(*arguments), cwd=self.checkout, env=dict(self.env), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=seconds,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start pytest in the checkout, in its own process group."""
        return subprocess.Popen(
            self.command(*arguments), cwd=self.checkout, env=dict(self.env), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the ingest file."""
        content = json.loads((self.results / "ingest.json").read_text(encoding="utf-8"))
        rows: list[dict[str, Any]] = content["rows"]
        return rows


def make_site(folder: Path, slurm: RealSlurm, vllm: VllmCpu) -> Site:
    """The checkout with the project's own tiny recipes, on the real Slurm, with the real vLLM on PATH."""
    shared = folder / "shared"
    workloads = shared / "checkout" / "workloads"
    workloads.mkdir(parents=True)
    (workloads / "gpu_profiles.yaml").write_text(
        PROFILE.format(shared=shared, model=vllm.model), encoding="utf-8"
    )
    for path in WORKLOADS.glob("tiny_opt_?node.yaml"):
        shutil.copy(path, workloads)
    (shared / "checkout" / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    base = slurm.env()
    env = {**base, "PATH": os.pathsep.join([str(vllm.bin), base["PATH"]]), "VLLM_IMAGE": "registry/vllm:1"}
    return Site(shared, env)
