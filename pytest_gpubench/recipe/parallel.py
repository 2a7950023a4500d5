"""What serve arguments say about parallelism, and which of them only the launcher may set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_gpubench.recipe.types import Parallel

__all__ = [
    "SIZE_FLAGS",
    "find_option",
    "has_option",
    "launcher_owned",
    "max_model_len",
    "parallel_id",
    "parallel_of",
    "without_sizes",
]

SIZE_FLAGS = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dcp": "decode-context-parallel-size",
}
"""Sizes by their short names, with vLLM's option of each."""

_EXPERT = "enable-expert-parallel"
_SHORT = {f"-{short}": name for short, name in SIZE_FLAGS.items()} | {"-ep": _EXPERT}
_SHORT |= {f"--{short}": name for short, name in SIZE_FLAGS.items()}  # as perf-eval's parser has it
# argparse takes unambiguous beginnings; these are the shortest that no other vLLM option shares.
_BEGINNINGS = {
    "ten": SIZE_FLAGS["tp"],
    "pi": SIZE_FLAGS["pp"],
    "enable-exp": _EXPERT,
    "prefill-": SIZE_FLAGS["pcp"],
}
_BEGINNINGS |= {"decode-": SIZE_FLAGS["dcp"]}

_OWNED_SHORT = {"n": "--nnodes", "r": "--node-rank"}
# The launcher's options with the shortest beginning that argparse would complete to them.
_OWNED = {
    "nnodes": 2,
    "node-rank": 3,
    "master-addr": 3,
    "master-port": 3,
    "headless": 3,
    "host": 2,
    "port": 3,
}


def _options(arguments: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    """(index, long name or the word itself, value after ``=``) of every word that is an option."""
    for index, word in enumerate(arguments):
        if not word.startswith("-") or len(word) < 2 or re.match(r"-[\d.]", word):
            continue
        name, equals, value = word.partition("=")
        if name in _SHORT:
            yield index, _SHORT[name], value if equals else None
        elif name.startswith("--"):
            head, dot, rest = name[2:].partition(".")
            yield index, _complete(head.replace("_", "-")) + dot + rest, value if equals else None
        else:
            yield index, name, value if equals else None


def _complete(name: str) -> str:
    for beginning, whole in _BEGINNINGS.items():
        if name.startswith(beginning) and whole.startswith(name):
            return whole
    return name


def find_option(arguments: Sequence[str], name: str) -> str | None:
    """The value of the option ``name`` (long, without dashes) in any spelling; the last one wins."""
    found: str | None = None
    for index, option, value in _options(arguments):
        if option == name:
            if value is None and index + 1 < len(arguments):
                value = arguments[index + 1]
            found = value
    return found


def has_option(arguments: Sequence[str], name: str) -> bool:
    """True when the switch ``name`` is on: the last of ``--name`` and ``--no-name`` decides."""
    state = False
    for _, option, value in _options(arguments):
        if option == name:
            state = value is None or value.lower() in ("true", "1")
        elif option == f"no-{name}":
            state = False
    return state


def parallel_of(arguments: Sequence[str]) -> Parallel:
    """The parallel sizes that serve arguments ask for; what is not asked for is 1.

    Raises ValueError, with the option and its value, for a size that is no positive number.
    """
    sizes = {}
    for short, name in SIZE_FLAGS.items():
        text = find_option(arguments, name)
        if text is None:
            continue
        if not re.fullmatch(r"\d{1,6}", text) or int(text) < 1:
            raise ValueError(f"--{name}: expected a number from 1 (got {text!r})")
        sizes[short] = int(text)
    base = Parallel(**sizes)
    if has_option(arguments, _EXPERT):
        return Parallel(base.tp, base.pp, base.dp, base.tp * base.dp * base.pcp, base.pcp, base.dcp)
    return base


def parallel_id(parallel: Parallel, *, expert: bool) -> str:
    """``tp2-dp4-ep``: TP always, the others where they are more than 1, ``ep`` where it is on."""
    parts = [f"tp{parallel.tp}"]
    parts += [
        f"{name}{getattr(parallel, name)}"
        for name in ("pp", "dp", "pcp", "dcp")
        if getattr(parallel, name) > 1
    ]
    return "-".join([*parts, "ep"] if expert else parts)


def without_sizes(arguments: Sequence[str], shorts: Sequence[str]) -> list[str]:
    """The arguments without the size options named by ``shorts`` (``tp``, …, and ``ep`` for the switch)."""
    names = {SIZE_FLAGS[short] for short in shorts if short in SIZE_FLAGS}
    drop: set[int] = set()
    for index, option, value in _options(arguments):
        if option in names:
            drop |= {index} if value is not None else {index, index + 1}
        elif "ep" in shorts and option in (_EXPERT, f"no-{_EXPERT}"):
            drop.add(index)
    return [word for index, word in enumerate(arguments) if index not in drop]


def max_model_len(arguments: Sequence[str]) -> int | None:
    """``--max-model-len`` in tokens; None when it is absent or automatic.

    Raises ValueError when it is neither. ``32k`` is 32,000 and ``32K`` 32,768, as vLLM reads them.
    """
    text = find_option(arguments, "max-model-len")
    if text is None or text.lower() in ("auto", "-1"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if match is None or ("." in match[1] and not match[2]):
        raise ValueError(f"--max-model-len: expected a number of tokens (got {text!r})")
    scale = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}[match[2]]
    return int(float(match[1]) * scale)


def launcher_owned(arguments: Sequence[str], num_nodes: int) -> list[str]:
    """One message per argument that only the launcher may set; empty when there is none."""
    found: list[str] = []
    for word in arguments:
        owned = _owned_name(word)
        if owned is not None:
            found.append(f"{word!r} sets {owned}")
    backend = find_option(arguments, "distributed-executor-backend")
    if num_nodes > 1 and backend is not None and backend != "mp":
        found.append(
            f"--distributed-executor-backend {backend}: a server on {num_nodes} nodes is started with mp"
        )
    return found


def _owned_name(word: str) -> str | None:
    short = re.match(r"-([nr])(?:=?\d*|=.*)\Z", word)
    if short is not None:
        return _OWNED_SHORT[short[1]]
    if not word.startswith("--"):
        return None
    name = word[2:].partition("=")[0].replace("_", "-")
    if name == "no-headless":
        return "--headless"
    for owned, shortest in _OWNED.items():
        if owned.startswith(name) and len(name) >= shortest:
            return f"--{owned}"
    return None
