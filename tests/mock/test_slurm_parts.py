"""Parts of the mocked Slurm by themselves, and what its scontrol tells and changes."""

from __future__ import annotations

import pytest

from pytest_gpubench.mock import MockCluster
from pytest_gpubench.mock.slurm import environment, formats
from pytest_gpubench.mock.slurm.getopt import Arg, Parser, UsageError

from .jobs import Site, until

MINUTES = [
    ("30", 30),
    ("1:30", 2),
    ("0:02", 1),
    ("03:00:00", 180),
    ("1-0", 1440),
    ("1-2", 1560),
    ("1-2:30", 1590),
    ("2-00:00:01", 2881),
    ("UNLIMITED", -1),
]


@pytest.mark.parametrize(("text", "minutes"), MINUTES)
def test_time_limits(text: str, minutes: int) -> None:
    assert formats.parse_minutes(text) == minutes


@pytest.mark.parametrize("text", ["abc", "", "1:2:3:4", "-5", "1-"])
def test_wrong_time_limits(text: str) -> None:
    with pytest.raises(ValueError):
        formats.parse_minutes(text)


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (5, "0:05", "00:00:05"),
        (3605, "1:00:05", "01:00:05"),
        (90061, "1-01:01:01", "1-01:01:01"),
        (-3, "0:00", "00:00:00"),
    ],
)
def test_durations(seconds: float, short: str, long: str) -> None:
    assert (formats.duration(seconds), formats.padded(seconds)) == (short, long)


def test_begin_times() -> None:
    assert formats.parse_begin("now", 100.0) == 100.0
    assert formats.parse_begin("now+60", 100.0) == 160.0
    assert formats.parse_begin("now+2hours", 0.0) == 7200.0
    assert formats.clock(formats.parse_begin("2026-12-01T10:30", 0.0)) == "2026-12-01T10:30:00"
    for text in ("tomorrowish", "now+5eons"):
        with pytest.raises(ValueError, match=text.replace("+", r"\+")):
            formats.parse_begin(text, 0.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:4", {"gpu": 4}),
        ("gpu", {"gpu": 1}),
        ("gpu:gb300", {"gpu:gb300": 1}),
        ("gpu:gb300:4(S:0-1)", {"gpu:gb300": 4}),
        ("gpu:gb300:4,nvme:1", {"gpu:gb300": 4, "nvme": 1}),
        ("none", {}),
    ],
)
def test_gres(text: str, found: dict[str, int]) -> None:
    assert formats.parse_gres(text) == found


def test_file_patterns() -> None:
    values = {"j": "12", "x": "name", "t": "3"}
    assert formats.fill_pattern("%x-%j.%4t-%z-%%", values) == "name-12.0003-%z-%"
    assert formats.fill_pattern("\\%j", values) == "%j"


def test_node_counts() -> None:
    assert formats.parse_count("2") == (2, 2)
    assert formats.parse_count("2-4") == (2, 4)
    assert formats.parse_count("1k") == (1024, 1024)
    assert formats.parse_count("0") == (1, 1)
    for text in ("4-2", "x", "2-"):
        with pytest.raises(ValueError):
            formats.parse_count(text)


def test_export() -> None:
    caller = {"A": "1", "PATH": "/bin", "HOME": "/h", "SLURM_JOB_ID": "9"}
    assert environment.export(None, caller, step=False) == caller
    assert environment.export("NONE", caller, step=False) == {"PATH": "/bin", "HOME": "/h"}
    assert environment.export("NONE", caller, step=True) == {"SLURM_JOB_ID": "9"}
    assert environment.export("A,B=x,y", caller, step=False) == {"A": "1", "B": "x"}
    assert environment.export("ALL,A=2,C=3", caller, step=False)["A"] == "2"
    assert environment.export("ALL,A=2,C=3", caller, step=True) == {**caller, "C": "3"}


