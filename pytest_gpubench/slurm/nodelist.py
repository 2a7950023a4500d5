"""Slurm's node lists (``gb-r[01-02]-n[09-10],login7``) to host names and back.

Done here and not by ``scontrol show hostnames``, which is missing inside a container.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Reason

__all__ = ["compress", "expand"]

_MAX_HOSTS = 65536  # Slurm's own limit of one range; a typing error must not fill the memory
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_LITERAL = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_LAST_NUMBER = re.compile(r"^(.*?)([0-9]+)([^0-9]*)$", re.ASCII)


def expand(text: str, *, expected: int | None = None) -> tuple[str, ...]:
    """Host names in Slurm's order, which is the rank order; leading zeros are kept.

    Raises SlurmError when the list is malformed or holds another number of hosts than ``expected``.
    """
    hosts: list[str] = []
    for item in _split(text):
        hosts.extend(_expand_item(item, text, _MAX_HOSTS - len(hosts)))
    if expected is not None and len(hosts) != expected:
        raise SlurmError(
            Reason.HARNESS_ERROR,
            f"Slurm's node list {text!r} holds {len(hosts)} hosts, the job asked for {expected}",
        )
    return tuple(hosts)


def compress(hosts: Sequence[str]) -> str:
    """A node list that expands to exactly ``hosts``, in their order; runs become ``[01-04]``."""
    groups: list[tuple[str, str, list[str]]] = []
    for host in hosts:
        prefix, number, suffix = _parts(host)
        if groups and number and groups[-1][2][-1] and (prefix, suffix) == groups[-1][:2]:
            groups[-1][2].append(number)
        else:
            groups.append((prefix, suffix, [number]))
    return ",".join(_join(prefix, suffix, numbers) for prefix, suffix, numbers in groups)


def _malformed(text: str, why: str) -> SlurmError:
    return SlurmError(
        Reason.HARNESS_ERROR,
        f"Slurm's node list {text[:200]!r} cannot be read: {why}; expected e.g. gb[01-04,07],login1",
    )


def _split(text: str) -> list[str]:
    """The items between the commas outside brackets."""
    items, start, depth = [], 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
            if depth > 1:
                raise _malformed(text, "a bracket inside a bracket")
        elif char == "]":
            depth -= 1
            if depth < 0:
                raise _malformed(text, "']' without '['")
        elif char == "," and depth == 0:
            items.append(text[start:index])
            start = index + 1
    if depth:
        raise _malformed(text, "'[' without ']'")
    items.append(text[start:])
    return items


def _expand_item(item: str, whole: str, room: int) -> list[str]:
    if not item:
        raise _malformed(whole, "an empty item")
    pieces = re.split(r"\[([^\]]*)\]", item)  # literal, ranges, literal, ranges, ..., literal
    choices: list[list[str]] = []
    for index, piece in enumerate(pieces):
        if index % 2:
            choices.append(_numbers(piece, whole))
        elif _LITERAL.fullmatch(piece):
            choices.append([piece])
        else:
            raise _malformed(whole, f"{piece!r} is no part of a host name")
        if _product(choices) > room:
            raise _malformed(whole, f"more than {_MAX_HOSTS} hosts")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _product(choices: list[list[str]]) -> int:
    size = 1
    for choice in choices:
        size *= len(choice)
    return size


def _numbers(ranges: str, whole: str) -> list[str]:
    """``09-10,12`` -> 09, 10, 12: every number as wide as the first of its range."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed(whole, f"{part!r} is no number or range")
        low, high = match[1], match[2] or match[1]
        if len(low) > 18 or len(high) > 18 or int(high) < int(low):
            raise _malformed(whole, f"the range {part!r} does not ascend")
        if len(high) < len(low) or (len(high) > len(low) and high[0] == "0"):
            raise _malformed(whole, f"the range {part!r} mixes widths")
        if int(high) - int(low) + len(numbers) >= _MAX_HOSTS:
            raise _malformed(whole, f"more than {_MAX_HOSTS} hosts")
        numbers.extend(str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
    return numbers


def _parts(host: str) -> tuple[str, str, str]:
    """Host name around its last number; the number is empty where there is none or it is very long."""
    match = _LAST_NUMBER.match(host)
    if match is None or len(match[2]) > 18:
        return host, "", ""
    return match[1], match[2], match[3]


def _join(prefix: str, suffix: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0] + suffix
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    inner = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{prefix}[{inner}]{suffix}"
