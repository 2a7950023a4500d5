"""Heartbeat, interrupts and the process runner on real files, signals and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_gpubench.serving.heartbeat import Heartbeat
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.world import SystemRunner


def test_the_heartbeat_changes_until_it_is_removed(tmp_path: Path) -> None:
    heart = Heartbeat(interval=0.05)
    file = tmp_path / "heartbeat"
    heart.add(file)
    first = file.read_text()
    deadline = time.monotonic() + 5
    while file.read_text() in (first, "") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert file.read_text() != first
    heart.remove(file)
    time.sleep(0.1)
    last = file.read_text()
    time.sleep(0.2)
    assert file.read_text() == last
    heart.close()


def test_a_signal_inside_a_shield_waits_for_its_end() -> None:
    interrupts = Interrupts()
    restore = interrupts.install()
    steps: list[str] = []

    def guarded() -> None:
        with interrupts.shield():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("still inside")

    try:
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            guarded()
    finally:
        restore()
    assert steps == ["still inside"]


def test_sigterm_unwinds_like_ctrl_c() -> None:
    interrupts = Interrupts()
    restore = interrupts.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        restore()


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    Interrupts().install()()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_at_its_timeout_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    result = SystemRunner().run(["bash", "-c", f"sleep 60 & echo $! >{mark}; wait"], timeout=0.5)
    assert result.timed_out
    assert result.returncode is None
    assert not _alive(int(mark.read_text()))


def test_a_missing_command_is_an_answer(tmp_path: Path) -> None:
    result = SystemRunner().run(["no-such-command-anywhere"], timeout=5)
    assert result.missing
    assert "not found" in result.describe()


def test_terminate_ends_the_whole_group_even_if_it_ignores_term(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"trap '' TERM; sleep 60 & echo $! >{mark}; while :; do sleep 0.1; done"
    process = SystemRunner().start(["bash", "-c", script], log=str(tmp_path / "log"))
    deadline = time.monotonic() + 5
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.terminate(0.2)
    assert process.poll() is not None
    assert not _alive(int(mark.read_text()))


def test_a_started_process_has_no_standard_input(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = SystemRunner().start(["cat"], log=str(log))
    deadline = time.monotonic() + 5
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() == 0


def _alive(pid: int) -> bool:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_importing_the_plugin_stays_light() -> None:
    code = (
        "import sys, pytest_gpubench.plugin;"
        "print([m for m in ('pandas', 'pydantic', 'requests', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]"
