"""Node lists, environments and options that differ from site to site."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.plan.launch import Site
from pytest_gpubench.plan.slurm import plan_slurm
from pytest_gpubench.recipe.slurm_forms import gres_gpus
from pytest_gpubench.slurm.environment import clean_env
from pytest_gpubench.slurm.nodelist import expand

from .cases import CASES, PROFILES, Recipes, environment, plan_of, recipe_text, value_of, workload
from .site import DECLARED, OUTER, SiteRun
from .trouble import GRES, SEGMENT, Trouble

# -- FC-32 -------------------------------------------------------------------------------------------

HOSTS = ("gb-r01-n09", "gb-r01-n10", "gb-r02-n09", "gb-r02-n10", "login7", "gb-x001", "gb-x003", "gb-x004")


def test_fc_32_a_mixed_list_gives_exactly_its_hosts() -> None:
    text = environment("FC-32")["SLURM_JOB_NODELIST"]
    assert expand(text) == HOSTS
    assert expand(text, expected=8)[0] == "gb-r01-n09"
    with pytest.raises(SlurmError, match="holds 8 hosts, the job asked for 9"):
        expand(text, expected=9)
    with pytest.raises(SlurmError, match="cannot be read"):
        expand("gb[01-")


SCONTROL = """\
#!/bin/sh
[ "$2" = hostnames ] && printf '%s\\n' {hosts}
[ "$2" = node ] && echo "NodeName=$3 NodeAddr=127.0.0.1"
exit 0
"""
SRUN = """\
#!/bin/sh
while [ "$1" != --nodelist ]; do shift; done
echo "$2" >>"{folder}/order"
sleep 1
"""


@pytest.mark.parametrize(
    ("hosts", "noted"), [(HOSTS, "rank rank-0 0"), (HOSTS[1:], "nodes 7 of 8"), ((), "nodes 0")]
)
def test_fc_32_the_batch_script_keeps_order_and_count(
    recipes: Recipes, tmp_path: Path, hosts: tuple[str, ...], noted: str
) -> None:
    """The script outside any container asks scontrol; without it there are no nodes, and it says so."""
    deployment = recipes.point(recipe_text("serve_args: -tp 32", nodes=8)).deployment
    site = Site(str(tmp_path / "d"), str(tmp_path), "job", {}, pyxis=True)
    plan = plan_slurm(deployment, site)
    programs = {"srun": SRUN.format(folder=tmp_path)}
    if hosts:
        programs["scontrol"] = SCONTROL.format(hosts=" ".join(hosts))
    for name, text in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    Path(plan.state).mkdir(parents=True)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", **environment("FC-32")}
    subprocess.run(["bash", "-c", plan.script], env=env, timeout=60, capture_output=True, check=False)
    assert (Path(plan.state) / "ended").read_text().startswith(noted)
    if hosts != HOSTS:
        assert not (tmp_path / "order").exists()
        return
    assert sorted((tmp_path / "order").read_text().split()) == sorted(HOSTS)
    pairs = dict(line.split("=", 1) for line in (Path(plan.state) / "endpoint").read_text().splitlines())
    assert tuple(pairs[f"GPUBENCH_NODE_{rank}"] for rank in range(8)) == HOSTS
    assert [value_of(argv, "--nodelist") for argv in plan.commands] == [
        f"${{GPUBENCH_NODE_{rank}}}" for rank in range(8)
    ]


# -- FC-34 -------------------------------------------------------------------------------------------


def test_fc_34_values_with_commas_and_quotes_arrive_byte_for_byte(site: SiteRun) -> None:
    wanted = {name: DECLARED[name] for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NOTE")}
    assert wanted["NOTE"] == 'a=b "c" $HOME'
    assert wanted["NCCL_IB_HCA"].count(",") == 2
    for dump in site.dumps:
        assert {name: dump.env[name] for name in wanted} == wanted
    for argv in (*site.argvs("sbatch"), *site.argvs("srun")):
        assert not [word for word in argv if word.startswith("--export") and "=" in word.partition("=")[2]]
        assert "mlx5_0" not in " ".join(argv)


@pytest.mark.parametrize(
    "value", [workload("FC-34")["serve"]["env"]["GLOO_SOCKET_IFNAME"], "eth0,eth1", "^lo"]
)
def test_fc_34_gloo_wants_one_interface_name(recipes: Recipes, value: str) -> None:
    for text, profiles in (
        (recipe_text(f"env: {{GLOO_SOCKET_IFNAME: '{value}'}}"), PROFILES),
        (recipe_text(), f"{PROFILES}  env: {{GLOO_SOCKET_IFNAME: '{value}'}}\n"),
    ):
        (problem,) = recipes.problems(text, profiles)
        assert "env.GLOO_SOCKET_IFNAME: Gloo takes one interface name" in problem
        assert value in problem
    env = dict(recipes.point(recipe_text(f"env: {{NCCL_SOCKET_IFNAME: '{value}'}}")).deployment.env)
    assert env["NCCL_SOCKET_IFNAME"] == value
    assert recipes.point(recipe_text("env: {GLOO_SOCKET_IFNAME: eth0}"))


# -- FC-35 -------------------------------------------------------------------------------------------


def test_fc_35_the_outer_allocation_decides_nothing(site: SiteRun) -> None:
    assert OUTER["SLURM_JOB_ID"] == "900"
    (sbatch,) = site.argvs("sbatch")
    assert value_of(sbatch, "--partition") == "batch"
    assert site.job.partition == "batch"
    for dump in site.dumps:
        assert dump.env["SLURM_JOB_ID"] == str(site.job.id) != "900"
        assert dump.env.get("SLURM_MEM_PER_CPU") != OUTER["SLURM_MEM_PER_CPU"]
        assert dump.env.get("SLURM_MEM_PER_NODE") != OUTER["SLURM_MEM_PER_NODE"]
        assert "SBATCH_PARTITION" not in dump.env
        assert dump.env["SLURM_CONF"] == OUTER["SLURM_CONF"]
        assert not dump.env.get("VLLM_PORT", "").startswith("tcp:")
        assert "LD_LIBRARY_PATH" not in dump.env
    outside = [argv for argv in site.steps if any(word.startswith("--jobid") for word in argv)]
    assert outside
    assert {word for argv in outside for word in argv if word.startswith("--jobid")} == {
        f"--jobid={site.job.id}"
    }


def test_fc_35_what_the_recipe_lists_is_passed_on() -> None:
    outer = environment("FC-35")
    assert clean_env(outer) == {"SLURM_CONF": outer["SLURM_CONF"]}
    listed = {"LD_LIBRARY_PATH": "/opt/x", "VLLM_PORT": "8123"}
    assert clean_env(outer, listed) == {"SLURM_CONF": outer["SLURM_CONF"], **listed}


# -- FC-37 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "words"), [("fc37_gres", GRES), ("fc37_segment", SEGMENT)])
def test_fc_37_a_refused_request_is_quoted_and_not_sent_again(
    trouble: Trouble, recipe: str, words: str
) -> None:
    rows = trouble.rows(recipe)
    assert [(row["status"], row["reason"]) for row in rows] == [
        ("error", "submit_refused"),
        ("error", "deployment_failed"),
    ]
    text = trouble.text(recipe)
    assert "while waiting for nodes: sbatch refused job" in text.splitlines()[0]
    assert words in text
    assert ("--segment 2" if recipe == "fc37_segment" else "--gres gpu:b300:4") in text
    assert len(trouble.calls_of("sbatch", f"gpubench-{recipe}-")) == 1
    assert all(row["violations"] == [] for row in rows)


def test_fc_37_gpu_counts_in_every_form(recipes: Recipes) -> None:
    (step,) = CASES["FC-37"]["input"]["steps"]
    forms = ["gpu:4", "gpu", "gpu:gb300", "gpu:gb300:4(S:0-1)", "gpu:gb300:4,nvme:1"]
    assert all(form in step for form in forms)
    assert [gres_gpus(form) for form in forms] == [4, 1, 1, 4, 4]
    eight = PROFILES.replace("gpu:b300:4", "gpu:gb300:8")
    (problem,) = recipes.problems(recipe_text(), eight)
    assert "8 vs 4" in problem
    assert "gpus_per_node" in problem


@pytest.mark.parametrize("left_out", ["gres", "segment", "exclusive"])
def test_fc_37_each_option_may_be_left_out(recipes: Recipes, left_out: str) -> None:
    settings = {"gres": '"gpu:4"', "segment": "2", "exclusive": "true"}
    kept = ", ".join(f"{name}: {value}" for name, value in settings.items() if name != left_out)
    profiles = f"SITE: {{platform: gb300, slurm: {{{kept}}}}}\n"
    options = plan_of(recipes.point(recipe_text(nodes=2, serve="serve_args: -tp 8"), profiles).deployment)
    for name in settings:
        assert (f"--{name}" in options.sbatch_options) == (name != left_out)
