"""The command line of the simulated ``vllm serve``."""

from __future__ import annotations

import pytest

from pytest_gpubench.mock.vllm.serve_args import ArgumentError, parse


def test_unknown_flags_pass() -> None:
    words = "org/m --tensor_parallel_size 8 --foo bar --baz --kv-cache-dtype=fp8 -dp 2 --max-model-len 8K"
    words += " --headless --node-rank=1 -n2 --kv-transfer-config"
    args = parse([*words.split(), '{"kv_role": "kv_both"}'])
    assert (args.model, args.number("tensor-parallel-size", 1), args.engines) == ("org/m", 8, 2)
    assert args.max_model_len == 8192
    assert (args.headless, args.rank, args.nnodes, args.kv_role) == (True, 1, 2, "kv_both")
    assert args.given["foo"] == "bar"
    assert args.given["baz"] is True
    assert args.served == ["org/m"]


def test_names_and_lengths() -> None:
    assert parse(["m", "--served-model-name", "a", "b", "--port", "1"]).served == ["a", "b"]
    assert parse(["m", "--served-model-name=a"]).served == ["a"]
    assert parse(["m", "--max-model-len", "1.5k"]).max_model_len == 1500
    assert parse(["m", "--max-model-len", "auto"]).max_model_len is None
    assert parse(["--model", "m"]).model == "m"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["m", "--port"], 2, "argument --port: expected one argument"),
        (["m", "--port", "--foo"], 2, "argument --port: expected one argument"),
        (["m", "-tp", "eight"], 2, "argument --tensor-parallel-size: invalid int value: 'eight'"),
        (
            ["m", "--speculative-config", "{bad"],
            2,
            "argument --speculative-config: Value {bad cannot be converted",
        ),
        (["m", "other"], 2, "unrecognized arguments: other"),
        (["m", "--headless"], 1, "--headless needs --node-rank greater than 0"),
        (["m", "-n", "2", "-r", "2"], 1, "--node-rank must be between 0 and 1; got 2"),
        (["m", "-n", "2", "-r", "1", "-tp", "2"], 1, "without --headless would start a second API server"),
        (["m", "-n", "2", "-tp", "3"], 1, "must evenly divide the world size"),
        (["m", "-n", "2", "-tp", "2", "--distributed-executor-backend", "ray"], 1, "executor backend is mp"),
        (
            ["m", "-n", "2", "-r", "1", "--headless", "--api-server-count", "2"],
            1,
            "cannot be used with --headless",
        ),
    ],
)
def test_refusals(words: list[str], status: int, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(words)
    assert (caught.value.status, message in str(caught.value)) == (status, True)
