"""Recipes with clients of their own, measured on the mocked Slurm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from plugin.project import PROFILES, Project, Run

HARNESS = '''
"""A harness that this project does not know: some turns per session, its own result format."""
import json, sys, time, urllib.request

url, model, out, sessions, turns = sys.argv[1:6]
mode = sys.argv[6] if len(sys.argv) > 6 else ""
if mode == "crash":
    sys.exit("no such dataset")
began, tokens, latencies = time.time(), 0, []
for session in range(int(sessions)):
    text = f"session {session}"
    for turn in range(int(turns)):
        body = json.dumps({"model": model, "prompt": text, "max_tokens": 8}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        start = time.time()
        answer = json.load(urllib.request.urlopen(request))
        latencies.append(time.time() - start)
        tokens += answer["usage"]["completion_tokens"]
        text += answer["choices"][0]["text"]
if mode == "silent":
    sys.exit(0)
with open(out, "w") as sink:
    json.dump({"answered": len(latencies), "wall": time.time() - began, "tokens": tokens,
               "latency": sorted(latencies)[len(latencies) // 2]}, sink)
'''
PARSER = """
import json

def parse(path):
    found = json.loads(path.read_text())
    return {
        "num_prompts": 12, "completed": found["answered"], "failed": 12 - found["answered"],
        "duration": found["wall"], "total_input_tokens": 0, "total_output_tokens": found["tokens"],
        "median_e2el_ms": found["latency"] * 1000,
    }
"""
RECIPE = """
gpu: GB300_SLURM
gpus_per_node: 4
scenario: agentic-coding
vllm: {{model: org/tiny, serve_args: --max-model-len 4096}}
client:
  kind: command
  command: "{python} {folder}/harness.py {{base_url}} {{model}} {{result_file}} {{concurrency}} 3{mode}"
  parser: {parser}
gates: {{ceilings: {{median_e2el: 5.0}}}}
search_space: [{{points: [{{conc: 4, num_prompts: 12}}]}}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "project")
    found.write("harness.py", HARNESS)
    found.write("my_results.py", PARSER)
    found.write("workloads/gpu_profiles.yaml", PROFILES.replace("runtime: pyxis", "runtime: none"))
    return found


def run(project: Project, mode: str = "", parser: str = "my_results:parse") -> Run:
    text = RECIPE.format(
        python=sys.executable, folder=project.folder, mode=mode and f" {mode}", parser=parser
    )
    project.write("workloads/agents.yaml", text)
    return project.run("--mock-slurm", "--workload", "agents")


def test_a_scenario_of_another_harness_is_a_test(project: Project) -> None:
    done = run(project)
    assert done.code == 0, done.out
    row = done.row("agents", "tp1-agentic-conc4")
    assert (row["status"], row["scenario"], row["completed"], row["failed"]) == (
        "passed",
        "agentic-coding",
        12,
        0,
    )
    assert row["total_output_tokens"] == 12 * 8
    raw = json.loads((done.results / "agents" / "tp1-agentic-conc4" / "bench.json").read_text())
    assert row["median_e2el"] == raw["latency"] * 1000 / 1000.0
    # Rates are made from the totals that the parser gives.
    assert row["output_tput_per_gpu"] == 96 / raw["wall"] / 4
    assert row["isl"] is None
    plan = done.plan("agents", "tp1-agentic-conc4")
    assert plan["bench_argv"][0] == sys.executable
    assert plan["bench_argv"][2].startswith("http://127.0.0.1:")
    assert plan["warmup_argv"] is None


def test_fewer_answers_than_prompts_fail_the_gate(project: Project) -> None:
    project.write(
        "my_results.py", PARSER.replace('"num_prompts": 12', '"num_prompts": 20').replace("12 -", "20 -")
    )
    done = run(project)
    row = done.row("agents", "tp1-agentic-conc4")
    assert done.code == 1
    assert row["reason"] == "wrong_load"


@pytest.mark.parametrize(
    ("mode", "parser", "reason", "words"),
    [
        (
            "crash",
            "my_results:parse",
            "client_failed",
            "the client ended with exit code 1 and left no result",
        ),
        ("", "nothing:parse", "client_failed", "client.parser 'nothing:parse' cannot be loaded"),
        ("", "vllm-bench-json", "unreadable_result", "has no `completed`"),
    ],
)
def test_what_goes_wrong_is_said(project: Project, mode: str, parser: str, reason: str, words: str) -> None:
    done = run(project, mode, parser)
    row = done.row("agents", "tp1-agentic-conc4")
    assert done.code == 1
    assert row["reason"] == reason
    assert words in row["message"]
    assert row["tput_per_gpu"] is None


def test_without_a_client_the_scenario_is_collected_and_skipped_with_the_reason(project: Project) -> None:
    text = RECIPE.format(python="p", folder="f", mode="", parser="my_results:parse")
    head, _, tail = text.partition("client:")
    project.write("workloads/agents.yaml", head + tail[tail.index("gates:") :])
    done = project.run("--mock-slurm", "--workload", "agents")
    assert done.code == 0
    assert done.outcomes() == {"test_serving[tp1-agentic-conc4]": "skipped"}
    (skipped,) = done.cases().values()
    assert "needs a data set that vllm bench serve knows, or a client" in str(skipped[0].get("message"))
    assert done.plan("agents", "tp1-agentic-conc4")["servable"] is False
