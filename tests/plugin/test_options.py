"""Options: what ``--help`` says, what is refused and how, and what the header tells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_gpubench.plugin import PLATFORMS

from .project import Project

GOLDEN = Path(__file__).parent / "golden" / "help.txt"
EMPTY = '{"schema_version": 1, "run": {}, "rows": []}'


@pytest.fixture
def inside(project: Project, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    del pytester  # it changes the folder, too: ours comes after
    project.recipe("alpha")
    project.write("base.json", EMPTY)
    monkeypatch.chdir(project.folder)
    return project


def test_help_is_golden(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = pytester.runpytest_inprocess("--help").outlines
    start = next(index for index, line in enumerate(lines) if line.startswith("LLM-serving GPU benchmarks"))
    section = lines[start : lines.index("", start)]
    for index, line in enumerate(lines):
        if line.startswith("  gpubench_"):
            section += lines[index : index + 2]
    text = "\n".join(section) + "\n"
    if os.environ.get("GPUBENCH_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_markers_are_registered_with_a_description(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--markers").stdout.str()
    for name in (*PLATFORMS, "gpubench", "slurm", "docker", "native", "multinode", "disagg", "agentic"):
        assert f"@pytest.mark.{name}: " in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpubench-meta=novalue"], "--gpubench-meta: expected KEY=VALUE, got 'novalue'"),
        (["--gpubench-meta==1"], "--gpubench-meta: expected KEY=VALUE, got '=1'"),
        (["--gpubench-retry-infra=-1"], "--gpubench-retry-infra: expected 0 or more, got -1"),
        (["--gpubench-retry-infra=x"], "argument --gpubench-retry-infra: invalid int value: 'x'"),
        (["--gpubench-prefetch=-2"], "--gpubench-prefetch: expected 0 or more, got -2"),
        (["--gpubench-max-nodes=0"], "--gpubench-max-nodes: expected 1 or more, got 0"),
        (["--gpubench-compare=nowhere.json"], "--gpubench-compare: no file */nowhere.json"),
        (["--gpubench-compare=pytest.ini"], "*pytest.ini: cannot be read as an ingest file: *"),
        (["--gpubench-compare-fail=tput_per_gpu:5"], "--gpubench-compare-fail needs --gpubench-compare PATH"),
        (["--gpubench-compare-fail=tput_per_gpu"], "*expected METRIC:PERCENT, such as*"),
        (
            ["--gpubench-compare-fail=tput_per_gpu:x"],
            "*'x' is no percentage; expected a number of 0 or more*",
        ),
        (["--gpubench-compare-fail=tputt_per_gpu:5"], "*unknown metric 'tputt_per_gpu'; did you mean *"),
        (["--gpubench-inferencex=nowhere.yaml"], "--gpubench-inferencex: no file */nowhere.yaml"),
        (["--gpubench-results=pytest.ini"], "--gpubench-results: */pytest.ini is no folder"),
        (["--gpubench-json=workloads"], "--gpubench-json: */workloads is a folder, expected a file*"),
        (["--gpubench-html=workloads"], "--gpubench-html: */workloads is a folder, expected a file*"),
        (["-o", "gpubench_heartbeat=soon"], "gpubench_heartbeat: expected seconds above 0, got 'soon'"),
        (["-o", "gpubench_poll_interval=0"], "gpubench_poll_interval: expected seconds above 0, got '0'"),
        (["-o", "gpubench_profiles=nowhere.yaml"], "gpubench_profiles: no file */nowhere.yaml"),
        (["-o", "gpubench_results=pytest.ini"], "ini gpubench_results: */pytest.ini is no folder"),
    ],
)
def test_a_bad_value_is_a_usage_error(
    inside: Project, pytester: pytest.Pytester, arguments: list[str], says: str
) -> None:
    if "--gpubench-compare-fail" in arguments[0] and "needs" not in says:
        arguments = [*arguments, "--gpubench-compare=base.json"]
    result = pytester.runpytest_inprocess("--workload=alpha", "--mock-slurm", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}"])
    assert "Traceback" not in result.stderr.str()


@pytest.mark.parametrize(
    ("url", "token", "says"),
    [
        ("dashboard", "not-a-real-one", "*PERF_INGEST_URL: expected a http:// or https:// URL*"),
        ("https://dashboard.invalid/rows", "two words", "*INGEST_BEARER_TOKEN: holds characters*"),
    ],
)
def test_a_bad_ingest_setting_is_one_too(
    inside: Project,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    token: str,
    says: str,
) -> None:
    monkeypatch.setenv("PERF_INGEST_URL", url)
    monkeypatch.setenv("INGEST_BEARER_TOKEN", token)
    result = pytester.runpytest_inprocess("--workload=alpha", "--gpubench-dry-run")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([says])
    assert token not in result.stderr.str()


def test_a_suite_that_cannot_be_imported_is_a_collection_error(
    inside: Project, pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest_inprocess("--workload=alpha", "-o", "gpubench_suite=no.such.suite")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ini gpubench_suite: cannot import 'no.such.suite'*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "place", "results"),
    [
        (["--mock-slurm"], "mocked Slurm, simulated vLLM", "results"),
        (["--gpubench-dry-run"], "dry run", "results"),
        (["--gpubench-results=../elsewhere"], "Slurm", "../elsewhere"),
        (["-o", "gpubench_results=kept/here"], "Slurm", "kept/here"),
    ],
)
def test_the_header_names_version_place_run_and_results(
    inside: Project, pytester: pytest.Pytester, arguments: list[str], place: str, results: str
) -> None:
    result = pytester.runpytest_inprocess("--workload=alpha", "--collect-only", *arguments)
    folder = os.path.abspath(inside.folder / results)
    result.stdout.re_match_lines([rf"gpubench: \d+\.\d+\S*, {place}, run \S+, results in {folder}$"])


def test_results_named_by_the_ini_file_lie_beside_it(
    inside: Project, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inside.folder / "below").mkdir()
    monkeypatch.chdir(inside.folder / "below")
    result = pytester.runpytest_inprocess("--workload=alpha", "--collect-only")
    result.stdout.fnmatch_lines([f"gpubench: *results in {inside.folder}/results"])


def test_an_empty_name_is_a_usage_error(inside: Project, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--workload=,")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--workload: expected a recipe name, got an empty one"])


def test_a_rootdir_that_an_option_moved_is_said_and_the_checkout_stays(
    inside: Project, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    profiles = inside.workloads / "gpu_profiles.yaml"
    profiles.write_text(profiles.read_text().replace("/home/bench:", f"{inside.folder.parent}:"))
    results = tmp_path / "elsewhere" / "kept"
    results.mkdir(parents=True)
    options = ("--workload=alpha", "--gpubench-dry-run", "--gpubench-results")
    result = pytester.runpytest_inprocess(*options, str(results))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["gpubench: rootdir is *--option=VALUE*"])
    (plan,) = results.rglob("plan.json")
    (step,) = json.loads(plan.read_text())["srun_argv"]
    assert step[step.index("--container-workdir") + 1] == "/nfs_home/project"
    usual = pytester.runpytest_inprocess(*options[:-1], f"--gpubench-results={results}")
    assert "rootdir is" not in usual.stdout.str()


# -- no Slurm on this machine ------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [(), ("-n", "2")])
def test_no_slurm_is_one_clear_line(inside: Project, parallel: tuple[str, ...]) -> None:
    run = inside.run(
        "-m", "gb300", "--workload=alpha", *parallel, env=inside.env(PATH="/nonexistent-bin:/usr/nowhere")
    )
    assert run.code == pytest.ExitCode.USAGE_ERROR, run.out
    (line,) = [line for line in run.out.splitlines() if "sbatch" in line]
    assert line.startswith("ERROR: no `sbatch` on PATH, which alpha needs. ")
    assert "--mock-slurm" in line
    assert "Traceback" not in run.out
    assert "INTERNAL" not in run.out
    assert not (run.results).exists()


def test_without_slurm_a_dry_run_and_collecting_work(
    inside: Project, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent-bin")
    assert pytester.runpytest_inprocess("--workload=alpha", "--gpubench-dry-run").ret == 0
    assert pytester.runpytest_inprocess("--workload=alpha", "--collect-only").ret == 0
