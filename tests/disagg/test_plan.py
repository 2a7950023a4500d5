"""Where the processes of a disaggregated deployment stand, and what each is told."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench.plan.launch import Site
from pytest_gpubench.plan.ranks import plan_router, plan_workers
from pytest_gpubench.plan.slurm import plan_slurm
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.types import Deployment, RouterSettings

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
SITE = Site(folder="/s/r/x", checkout="/s", job_name="j", caller_env={})


def deployment(tmp_path: Path, text: str) -> Deployment:
    path = tmp_path / "pd.yaml"
    path.write_text(text)
    (tmp_path / "gpu_profiles.yaml").write_text("S: {runtime: slurm}\nN: {runtime: native}\n")
    return load_recipe(path, LoadContext()).points[0].deployment


@pytest.fixture(scope="module")
def three_and_one() -> Deployment:
    return load_recipe(WORKLOADS / "deepseek_v4_pro_gb200_3p1d.yaml", LoadContext()).points[0].deployment


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_every_worker_has_nodes_of_its_own(three_and_one: Deployment) -> None:
    workers = plan_workers(three_and_one)
    assert [worker.label for worker in workers] == ["prefill-0", "prefill-1", "prefill-2", "decode-0"]
    assert [rank.node for worker in workers for rank in worker.ranks] == list(range(8))
    assert three_and_one.num_nodes == 8
    names = [rank.name for worker in workers for rank in worker.ranks]
    assert names[2:4] == ["prefill-1-rank-0", "prefill-1-rank-1"]


def test_each_role_has_its_sizes_and_its_own_arguments(three_and_one: Deployment) -> None:
    for worker in plan_workers(three_and_one):
        for rank in worker.ranks:
            assert option(rank.argv, "--data-parallel-size") == "8"
            assert "--enable-expert-parallel" in rank.argv
            assert option(rank.argv, "--nnodes") == "2"
            assert ("--enforce-eager" in rank.argv) == (worker.role == "prefill")
            assert ("--max-num-seqs" in rank.argv) == (worker.role == "decode")
            assert ("--headless" in rank.argv) == (rank.rank == 1)
            config = json.loads(option(rank.argv, "--kv-transfer-config"))
            assert config["kv_connector"] == "NixlConnector"
            assert config["kv_role"] == "kv_both"


@pytest.mark.parametrize(
    ("connector", "roles"),
    [("NixlConnector", ["kv_both", "kv_both"]), ("MooncakeConnector", ["kv_producer", "kv_consumer"])],
)
def test_kv_role_of_a_connector_that_has_sides(tmp_path: Path, connector: str, roles: list[str]) -> None:
    found = deployment(tmp_path, shared(f"kv_transfer: {{connector: {connector}}}"))
    configs = [
        json.loads(option(worker.ranks[0].argv, "--kv-transfer-config")) for worker in plan_workers(found)
    ]
    assert [config["kv_role"] for config in configs] == [roles[0], roles[0], roles[1]]
    router = plan_router(found)
    assert router is not None
    assert ("--kv-connector" in router.argv) == (connector == "MooncakeConnector")


def test_sizes_that_all_share_do_not_reach_a_role(tmp_path: Path) -> None:
    text = shared("").replace("{model: a/b}", "{model: a/b, serve_args: -tp 2 --data-parallel-size=4}")
    for worker in plan_workers(deployment(tmp_path, text)):
        argv = worker.ranks[0].argv
        assert "-tp" not in argv
        assert [word for word in argv if "parallel-size" in word] == ["--tensor-parallel-size"]
        assert option(argv, "--tensor-parallel-size") == ("8" if worker.role == "decode" else "4")


def shared(more: str, prefill: str = "workers: 2, tp: 4, nodes: 1", gpu: str = "S") -> str:
    return f"""
gpu: {gpu}
gpus_per_node: 8
vllm: {{model: a/b}}
deployment:
  prefill: {{{prefill}}}
  decode: {{workers: 1, tp: 8}}
  {more}
