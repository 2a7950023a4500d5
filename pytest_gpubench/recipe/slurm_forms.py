"""Slurm's and Pyxis's own notations: time limits, generic resources, mounts. Pure text work."""

from __future__ import annotations

import re

__all__ = ["gres_gpus", "mount_problem", "seconds_of", "time_seconds"]

_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNLIMITED = ("UNLIMITED", "INFINITE")


def time_seconds(text: str) -> float | None:
    """Seconds of a Slurm time limit (``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH[:MM[:SS]]``); None: unlimited.

    Raises ValueError for anything else.
    """
    word = text.strip()
    if word.upper() in _UNLIMITED:
        return None
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", word)
    if match is None:
        raise ValueError("expected a Slurm time: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    assert first is not None
    if days is not None:
        hours, minutes, seconds = first, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first, second or 0, third
    else:
        hours, minutes, seconds = 0, first, second or 0
    return float((((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def seconds_of(text: str) -> float:
    """Seconds of a duration: ``90s``, ``30m``, ``2h``, ``1d``, or Slurm's form with a colon or a dash."""
    word = text.strip().lower()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", word)
    if match is not None:
        seconds: float | None = float(match[1]) * _UNIT[match[2]]
    elif ":" in word or "-" in word:
        seconds = time_seconds(word)
    else:
        raise ValueError("expected seconds, or a duration such as 90s, 30m, 2h, 01:00:00")
    if not seconds:
        raise ValueError("expected a duration above 0")
    return seconds


def gres_gpus(text: str) -> int | None:
    """GPUs per node of a gres request; None when it asks for no GPU. Raises ValueError when malformed.

    ``gpu`` and ``gpu:gb300`` are one GPU; a socket list (``(S:0-1)``) and other resources are skipped.
    """
    total: int | None = None
    for part in re.sub(r"\([^()]*\)", "", text).split(","):
        fields = [field.strip() for field in part.split(":")]
        if not all(fields) or len(fields) > 3 or any(re.search(r"[\s()]", field) for field in fields):
            raise ValueError("expected NAME[:TYPE][:COUNT], such as gpu:gb300:4")
        if fields[0].removeprefix("gres/") != "gpu":
            continue
        count = 1
        if len(fields) > 1 and fields[-1].isdigit():
            count = int(fields[-1])
        elif len(fields) == 3:
            raise ValueError("expected a count after the last colon, such as gpu:gb300:4")
        total = (total or 0) + count
    return total


def mount_problem(mount: str) -> str | None:
    """Why Pyxis would not understand the mount ``SRC:DST[:FLAGS]``; None when it would.

    Space, comma and colon are separators in Pyxis's own syntax and cannot be escaped.
    """
    for character, name in ((" ", "a space"), ("\t", "a tab"), (",", "a comma"), ("\n", "a line break")):
        if character in mount:
            path = next(part for part in mount.split(":") if character in part)
            return f"the path {path!r} holds {name}, which separates mounts; use a path without it"
    parts = mount.split(":")
    if len(parts) == 1:
        return "expected SRC:DST[:FLAGS]"
    source, target = parts[0], parts[1]
    if not source.startswith("/"):
        return f"the source {source!r} is not an absolute path"
    if not target.startswith("/") or (len(parts) > 2 and parts[2].startswith("/")):
        return f"the path {mount.rsplit(':/', 1)[0]!r} holds a colon, which separates source and target"
    if len(parts) > 3:
        return "the path holds a colon, which separates source and target; expected SRC:DST[:FLAGS]"
    if len(parts) == 3 and not re.fullmatch(
        r"[A-Za-z][A-Za-z0-9=_-]*(?:\+[A-Za-z][A-Za-z0-9=_-]*)*", parts[2]
    ):
        return f"the flags {parts[2]!r} are not words joined with +"
    return None
