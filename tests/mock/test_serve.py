"""The simulated ``vllm serve``."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from pytest_gpubench.mock import (
    EngineDeadButHealthy,
    ForeignServer,
    LoadHangs,
    LogNoise,
    NeverHealthy,
    PortTaken,
    RequestFailures,
    ServerExits,
)

from .jobs import Site, ask, free_ports, metric, until


def ready(url: str) -> bool:
    return ask(f"{url}/health")[0] == 200


def complete(url: str, **body: object) -> tuple[int, dict[str, object]]:
    payload = {"model": "team/model", "prompt": "a b c", "max_tokens": 5, **body}
    status, text = ask(f"{url}/v1/completions", payload)
    return status, json.loads(text)


def test_one_rank_answers(site: Site) -> None:
    _, url = site.serve("--max-model-len", "64")
    until(lambda: ready(url), "the server")
    assert json.loads(ask(f"{url}/version")[1]) == {"version": "0.32.0+sim"}
    models = json.loads(ask(f"{url}/v1/models")[1])["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("team/model", 64)]
    status, answer = complete(url)
    assert status == 200
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    chat = {"model": "team/model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    status, text = ask(f"{url}/v1/chat/completions", chat)
    assert json.loads(text)["choices"][0]["message"]["content"].split() == ["tok"] * 3
    status, answer = complete(url, model="other/model")
    assert (status, "The model `other/model` does not exist." in json.dumps(answer)) == (404, True)
    status, answer = complete(url, max_tokens=62)
    assert (status, "maximum context length is 64" in json.dumps(answer)) == (400, True)
    assert ask(f"{url}/nothing")[0] == 404
    log = site.log(0)
    for text in ("Starting to load model team/model", "Loading safetensors", "Application startup complete."):
        assert text in log


def test_streams_count_tokens_right(site: Site) -> None:
    site.cluster.simulate(stream_interval=10)
    _, url = site.serve("--served-model-name", "m", "n")
    until(lambda: ready(url), "the server")
    body = {
        "model": "n",
        "prompt": "a b",
        "max_tokens": 25,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    _, text = ask(f"{url}/v1/completions", body)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert text.endswith("data: [DONE]\n\n")
    chunks = [event["choices"][0]["text"].split() for event in events if event["choices"]]
    assert [len(chunk) for chunk in chunks] == [1, 10, 10, 4, 0]
    assert events[-1]["usage"]["completion_tokens"] == 25


def test_prefix_cache_is_modelled(site: Site) -> None:
    _, url = site.serve(env="export VLLM_SERVER_DEV_MODE=1")
    until(lambda: ready(url), "the server")
    prompt = " ".join(f"w{number}" for number in range(100))
    complete(url, prompt=prompt)
    assert (metric(url, "prefix_cache_queries_total"), metric(url, "prefix_cache_hits_total")) == (100, 0)
    complete(url, prompt=prompt)
    assert metric(url, "prefix_cache_hits_total") == 96
    complete(url, prompt=" ".join(["other", *prompt.split()[1:]]))
    assert metric(url, "prefix_cache_hits_total") == 96
    assert ask(f"{url}/reset_prefix_cache", {})[0] == 200
    complete(url, prompt=prompt)
    assert (metric(url, "prefix_cache_queries_total"), metric(url, "prefix_cache_hits_total")) == (400, 96)
    assert metric(url, "num_requests_running") == 0


def test_the_cache_can_only_be_reset_in_dev_mode(site: Site) -> None:
    _, url = site.serve("--no-enable-prefix-caching", "--data-parallel-size", "2")
    until(lambda: ready(url), "the server")
    assert ask(f"{url}/reset_prefix_cache", {})[0] == 404
    prompt = "a " * 64
    for _ in range(4):
        complete(url, prompt=prompt)
    text = ask(f"{url}/metrics")[1]
    assert 'vllm:prompt_tokens_total{engine="1",model_name="team/model"} 128.0' in text
    assert metric(url, "prefix_cache_queries_total") == 0


# -- several ranks -------------------------------------------------------------------------------------------


def test_two_ranks_meet(site: Site) -> None:
    site.cluster.simulate(ranks={"1": {"import_seconds": 0.6}})
    began = time.monotonic()
    _, url = site.serve(ranks=2)
    until(lambda: ready(url), "the server")
    assert time.monotonic() - began >= 0.6
    assert complete(url)[0] == 200
    assert "joins 127.0.0.1:" in site.log(1)


def test_without_its_follower_the_head_is_not_healthy(site: Site) -> None:
    site.cluster.inject(ServerExits(rank=1, code=1, phase="loading"))
    _, url = site.serve(ranks=2)
    until(lambda: "CUDA out of memory" in site.log(1), "the follower's end")
    until(lambda: (site.folder / "ends.log").exists(), "the step's end")
    assert (site.folder / "ends.log").read_text() == "rank 1 ended with 1\n"
    time.sleep(0.6)
    assert not ready(url)


def test_a_head_stays_healthy_when_its_follower_dies(site: Site) -> None:
    _, url = site.serve(ranks=2)
    until(lambda: ready(url), "the server")
    site.cluster.inject(ServerExits(rank=1, code=-9, phase="ready"))
    until(lambda: (site.folder / "ends.log").exists(), "the follower's end")
    assert (site.folder / "ends.log").read_text() == "rank 1 ended with 137\n"
    assert ready(url)
    assert ask(f"{url}/v1/completions", {"prompt": "a", "max_tokens": 1}, timeout=0.7)[0] == 0


@pytest.mark.parametrize(("kind", "healthy"), [("health", False), ("ignore", True)])
def test_what_a_dead_follower_does_can_be_set(site: Site, kind: str, healthy: bool) -> None:
    site.cluster.simulate(follower_death=kind)
    site.cluster.inject(ServerExits(rank=1, phase="ready", seconds=0.2))
    _, url = site.serve(ranks=2)
    until(lambda: ready(url), "the server")
    until(lambda: (site.folder / "ends.log").exists(), "the follower's end")
    until(lambda: ready(url) is healthy, "the verdict")
    assert not healthy or complete(url)[0] == 200


def test_a_follower_outlives_its_head(site: Site) -> None:
    site.cluster.inject(ServerExits(rank=0, code=0, phase="ready"))
    job, _ = site.serve(ranks=2)
    until(lambda: (site.folder / "ends.log").exists(), "the head's end")
    time.sleep(0.5)
    assert (site.folder / "ends.log").read_text() == "rank 0 ended with 0\n"
    assert [step.nodes for step in site.cluster.store.steps(job)] == [["gb300-02"]]


def test_a_taken_master_port_ends_the_head(site: Site) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = site.run(
            "vllm", "serve", "m", "-tp", "2", "-n", "2", "--port", "0", "--master-port", str(port)
        )
    assert done.returncode == 1
    assert f"port: {port}, name: EADDRINUSE" in done.stdout


def test_an_unknown_master_is_named(site: Site) -> None:
    words = [
        "vllm",
        "serve",
        "m",
        "-tp=2",
        "--nnodes=2",
        "-r1",
        "--headless",
        "--master-addr",
        "no.such.host.invalid",
    ]
    done = site.run(*words)
    assert (done.returncode, "no.such.host.invalid" in done.stdout) == (1, True)


# -- faults --------------------------------------------------------------------------------------------------


def test_never_healthy(site: Site) -> None:
    site.cluster.inject(NeverHealthy())
    _, url = site.serve()
    until(lambda: ask(f"{url}/health")[0] == 503, "an answer")
    assert ask(f"{url}/v1/models")[0] == 200
    site.cluster.clear(NeverHealthy)
    assert ready(url)


def test_load_hangs(site: Site) -> None:
    site.cluster.inject(LoadHangs())
    _, url = site.serve()
    until(lambda: "50% Completed" in site.log(0), "half of the load")
    time.sleep(0.5)
    assert ask(f"{url}/health")[0] == 0
    assert "100%" not in site.log(0)


def test_port_taken(site: Site) -> None:
    site.cluster.inject(PortTaken())
    site.serve()
    until(lambda: (site.folder / "ends.log").exists(), "the end")
    assert "rank 0 ended with 1" in (site.folder / "ends.log").read_text()
    assert "OSError: [Errno 98] Address already in use" in site.log(0)


def test_foreign_server(site: Site) -> None:
    site.cluster.inject(ForeignServer("other/model"))
    job, url = site.serve()
    until(lambda: (site.folder / "ends.log").exists(), "the end of our server")
    assert "Address already in use" in site.log(0)
    site.cluster.wait(job)
    until(lambda: ready(url), "the other server")
    assert json.loads(ask(f"{url}/v1/models")[1])["data"][0]["id"] == "other/model"
    assert len(site.cluster.processes()) >= 1


def test_log_noise(site: Site) -> None:
    site.cluster.inject(LogNoise())
    _, url = site.serve()
    until(lambda: ready(url), "the server")
    raw = (site.folder / "rank0.log").read_bytes()
    assert all(bytes_ in raw for bytes_ in (b"\x1b[31m", b"\x00", b"\x07", b"\r", b"\xff"))


def test_request_failures_are_spread_evenly(site: Site) -> None:
    site.cluster.inject(RequestFailures(0.25, status=503))
    _, url = site.serve()
    until(lambda: ready(url), "the server")
    assert [complete(url)[0] for _ in range(8)] == [200, 200, 200, 503, 200, 200, 200, 503]


@pytest.mark.parametrize("hang", [False, True])
def test_engine_dead_but_healthy(site: Site, hang: bool) -> None:
    site.cluster.inject(EngineDeadButHealthy(after_requests=1, hang=hang))
    _, url = site.serve()
    until(lambda: ready(url), "the server")
    assert complete(url)[0] == 200
    assert ask(f"{url}/v1/completions", {"prompt": "a"}, timeout=0.5)[0] == (0 if hang else 500)
    assert ready(url)


def test_exit_after_requests(site: Site) -> None:
    site.cluster.inject(ServerExits(rank=1, code=3, after_requests=2, text="worker gone"))
    _, url = site.serve(ranks=2)
    until(lambda: ready(url), "the server")
    complete(url)
    time.sleep(0.3)
    assert not (site.folder / "ends.log").exists()
    complete(url)
    until(lambda: (site.folder / "ends.log").exists(), "the follower's end")
    assert "rank 1 ended with 3" in (site.folder / "ends.log").read_text()
    assert "ERROR" in site.log(1)
    assert "worker gone" in site.log(1)


# -- the process ---------------------------------------------------------------------------------------------


def test_term_ends_a_server_and_its_engine_with_status_0(site: Site) -> None:
    (port,) = free_ports(1)
    process = site.start("vllm", "serve", "m", "--port", str(port))
    until(lambda: ready(f"http://127.0.0.1:{port}"), "the server")
    children = site.children(process.pid)
    assert len(children) == 1
    process.terminate()
    assert process.wait(timeout=5) == 0
    until(lambda: not os.path.exists(f"/proc/{children[0]}"), "the engine's end", 2)


def test_a_killed_server_leaves_its_engine(site: Site) -> None:
    (port,) = free_ports(1)
    process = site.start("vllm", "serve", "m", "--port", str(port))
    until(lambda: ready(f"http://127.0.0.1:{port}"), "the server")
    (engine,) = site.children(process.pid)
    process.kill()
    process.wait()
    time.sleep(0.2)
    assert os.path.exists(f"/proc/{engine}")
    assert ask(f"http://127.0.0.1:{port}/health")[0] == 0
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{engine}"), "the engine's end", 2)
