"""``gpubench doctor`` against scripted answers of Slurm's commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from slurm.fakes import FakeRunner, missing, said, timed_out

from pytest_gpubench.cli.doctor import run
from pytest_gpubench.cli.doctor_files import check_image, check_model, check_results
from pytest_gpubench.recipe.types import ContainerSettings, Deployment, Profile
from pytest_gpubench.slurm.doctor import gres_fits, parse_partitions
from pytest_gpubench.world import CommandResult, SystemClock

SINFO = (
    "batch*|up|1-00:00:00|6|idle|gpu:b300:4(S:0-1)\n"
    "batch*|up|1-00:00:00|2|allocated|gpu:b300:4(S:0-1)\n"
    "batch*|up|1-00:00:00|1|down*|gpu:b300:4(S:0-1)\n"
    "debug|up|30:00|1|idle|(null)\n"
)
PROFILES = """
GB300:
  runtime: slurm
  slurm:
    partition: batch
    gres: gpu:b300:4
    time: "03:00:00"
    account: research
  container: {runtime: pyxis}
BOXED: {runtime: docker}
"""
RECIPE = """
name: flash
gpu: GB300
num_nodes: NODES
gpus_per_node: 4
num_gpus: GPUS
vllm:
  model: org/Model
  serve_args: --tensor-parallel-size 4 --data-parallel-size NODES
vllm_bench:
  configs:
    - name: c1
      backend: openai
      dataset: random
      input_len: 8
      output_len: 8
      num_prompts: 2
      max_concurrency: 1
"""
Program = Callable[[Sequence[str]], CommandResult]


class Clock(SystemClock):
    """The real clock, ``ahead`` seconds off."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def time(self) -> float:
        return time.time() + self.ahead


def now_text(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.time()).strftime("%Y-%m-%dT%H:%M:%S")


def cluster(**changes: Sequence[CommandResult] | Program) -> FakeRunner:
    """A healthy login node; ``changes`` replaces programs."""
    version = [said("slurm 23.11.4\n")]

    def scontrol(argv: Sequence[str]) -> CommandResult:
        if argv[1] == "ping":
            return said("Slurmctld(primary) at ctl01 is UP\nSlurmctld(backup) at ctl02 is DOWN\n")
        if argv[1] == "show":
            return said(f"Configuration data as of {now_text(Clock())}\nClusterName = gb\n")
        return version[0]

    def sinfo(argv: Sequence[str]) -> CommandResult:
        return version[0] if argv[1] == "--version" else said(SINFO)

    def sbatch(argv: Sequence[str]) -> CommandResult:
        if argv[1] == "--version":
            return version[0]
        assert argv[1] == "--test-only"
        return said(err="sbatch: Job 7 to start at 2027-01-01T00:00:00 using 8 processors on nodes gb[1-2]")

    def srun(argv: Sequence[str]) -> CommandResult:
        return said("  --container-image=[USER@][REGISTRY#]IMAGE\n") if argv[1] == "--help" else version[0]

    programs: dict[str, Sequence[CommandResult] | Program] = {
        "sbatch": sbatch, "srun": srun, "squeue": version, "scontrol": scontrol, "scancel": version,
        "sinfo": sinfo, "sacct": version, "enroot": [said("3.5.0\n")], "stat": [said("nfs\n")],
        "docker": [said("Client: 27\n")],
    }  # fmt: skip
    return FakeRunner(None, **{**programs, **changes})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "workloads"
    folder.mkdir()
    (folder / "gpu_profiles.yaml").write_text(PROFILES)
    for stem, nodes in (("flash", 1), ("wide", 64)):
        text = RECIPE.replace("NODES", str(nodes)).replace("GPUS", str(4 * nodes))
        (folder / f"{stem}.yaml").write_text(text)
    return tmp_path


@pytest.fixture
def doctor(checkout: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str], str]]:
    def call(*arguments: str, runner: FakeRunner | None = None) -> tuple[int, list[str], str]:
        code = run(arguments, env={"PATH": "/bin"}, runner=runner or cluster(), clock=Clock(), cwd=checkout)
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return call


