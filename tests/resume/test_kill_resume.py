"""A sweep that is killed again and again, and resumed: every point once, no row lost, no file torn."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plugin.project import Project, Run, Running, leftovers
from plugin.test_parallel import stable

from pytest_gpubench.mock import MockCluster

SWEEP = """\
search_space:
  - isl: 32
    osl: 16
    num_prompts: 8
    num_warmups: 0
    points:
      - {{tp: 1, conc: {conc}}}
      - {{tp: 2, conc: {conc}}}
"""
HEARTBEAT = "gpubench_heartbeat = 5\n"


def make_project(folder: Path, points: int) -> Project:
    """``points`` points on four deployments of two recipes."""
    project = Project(folder / "project")
    ini = project.folder / "pytest.ini"
    ini.write_text(ini.read_text() + HEARTBEAT)
    conc = list(range(1, points // 4 + 1))
    for name in ("one", "two"):
        path = project.recipe(name)
        head = path.read_text().split("search_space")[0].replace(" --tensor-parallel-size 1", "")
        path.write_text(head + SWEEP.format(conc=conc).replace("num_prompts: 8", f"num_prompts: {max(conc)}"))
    return project


@dataclass
class Watch:
    """Reads every JSON file of a folder as fast as it can, as somebody who looks at a run does."""

    results: Path
    torn: list[str] = field(default_factory=list)
    read: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.torn += unreadable(self.results)
            self.read += 1


def unreadable(results: Path) -> list[str]:
    """Files of ours that are no JSON; the client's own raw file is written by the client as it likes."""
    found = []
    paths = (Path(folder) / name for folder, _, names in os.walk(results) for name in names)
    for path in paths:  # folders come and go meanwhile, which os.walk bears
        if path.suffix != ".json" or path.name.startswith("bench"):
            continue
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except ValueError as err:
            found.append(f"{path}: {err}")
    return found


def valid_rows(results: Path) -> dict[str, dict[str, Any]]:
    """Workload/point -> its row on disk, of the points that passed."""
    found = {}
    for path in results.glob("*/*/row.json"):
        row = json.loads(path.read_text(encoding="utf-8"))
        if row["status"] == "passed":
            found[f"{row['workload']}/{row['point']}"] = row
    return found


def kill_somewhere(running: Running, results: Path, chance: random.Random, longest: float, rows: int) -> None:
    """SIGKILL at a random moment, at the latest soon after ``rows`` new rows: there is always one to kill."""
    before = len(valid_rows(results))
    deadline = time.monotonic() + chance.uniform(0.2, longest)
    while time.monotonic() < deadline and len(valid_rows(results)) < before + rows:
        time.sleep(0.02)
    time.sleep(chance.uniform(0.0, 0.2))
    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()


def seconds_to_first_row(run: Run, started: float) -> float:
    """From the start of a run to its first row, on this machine as busy as it is."""
    return min(path.stat().st_mtime for path in run.results.glob("*/*/row.json")) - started


def check_rows(run: Run, undisturbed: Run, first_seen: dict[str, dict[str, Any]]) -> None:
    """The same points, each once, each as it was first measured."""
    assert run.code == 0, run.out
    content = json.loads((run.results / "ingest.json").read_text())
    names = [f"{row['workload']}/{row['point']}" for row in content["rows"]]
    assert sorted(names) == sorted(undisturbed.rows)
    assert len(set(names)) == len(names)
    for name, row in undisturbed.rows.items():
        assert row["status"] == "passed"
        assert stable(run.rows[name]) == stable(row)
    for name, row in first_seen.items():
        assert run.rows[name] == row, f"{name} was measured again"


def released(cluster: MockCluster, seconds: float) -> bool:
    """Whether no job is left within ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(job.ended for job in cluster.jobs()):
            return True
        time.sleep(0.1)
    return False


def play(folder: Path, *, points: int, kills: int, seed: int) -> None:
    print(f"seed {seed}: {kills} kills of a run of {points} points")
    chance = random.Random(seed)
    calm = make_project(folder / "calm", points)
    with calm.cluster() as cluster:
        started = time.time()
        undisturbed = calm.run("--workload=*", env=calm.env(cluster.env()), timeout=300)
    assert undisturbed.code == 0, undisturbed.out
    assert len(undisturbed.rows) == points
    longest = 2.0 * seconds_to_first_row(undisturbed, started)
    project = make_project(folder / "killed", points)
    results = project.folder / "results"
    first_seen: dict[str, dict[str, Any]] = {}
    killed = 0
    with project.cluster(nodes="gb300-[01-30]") as cluster, Watch(results) as watch:
        env = project.env(cluster.env())
        while killed < kills:
            running = project.start("--workload=*", "--gpubench-resume", env=env)
            spare = points - len(first_seen) - 3 * (kills - killed)
            kill_somewhere(running, results, chance, longest, chance.choice((1, 3)) if spare > 0 else 1)
            assert running.process.returncode == -signal.SIGKILL, running.output.read_text()
            killed += 1
            for name, row in valid_rows(results).items():
                first_seen.setdefault(name, row)
        print(f"{len(first_seen)} of {points} points measured by killed runs")
        assert first_seen
        run = project.run("--workload=*", "--gpubench-resume", env=env, timeout=300)
        assert released(cluster, 30.0), [
            (job.id, job.name, job.state) for job in cluster.jobs() if not job.ended
        ]
    assert watch.torn == []
    assert watch.read > kills
    check_rows(run, undisturbed, first_seen)
    assert leftovers(run) == []


@pytest.mark.slow
def test_forty_points_killed_twenty_times_give_the_rows_of_a_calm_run(tmp_path: Path) -> None:
    seed = int(os.environ.get("GPUBENCH_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    play(tmp_path, points=40, kills=20, seed=seed)


def test_a_resumed_run_takes_back_what_the_killed_one_held(tmp_path: Path) -> None:
    """The killed run's client still measures: it must not write into the results of the resumed one."""
    project = Project(tmp_path / "project")
    project.recipe("long", prompts=4000)
    with project.cluster() as cluster:
        env = project.env(cluster.env())
        running = project.start("--workload=long", env=env)
        running.wait_for("ready: after", 60)
        time.sleep(0.5)
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        (left,) = cluster.jobs()
        assert left.state == "RUNNING"
        project.recipe("long")
        run = project.run("--workload=long", "--gpubench-resume", env=env)
        first, second = cluster.jobs()
        submitted = cluster.calls("sbatch")[1].time
        (cancelled,) = (call for call in cluster.calls("scancel") if call.argv[-1] == str(left.id))
    assert run.code == 0, run.out
    assert first.state == "CANCELLED"
    assert cancelled.time < submitted
    assert f"{first.name}: cancelled (job {first.id}: CANCELLED)" in run.out
    assert run.row("long", "tp1-32x16-conc4")["job_id"] == str(second.id)
