"""Evaluate one accuracy task against a running server."""

from __future__ import annotations

import shutil
from pathlib import Path

from pytest_gpubench.bench.accuracy import lm_eval_argv, read_scores
from pytest_gpubench.errors import ClientError, InfraError, LogTail, ResultError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import Point
from pytest_gpubench.results.outcome import AccuracyScore
from pytest_gpubench.results.text import read_tail
from pytest_gpubench.serving.server import Server

__all__ = ["evaluate"]


def evaluate(server: Server, point: Point, folder: Path) -> tuple[AccuracyScore, ...]:
    """Run the harness as a client of the server and read its scores; samples stay in ``folder``."""
    task = point.task
    if task is None:
        raise ValueError(f"{point.id} has no task")
    output = folder / "lm_eval"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(output, ignore_errors=True)  # scores of an earlier run are not this one's
        output.mkdir()
    except OSError as err:
        raise InfraError(Reason.RESULTS_UNWRITABLE, f"{folder}: {err.strerror or err}", Phase.BENCH) from err
    log = str(folder / "lm_eval.log")
    argv = lm_eval_argv(point.deployment, task, server.url, server.backend.client_path(str(output)))
    code = server.run_client(argv, log, point.id, point.deployment.deadlines.bench)
    try:
        return read_scores(output, task.name)
    except ResultError as err:
        text = read_tail(Path(log))
        raise ClientError(
            Reason.CLIENT_FAILED if code else Reason.NO_RESULT,
            f"lm_eval ended with exit code {code}: {err}",
            Phase.BENCH,
            tails=[LogTail("lm_eval", log, text)] if text else [],
        ) from err
