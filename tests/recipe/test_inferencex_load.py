"""Config keys become recipes: profiles by runner label, images, staged models, positions of problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inferencex_helpers import REAL, RUNNERS_FILE, WORKER, agentic, case, holds, multi, single, write_master

from pytest_gpubench.errors import OptionError, RecipeError
from pytest_gpubench.plan.ranks import plan_workers
from pytest_gpubench.plan.record import Commands, plan_record
from pytest_gpubench.recipe.inferencex import MasterFile, load_inferencex
from pytest_gpubench.recipe.load import LoadContext
from pytest_gpubench.recipe.types import Recipe

PROFILES = """
B300:
  platform: b300
  runtime: slurm
  hf_home: /local/hf
  env: {A: "1"}
  slurm: {partition: batch, gres: "gpu:b300:8"}
H200_SITE: {platform: h200, runtime: native}
runners:
  cluster:b300-nv: B300
  h200: h200_site
"""


def load(
    folder: Path,
    entry: dict[str, Any],
    profiles: str | None = None,
    env: dict[str, str] | None = None,
    runners: Path | None = RUNNERS_FILE,
) -> Recipe:
    path = write_master(folder, key=entry)
    if profiles is not None:
        (folder / "gpu_profiles.yaml").write_text(profiles, encoding="utf-8")
    (recipe,) = load_inferencex(path, runners, ["key"], LoadContext(env=env or {}))
    return recipe


@pytest.mark.parametrize("item", REAL, ids=lambda item: str(item["id"]))
def test_real_entries_load_under_their_own_key(item: dict[str, Any], tmp_path: Path) -> None:
    path = write_master(tmp_path, other=single({"tp": 0, "conc-list": [1]}), **{item["key"]: item["entry"]})
    (recipe,) = load_inferencex(path, RUNNERS_FILE, [item["key"]], LoadContext())
    assert (recipe.stem, recipe.name, recipe.path) == (item["key"], item["key"], str(path))
    assert len(recipe.points) == item["concurrency_points"]
    assert {point.deployment.framework for point in recipe.points} == {item["entry"]["framework"]}
    assert {point.deployment.model for point in recipe.points} == {item["entry"]["model"]}
    servable = {point.deployment.servable for point in recipe.points}
    assert servable == {item["id"] == "IX-07"}
    assert len({point.line for point in recipe.points}) <= item["generator_entries"]


def test_markers_tell_platform_runtime_and_shape(tmp_path: Path) -> None:
    (point,) = load(tmp_path, case("IX-01")["entry"]).points
    assert point.markers == ("gpubench", "gb200", "slurm", "multinode", "disagg")
    points = load(tmp_path, case("IX-04")["entry"]).points
    assert points[0].markers == ("gpubench", "b300", "slurm", "agentic")


def test_the_points_name_the_line_of_their_search_space_entry(tmp_path: Path) -> None:
    recipe = load(tmp_path, single({"tp": 4, "conc-list": [1, 2]}, {"tp": 8, "conc-list": [1]}))
    text = (tmp_path / "master.yaml").read_text(encoding="utf-8").splitlines()
    assert [text[point.line - 1].strip() for point in recipe.points] == ["- tp: 4", "- tp: 4", "- tp: 8"]


def test_points_of_one_deployment_stand_together(tmp_path: Path) -> None:
    raw = single({"tp": 4, "conc-list": [1]}, {"tp": 8, "conc-list": [1]}, {"tp": 4, "conc-list": [2]})
    ids = [point.id for point in load(tmp_path, raw).points]
    assert ids == ["tp4-8k1k-conc1", "tp4-8k1k-conc2", "tp8-8k1k-conc1"]


def test_the_runners_table_names_the_profile(tmp_path: Path) -> None:
    recipe = load(tmp_path, single({"tp": 4, "conc-list": [1]}), PROFILES)
    deployment = recipe.points[0].deployment
    assert (recipe.profile.name, deployment.runtime) == ("B300", "slurm")
    assert dict(deployment.env) == {"A": "1", "HF_HOME": "/local/hf"}
    assert recipe.warnings == ()
    recipe = load(tmp_path, single({"tp": 4, "conc-list": [1]}, runner="H200"), PROFILES, runners=None)
    assert (recipe.profile.name, recipe.points[0].deployment.runtime) == ("H200_SITE", "native")


def test_a_label_finds_the_profile_of_its_name_in_any_case(tmp_path: Path) -> None:
    assert load(tmp_path, single({"tp": 4, "conc-list": [1]}, runner="b300"), PROFILES).profile.name == "B300"
    own = 'B300-NV: {platform: b300, slurm: {gres: "gpu:8"}}\n'
    assert load(tmp_path, single({"tp": 4, "conc-list": [1]}), own).profile.name == "B300-NV"


def test_a_near_name_is_no_match_and_gets_a_generic_profile_that_says_so(tmp_path: Path) -> None:
    for text in (PROFILES, None):
        recipe = load(tmp_path, single({"tp": 4, "conc-list": [1]}, runner="b300-cw"), text, runners=None)
        assert (recipe.profile.name, recipe.profile.platform) == ("b300-cw", "b300")
        (warning,) = recipe.warnings
        assert warning.startswith(f"{tmp_path}/master.yaml:7:11: key.runner: runner b300-cw: ")
        assert "a generic profile stands in" in warning
        assert recipe.points[0].markers[1] == "b300"


def test_a_runners_table_without_its_profile_is_an_error_there(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"gpu_profiles\.yaml:2:28: runners\.cluster:b300-nv: no profile of this name"
    ):
        load(tmp_path, single({"tp": 4, "conc-list": [1]}), "B300: {}\nrunners: {cluster:b300-nv: B3000}\n")
    with pytest.raises(RecipeError, match="runners: expected a mapping of runner labels"):
        load(tmp_path, single({"tp": 4, "conc-list": [1]}), "B300: {}\nrunners: [B300]\n")


def test_a_runner_that_the_runners_file_lacks_is_a_warning(tmp_path: Path) -> None:
    recipe = load(tmp_path, single({"tp": 4, "conc-list": [1]}, runner="gb300-nv"))
    assert any("the runners file has no label 'gb300-nv'" in text for text in recipe.warnings)


def test_a_single_node_point_asks_for_the_gpus_it_uses(tmp_path: Path) -> None:
    recipe = load(tmp_path, single({"tp": 4, "conc-list": [1]}, {"tp": 8, "conc-list": [1]}), PROFILES)
    four, eight = (point.deployment for point in recipe.points)
    assert (four.gpu_count, four.profile.slurm.gres) == (4, "gpu:b300:4")
    assert (eight.gpu_count, eight.profile.slurm.gres) == (8, "gpu:b300:8")


def test_a_gres_that_cannot_hold_the_point_is_an_error(tmp_path: Path) -> None:
    small = 'B300: {runtime: slurm, slurm: {gres: "gpu:2"}}\n'
    with pytest.raises(
        RecipeError, match=r"search-space\[0\]: uses 4 GPUs per node, but profile B300 asks for 2"
    ):
        load(tmp_path, single({"tp": 4, "conc-list": [1]}, runner="b300"), small)
    load(tmp_path, single({"tp": 4, "conc-list": [1]}, runner="b300", framework="sglang"), small)


def test_the_image_follows_the_environment_for_vllm_only(tmp_path: Path) -> None:
    env = {"VLLM_IMAGE": "vllm/vllm-openai:nightly-0123456789abcdef"}
    deployment = load(tmp_path, single({"tp": 4, "conc-list": [1]}), env=env).points[0].deployment
    assert (deployment.image, deployment.vllm_commit) == (env["VLLM_IMAGE"], "0123456789abcdef")
    raw = single({"tp": 4, "conc-list": [1]}, framework="sglang", image="lmsysorg/sglang:v0.5.12-cu130")
    assert load(tmp_path, raw, env=env).points[0].deployment.image == "lmsysorg/sglang:v0.5.12-cu130"


def test_an_image_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"master\.yaml:2:10: key\.image: 'vllm/Vllm' is no repository"):
        load(tmp_path, single({"tp": 4, "conc-list": [1]}, image="vllm/Vllm:v1"))


def test_staging_rewrites_the_listed_scenarios_only(tmp_path: Path) -> None:
    profiles = "B300-NV: {runtime: slurm, models: {root: /scratch/models, staged: required}}\n"
    deployment = load(tmp_path, single({"tp": 4, "conc-list": [1]}), profiles).points[0].deployment
    assert (deployment.model, deployment.model_path) == ("org/model", "/scratch/models/model")
    assert deployment.check_model_path
    assert dict(deployment.env)["HF_HUB_OFFLINE"] == "1"
    replay = agentic({"tp": 8, "kv-offloading": "none", "conc-list": [1]})
    deployment = load(tmp_path, replay, profiles).points[0].deployment
    assert (deployment.model_path, deployment.check_model_path, deployment.env) == ("org/model", False, ())


def test_topology_problems_stand_at_their_search_space_entry(tmp_path: Path) -> None:
    bad = {"conc-list": [2], "prefill": {**WORKER, "additional-settings": ["PREFILL_NODES=x"]}}
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, multi({"conc-list": [1]}, bad))
    (problem,) = caught.value.problems
    assert (
        "key.scenarios.fixed-seq-len[0].search-space[1]: additional-settings: PREFILL_NODES must be"
        in problem
    )


def test_a_load_written_twice_is_an_error_with_both_lines(tmp_path: Path) -> None:
    raw = single({"tp": 8, "conc-list": [4]}, {"tp": 8, "conc-start": 4, "conc-end": 8})
    with pytest.raises(RecipeError, match="point tp8-8k1k-conc4 is written twice, in lines 14 and 17"):
        load(tmp_path, raw)


def test_every_selected_key_is_told_about_and_others_are_not_read(tmp_path: Path) -> None:
    bad = single({"tp": 0, "conc-list": [1]})
    path = write_master(tmp_path, dsr1_a=bad, dsr1_b=bad, good=single({"tp": 8, "conc-list": [1]}))
    with pytest.raises(RecipeError) as caught:
        load_inferencex(path, None, ["*"], LoadContext())
    assert [problem.split(": ")[1].split(".")[0] for problem in caught.value.problems] == ["dsr1-a", "dsr1-b"]
    assert [recipe.stem for recipe in load_inferencex(path, None, ["g*"], LoadContext())] == ["good"]
    master = MasterFile.open(path, None, LoadContext())
    assert master.select(["*"]) == ["dsr1-a", "dsr1-b", "good"]
    assert len(master.recipe("good").points) == 1
    with pytest.raises(OptionError, match="did you mean 'good'"):
        load_inferencex(path, None, ["goods"], LoadContext())


def test_a_key_with_other_characters_gives_a_plain_stem(tmp_path: Path) -> None:
    path = write_master(tmp_path, **{"k/2 (new)": single({"tp": 8, "conc-list": [1]})})
    (recipe,) = load_inferencex(path, None, ["k/2*"], LoadContext())
    assert (recipe.stem, recipe.name) == ("k_2_new_", "k/2 (new)")


def test_gpus_per_node_fall_back_to_what_the_platform_usually_has(tmp_path: Path) -> None:
    small = {"num-worker": 1, "tp": 8, "ep": 1, "dp-attn": False}
    raw = multi({"conc-list": [1], "prefill": small, "decode": small}, runner="gb200")
    deployment = load(tmp_path, raw, runners=None).points[0].deployment
    assert (deployment.num_nodes, deployment.gpus_per_node) == (4, 4)
    deployment = load(tmp_path, {**raw, "runner": "h100-multinode"}, runners=None).points[0].deployment
    assert (deployment.num_nodes, deployment.gpus_per_node) == (2, 8)


def test_mixed_hardware_counts_each_roles_own_nodes(tmp_path: Path) -> None:
    prefill = {**WORKER, "hardware": "cluster:b300-nv"}
    decode = {**WORKER, "hardware": "cluster:gb300-nv"}
    deployment = (
        load(tmp_path, multi({"conc-list": [1], "prefill": prefill, "decode": decode})).points[0].deployment
    )
    assert (deployment.num_nodes, deployment.gpu_count) == (1 + 2, 16)


def test_the_digest_is_of_the_entry_alone(tmp_path: Path) -> None:
    entry, other = single({"tp": 8, "conc-list": [1]}), single({"tp": 4, "conc-list": [1]})

    def digest(**entries: dict[str, Any]) -> str:
        path = write_master(tmp_path, **entries)
        return load_inferencex(path, None, ["key"], LoadContext())[0].sha256

    assert digest(key=entry) == digest(other=other, key=entry)
    assert digest(key=entry) != digest(key=other)


def test_the_plan_shows_inferencex_keys_in_its_roles(tmp_path: Path) -> None:
    (point,) = load(tmp_path, case("IX-01")["entry"]).points
    plan = plan_record(point, Commands(), environment={})
    written = case("IX-01")["entry"]["scenarios"]["fixed-seq-len"][0]["search-space"][0]
    assert holds(plan["prefill"], written["prefill"])
    assert holds(plan["decode"], written["decode"])
    assert (plan["servable"], plan["serve_argv"], plan["num_nodes"], plan["gpu_count"]) == (
        False,
        None,
        8,
        32,
    )


def test_an_aggregated_entry_over_nodes_plans_one_server(tmp_path: Path) -> None:
    workers = {"prefill": {**WORKER, "pp": 2}, "decode": {**WORKER, "num-worker": 0}}
    (point,) = load(tmp_path, multi({"conc-list": [4], **workers}, disagg=False)).points
    (worker,) = plan_workers(point.deployment)
    assert [rank.is_head for rank in worker.ranks] == [True, False]
    assert "--pipeline-parallel-size" in worker.ranks[1].argv
    plan = plan_record(point, Commands(), environment={})
    assert (plan["prefill"]["num-worker"], plan["decode"]["num-worker"]) == (1, 0)
