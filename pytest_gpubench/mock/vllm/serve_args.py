"""The command line of ``vllm serve``: unknown flags pass, since recipes carry many; impossible ones are
refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ArgumentError", "ServeArgs", "parse"]

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpl": "data-parallel-size-local",
    "-dpr": "data-parallel-rank",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dph": "data-parallel-hybrid-lb",
    "-ep": "enable-expert-parallel",
    "-n": "nnodes",
    "-r": "node-rank",
    "-q": "quantization",
    "-O": "optimization-level",
}
_INTEGERS = (
    "port",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "data-parallel-size-local",
    "nnodes",
    "node-rank",
    "master-port",
    "max-num-seqs",
    "api-server-count",
    "stream-interval",
)
_VALUES = (
    *_INTEGERS,
    "host",
    "model",
    "served-model-name",
    "master-addr",
    "distributed-executor-backend",
    "max-model-len",
    "tokenizer",
    "dtype",
    "quantization",
    "kv-cache-dtype",
    "gpu-memory-utilization",
    "kv-transfer-config",
    "speculative-config",
    "compilation-config",
    "data-parallel-address",
)
_JSON = (
    "kv-transfer-config",
    "speculative-config",
    "compilation-config",
    "hf-overrides",
    "limit-mm-per-prompt",
)
_FLAGS = (
    "headless",
    "enable-expert-parallel",
    "enforce-eager",
    "trust-remote-code",
    "data-parallel-hybrid-lb",
)


class ArgumentError(Exception):
    """A command line that vLLM refuses; ``status`` 2 for a malformed one, 1 for one that makes no sense."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class ServeArgs:
    """What the server does with its command line."""

    model: str
    given: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """An option as text."""
        value = self.given.get(name, default)
        return value if isinstance(value, str) else default

    def number(self, name: str, default: int) -> int:
        """An option as a whole number."""
        return int(self.given.get(name, default))

    @property
    def served(self) -> list[str]:
        """The names that the API answers to."""
        names = self.given.get("served-model-name") or self.model
        return names if isinstance(names, list) else [names]

    @property
    def headless(self) -> bool:
        """A rank without API server."""
        return bool(self.given.get("headless"))

    @property
    def rank(self) -> int:
        """``--node-rank``."""
        return self.number("node-rank", 0)

    @property
    def nnodes(self) -> int:
        """``--nnodes``."""
        return self.number("nnodes", 1)

    @property
    def engines(self) -> int:
        """Data-parallel engines, each with a prefix cache of its own."""
        return self.number("data-parallel-size", 1)

    @property
    def max_model_len(self) -> int | None:
        """``--max-model-len``, which may be written 8k (thousands) or 8K (times 1,024)."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", self.text("max-model-len"))
        if match is None:
            return None
        return int(float(match[1]) * {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}[match[2]])

    @property
    def kv_role(self) -> str:
        """``kv_role`` of ``--kv-transfer-config``: kv_producer, kv_consumer, kv_both, or "" for none."""
        text = self.text("kv-transfer-config")
        return str(json.loads(text).get("kv_role", "")) if text else ""


def parse(argv: list[str]) -> ServeArgs:
    """Read the words after ``vllm serve``; ArgumentError in vLLM's own words."""
    words = list(argv)
    model = ""
    given: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        glued = re.fullmatch(r"(-[a-zA-Z]+)(\d+)", word)
        if glued is not None and glued[1] in _SHORT:
            name, equals, value = _SHORT[glued[1]], "=", glued[2]
        elif name in _SHORT:
            name = _SHORT[name]
        elif not word.startswith("--"):
            if model:
                raise ArgumentError(f"vllm: error: unrecognized arguments: {word}")
            model = word
            continue
        name = name.removeprefix("--").replace("_", "-")
        given[name] = _value(name, value if equals else None, words)
    args = ServeArgs(model or str(given.get("model", "")) or "Qwen/Qwen3-0.6B", given)
    _check(args)
    return args


def _value(name: str, value: str | None, words: list[str]) -> Any:
    if value is None:
        if name in _FLAGS or name.startswith("no-"):
            return True
        if not words or re.match(r"-{1,2}[A-Za-z]", words[0]):
            if name in _VALUES:
                raise ArgumentError(f"vllm serve: error: argument --{name}: expected one argument")
            return True
        value = words.pop(0)
        if name == "served-model-name":
            names = [value]
            while words and not words[0].startswith("-"):
                names.append(words.pop(0))
            return names
    if name in _INTEGERS and not re.fullmatch(r"-?\d+", value):
        raise ArgumentError(f"vllm serve: error: argument --{name}: invalid int value: '{value}'")
    if name in _JSON:
        try:
            json.loads(value)
        except ValueError:
            raise ArgumentError(
                f"vllm serve: error: argument --{name}: Value {value} cannot be converted"
            ) from None
    return value


def _check(args: ServeArgs) -> None:
    tp, pp = args.number("tensor-parallel-size", 1), args.number("pipeline-parallel-size", 1)
    world = tp * pp * args.engines
    if args.headless and "api-server-count" in args.given:
        raise ArgumentError("ValueError: --api-server-count cannot be used with --headless", 1)
    if args.nnodes < 1 or not 0 <= args.rank < args.nnodes:
        raise ArgumentError(
            f"ValueError: --node-rank must be between 0 and {args.nnodes - 1}; got {args.rank}", 1
        )
    if args.headless and args.rank == 0 and "data-parallel-start-rank" not in args.given:
        raise ArgumentError(
            "ValueError: --headless needs --node-rank greater than 0: no API server would run", 1
        )
    if args.nnodes > 1 and args.text("distributed-executor-backend", "mp") != "mp":
        raise ArgumentError(
            "ValueError: nnodes > 1 can only be set when distributed executor backend is mp.", 1
        )
    if world % args.nnodes:
        raise ArgumentError(
            f"ValueError: --nnodes {args.nnodes} must evenly divide the world size ({world})", 1
        )
    if args.nnodes > 1 and args.rank > 0 and not args.headless:
        raise ArgumentError(
            f"ValueError: --node-rank {args.rank} without --headless would start a second API server", 1
        )
