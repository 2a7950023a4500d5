"""``gpubench import inferencex`` writes a recipe that loads to the same points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inferencex_helpers import RUNNERS_FILE, WORKER, agentic, case, multi, single, write_master

from pytest_gpubench.cli.import_ import run
from pytest_gpubench.recipe.expand import smoke
from pytest_gpubench.recipe.inferencex import load_inferencex
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.parallel import max_model_len
from pytest_gpubench.recipe.types import Point, Recipe, Role

PROFILES = (
    "B300: {platform: b300, runtime: slurm}\nrunners: {cluster:b300-nv: B300, b300-nv: B300, gb200: B300}\n"
)
TP4_GUARD = """constraints:
- when: {tp: 4}
  require: {isl: 8192, osl: 1024}
  reason: TP=4 is tuned for 8192/1024 only
"""


def both(folder: Path, entry: dict[str, Any], addition: str = "") -> tuple[Recipe, Recipe]:
    """The recipe of the master file, and that of the file written by the command."""
    master = write_master(folder, key=entry)
    (folder / "gpu_profiles.yaml").write_text(PROFILES, encoding="utf-8")
    out = folder / "imported.yaml"
    out.unlink(missing_ok=True)
    assert run(["inferencex", str(master), "key", "--runners", str(RUNNERS_FILE), "--out", str(out)]) == 0
    with out.open("a", encoding="utf-8") as file:
        file.write(addition)
    (source,) = load_inferencex(master, RUNNERS_FILE, ["key"], LoadContext())
    return source, load_recipe(out, LoadContext())


def role_facts(role: Role | None) -> object:
    return None if role is None else (role.workers, role.parallel, role.nodes, role.dp_attention)


def facts(point: Point) -> dict[str, object]:
    """All that the recipe format has words for."""
    deployment, load, labels = point.deployment, point.load, point.labels
    assert load is not None
    length = json.loads(dict(deployment.extra).get("max-model-len", "null"))
    aggregated = deployment.decode is None or deployment.decode.workers == 0
    return {
        "model": deployment.model,
        "shape": (deployment.num_nodes, deployment.gpus_per_node, deployment.gpu_count),
        "parallel": deployment.parallel,
        "roles": None if aggregated else (role_facts(deployment.prefill), role_facts(deployment.decode)),
        "max_model_len": length or max_model_len(deployment.serve_args),
        "lengths": (load.isl, load.osl, load.random_range_ratio),
        "load": (load.concurrency, load.num_prompts, load.num_warmups, load.ignore_eos),
        "limit": point.gates.max_failure_rate,
        "labels": (labels.precision, labels.tp, labels.dp_attention, labels.disagg, labels.device),
    }


@pytest.mark.parametrize("name", ["IX-01", "IX-02", "IX-03", "IX-06", "IX-07"])
def test_real_entries_come_back_as_the_same_points(name: str, tmp_path: Path) -> None:
    source, imported = both(tmp_path, case(name)["entry"])
    assert [facts(point) for point in imported.points] == [facts(point) for point in source.points]
    assert all(point.deployment.servable for point in imported.points)


def test_served_points_start_the_same_server(tmp_path: Path) -> None:
    source, imported = both(tmp_path, case("IX-07")["entry"])
    for before, after in zip(source.points, imported.points, strict=True):
        assert before.deployment.image == after.deployment.image
        assert _options(before) - {"--tensor-parallel-size=1"} == _options(after)


def _options(point: Point) -> set[str]:
    args = " ".join(point.deployment.serve_args).replace(" --", "\n--").splitlines()
    return {arg.replace(" ", "=") for arg in args}


def test_lengths_limits_prompts_and_nodes_that_differ_come_back_too(tmp_path: Path) -> None:
    def workers(limit: float, multiplier: int) -> dict[str, Any]:
        settings = [f"MAX_FAILURE_RATE={limit}", f"BENCH_NUM_PROMPTS_MULTIPLIER={multiplier}"]
        prefill = {**WORKER, "pp": 2, "additional-settings": settings}
        return {"prefill": prefill, "decode": {**WORKER, "num-worker": 0}}

    raw = multi(
        {"conc-list": [4, 8], **workers(0.1, 3)}, {"conc-list": [16], **workers(0.2, 4)}, disagg=False
    )
    short = {"isl": 1024, "osl": 1024, "search-space": [{"conc-list": [64], **workers(0.1, 3)}]}
    raw["scenarios"]["fixed-seq-len"].append(short)
    source, imported = both(tmp_path, raw)
    assert sorted(map(str, map(facts, imported.points))) == sorted(map(str, map(facts, source.points)))
    assert {point.deployment.num_nodes for point in imported.points} == {2}


def test_the_tp4_guard_rejects_exactly_the_point_of_its_incident(tmp_path: Path) -> None:
    _, imported = both(tmp_path, case("IX-02")["entry"], TP4_GUARD)
    (point,) = imported.points
    assert point.rejected is not None
    assert point.rejected.startswith(
        "TP=4 is tuned for 8192/1024 only (this point has tp=4, isl=1024, osl=1024)"
    )
    assert smoke(imported.points) == []
    _, imported = both(tmp_path, case("IX-03")["entry"], TP4_GUARD)
    assert [point.rejected for point in imported.points] == [None] * 9


def test_the_guard_names_the_points_that_are_allowed(tmp_path: Path) -> None:
    raw = single({"tp": 4, "conc-list": [4]}, {"tp": 8, "conc-list": [4]}, isl=1024)
    tuned = {"isl": 8192, "osl": 1024, "search-space": [{"tp": 4, "conc-list": [4, 8]}]}
    raw["scenarios"]["fixed-seq-len"].append(tuned)
    _, imported = both(tmp_path, raw, TP4_GUARD)
    rejected = [point for point in imported.points if point.rejected]
    assert [(p.load.isl, p.load.concurrency) for p in rejected if p.load] == [(1024, 4)]
    assert "8k1k-conc4" in (rejected[0].rejected or "")
    kept = smoke(imported.points)
    assert kept
    assert rejected[0] not in kept


def test_what_a_recipe_cannot_express_is_said_in_it_and_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefill = {**WORKER, "additional-settings": ["CONFIG_FILE=a.yaml", "PREFILL_NODES=1"]}
    raw = multi({"conc-list": [1], "prefill": prefill, "spec-decoding": "mtp"}, framework="dynamo-vllm")
    both(tmp_path, raw)
    shown = capsys.readouterr().err
    text = (tmp_path / "imported.yaml").read_text(encoding="utf-8")
    for said in (
        "the router and KV transfer of dynamo-vllm",
        "spec-decoding mtp, whose settings are in InferenceX's own script",
        "additional-settings CONFIG_FILE, read by",
    ):
        assert f"# Not expressed: {said}" in text
        assert f"gpubench import: not expressed: {said}" in shown
    assert "PREFILL_NODES" not in text


def test_another_engines_image_is_not_put_under_vllm(tmp_path: Path) -> None:
    _, imported = both(tmp_path, case("IX-03")["entry"])
    text = (tmp_path / "imported.yaml").read_text(encoding="utf-8")
    assert "# Not expressed: framework sglang and its image lmsysorg/sglang:v0.5.12-cu130" in text
    assert {point.deployment.image for point in imported.points} == {"vllm/vllm-openai:nightly"}


def test_the_same_sizes_under_other_settings_keep_a_point_each(tmp_path: Path) -> None:
    def under(name: str) -> dict[str, Any]:
        return {"conc-list": [1], "prefill": {**WORKER, "additional-settings": [f"CONFIG_FILE={name}.yaml"]}}

    source, imported = both(tmp_path, multi(under("a"), under("b")))
    assert len({point.id for point in imported.points}) == len(source.points) == 2


def test_agentic_points_are_written_apart_from_fixed_ones(tmp_path: Path) -> None:
    replay = agentic({"tp": 8, "kv-offloading": "none", "conc-list": [1, 2]})
    _, imported = both(tmp_path, replay)
    assert [point.load.concurrency for point in imported.points if point.load] == [1, 2]
    assert {point.deployment.scenario for point in imported.points} == {"agentic-coding"}
    mixed = single({"tp": 8, "conc-list": [1]})
    mixed["scenarios"] |= replay["scenarios"]
    source, imported = both(tmp_path, mixed)
    assert (len(source.points), len(imported.points)) == (3, 1)
    assert "Not expressed: the 2 agentic points" in (tmp_path / "imported.yaml").read_text(encoding="utf-8")


def test_without_out_the_recipe_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    master = write_master(tmp_path, key=single({"tp": 8, "conc-list": [1]}))
    assert run(["inferencex", str(master), "k*", "--gpu", "OURS"]) == 0
    shown = capsys.readouterr()
    assert "\ngpu: OURS\n" in shown.out
    assert "a generic profile stands in" in shown.err


def test_wrong_use_is_exit_4_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = single({"tp": 8, "conc-list": [1]})
    master = write_master(tmp_path, key_a=entry, key_b=entry, bad=single({"tp": 0, "conc-list": [1]}))
    out = tmp_path / "out.yaml"
    for key, message in (
        ("key-?", "KEY 'key-?' stands for 2 config keys, name one: key-a, key-b"),
        ("key-c", "no config key 'key-c'; did you mean"),
        ("bad", "tp: must be above 0 (got 0)"),
    ):
        assert run(["inferencex", str(master), key, "--out", str(out)]) == 4
        assert message in capsys.readouterr().err
        assert not out.exists()
    out.write_text("mine", encoding="utf-8")
    assert run(["inferencex", str(master), "key-a", "--out", str(out)]) == 4
    assert "the file exists" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "mine"
    assert run(["inferencex", str(tmp_path / "none.yaml"), "key-a"]) == 4
    assert "none.yaml: cannot be read" in capsys.readouterr().err
