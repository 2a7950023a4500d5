"""The recipe's serve arguments as the process receives them: from text, from a list, from a mapping."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from pytest_gpubench.recipe.yaml import written

__all__ = ["flag_name", "from_list", "from_mapping", "split_text"]

# vLLM 0.32: the switches without a ``--no-`` form; every other switch has one.
_BARE_ONLY = frozenset(
    {
        "headless",
        "grpc",
        "data-parallel-multi-port-external-lb",
        "disable-log-stats",
        "aggregate-engine-logging",
    }
)

# vLLM 0.32: options that take several words; every other list is one JSON argument.
_SEVERAL_WORDS = frozenset(
    {
        "lora-modules",
        "api-key",
        "allowed-media-domains",
        "served-model-name",
        "sleep-preserve-parameter-names",
        "logits-processors",
        "ignore-patterns",
        "numa-bind-nodes",
        "numa-bind-cpus",
        "kv-cache-dtype-skip-layers",
        "cpu-offload-params",
        "offload-params",
        "lora-target-modules",
        "collect-detailed-traces",
        "cudagraph-capture-sizes",
    }
)

_SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dcp": "decode-context-parallel-size",
    "ep": "enable-expert-parallel",
}


def split_text(text: str) -> list[str]:
    """Split ``serve_args`` text into arguments.

    Without quotes this is bash word splitting, as perf-eval passes it on. With quotes they group and
    disappear as in a shell, so that JSON and names with blanks survive; a bare JSON object or list is
    kept whole with its quotes, where a shell would strip them. Nothing is expanded. Raises ValueError
    for a quote that is never closed.
    """
    if "'" not in text and '"' not in text:
        return text.split()
    words: list[str] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        word, position = _word(text, position)
        words.append(word)
    return words


def _word(text: str, position: int) -> tuple[str, int]:
    parts: list[str] = []
    start = position
    while position < len(text) and not text[position].isspace():
        character = text[position]
        if character in "{[" and (position == start or text[position - 1] == "="):
            end = _json_end(text, position)
            if end is not None:
                return "".join(parts) + text[position:end], end
        if character in "'\"":
            part, position = _quoted(text, position)
            parts.append(part)
        elif character == "\\" and position + 1 < len(text):
            parts.append(text[position + 1])
            position += 2
        else:
            parts.append(character)
            position += 1
    return "".join(parts), position


def _quoted(text: str, position: int) -> tuple[str, int]:
    quote = text[position]
    parts: list[str] = []
    index = position + 1
    while index < len(text):
        character = text[index]
        if character == quote:
            return "".join(parts), index + 1
        if quote == '"' and character == "\\" and text[index + 1 : index + 2] in ('"', "\\", "$", "`"):
            parts.append(text[index + 1])
            index += 2
            continue
        parts.append(character)
        index += 1
    raise ValueError(f"the quote {quote} is never closed (from {text[position : position + 30]!r})")


def _json_end(text: str, position: int) -> int | None:
    """Where a JSON object or list that starts here ends, if one does and a blank or the end follows."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    return end if end == len(text) or text[end].isspace() else None


def flag_name(name: str) -> str:
    """``enable_prefix_caching``, ``--enable-prefix-caching`` and ``tp`` as vLLM's own long option name.

    What follows a dot is a field of a config object and keeps its underscores.
    """
    head, dot, rest = name.lstrip("-").partition(".")
    head = head.replace("_", "-")
    return _SHORT.get(head, head) + dot + rest


_BOOLEANS = {"on": True, "yes": True, "off": False, "no": False}


def from_mapping(settings: Mapping[str, object]) -> list[str]:
    """``{tensor_parallel_size: 2, enforce_eager: false, …}`` as arguments.

    true is the flag, false its ``--no-`` form (left out where vLLM has none), null is left out, a
    mapping or a list is one JSON argument. ``on``, ``off``, ``yes`` and ``no`` are YAML 1.1's booleans: no
    option of vLLM takes them as text. A field (``compilation_config.use_inductor``) takes its boolean as a
    value. Raises ValueError naming the key that cannot be an argument.
    """
    arguments: list[str] = []
    for key, value in settings.items():
        name = flag_name(key)
        if not name or any(character.isspace() for character in name):
            raise ValueError(f"{key!r} is not the name of an option")
        if value is None:
            continue
        if isinstance(value, str):
            value = _BOOLEANS.get(value.lower(), value)
        if isinstance(value, bool) and "." not in name:
            arguments += _switch(name, value)
        elif isinstance(value, Sequence) and not isinstance(value, str) and name in _SEVERAL_WORDS:
            arguments += [f"--{name}", *(_scalar(key, item) for item in value)]
        elif isinstance(value, (Mapping, list, tuple)):
            arguments += [f"--{name}", _json(key, value)]
        else:
            arguments += [f"--{name}", _scalar(key, value)]
    return arguments


def _switch(name: str, on: bool) -> list[str]:
    if name.startswith("no-"):  # {no_enable_prefix_caching: true} says what it says
        return [f"--{name}"] if on else [f"--{name.removeprefix('no-')}"]
    if on:
        return [f"--{name}"]
    return [] if name in _BARE_ONLY else [f"--no-{name}"]


def _json(key: str, value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{key}: not a JSON value: {error}") from error


def _scalar(key: str, value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key}: expected a finite number (got {value})")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return written(value)
    raise ValueError(f"{key}: expected text or a number in the list")


def from_list(items: Sequence[object]) -> list[str]:
    """A list of arguments, each one word whatever it holds; numbers keep their spelling."""
    arguments = []
    for index, item in enumerate(items):
        if isinstance(item, (Mapping, list)):
            arguments.append(_json(f"item {index}", item))
        elif item is None or isinstance(item, bool):
            raise ValueError(f"item {index}: expected text or a number (got {item})")
        else:
            arguments.append(_scalar(f"item {index}", item))
    return arguments
