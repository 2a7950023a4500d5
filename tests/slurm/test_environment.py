from __future__ import annotations

import pytest

from pytest_gpubench.slurm.client import CliSlurm
from pytest_gpubench.slurm.environment import clean_env
from pytest_gpubench.slurm.types import JobId, Submission

from .fakes import FakeClock, FakeRunner, row, said

OUTER = {
    "SLURM_JOB_ID": "900",
    "SLURM_MEM_PER_CPU": "8192",
    "SLURM_MEM_PER_NODE": "64000",
    "SLURM_NTASKS": "1",
    "SBATCH_PARTITION": "debug",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "VLLM_PORT": "tcp://10.0.0.7:8123",
    "LD_LIBRARY_PATH": "/opt/host/lib",
    "PATH": "/usr/bin",
    "HOME": "/home/ci",
}


def test_fc_35_outer_allocation_and_pod_variables_are_dropped() -> None:
    assert clean_env(OUTER) == {"SLURM_CONF": "/etc/slurm/slurm.conf", "PATH": "/usr/bin", "HOME": "/home/ci"}


def test_fc_35_what_the_workload_names_is_passed_as_it_is() -> None:
    named = {"LD_LIBRARY_PATH": "/opt/x", "VLLM_PORT": "tcp://a:1", "VLLM_USE_V1": "1", "EMPTY": ""}
    cleaned = clean_env(OUTER, named)
    assert {name: cleaned[name] for name in named} == named


@pytest.mark.parametrize(
    "name",
    [
        "SQUEUE_STATES",
        "SCANCEL_STATE",
        "SACCT_FORMAT",
        "SRUN_DEBUG",
        "SALLOC_PARTITION",
        "SLURMD_NODENAME",
        "PMIX_RANK",
        "PYTHONPATH",
        "PYTHONHOME",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "INGEST_BEARER_TOKEN",
    ],
)
def test_fc_35_variables_that_would_change_an_answer_or_reach_the_job(name: str) -> None:
    assert name not in clean_env({name: "1"})


@pytest.mark.parametrize(
    "name", ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "HF_TOKEN", "ENROOT_DATA_PATH"]
)
def test_what_chooses_the_cluster_is_kept(name: str) -> None:
    assert clean_env({name: "1"}) == {name: "1"}


def test_fc_35_every_command_gets_the_clean_environment() -> None:
    clock = FakeClock()
    runner = FakeRunner(
        sbatch=[said("4711\n")],
        squeue=[said(row(4711, "RUNNING", name="j"))],
        scancel=[said()],
        scontrol=[said()],
    )
    slurm = CliSlurm(runner, clock, env=OUTER)
    job = slurm.submit(
        Submission("s.sh", "j", ("--job-name=j", "--partition=batch"), {"NOTE": 'a=b "c" $HOME'})
    )
    slurm.info([job])
    slurm.node_address("gb-a01")
    slurm.cancel(job)
    assert job == JobId(4711)
    for env in runner.envs:
        assert "SLURM_JOB_ID" not in env
        assert "SBATCH_PARTITION" not in env
        assert env["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert runner.envs[0]["NOTE"] == 'a=b "c" $HOME'
    assert all("NOTE" not in env for env in runner.envs[1:])
    assert set(runner.timeouts) == {30.0}
