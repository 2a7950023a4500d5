"""The command line of ``vllm bench serve`` 0.32; unknown options are refused, abbreviations too."""

from __future__ import annotations

import argparse
import json

__all__ = ["BACKENDS", "DATASETS", "build", "normalise", "ratios"]

_TEXT = """
label base-url header* model tokenizer tokenizer-mode logprobs percentile-metrics metric-percentiles
goodput+ request-id-prefix result-dir result-filename metadata* served-model-name lora-modules+
extra-body chat-template-kwargs ramp-up-strategy random-range-ratio dataset-path hf-name hf-subset
hf-split speed-bench-dataset-subset speed-bench-category spec-bench-category lora-assignment
timeline-itl-thresholds
"""
_NUMBERS = """
port max-concurrency num-warmups num-prompts seed input-len output-len random-input-len random-output-len
random-prefix-len random-batch-size sharegpt-output-len custom-output-len hf-output-len
spec-bench-output-len speed-bench-output-len prefix-repetition-prefix-len prefix-repetition-suffix-len
prefix-repetition-num-prefixes prefix-repetition-output-len ready-check-timeout-sec top-k
ramp-up-start-rps ramp-up-end-rps
"""
_REALS = """
request-rate burstiness probe-request-rate top-p min-p temperature frequency-penalty presence-penalty
repetition-penalty
"""
_FLAGS = """
disable-tqdm profile save-result save-detailed append-result ignore-eos use-beam-search insecure
trust-remote-code skip-tokenizer-init skip-chat-template disable-shuffle no-stream no-oversample
plot-timeline plot-dataset-stats enable-multimodal-chat no-reranker
"""
BACKENDS = ["vllm", "openai", "openai-chat", "openai-audio", "openai-embeddings"]
BACKENDS += ["vllm-chat", "sglang", "tgi", "lmdeploy"]
"""Kinds of endpoints; those with ``chat`` in their name send messages."""

DATASETS = ["sharegpt", "burstgpt", "sonnet", "random", "random-mm", "random-rerank", "hf", "custom"]
DATASETS += [
    "custom_mm",
    "prefix_repetition",
    "spec_bench",
    "speed_bench",
    "timed_trace",
    "txt-slices",
    "bfcl",
]
"""Data sets; all but ``random`` are made up from their name and the seed."""


def build() -> argparse.ArgumentParser:
    """The parser; its errors exit with status 2 as argparse's do."""
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    for name in _TEXT.split():
        if name[-1] in "*+":
            parser.add_argument(f"--{name[:-1]}", nargs=name[-1])
        else:
            parser.add_argument(f"--{name}")
    for name in _NUMBERS.split():
        parser.add_argument(f"--{name}", type=int)
    for name in _REALS.split():
        parser.add_argument(f"--{name}", type=float)
    for name in _FLAGS.split():
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--backend", "--endpoint-type", choices=BACKENDS, default="openai")
    parser.add_argument("--dataset-name", choices=DATASETS, default="random")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--endpoint", default="/v1/completions")
    parser.set_defaults(
        port=8000,
        num_prompts=1000,
        num_warmups=0,
        seed=0,
        request_rate=float("inf"),
        burstiness=1.0,
        random_input_len=1024,
        random_output_len=128,
        random_prefix_len=0,
        random_range_ratio="0.0",
        metric_percentiles="99",
        ready_check_timeout_sec=0,
    )
    return parser


def normalise(argv: list[str]) -> list[str]:
    """Underscores in option names are dashes, as vLLM's parser has it."""
    found = []
    for word in argv:
        name, equals, value = word.partition("=")
        found.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
    return found


def ratios(text: str) -> tuple[float, float]:
    """``--random-range-ratio`` for input and output; ValueError outside of [0, 1)."""
    try:
        value = float(text)
        pair = (value, value)
    except ValueError:
        data = json.loads(text)
        pair = (float(data.get("input", 0.0)), float(data.get("output", 0.0)))
    if not all(0 <= one < 1 for one in pair):
        raise ValueError(f"range_ratio must be in [0, 1), got {text}")
    return pair
