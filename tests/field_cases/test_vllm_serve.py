"""A server that is dead, not ours, or not there: told at once, by name, and never measured."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from plugin.project import Project

from pytest_gpubench.errors import InfraError
from pytest_gpubench.mock import Job
from pytest_gpubench.recipe.types import Deadlines
from pytest_gpubench.serving.backend import Look
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.serving.server import Server

from .cases import SPACE, Recipes, recipe_text, workload
from .stubs import Dump, dumping_vllm
from .trouble import OUT_OF_MEMORY, UNKNOWN_FLAG, Trouble

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))

from fakes import READY, FakeBackend, FakeClock, FakeProbe, deployment

DEADLINE = 1800.0

# -- FC-13 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["fc13_load", "fc13_ready", "fc13_bench"])
def test_fc_13_a_dead_follower_is_told_by_node_rank_code_and_last_words(
    trouble: Trouble, recipe: str
) -> None:
    row = trouble.row(recipe)
    assert (row["status"], row["reason"], row["tput_per_gpu"]) == ("error", "server_exited", None)
    text = trouble.text(recipe)
    first = text.splitlines()[0]
    assert f"rank-1 on {row['nodelist'][1]} ended with exit code 1" in first
    assert OUT_OF_MEMORY in first
    assert OUT_OF_MEMORY in text.split("last lines of rank-1")[1]
    spent = sum(seconds or 0.0 for seconds in row["phase_seconds"].values())
    assert spent < 60 < DEADLINE
    (job,) = trouble.jobs_of(recipe)
    assert job.ended


def test_fc_13_followers_are_not_asked_for_http(trouble: Trouble) -> None:
    follower = trouble.calls_of("vllm", "--headless")[0]
    assert "--headless" in follower
    assert "--port" not in follower


# -- FC-15 -------------------------------------------------------------------------------------------


def test_fc_15_a_foreign_server_is_named_and_never_measured(trouble: Trouble) -> None:
    row = trouble.row("fc15")
    assert (row["status"], row["reason"], row["completed"]) == ("error", "foreign_server", None)
    first = trouble.text("fc15").splitlines()[0]
    assert re.search(r"port \d+ on gb300-\d\d already answers as other/model; asked for org/tiny", first)
    assert not trouble.calls_of("vllm", "results/fc15/")
    assert not (trouble.run.results / "fc15" / row["point"] / "bench.json").exists()


@pytest.mark.parametrize(
    ("serve", "served"),
    [
        ("", "org/tiny"),
        ('serve_args: --served-model-name "Team Model"', "Team Model"),
        ("serve_args: --served-model-name=team other", "team"),
        ("serve: {served_model_name: [first, second]}", "first"),
    ],
)
def test_fc_15_server_and_client_agree_on_the_name(recipes: Recipes, serve: str, served: str) -> None:
    from pytest_gpubench.bench.client import ClientRun, bench_argv

    point = recipes.point(recipe_text(serve))
    assert point.deployment.served_name == served
    assert point.load is not None
    argv = bench_argv(point.deployment, point.load, ClientRun("/r", "bench.json", 1, "http://n1:1"))
    client = argv[argv.index("--served-model-name") + 1] if "--served-model-name" in argv else None
    assert served in (client, argv[argv.index("--model") + 1])


def test_fc_15_a_request_that_is_refused_names_what_the_server_offers() -> None:
    clock = FakeClock()
    probe = FakeProbe(clock)
    probe.names = ["org/model"]
    probe.problem = "HTTP 404: The model `org/model` does not exist"
    server = Server(deployment(), FakeBackend(clock), probe, clock, Narrator(now=clock.monotonic))
    with pytest.raises(InfraError, match=r"HTTP 404: The model `org/model` does not exist"):
        server.start()


# -- FC-16 -------------------------------------------------------------------------------------------

SHARED = """
SHARED:
  platform: gb300
  slurm: {partition: batch, gres: "gpu:b300:1", time: "01:00:00"}
  container: {runtime: none}
