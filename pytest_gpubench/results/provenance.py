"""Where a run comes from: code, package, host, CI job, image. Facts that are missing are null."""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import OptionError
from pytest_gpubench.world import CommandRunner

__all__ = ["ci_facts", "git_facts", "image_facts", "make_run_id", "parse_meta", "run_block"]

_GIT_TIMEOUT = 10.0


def make_run_id(env: Mapping[str, str], now: float) -> str:
    """An id of ``[A-Za-z0-9._-]``: the CI's own run and attempt, else the time and chance.

    A repeated CI job has another attempt number, so its rows and jobs never pass for the first one's.
    """
    for build, attempt, name in (
        ("BUILDKITE_BUILD_ID", "BUILDKITE_RETRY_COUNT", "bk"),
        ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "gh"),
    ):
        if env.get(build):
            # One build runs many jobs: without the job two of them would share an id.
            job = env.get("BUILDKITE_JOB_ID") if name == "bk" else env.get("GITHUB_JOB")
            parts = [name, env[build], *([job] if job else []), env.get(attempt) or "0"]
            return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(parts))[:120]
    stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{stamp}-{secrets.token_hex(4)}"


def parse_meta(pairs: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` texts of ``--gpubench-meta`` as a mapping; ``OptionError`` for any other text."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise OptionError(f"--gpubench-meta {pair!r}: expected KEY=VALUE")
        found[key.strip()] = value
    return found


def git_facts(folder: Path, runner: CommandRunner) -> dict[str, JSON]:
    """Commit and whether tracked files differ from it; null where git or a repository is missing."""
    git = ("git", "-C", str(folder))
    commit = runner.run([*git, "rev-parse", "HEAD"], timeout=_GIT_TIMEOUT)
    if not commit.ok:
        return {"commit": None, "dirty": None}
    # No lock is taken, so a commit that somebody makes meanwhile is not disturbed.
    status = runner.run(
        ["git", "--no-optional-locks", *git[1:], "status", "--porcelain", "--untracked-files=no"],
        timeout=_GIT_TIMEOUT,
    )
    return {
        "commit": commit.stdout.strip() or None,
        "dirty": bool(status.stdout.strip()) if status.ok else None,
    }


def ci_facts(env: Mapping[str, str]) -> dict[str, JSON]:
    """The CI system, a link to the job, branch and commit; empty outside CI."""
    if env.get("BUILDKITE_BUILD_ID"):
        url, job = env.get("BUILDKITE_BUILD_URL"), env.get("BUILDKITE_JOB_ID")
        return {
            "system": "buildkite",
            "url": f"{url}#{job}" if url and job else url,
            "branch": env.get("BUILDKITE_BRANCH"),
            "commit": env.get("BUILDKITE_COMMIT"),
            "attempt": env.get("BUILDKITE_RETRY_COUNT"),
        }
    if env.get("GITHUB_RUN_ID"):
        server, repository = env.get("GITHUB_SERVER_URL"), env.get("GITHUB_REPOSITORY")
        run = env["GITHUB_RUN_ID"]
        return {
            "system": "github",
            "url": f"{server}/{repository}/actions/runs/{run}" if server and repository else None,
            "branch": env.get("GITHUB_REF_NAME"),
            "commit": env.get("GITHUB_SHA"),
            "attempt": env.get("GITHUB_RUN_ATTEMPT"),
        }
    return {}


def image_facts(image: str | None) -> dict[str, JSON]:
    """The image, its digest when the name has one, size and time of a local ``.sqsh``."""
    facts: dict[str, JSON] = {"name": image, "digest": None, "size": None, "modified": None}
    if image is None:
        return facts
    digest = re.search(r"@(sha256:[0-9a-f]{64})$", image)
    if digest:
        facts["digest"] = digest[1]
    if image.endswith(".sqsh"):
        try:
            info = os.stat(image)
        except (OSError, ValueError):  # it may exist on the nodes only
            return facts
        facts["size"] = info.st_size
        facts["modified"] = datetime.fromtimestamp(info.st_mtime, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return facts


def run_block(
    *,
    run_id: str,
    env: Mapping[str, str],
    now: float,
    folder: Path,
    runner: CommandRunner,
    images: Iterable[str | None] = (),
    recipes: Mapping[str, Mapping[str, JSON]] | None = None,
    meta: Mapping[str, str] | None = None,
    simulated: bool = False,
) -> dict[str, JSON]:
    """The ``run`` block of the ingest file. ``recipes``: stem -> facts such as its hashes."""
    return {
        "run_id": run_id,
        "started": datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%d %H:%M:%S"),
        "simulated": simulated,
        "package": {"name": "pytest-gpubench", "version": _package_version()},
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "git": git_facts(folder, runner),
        "ci": ci_facts(env),
        "images": [image_facts(image) for image in dict.fromkeys(images)],
        "recipes": {stem: dict(facts) for stem, facts in (recipes or {}).items()},
        "meta": dict(meta or {}),
    }


def _package_version() -> str | None:
    try:
        return metadata.version("pytest-gpubench")
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return None
