"""perf-eval's site hooks: a server command in place of ours, a launcher in place of our sbatch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from plugin.project import Project, Run, leftovers

from pytest_gpubench.mock import MockCluster

RECIPE = """
name: site
gpu: SITE
num_nodes: %(nodes)d
gpus_per_node: 4
vllm: {model: org/tiny, env: {TOKENS: "a b"}, serve_args: "-tp %(tp)d --max-model-len 256"}
search_space:
  - {isl: 32, osl: 16, num_prompts: 8, points: [{conc: [2, 4]}]}
"""
PROFILE = """
SITE:
  runtime: slurm
  env: {%(hook)s: %(value)s, PERF_EVAL_SLURM_GRES: "gpu:b300:4", PERF_EVAL_SLURM_TIME: "00:30:00"}
"""
LAUNCHER = """\
#!/usr/bin/env bash
set -eu
echo "site launcher for $PERF_EVAL_MODEL on $PERF_EVAL_NUM_NODES x $PERF_EVAL_GPUS_PER_NODE GPUs"
env | grep -E '^(PERF_EVAL|GPUBENCH)_' | sort >"$PERF_EVAL_RESULTS_DIR/seen.txt"
cat >"$PERF_EVAL_RESULTS_DIR/site.sh" <<EOF
#!/usr/bin/env bash
{
  printf 'VLLM_SERVER_HOST=127.0.0.1\\n'
  printf 'VLLM_SERVER_PORT=%q\\n' "$PERF_EVAL_PORT"
  printf 'VLLM_BASE_URL=%q\\n' "http://127.0.0.1:$PERF_EVAL_PORT"
  printf 'VLLM_SLURM_LOG_FILE=%q\\n' "$PERF_EVAL_RESULTS_DIR/site.log"
} >"$PERF_EVAL_ENDPOINT_FILE.tmp"
mv "$PERF_EVAL_ENDPOINT_FILE.tmp" "$PERF_EVAL_ENDPOINT_FILE"
exec srun --ntasks 1 vllm serve $PERF_EVAL_MODEL --host 0.0.0.0 --port $PERF_EVAL_PORT $PERF_EVAL_SERVE_ARGS
EOF
sbatch --job-name "$PERF_EVAL_SLURM_JOB_NAME" --nodes "$PERF_EVAL_NUM_NODES" --gres "$PERF_EVAL_SLURM_GRES" \\
  --time "$PERF_EVAL_SLURM_TIME" --output "$PERF_EVAL_RESULTS_DIR/site.log" "$PERF_EVAL_RESULTS_DIR/site.sh"
"""


def prepare(project: Project, hook: str, value: str, *, nodes: int = 1) -> None:
    project.write("workloads/site.yaml", RECIPE % {"nodes": nodes, "tp": nodes})
    project.write(
        "workloads/gpu_profiles.yaml",
        PROFILE % {"hook": f"PERF_EVAL_SLURM_{hook}", "value": json.dumps(value)},
    )


def launch(project: Project, text: str, *arguments: str, cluster: MockCluster | None = None) -> Run:
    """Run pytest with ``text`` as the site's launcher, given by a path relative to the checkout."""
    prepare(project, "LAUNCHER", "site/launch.sh --quiet")
    script = project.write("site/launch.sh", "")
    script.write_text(text)
    script.chmod(0o755)
    if cluster is not None:
        return project.run("--workload=site", *arguments, env=project.env(cluster.env()))
    with project.cluster() as own:
        return launch(project, text, *arguments, cluster=own)