search_space: [{{isl: 32, osl: 16, points: [{{conc: 4}}]}}]
"""


def test_workers_that_share_a_node_have_gpus_of_their_own(tmp_path: Path) -> None:
    workers = plan_workers(deployment(tmp_path, shared("")))
    ranks = [worker.ranks[0] for worker in workers]
    assert [rank.node for rank in ranks] == [0, 0, 1]
    assert [rank.devices for rank in ranks] == [
        "CUDA_VISIBLE_DEVICES=0,1,2,3",
        "CUDA_VISIBLE_DEVICES=4,5,6,7",
        None,
    ]
    assert ranks[1].words[:4] == ("env", "CUDA_VISIBLE_DEVICES=4,5,6,7", "vllm", "serve")


def test_workers_that_share_nodes_move_on_when_one_is_full(tmp_path: Path) -> None:
    ranks = [
        worker.ranks[0]
        for worker in plan_workers(deployment(tmp_path, shared("", "workers: 4, tp: 4, nodes: 2")))
    ]
    assert [rank.node for rank in ranks] == [0, 0, 1, 1, 2]


def assigned_ports(plan_script: str) -> dict[str, int]:
    """The ports as bash computes them, for the first free block."""
    found = re.findall(r"^(GPUBENCH_\w*PORT\w*)=\$\(\(base \+ (\d+)\)\)$", plan_script, re.M)
    return {name: int(offset) for name, offset in found}


def test_ports_of_workers_never_meet(three_and_one: Deployment) -> None:
    script = plan_slurm(three_and_one, SITE).script
    ports = assigned_ports(script)
    assert len(set(ports.values())) == len(ports) == 5 * 4 + 2
    # Of these a worker uses a range: NIXL one port per data-parallel rank, vLLM those from VLLM_PORT on.
    ends = {
        name: offset + {"SIDE": 8, "VLLM": 40}.get(name.split("_")[1], 1) for name, offset in ports.items()
    }
    ordered = sorted(ports, key=ports.__getitem__)
    for name, following in itertools.pairwise(ordered):
        assert ends[name] <= ports[following], (name, following)
    # The block of a job is as wide as what is used, so that the next job's begins behind it.
    assert f"* 37) * {max(ends.values())}) % 20000" in script


def test_every_worker_has_a_side_channel_of_its_own(three_and_one: Deployment) -> None:
    script = plan_slurm(three_and_one, replace(SITE, pyxis=True)).script
    values = re.findall(r'^VLLM_NIXL_SIDE_CHANNEL_PORT="\$(\w+)"$', script, re.M)
    assert values == [f"GPUBENCH_SIDE_PORT_{worker}" for worker in (0, 0, 1, 1, 2, 2, 3, 3)]
    hosts = re.findall(r'^VLLM_NIXL_SIDE_CHANNEL_HOST=\$\(address_of "\$(\w+)"\)$', script, re.M)
    assert hosts == [f"GPUBENCH_NODE_{node}" for node in range(8)]
    assert script.count("VLLM_NIXL_SIDE_CHANNEL_HOST,VLLM_NIXL_SIDE_CHANNEL_PORT") == 8


def test_one_node_workers_between_larger_ones_do_not_hand_their_port_on(tmp_path: Path) -> None:
    text = shared("").replace("decode: {workers: 1, tp: 8}", "decode: {workers: 1, tp: 16}")
    script = plan_slurm(deployment(tmp_path, text), SITE).script
    after = script[script.index("prefill-1-rank-0") :]
    assert "unset VLLM_PORT" in after


def test_the_router_knows_every_worker(three_and_one: Deployment) -> None:
    router = plan_router(three_and_one)
    assert router is not None
    urls = [f"http://${{GPUBENCH_HEAD_{n}}}:${{GPUBENCH_API_PORT_{n}}}" for n in range(4)]
    words = [word for url in urls[:3] for word in ("--prefill", url)]
    assert router.argv[:10] == ("vllm-router", "--vllm-pd-disaggregation", *words, "--decode", urls[3])
    assert router.argv[-2:] == ("--policy", "round_robin")


def test_the_default_command_line_is_what_the_real_router_takes(three_and_one: Deployment) -> None:
    found = pytest.importorskip("vllm_router.launch_router", reason="vllm-router is not installed")
    router = plan_router(three_and_one)
    assert router is not None
    filled = [
        re.sub(r"\$\{\w+PORT\w*\}", "30000", word).replace("${GPUBENCH_HEAD_", "h") for word in router.argv
    ]
    args: Any = found.parse_router_args([word.replace("}", "") for word in filled[1:]])
    assert args.vllm_pd_disaggregation
    assert len(args.prefill_urls) == 3
    assert len(args.decode_urls) == 1
    assert (args.host, args.port, args.prometheus_port) == ("0.0.0.0", 30000, 30000)
    assert args.policy == "round_robin"


def test_a_router_of_ones_own(three_and_one: Deployment) -> None:
    command = "my-router -p {prefill_urls} -d {decode_urls} --listen {port} 'a b' {unknown}"
    router = plan_router(replace(three_and_one, router=RouterSettings(command, ("--last",))))
    assert router is not None
    words = list(router.argv)
    assert words[0:2] == ["my-router", "-p"]
    assert words[2:5] == [f"http://${{GPUBENCH_HEAD_{n}}}:${{GPUBENCH_API_PORT_{n}}}" for n in range(3)]
    assert words[-5:] == ["--listen", "${GPUBENCH_ROUTER_PORT}", "a b", "{unknown}", "--last"]


def test_the_script_is_clean(three_and_one: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(plan_slurm(three_and_one, replace(SITE, pyxis=True)).script)
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
