"""Docker: what it is told, and that nothing is left of a container whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpubench.mock import ClientHangs, ServerExits

from .sites import Site, make_site

RECIPE = """
gpu: H200
gpus_per_node: 8
vllm: {model: %(model)s, image: registry/vllm:1, serve_args: --max-model-len 256}
search_space: [{isl: 32, osl: %(osl)d, points: [{conc: 2, num_prompts: 8, num_warmups: 0}]}]
%(more)s
"""


def recipe(model: str = "org/tiny", osl: int = 8, more: str = "") -> str:
    return RECIPE % {"model": model, "osl": osl, "more": more}


def until(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.05)


def values(call: list[str], flag: str) -> list[str]:
    return [call[index + 1] for index, word in enumerate(call) if word == flag]


def start(site: Site, log: Path) -> subprocess.Popen[bytes]:
    """pytest in the background."""
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workload", "one"],
            cwd=site.project.folder,
            env=site.env,
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def row_of(site: Site) -> dict[str, object]:
    (row,) = json.loads((site.project.folder / "results" / "ingest.json").read_text())["rows"]
    assert isinstance(row, dict)
    return row


def test_a_run_in_a_container(tmp_path: Path) -> None:
    home = tmp_path / "hf"
    weights = tmp_path / "weights"
    profile = f"  hf_home: {home}\n"
    with make_site(tmp_path, "docker", profile=profile) as site:
        site.project.write("workloads/one.yaml", recipe(str(weights)))
        done = site.project.run("--workload", "one", env=site.env)
        assert done.code == 0, done.out
        row = row_of(site)
        assert (row["status"], row["completed"], row["nodelist"]) == ("passed", 8, [os.uname().nodename])
        (call,) = site.docker.calls("run")
        (container,) = site.docker.containers()
        results = site.project.folder / "results"
        assert values(call, "-v") == [f"{path}:{path}" for path in (results, home, weights)]
        assert values(call, "--gpus") == ["all"]
        assert values(call, "--network") == values(call, "--ipc") == ["host"]
        assert {"--rm", "--init"} <= set(call)
        assert call[call.index("--entrypoint") + 2] == "registry/vllm:1"
        # By name only: no value, secret or not, is on the command line.
        assert "HF_HOME" in values(call, "-e")
        assert not any("=" in name for name in values(call, "-e"))
        # The client runs inside, by the container's id; so does the removal.
        (client,) = (words for words in site.docker.calls("exec") if "bench" in words)
        assert container["id"] in client
        assert client[client.index(container["id"]) + 1 :][:2] == ["bash", "-c"]
        removed = [words[-1] for words in site.docker.calls("rm")]
        assert set(removed) == {container["id"]}
        assert site.docker.alive() == []


def test_the_profiles_mounts_come_first(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    profile = f"  container: {{mounts: ['{shared}:{shared}:ro']}}\n  hf_home: {shared}/hf\n"
    with make_site(tmp_path, "docker", profile=profile) as site:
        site.project.write("workloads/one.yaml", recipe(str(shared / "weights")))
        done = site.project.run("--workload", "one", "--gpubench-dry-run", env=site.env)
        assert done.code == 0, done.out
        (plan,) = (site.project.folder / "results" / "one").glob("*/plan.json")
        (launch,) = json.loads(plan.read_text())["launch_argv"]
        results = site.project.folder / "results"
        assert values(launch, "-v") == [f"{shared}:{shared}:ro", f"{results}:{results}"]


def test_a_dead_container_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    with make_site(tmp_path, "docker") as site:
        site.cluster.inject(ServerExits(rank=0, code=3, after_requests=2, text="CUDA error: out of luck"))
        site.project.write("workloads/one.yaml", recipe())
        done = site.project.run("--workload", "one", env=site.env)
        assert done.code == 1
        row = row_of(site)
        assert (row["status"], row["reason"]) == ("error", "server_exited")
        assert "rank-0 on" in str(row["message"])
        assert "exit code 3" in str(row["message"])
        assert site.docker.alive() == []


def test_an_image_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    with make_site(tmp_path, "docker") as site:
        stub = site.docker.bin / "docker"
        stub.write_text(
            "#!/bin/sh\necho 'docker: Error response from daemon: manifest unknown.' >&2\nexit 125\n"
        )
        site.project.write("workloads/one.yaml", recipe())
        site.project.run("--workload", "one", env=site.env)
        row = row_of(site)
        assert row["status"] == "error"
        assert "manifest unknown" in str(row["message"]), row["message"]


@pytest.mark.slow
def test_a_hung_client_ends_inside_the_container(tmp_path: Path) -> None:
    with make_site(tmp_path, "docker") as site:
        site.cluster.inject(ClientHangs())
        points = "[{conc: 2, num_prompts: 8, num_warmups: 0}, {conc: 1, num_prompts: 8, num_warmups: 0}]"
        text = recipe(more="deadlines: {bench: 2}").replace(
            "[{conc: 2, num_prompts: 8, num_warmups: 0}]", points
        )
        site.project.write("workloads/one.yaml", text)
        log = tmp_path / "log"
        process = start(site, log)
        until(lambda: log.read_text().count("client_hung") >= 1, "hung client", 40)
        # The container still serves the next point; the first point's client is gone from it.
        alive = [pgid for pgid in site.docker.alive() if pgid != site.docker.containers()[0]["pid"]]
        assert len(alive) <= 1
        assert process.wait(40) == 1
        assert any("TERM" in words for words in site.docker.calls("exec"))
        assert site.docker.alive() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_removes_its_container(tmp_path: Path, number: signal.Signals) -> None:
    with make_site(tmp_path, "docker", token=0.2) as site:
        site.project.write("workloads/one.yaml", recipe(osl=200))
        process = start(site, tmp_path / "log")
        until(lambda: any("bench" in words for words in site.docker.calls("exec")), "client")
        process.send_signal(number)
        process.wait(30)
        assert site.docker.alive() == []
        assert len(site.docker.calls("rm")) >= 1
        assert row_of(site)["reason"] == "interrupted"


@pytest.mark.slow
def test_a_killed_run_gives_its_container_back_by_itself(tmp_path: Path) -> None:
    with make_site(tmp_path, "docker", token=0.2) as site:
        site.project.write("workloads/one.yaml", recipe(osl=200))
        site.project.write("pytest.ini", "[pytest]\ngpubench_heartbeat = 3\n")
        process = start(site, tmp_path / "log")
        until(lambda: any("bench" in words for words in site.docker.calls("exec")), "client")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        assert site.docker.alive()
        until(lambda: not site.docker.alive(), "end of the container", 25)


def test_amd_devices(tmp_path: Path) -> None:
    with make_site(tmp_path, "docker") as site:
        site.project.write("workloads/gpu_profiles.yaml", "H200: {platform: mi355x, runtime: docker}\n")
        site.project.write("workloads/one.yaml", recipe())
        done = site.project.run("--workload", "one", "--gpubench-dry-run", env=site.env)
        assert done.code == 0, done.out
        (plan,) = (site.project.folder / "results" / "one").glob("*/plan.json")
        (launch,) = json.loads(plan.read_text())["launch_argv"]
        assert values(launch, "--device") == ["/dev/kfd", "/dev/dri"]
        assert "--gpus" not in launch