def seen(run: Run) -> dict[str, str]:
    lines = (run.results / "site" / "tp1" / "seen.txt").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_launcher_submits_and_its_endpoint_is_measured(project: Project) -> None:
    with project.cluster() as cluster:
        run = launch(project, LAUNCHER, cluster=cluster)
        assert run.code == 0, run.out
        (job,) = cluster.jobs()
        assert job.state == "CANCELLED"
        submitted = [call.argv for call in cluster.calls() if call.argv[0] == "sbatch"]
        assert len(submitted) == 1
    row = run.row("site", "tp1-32x16-conc4")
    assert (row["status"], row["job_id"], row["completed"]) == ("passed", str(job.id), 8)
    found = seen(run)
    assert found["PERF_EVAL_MODEL"] == "org/tiny"
    assert found["PERF_EVAL_SERVE_ARGS"] == "-tp 1 --max-model-len 256"
    assert (found["PERF_EVAL_NUM_NODES"], found["PERF_EVAL_GPUS_PER_NODE"]) == ("1", "4")
    assert found["PERF_EVAL_SLURM_JOB_NAME"].startswith("gpubench-site-")
    assert json.loads(found["GPUBENCH_PARALLEL"])["tp"] == 1
    assert json.loads(found["GPUBENCH_SOURCE"]) == {}
    env_file = Path(found["PERF_EVAL_ENV_FILE"])
    assert "TOKENS=a b\n" in env_file.read_text()
    assert env_file.stat().st_mode & 0o077 == 0
    assert leftovers(run) == []


def test_the_job_of_a_launcher_that_dies_is_an_error_with_its_log(project: Project) -> None:
    dies = LAUNCHER.replace("exec srun", "echo no licence left; exit 3; exec srun")
    run = launch(project, dies)
    assert run.code == 1
    row = run.row("site", "tp1-32x16-conc2")
    assert (row["status"], row["reason"]) == ("error", "job_ended")
    assert "no licence left" in run.out


@pytest.mark.parametrize(
    ("text", "reason", "says"),
    [
        ("#!/bin/sh\necho broken >&2\nexit 7\n", "submit_refused", "exit 7: broken"),
        ("#!/bin/sh\necho queued it, promise\n", "submit_unclear", "printed no job id"),
    ],
)
def test_a_launcher_without_a_job_is_an_infrastructure_error(
    project: Project, text: str, reason: str, says: str
) -> None:
    run = launch(project, text, "-k", "conc2")
    assert run.code == 1
    assert run.row("site", "tp1-32x16-conc2")["reason"] == reason
    assert says in run.out


def test_a_job_whose_id_the_launcher_kept_to_itself_is_found_by_its_name(project: Project) -> None:
    silent = LAUNCHER.replace("sbatch --job-name", ": $(sbatch --job-name").rstrip() + ")\n"
    run = launch(project, silent, "-k", "conc2")
    assert run.code == 0, run.out


def test_a_dry_run_shows_the_launcher(project: Project) -> None:
    run = launch(project, LAUNCHER, "--gpubench-dry-run")
    plan = run.plan("site", "tp1-32x16-conc4")
    assert plan["sbatch_argv"][-2:] == ["site/launch.sh", "--quiet"]
    assert (plan["serve_argv"], plan["srun_argv"], plan["servable"]) == (None, [], True)
    assert plan["bench_argv"][:3] == ["vllm", "bench", "serve"]


def test_a_server_command_replaces_the_ranks_command(project: Project) -> None:
    command = (
        'env | grep ^PERF_EVAL_ | sort >seen-$PERF_EVAL_NODE_RANK.txt; test "$PERF_EVAL_NUM_NODES" = 2; '
        'test "$1 $2 $3" = "vllm serve $PERF_EVAL_MODEL" && exec "$@"'
    )
    prepare(project, "SERVER_COMMAND", command, nodes=2)
    with project.cluster() as cluster:
        run = project.run("--workload=site", "-k", "conc2", env=project.env(cluster.env()))
    assert run.code == 0, run.out
    texts = [
        path.read_text() for path in sorted(project.folder.rglob("seen-*.txt"), key=lambda path: path.name)
    ]
    assert len(texts) == 2
    for rank, text in enumerate(texts):
        found = dict(line.split("=", 1) for line in text.splitlines())
        assert found["PERF_EVAL_NODE_RANK"] == str(rank)
        assert found["PERF_EVAL_MASTER_ADDR"] == "127.0.0.1"
        assert found["PERF_EVAL_SERVE_ARGS"] == "-tp 2 --max-model-len 256"
        assert found["PERF_EVAL_PORT"].isdigit()
        assert os.path.isabs(found["PERF_EVAL_SLURM_SERVER_COMMAND"]) is False
