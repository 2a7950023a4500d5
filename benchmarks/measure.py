"""What the benchmark scripts share: medians of alternating runs, printed as ratios."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["alternate", "cpu_seconds", "report", "run_seconds"]


def run_seconds(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 600
) -> float:
    """Wall seconds of a command that must succeed; with bytecode caches, as users have them."""
    env = {**(os.environ if env is None else env)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    done = subprocess.run(list(argv), cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{argv}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return seconds


def cpu_seconds(argv: Sequence[str], cwd: Path) -> float:
    """Processor seconds of a command that must succeed: what else the machine does matters less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_seconds(argv, cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def alternate(ours: Callable[[], float], theirs: Callable[[], float], rounds: int = 5) -> tuple[float, float]:
    """Medians of both, run in turn so that a busy machine hits both alike."""
    mine: list[float] = []
    other: list[float] = []
    for _ in range(rounds):
        other.append(theirs())
        mine.append(ours())
    return statistics.median(mine), statistics.median(other)


def report(name: str, ours: float, theirs: float, limit: float, unit: str = "s") -> bool:
    """Print one line; True when the ratio keeps the limit."""
    ratio = ours / theirs
    kept = ratio <= limit
    word = "ok" if kept else "ABOVE"
    figures = f"{ours:.3f} {unit} against {theirs:.3f} {unit}"
    print(f"{name}: {figures}: ratio {ratio:.2f} (limit {limit:.2f}: {word})")
    return kept
