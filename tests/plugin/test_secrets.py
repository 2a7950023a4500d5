"""FC-46: a token reaches the server, and nothing that is printed, kept or listed shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpubench.mock import Call, ImportFails

from .project import MARK, Project, Run

SECRETS = {
    "HF_TOKEN": "hf_not-a-secret-but-must-not-show",
    "TEAM_API_KEY": "key:not a secret, must not show",
    "DB_PASSWORD_MAIN": "pass-not-a-secret-must-not-show",
    "INGEST_BEARER_TOKEN": "bearer-not-a-secret-must-not-show",
}
CONFTEST = """
import os
import pytest

@pytest.fixture
def gpubench_gates(gpubench_gates, gpubench_point):
    token, environment = os.environ["HF_TOKEN"], dict(os.environ)
    yield gpubench_gates
    if gpubench_point.deployment.recipe == "teardown":
        print("in clean-up with", token)
        raise RuntimeError(f"clean-up failed with {token}")

def pytest_runtest_call(item):
    if "crash" in item.nodeid:
        session = item.funcargs["gpubench_run"].session
        settings = dict(session.env)
        raise RuntimeError("a defect")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    found = Project(tmp_path_factory.mktemp("secrets") / "project")
    for name in ("setup", "call", "teardown", "crash"):
        extra = "gates: {floors: {tput_per_gpu: 1.0e+9}}\n" if name == "call" else ""
        found.recipe(name, extra=f"env_from_host: [TEAM_API_KEY]\n{extra}")
    found.write("workloads/conftest.py", CONFTEST)
    return found


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    return []


@pytest.fixture(scope="module")
def seen() -> list[bytes]:
    """The environments of the servers, as they ran."""
    return []


@pytest.fixture(scope="module")
def run(project: Project, calls: list[Call], seen: list[bytes]) -> Iterator[Run]:
    with project.cluster(ImportFails(match="*setup*")) as cluster:
        running = project.start(
            "--workload=setup,call,teardown,crash",
            *("-vv", "-l", "--setup-show", "-rA", "--gpubench-stream-logs", "--gpubench-html=report.html"),
            env=project.env(cluster.env(), **SECRETS),
        )
        while running.process.poll() is None:
            seen.extend(environments(running.env[MARK], b"\0vllm\0serve\0"))
            time.sleep(0.05)
        calls.extend(cluster.calls())
        yield running.end()


def environments(mark: str, words: bytes) -> list[bytes]:
    """The environments of this run's processes with these words on their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if words in (folder / "cmdline").read_bytes():
                found.append((folder / "environ").read_bytes())
        except OSError:
            continue
    return [environment for environment in found if f"{MARK}={mark}\0".encode() in environment]


def test_points_fail_in_setup_call_and_teardown(run: Run) -> None:
    assert run.code == 1, run.out
    reasons = {row["workload"]: row["reason"] for row in run.rows.values()}
    assert reasons["setup"] == "import_failed"
    assert reasons["call"] == "gate_missed"
    assert reasons["teardown"] is None
    assert "clean-up failed with ***" in run.out
    assert "RuntimeError: a defect" in run.out


@pytest.mark.parametrize("name", SECRETS)
def test_no_output_shows_the_value(run: Run, name: str) -> None:
    value = SECRETS[name].encode()
    assert value not in run.out.encode()
    assert value not in run.junit.read_bytes()
    folder = run.results.parent
    shown = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and value in path.read_bytes() and "cluster" not in path.parts
    ]
    assert shown == []


@pytest.mark.parametrize("name", SECRETS)
def test_no_command_line_has_the_value(calls: list[Call], run: Run, name: str) -> None:
    assert calls
    assert not [call for call in calls if SECRETS[name] in " ".join(call.argv)]


def test_the_server_sees_what_it_needs(run: Run, seen: list[bytes]) -> None:
    assert any(f"HF_TOKEN={SECRETS['HF_TOKEN']}\0".encode() in environment for environment in seen)
    assert any(f"TEAM_API_KEY={SECRETS['TEAM_API_KEY']}\0".encode() in environment for environment in seen)
    # Only what talks to the dashboard needs this one.
    assert not any(b"INGEST_BEARER_TOKEN" in environment for environment in seen)


def test_a_dry_run_shows_none_either(project: Project) -> None:
    run = project.run(
        *("--workload=call", "--gpubench-dry-run", "-vv", "--gpubench-results=dry"),
        env=project.env(None, **SECRETS),
    )
    assert run.code == 0
    kept = "".join(path.read_text() for path in (project.folder / "dry").rglob("*") if path.is_file())
    assert not [name for name, value in SECRETS.items() if value in run.out + kept]
    assert "TEAM_API_KEY" in kept
