"""Evaluate one accuracy task against a running server: lm_eval, or BFCL where that is installed."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpubench.bench.accuracy import lm_eval_argv, read_results, scores_of
from pytest_gpubench.bench.bfcl import (
    CASES_FILE,
    PROBE,
    bfcl_commands,
    chosen_cases,
    read_bfcl_scores,
    unsupported,
)
from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import ClientError, InfraError, LogTail, ResultError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import AccuracyTask, Point
from pytest_gpubench.results.outcome import AccuracyScore
from pytest_gpubench.results.text import last_words, read_tail
from pytest_gpubench.serving.server import Server

__all__ = ["Evaluation", "NotHere", "evaluate"]

RESULT_SECONDS = 10.0
"""How long a result file may take to appear after the harness ended: NFS shows new files late."""
_MISSING = re.compile(r": not found|command not found|execve\(\)|No such file or directory|No module named")


class NotHere(Exception):
    """The harness cannot run where the client runs; the text is the reason to skip the task."""


@dataclass(frozen=True)
class Evaluation:
    """Scores, the file they are from with its content, and the kept samples (paths on this host)."""

    scores: tuple[AccuracyScore, ...]
    source: str
    data: Mapping[str, JSON] = field(default_factory=dict)
    samples: tuple[str, ...] = ()
    exit_code: int = 0


def evaluate(server: Server, point: Point, folder: Path) -> Evaluation:
    """Run the harness as a client of the server. Raises InfraError, or NotHere for a task to be skipped."""
    task = point.task
    if task is None:
        raise ValueError(f"{point.id} has no task")
    run = _Run(server, point, task, folder)
    return run.bfcl() if task.harness == "bfcl" else run.lm_eval()


class _Run:
    """One task; its files are in the point's folder."""

    def __init__(self, server: Server, point: Point, task: AccuracyTask, folder: Path) -> None:
        self.server = server
        self.point = point
        self.task = task
        self.output = folder / task.harness
        self.log = folder / f"{task.harness}.log"

    def lm_eval(self) -> Evaluation:
        """Scores as lm_eval has them, samples in its own files."""
        self._prepare()
        seen = self.server.backend.client_path(str(self.output))
        code = self._client(lm_eval_argv(self.point.deployment, self.task, self.server.url, seen))
        try:
            self._wait("**/results_*.json", code)
            data, path = read_results(self.output, self.task.name)
            scores = scores_of(data, self.task.name, path)
        except ResultError as err:
            raise self._failure(code, err) from err
        samples = tuple(str(found) for found in sorted(self.output.glob("**/samples_*.jsonl")))
        return Evaluation(scores, str(path), data, samples, code)

    def bfcl(self) -> Evaluation:
        """One category; NotHere where there is no BFCL."""
        reason = unsupported(self.task)
        if reason is not None:
            raise NotHere(reason)
        self._prepare()
        if self._client(PROBE):
            raise NotHere(
                "bfcl is not installed where the client runs (`bfcl version` fails there): the package is "
                "bfcl-eval"
            )
        cases = chosen_cases(self.task)
        if cases is not None:
            (self.output / CASES_FILE).write_text(cases, encoding="utf-8")
        seen = self.server.backend.client_path(str(self.output))
        code = 0
        for argv in bfcl_commands(self.point.deployment, self.task, self.server.url, seen):
            code = self._client(argv)
            if code:
                raise self._failure(code, ResultError(f"`bfcl {argv[argv.index('bfcl') + 2]}` failed"))
        try:
            self._wait(f"score/**/*_{self.task.name}_score.json", code)
            scores, path = read_bfcl_scores(self.output, self.task.name)
        except ResultError as err:
            raise self._failure(code, err) from err
        data: dict[str, JSON] = {
            "results": {f"bfcl_{self.task.name}": {score.metric: score.value for score in scores}}
        }
        samples = tuple(str(found) for found in sorted(self.output.glob("result/**/*_result.json")))
        return Evaluation(scores, str(path), data, samples, code)

    def _prepare(self) -> None:
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.output, ignore_errors=True)  # scores of an earlier run are not this one's
            self.output.mkdir()
            self.log.unlink(missing_ok=True)
        except OSError as err:
            text = f"{self.output.parent}: {err.strerror or err}"
            raise InfraError(Reason.RESULTS_UNWRITABLE, text, Phase.BENCH) from err

    def _client(self, argv: Sequence[str]) -> int:
        limit = self.point.deployment.deadlines.bench
        return self.server.run_client(argv, str(self.log), self.point.id, limit)

    def _wait(self, pattern: str, code: int) -> None:
        """A file written on another node may take a moment to show; a harness that failed writes none."""
        deadline = time.monotonic() + (RESULT_SECONDS if code == 0 else 0.0)
        while not any(self.output.glob(pattern)) and time.monotonic() < deadline:
            self.server.check()
            time.sleep(0.2)

    def _failure(self, code: int, error: ResultError) -> ClientError:
        # The server may be why: its death is the cause then, not the harness.
        self.server.settle()
        harness = self.task.harness
        text = read_tail(self.log)
        last = last_words(text)[:300]
        hint = ""
        if code and _MISSING.search(last):
            hint = f". Is {harness} installed where the client runs (in the image)?"
        said = f"last line: {last}" if last else "its log is empty"
        return ClientError(
            Reason.CLIENT_FAILED if code else Reason.NO_RESULT,
            f"{harness} ended with exit code {code}: {error}; {said}{hint}",
            Phase.BENCH,
            tails=[LogTail(harness, str(self.log), text)] if text else [],
        )
