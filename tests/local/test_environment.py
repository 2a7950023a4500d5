"""Every variable that a run relies on reaches every process, on every runtime, whatever the image sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .sites import RUNTIMES, make_site

ODD = "a,b c=\"d\" 'e' $HOME `x`"
RECIPE = f"""
gpu: H200
gpus_per_node: 8
vllm:
  model: org/tiny
  serve_args: --max-model-len 256
  env: {{FROM_RECIPE: {json.dumps(ODD)}, MAX_FAILURE_RATE: 0.5, VLLM_FROM_RECIPE: 1, OVERRIDDEN: recipe}}
  env_from_host: [FROM_HOST, FROM_HOST_ABSENT]
deployment:
  prefill: {{workers: 1, tp: 4, env: {{FROM_ROLE: prefill, OVERRIDDEN: role}}}}
  decode: {{workers: 1, tp: 4, env: {{FROM_ROLE: decode}}}}
search_space: [{{isl: 32, osl: 8, points: [{{conc: 2, num_prompts: 4, num_warmups: 0}}]}}]
lm_eval: {{tasks: [{{name: gsm8k}}]}}
"""
PROFILE = "  hf_home: {hf_home}\n  env: {{FROM_PROFILE: p, OVERRIDDEN: profile}}\n"
CALLER = {
    "FROM_HOST": "h,1",
    "HF_TOKEN": "hf_secret",
    "VLLM_LEAKED": "tcp://10.0.0.1",  # what a Kubernetes service leaves; the recipe alone configures vLLM
    "INGEST_BEARER_TOKEN": "for-the-dashboard-only",
}
EVERYWHERE = {
    "FROM_RECIPE": ODD,
    "MAX_FAILURE_RATE": "0.5",
    "VLLM_FROM_RECIPE": "1",
    "FROM_PROFILE": "p",
    "FROM_HOST": "h,1",
    "HF_TOKEN": "hf_secret",
}
LAUNCHERS = ("GPUBENCH_STARTED", "VLLM_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")
# Whatever a process is to see, the image has an opinion on it.
IMAGE = dict.fromkeys((*EVERYWHERE, *LAUNCHERS, "HF_HOME", "FROM_ROLE", "OVERRIDDEN"), "from the image")
PROCESSES = ("prefill-0-rank-0", "decode-0-rank-0", "client", "lm_eval")

Seen = dict[str, dict[str, str]]


@pytest.fixture(scope="module", params=RUNTIMES)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Process -> its environment, from one run on one runtime; ``host`` has what was expected of paths."""
    folder = tmp_path_factory.mktemp(request.param)
    hf_home = str(folder / "hf")
    with make_site(folder, request.param, profile=PROFILE.format(hf_home=hf_home), image_env=IMAGE) as site:
        dumps = folder / "dumps"
        dumps.mkdir()
        for command in ("vllm", "lm_eval"):
            program = site.cluster.bin / command
            real = program.rename(program.with_name(f"{command}.real"))
            dump = f'{{ echo "$*"; env -0; }} >"{dumps}/{command}-$$"'
            program.write_text(f'#!/bin/sh\n{dump}\nexec "{real}" "$@"\n')
            program.chmod(0o755)
        site.project.write("workloads/table.yaml", RECIPE)
        done = site.project.run("--workload", "table", env={**site.env, **CALLER})
        assert done.code == 0, done.out
        yield {"host": {"HF_HOME": hf_home}, **_read(dumps)}


def _read(dumps: Path) -> Seen:
    found = {}
    for path in dumps.iterdir():
        words, _, block = path.read_text().partition("\n")
        env = dict(item.split("=", 1) for item in block.split("\0") if "=" in item)
        if words.startswith("serve"):
            name = Path(env["GPUBENCH_STARTED"]).stem if "started" in env["GPUBENCH_STARTED"] else "?"
        else:
            name = "client" if words.startswith("bench") else "lm_eval"
        found[name] = env
    return found


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("variable", EVERYWHERE)
def test_reaches(seen: Seen, process: str, variable: str) -> None:
    assert seen[process][variable] == EVERYWHERE[variable]


@pytest.mark.parametrize("process", PROCESSES)
def test_hf_home_reaches(seen: Seen, process: str) -> None:
    assert seen[process]["HF_HOME"] == seen["host"]["HF_HOME"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_has_its_own(seen: Seen, role: str) -> None:
    assert seen[f"{role}-0-rank-0"]["FROM_ROLE"] == role


def test_the_nearest_wins(seen: Seen) -> None:
    assert seen["prefill-0-rank-0"]["OVERRIDDEN"] == "role"
    assert seen["decode-0-rank-0"]["OVERRIDDEN"] == "recipe"
    assert seen["client"]["OVERRIDDEN"] == "recipe"


@pytest.mark.parametrize("variable", LAUNCHERS)
def test_the_launchers_own_reach(seen: Seen, variable: str) -> None:
    values = [seen[f"{role}-0-rank-0"][variable] for role in ("prefill", "decode")]
    assert "from the image" not in values
    if variable != "VLLM_NIXL_SIDE_CHANNEL_HOST":
        assert values[0] != values[1]


@pytest.mark.parametrize("process", PROCESSES)
def test_what_is_nobodys_business_does_not_reach(seen: Seen, process: str) -> None:
    assert not {"VLLM_LEAKED", "INGEST_BEARER_TOKEN", "FROM_HOST_ABSENT"} & set(seen[process])
