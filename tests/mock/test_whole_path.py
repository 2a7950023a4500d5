"""Everything together, as a launcher uses it."""

from __future__ import annotations

import json
import shutil

import pytest

from .jobs import Site, ask, free_ports, metric, until
from .test_serve import ready


def test_two_nodes_serve_and_are_measured(site: Site) -> None:
    options = ("--gres", "gpu:b300:4", "--job-name", "gpubench-x-1", "--time", "03:00:00")
    job, url = site.serve(ranks=2, options=options)
    until(lambda: ready(url), "the server")
    mounts = f"--container-mounts={site.folder}:/nfs_home --container-workdir=/nfs_home"
    words = f"--container-image=repo#vllm {mounts} vllm bench serve --base-url {url} --model team/model"
    words += " --random-input-len 1024 --random-output-len 1024 --num-prompts 128 --max-concurrency 64"
    words += " --ignore-eos --save-result --result-dir /nfs_home/results --result-filename bench.json"
    done = site.step(job, "--input=none", *words.split())
    assert done.returncode == 0, done.stderr
    found = json.loads((site.folder / "results" / "bench.json").read_text())
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (128, 0, 131_072)
    assert found["duration"] < 15
    site.run("scancel", str(job))
    assert site.cluster.wait(job).state == "CANCELLED"
    assert site.cluster.processes() == []
    assert "CANCELLED AT" in site.log(1)


@pytest.mark.skipif(shutil.which("vllm-router") is None, reason="vllm-router is not installed")
def test_the_real_router_in_front_of_simulated_engines(site: Site) -> None:
    ports = free_ports(4)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for port, role in zip(ports, ("kv_producer", "kv_producer", "kv_consumer"), strict=False):
        config = json.dumps({"kv_connector": "NixlConnector", "kv_role": role})
        site.start("vllm", "serve", "team/model", "--port", str(port), "--kv-transfer-config", config)
    until(lambda: all(ready(url) for url in urls[:3]), "the engines")
    words = "vllm-router --vllm-pd-disaggregation --policy round_robin --host 127.0.0.1"
    words += f" --prefill {urls[0]} --prefill {urls[1]} --decode {urls[2]} --port {ports[3]}"
    site.start(*words.split())
    until(lambda: ready(urls[3]), "the router", 20)
    words = f"vllm bench serve --base-url {urls[3]} --model team/model --random-input-len 32"
    words += " --random-output-len 16 --num-prompts 20 --max-concurrency 8 --save-result"
    done = site.run(*words.split(), "--result-filename", "pd.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((site.folder / "pd.json").read_text())
    assert (found["completed"], found["total_output_tokens"]) == (20, 320)
    made = [metric(url, "generation_tokens_total") for url in urls[:3]]
    assert made == [10, 10, 320]


def test_a_prefill_instance_hands_its_blocks_over(site: Site) -> None:
    prefill, decode = free_ports(2)
    for port, role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        config = json.dumps({"kv_connector": "NixlConnector", "kv_role": role})
        site.start("vllm", "serve", "m", "--port", str(port), "--kv-transfer-config", config)
    until(lambda: ready(f"http://127.0.0.1:{prefill}") and ready(f"http://127.0.0.1:{decode}"), "the engines")
    body = {
        "model": "m",
        "prompt": "w " * 40,
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True},
    }
    _, text = ask(f"http://127.0.0.1:{prefill}/v1/completions", body)
    params = json.loads(text)["kv_transfer_params"]
    assert (params["do_remote_prefill"], params["remote_block_ids"]) == (True, [0, 1, 2])
    body |= {"max_tokens": 4, "kv_transfer_params": params}
    status, text = ask(f"http://127.0.0.1:{decode}/v1/completions", body)
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 4)
    assert "kv_transfer_params" not in json.loads(text)
