"""The staging rules, one line each."""

from __future__ import annotations

import pytest
from recipe_helpers import BENCH, Folder

from pytest_gpubench.recipe.staging import OFFLINE, Staged, stage_model
from pytest_gpubench.recipe.types import ModelStaging

FIXED, AGENTIC = "fixed-seq-len", "agentic-coding"
ROOT = "/scratch/models"
PATHS = (("org/Model", "/data/model-v2"),)


@pytest.mark.parametrize(
    ("model", "scenario", "staging", "expected"),
    [
        ("org/Model", FIXED, ModelStaging(), Staged("org/Model")),
        ("org/Model", FIXED, ModelStaging(ROOT), Staged("org/Model")),
        (
            "org/Model",
            FIXED,
            ModelStaging(ROOT, "required"),
            Staged(f"{ROOT}/Model", check=True, env=OFFLINE),
        ),
        (
            "org/Model",
            FIXED,
            ModelStaging(ROOT, "required", paths=PATHS),
            Staged("/data/model-v2", check=True, env=OFFLINE),
        ),
        (
            "org/Other",
            FIXED,
            ModelStaging(ROOT + "/", "required", paths=PATHS),
            Staged(f"{ROOT}/Other", check=True, env=OFFLINE),
        ),
        ("org/Model", AGENTIC, ModelStaging(ROOT, "required"), Staged("org/Model")),
        (
            "org/Model",
            AGENTIC,
            ModelStaging(ROOT, "required", (FIXED, AGENTIC)),
            Staged(f"{ROOT}/Model", check=True, env=OFFLINE),
        ),
        ("org/Model", FIXED, ModelStaging(ROOT, "preferred"), Staged(f"{ROOT}/Model", preferred=True)),
        ("org/Other", FIXED, ModelStaging(None, "preferred", paths=PATHS), Staged("org/Other")),
        ("/my/model", FIXED, ModelStaging(ROOT, "required"), Staged("/my/model")),
        ("gpt2", FIXED, ModelStaging(ROOT, "required"), Staged(f"{ROOT}/gpt2", check=True, env=OFFLINE)),
    ],
)
def test_rules(model: str, scenario: str, staging: ModelStaging, expected: Staged) -> None:
    assert stage_model(model, scenario, staging) == expected


def test_required_needs_a_place() -> None:
    with pytest.raises(ValueError, match="no root and no path for 'org/Model'"):
        stage_model("org/Model", FIXED, ModelStaging(None, "required"))


RECIPE = f"gpu: S\nvllm: {{model: org/Model}}\n{BENCH}"


def profile(models: str, env: str = "{}") -> str:
    return f"S: {{hf_home: /hf, env: {env}, models: {models}}}"


def test_a_required_model_is_checked_and_nothing_is_downloaded(folder: Folder) -> None:
    deployment = folder.point(RECIPE, profile("{root: /m, staged: required}")).deployment
    assert (deployment.model, deployment.model_path) == ("org/Model", "/m/Model")
    assert deployment.check_model_path
    env = dict(deployment.env)
    assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert env["HF_HOME"] == "/hf"


def test_the_hub_cache_stays_where_it_is(folder: Folder) -> None:
    text = profile("{root: /m, staged: required}", "{HF_HUB_CACHE: /root/.cache/huggingface/hub}")
    env = dict(folder.point(RECIPE, text).deployment.env)
    assert env["HF_HUB_CACHE"] == "/root/.cache/huggingface/hub"


def test_a_preferred_model_falls_back_to_the_hub(folder: Folder) -> None:
    deployment = folder.point(RECIPE, profile("{root: /m, staged: preferred}")).deployment
    assert (deployment.model_path, deployment.preferred_path) == ("org/Model", "/m/Model")
    assert not deployment.check_model_path
    assert "HF_HUB_OFFLINE" not in dict(deployment.env)


def test_other_scenarios_keep_their_download(folder: Folder) -> None:
    recipe = f"{RECIPE}scenario: agentic-coding\n"
    deployment = folder.point(recipe, profile("{root: /m, staged: required}")).deployment
    assert (deployment.model_path, deployment.check_model_path) == ("org/Model", False)


@pytest.mark.parametrize("word", ["off", "'off'", "false"])
def test_off_is_a_word_here(folder: Folder, word: str) -> None:
    assert folder.point(RECIPE, profile(f"{{root: /m, staged: {word}}}")).deployment.model_path == "org/Model"


def test_a_profile_without_a_place_is_an_error(folder: Folder) -> None:
    problem = folder.problem(RECIPE, profile("{staged: required}"))
    assert problem.startswith("recipe.yaml:2:15: vllm.model: models.staged is required")
    problem = folder.problem(RECIPE, profile("{staged: maybe}"))
    assert (
        "gpu_profiles.yaml:1:45: S.models.staged: input should be 'required', 'preferred' or 'off'" in problem
    )
