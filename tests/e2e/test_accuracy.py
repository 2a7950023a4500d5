"""Accuracy beside throughput on real parts: a real lm-eval against a real vLLM in one job of a real Slurm."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from .real_slurm import RealSlurm
from .site import Site, make_site
from .vllm_cpu import VllmCpu

DATA = Path(__file__).parent / "data"
RECIPE = """
gpu: GB300_SLURM
gpus_per_node: 4
vllm:
  model: example/tiny-opt
  serve_args: --dtype float32 --max-model-len 256 --enforce-eager
vllm_bench:
  metadata: {device: gb300, precision: fp32}
  configs:
    - {name: 32-in-16-out, input_len: 32, output_len: 16, num_prompts: 4, max_concurrency: 4}
lm_eval:
  model_args: {num_concurrent: 2, max_retries: 3, tokenized_requests: false, max_length: 256}
  args: {include_path: /nfs_home/tasks}
  tasks: [{name: echo_words, num_fewshot: 0}]
gates:
  accuracy: {echo_words: {"exact_match,none": 0.0}}
"""


@pytest.fixture
def site(tmp_path: Path, slurm: RealSlurm, vllm_cpu: VllmCpu) -> Site:
    found = make_site(tmp_path, slurm, vllm_cpu)
    tasks = found.shared / "tasks"
    tasks.mkdir()
    shutil.copy(DATA / "echo_words.jsonl", tasks)
    text = (DATA / "echo_words.yaml").read_text().replace("FOLDER", "/nfs_home/tasks")
    (tasks / "echo_words.yaml").write_text(text)
    return found


def test_accuracy_after_throughput_on_one_server(site: Site, slurm: RealSlurm) -> None:
    site.recipe("both", RECIPE)
    done = site.pytest("--workload", "both", "--junitxml", "junit.xml")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [case.get("name") for case in ET.parse(site.checkout / "junit.xml").getroot().iter("testcase")]
    assert cases == ["test_serving[tp1-32-in-16-out-conc-4]", "test_accuracy[tp1-echo_words]"]
    serving, accuracy = site.rows()
    assert serving["job_id"] == accuracy["job_id"]
    assert (serving["status"], serving["completed"]) == ("passed", 4)
    assert (accuracy["kind"], accuracy["status"], accuracy["task"]) == ("accuracy", "passed", "echo_words")
    assert accuracy["simulated"] is False
    (score,) = accuracy["scores"]
    assert score["metric"] == "exact_match,none"
    assert 0.0 <= score["value"] <= 1.0
    event = accuracy["event"]
    assert event["data"]["n-samples"]["echo_words"] == {"original": 4, "effective": 4}
    assert event["data"]["config"]["model"] == "local-completions"
    (samples,) = accuracy["samples"]
    answers = [json.loads(line) for line in Path(samples).read_text().splitlines()]
    assert len(answers) == 4
    assert any(answer["resps"][0][0].strip() for answer in answers)  # the model said something
    assert slurm.live_jobs() == []
