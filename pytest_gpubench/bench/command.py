"""Clients that this project does not know: a command template, and a parser of what the command leaves.

The template is split into words like a shell line, but no shell runs it; in every word ``{name}`` is
replaced. The parser turns the command's result file into the keys of ``vllm bench serve``'s raw result
(latencies in milliseconds), so that rows, gates and checks are the same for every client.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_gpubench.bench.result import RawResult, parse_raw, read_raw
from pytest_gpubench.errors import ClientError, ResultError
from pytest_gpubench.plan.shell import runtime_text
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import ClientSettings

__all__ = [
    "KINDS", "PARSER", "WORDS", "Parser", "check_parser", "command_argv", "command_problems", "read_result",
]  # fmt: skip

KINDS = ("vllm-bench", "command")
"""What measures: vLLM's own client, or a command of the recipe."""
PARSER = "vllm-bench-json"
"""The parser of commands that write the raw result of ``vllm bench serve``."""
WORDS = (
    "base_url", "model", "model_path", "result_dir", "result_file", "concurrency", "num_prompts", "isl",
    "osl", "request_rate", "seed", "dataset", "scenario",
)  # fmt: skip
"""What a template may name. ``result_file`` is the whole path, ``model`` the name that the API answers to."""

Parser = Callable[[Path], Mapping[str, object]]
"""Reads the command's result file; gives the keys of the raw result."""

_WORD = re.compile(r"\{([A-Za-z_]\w*)\}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def command_problems(client: ClientSettings) -> list[str]:
    """What is wrong with a client's settings, each complete on its own; empty when nothing is."""
    if client.kind not in KINDS:
        return [f"kind: expected {' or '.join(KINDS)} (got {client.kind!r})"]
    if client.kind == "vllm-bench":
        given = [name for name in ("command", "parser") if getattr(client, name) is not None]
        return [f"{name}: only kind command has one" for name in given]
    if client.command is None:
        return ["command: expected a command template, since kind is command"]
    problems = []
    try:
        words = shlex.split(client.command)
    except ValueError as err:
        words = []
        problems.append(f"command: cannot be split into words: {err}")
    if not words and not problems:
        problems.append("command: is empty")
    named = {name for word in words for name in _WORD.findall(word)}
    problems += [
        f"command: {{{name}}} is not known; known are {', '.join(WORDS)}" for name in sorted(named - {*WORDS})
    ]
    if words and not named & {"result_file", "result_dir"}:
        problems.append("command: expected {result_file} or {result_dir}: nothing says where the result goes")
    if words and "base_url" not in named:
        problems.append("command: expected {base_url}: the server's port is known only at run time")
    if client.parser not in (None, PARSER) and not _FUNCTION.fullmatch(client.parser or ""):
        problems.append(f"parser: expected {PARSER} or module:function (got {client.parser!r})")
    return problems


def command_argv(template: str, values: Mapping[str, str | None]) -> list[str]:
    """The command as the process receives it; ClientError for a value that the load does not have."""
    return [_filled(word, values) for word in shlex.split(template)]


def _filled(word: str, values: Mapping[str, str | None]) -> str:
    parts = [values.get(name) for name in _WORD.findall(word)]
    if None in parts:
        missing = next(name for name in _WORD.findall(word) if values.get(name) is None)
        raise ClientError(
            Reason.CLIENT_FAILED,
            f"client.command names {{{missing}}}, but the load has none: write it in the recipe, or take the "
            "word out of the command",
        )
    text = _WORD.sub(lambda match: values[match[1]] or "", word)
    return runtime_text(text, *(part for part in parts if part is not None))


def read_result(client: ClientSettings, path: Path, *, written_after: float | None = None) -> RawResult:
    """The raw result of a client's file; ResultError names the file, and the parser when it failed."""
    parser = _parser(client)
    if parser is None:
        return read_raw(path, written_after=written_after)
    stale = written_after is not None and path.stat().st_mtime < written_after
    try:
        found = parser(path)
        if not isinstance(found, Mapping):
            raise TypeError(f"gave a {type(found).__name__}, expected a mapping with the raw result's keys")
        text = json.dumps(dict(found), default=float)
    except Exception as err:  # whatever a recipe's own code raises is one unreadable result
        raise ResultError(f"{path}: client.parser {client.parser}: {type(err).__name__}: {err}") from err
    return parse_raw(text.encode(), str(path), stale=stale)


def check_parser(client: ClientSettings) -> None:
    """Raise ClientError when the client's parser cannot be imported."""
    _parser(client)


def _parser(client: ClientSettings) -> Parser | None:
    """The function that ``module:function`` names; the working directory is searched, too."""
    name = client.parser
    if name is None or name == PARSER:
        return None
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as err:  # an import runs the recipe's own code
        raise ClientError(
            Reason.CLIENT_FAILED,
            f"client.parser {name!r} cannot be loaded: {type(err).__name__}: {err}. It is searched where "
            "Python finds modules and in the folder that pytest was started in",
        ) from err
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise ClientError(Reason.CLIENT_FAILED, f"client.parser {name!r} is a {type(found).__name__}")
    parser: Parser = found
    return parser