def test_command_lines() -> None:
    parser = Parser("cmd", "nodes,N= name,n,jobname= quiet,q- nice?", extra={"more": Arg.REQUIRED})
    found = parser.parse(["-qN2", "--nice", "--job=x", "--more", "y", "word", "--nodes=3"])
    assert found.values == {"quiet": "", "nodes": "2", "nice": "", "name": "x", "more": "y"}
    assert found.rest == ["word", "--nodes=3"]
    assert "nodes" in found
    assert found.get("none") is None
    permuted = Parser("cmd", "nodes,N=", permute=True).parse(["a", "-N", "2", "b", "--", "-c"])
    assert (permuted.values, permuted.rest) == ({"nodes": "2"}, ["a", "b", "-c"])
    for words, text in (
        (["--quiet=1"], "option '--quiet' doesn't allow an argument"),
        (["-N"], "option requires an argument -- 'N'"),
        (["--n"], "option '--n' is ambiguous; possibilities: '--name' '--nice' '--nodes'"),
    ):
        with pytest.raises(UsageError, match=text):
            parser.parse(words)


# -- scontrol ------------------------------------------------------------------------------------------------


def test_scontrol_tells(site: Site) -> None:
    assert site.run("scontrol", "show", "jobs").stdout == "No jobs in the system\n"
    number = site.submit("srun --overlap -N1 -n1 --job-name=inner sleep 300\n", "--comment=why")
    until(lambda: len(site.cluster.store.steps(number)) == 1, "the step")
    shown = site.run("scontrol", "show", f"job={number}").stdout
    assert "   Comment=why\n" in shown
    assert f"StdOut={site.folder}/slurm-{number}.out" in shown
    assert f"StepId={number}.0" in site.run("scontrol", "show", "step", f"{number}.0").stdout
    assert site.run("scontrol", "show", "step", "99.0").stdout == "Job step 99.0 not found\n"
    partition = site.run("scontrol", "-o", "show", "partition", "batch").stdout
    assert "PartitionName=batch Default=YES DefaultTime=00:30:00 MaxTime=04:00:00" in partition
    assert site.run("scontrol", "show", "partition", "x").returncode == 1
    config = site.run("scontrol", "show", "config").stdout
    assert "MinJobAge               = 300 sec" in config
    assert "SLURM_VERSION           = 22.05.8" in config
    assert site.run("scontrol", "show", "hostlist", "a1,a2").stdout == "a[1-2]\n"
    assert (
        site.run("scontrol", "show", "hostnames", env={"SLURM_JOB_NODELIST": "b[1-2]"}).stdout == "b1\nb2\n"
    )
    nodes = site.run("scontrol", "-o", "show", "nodes").stdout.splitlines()
    assert [line.split()[0] for line in nodes] == ["NodeName=gb300-01", "NodeName=gb300-02"]
    for words, text in (
        (["show"], "too few arguments"),
        (["show", "moon"], "invalid entity:moon"),
        ([], "interactive"),
    ):
        done = site.run("scontrol", *words)
        assert (done.returncode, text in done.stderr) == (1, True)


def test_scontrol_changes(site: Site) -> None:
    job = str(site.submit("true\n", "--begin=now+600"))
    assert site.run("scontrol", "hold", job).returncode == 0
    assert site.run("squeue", "-h", "-o", "%r").stdout == "JobHeldUser\n"
    assert site.run("scontrol", "update", f"jobid={job}", "timelimit=5").returncode == 0
    assert site.run("squeue", "-h", "-o", "%l").stdout == "5:00\n"
    for words, text in (
        (["jobid=77", "timelimit=5"], "Invalid job id specified for job 77"),
        (["nodename=nope", "state=down", "reason=x"], "Invalid node name specified"),
        (["nodename=gb300-01", "state=down"], "You must specify a reason"),
        (["nodename=gb300-01", "state=resume"], "Invalid node state specified"),
        (["nodename=gb300-01", "state=odd"], "Invalid input: state=odd"),
        (["color=red"], "No valid entity in update command"),
    ):
        done = site.run("scontrol", "update", *words)
        assert (done.returncode, text in done.stderr) == (1, True), words
    assert site.run("scontrol", "requeue", job).returncode == 1
    assert site.run("scontrol", "hold", "x").returncode == 1


def test_newer_versions_know_more_options(site: Site) -> None:
    with MockCluster(site.folder.parent / "newer", version="24.05.1") as cluster:
        newer = Site(cluster, site.folder)
        assert newer.run("sbatch", "--segment=2", "--wrap=true").returncode == 0
        assert newer.run("squeue", "--version").stdout == "slurm 24.05.1\n"
    assert site.run("sbatch", "--segment=2", "--wrap=true").returncode == 255