"""


def shared_node(project: Project, *names: str) -> None:
    """Recipes whose jobs take one GPU each of a node."""
    (project.workloads / "gpu_profiles.yaml").write_text(SHARED)
    for name in names:
        text = recipe_text(gpus=1, rest=SPACE)
        project.write(f"workloads/{name}.yaml", text.replace("SITE", "SHARED"))


def ports_of(dumps: list[Dump]) -> list[set[int]]:
    """Every port that each server may take."""
    found = []
    for dump in dumps:
        if dump.argv[0] == "serve":
            http = int(dump.argv[dump.argv.index("--port") + 1])
            first = int(dump.env["VLLM_PORT"])
            found.append({http, *range(first, first + 40)})
    return found


def together(jobs: list[Job]) -> bool:
    """Whether some two of the jobs ran at the same time."""
    return any(
        one.start < other.end and other.start < one.end for one in jobs for other in jobs if one != other
    )


@pytest.mark.slow
def test_fc_16_servers_on_one_node_have_ports_of_their_own(project: Project, tmp_path: Path) -> None:
    shared_node(project, "one", "two")
    with project.cluster(nodes=["gb-a01"]) as cluster, socket.socket() as taken:
        cluster.simulate(load_seconds=2.0)
        dumps = dumping_vllm(cluster, tmp_path)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", 29500))
        taken.listen()
        run = project.run("--workload=one,two", "-n", "2", env=project.env(cluster.env()))
        assert run.code == 0, run.out
        jobs = cluster.jobs()
    assert together(jobs)
    assert {tuple(row["nodelist"]) for row in run.rows.values()} == {("gb-a01",)}
    first, second = ports_of(dumps())
    assert not first & second
    assert 29500 not in first | second


@pytest.mark.slow
def test_fc_16_a_port_that_is_taken_is_passed_over(project: Project, tmp_path: Path) -> None:
    shared_node(project, "one")
    found: list[set[int]] = []
    blocked = socket.socket()
    with blocked:
        for name in ("free", "taken"):
            # A fresh cluster counts its jobs from the same number: the first choice of ports is the same.
            (tmp_path / name).mkdir()
            with project.cluster(nodes=["gb-a01"]) as cluster:
                dumps = dumping_vllm(cluster, tmp_path / name)
                run = project.run("--workload=one", env=project.env(cluster.env()))
                assert run.code == 0, run.out
                found += ports_of(dumps())
            shutil.rmtree(cluster.folder)
            if name == "free":
                blocked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                blocked.bind(("0.0.0.0", min(found[0])))
                blocked.listen()
    before, after = found
    assert min(before) not in after


def test_fc_16_a_port_lost_in_the_race_names_port_and_node_and_keeps_the_log(trouble: Trouble) -> None:
    assert trouble.row("fc16")["reason"] == "port_taken"
    first = trouble.text("fc16").splitlines()[0]
    assert re.search(r"rank-0 on gb300-\d\d: .*Address already in use: \('0\.0\.0\.0', \d+\)", first)
    assert "Address already in use" in trouble.log("fc16", "rank-0.log")


# -- FC-17 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_fc_17_flags_of_the_launcher_are_refused_one_by_one(recipes: Recipes, nodes: int) -> None:
    given = workload("FC-17")["serve"]["args_text"]
    problems = recipes.problems(recipe_text(f"serve_args: {given}", nodes=nodes))
    owned = ("--node-rank", "--headless", "--master-addr", "--nnodes")
    for flag in owned:
        assert any(f"sets {flag}; remove it" in problem for problem in problems), flag
    assert len(problems) == len(owned)


SPELLINGS = (
    "-n 2", "-n=2", "-n2", "--nnodes 2", "--nnodes=2", "--nnode 2", "-r 1", "-r1", "--node-rank=1",
    "--node_rank 1", "--master-addr h", "--master_addr=h", "--master-port 1", "--master-p 1", "--headless",
    "--headles", "--port 80", "--port=80", "--host h",
)  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_fc_17_in_every_spelling(recipes: Recipes, spelling: str) -> None:
    for form in (f"serve_args: {spelling}", f"serve_args: [{', '.join(spelling.split())}]"):
        (problem,) = recipes.problems(recipe_text(form))
        assert "the launcher owns this" in problem
    if "=" not in spelling and spelling.startswith("--"):
        key, _, value = spelling.lstrip("-").partition(" ")
        problems = recipes.problems(recipe_text(f"serve: {{{key}: {value or 'true'}}}"))
        assert "the launcher owns this" in problems[0]


def test_fc_17_a_start_command_that_ignores_headless_is_refused_on_several_nodes(recipes: Recipes) -> None:
    command = workload("FC-17")["serve"]["command"]
    profiles = f"SITE: {{platform: gb300, slurm: {{server_command: '{command} \"$@\"'}}}}\n"
    (problem,) = recipes.problems(recipe_text(nodes=2, serve="serve_args: -tp 8"), profiles)
    assert command in problem
    assert "ignores --headless" in problem
    assert recipes.point(recipe_text("serve_args: -tp 4"), profiles)


def test_fc_17_what_the_server_says_of_a_flag_is_in_the_failure(trouble: Trouble) -> None:
    text = trouble.text("fc17")
    assert "ended with exit code 2" in text.splitlines()[0]
    assert UNKNOWN_FLAG in text


# -- FC-18 -------------------------------------------------------------------------------------------


def test_fc_18_deadlines_that_do_not_fit_the_time_limit_are_refused(recipes: Recipes) -> None:
    found = workload("FC-18")
    load, bench = found["serve"]["ready_timeout"], found["bench"]["timeout"]
    text = recipe_text(rest=f"deadlines: {{load: {load}, bench: {bench}}}\n{SPACE}")
    profiles = f'SITE: {{platform: gb300, slurm: {{time: "{found["slurm"]["time"]}"}}}}\n'
    (problem,) = recipes.problems(text, profiles)
    assert (
        "load 1800 s + bench 1200 s = 3000 s do not fit the job's time limit of 00:20:00 (1200 s)" in problem
    )
    # The queue is no part of the job's time.
    more = profiles.replace("00:20:00", "00:50:00").replace("slurm: {", "slurm: {max_pending: 2h, ")
    assert recipes.point(text, more).deployment.deadlines.queue == 7200.0


def test_fc_18_a_long_queue_costs_the_load_nothing() -> None:
    clock = FakeClock()
    pending = Look(pending=True, detail="Priority")
    backend = FakeBackend(
        clock, [(0.0, pending), (3000.0, replace(READY, started=frozenset())), (3001.0, READY)]
    )
    limits = Deadlines(queue=3600, image=60, load=1800, ready=60, bench=1200)
    server = Server(
        deployment(deadlines=limits),
        backend,
        FakeProbe(clock, healthy_after=4700.0),  # 28 minutes of loading after 50 in the queue
        clock,
        Narrator(now=clock.monotonic),
    )
    server.start()
    assert server.ready


def test_fc_18_a_timeout_names_phase_seconds_setting_and_the_last_line(trouble: Trouble) -> None:
    row = trouble.row("fc18")
    assert (row["status"], row["reason"]) == ("error", "load_timeout")
    text = trouble.text("fc18")
    first = text.splitlines()[0]
    assert "while loading the model: /health did not answer 200 in 2 s. Raise `deadlines.load`" in first
    assert re.search(r"seconds per phase: queue [\d.]+ s, import [\d.]+ s, load 2\.\d s", text)
    assert "Loading safetensors checkpoint shards:  50% Completed" in text.splitlines()[-1]
