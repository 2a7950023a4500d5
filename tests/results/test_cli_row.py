"""``gpubench row`` against the published rows, from recipe file and result file alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.cli.row import run
from results.points import DATA

REFERENCE = json.loads((DATA / "results" / "ingest_expected.json").read_text())
RECIPES = DATA / "results" / "perf_eval"
FLASH = RECIPES / "deepseek_v4_flash_gb300_slurm.yaml"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(REFERENCE["raw_results"]["I02"]["json"]))
    return path


@pytest.mark.parametrize("case", REFERENCE["rows"], ids=lambda case: case["id"])
def test_published_rows_come_out_exactly(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(REFERENCE["raw_results"][case["raw"]]["json"]))
    prefix = "tp2-dp4-ep" if "gb300" in case["workload"] else "tp8"
    argv = ["--recipe", str(RECIPES / f"{case['workload']}.yaml"), "--point", f"{prefix}-{case['run']}"]
    argv += ["--raw", str(path), "--date", case["args"]["date"]]
    assert run(argv, {}) == 0
    row = json.loads(capsys.readouterr().out)
    expected = case["expected_row"]
    assert {key: row.get(key, "absent") for key in expected} == expected
    assert ("dp" in row) == ("dp" in expected)
    assert row["status"] == ("passed" if case["id"] == "I02-gb300" else "failed")
    if case["id"] == "I01-gb300":
        assert {problem["reason"] for problem in row["problems"]} == {
            "wrong_model",
            "wrong_load",
            "output_tokens_off",
            "input_tokens_off",
        }


def test_the_whole_node_id_names_the_point_and_the_file_gives_the_date(
    raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(raw, (1767323045.0, 1767323045.0))
    node = "workloads/x.yaml::test_serving[tp2-dp4-ep-1k-in-1k-out-conc-64]"
    assert run(["--recipe", str(FLASH), "--point", node, "--raw", str(raw)], {"NIGHTLY": "1"}) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["date"], row["nightly"]) == ("2026-01-02 03:04:05", True)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"--point": "tp2-dp4-ep-1k-in-1k-out-conc-6"}, 4, "did you mean tp2-dp4-ep-1k-in-1k-out-conc-64?"),
        ({"--point": "zzz"}, 4, "it has tp2-dp4-ep-1k-in-1k-out-conc-64"),
        ({"--date": "yesterday"}, 4, "expected 'YYYY-MM-DD HH:MM:SS'"),
        ({"--recipe": str(RECIPES / "none.yaml")}, 4, "none.yaml"),
        ({"--raw": "/none/bench.json"}, 1, "/none/bench.json: does not exist"),
        (
            {"--recipe": str(RECIPES / "kimi_k2_5_h200.yaml"), "--point": "tp8-gsm8k"},
            4,
            "is of kind accuracy",
        ),
    ],
)
def test_errors_name_what_is_wrong_without_a_traceback(
    raw: Path,
    changes: dict[str, str],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {
        "--recipe": str(FLASH),
        "--point": "tp2-dp4-ep-1k-in-1k-out-conc-64",
        "--raw": str(raw),
        **changes,
    }
    assert run([part for pair in options.items() for part in pair], {}) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpubench row: ")
    assert words in captured.err
