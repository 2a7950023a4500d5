"""Host lists in Slurm's bracket form, the mock's own reader: it must not share an error with the code it
tests."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["compress", "expand"]

_TAIL = re.compile(r"^(.*?)(\d+)$")


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _numbers(text: str) -> list[str]:
    """`01-03,7` -> `01 02 03 7`."""
    found: list[str] = []
    for item in text.split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"bad host list range {item!r}")
        last = int(high) if dash else int(low)
        found.extend(str(number).zfill(len(low)) for number in range(int(low), last + 1))
    return found


def expand(text: str) -> list[str]:
    """Host names of a list such as ``r[01-02]-n[1,3],login7``, in order; ValueError when it is malformed."""
    hosts: list[str] = []
    for part in _split(text):
        names = [""]
        rest = part
        while rest:
            head, bracket, tail = rest.partition("[")
            names = [name + head for name in names]
            if not bracket:
                break
            inside, closed, rest = tail.partition("]")
            if not closed:
                raise ValueError(f"bad host list {text!r}: a bracket is not closed")
            names = [name + number for name in names for number in _numbers(inside)]
        hosts.extend(names)
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """The shortest list for names with one number at the end: ``gb300-[01-02]``."""
    groups: dict[tuple[str, int], list[int]] = {}
    order: list[tuple[str, int] | str] = []
    for host in hosts:
        match = _TAIL.match(host)
        if match is None:
            order.append(host)
            continue
        key = (match[1], len(match[2]))
        if key not in groups:
            groups[key] = []
            order.append(key)
        groups[key].append(int(match[2]))
    return ",".join(key if isinstance(key, str) else _ranges(key, groups[key]) for key in order)


def _ranges(key: tuple[str, int], numbers: list[int]) -> str:
    prefix, width = key
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return f"{prefix}{runs[0][0]:0{width}d}"
    parts = [f"{low:0{width}d}" + (f"-{high:0{width}d}" if high > low else "") for low, high in runs]
    return f"{prefix}[{','.join(parts)}]"
