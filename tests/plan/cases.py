"""Deployments for the golden files: one per shape of generated script."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpubench.plan.launch import LaunchPlan, Site
from pytest_gpubench.plan.local import plan_local
from pytest_gpubench.plan.slurm import plan_slurm
from pytest_gpubench.recipe.types import (
    ContainerSettings,
    Deployment,
    Parallel,
    Profile,
    Role,
    RouterSettings,
    SlurmSettings,
)

PROFILE = Profile(
    name="GB300_SLURM",
    platform="gb300",
    env=(("VLLM_DEEP_GEMM_WARMUP", "skip"),),
    slurm=SlurmSettings(partition="batch", gres="gpu:b300:4", exclusive=True, time="03:00:00"),
    container=ContainerSettings(
        runtime="pyxis", mounts=("/home/bench:/nfs_home", "/raid/users/bench:/local_scratch")
    ),
)
TWO_NODES = Deployment(
    recipe="deepseek",
    id="tp2-dp4-ep",
    model="deepseek-ai/DeepSeek-V4-Flash",
    model_path="deepseek-ai/DeepSeek-V4-Flash",
    image="/home/bench/containers/vllm.sqsh",
    vllm_commit=None,
    profile=PROFILE,
    runtime="slurm",
    num_nodes=2,
    gpus_per_node=4,
    gpu_count=8,
    parallel=Parallel(tp=2, dp=4, ep=8),
    serve_args=(
        "--tensor-parallel-size", "2", "--data-parallel-size", "4", "--enable-expert-parallel",
        "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}',
    ),
    env=(("VLLM_DEEP_GEMM_WARMUP", "skip"), ("HF_HOME", "/local_scratch/hf-models")),
)  # fmt: skip
ONE_NODE = replace(
    TWO_NODES,
    id="tp4",
    num_nodes=1,
    gpu_count=4,
    parallel=Parallel(tp=4),
    serve_args=("--tensor-parallel-size", "4"),
)
SITE = Site(
    folder="/home/bench/checkout/results/deepseek/tp2-dp4-ep",
    checkout="/home/bench/checkout",
    job_name="gpubench-deepseek-r1-1-1",
    pyxis=True,
    caller_env={"HF_TOKEN": "never-written"},
)


def _with(**changes: object) -> Deployment:
    slurm = replace(PROFILE.slurm, **changes)  # type: ignore[arg-type]
    return replace(TWO_NODES, profile=replace(PROFILE, slurm=slurm))


DISAGGREGATED = replace(
    TWO_NODES,
    id="1p-tp4-1d-tp4",
    prefill=Role("prefill", 1, Parallel(tp=4), 1, ("--max-num-seqs", "64"), (("ROLE_NOTE", "it's $HOME"),)),
    decode=Role("decode", 1, Parallel(tp=4), 1),
    router=RouterSettings(),
    kv_transfer='{"kv_connector": "NixlConnector"}',
    serve_args=("--tensor-parallel-size", "4"),
)

CASES: dict[str, LaunchPlan] = {
    "one-node": plan_slurm(ONE_NODE, SITE),
    "two-nodes": plan_slurm(TWO_NODES, SITE),
    "no-container": plan_slurm(TWO_NODES, replace(SITE, pyxis=False)),
    "account-qos-reservation": plan_slurm(_with(account="perf", qos="high", reservation="rack7"), SITE),
    "extra-args": plan_slurm(
        _with(
            extra_sbatch_args=("--comment", "it's a # $(touch /tmp/x)", "--exclusive"),
            extra_srun_args=("--cpu-bind=none",),
            mpi="pmix",
            segment=2,
        ),
        SITE,
    ),
    "hostile-text": plan_slurm(
        replace(TWO_NODES, serve_args=("; touch /tmp/x", "$(id)", "`id`", "a'b\"c", "new\nline")), SITE
    ),
    "staged-model": plan_slurm(
        replace(ONE_NODE, model_path="/scratch/models/DeepSeek V4", check_model_path=True), SITE
    ),
    "preferred-model": plan_slurm(replace(TWO_NODES, preferred_path="/scratch/models/V4"), SITE),
    "server-command": plan_slurm(_with(server_command='/site/wrap --model "$PERF_EVAL_MODEL" -- "$@"'), SITE),
    "registry-image": plan_slurm(
        replace(
            ONE_NODE, image="registry.example.com:5050/team/vllm:v1", preferred_path="/scratch/models/V4"
        ),
        SITE,
    ),
    "docker": plan_local(replace(ONE_NODE, runtime="docker"), SITE),
    "native": plan_local(replace(ONE_NODE, runtime="native", image=None), SITE),
    "outside-the-mounts": plan_slurm(TWO_NODES, replace(SITE, folder="/data/r/deepseek/x", checkout="/data")),
    "disaggregated": plan_slurm(DISAGGREGATED, SITE),
}