Doctor = Callable[..., tuple[int, list[str], str]]


def line(lines: list[str], topic: str, level: str) -> str:
    """The finding on ``topic`` with its advice; it must have ``level``."""
    for index, text in enumerate(lines):
        if text[6:].startswith(topic):
            assert text.startswith(level), text
            more = lines[index + 1] if lines[index + 1 :] and "->" in lines[index + 1] else ""
            return text + more
    raise AssertionError(f"nothing on {topic} in {lines}")


def test_a_healthy_node_passes(doctor: Doctor) -> None:
    code, lines, _ = doctor("--profile", "GB300")
    assert code == 0
    assert not [text for text in lines if text.startswith(("fail", "warn"))]
    assert "slurm 23.11.4" in line(lines, "slurm commands", "ok")
    assert "ctl01 up, ctl02 down" in line(lines, "controller", "ok")
    assert "batch: 8 of 9 nodes usable, 1 needed" in line(lines, "partition", "ok")
    assert "gpu:b300:4 on batch" in line(lines, "gres", "ok")
    assert "Job 7 to start" in line(lines, "submission", "ok")
    assert "--container-image" in line(lines, "pyxis", "ok")
    assert "is writable, on nfs" in line(lines, "results folder", "ok")


def test_the_profile_is_submitted_as_a_test_only(doctor: Doctor) -> None:
    runner = cluster()
    doctor("--profile", "GB300", runner=runner)
    (call,) = [argv for argv in runner.called("sbatch") if "--test-only" in argv]
    assert call == (
        "sbatch", "--test-only", "--nodes", "1", "--ntasks-per-node", "1", "--partition", "batch",
        "--gres", "gpu:b300:4", "--time", "03:00:00", "--account", "research", "--wrap", "true",
    )  # fmt: skip
    assert all("scancel" not in argv[:1] or argv[1] == "--version" for argv in runner.calls)


@pytest.mark.parametrize(
    ("changes", "topic", "level", "words", "code"),
    [
        ({"sbatch": [missing()]}, "slurm commands", "fail", "not on PATH: sbatch", 1),
        ({"squeue": [timed_out()]}, "slurm commands", "fail", "timed out", 1),
        ({"sbatch": [said("slurm 20.02.7\n")]}, "slurm commands", "fail", "--overlap", 1),
        ({"sacct": [missing()]}, "accounting", "warn", "sacct", 0),
        ({"enroot": [missing()]}, "enroot", "warn", "compute nodes need it", 0),
        ({"srun": [said("usage: srun\n")]}, "pyxis", "fail", "container.runtime: none", 1),
        ({"stat": [said("ext2/ext3\n")]}, "results folder", "warn", "looks local", 0),
        ({"stat": [said("UNKNOWN (0x1)\n")]}, "results folder", "warn", "cannot be told", 0),
        ({"stat": [missing()]}, "results folder", "warn", "cannot be told", 0),
    ],
)
def test_what_is_wrong_is_said(
    changes: dict[str, list[CommandResult]], topic: str, level: str, words: str, code: int, doctor: Doctor
) -> None:
    status, lines, _ = doctor("--profile", "GB300", runner=cluster(**changes))
    assert words in line(lines, topic, level)
    assert status == code


