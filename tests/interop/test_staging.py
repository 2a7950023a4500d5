"""Where the model comes from, on the mocked Slurm: staged on every node, or the hub."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plugin.project import Project, Run

RECIPE = """
name: staged
gpu: RACK
num_nodes: 2
gpus_per_node: 4
%(more)s
vllm: {model: org/Tiny-Model, serve_args: "-tp 2 --max-model-len 256"}
search_space:
  - {isl: 32, osl: 16, num_prompts: 4, points: [{conc: 2}]}
"""
# The nodes of the mocked cluster share one disk: on the second one, bash itself does not find the model.
LACKS = """
case "${SLURMD_NODENAME-}" in
  gb300-02)
    lacking() { case "$*" in *-e*Tiny-Model*) return 0 ;; esac; return 1; }
    [() { if lacking "$@"; then builtin [ "$1" = "!" ]; else builtin [ "$@"; fi; }
    test() { if lacking "$@"; then builtin test "$1" = "!"; else builtin test "$@"; fi; }
    ;;
esac
"""
POINT = "tp2-32x16-conc2"


def prepare(project: Project, staged: str, *, more: str = "", models: str = "", lacks: bool = False) -> None:
    """A profile that stages models below ``/scratch/models`` (a mount), and keeps ranks' environments."""
    stored = project.folder / "disk" / "Tiny-Model"
    stored.mkdir(parents=True)
    profile: dict[str, Any] = {
        "runtime": "slurm",
        "hf_home": "/local/hf",
        "env": {
            "HF_HUB_CACHE": "/local/hub",
            "PERF_EVAL_SLURM_SERVER_COMMAND": 'env >"$KEPT/env-$GPUBENCH_RANK"; '
            'printf "%s\\n" "$@" >"$KEPT/argv-$GPUBENCH_RANK"; exec "$@"',
            "KEPT": str(project.folder),
        },
        "slurm": {"partition": "batch", "gres": "gpu:b300:4", "time": "00:30:00"},
        "container": {"runtime": "pyxis", "mounts": [f"{project.folder}/disk:/scratch/models"]},
        "models": {"root": "/scratch/models", "staged": staged} | json.loads(models or "{}"),
    }
    if lacks:
        script = project.write("lacks.sh", LACKS)
        profile["env"]["BASH_ENV"] = str(script)
    project.write("workloads/gpu_profiles.yaml", json.dumps({"RACK": profile}))
    project.write("workloads/staged.yaml", RECIPE % {"more": more})


def run_it(project: Project, *arguments: str) -> Run:
    with project.cluster() as cluster:
        return project.run("--workload=staged", *arguments, env=project.env(cluster.env()))


def environment(project: Project, rank: int) -> dict[str, str]:
    lines = (project.folder / f"env-{rank}").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def command(project: Project, rank: int) -> list[str]:
    return (project.folder / f"argv-{rank}").read_text().splitlines()


def test_required_serves_the_path_offline_under_the_hub_id(project: Project) -> None:
    prepare(project, "required")
    run = run_it(project)
    assert run.code == 0, run.out
    stored = f"{project.folder}/disk/Tiny-Model"  # /scratch/models of the container
    for rank in (0, 1):
        assert command(project, rank)[:3] == ["vllm", "serve", stored]
        env = environment(project, rank)
        assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"]) == ("1", "1")
        assert (env["HF_HUB_CACHE"], env["HF_HOME"]) == ("/local/hub", "/local/hf")
        argv = command(project, rank)
        assert argv[argv.index("--served-model-name") + 1] == "org/Tiny-Model"
    row = run.row("staged", POINT)
    assert (row["status"], row["model"]) == ("passed", "org/Tiny-Model")
    raw = json.loads((run.results / "staged" / POINT / "bench.json").read_text())
    assert raw["model_id"] == "org/Tiny-Model"
    plan = run.plan("staged", POINT)
    assert (plan["model"], plan["model_path"]) == ("org/Tiny-Model", "/scratch/models/Tiny-Model")
    bench = plan["bench_argv"]
    assert bench[bench.index("--tokenizer") + 1] == "/scratch/models/Tiny-Model"


def test_required_but_missing_on_a_node_names_node_and_path(project: Project) -> None:
    prepare(project, "required", lacks=True)
    run = run_it(project)
    assert run.code == 1
    row = run.row("staged", POINT)
    assert (row["status"], row["reason"]) == ("error", "model_not_staged")
    assert f"model path {project.folder}/disk/Tiny-Model is missing on node gb300-02 (rank-1)" in run.out
    assert not (project.folder / "argv-1").exists()  # vLLM was never started there


def test_preferred_takes_the_path_where_every_node_has_it(project: Project) -> None:
    prepare(project, "preferred")
    run = run_it(project)
    assert run.code == 0, run.out
    for rank in (0, 1):
        argv = command(project, rank)
        assert argv[2].endswith("/Tiny-Model")
        assert argv[2].startswith("/")
        assert argv[argv.index("--served-model-name") + 1] == "org/Tiny-Model"
        assert "HF_HUB_OFFLINE" not in environment(project, rank)
    assert run.row("staged", POINT)["model"] == "org/Tiny-Model"


def test_preferred_takes_the_hub_id_on_all_nodes_when_one_lacks_it(project: Project) -> None:
    prepare(project, "preferred", lacks=True)
    run = run_it(project)
    assert run.code == 0, run.out
    for rank in (0, 1):
        assert command(project, rank)[2] == "org/Tiny-Model"
    assert run.row("staged", POINT)["model"] == "org/Tiny-Model"


def test_a_scenario_that_is_not_listed_keeps_its_download(project: Project) -> None:
    prepare(project, "required", more="scenario: agentic-coding")
    run = project.run("--workload=staged", "--gpubench-dry-run")
    assert run.code == 0, run.out
    (path,) = (run.results / "staged").glob("*/plan.json")
    plan = json.loads(path.read_text())
    assert plan["model_path"] == "org/Tiny-Model"
    assert "HF_HUB_OFFLINE" not in plan["env"]


@pytest.mark.parametrize(
    ("models", "path"),
    [
        ('{"paths": {"org/Tiny-Model": "/raid/t"}}', "/raid/t"),
        ('{"paths": {"org/Other": "/raid/o"}}', "/scratch/models/Tiny-Model"),
        ('{"scenarios": ["agentic-coding"]}', "org/Tiny-Model"),
        ('{"staged": "off"}', "org/Tiny-Model"),
    ],
)
def test_explicit_paths_win_over_the_root(project: Project, models: str, path: str) -> None:
    prepare(project, "required", models=models)
    run = project.run("--workload=staged", "--gpubench-dry-run")
    plan = run.plan("staged", POINT)
    assert plan["model_path"] == path
    assert plan["serve_argv"][2] == path


def test_required_without_a_place_is_a_collection_error(project: Project) -> None:
    prepare(project, "required", models='{"root": null}')
    run = project.run("--workload=staged", "--collect-only")
    assert run.code == pytest.ExitCode.INTERRUPTED
    assert "models.staged is required, but models has no root and no path for 'org/Tiny-Model'" in run.out
