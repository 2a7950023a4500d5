"""Values with commas, quotes and dollars reach every rank byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

from plugin.project import Project

from .cases import Recipes, recipe_text, workload
from .stubs import dumping_vllm


def test_fc_34_lists_in_variables_reach_every_rank_whole(project: Project, tmp_path: Path) -> None:
    declared = workload("FC-34")["serve"]["env"]
    del declared["GLOO_SOCKET_IFNAME"]
    text = recipe_text(f"env: {json.dumps(declared)}, serve_args: -tp 2", nodes=2)
    project.write("workloads/lists.yaml", text.replace("SITE", "GB300_SLURM"))
    with project.cluster() as cluster:
        dumps = dumping_vllm(cluster, tmp_path)
        run = project.run("--workload=lists", env=project.env(cluster.env()))
        assert run.code == 0, run.out
        ranks = [dump for dump in dumps() if dump.argv[0] == "serve"]
        calls = [word for call in cluster.calls() for word in call.argv]
    assert sorted("--headless" in dump.argv for dump in ranks) == [False, True]
    for dump in ranks:
        assert {name: dump.env.get(name) for name in declared} == declared
    # Slurm cuts --export at commas: no value is ever written into an option.
    exports = [word for word in calls if word.startswith("--export=") and "=" in word[len("--export=") :]]
    assert exports == []


def test_fc_34_a_pattern_for_gloo_is_refused_and_for_nccl_is_fine(recipes: Recipes) -> None:
    declared = workload("FC-34")["serve"]["env"]
    (problem,) = recipes.problems(recipe_text(f"env: {json.dumps(declared)}"))
    assert "GLOO_SOCKET_IFNAME" in problem
    assert "Gloo takes one interface name" in problem
    (listed,) = recipes.problems(recipe_text("env: {GLOO_SOCKET_IFNAME: 'eth0,eth1'}"))
    assert "Gloo takes one interface name" in listed
    env = {**declared, "GLOO_SOCKET_IFNAME": "eth0"}
    assert dict(recipes.point(recipe_text(f"env: {json.dumps(env)}")).deployment.env) == env
