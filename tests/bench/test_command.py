"""Clients by command: the template, what is wrong with one, and the parser."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_gpubench.bench.client import ClientRun, bench_argv, warmup_prompts
from pytest_gpubench.bench.command import check_parser, command_problems, read_result
from pytest_gpubench.errors import ClientError, ResultError
from pytest_gpubench.plan.shell import Runtime
from pytest_gpubench.recipe.types import ClientSettings, Deployment, Load, Profile

TEMPLATE = (
    "bench --url={base_url}/v1 -m {model} --tok {model_path} --out {result_file} -c {concurrency} "
    "-n {num_prompts} --isl {isl} --osl {osl} --rate {request_rate} --seed {seed} "
    """--json '{"a": 1, "b": {"c": "$HOME"}}' """
)


def deployment(command: str | None = TEMPLATE, parser: str | None = None) -> Deployment:
    return Deployment(
        recipe="r",
        id="tp1",
        model="org/model",
        model_path="/models/model",
        image=None,
        vllm_commit=None,
        profile=Profile(name="P", platform="h200"),
        runtime="slurm",
        serve_args=("--served-model-name", "org/model"),
        client=ClientSettings("vllm-bench" if command is None else "command", command, parser),
    )


LOAD = Load("x", 32, 16, 4, 8)
RUN = ClientRun("/results/p", "bench.json", 7, "http://h:1")


def test_every_word_of_the_template_is_filled() -> None:
    assert bench_argv(deployment(), LOAD, RUN) == [
        "bench", "--url=http://h:1/v1", "-m", "org/model", "--tok", "/models/model",
        "--out", "/results/p/bench.json", "-c", "4", "-n", "8", "--isl", "32", "--osl", "16", "--rate", "inf",
        "--seed", "7", "--json", '{"a": 1, "b": {"c": "$HOME"}}',
    ]  # fmt: skip


def test_the_address_is_filled_at_run_time_in_a_plan() -> None:
    argv = bench_argv(deployment(), LOAD, ClientRun("/results/p", "bench.json", 7))
    assert argv[1] == "--url=http://${GPUBENCH_HEAD_0}:${GPUBENCH_API_PORT_0}/v1"
    assert isinstance(argv[1], Runtime)


def test_a_command_warms_up_only_when_the_recipe_says_so() -> None:
    assert warmup_prompts(deployment(), LOAD) == 0
    assert warmup_prompts(deployment(None), LOAD) == 4
    load = Load("x", 32, 16, 4, 8, num_warmups=2)
    assert warmup_prompts(deployment(), load) == 2
    argv = bench_argv(deployment(), load, ClientRun("/d", "warm.json", 9, "http://h:1", warmup=True))
    assert argv[argv.index("-n") + 1] == "2"


def test_a_value_that_the_load_lacks_is_named() -> None:
    with pytest.raises(ClientError, match=r"client.command names \{isl\}, but the load has none"):
        bench_argv(deployment(), Load("x", None, None, 4, 8), RUN)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("guidellm", None, None), ["kind: expected vllm-bench or command (got 'guidellm')"]),
        (("vllm-bench", "x {base_url}", None), ["command: only kind command has one"]),
        (("vllm-bench", None, "a:b"), ["parser: only kind command has one"]),
        (("command", None, None), ["command: expected a command template"]),
        (("command", "x '", None), ["command: cannot be split into words: No closing quotation"]),
        (("command", " ", None), ["command: is empty"]),
        (
            ("command", "x {base_url} {url} {result_file}", None),
            ["{url} is not known; known are base_url, mod"],
        ),
        (("command", "x", None), ["expected {result_file} or {result_dir}", "expected {base_url}"]),
        (
            ("command", "x {base_url} {result_dir}", "parse"),
            ["parser: expected vllm-bench-json or module:func"],
        ),
        (("command", "x {base_url} {result_dir}", "vllm-bench-json"), []),
        (("command", "x {base_url} {result_dir}", "pkg.mod:parse"), []),
    ],
)
def test_problems(settings: tuple[str, str | None, str | None], words: list[str]) -> None:
    found = command_problems(ClientSettings(*settings))
    assert len(found) == len(words)
    assert all(word in problem for word, problem in zip(words, found, strict=True))


@pytest.fixture
def parser_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module beside the recipes, in the folder that pytest is started in."""
    (tmp_path / "my_harness.py").write_text(
        "import json\n"
        "def parse(path):\n"
        "    done = json.loads(path.read_text())\n"
        "    return {'completed': done['turns'], 'num_prompts': done['turns'], 'duration': done['s'],\n"
        "            'total_output_tokens': done['tokens'], 'mean_ttft_ms': float('nan')}\n"
        "def broken(path):\n    raise KeyError('turns')\n"
        "def listed(path):\n    return [1]\n"
        "number = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    return "my_harness"


def test_a_parser_of_ones_own(parser_module: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"turns": 5, "s": 2.0, "tokens": 50}))
    client = ClientSettings("command", "x", f"{parser_module}:parse")
    raw = read_result(client, path)
    assert (raw.completed, raw.output_throughput) == (5, 25.0)
    assert raw.non_finite == ("mean_ttft_ms",)
    assert not raw.stale
    os.utime(path, (1, 1))
    assert read_result(client, path, written_after=100.0).stale


@pytest.mark.parametrize(
    ("function", "words"),
    [("broken", "KeyError: 'turns'"), ("listed", "TypeError: gave a list, expected a mapping")],
)
def test_a_parser_that_fails_is_an_unreadable_result(
    parser_module: str, tmp_path: Path, function: str, words: str
) -> None:
    path = tmp_path / "out.json"
    path.write_text("{}")
    with pytest.raises(ResultError, match=words) as caught:
        read_result(ClientSettings("command", "x", f"{parser_module}:{function}"), path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [("nowhere:parse", "No module named 'nowhere'"), ("{}:nothing", "nothing"), ("{}:number", "is a int")],
)
def test_a_parser_that_cannot_be_loaded_is_named(parser_module: str, name: str, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        check_parser(ClientSettings("command", "x", name.format(parser_module)))
