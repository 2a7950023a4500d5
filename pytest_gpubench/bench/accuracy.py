"""lm_eval: its command against a live endpoint, and its result files. Pure but for reading files.

Source: lm-evaluation-harness, ``local-completions`` model and ``results_<date>.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import ResultError
from pytest_gpubench.plan.shell import runtime_text
from pytest_gpubench.recipe.types import AccuracyTask, Deployment
from pytest_gpubench.results.outcome import AccuracyScore

__all__ = ["lm_eval_argv", "read_results", "scores_of"]


def lm_eval_argv(deployment: Deployment, task: AccuracyTask, base_url: str, output: str) -> list[str]:
    """The evaluation's command as the process receives it."""
    arguments = [f"model={deployment.served_name}", f"base_url={base_url}/v1/completions"]
    given = {part.split("=", 1)[0] for part in task.model_args.split(",") if part}
    if deployment.served_name != deployment.model_path and "tokenizer" not in given:
        arguments.append(f"tokenizer={deployment.model_path}")
    if task.model_args:
        arguments.append(task.model_args)
    joined = ",".join(arguments)
    argv = ["lm_eval", "--model", "local-completions", "--model_args", runtime_text(joined, base_url)]
    argv += ["--tasks", task.name]
    if task.num_fewshot is not None:
        argv += ["--num_fewshot", str(task.num_fewshot)]
    for name, value in task.options:
        argv += [f"--{name}"] if value == "" else [f"--{name}", value]
    return [*argv, "--log_samples", "--output_path", output]


def read_results(folder: Path, task: str) -> tuple[dict[str, JSON], Path]:
    """The newest ``results_*.json`` under ``folder`` and its path; ResultError without a usable one."""
    files = sorted(folder.glob("**/results_*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        raise ResultError(f"{folder}: lm_eval left no results_*.json for {task}")
    path = files[-1]
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ResultError(f"{path}: not a JSON file ({err})") from err
    if not isinstance(content, dict):
        raise ResultError(f"{path}: expected an object with `results`")
    return content, path


def scores_of(content: Mapping[str, JSON], task: str, path: Path) -> tuple[AccuracyScore, ...]:
    """The scores of ``task``; of a group's parts where the group itself has none. ResultError without any."""
    results = content.get("results")
    if not isinstance(results, dict) or not results:
        raise ResultError(f"{path}: expected a `results` object with scores")
    own = tuple(_scores(task, results.get(task)))
    scores = own or tuple(score for name, entry in results.items() for score in _scores(name, entry))
    if not scores:
        raise ResultError(f"{path}: no score for {task}; it has {', '.join(results)}")
    return scores


def _scores(task: str, entry: object) -> Iterator[AccuracyScore]:
    if not isinstance(entry, Mapping):
        return
    for key, value in entry.items():
        metric = str(key)
        name, comma, kind = metric.partition(",")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or name.endswith("_stderr"):
            continue
        if not comma:
            continue  # alias, sample_len: no score
        error = entry.get(f"{name}_stderr,{kind}")
        yield AccuracyScore(
            task,
            metric,
            float(value) if math.isfinite(value) else None,
            float(error) if isinstance(error, (int, float)) and math.isfinite(error) else None,
        )
