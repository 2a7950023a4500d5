from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.recipe.serve_args import flag_name, from_list, from_mapping, split_text


def test_quoted_json_and_names_reach_the_process_whole() -> None:
    text = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'
              --served-model-name "Team Model" """
    argv = split_text(text)
    assert len(argv) == 4
    assert json.loads(argv[1]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert argv[3] == "Team Model"


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("--a 1\n  --b=2\t-c", ["--a", "1", "--b=2", "-c"]),
        (r"--path C:\x --re a\.b", ["--path", r"C:\x", "--re", r"a\.b"]),  # no quotes: nothing is special
        ("--x '$HOME' \"a'b\" 'c'\"'\"'d'", ["--x", "$HOME", "a'b", "c'd"]),
        (r'--x "a \"b\" \\ \n"', ["--x", r'a "b" \ \n']),
        ('--c {"mode":3} --d={"a": [1, 2]}', ["--c", '{"mode":3}', '--d={"a": [1, 2]}']),
        ("--c {not json} 'x'", ["--c", "{not", "json}", "x"]),
        ("--name=\"Team Model\" ''", ["--name=Team Model", ""]),
        ("", []),
    ],
)
def test_text(text: str, argv: list[str]) -> None:
    assert split_text(text) == argv


def test_an_open_quote_is_an_error() -> None:
    with pytest.raises(ValueError, match="never closed"):
        split_text("--a 'b c")


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.text(st.characters(exclude_characters="\x00{["), max_size=8), max_size=5))
def test_what_a_shell_would_quote_comes_back(argv: list[str]) -> None:
    text = "'' " + shlex.join(argv)
    assert split_text(text) == ["", *argv]


def test_the_mapping_form() -> None:
    argv = from_mapping(
        {
            "enforce_eager": False,
            "enable_prefix_caching": False,
            "trust_remote_code": True,
            "max_model_len": None,
            "tensor_parallel_size": 8,
            "compilation_config": {"mode": 3},
        }
    )
    assert "--enforce-eager" not in argv
    assert "--no-enable-prefix-caching" in argv
    assert "--trust-remote-code" in argv
    assert "--max-model-len" not in argv
    assert argv[argv.index("--tensor-parallel-size") + 1] == "8"
    at = argv.index("--compilation-config")
    assert json.loads(argv[at + 1]) == {"mode": 3}
    assert argv[at + 2 :] == []


@pytest.mark.parametrize(
    ("settings_", "argv"),
    [
        ({"disable_log_stats": False}, []),  # vLLM has no --no- form of it
        ({"disable_log_stats": True}, ["--disable-log-stats"]),
        ({"no_enable_prefix_caching": True}, ["--no-enable-prefix-caching"]),
        ({"tp": 2, "ep": True}, ["--tensor-parallel-size", "2", "--enable-expert-parallel"]),
        (
            {"speculative_config.num_speculative_tokens": 2},
            ["--speculative-config.num_speculative_tokens", "2"],
        ),
        ({"compilation_config.use_inductor": False}, ["--compilation-config.use_inductor", "false"]),
        ({"compilation_config.use_inductor": "on"}, ["--compilation-config.use_inductor", "true"]),
        ({"enforce_eager": "yes", "async_scheduling": "off"}, ["--enforce-eager", "--no-async-scheduling"]),
        ({"served_model_name": ["a b", "c"]}, ["--served-model-name", "a b", "c"]),
        ({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"--block-size": "64"}, ["--block-size", "64"]),
    ],
)
def test_mapping_details(settings_: dict[str, Any], argv: list[str]) -> None:
    assert from_mapping(settings_) == argv


def test_bad_mapping_values_are_named() -> None:
    with pytest.raises(ValueError, match=r"gpu_memory_utilization: expected a finite number"):
        from_mapping({"gpu_memory_utilization": float("nan")})
    with pytest.raises(ValueError, match="not the name of an option"):
        from_mapping({"a b": 1})
    with pytest.raises(ValueError, match="item 1"):
        from_list(["a", None])


def test_names() -> None:
    assert flag_name("attention_config.use_fp4_indexer_cache") == "attention-config.use_fp4_indexer_cache"
    assert flag_name("dp") == "data-parallel-size"


@pytest.mark.parametrize(
    "block",
    [
        "vllm: {model: a/b, serve: {tensor_parallel_size: 2, gpu_memory_utilization: 0.90}}",
        "vllm: {model: a/b, serve_args: [--tensor-parallel-size, 2, --gpu-memory-utilization, 0.90]}",
        "vllm: {model: a/b, serve_args: --tensor-parallel-size 2 --gpu-memory-utilization 0.90}",
        "vllm: {model: a/b}\nserve: {tensor_parallel_size: 2, gpu_memory_utilization: 0.90}",
    ],
)
def test_all_forms_give_the_same_server(folder: Folder, block: str) -> None:
    point = folder.point(f"gpu: H200\n{block}\n{BENCH}")
    expected = ("--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.90")
    assert point.deployment.serve_args == expected
    assert point.deployment.parallel.tp == 2


def test_two_forms_at_once_are_refused(folder: Folder) -> None:
    text = f"gpu: H200\nvllm: {{model: a/b, serve_args: -tp 2, serve: {{tp: 4}}}}\n{BENCH}"
    assert "serve_args and serve say the same thing twice" in folder.problem(text)
    text = f"{head()}serve: {{tp: 4}}\n{BENCH}"
    assert "recipe.yaml:4:1: serve: vllm has serve arguments too" in folder.problem(text)


def test_an_open_quote_has_its_place(folder: Folder) -> None:
    text = f'gpu: H200\nvllm:\n  model: a/b\n  serve_args: "--x \'y"\n{BENCH}'
    assert folder.problem(text).startswith("recipe.yaml:4:15: vllm.serve_args: the quote ' is never closed")
