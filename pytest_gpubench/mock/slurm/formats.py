"""Slurm's ways to write durations, times, counts and file name patterns."""

from __future__ import annotations

import re
import time

__all__ = [
    "Count",
    "clock",
    "duration",
    "fill_pattern",
    "parse_begin",
    "parse_count",
    "parse_gres",
    "parse_megabytes",
    "parse_minutes",
]

UNLIMITED = -1


def parse_minutes(text: str) -> int:
    """Minutes of a time limit (``M``, ``M:S``, ``H:M:S``, ``D-H[:M[:S]]``), rounded up as Slurm does.

    UNLIMITED is -1; ValueError when it is malformed.
    """
    if text.upper() in {"UNLIMITED", "INFINITE", "-1"}:
        return UNLIMITED
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(text)
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return (days or 0) * 1440 + hours * 60 + minutes + -(-seconds // 60)


def duration(seconds: float) -> str:
    """``[D-]H:MM:SS`` without a leading zero, ``M:SS`` below an hour, as squeue prints it."""
    total = max(0, int(seconds))
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{secs:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{secs:02d}"
    return f"{minutes}:{secs:02d}"


def padded(seconds: float) -> str:
    """``[D-]HH:MM:SS``, as scontrol prints it."""
    total = max(0, int(seconds))
    days, rest = divmod(total, 86400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def clock(seconds: float | None, unknown: str = "Unknown") -> str:
    """Local time ``2026-12-01T00:58:24``."""
    if not seconds:
        return unknown
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def parse_begin(text: str, now: float) -> float:
    """``now``, ``now+60``, ``now+2hours`` or a date with time, in seconds since the epoch; ValueError
    otherwise."""
    match = re.fullmatch(r"now(?:\+(\d+)\s*(\w*))?", text)
    if match:
        unit = (match[2] or "seconds").rstrip("s")
        scale = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}.get(unit)
        if scale is None:
            raise ValueError(text)
        return now + int(match[1] or 0) * scale
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"):
        try:
            return time.mktime(time.strptime(text, form))
        except ValueError:
            continue
    raise ValueError(text)


Count = tuple[int, int]
"""Least and greatest number of nodes."""


def parse_count(text: str) -> Count:
    """``2`` or ``2-4``; ValueError with Slurm's words otherwise."""
    match = re.fullmatch(r"(\d+)(k?)(?:-(\d+)(k?))?", text)
    if match is None:
        raise ValueError(f'"{text}" is not a valid node count')
    low = int(match[1]) * (1024 if match[2] else 1)
    high = int(match[3]) * (1024 if match[4] else 1) if match[3] else low
    if low > high:
        raise ValueError(f"Maximum node count {high} is less than minimum node count {low}")
    return max(1, low), max(1, high)


def parse_megabytes(text: str) -> int:
    """``100``, ``10G``: MB unless it ends in K, M, G or T; ValueError otherwise."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if match is None:
        raise ValueError(text)
    kilobytes = int(match[1]) * {"K": 1, "": 1024, "M": 1024, "G": 1024**2, "T": 1024**3}[match[2]]
    return -(-kilobytes // 1024)


def parse_gres(text: str) -> dict[str, int]:
    """``gpu:b300:4,nvme:1`` -> ``{"gpu:b300": 4, "nvme": 1}``; a missing count is 1; ``none`` is nothing."""
    found: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        if not item or item.lower() == "none":
            continue
        parts = item.removeprefix("gres:").removeprefix("gres/").split(":")
        count = 1
        if len(parts) > 1 and parts[-1].isdigit():
            count = int(parts.pop())
        if not all(parts) or len(parts) > 2:
            raise ValueError(text)
        key = ":".join(parts)
        found[key] = found.get(key, 0) + count
    return found


def fill_pattern(pattern: str, values: dict[str, str]) -> str:
    """Replace ``%j``, ``%4t`` … in a file name; unknown letters stay; a backslash switches all off."""
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def one(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        if letter not in values:
            return match[0]
        value = values[letter]
        return value.zfill(min(int(width), 10)) if width and value.isdigit() else value

    return re.sub(r"%(\d*)([a-zA-Z%])", one, pattern)
