"""One recipe on three runtimes: Pyxis on the mocked Slurm, docker, and plain processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plugin.project import Project

from pytest_gpubench.mock import MockCluster

from .docker_stub import DockerStub

RUNTIMES = ("pyxis", "docker", "native")


@dataclass
class Site:
    """A project whose recipes run on ``runtime``; ``env`` is the caller's."""

    runtime: str
    project: Project
    cluster: MockCluster
    docker: DockerStub
    env: dict[str, str]


@contextmanager
def make_site(
    folder: Path, runtime: str, *, profile: str = "", image_env: dict[str, str] | None = None, **sim: object
) -> Iterator[Site]:
    """A site; whatever is left of its processes ends with the block."""
    project = Project(folder / "project")
    image = dict(image_env or {})
    cluster = MockCluster(
        folder / "cluster", nodes="h200-[01-04]", gres={"gpu": 8}, kill_wait=1.0, image_env=image, sim=sim
    )
    simulated = cluster.env({"PATH": os.defpath})
    docker = DockerStub(folder / "docker", {**simulated, **image})
    if runtime == "pyxis":
        kind = "runtime: slurm\n  slurm: {gres: 'gpu:8'}\n  container: {runtime: pyxis}"
        env = project.env(cluster.env())
    else:
        kind = f"runtime: {runtime}"
        env = project.env()
        # vLLM is in the image, or on this host.
        first = docker.bin if runtime == "docker" else cluster.bin
        env["PATH"] = os.pathsep.join([str(first), env["PATH"]])
        if runtime == "native":
            env["GPUBENCH_MOCK"] = simulated["GPUBENCH_MOCK"]
    project.write("workloads/gpu_profiles.yaml", f"H200:\n  platform: h200\n  {kind}\n{profile}")
    try:
        yield Site(runtime, project, cluster, docker, env)
    finally:
        docker.close()
        cluster.close()
