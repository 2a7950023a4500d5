"""Where a run comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.errors import OptionError
from pytest_gpubench.results.provenance import (
    ci_facts,
    git_facts,
    image_facts,
    make_run_id,
    parse_meta,
    run_block,
)
from pytest_gpubench.world import CommandResult, SystemRunner

NOW = 1767323045.0


class NoGit:
    """A runner on a machine without git."""

    def __init__(self, *, hang: bool = False) -> None:
        self.hang = hang
        self.timeouts: list[float] = []

    def run(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        self.timeouts.append(timeout)
        return CommandResult(tuple(argv), None, "", "", timed_out=self.hang, missing=not self.hang)

    def start(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is started")


def git(folder: Path, *arguments: str) -> None:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    done = SystemRunner(env).run(["git", "-C", str(folder), *identity, *arguments], timeout=30)
    assert done.ok, done.describe()


def test_git_commit_and_dirty_flag(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "one")
    facts = git_facts(tmp_path, SystemRunner())
    assert re.fullmatch(r"[0-9a-f]{40}", str(facts["commit"]))
    assert facts["dirty"] is False
    (tmp_path / "untracked").write_text("x")
    assert git_facts(tmp_path, SystemRunner())["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert git_facts(tmp_path, SystemRunner())["dirty"] is True


@pytest.mark.parametrize("hang", [False, True])
def test_without_git_the_facts_are_null_and_the_wait_is_bounded(tmp_path: Path, hang: bool) -> None:
    runner = NoGit(hang=hang)
    assert git_facts(tmp_path, runner) == {"commit": None, "dirty": None}
    assert all(timeout <= 10 for timeout in runner.timeouts)


def test_run_ids_come_from_the_ci_and_its_attempt() -> None:
    buildkite = {"BUILDKITE_BUILD_ID": "0190-ab", "BUILDKITE_JOB_ID": "j 1", "BUILDKITE_RETRY_COUNT": "2"}
    assert make_run_id(buildkite, NOW) == "bk-0190-ab-j-1-2"
    github = {"GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "3", "GITHUB_JOB": "bench"}
    assert make_run_id(github, NOW) == "gh-77-bench-3"
    assert make_run_id({"GITHUB_RUN_ID": "77"}, NOW) == "gh-77-0"
    free = make_run_id({}, NOW)
    assert re.fullmatch(r"20260102T030405-[0-9a-f]{8}", free)
    assert free != make_run_id({}, NOW)


def test_ci_links() -> None:
    assert ci_facts({}) == {}
    facts = ci_facts(
        {
            "BUILDKITE_BUILD_ID": "1",
            "BUILDKITE_BUILD_URL": "https://ci.example.com/b/1",
            "BUILDKITE_JOB_ID": "j",
            "BUILDKITE_BRANCH": "main",
        }
    )
    assert (facts["url"], facts["branch"], facts["commit"]) == ("https://ci.example.com/b/1#j", "main", None)
    facts = ci_facts(
        {
            "GITHUB_RUN_ID": "7",
            "GITHUB_SERVER_URL": "https://git.example.com",
            "GITHUB_REPOSITORY": "team/perf",
        }
    )
    assert facts["url"] == "https://git.example.com/team/perf/actions/runs/7"
    assert ci_facts({"GITHUB_RUN_ID": "7"})["url"] is None


def test_image_facts(tmp_path: Path) -> None:
    image = tmp_path / "vllm.sqsh"
    image.write_bytes(b"12345")
    os.utime(image, (NOW, NOW))
    facts = image_facts(str(image))
    assert (facts["size"], facts["modified"]) == (5, "2026-01-02T03:04:05Z")
    assert image_facts("/none/vllm.sqsh")["size"] is None
    digest = "sha256:" + "a" * 64
    assert image_facts(f"registry.example.com/vllm@{digest}")["digest"] == digest
    assert image_facts("vllm/vllm-openai:nightly")["digest"] is None
    assert image_facts(None)["name"] is None


def test_meta_pairs() -> None:
    assert parse_meta(["a=1", "b=x=y", " c =", "a=2"]) == {"a": "2", "b": "x=y", "c": ""}
    for bad in ("a", "=1", " =1"):
        with pytest.raises(OptionError, match="expected KEY=VALUE"):
            parse_meta([bad])


def test_the_run_block_holds_it_all(tmp_path: Path) -> None:
    block = run_block(
        run_id="r1",
        env={"GITHUB_RUN_ID": "7"},
        now=NOW,
        folder=tmp_path,
        runner=NoGit(),
        images=["img:1", "img:1", None],
        recipes={"flash": {"sha256": "abc"}},
        meta={"why": "test"},
        simulated=True,
    )
    assert (block["run_id"], block["started"], block["simulated"]) == ("r1", "2026-01-02 03:04:05", True)
    assert block["recipes"] == {"flash": {"sha256": "abc"}}
    assert block["meta"] == {"why": "test"}
    assert isinstance(block["images"], list)
    assert len(block["images"]) == 2
    assert block["host"]
