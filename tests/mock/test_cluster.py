"""The public test double: its folder, its log of commands, its faults and settings, its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpubench.mock import MockCluster, Partition, ServerExits, SqueueTimesOut, faults
from pytest_gpubench.mock.vllm import settings

from .jobs import Site, until


def test_commands_are_logged_with_their_words(site: Site) -> None:
    site.run("squeue", "-h", "-o", "%i %T")
    site.run("sbatch", "--foo")
    calls = site.cluster.calls()
    assert [call.argv for call in calls] == [("squeue", "-h", "-o", "%i %T"), ("sbatch", "--foo")]
    assert calls[0].time <= calls[1].time
    assert calls[0].cwd == str(site.folder)
    assert [call.argv[0] for call in site.cluster.calls("sbatch")] == ["sbatch"]


def test_close_ends_every_process_and_says_so(tmp_path: Path) -> None:
    with MockCluster(tmp_path / "cluster") as cluster:
        site = Site(cluster, tmp_path)
        # A session of its own, a grandchild, a step, a step whose srun is gone.
        body = "setsid sleep 300 & (sleep 300 &)\nsrun --overlap -N1 -n1 bash -c 'sleep 300' &\n"
        job = site.submit(body + "sleep 300\n")
        cluster.wait(job, "RUNNING")
        until(lambda: len(cluster.store.steps(job)) == 1, "the step")
        until(lambda: len(cluster.processes()) >= 7, "the processes")
        assert os.getpid() not in cluster.processes()
    assert cluster.processes() == []
    assert cluster.job(job).state == "CANCELLED"


def test_a_folder_that_holds_a_cluster_is_opened(site: Site) -> None:
    job = site.submit("true\n")
    again = MockCluster(site.cluster.folder, nodes="other-[1-9]")
    assert again.store.node_names() == ["gb300-01", "gb300-02"]
    assert again.wait(job).state == "COMPLETED"


def test_a_thousand_nodes(tmp_path: Path) -> None:
    partitions = {
        "batch": Partition(nodes="gb300-[0001-0900]"),
        "debug": Partition("gb300-[0901-1000]", False, 30),
    }
    with MockCluster(tmp_path, nodes="gb300-[0001-1000]", partitions=partitions) as cluster:
        site = Site(cluster, tmp_path)
        job = cluster.wait(
            site.submit("srun --ntasks-per-node=0 true\n", nodes=900), "RUNNING", "FAILED", "COMPLETED"
        )
        assert (len(job.nodes), job.nodes[-1]) == (900, "gb300-0900")
        other = cluster.wait(site.submit("true\n", "-p", "debug", nodes=100))
        assert other.nodes[0] == "gb300-0901"
        listed = site.run("sinfo", "-h", "-p", "debug", "-o", "%P %l %D %N").stdout.strip()
        assert listed == "debug 30:00 100 gb300-[0901-1000]"


def test_environment_reaches_the_commands_and_nothing_else_changes(tmp_path: Path) -> None:
    cluster = MockCluster(tmp_path)
    env = cluster.env({"PATH": "/usr/bin:/bin", "A": "b"})
    assert env == {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "A": "b", "GPUBENCH_MOCK": str(tmp_path)}
    assert cluster.env(env) == env


def test_commands_without_a_cluster_say_so(tmp_path: Path) -> None:
    cluster = MockCluster(tmp_path)
    done = subprocess.run([cluster.bin / "squeue"], env={"PATH": os.defpath}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "GPUBENCH_MOCK names no state folder" in done.stderr


def test_the_package_is_light() -> None:
    code = (
        "import sys, pytest_gpubench.mock as m; print([n for n in sys.modules if n.startswith(m.__name__)])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pytest_gpubench.mock']"


def test_the_commands_import_the_standard_library_only(site: Site) -> None:
    """Site packages are out of reach, so that a poll costs little."""
    text = (site.cluster.bin / "squeue").read_text()
    assert f"exec {sys.executable} -I -S " in text


def test_wait_has_a_deadline(site: Site) -> None:
    job = site.submit("true\n", "--hold")
    with pytest.raises(TimeoutError, match=r"job 1 is PENDING \(JobHeldUser\) after 0\.1 s, not RUNNING"):
        site.cluster.wait(job, "RUNNING", timeout=0.1)
    with pytest.raises(LookupError, match="no job 7"):
        site.cluster.job(7)


def test_submitted_environment_is_kept_from_others(site: Site) -> None:
    (site.folder / "job.sh").write_text("#!/bin/sh\necho $HF_TOKEN\n")
    site.run("sbatch", "--hold", "job.sh", env={"HF_TOKEN": "not-for-you"})
    holding = [
        path
        for path in site.cluster.folder.rglob("*")
        if path.is_file() and b"not-for-you" in path.read_bytes()
    ]
    assert [path.stat().st_mode & 0o777 for path in holding] == [0o600]
    site.run("scontrol", "release", "1")
    site.cluster.wait(1)
    until(lambda: not holding[0].exists(), "the removal of the environment")


# -- faults and settings -------------------------------------------------------------------------------------


def test_every_fault_survives_json() -> None:
    for kind in faults.FAULTS.values():
        required = {"seconds": 1.0, "text": "x", "rate": 0.5}
        try:
            fault = kind()
        except TypeError:
            names = {item for item in kind.__dataclass_fields__ if item in required}
            fault = kind(**{name: required[name] for name in names})  # type: ignore[arg-type]
        assert faults.parse(faults.unparse(fault)) == fault
        assert kind.__doc__


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"fault": "Nope"}, "unknown fault 'Nope'; known: CancelledExternally"),
        ({"fault": "ServerExits", "rnk": 1}, r"fault ServerExits: unknown fields \['rnk'\]"),
        ({"fault": "SlowQueue"}, "fault SlowQueue: .*seconds"),
        ({"fault": "ServerExits", "phase": "lunch"}, "phase must be one of pending, running"),
    ],
)
def test_a_wrong_fault_is_explained(data: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        faults.parse(data)


def test_faults_match_job_names_and_can_be_cleared(site: Site) -> None:
    site.cluster.inject(ServerExits(rank=1, match="gpubench-opt-*"))
    site.cluster.inject(SqueueTimesOut(calls=1))
    box = site.cluster.faults
    assert box.find(ServerExits, "gpubench-opt-1", rank=1) == ServerExits(rank=1, match="gpubench-opt-*")
    assert box.find(ServerExits, "gpubench-opt-1", rank=0) is None
    assert box.find(ServerExits, "other", rank=1) is None
    site.cluster.clear(ServerExits)
    assert box.all() == [SqueueTimesOut(calls=1)]
    site.cluster.clear()
    assert box.all() == []


def test_settings_by_model_rank_and_environment(site: Site) -> None:
    site.cluster.simulate(token=0.1, models={"team/*": {"ttft": 0.5}}, ranks={"1": {"load_seconds": 9.0}})
    site.cluster.simulate(block=32)
    folder = site.cluster.folder
    found = settings.load(
        folder, "team/model", 1, {"GPUBENCH_SIM_TTFT": "0.7", "GPUBENCH_SIM_EXTRA_LOG": "a b"}
    )
    assert (found.token, found.ttft, found.load_seconds, found.block, found.extra_log) == (
        0.1,
        0.7,
        9.0,
        32,
        "a b",
    )
    other = settings.load(folder, "x", 0, {})
    assert (other.ttft, other.load_seconds) == (settings.Sim.ttft, settings.Sim.load_seconds)
    with pytest.raises(ValueError, match=r"unknown sim settings \['tokn'\]"):
        settings.load(folder, "x", 0, {"GPUBENCH_SIM_TOKN": "1"})
