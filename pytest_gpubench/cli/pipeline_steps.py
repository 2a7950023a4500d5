"""Recipes -> the steps of a Buildkite pipeline. Pure.

``$`` is special twice: ``buildkite-agent pipeline upload`` interpolates it in the whole file, and the
shell does it again. Texts of recipes are therefore escaped; only ``$BUILDKITE_…`` of ``--results`` stays.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpubench.cli.ci import EXIT_INFRASTRUCTURE
from pytest_gpubench.errors import OptionError
from pytest_gpubench.recipe.types import Recipe

__all__ = ["PipelineOptions", "make_pipeline", "shell_word"]

_VARIABLE = re.compile(r"\$(?:BUILDKITE_[A-Z_]+|\{BUILDKITE_[A-Z_]+\})")
_PER_BUILD = re.compile(r"\$\{?BUILDKITE_BUILD_(?:ID|NUMBER)\b")


@dataclass(frozen=True)
class PipelineOptions:
    """``results`` may name ``$BUILDKITE_…`` variables; ``pytest_args`` are added to every step.

    ``build_id`` is the build that writes the pipeline, when one does.
    """

    results: str = "results/$BUILDKITE_BUILD_ID"
    nightly: bool = False
    retries: int = 1
    queue: str | None = None  # for profiles that name none
    pytest_args: tuple[str, ...] = ()
    test_collector: str | None = None  # version of Buildkite's test-collector plugin
    build_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse what would be interpolated to something else than was meant."""
        rest = _VARIABLE.sub("", self.results)
        if "$" in rest or not re.fullmatch(r"[A-Za-z0-9._/+=,@%-]*", rest) or not self.results:
            raise OptionError(
                f"--results {self.results!r}: expected a path of letters, digits and ._/+=,@%-, with "
                "$BUILDKITE_… variables at most"
            )
        if not 0 <= self.retries <= 10:
            raise OptionError(f"--retries {self.retries}: expected 0 to 10, as Buildkite has it")

    @property
    def per_build(self) -> bool:
        """Whether the results folder belongs to one build alone, named by a variable or by its id."""
        return bool(_PER_BUILD.search(self.results)) or (
            bool(self.build_id) and str(self.build_id) in self.results.split("/")
        )


def make_pipeline(recipes: Sequence[tuple[Recipe, str]], options: PipelineOptions) -> dict[str, Any]:
    """The pipeline. ``recipes``: each with the text that ``WORKLOADS`` gets, its path from the checkout.

    One step per recipe, a wait that goes on after failures, then one reap per queue.
    """
    keys: dict[str, int] = {}
    steps: list[dict[str, Any]] = [_recipe_step(recipe, path, options, keys) for recipe, path in recipes]
    steps.append({"wait": None, "continue_on_failure": True})
    queues = dict.fromkeys(
        _queue(recipe, options) for recipe, _ in recipes if recipe.profile.runtime == "slurm"
    )
    steps += [_reap_step(queue, options, keys) for queue in queues]
    if not queues:
        steps.pop()  # nothing follows the wait
    return {"steps": steps}


def shell_word(text: str) -> str:
    """``text`` as one word of a command in the file: variables of Buildkite stay, all else is literal."""
    if _VARIABLE.search(text) and "$" not in _VARIABLE.sub("", text):
        inner = text.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
        return f'"{inner}"'
    return shlex.quote(text).replace("$", "$$")


def _recipe_step(recipe: Recipe, path: str, options: PipelineOptions, keys: dict[str, int]) -> dict[str, Any]:
    folder, stem = options.results, recipe.stem
    command = [
        "gpubench", "ci",
        # Without it the checkout's own tests would run in every step; a later -m replaces it.
        "-m", "gpubench",
        "--gpubench-results", folder,
        "--gpubench-json", f"{folder}/ingest-{stem}.json",
        "--junitxml", f"{folder}/junit-{stem}.xml",
        *options.pytest_args,
    ]  # fmt: skip
    step: dict[str, Any] = {
        "label": _literal(f"{recipe.name} ({recipe.profile.name}, {_nodes(recipe)})"),
        "key": _key(f"gpubench-{stem}", keys),
        "command": " ".join(shell_word(word) for word in command),
        "env": {"WORKLOADS": _literal(path)},
        "artifact_paths": [
            f"{folder}/{_glob_literal(stem)}/**/*",
            f"{folder}/ingest-{_glob_literal(stem)}.json",
            f"{folder}/junit-{_glob_literal(stem)}.xml",
        ],
        **_agents(_queue(recipe, options)),
    }
    if options.nightly:
        step["env"]["NIGHTLY"] = "1"
    if recipe.timeout_minutes is not None:
        step["timeout_in_minutes"] = max(1, math.ceil(recipe.timeout_minutes))
    if options.retries:
        # The first rule that matches decides. No rule matches 1 (a missed gate), 2, 3, 4 or 5.
        step["retry"] = {
            "automatic": [
                *_lost_agent(options.retries),
                {"exit_status": EXIT_INFRASTRUCTURE, "limit": options.retries},
            ],
            "manual": {"permit_on_passed": True},
        }
    if options.test_collector:
        settings = {"files": f"{folder}/junit-{stem}.xml", "format": "junit"}
        step["plugins"] = [{f"test-collector#{options.test_collector}": settings}]
    return step


def _reap_step(queue: str | None, options: PipelineOptions, keys: dict[str, int]) -> dict[str, Any]:
    folder = shell_word(options.results)
    # In a folder of this build alone every run is over by now, also one whose host cannot be seen from here.
    force = " --force" if options.per_build else ""
    return {
        "label": _literal(f"give back what killed runs left{f' ({queue})' if queue else ''}"),
        "key": _key(f"gpubench-reap-{queue or 'default'}", keys),
        "command": f"mkdir -p {folder} && gpubench reap --results {folder}{force}",
        "timeout_in_minutes": 15,
        "retry": {"automatic": _lost_agent(2)},
        **_agents(queue),
    }


def _lost_agent(limit: int) -> list[dict[str, Any]]:
    """Buildkite's own words for a job whose agent went away: lost, killed, told to stop."""
    return [
        {"exit_status": -1, "limit": limit},
        {"exit_status": 255, "limit": limit},
        {"signal_reason": "agent_stop", "limit": limit},
    ]


def _agents(queue: str | None) -> dict[str, Any]:
    return {"agents": {"queue": _literal(queue)}} if queue else {}


def _queue(recipe: Recipe, options: PipelineOptions) -> str | None:
    return recipe.profile.queue or options.queue


def _nodes(recipe: Recipe) -> str:
    count = max((point.num_nodes for point in recipe.points), default=1)
    points = len(recipe.points)
    return f"{count} node{'s' if count > 1 else ''}, {points} point{'s' if points > 1 else ''}"


def _key(name: str, keys: dict[str, int]) -> str:
    """A key that Buildkite takes and that no other step has."""
    base = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    count = keys[base] = keys.get(base, 0) + 1
    return base if count == 1 else f"{base}-{count}"


def _literal(text: str) -> str:
    return text.replace("$", "$$")


def _glob_literal(text: str) -> str:
    return re.sub(r"[*?\[\]{}\\]", "?", _literal(text))
