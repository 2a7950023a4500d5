"""Text for bash: quoting, and arguments that hold run-time values.

A plan is made before the nodes are known. An argument that needs a node address or a port is a
:class:`Runtime` string such as ``${GPUBENCH_HEAD_0}``: bash expands it inside double quotes in the
batch script, and :func:`fill` replaces it once the values are known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Runtime", "command_lines", "fill", "fill_all", "quote", "runtime_text"]

_REFERENCE = re.compile(r"\$\{(GPUBENCH_[A-Z0-9_]+)\}")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+-]*")


class Runtime(str):
    """An argument of plain characters and ``${GPUBENCH_…}`` references, nothing else.

    Only the planner makes these; text from recipes is never one, so that nothing a recipe says is
    ever expanded by a shell.
    """

    def __new__(cls, text: str) -> Runtime:
        """Refuse anything that a shell could read as more than a word."""
        if not _PLAIN.fullmatch(_REFERENCE.sub("", text)):
            raise ValueError(f"not a plain run-time argument: {text!r}")
        return super().__new__(cls, text)


def runtime_text(text: str, *parts: str) -> str:
    """``text``, made of ``parts``: a run-time argument when one of them is and nothing forbids it.

    Where something does, the text is only shown, in a plan: at run time the values are known.
    """
    if not any(isinstance(part, Runtime) for part in parts):
        return text
    try:
        return Runtime(text)
    except ValueError:
        return text


def quote(argument: str) -> str:
    """One bash word that becomes exactly ``argument`` (run-time references expanded)."""
    if isinstance(argument, Runtime):
        return f'"{argument}"'
    return shlex.quote(argument)


def command_lines(argv: Sequence[str], indent: str = "") -> list[str]:
    """A command over several lines, one option (with its value) a line, for people and golden files."""
    lines: list[str] = []
    current = quote(argv[0])
    for argument in argv[1:]:
        starts_option = argument.startswith("-")
        if starts_option or len(current) + len(argument) > 100:
            lines.append(current)
            current = quote(argument)
        else:
            current += " " + quote(argument)
    lines.append(current)
    return [
        (indent if number == 0 else indent + "  ") + line + (" \\" if number < len(lines) - 1 else "")
        for number, line in enumerate(lines)
    ]


def fill(argument: str, values: Mapping[str, str]) -> str:
    """Replace the run-time references whose values are known; recipe text is returned as it is."""
    if not isinstance(argument, Runtime):
        return argument
    return _REFERENCE.sub(lambda match: values.get(match.group(1), match.group(0)), argument)


def fill_all(argv: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """:func:`fill` over a command."""
    return [fill(argument, values) for argument in argv]
