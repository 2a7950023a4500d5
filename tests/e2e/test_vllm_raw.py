"""The pieces without the product: a real vLLM over two nodes of a real Slurm job, and a client beside it."""

from __future__ import annotations

import json
import shlex
import time
import urllib.error
import urllib.request
from pathlib import Path

from .real_slurm import RealSlurm
from .slurm_conf import free_ports
from .vllm_cpu import SERVE_ARGS, VllmCpu

READY_SECONDS = 300.0
STEP = "srun --overlap --nodes=1 --ntasks=1 --gres=gpu:b300:4"
BATCH = """\
#!/bin/bash
{step} --nodelist=gb300-01 --output={logs}/rank0.log {head} &
{step} --nodelist=gb300-02 --output={logs}/rank1.log {follower} &
wait -n
"""


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_two_nodes_serve_and_a_client_in_the_same_job_measures(
    slurm: RealSlurm, vllm_cpu: VllmCpu, tmp_path: Path
) -> None:
    port, master_port = free_ports(2)
    serve = [str(vllm_cpu.vllm), "serve", str(vllm_cpu.model), *SERVE_ARGS]
    serve += ["--tensor-parallel-size=2", "--distributed-executor-backend=mp", "--nnodes=2"]
    serve += ["--master-addr=127.0.0.1", f"--master-port={master_port}"]
    head = [*serve, "--node-rank=0", "--host=0.0.0.0", f"--port={port}"]
    follower = [*serve, "--node-rank=1", "--headless"]
    script = tmp_path / "batch.sh"
    ranks = {"head": shlex.join(head), "follower": shlex.join(follower)}
    script.write_text(BATCH.format(step=STEP, logs=tmp_path, **ranks))

    submit = ["--parsable", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--gres=gpu:b300:4"]
    env = vllm_cpu.env(slurm.env())
    job = slurm.run(
        "sbatch", *submit, f"--output={tmp_path}/batch.log", str(script), extra_env=env
    ).stdout.strip()
    deadline = time.monotonic() + READY_SECONDS
    while not healthy(port):
        logs = "".join(log.read_text()[-3000:] for log in sorted(tmp_path.glob("*.log")))
        assert slurm.job_state(job) in {"PENDING", "RUNNING"}, logs
        assert time.monotonic() < deadline, logs
        time.sleep(0.5)

    client = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gb300-01"]
    client += ["--container-image=registry/vllm:1", f"--container-mounts={tmp_path}:/nfs_home"]
    client += ["--container-workdir=/nfs_home", "--gres=none"]
    bench = [str(vllm_cpu.vllm), "bench", "serve", "--backend=openai", f"--base-url=http://127.0.0.1:{port}"]
    bench += [f"--model={vllm_cpu.model}", "--dataset-name=random", "--random-input-len=32"]
    bench += ["--random-output-len=16", "--num-prompts=4", "--max-concurrency=4", "--num-warmups=1"]
    bench += ["--ignore-eos", "--save-result", "--result-filename=bench.json"]
    slurm.run(*client, *bench, seconds=240, extra_env=env)

    result = json.loads((tmp_path / "bench.json").read_text())
    assert (result["completed"], result["failed"]) == (4, 0)
    assert result["total_output_tokens"] == 4 * 16
    slurm.run("scancel", job)
    assert slurm.wait_state(job, {"CANCELLED"}, seconds=30) == "CANCELLED"