@pytest.mark.parametrize(
    ("sinfo", "topic", "level", "words"),
    [
        ("other*|up|infinite|4|idle|gpu:h200:8\n", "partition", "fail", "slurm.partition: one of other*"),
        ("batch*|up|1-00:00:00|4|idle|gpu:gb300:4\n", "gres", "fail", "slurm.gres: gpu:gb300:4"),
        ("batch*|up|1-00:00:00|4|idle|gpu:b300:2\n", "gres", "fail", "gpu:b300:4 is on no node of batch"),
        ("batch*|up|1-00:00:00|4|idle|(null)\n", "gres", "fail", "which has no GPU"),
        ("batch*|up|02:00:00|4|idle|gpu:b300:4\n", "time limit", "fail", "03:00:00 is above the 02:00:00"),
        ("batch*|down|infinite|4|idle|gpu:b300:4\n", "partition", "fail", "batch is not up"),
        ("batch*|up|infinite|4|drained|gpu:b300:4\n", "partition", "warn", "0 of 4 nodes usable"),
        ("", "partition", "fail", "no partition is visible"),
        ("nonsense\n", "partition", "fail", "no partition is visible"),
    ],
)
def test_the_partition_is_judged(sinfo: str, topic: str, level: str, words: str, doctor: Doctor) -> None:
    def program(argv: Sequence[str]) -> CommandResult:
        return said("slurm 23.11.4\n") if argv[1] == "--version" else said(sinfo)

    code, lines, _ = doctor("--profile", "GB300", runner=cluster(sinfo=program))
    assert words in line(lines, topic, level)
    assert code == (1 if level == "fail" else 0)


def test_slurms_own_refusal_is_quoted_on_one_line(doctor: Doctor) -> None:
    def sbatch(argv: Sequence[str]) -> CommandResult:
        if argv[1] == "--version":
            return said("slurm 23.11.4\n")
        return said(err="allocation failure: Invalid account\nor account/partition combination\n", code=1)

    code, lines, _ = doctor("--profile", "GB300", runner=cluster(sbatch=sbatch))
    assert code == 1
    assert "Invalid account or account/partition combination" in line(lines, "submission", "fail")


@pytest.mark.parametrize(
    ("ping", "words"),
    [("Slurmctld(primary) at ctl01 is DOWN\n", "ctl01 is DOWN"), ("", "no output")],
)
def test_a_dead_controller(ping: str, words: str, doctor: Doctor) -> None:
    def scontrol(argv: Sequence[str]) -> CommandResult:
        return said(ping) if argv[1] == "ping" else said("slurm 23.11.4\n")

    code, lines, _ = doctor("--profile", "GB300", runner=cluster(scontrol=scontrol))
    assert code == 1
    assert words in line(lines, "controller", "fail")


@pytest.mark.parametrize("ahead", [-90.0, 90.0])
def test_a_skewed_controller_clock(ahead: float, doctor: Doctor) -> None:
    def scontrol(argv: Sequence[str]) -> CommandResult:
        if argv[1] == "ping":
            return said("Slurmctld(primary) at ctl01 is UP\n")
        if argv[1] == "show":
            return said(f"Configuration data as of {now_text(Clock(ahead))}\n")
        return said("slurm 23.11.4\n")

    code, lines, _ = doctor("--profile", "GB300", runner=cluster(scontrol=scontrol))
    assert code == 0
    text = line(lines, "clock", "warn")
    assert "differs from slurmctld by 8" in text or "differs from slurmctld by 90" in text


def test_a_recipe_decides_nodes_image_and_model(doctor: Doctor) -> None:
    code, lines, _ = doctor("--recipe", "wide")
    assert code == 1
    assert "8 of 9 nodes usable, 64 needed" in line(lines, "partition", "fail")
    assert "vllm/vllm-openai:nightly is pulled" in line(lines, "image", "warn")
    assert "org/Model is downloaded by every job" in line(lines, "model", "warn")
    code, lines, _ = doctor("--recipe", "flash")
    assert code == 0


def test_without_a_profile_it_suggests_one(doctor: Doctor) -> None:
    code, lines, _ = doctor()
    assert code == 0
    assert "batch*, debug" in line(lines, "partition", "ok")
    text = line(lines, "profile", "ok")
    assert "partition: batch, gres: 'gpu:b300:4'" in text
    assert "container: {runtime: pyxis}" in text


