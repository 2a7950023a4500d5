"""Containers of steps, as far as a machine without containers can play them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pytest_gpubench.mock import ContainerLocked, ImportFails, ImportSlow, MockCluster

from .jobs import Site

IMAGE = "--container-image=registry.example.com#team/vllm:v1"


def test_paths_below_a_mount_are_found_on_the_host(site: Site) -> None:
    (site.folder / "data.txt").write_text("hello\n")
    job = site.hold()
    mounts = f"--container-mounts={site.folder}:/nfs_home,/nonexistent/raid:/local_scratch:ro+rprivate"
    words = [
        IMAGE,
        mounts,
        "--container-workdir=/nfs_home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
    ]
    script = "pwd; cat /nfs_home/data.txt; echo made > made.txt; "
    script += "echo $MODEL /nfs_home2 --x=/nfs_home/y /local_scratch/z"
    done = site.run(
        "srun",
        f"--jobid={job}",
        "--overlap",
        "-n1",
        "-N1",
        *words,
        "bash",
        "-c",
        script,
        env={"MODEL": "/nfs_home/m"},
    )
    assert done.returncode == 0, done.stderr
    folder = str(site.folder)
    assert done.stdout.splitlines() == [
        folder,
        "hello",
        f"{folder}/m /nfs_home2 --x={folder}/y /local_scratch/z",
    ]
    assert (site.folder / "made.txt").read_text() == "made\n"


def test_a_relative_result_is_lost_without_a_workdir(site: Site) -> None:
    job = site.hold()
    assert site.step(job, IMAGE, "bash", "-c", "echo lost > lost.txt").returncode == 0
    assert not (site.folder / "lost.txt").exists()


@pytest.mark.parametrize("workdir", ["/not/mounted", "/nfs_home/missing"])
def test_a_workdir_that_is_not_there_fails_the_step(site: Site, workdir: str) -> None:
    job = site.hold()
    mounts = f"--container-mounts={site.folder}:/nfs_home"
    done = site.step(job, IMAGE, mounts, f"--container-workdir={workdir}", "true")
    assert done.returncode == 1
    assert f"couldn't chdir to {workdir}: No such file or directory" in done.stderr


def test_the_image_wins_unless_the_variable_is_named(tmp_path: Path) -> None:
    image = {"MAX_FAILURE_RATE": "0.05", "EMPTY": "image"}
    with MockCluster(tmp_path / "cluster", image_env=image) as cluster:
        site = Site(cluster, tmp_path)
        job = site.hold()
        show = ["bash", "-c", 'echo "$MAX_FAILURE_RATE|$EMPTY|$OTHER"']
        words = ["srun", f"--jobid={job}", "--overlap", "-N1", "-n1", IMAGE]
        env = {"MAX_FAILURE_RATE": "0.5", "EMPTY": "", "OTHER": "x"}
        assert site.run(*words, *show, env=env).stdout == "0.05|image|x\n"
        named = "--container-env=MAX_FAILURE_RATE,EMPTY"
        assert site.run(*words, named, *show, env=env).stdout == "0.5||x\n"
        without = site.run("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", *show, env=env)
        assert without.stdout == "0.5||x\n"


def test_commands_of_the_image_come_from_the_cluster(site: Site) -> None:
    """Whatever PATH the job exports, a container has its own."""
    job = site.hold()
    done = site.run(
        "srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "--export=ALL,X=1", IMAGE, "vllm", "--version"
    )
    assert done.stdout == "0.32.0+sim\n"


def test_malformed_options(site: Site) -> None:
    job = site.hold()
    for option, text in (
        ("--container-mounts=results:/out", "absolute paths, got 'results:/out'"),
        ("--container-workdir=here", "an absolute path is wanted"),
    ):
        done = site.step(job, IMAGE, option, "true")
        assert done.returncode == 255
        assert text in done.stderr
    assert "unrecognized option '--container-foo=x'" in site.step(job, "--container-foo=x", "true").stderr


def test_a_cluster_without_pyxis(tmp_path: Path) -> None:
    with MockCluster(tmp_path, pyxis=False) as cluster:
        site = Site(cluster, tmp_path)
        done = site.run("srun", "--jobid=1", IMAGE, "true")
        assert (done.returncode, "unrecognized option '--container-image=" in done.stderr) == (255, True)
        assert "container-image" not in site.run("srun", "--help").stdout


def test_import_fails_on_one_node(site: Site) -> None:
    site.cluster.inject(ImportFails("[ERROR] Could not process JSON input", rank=1))
    job = site.hold()
    assert site.step(job, IMAGE, "-w", "gb300-01", "true").returncode == 0
    done = site.step(job, IMAGE, "-w", "gb300-02", "true")
    assert done.returncode == 1
    assert "slurmstepd-gb300-02: error: pyxis:     [ERROR] Could not process JSON input" in done.stderr
    assert site.step(job, "-w", "gb300-02", "true").returncode == 0


def test_import_slow(site: Site) -> None:
    site.cluster.inject(ImportSlow(0.5))
    job = site.hold()
    began = time.monotonic()
    assert site.step(job, IMAGE, "true").returncode == 0
    assert time.monotonic() - began >= 0.5


def test_one_container_name_twice_at_once(site: Site) -> None:
    site.cluster.inject(ContainerLocked(seconds=30.0))
    job = site.hold()
    named = (IMAGE, "--container-name=server")
    assert site.step(job, *named, "-w", "gb300-01", "true").returncode == 0
    assert site.step(job, *named, "-w", "gb300-02", "true").returncode == 0
    done = site.step(job, *named, "-w", "gb300-01", "true")
    assert (done.returncode, "[ERROR] Could not acquire rootfs lock" in done.stderr) == (1, True)


def test_program_that_only_the_image_has(tmp_path: Path) -> None:
    with MockCluster(tmp_path, test_exec=True) as cluster:
        site = Site(cluster, tmp_path)
        job = site.hold()
        done = site.step(job, IMAGE, "/opt/venv/bin/vllm", "serve")
        assert (done.returncode, done.stderr) == (1, "srun: fatal: Can not execute /opt/venv/bin/vllm\n")
