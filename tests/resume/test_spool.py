"""A row that was measured reaches the dashboard, also when its run was killed before it could send it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from plugin.project import Project

REAL = """
import pathlib, time
import pytest
from pytest_gpubench.session import Session

Session.simulated = property(lambda self: False)  # of a mocked cluster nothing is sent

@pytest.fixture
def gpubench_gates(gpubench_gates, gpubench_point):
    here = pathlib.Path(__file__).parent
    if "conc4" in gpubench_point.id and not (here / "go").exists():
        (here / "second").touch()
        time.sleep(60)
    return gpubench_gates
"""


class _Dashboard(BaseHTTPRequestHandler):
    taken: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.taken.append((self.headers["Idempotency-Key"], body))
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def dashboard() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Its URL, and what it was sent."""
    taken: list[tuple[str, dict[str, Any]]] = []
    handler = type("Handler", (_Dashboard,), {"taken": taken})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rows", taken
        server.shutdown()
        thread.join()


def test_rows_of_a_killed_run_are_sent_by_the_resumed_one(
    tmp_path: Any, dashboard: tuple[str, list[tuple[str, dict[str, Any]]]]
) -> None:
    url, taken = dashboard
    project = Project(tmp_path / "project")
    project.recipe("load", "[2, 4]")
    project.write("conftest.py", REAL)
    with project.cluster() as cluster:
        env = project.env(cluster.env(), PERF_INGEST_URL=url, INGEST_BEARER_TOKEN="not-a-real-one")
        running = project.start("--workload=load", env=env)
        running.wait_for("passed: tp1-32x16-conc2", 60)
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        assert taken == []
        (project.folder / "go").touch()
        run = project.run("--workload=load", "--gpubench-resume", env=env)
    assert run.code == 0, run.out
    assert "2 rows sent" in run.out
    assert sorted(body["conc"] for _, body in taken) == [2, 4]
    assert len({key for key, _ in taken}) == 2
    assert not list((run.results / ".gpubench" / "spool").glob("*.json"))
