"""Rows of a disaggregated deployment: figures per role, from a run and from a raw result alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.cli.row import run as gpubench_row

from .scenes import cluster_of, make_project, recipe, row_of, running

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = json.loads((REPOSITORY / "tests/data/results/result_examples.json").read_text())
SHIPPED = REPOSITORY / "workloads" / "deepseek_v4_pro_gb200_3p1d.yaml"
ROLES = {
    "disagg": "true",
    "is_multinode": "true",
    "num_prefill_gpu": 24,
    "num_decode_gpu": 8,
    "prefill_num_workers": 3,
    "decode_num_workers": 1,
    "prefill_tp": 1,
    "prefill_ep": 8,
    "decode_tp": 1,
    "decode_ep": 8,
    "num_nodes": 8,
    "gpu_count": 32,
    "serving_gpu_count": 32,
}


def router_installed() -> bool:
    beside = Path(sys.executable).with_name("vllm-router")
    return beside.exists() or shutil.which("vllm-router") is not None


def check_figures(row: dict[str, Any], raw: dict[str, Any]) -> None:
    """To the last digit: total by all GPUs, output by the decode ones, input by the prefill ones."""
    total, output = raw["total_token_throughput"], raw["output_throughput"]
    assert row["tput_per_gpu"] == total / 32
    assert row["output_tput_per_gpu"] == output / 8
    assert row["input_tput_per_gpu"] == (total - output) / 24
    assert row["median_ttft"] == raw["median_ttft_ms"] / 1000.0
    assert {name: row[name] for name in ROLES} == ROLES


def test_a_published_result_gives_the_published_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = (case for case in REFERENCE["cases"] if case["id"] == "R04")
    text = SHIPPED.read_text().replace("deepseek-ai/DeepSeek-V4-Pro", "example/model")
    text = text.replace("num_prompts: 12288", "num_prompts: 40960")
    (tmp_path / "pd.yaml").write_text(text)
    shutil.copy(SHIPPED.with_name("gpu_profiles.yaml"), tmp_path)
    (tmp_path / "raw.json").write_text(json.dumps(case["raw"]))
    point = "3p-tp1-dp8-ep-1d-tp1-dp8-ep-8k1k-conc4096"
    words = ["--recipe", str(tmp_path / "pd.yaml"), "--point", point, "--raw", str(tmp_path / "raw.json")]
    assert gpubench_row(words, {}) == 0
    row = json.loads(capsys.readouterr().out)
    expected = dict(case["expected"])
    # What the recipe says in its own words, or another project's labels.
    for name in ("hw", "image", "infmax_model_prefix", "framework", "spec_decoding", "kv_p2p_transfer"):
        del expected[name]
    for name in ("prefill_pp", "decode_pp", "prefill_dcp_size", "decode_dcp_size"):
        assert row.pop(name) == expected.pop(name)
    expected |= {"disagg": "true", "is_multinode": "true"}
    assert {name: row.get(name, "absent") for name in expected} == expected
    assert row["status"] == "passed"


@pytest.mark.parametrize("router", ["simulated", "auto"])
def test_a_run_gives_the_figures_of_its_roles(tmp_path: Path, router: str) -> None:
    if router == "auto" and not router_installed():
        pytest.skip("vllm-router is not installed")
    project = make_project(tmp_path / "project", recipe())
    with cluster_of(project, router=router) as cluster, running(project, cluster) as run:
        pass
    assert run.process.returncode == 0, run.text
    row = row_of(project)
    (raw,) = (project.folder / "results" / "pd").glob("*/bench.json")
    check_figures(row, json.loads(raw.read_text()))
    assert (row["completed"], row["failed"], row["total_output_tokens"]) == (24, 0, 24 * 32)
    (log,) = (project.folder / "results" / "pd").glob("*/router.log")
    assert ("simulated router" in log.read_text()) == (router == "simulated")
    plan = json.loads(raw.with_name("plan.json").read_text())
    assert plan["bench_argv"][plan["bench_argv"].index("--base-url") + 1].startswith("http://127.0.0.1:")
    # Every request went through a prefill worker to the decode worker.
    assert cluster.processes() == []


@pytest.mark.slow
@pytest.mark.skipif(not router_installed(), reason="vllm-router is not installed")
def test_the_shipped_recipe_at_concurrency_4096(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--mock-slurm"]
    words += ["--workload", SHIPPED.stem, "--gpubench-results", str(tmp_path / "results")]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout
    (row,) = json.loads((tmp_path / "results" / "ingest.json").read_text())["rows"]
    (raw,) = (tmp_path / "results").glob("*/*/bench.json")
    check_figures(row, json.loads(raw.read_text()))
    assert (row["isl"], row["osl"], row["conc"], row["num_prompts"]) == (8192, 1024, 4096, 12288)
    assert row["total_input_tokens"] == 12288 * 8192
    assert row["total_output_tokens"] == row["completed"] * 1024
    assert row["simulated"] is True
    (log,) = (tmp_path / "results").glob("*/*/router.log")
    assert "vllm_router_rs" in log.read_text()
