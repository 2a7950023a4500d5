"""Gates: the recipe's, with what an entry or a point overrides, checked against the row's metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_gpubench.recipe.models import GatesModel
from pytest_gpubench.recipe.problems import Problems, near
from pytest_gpubench.recipe.types import Gates, Reference
from pytest_gpubench.recipe.yaml import KeyPath
from pytest_gpubench.results.metrics import known_metric, near_metrics

__all__ = ["Layer", "check_metrics", "gates_of"]

Layer = tuple[GatesModel | None, str | None]
"""Gates as written at one level, and that level's ``known_issue``."""


def gates_of(layers: Iterable[Layer], tasks: Iterable[str] = ()) -> Gates:
    """The gates that hold after every layer: later ones win, metric by metric."""
    merged: dict[str, Any] = {
        "floors": {},
        "ceilings": {},
        "references": {},
        "max_spread": {},
        "accuracy": {},
    }
    rate, issue = 0.0, None
    for model, known_issue in layers:
        issue = known_issue or issue
        if model is None:
            continue
        if "max_failure_rate" in model.model_fields_set:
            rate = model.max_failure_rate
        issue = model.known_issue or issue
        for name, values in merged.items():
            values.update(getattr(model, name))
    wanted = set(tasks)
    return Gates(
        max_failure_rate=rate,
        floors=tuple(merged["floors"].items()),
        ceilings=tuple(merged["ceilings"].items()),
        references=tuple(
            Reference(name, reference.value, reference.lower, reference.upper)
            for name, reference in merged["references"].items()
        ),
        max_spread=tuple(merged["max_spread"].items()),
        accuracy=tuple(
            (task, metric, floor)
            for task, floors in merged["accuracy"].items()
            for metric, floor in floors.items()
            if task in wanted
        ),
        known_issue=issue,
    )


def check_metrics(problems: Problems, model: GatesModel | None, where: KeyPath, tasks: Iterable[str]) -> None:
    """Every gate names a metric that a row has, and a task that the recipe runs."""
    if model is None:
        return
    for group in ("floors", "ceilings", "references", "max_spread"):
        check_names(problems, getattr(model, group), (*where, group))
    known = list(tasks)
    for task in model.accuracy:
        if task not in known:
            problems.add(
                (*where, "accuracy", task), f"the recipe has no task {task!r}{near(task, known)}", key=True
            )


def check_names(
    problems: Problems, names: Iterable[str], where: KeyPath, *, spelled: str | None = None
) -> None:
    """Every name is a metric of the row; ``spelled`` is how the one name is written in the file."""
    for name in names:
        if not known_metric(name):
            close = near_metrics(name)
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            key = spelled or name
            problems.add((*where, key), f"a row has no metric {name!r}{hint}", key=True)
