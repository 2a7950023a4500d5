"""Run the commands of a page as a reader would: one shell, block after block, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_gpubench.mock import MockCluster

from .pages import REPOSITORY, Block, Page

FOREIGN = re.compile(
    r"^(WORKLOADS|VLLM_|NIGHTLY|PERF_INGEST|INGEST_|BUILDKITE|GITHUB_|CI$|GPUBENCH_|PYTEST_)"
)
"""Variables of the caller that would change what a command does."""

_TOOLS = {"pytest": "-m pytest", "gpubench": "-m pytest_gpubench.cli.main", "python": "", "python3": ""}

_PIP = """\
import re, sys
from pathlib import Path
words = sys.argv[1:]
assert words[0] == "install", words
(wanted,) = [word for word in words[1:] if not word.startswith("-")]
extras = re.fullmatch(r"\\.(?:\\[([\\w,]+)\\])?", wanted)
assert extras, f"pip install {wanted}: not this project"
known = Path("pyproject.toml").read_text()
for extra in filter(None, (extras[1] or "").split(",")):
    assert f"\\n{extra} = [" in known, f"pyproject.toml has no extra {extra}"
"""


@dataclass(frozen=True)
class Ran:
    """What a block printed, how its last command ended, and which commands before it failed."""

    block: Block
    out: str
    code: int
    failures: int


def run_page(page: Page, folder: Path, *, timeout: float) -> list[Ran]:
    """Run every ``sh`` block of a page; those marked ``run: ci`` are left to ``.ci/run``."""
    blocks = [block for block, _ in page.commands() if block.run != "ci"]
    home = folder / "checkout"
    copy_repository(home)
    shims = _write_shims(folder / "shims")
    kept = folder / "kept"
    kept.mkdir()
    with _cluster(folder / "cluster", blocks) as cluster:
        script = _script(blocks, kept, cluster)
        env = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        env |= {
            "PATH": f"{shims}:{shims / 'venv'}:{env['PATH']}",
            "HOME": str(folder),
            "PAGER": "cat",
            "LC_ALL": "C.UTF-8",
        }
        printed = _run_script(script, home, env, timeout)
    return [_ran(block, kept / str(index), printed) for index, block in enumerate(blocks)]


def _run_script(script: str, home: Path, env: Mapping[str, str], timeout: float) -> str:
    """What the shell itself printed. It has a session of its own, so that signals stay in it."""
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-c", script],
        cwd=home,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return shell.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGTERM)  # pytest gives its nodes back
        raise
    finally:
        shell.wait(timeout=60)


_LEFT_OUT = tuple(
    f"tests/{path.name}/"
    for path in (REPOSITORY / "tests").iterdir()
    if path.is_dir() and path.name != "data"
)
"""Tests take time to copy; pages use their data only."""


def copy_repository(home: Path) -> None:
    """The files that git would give, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        source = REPOSITORY / name
        if source.is_file() and not name.startswith(_LEFT_OUT):
            target = home / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@contextmanager
def _cluster(folder: Path, blocks: Sequence[Block]) -> Iterator[Mapping[str, str] | None]:
    """What puts a mocked login node in front, when a block asks for one."""
    if not any(block.on for block in blocks):
        yield None
        return
    with MockCluster(folder, nodes="gb300-[01-04]", gres={"gpu:b300": 4}, kill_wait=1.0) as cluster:
        yield {name: cluster.env()[name] for name in ("GPUBENCH_MOCK",)} | {"BIN": str(cluster.bin)}


def _script(blocks: Sequence[Block], kept: Path, cluster: Mapping[str, str] | None) -> str:
    lines = []
    for index, block in enumerate(blocks):
        if block.on:
            assert block.on == "login-node", f"{block}: unknown place {block.on!r}"
            assert cluster is not None
            lines += [
                f'case "$PATH" in {cluster["BIN"]}:*) ;; *) export PATH={cluster["BIN"]}:"$PATH" ;; esac',
                f"export GPUBENCH_MOCK={cluster['GPUBENCH_MOCK']}",
            ]
        lines += [
            f"trap 'echo $? >>{kept}/{index}.failed' ERR",
            "{",
            block.text,
            f"}} >{kept}/{index}.out 2>&1 </dev/null; echo $? >{kept}/{index}.code",
            "trap - ERR",
        ]
    return "\n".join(lines)


def _ran(block: Block, stem: Path, shell: str) -> Ran:
    code = stem.with_name(f"{stem.name}.code")
    assert code.exists(), f"{block}: the shell did not get here:\n{shell}"
    failed = stem.with_name(f"{stem.name}.failed")
    failures = len(failed.read_text().split()) if failed.exists() else 0
    out = stem.with_name(f"{stem.name}.out").read_text(errors="replace")
    return Ran(block, out, int(code.read_text()), failures)


def _write_shims(folder: Path) -> Path:
    """``python3 -m venv`` and ``pip`` without a download: the environment of this test is what they give.

    A real installation is what ``.ci/run`` does with README's commands.
    """
    venv = folder / "venv"
    venv.mkdir(parents=True)
    real = sys.executable
    _program(
        folder / "python3",
        f'[ "$1 $2" = "-m venv" ] || exec {real} "$@"\nmkdir -p "$3"\ncp -r {venv} "$3/bin"',
    )
    for name, words in _TOOLS.items():
        _program(venv / name, f'exec {real} {words} "$@"')
    (folder / "pip.py").write_text(_PIP)
    _program(venv / "pip", f'exec {real} {folder / "pip.py"} "$@"')
    (venv / "activate").write_text('PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd):$PATH"\n')
    _program(folder / "less", 'exec cat "$@"')
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def missing_line(quoted: str, printed: str) -> str | None:
    """The first quoted line that was not printed in its place; figures may differ, ``…`` is any text."""
    rest = [_plain(line) for line in printed.splitlines()]
    for line in quoted.splitlines():
        if not line.strip():
            continue
        wanted = re.compile(".*".join(re.escape(part) for part in _plain(line).split("…")))
        while rest and not wanted.fullmatch(rest[0]):
            rest.pop(0)
        if not rest:
            return line
        rest.pop(0)
    return None


def _plain(line: str) -> str:
    line = re.sub(r"^[.sFEx]+(?=\[gpubench\])", "", line)  # pytest's own progress before it
    line = re.sub(r"\d{8}T\d{6}-[0-9a-f]{8}", "RUN", line)
    line = re.sub(r"[-+]?\d+(?:[.,]\d+)*%?", "N", line)
    return re.sub(r"={2,}", "==", " ".join(line.split()))
