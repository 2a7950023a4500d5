"""The harnesses' commands, and their result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpubench.bench.accuracy import lm_eval_argv, read_results, scores_of
from pytest_gpubench.bench.bfcl import bfcl_commands, chosen_cases, read_bfcl_scores, unsupported
from pytest_gpubench.bench.client import api_url
from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import ResultError
from pytest_gpubench.plan.shell import Runtime
from pytest_gpubench.recipe.types import AccuracyTask, Deployment, Profile


def deployment(model: str = "org/model", path: str | None = None, *serve_args: str) -> Deployment:
    return Deployment(
        recipe="r",
        id="tp1",
        model=model,
        model_path=path or model,
        image=None,
        vllm_commit=None,
        profile=Profile(name="P", platform="h200"),
        runtime="slurm",
        serve_args=serve_args,
    )


TASK = AccuracyTask("lm_eval", "gsm8k", 5, "num_concurrent=64,max_retries=3,tokenized_requests=False")


def test_lm_eval_is_told_what_the_recipe_says() -> None:
    assert lm_eval_argv(deployment(), TASK, "http://h:1", "/results/lm_eval") == [
        "lm_eval", "--model", "local-completions",
        "--model_args", "model=org/model,base_url=http://h:1/v1/completions,num_concurrent=64,max_retries=3,"
        "tokenized_requests=False",
        "--tasks", "gsm8k", "--num_fewshot", "5", "--log_samples", "--output_path", "/results/lm_eval",
    ]  # fmt: skip


def test_a_served_name_is_asked_for_and_the_path_gives_the_tokenizer() -> None:
    served = deployment("org/model", "/scratch/model", "--served-model-name", "org/model")
    (arguments,) = (word for word in lm_eval_argv(served, TASK, "http://h:1", "/o") if "base_url" in word)
    assert arguments.startswith("model=org/model,")
    assert "tokenizer=/scratch/model" in arguments
    own = AccuracyTask("lm_eval", "gsm8k", 5, "tokenizer=org/other")
    (arguments,) = (word for word in lm_eval_argv(served, own, "http://h:1", "/o") if "base_url" in word)
    assert "/scratch/model" not in arguments


def test_a_plan_shows_the_address_as_the_script_has_it() -> None:
    argv = lm_eval_argv(deployment(), TASK, api_url(deployment()), "/o")
    assert isinstance(argv[4], Runtime)
    assert "base_url=http://${GPUBENCH_HEAD_0}:${GPUBENCH_API_PORT_0}/v1/completions" in argv[4]


RESULTS: dict[str, JSON] = {
    "results": {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.9590,
            "exact_match_stderr,strict-match": 0.0055,
            "exact_match,flexible-extract": 0.9581,
            "exact_match_stderr,flexible-extract": "N/A",
            "sample_len": 1319,
        }
    }
}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / "org__model" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_scores_with_their_errors(tmp_path: Path) -> None:
    write(tmp_path, "results_2026-01-01.json", RESULTS)
    data, path = read_results(tmp_path, "gsm8k")
    scores = scores_of(data, "gsm8k", path)
    assert [(score.task, score.metric, score.value, score.stderr) for score in scores] == [
        ("gsm8k", "exact_match,strict-match", 0.9590, 0.0055),
        ("gsm8k", "exact_match,flexible-extract", 0.9581, None),
    ]


def test_a_group_without_scores_gives_those_of_its_parts(tmp_path: Path) -> None:
    parts: dict[str, JSON] = {
        "mmlu": {"alias": "mmlu"},
        "mmlu_law": {"acc,none": 0.5},
        "mmlu_med": {"acc,none": float("nan")},
    }
    scores = scores_of({"results": parts}, "mmlu", tmp_path)
    assert [(score.task, score.value) for score in scores] == [("mmlu_law", 0.5), ("mmlu_med", None)]
    whole: dict[str, JSON] = {**parts, "mmlu": {"acc,none": 0.6}}
    assert [score.task for score in scores_of({"results": whole}, "mmlu", tmp_path)] == ["mmlu"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "lm_eval left no results_"),
        ("{cut", "not a JSON file"),
        ([], "expected an object with `results`"),
        ({"results": {}}, "expected a `results` object"),
        ({"results": {"gsm8k": {"alias": "gsm8k"}}}, "no score for gsm8k; it has gsm8k"),
    ],
)
def test_unusable_results_are_named(tmp_path: Path, content: object, words: str) -> None:
    if content is not None:
        write(tmp_path, "results_1.json", content)

    def read() -> None:
        data, path = read_results(tmp_path, "gsm8k")
        scores_of(data, "gsm8k", path)

    with pytest.raises(ResultError, match=words):
        read()


BFCL = AccuracyTask("bfcl", "simple_python", options=(("num_threads", "8"), ("temperature", "0.001")))


def test_bfcl_is_given_the_live_endpoint() -> None:
    generate, evaluate = bfcl_commands(deployment(), BFCL, "http://10.0.0.1:8000", "/results/bfcl")
    env = dict(word.split("=", 1) for word in generate[1 : generate.index("bash")])
    assert env == {
        "BFCL_PROJECT_ROOT": "/results/bfcl",
        "LOCAL_SERVER_ENDPOINT": "10.0.0.1",
        "LOCAL_SERVER_PORT": "8000",
        "OPENAI_BASE_URL": "http://10.0.0.1:8000/v1",
        "REMOTE_OPENAI_BASE_URL": "http://10.0.0.1:8000/v1",
        "REMOTE_OPENAI_TOKENIZER_PATH": "org/model",
    }
    assert generate[-11:] == [
        "generate", "--model", "org/model", "--test-category", "simple_python", "--skip-server-setup",
        "--allow-overwrite", "--num-threads", "8", "--temperature", "0.001",
    ]  # fmt: skip
    assert evaluate[-5:] == ["evaluate", "--model", "org/model", "--test-category", "simple_python"]


def test_a_limit_of_cases_is_bfcls_list_of_ids() -> None:
    limited = AccuracyTask("bfcl", "multiple", options=(("max_test_cases", "3"),))
    assert json.loads(chosen_cases(limited) or "") == {"multiple": ["multiple_0", "multiple_1", "multiple_2"]}
    assert chosen_cases(BFCL) is None
    generate, evaluate = bfcl_commands(deployment(), limited, "http://h:1", "/r")
    assert "--run-ids" in generate
    assert "--partial-eval" in evaluate


def test_what_bfcls_command_line_cannot_say_is_a_reason_to_skip() -> None:
    assert unsupported(BFCL) is None
    limited = AccuracyTask("bfcl", "multi_turn_base", options=(("maximum_step_limit", "20"),))
    assert "no option for maximum_step_limit" in (unsupported(limited) or "")


def test_bfcl_scores(tmp_path: Path) -> None:
    folder = tmp_path / "score" / "org_model" / "non_live"
    folder.mkdir(parents=True)
    header = {"accuracy": 0.75, "correct_count": 300, "total_count": 401}
    (folder / "BFCL_v4_simple_python_score.json").write_text(
        json.dumps(header) + '\n{"id": "simple_python_1"}\n'
    )
    (folder / "BFCL_v4_live_simple_python_score.json").write_text('{"accuracy": 0.1}\n')
    (score,), path = read_bfcl_scores(tmp_path, "simple_python")
    assert (score.task, score.metric, score.value) == ("simple_python", "acc,none", 0.75)
    assert score.stderr == pytest.approx((0.75 * 0.25 / 400) ** 0.5)
    assert path.name == "BFCL_v4_simple_python_score.json"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "left no score file for simple_python"),
        ("", "expected an object with the accuracy"),
        ("[1]\n", "expected an object"),
        ('{"accuracy": "high"}\n', "expected a number as accuracy"),
        ("{cut\n", "is not a file of JSON lines"),
    ],
)
def test_unusable_bfcl_scores_are_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "score" / "m").mkdir(parents=True)
        (tmp_path / "score" / "m" / "BFCL_v4_simple_python_score.json").write_text(text)
    with pytest.raises(ResultError, match=words):
        read_bfcl_scores(tmp_path, "simple_python")
