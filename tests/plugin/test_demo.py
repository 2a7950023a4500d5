"""The demo of the README, looked at from outside: its row, its plan, its files, its processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .project import REPOSITORY, Project, Run, leftovers

STEM = "deepseek_v4_flash_gb300_slurm"
POINT = "tp2-dp4-ep-1k-in-1k-out-conc-64"
PINNED = {
    "recipe", "point", "deployment", "scenario", "framework", "servable", "model", "model_path", "image",
    "vllm_commit", "runtime", "env", "serve_argv", "bench_argv", "num_nodes", "gpus_per_node", "gpu_count",
    "isl", "osl", "concurrency", "num_prompts", "repetitions", "metadata", "parallel", "prefill", "decode",
    "sbatch_argv", "srun_argv", "markers",
}  # fmt: skip
RUN_TIME = ("--master-addr", "--master-port", "--port", "--data-parallel-rpc-port", "--nodelist")
"""Options whose values are known only once the job runs."""


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return demo(tmp_path_factory.mktemp("dry"), "--gpubench-dry-run")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return demo(tmp_path_factory.mktemp("real"), "--mock-slurm")


def demo(folder: Path, *options: str) -> Run:
    project = Project(folder / "unused")
    results = folder / "results"
    run = project.run("--workload", STEM, f"--gpubench-results={results}", *options, cwd=REPOSITORY)
    run.results = results
    return run


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


# -- the run -----------------------------------------------------------------------------------------


def test_it_passes_with_the_row_that_the_recipe_asks_for(real: Run) -> None:
    assert real.code == 0, real.out
    (row,) = real.rows.values()
    assert (row["status"], row["reason"], row["violations"]) == ("passed", None, [])
    assert (row["num_nodes"], row["gpus_per_node"], row["gpu_count"]) == (2, 4, 8)
    assert (row["num_prompts"], row["completed"], row["failed"]) == (128, 128, 0)
    assert row["total_output_tokens"] == row["expected_output_tokens"] == 131_072
    assert row["simulated"] is True
    raw = json.loads((real.results / STEM / POINT / "bench.json").read_text())
    assert row["tput_per_gpu"] == pytest.approx(raw["total_token_throughput"] / 8, rel=1e-12)
    assert row["output_tput_per_gpu"] == pytest.approx(raw["output_throughput"] / 8, rel=1e-12)
    assert json.loads((real.results / STEM / POINT / "row.json").read_text()) == row


def test_scripts_commands_and_logs_are_kept(real: Run) -> None:
    folder = real.results / STEM
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        *(f"{POINT}/{name}" for name in ("plan.json", "bench.json", "row.json", "commands.txt")),
        *(f"tp2-dp4-ep/{name}" for name in ("job.sbatch", "rank-0.log", "rank-1.log", "client.log")),
    } <= kept


def test_the_submitted_command_asks_for_what_the_profile_says(real: Run) -> None:
    text = (real.results / STEM / POINT / "commands.txt").read_text()
    script = (real.results / STEM / "tp2-dp4-ep" / "job.sbatch").read_text()
    for words in ("--gres gpu:b300:4", "--partition batch", "--exclusive", "--time 03:00:00"):
        assert words in text
    assert "vllm/vllm-openai" in script
    for words in ("--nnodes 2", "--node-rank 0", "--node-rank 1", "--gres gpu:b300:4"):
        assert words in script
    assert script.count("--headless") == 1


def test_the_terminal_shows_progress_and_a_table(real: Run) -> None:
    assert "mocked Slurm, simulated vLLM" in real.out
    assert f"workloads/{STEM}.yaml" in real.out
    table = real.out.split("= gpubench (simulated) =")[1]
    assert POINT in table
    assert "tok/s/GPU" in table
    assert f"rows: {real.results}/ingest.json" in table


def test_junit_has_flat_properties_under_a_stable_name(real: Run) -> None:
    ((name, case),) = real.cases().items()
    assert name == f"workloads.{STEM}.yaml::test_serving[{POINT}]"
    (row,) = real.rows.values()
    found = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    assert found["gpubench_tput_per_gpu"] == str(row["tput_per_gpu"])
    assert found["gpubench_status"] == "passed"
    assert found["gpubench_simulated"] == "True"
    # The time of the call alone: waiting for nodes and loading are no part of the measurement.
    assert float(str(case.get("time"))) < row["phase_seconds"]["bench"] + 2.0


def test_no_process_is_left(real: Run) -> None:
    assert leftovers(real) == []


# -- the dry run -------------------------------------------------------------------------------------


def test_a_dry_run_skips_and_writes_no_row(dry: Run) -> None:
    assert dry.code == 0
    assert dry.outcomes() == {f"test_serving[{POINT}]": "skipped"}
    assert "dry run" in dry.out
    assert not (dry.results / "ingest.json").exists()
    assert not list(dry.results.rglob("row.json"))
    assert not list(dry.results.rglob("*.log"))


def test_a_dry_run_shows_and_keeps_script_and_commands(dry: Run) -> None:
    kept = (dry.results / STEM / POINT / "commands.txt").read_text()
    for line in kept.splitlines():
        assert line in dry.out
    assert "sbatch --parsable" in kept
    assert "vllm bench serve" in kept
    assert (dry.results / STEM / "tp2-dp4-ep" / "job.sbatch").read_text().startswith("#!")


def test_the_plan_has_every_pinned_key(dry: Run) -> None:
    plan = dry.plan(STEM, POINT)
    assert set(plan) >= PINNED
    assert set(plan["metadata"]) == {
        "device", "precision", "tp", "dp", "ep", "is_multinode", "dp_attention", "disagg", "spec_decoding",
    }  # fmt: skip
    assert set(plan["parallel"]) == {"tp", "pp", "dp", "ep", "pcp", "dcp"}
    assert plan["markers"] == ["gpubench", "gb300", "slurm", "multinode"]
    assert (plan["isl"], plan["osl"], plan["concurrency"], plan["num_prompts"]) == (1024, 1024, 64, 128)
    assert plan["servable"] is True
    assert [argv.count("--headless") for argv in plan["rank_argv"]] == [0, 1]


def test_dry_and_real_run_plan_the_same(dry: Run, real: Run) -> None:
    planned, done = dry.plan(STEM, POINT), real.plan(STEM, POINT)
    assert set(planned) == set(done)

    def constant(value: Any, results: Path) -> Any:
        if isinstance(value, dict):
            return {key: constant(item, results) for key, item in value.items()}
        if isinstance(value, list):
            words = [constant(item, results) for item in value]
            for index in range(1, len(words)):
                if words[index - 1] in (*RUN_TIME, "--base-url", "--job-name"):
                    words[index] = "RUN TIME"
            return words
        return value.replace(str(results), "RESULTS") if isinstance(value, str) else value

    assert constant(planned, dry.results) == constant(done, real.results)
    assert "${" not in json.dumps({key: done[key] for key in ("serve_argv", "bench_argv", "rank_argv")})


def test_the_plan_is_what_the_processes_receive(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    serve = ["--max-model-len", "256", "--served-model-name", "Team Model", "--speculative-config"]
    serve.append(json.dumps({"method": "mtp", "num_speculative_tokens": 2, "note": "a 'b' \"c\" $HOME #x"}))
    text = f"""
    name: hops
    gpu: SITE
    num_nodes: 2
    gpus_per_node: 4
    vllm: {{model: org/tiny, serve_args: {json.dumps(serve)}}}
    search_space:
      - {{isl: 32, osl: 16, num_prompts: 8, points: [{{tp: 2, conc: [4]}}]}}
    """
    project.write("workloads/hops.yaml", text)
    project.write(
        "workloads/gpu_profiles.yaml",
        f"""
        SITE:
          platform: gb300
          runtime: slurm
          slurm: {{partition: batch, gres: "gpu:b300:4"}}
          container: {{runtime: pyxis, mounts: ["{tmp_path}:{tmp_path}"]}}
        """,
    )
    with project.cluster() as cluster:
        run = project.run("-m", "gb300", "--workload=hops", env=project.env(cluster.env()))
        assert run.code == 0, run.out
        calls = [list(call.argv) for call in cluster.calls()]
    plan = run.plan("hops", "tp2-32x16-conc4")
    assert plan["serve_argv"] in calls
    assert plan["bench_argv"] in calls
    for argv in plan["rank_argv"]:
        assert argv in calls
        assert json.loads(option(argv, "--speculative-config"))["note"] == "a 'b' \"c\" $HOME #x"
        assert option(argv, "--served-model-name") == "Team Model"
    assert plan["sbatch_argv"] in calls
    for argv in plan["srun_argv"]:
        assert option(argv, "--container-workdir") == str(project.folder)
        assert argv in calls
