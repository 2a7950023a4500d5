"""The simulated ``vllm bench serve``: it measures a real endpoint, and writes the real client's file."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.mock import ClientExits, ClientHangs, DiskFull, ResultLate, ResultMissing
from pytest_gpubench.mock.vllm.bench_result import percentile

from .jobs import Site, free_ports, metric, until
from .test_serve import ready

DATA = Path(__file__).parents[1] / "data" / "vllm_bench"
BASE = ("vllm", "bench", "serve", "--backend", "openai", "--model", "team/model", "--dataset-name", "random")
SMALL = (
    "--random-input-len",
    "32",
    "--random-output-len",
    "16",
    "--num-prompts",
    "8",
    "--max-concurrency",
    "4",
)


@pytest.fixture
def url(site: Site) -> str:
    (port,) = free_ports(1)
    site.start("vllm", "serve", "team/model", "--port", str(port))
    found = f"http://127.0.0.1:{port}"
    until(lambda: ready(found), "the server")
    return found


def measure(site: Site, url: str, *words: str) -> dict[str, Any]:
    done = site.run(
        *BASE, *SMALL, "--base-url", url, "--save-result", "--result-filename", "out.json", *words
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((site.folder / "out.json").read_text())
    return found


def test_keys_are_those_of_the_real_client(site: Site, url: str) -> None:
    real = json.loads((DATA / "ok_two_node_mp.json").read_text())
    ours = measure(site, url)
    assert list(ours) == list(real)
    assert [type(ours[key]) for key in real] == [type(real[key]) for key in real]
    assert (ours["completed"], ours["failed"], ours["total_output_tokens"]) == (8, 0, 128)
    assert ours["total_input_tokens"] == 8 * 32


def test_all_failed_is_exit_0_and_zeros(site: Site) -> None:
    real = json.loads((DATA / "all_failed_exit0.json").read_text())
    ours = measure(site, f"http://127.0.0.1:{free_ports(1)[0]}")
    assert list(ours) == list(real)
    changing = {"date", "duration", "queue_times", "model_id", "tokenizer_id"}
    assert {key: ours[key] for key in real if key not in changing} == {
        key: real[key] for key in real if key not in changing
    }


def test_numbers_follow_from_the_details(site: Site, url: str) -> None:
    asked = (
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
        "--metric-percentiles",
        "50,90,99.9",
        "--save-detailed",
    )
    found = measure(site, url, *asked, "--metadata", "run=7", "tp=4", "--goodput", "ttft:10000", "e2el:0.001")
    ttfts = found["ttfts"]
    assert found["mean_ttft_ms"] == pytest.approx(statistics.fmean(ttfts) * 1000)
    assert found["p99.9_ttft_ms"] <= max(ttfts) * 1000
    assert found["p50_e2el_ms"] == pytest.approx(found["median_e2el_ms"])
    assert found["output_throughput"] == pytest.approx(128 / found["duration"])
    assert found["total_token_throughput"] == pytest.approx((128 + 256) / found["duration"])
    tpots = [(latency - ttft) / 15 for latency, ttft in zip(found["latencies"], ttfts, strict=True)]
    assert found["median_tpot_ms"] == pytest.approx(statistics.median(tpots) * 1000)
    assert (found["run"], found["tp"], found["request_goodput"]) == ("7", "4", 0.0)
    assert found["input_lens"] == [32] * 8
    assert found["output_lens"] == [16] * 8
    assert all(text.split() == ["tok"] * 16 for text in found["generated_texts"])
    # No latency is made up: two waves of four took at least what the server makes them take.
    assert found["duration"] >= 2 * (0.01 + 15 * 0.0005)


def test_the_same_seed_meets_its_own_cache(site: Site, url: str) -> None:
    """As on a real server: a warm-up caches the first prompt, the same seed again hits all of them."""
    words = ("--random-input-len", "384", "--num-warmups", "2", "--random-output-len", "8")

    def hits(*more: str) -> tuple[float, float]:
        before = metric(url, "prefix_cache_hits_total"), metric(url, "prefix_cache_queries_total")
        measure(site, url, *words, *more)
        after = metric(url, "prefix_cache_hits_total"), metric(url, "prefix_cache_queries_total")
        return after[0] - before[0], after[1] - before[1]

    asked = 10 * 384.0
    assert hits("--seed", "0") == (2 * 368, asked)
    assert hits("--seed", "0") == (10 * 368, asked)
    assert hits("--seed", "7") == (2 * 368, asked)


def test_lengths_vary_as_asked(site: Site, url: str) -> None:
    found = measure(
        site, url, "--random-range-ratio", "0.5", "--random-prefix-len", "10", "--save-detailed", "--seed=3"
    )
    assert min(found["input_lens"]) >= 26
    assert max(found["input_lens"]) <= 58
    assert len(set(found["input_lens"])) > 1
    assert all(8 <= length <= 24 for length in found["output_lens"])


def test_a_request_rate_spreads_the_arrivals(site: Site, url: str) -> None:
    found = measure(site, url, "--request-rate", "20", "--burstiness", "100")
    assert 0.3 < found["duration"] < 2
    assert (found["request_rate"], found["burstiness"]) == (20.0, 100.0)


def test_chat_backend_and_other_data_sets(site: Site, url: str) -> None:
    chat = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--dataset-name", "speed_bench")
    found = measure(
        site, url, *chat, "--speed-bench-output-len", "24", "--save-detailed", "--num-prompts", "3"
    )
    assert found["output_lens"] == [24] * 3


def test_append_and_default_name(site: Site, url: str) -> None:
    words = (*BASE, *SMALL, "--base-url", url)
    for _ in range(2):
        site.run(*words, "--append-result", "--result-dir", "deep/er", "--result-filename", "a.json")
    lines = (site.folder / "deep/er/a.json").read_text().splitlines()
    assert [json.loads(line)["completed"] for line in lines] == [8, 8]
    site.run(*words, "--save-result", "--label", "lab")
    assert len(list(site.folder.glob("lab-infqps-model-*.json"))) == 1


def test_ready_check_waits(site: Site) -> None:
    (port,) = free_ports(1)
    site.start("vllm", "serve", "team/model", "--port", str(port), env={"GPUBENCH_SIM_LOAD_SECONDS": "0.6"})
    found = measure(site, f"http://127.0.0.1:{port}", "--ready-check-timeout-sec", "10")
    assert found["completed"] == 8
    done = site.run(*BASE, *SMALL, "--port", str(free_ports(1)[0]), "--ready-check-timeout-sec", "1")
    assert (done.returncode, "Initial test run failed" in done.stderr) == (1, True)


def test_unknown_options_are_refused(site: Site) -> None:
    for words in (["--foo"], ["--max-conc", "3"], ["--dataset-name", "nope"], ["--num-prompts", "x"]):
        done = site.run(*BASE, *words)
        assert done.returncode == 2, words
        assert "vllm bench serve: error:" in done.stderr
    assert site.run("vllm", "frobnicate").returncode == 2


def test_underscores_are_dashes_and_the_model_is_found(site: Site, url: str) -> None:
    words = ["vllm", "bench", "serve", "--base_url", url, "--num_prompts=2", "--random_output_len", "4"]
    done = site.run(*words, "--save_result", "--result_filename", "u.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((site.folder / "u.json").read_text())["model_id"] == "team/model"


# -- faults --------------------------------------------------------------------------------------------------


def attempt(site: Site, url: str) -> int:
    words = (*BASE, *SMALL, "--base-url", url, "--save-result", "--result-filename", "f.json")
    return site.run(*words).returncode


def test_result_late(site: Site, url: str) -> None:
    site.cluster.inject(ResultLate(0.6))
    assert attempt(site, url) == 0
    assert not (site.folder / "f.json").exists()
    until(lambda: (site.folder / "f.json").exists(), "the result", 3)


def test_result_missing(site: Site, url: str) -> None:
    site.cluster.inject(ResultMissing())
    assert attempt(site, url) == 0
    assert not (site.folder / "f.json").exists()


def test_disk_full(site: Site, url: str) -> None:
    site.cluster.inject(DiskFull())
    assert attempt(site, url) == 1
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads((site.folder / "f.json").read_text())


def test_client_exits(site: Site, url: str) -> None:
    site.cluster.inject(ClientExits(code=7, text="ValueError: boom"))
    assert attempt(site, url) == 7
    site.cluster.clear()
    site.cluster.inject(ClientExits(code=-9))
    assert attempt(site, url) in (-9, 137)


def test_client_hangs_after_measuring(site: Site, url: str) -> None:
    site.cluster.inject(ClientHangs())
    process = site.start(*BASE, *SMALL, "--base-url", url, "--save-result", "--result-filename", "f.json")
    until(lambda: metric(url, "request_success_total") == 8, "the load")
    time.sleep(0.5)
    assert process.poll() is None
    assert not (site.folder / "f.json").exists()


def test_faults_see_the_jobs_name_from_outside_of_it(site: Site, url: str) -> None:
    """A client step that is started from outside has another SLURM_JOB_NAME than its job."""
    site.cluster.inject(ClientExits(code=5, match="mine-*"))
    job = site.hold("--job-name=mine-1")
    assert site.step(job, *BASE, *SMALL, "--base-url", url).returncode == 5
    assert attempt(site, url) == 0


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 99, 0.0), ([3.0], 50, 3.0), ([4.0, 1.0, 3.0, 2.0], 50, 2.5), ([1.0, 2.0], 99, 1.99)],
)
def test_percentiles_are_numpys(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)
