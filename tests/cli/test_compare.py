"""``gpubench compare``: exit codes, the table, Markdown that fits where it goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report.demo import demo_rows, demo_run

from pytest_gpubench.cli import main
from pytest_gpubench.cli.compare import headline, markdown_summary, run
from pytest_gpubench.results.compare import Comparison, Delta

FAIL = ["--fail", "tput_per_gpu:5%"]


def ingest(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "run": demo_run(), "rows": rows}))
    return path


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return ingest(tmp_path / "a.json", demo_rows())


def test_equal_runs_have_no_regression(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(before), str(before), *FAIL], env={}) == 0
    out = capsys.readouterr().out
    assert "12 points compared, none regressed, 1 not measured." in out
    assert "+0.0%" in out


def test_a_regression_is_exit_1_and_named(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = ingest(tmp_path / "b.json", demo_rows("demo-2", speed=0.9))
    assert run([str(before), str(slower), *FAIL], env={}) == 1
    out = capsys.readouterr().out
    assert "12 points compared, 12 regressed" in out
    assert "REGRESSED" in out
    assert "allowed are 5%" in out
    # The same loss within what is allowed.
    assert run([str(before), str(slower), "--fail", "tput_per_gpu:15%"], env={}) == 0
    # The other way round it is an improvement.
    assert run([str(slower), str(before), *FAIL], env={}) == 0


def test_the_command_dispatches_here(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["compare", str(before), str(before)]) == 0
    assert "none regressed" in capsys.readouterr().out


def test_a_results_folder_is_its_ingest_file(tmp_path: Path) -> None:
    ingest(tmp_path / "ingest.json", demo_rows())
    assert run([str(tmp_path), str(tmp_path)], env={}) == 0


def test_lost_points_are_said(before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = ingest(tmp_path / "b.json", demo_rows()[:11])
    assert run([str(before), str(fewer)], env={}) == 0
    assert "2 points of A not in B: demo_sweep dp8-1k1k-conc256" in capsys.readouterr().out


def test_nothing_compared_is_said(before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "measured_sha256": "0" * 64, "model": "org/Other"} for row in demo_rows()]
    assert run([str(before), str(ingest(tmp_path / "b.json", rows)), *FAIL], env={}) == 0
    assert "Nothing was compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--fail", "tput_per_gpu"], 4, "--fail 'tput_per_gpu': expected METRIC:PERCENT"),
        (["--fail", "tput_per_gpus:5"], 4, "did you mean tput_per_gpu"),
        (["--github-summary"], 4, "GITHUB_STEP_SUMMARY is not set"),
    ],
)
def test_bad_usage(
    arguments: list[str], code: int, words: str, before: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(before), str(before), *arguments], env={}) == code
    assert words in capsys.readouterr().err


def test_a_missing_file_is_named(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(before), "nowhere.json"], env={}) == 1
    assert "nowhere.json: no such ingest file" in capsys.readouterr().err


def test_the_summary_is_appended(before: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n")
    env = {"GITHUB_STEP_SUMMARY": str(summary)}
    assert run([str(before), str(before), "--github-summary"], env=env) == 0
    text = summary.read_text()
    assert text.startswith("earlier\n### gpubench: 12 points compared, none regressed")
    assert "| workload | point | metric |" in text


def test_an_unwritable_summary_is_an_error(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"GITHUB_STEP_SUMMARY": str(tmp_path / "missing" / "summary.md")}
    assert run([str(before), str(before), "--github-summary"], env=env) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_markdown_fits_and_keeps_regressions(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = demo_rows("demo-2")
    many = [
        {**rows[n % 12], "point": f"p{n}", "measured_sha256": f"{n:064x}", "workload": "w" * 60}
        for n in range(400)
    ]
    ingest(before, many)
    slower = [*many[:-1], {**many[-1], "tput_per_gpu": 0.1}]
    assert run([str(before), str(ingest(tmp_path / "b.json", slower)), *FAIL, "--markdown"], env={}) == 1
    out = capsys.readouterr().out
    assert len(out) < 60_001
    assert "left out for length" in out
    assert "p399 | tput_per_gpu" in out  # the last point, and the only one that matters


def test_markdown_of_a_limit_that_fits_nothing() -> None:
    delta = Delta("tput_per_gpu", "tok/s/GPU", 1.0, 2.0, 1.0, True)
    found = [Comparison("w", "p", "compared", deltas=(delta,))] * 3
    text = markdown_summary(found, [], ["tput_per_gpu"], limit=10)
    assert text == "### gpubench: 3 points compared, none regressed."


def test_warnings_cannot_become_markup() -> None:
    found = [Comparison("w", "p", "compared", warnings=("image differs: @team <b>x</b> -> `y`",))]
    text = markdown_summary(found, [], [], limit=10_000)
    assert "@team" not in text
    assert "<b>" not in text


def test_the_headline_counts() -> None:
    kinds = [Comparison("w", "p", status) for status in ("compared", "no baseline", "not measured")]
    assert headline(kinds) == "1 point compared, none regressed, 1 without a baseline, 1 not measured."