def test_docker_asks_nothing_of_slurm(doctor: Doctor) -> None:
    runner = cluster()
    code, lines, _ = doctor("--profile", "BOXED", runner=runner)
    assert code == 0
    assert "Client: 27" in line(lines, "docker", "ok")
    assert not runner.called("sbatch")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "NOPE"], "gpu_profiles.yaml has GB300, BOXED"),
        (["--profile", "GB300", "--profiles", "nowhere.yaml"], "no profile file; looked for nowhere.yaml"),
        (["--recipe", "flesh"], "did you mean flash"),
    ],
)
def test_bad_usage(arguments: list[str], words: str, doctor: Doctor) -> None:
    code, lines, err = doctor(*arguments)
    assert (code, lines) == (4, [])
    assert words in err


def deployment(**changes: object) -> Deployment:
    values: dict[str, object] = {
        "recipe": "r", "id": "d", "model": "org/M", "model_path": "org/M", "image": None, "vllm_commit": None,
        "profile": Profile("P", "gb300"), "runtime": "slurm",
    }  # fmt: skip
    return Deployment(**{**values, **changes})  # type: ignore[arg-type]


def test_images(tmp_path: Path) -> None:
    (tmp_path / "here.sqsh").write_bytes(b"")
    assert check_image(None, str(tmp_path / "here.sqsh")).level == "ok"
    assert check_image(None, str(tmp_path / "gone.sqsh")).level == "fail"  # its folder is here, it is not
    assert check_image(None, "/of/the/nodes/only.sqsh").level == "warn"
    local = Profile("P", "gb300", local_images_only=True)
    assert check_image(local, "vllm/vllm-openai:v1").level == "fail"
    assert check_image(Profile("P", "h200", runtime="docker"), "vllm/vllm-openai:v1").level == "ok"


def test_models(tmp_path: Path) -> None:
    assert check_model(deployment(model_path=str(tmp_path))).level == "ok"
    assert check_model(deployment(model_path=str(tmp_path / "gone"))).level == "fail"
    assert check_model(deployment(model_path="/of/the/nodes")).level == "warn"
    # The cache is named as the container sees it; the mount says where that is on the host.
    cache = Profile(
        "P", "gb300", hf_home="/cache/hf", container=ContainerSettings(mounts=(f"{tmp_path}:/cache",))
    )
    assert check_model(deployment(profile=cache)).level == "warn"
    (tmp_path / "hf" / "hub" / "models--org--M").mkdir(parents=True)
    assert check_model(deployment(profile=cache)).level == "ok"


def stat(argv: Sequence[str]) -> CommandResult:
    return said("nfs4\n")


def test_the_results_folder_is_left_as_it_was(tmp_path: Path) -> None:
    findings = check_results(stat, Clock(), tmp_path / "not" / "yet" / "there")
    assert [finding.level for finding in findings] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []


def test_a_skewed_file_server_is_said(tmp_path: Path) -> None:
    findings = check_results(stat, Clock(120.0), tmp_path)
    assert findings[1].level == "warn"
    assert "differs from the file system" in findings[1].text


def test_a_file_where_the_folder_should_be_fails(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    (finding,) = check_results(stat, Clock(), tmp_path / "results")
    assert finding.level == "fail"


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        ("gpu:b300:4", "gpu:b300:4(S:0-1)", True),
        ("gpu:4", "gpu:b300:4(S:0-1)", True),
        ("gpu", "gpu:b300:4", True),
        ("gres/gpu:b300:2", "shard:8,gpu:b300:4(S:0,2)", True),
        ("gpu:b300:4,shard:1", "gpu:b300:4", False),
        ("gpu:b300:8", "gpu:b300:4", False),
        ("gpu:b300:4", "gpu:4", False),
        ("gpu:b300:4", "", False),
    ],
)
def test_gres(wanted: str, there: str, fits: bool) -> None:
    assert gres_fits(wanted, there) is fits


def test_partitions_fold_by_name() -> None:
    batch, debug = parse_partitions(SINFO)
    assert (batch.name, batch.default, batch.nodes, batch.usable) == ("batch", True, 9, 8)
    assert batch.gpus == ("gpu:b300:4",)
    assert (debug.name, debug.gres) == ("debug", ())
