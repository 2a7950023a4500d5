"""The pages on recipes and profiles speak of every key, and name tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pytest_gpubench.plan.environment import SERVER_COMMAND_NAMES
from pytest_gpubench.recipe import perf_eval_env
from pytest_gpubench.recipe.inferencex.schema import MultiNodeEntry, SingleNodeEntry
from pytest_gpubench.recipe.models import RecipeModel
from pytest_gpubench.recipe.profiles import ProfileModel

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
PROFILES = (REPOSITORY / "docs" / "profiles.md").read_text(encoding="utf-8")
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def keys_of(model: type[BaseModel], seen: set[type[BaseModel]] | None = None) -> dict[str, str]:
    """Key as it is written -> the model that has it, of the model and all that it holds."""
    seen = seen if seen is not None else set()
    found: dict[str, str] = {}
    if model in seen:
        return found
    seen.add(model)
    for name, field in model.model_fields.items():
        found.setdefault(field.alias or name, model.__name__)
        for inner in models_in(field.annotation):
            found |= {key: where for key, where in keys_of(inner, seen).items() if key not in found}
    return found


def words_of(page: str) -> set[str]:
    """Every word that stands as code: in a block, or between backticks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```\w*\n.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return {word for text in [*blocks, *re.findall(r"`([^`]+)`", prose)] for word in WORD.findall(text)}


def test_the_walk_reaches_the_deep_keys() -> None:
    keys = keys_of(RecipeModel)
    assert {"vllm", "prompts_per_concurrency", "nodes_per_instance", "lower", "num_fewshot"} <= set(keys)
    assert "num-worker" in keys_of(MultiNodeEntry)


@pytest.mark.parametrize(
    ("model", "page"), [(RecipeModel, RECIPES), (ProfileModel, PROFILES)], ids=["recipes", "profiles"]
)
def test_every_key_is_named(model: type[BaseModel], page: str) -> None:
    internal = {"listed"}  # the form without a key: a plain list
    known = words_of(page)
    assert {key: where for key, where in keys_of(model).items() if key not in known | internal} == {}


@pytest.mark.parametrize("model", [SingleNodeEntry, MultiNodeEntry])
def test_every_key_of_inferencex_is_named(model: type[BaseModel]) -> None:
    known = words_of(RECIPES)
    left = {
        "scenarios", "fixed-seq-len", "agentic-coding", "search-space", "model-prefix", "multinode", "disagg",
        "kv-offload-backend", "offloading", "duration", "dram-utilization", "trace-source", "name", "version",
    }  # fmt: skip
    assert set(keys_of(model)) - known - left == set()


def test_every_perf_eval_setting_is_named() -> None:
    names = {*perf_eval_env._TEXT, *perf_eval_env._WORDS}
    names |= {*perf_eval_env._CONTAINER, *perf_eval_env._LAUNCHER_DECIDES}
    assert names - words_of(PROFILES) == set()


def test_every_variable_of_the_hooks_is_named() -> None:
    source = (REPOSITORY / "pytest_gpubench" / "plan" / "site_hooks.py").read_text(encoding="utf-8")
    used = {*SERVER_COMMAND_NAMES, *re.findall(r'"((?:PERF_EVAL|GPUBENCH)_[A-Z_]*[A-Z])"', source)}
    assert len(used) > 15
    assert used - words_of(PROFILES) == set()


def test_the_rules_name_tests_that_exist() -> None:
    named = re.findall(r"\| `(tests/[\w/]+\.py)::(\w+)` \|", RECIPES)
    assert len(named) >= 20
    for file, function in named:
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), f"{file}::{function}"
