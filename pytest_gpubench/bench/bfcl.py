"""BFCL (Berkeley Function Calling Leaderboard): its commands against a live endpoint, and its score files.

Source: bfcl-eval 2025.12, ``bfcl generate --help``, ``bfcl evaluate --help`` and its README. BFCL knows the
models of its own list only; another one is refused by ``bfcl generate`` itself, in its own words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from pytest_gpubench.errors import ResultError
from pytest_gpubench.plan.shell import runtime_text
from pytest_gpubench.recipe.types import AccuracyTask, Deployment
from pytest_gpubench.results.outcome import AccuracyScore

__all__ = [
    "CASES_FILE",
    "METRIC",
    "PROBE",
    "bfcl_commands",
    "chosen_cases",
    "read_bfcl_scores",
    "unsupported",
]

METRIC = "acc,none"
"""A category's accuracy, under the name that lm_eval gives its own: gates read the same for both."""
PROBE = ("bfcl", "version")
"""Succeeds where BFCL is installed."""
CASES_FILE = "test_case_ids_to_generate.json"
"""Where BFCL looks, in its project folder, for the cases that ``--run-ids`` means."""


def bfcl_commands(
    deployment: Deployment, task: AccuracyTask, base_url: str, root: str
) -> tuple[list[str], list[str]]:
    """The commands that generate and that judge; ``root`` is BFCL's project folder as the client sees it."""
    options = dict(task.options)
    host, _, port = base_url.removeprefix("http://").rpartition(":")
    settings = {
        "BFCL_PROJECT_ROOT": root,
        "LOCAL_SERVER_ENDPOINT": host,
        "LOCAL_SERVER_PORT": port,
        # Models that BFCL calls through OpenAI's API, and those it would serve itself, both end here.
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "REMOTE_OPENAI_BASE_URL": f"{base_url}/v1",
        "REMOTE_OPENAI_TOKENIZER_PATH": deployment.model_path,
    }
    env = ["env", *(runtime_text(f"{name}={value}", base_url) for name, value in settings.items())]
    # Without a key the clients refuse to start; a key of the caller's is kept.
    command = ["bash", "-c", 'export OPENAI_API_KEY="${OPENAI_API_KEY:-none}"; exec "$@"', "bfcl", "bfcl"]
    which = ["--model", deployment.model, "--test-category", task.name]
    generate = ["generate", *which, "--skip-server-setup", "--allow-overwrite"]
    for name in ("num_threads", "temperature"):
        if name in options:
            generate += [f"--{name.replace('_', '-')}", options[name]]
    evaluate = ["evaluate", *which]
    if "max_test_cases" in options:
        generate.append("--run-ids")
        evaluate.append("--partial-eval")
    return [*env, *command, *generate], [*env, *command, *evaluate]


def unsupported(task: AccuracyTask) -> str | None:
    """Why BFCL's command line cannot run the task as the recipe asks, None when it can."""
    if "maximum_step_limit" in dict(task.options):
        return "bfcl has no option for maximum_step_limit; take it out of the recipe to run with BFCL's own"
    return None


def chosen_cases(task: AccuracyTask) -> str | None:
    """The text of BFCL's file of test case ids when the recipe limits them, else None."""
    limit = dict(task.options).get("max_test_cases")
    if limit is None:
        return None
    return json.dumps({task.name: [f"{task.name}_{number}" for number in range(int(limit))]})


def read_bfcl_scores(root: Path, category: str) -> tuple[tuple[AccuracyScore, ...], Path]:
    """The category's accuracy (0..1) and the file that says so; ResultError without a usable one."""
    files = sorted((root / "score").glob(f"**/*_{category}_score.json"))
    files = [path for path in files if path.name.split("_", 2)[-1] == f"{category}_score.json"] or files
    if not files:
        raise ResultError(f"{root / 'score'}: bfcl left no score file for {category}")
    path = files[-1]
    header = next(_lines(path), None)
    if not isinstance(header, dict):
        raise ResultError(f"{path}: expected an object with the accuracy in its first line")
    value = header.get("accuracy")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ResultError(f"{path}: expected a number as accuracy (got {value!r})")
    count = header.get("total_count")
    spread = None
    if isinstance(count, int) and count > 1 and 0 <= value <= 1:
        spread = math.sqrt(value * (1 - value) / (count - 1))
    return (AccuracyScore(category, METRIC, float(value), spread),), path


def _lines(path: Path) -> Iterator[object]:
    try:
        with path.open(encoding="utf-8") as source:
            for line in source:
                yield json.loads(line)
    except (OSError, ValueError) as err:
        raise ResultError(f"{path}: is not a file of JSON lines ({err})") from err
