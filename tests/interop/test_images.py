"""Where the image comes from, and that it is imported once: the mocked Slurm with a stand-in for Enroot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from plugin.project import Project, Run, recipe_text

from pytest_gpubench.mock import Call, ImportFails, MockCluster

REGISTRY = "registry.example.com:5050#team/vllm:v1"
ENROOT = """#!/usr/bin/env bash
echo "$*" >>"%(log)s"
mkdir "%(log)s.busy" || exit 9
sleep 0.3
rmdir "%(log)s.busy"
echo squashfs >"$3"
"""


def with_image(project: Project, image: str, name: str = "img", *, nodes: int = 1) -> None:
    text = recipe_text(name, "[2, 4]", nodes=nodes).replace(
        "model: org/tiny", f"model: org/tiny, image: '{image}'"
    )
    project.write(f"workloads/{name}.yaml", text)


def enroot(project: Project, text: str = ENROOT) -> Path:
    """A stand-in for Enroot on PATH; the file that it logs its arguments to."""
    log = project.folder / "enroot.log"
    path = project.write("site-bin/enroot", "")
    path.write_text(text % {"log": log} if text is ENROOT else text)
    path.chmod(0o755)
    return log


def run_on(project: Project, cluster: MockCluster, *arguments: str) -> Run:
    env = project.env(cluster.env())
    env["PATH"] = f"{project.folder / 'site-bin'}:{env['PATH']}"
    return project.run(*arguments, env=env)


def images_of(calls: Iterable[Call]) -> list[str]:
    """What every step was told to start from."""
    argvs = [call.argv for call in calls if call.argv[0] == "srun"]
    return [argv[argv.index("--container-image") + 1] for argv in argvs if "--container-image" in argv]


@pytest.mark.parametrize(
    ("image", "step"),
    [
        (REGISTRY, REGISTRY),
        ("registry.example.com:5050/team/vllm:v1", REGISTRY),
        ("docker://registry.example.com/team/vllm", "docker://registry.example.com#team/vllm"),
        (f"team/vllm@sha256:{'a' * 64}", f"team/vllm@sha256:{'a' * 64}"),
        ("/images/vllm.sqsh", "/images/vllm.sqsh"),
        ("vllm.sqsh", "./vllm.sqsh"),
    ],
)
def test_every_form_reaches_the_steps_whole(project: Project, image: str, step: str) -> None:
    with_image(project, image)
    run = project.run("--workload=img", "--gpubench-dry-run", "-k", "conc2")
    assert run.code == 0, run.out
    plan = run.plan("img", "tp1-32x16-conc2")
    (argv,) = plan["srun_argv"]
    assert argv[argv.index("--container-image") + 1] == step
    assert "\n#SBATCH" not in (run.results / "img" / "tp1" / "job.sbatch").read_text()


def test_a_sharp_survives_sbatch_and_srun(project: Project) -> None:
    with_image(project, REGISTRY)
    with project.cluster() as cluster:
        run = project.run("--workload=img", env=project.env(cluster.env()))
        found = images_of(cluster.calls())
    assert run.code == 0, run.out
    assert set(found) == {REGISTRY}
    assert run.row("img", "tp1-32x16-conc4")["image"] == REGISTRY


def test_a_registry_image_is_imported_once_per_job(project: Project) -> None:
    log = enroot(project)
    with_image(project, REGISTRY, nodes=2)
    with project.cluster() as cluster:
        run = run_on(project, cluster, "--workload=img")
        found = images_of(cluster.calls())
    assert run.code == 0, run.out
    (line,) = log.read_text().splitlines()
    assert line.startswith("import --output ")
    assert line.endswith(f" docker://{REGISTRY}")
    # Two ranks and four client runs, all from the one file; it is gone with the job.
    assert len(found) == 6
    (file,) = set(found)
    assert file.endswith("/image.sqsh")
    assert not Path(file).exists()
    assert run.row("img", "tp2-32x16-conc4")["image"] == REGISTRY


def test_jobs_at_the_same_time_import_one_after_the_other(project: Project) -> None:
    log = enroot(project)
    for name in ("one", "two"):
        with_image(project, REGISTRY, name)
    with project.cluster() as cluster:
        run = run_on(project, cluster, "--workload=one,two", "-n", "2", "-k", "conc2")
    assert run.code == 0, run.out
    assert len(log.read_text().splitlines()) == 2


def test_nodes_that_are_handed_over_keep_the_image(project: Project) -> None:
    log = enroot(project)
    profiles = (project.workloads / "gpu_profiles.yaml").read_text()
    reuse = profiles.replace("exclusive: true", "exclusive: true, reuse_allocation: true")
    (project.workloads / "gpu_profiles.yaml").write_text(reuse)
    with_image(project, REGISTRY)
    recipe = project.workloads / "img.yaml"
    more = "  - {isl: 32, osl: 16, num_prompts: 4, points: [{tp: 2, conc: 2}]}\n"
    recipe.write_text(recipe.read_text() + more)
    with project.cluster() as cluster:
        run = run_on(project, cluster, "--workload=img", "-k", "conc2")
        jobs = cluster.jobs()
    assert run.code == 0, run.out
    assert len(run.rows) == 2
    assert (len(jobs), len(log.read_text().splitlines())) == (1, 1)


def test_an_import_that_fails_is_told_within_seconds(project: Project) -> None:
    enroot(project, "#!/bin/sh\necho '[ERROR] Could not process JSON input' >&2\nexit 1\n")
    with_image(project, REGISTRY)
    with project.cluster() as cluster:
        run = run_on(project, cluster, "--workload=img", "-k", "conc2")
    assert run.code == 1
    row = run.row("img", "tp1-32x16-conc2")
    assert (row["status"], row["reason"]) == ("error", "import_failed")
    assert "the image could not be imported: [ERROR] Could not process JSON input" in run.out


def test_a_sqsh_that_is_missing_on_a_node_names_file_and_node(project: Project) -> None:
    with_image(project, "/images/vllm.sqsh", nodes=2)
    text = "[ERROR] No such file or directory: /images/vllm.sqsh"
    with project.cluster(ImportFails(text, rank=1)) as cluster:
        run = project.run("--workload=img", "-k", "conc2", env=project.env(cluster.env()))
    assert run.code == 1
    assert run.row("img", "tp2-32x16-conc2")["reason"] == "import_failed"
    assert "rank-1 on gb300-02: the container image could not be started" in run.out
    assert text in run.out


def test_a_rack_without_registry_refuses_other_images_at_collection(project: Project) -> None:
    profiles = (project.workloads / "gpu_profiles.yaml").read_text()
    local = profiles.replace("  platform: gb300\n", "  platform: gb300\n  local_images_only: true\n")
    (project.workloads / "gpu_profiles.yaml").write_text(local)
    with_image(project, "vllm/vllm-openai:v1")
    run = project.run("--workload=img", "--mock-slurm")
    assert run.code == pytest.ExitCode.INTERRUPTED
    assert "vllm.image: profile GB300_SLURM allows .sqsh files only" in run.out
    assert "(got 'vllm/vllm-openai:v1')" in run.out
    env = project.env()
    env["VLLM_IMAGE"] = "/images/vllm.sqsh"
    assert project.run("--workload=img", "--collect-only", env=env).code == 0


@pytest.fixture
def team_only(project: Project) -> Project:
    profiles = (project.workloads / "gpu_profiles.yaml").read_text()
    allowed = profiles.replace("  platform: gb300\n", "  platform: gb300\n  allowed_images: [team/*]\n")
    (project.workloads / "gpu_profiles.yaml").write_text(allowed)
    with_image(project, "vllm/vllm-openai:v1", "first")
    with_image(project, "team/vllm:v1", "second")
    with_image(project, "other/vllm:v2", "third")
    return project


def test_one_warning_names_all_recipes_with_other_images(team_only: Project) -> None:
    run = team_only.run("--workload=first,second,third", "--gpubench-dry-run", "-W", "error")
    assert run.code == 0, run.out
    assert "2 recipes use images that profile GB300_SLURM does not allow (allowed_images: team/*):" in run.out
    assert f"{team_only.workloads}/first.yaml:5:32: vllm.image: vllm/vllm-openai:v1" in run.out
    assert f"{team_only.workloads}/third.yaml:5:32: vllm.image: other/vllm:v2" in run.out
    assert "second.yaml: vllm.image" not in run.out
    assert run.out.count("does not allow") == 1


def test_the_warning_comes_once_under_xdist(team_only: Project) -> None:
    run = team_only.run("--workload=first,second,third", "--gpubench-dry-run", "-n", "2")
    assert run.code == 0, run.out
    assert run.out.count("does not allow") == 1


def test_under_nightly_it_is_an_error(team_only: Project) -> None:
    env = {**team_only.env(), "NIGHTLY": "1"}
    run = team_only.run("--workload=first,second,third", "--gpubench-dry-run", env=env)
    assert run.code == pytest.ExitCode.INTERRUPTED
    for name, image in (("first", "vllm/vllm-openai:v1"), ("third", "other/vllm:v2")):
        assert f"{name}.yaml:5:32: vllm.image: the image '{image}' matches none of the patterns" in run.out
    assert "does not allow" not in run.out
