"""Every shape of generated script: as reviewed, legal bash, and clean for shellcheck.

``GPUBENCH_GOLDEN=write pytest tests/plan`` rewrites the files; read the difference before committing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES

GOLDEN = Path(__file__).parent / "golden"


def rendered(name: str) -> str:
    plan = CASES[name]
    options = list(getattr(plan, "sbatch_options", []))
    submit = ["sbatch", "--parsable", *options] if options else ["bash"]
    return f"# {shlex.join([*submit, plan.script_name])}\n{plan.script}"


@pytest.mark.parametrize("name", sorted(CASES))
def test_script_is_as_reviewed(name: str) -> None:
    path = GOLDEN / f"{name}.sbatch"
    text = rendered(name)
    if os.environ.get("GPUBENCH_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(CASES))
def test_script_is_legal_bash(name: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(CASES[name].script, encoding="utf-8")
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name", sorted(CASES))
def test_script_passes_shellcheck(name: str, tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on PATH")
    script = tmp_path / "job.sbatch"
    script.write_text(CASES[name].script, encoding="utf-8")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout


def test_two_nodes_hold_what_a_multi_node_server_needs() -> None:
    plan = CASES["two-nodes"]
    head, follower = (list(rank.argv) for rank in plan.ranks)
    for argv, rank in ((head, "0"), (follower, "1")):
        assert argv[argv.index("--distributed-executor-backend") + 1] == "mp"
        assert argv[argv.index("--nnodes") + 1] == "2"
        assert argv[argv.index("--node-rank") + 1] == rank
        assert "--master-addr" in argv
        assert "--master-port" in argv
    assert "--headless" in follower
    assert "--headless" not in head
    assert "--port" in head
    assert "--port" not in follower
    assert "--host" not in follower
    assert plan.script.count("--headless") == 1


def test_one_node_needs_no_cluster_flags() -> None:
    argv = CASES["one-node"].ranks[0].argv
    assert not {"--nnodes", "--node-rank", "--master-addr", "--headless"} & set(argv)


def test_secrets_are_named_but_never_written() -> None:
    plan = CASES["two-nodes"]
    assert "HF_TOKEN" in plan.script
    assert "never-written" not in rendered("two-nodes")


def test_workdir_is_the_checkout_as_the_container_sees_it() -> None:
    step = list(CASES["two-nodes"].commands[0])
    assert step[step.index("--container-workdir") + 1] == "/nfs_home/checkout"
    assert "--container-workdir" not in CASES["outside-the-mounts"].commands[0]


def test_results_outside_every_mount_get_one() -> None:
    step = list(CASES["outside-the-mounts"].commands[0])
    assert "/data/r:/data/r" in step[step.index("--container-mounts") + 1].split(",")


def test_text_of_a_recipe_reaches_the_process_unchanged(tmp_path: Path) -> None:
    """The rank's command line, run by bash with a stub for srun, gives back the very arguments."""
    plan = CASES["hostile-text"]
    script = plan.script
    body = script[
        script.index("start rank-0 \\") : script.index(
            "export GPUBENCH_STARTED", script.index("start rank-0")
        )
    ]
    stub = tmp_path / "run.sh"
    stub.write_text(
        "GPUBENCH_WRAPPER=w GPUBENCH_NODE_0=n GPUBENCH_HEAD_0=h GPUBENCH_MASTER_PORT_0=1\n"
        "GPUBENCH_DP_PORT_0=2 GPUBENCH_API_PORT_0=3\n"
        'start() { shift; printf "%s\\0" "$@"; }\n' + body,
        encoding="utf-8",
    )
    out = subprocess.run(["bash", str(stub)], capture_output=True, timeout=10, cwd=tmp_path).stdout
    words = out.decode().split("\0")
    for text in CASES["hostile-text"].deployment.serve_args:
        assert text in words
    assert not Path("/tmp/x").exists()
