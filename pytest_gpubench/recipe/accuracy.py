"""perf-eval's ``lm_eval`` and ``bfcl`` blocks as accuracy tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_gpubench.recipe.models import RecipeModel
from pytest_gpubench.recipe.types import AccuracyTask, Pairs
from pytest_gpubench.recipe.yaml import KeyPath, written

__all__ = ["accuracy_tasks", "task_names"]


def accuracy_tasks(model: RecipeModel) -> Iterator[tuple[AccuracyTask, str, KeyPath]]:
    """(task, the part of the point id that names it, where it is written), in the order of the file."""
    if model.lm_eval is not None:
        for index, task in enumerate(model.lm_eval.tasks):
            merged = {**(model.lm_eval.model_args or {}), **(task.model_args or {})}
            yield (
                AccuracyTask(
                    "lm_eval",
                    task.name,
                    task.num_fewshot or 0,
                    join_model_args(merged),
                    _options(model.lm_eval.args or {}),
                ),
                task.name,
                ("lm_eval", "tasks", index),
            )
    if model.bfcl is not None:
        for index, category in enumerate(model.bfcl.test_categories):
            yield (
                AccuracyTask("bfcl", category, options=_bfcl_options(model, category)),
                f"bfcl-{category}",
                ("bfcl", "test_categories", index),
            )


def task_names(model: RecipeModel) -> list[str]:
    """The names that ``gates.accuracy`` may use."""
    return [task.name for task, _, _ in accuracy_tasks(model)]


def join_model_args(args: Mapping[str, object]) -> str:
    """``a=1,b=True,c=None``: Python literals, as lm_eval reads them."""
    return ",".join(f"{name}={written(value)}" for name, value in args.items())


def _options(args: Mapping[str, object]) -> Pairs:
    """Options for the command line: true is a bare flag (empty here), false and null are none."""
    return tuple(
        (name.lstrip("-").replace("-", "_"), "" if value is True else written(value))
        for name, value in args.items()
        if value is not None and value is not False
    )


def _bfcl_options(model: RecipeModel, category: str) -> Pairs:
    bfcl = model.bfcl
    assert bfcl is not None
    cases = bfcl.max_test_cases
    if isinstance(cases, dict):
        cases = cases.get(category)
    options: dict[str, object | None] = {
        "num_threads": bfcl.num_threads,
        "temperature": bfcl.temperature,
        "maximum_step_limit": bfcl.maximum_step_limit,
        "max_test_cases": cases,
    }
    return tuple((name, str(value)) for name, value in options.items() if value is not None)
