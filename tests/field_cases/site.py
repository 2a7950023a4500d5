"""One run on a site with everything that loses text: containers with an environment of their own, an outer
allocation, a login node without the image's programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from plugin.project import Project, Run

from pytest_gpubench.mock import Call, Job, RequestFailures

from .cases import environment, workload
from .stubs import Dump, dumping_vllm

IMAGE: str = workload("FC-19")["container"]["image"]
DECLARED: dict[str, str] = {
    **workload("FC-21")["container"]["env"],
    **{name: value for name, value in workload("FC-34")["serve"]["env"].items() if "GLOO" not in name},
    "GLOO_SOCKET_IFNAME": "eth0",
}
"""The variables that the recipe declares."""
IN_THE_IMAGE = {"MAX_FAILURE_RATE": "0.05", "EMPTY": "from the image", "NOTE": "from the image"}
OUTER = {**environment("FC-35"), **environment("FC-46")}
RECIPE = """\
gpu: SITE
num_nodes: 2
gpus_per_node: 4
vllm:
  model: org/tiny
  image: {image}
  env: {env}
  env_from_host: [HF_TOKEN]
  serve_args: -tp 8
gates: {{max_failure_rate: {rate}}}
search_space:
  - {{isl: 32, osl: 16, num_prompts: 8, points: [{{conc: 4}}]}}
"""
PROFILE = """\
SITE:
  platform: gb300
  slurm: {{partition: batch, gres: "gpu:b300:4", exclusive: true, time: "01:00:00"}}
  container: {{runtime: pyxis, mounts: ["{folder}:/nfs_home"]}}
"""


@dataclass(frozen=True)
class SiteRun:
    """The run, what its processes were given, and what its cluster knows."""

    run: Run
    folder: Path
    dumps: list[Dump]
    calls: list[Call]
    job: Job

    @property
    def ranks(self) -> list[Dump]:
        """The servers."""
        return [dump for dump in self.dumps if dump.argv[0] == "serve"]

    @property
    def clients(self) -> list[Dump]:
        """The clients."""
        return [dump for dump in self.dumps if dump.argv[0] == "bench"]

    def argvs(self, program: str) -> list[tuple[str, ...]]:
        """Every call of a program."""
        return [call.argv for call in self.calls if call.argv[0] == program]

    @property
    def steps(self) -> list[tuple[str, ...]]:
        """The srun lines that start something in a container."""
        return [argv for argv in self.argvs("srun") if "--container-image" in argv]


def run_site(folder: Path) -> SiteRun:
    """Two nodes; a quarter of the requests fails: the recipe allows that, the image's variable does not."""
    project = Project(folder / "project")
    project.write("workloads/gpu_profiles.yaml", PROFILE.format(folder=project.folder))
    rate = DECLARED["MAX_FAILURE_RATE"]
    text = RECIPE.format(image=IMAGE, env=json.dumps(DECLARED), rate=rate)
    project.write("workloads/site.yaml", text)
    faults = [RequestFailures(0.25)]
    with project.cluster(*faults, image_env=IN_THE_IMAGE, test_exec=True, accounting=False) as cluster:
        dumps = dumping_vllm(cluster, folder)
        env = project.env(cluster.env(), **OUTER)
        run = project.run("--workload=site", "-vv", "-l", "--setup-show", env=env)
        assert run.code == 0, run.out
        (job,) = cluster.jobs()
        return SiteRun(run, project.folder, dumps(), cluster.calls(), job)
