"""The simulated ``lm_eval``."""

from __future__ import annotations

import json

import pytest

from pytest_gpubench.mock import ClientExits, ResultMissing

from .jobs import Site, metric
from .test_bench import url

__all__ = ["url"]


def words(url: str, tasks: str = "gsm8k", **extra: str) -> list[str]:
    args = f"model=team/model,base_url={url}/v1/completions,num_concurrent=4,max_retries=3"
    found = [
        "lm_eval",
        "--model",
        "local-completions",
        "--model_args",
        args,
        "--tasks",
        tasks,
        "--num_fewshot",
        "5",
    ]
    for name, value in extra.items():
        found += [f"--{name}", value]
    return found


def test_results_and_samples_where_the_real_one_puts_them(site: Site, url: str) -> None:
    site.cluster.simulate(score={"gsm8k": {"exact_match,strict-match": 0.91}, "hellaswag": 0.5})
    done = site.run(*words(url, "gsm8k,hellaswag", output_path="out"), "--log_samples")
    assert done.returncode == 0, done.stderr
    (path,) = (site.folder / "out" / "team__model").glob("results_*.json")
    found = json.loads(path.read_text())
    assert found["results"]["gsm8k"]["exact_match,strict-match"] == 0.91
    assert found["results"]["gsm8k"]["exact_match_stderr,strict-match"] > 0
    assert found["results"]["hellaswag"]["acc_norm,none"] == 0.5
    assert found["n-shot"] == {"gsm8k": 5, "hellaswag": 5}
    samples = sorted(
        path.name.split("_")[1] for path in (site.folder / "out" / "team__model").glob("samples_*.jsonl")
    )
    assert samples == ["gsm8k", "hellaswag"]
    assert metric(url, "request_success_total") == 16
    assert "|gsm8k|3|strict-match|5|exact_match|↑|0.9100|" in done.stdout


def test_output_path_may_be_a_file(site: Site, url: str) -> None:
    assert site.run(*words(url, output_path="res/acc.json", limit="2")).returncode == 0
    (path,) = (site.folder / "res").glob("acc_*.json")
    assert json.loads(path.read_text())["n-samples"]["gsm8k"]["effective"] == 2


def test_chat(site: Site, url: str) -> None:
    args = f"model=team/model,base_url={url}/v1/chat/completions"
    done = site.run("lm_eval", "--model", "local-chat-completions", "--model_args", args, "--tasks", "mmlu")
    assert (done.returncode, "|mmlu|3|none|0|acc|" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["--tasks", "gsm8k", "--foo"], 2),
        (["--tasks", "gsm8k", "--model", "hf"], 1),
        (["--model", "local-completions", "--model_args", "base_url=http://127.0.0.1:9/v1"], 1),
        (
            [
                "--model",
                "local-completions",
                "--model_args",
                "base_url=http://127.0.0.1:9/v1",
                "--tasks",
                "gsm8k",
            ],
            1,
        ),
    ],
)
def test_refusals(site: Site, argv: list[str], status: int) -> None:
    assert site.run("lm_eval", *argv).returncode == status


def test_faults(site: Site, url: str) -> None:
    site.cluster.inject(ResultMissing())
    assert site.run(*words(url, output_path="none")).returncode == 0
    assert not (site.folder / "none").exists()
    site.cluster.inject(ClientExits(code=3))
    assert site.run(*words(url)).returncode == 3
