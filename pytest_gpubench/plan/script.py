"""The text of the batch script, from a :class:`~pytest_gpubench.plan.slurm.SlurmPlan`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpubench.plan.ranks import RankPlan, head_variable, port_variable
from pytest_gpubench.plan.shell import Runtime, command_lines, quote

if TYPE_CHECKING:
    from pytest_gpubench.plan.slurm import SlurmPlan

__all__ = ["RANK_WRAPPER", "batch_script"]

RANK_WRAPPER = (
    'date +%s >"$GPUBENCH_STARTED" 2>/dev/null; '
    'if [ -n "${GPUBENCH_MODEL_PATH-}" ] && [ ! -e "$GPUBENCH_MODEL_PATH" ]; then '
    'echo "gpubench: model path $GPUBENCH_MODEL_PATH is missing on node ${SLURMD_NODENAME-?}" >&2; '
    'exit 66; fi; exec "$@"'
)
"""What a rank's step runs before the server (66: ``EXIT_MODEL_MISSING``)."""

_PORT_KINDS = ("API", "MASTER", "DP", "VLLM", "SIDE")

_HELPERS = r"""
# A record is complete or absent: written aside, then renamed.
note() {
  printf '%s\n' "$2" >"$STATE/$1.part" && mv -f "$STATE/$1.part" "$STATE/$1"
}

NAMES=()
PIDS=()
start() {
  local name=$1
  shift
  "$@" </dev/null >>"$FOLDER/$name.log" 2>&1 &
  NAMES+=("$name")
  PIDS+=("$!")
}

# End the job: TERM to every step, KILL after the grace time. Slurm ends what is left.
finish() {
  trap '' TERM INT HUP
  note ended "$1"
  local pid waited=0 alive
  for pid in "${PIDS[@]}"; do kill -TERM "$pid" 2>/dev/null; done
  while ((waited < GRACE * 5)); do
    alive=0
    for pid in "${PIDS[@]}"; do kill -0 "$pid" 2>/dev/null && alive=1; done
    ((alive)) || break
    sleep 0.2
    waited=$((waited + 1))
  done
  for pid in "${PIDS[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  exit "$2"
}
trap 'finish "signal TERM" 143' TERM
trap 'finish "signal INT" 130' INT
trap 'finish "signal HUP" 129' HUP
"""

_ADDRESSES = r"""
# Slurm knows how to reach a node; its name alone may not resolve.
address_of() {
  local found
  found=$(scontrol show node "$1" -o 2>/dev/null | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p' | head -n 1)
  printf '%s\n' "${found:-$1}"
}
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
"""

_WATCH = r"""
# One loop watches the ranks and the heartbeat. The heartbeat's *change* is timed with this node's own
# clock, so that clocks that differ between machines do not matter.
beat=
silent_since=$SECONDS
while :; do
  for i in "${!PIDS[@]}"; do
    kill -0 "${PIDS[i]}" 2>/dev/null && continue
    wait "${PIDS[i]}"
    code=$?
    note "${NAMES[i]}.exit" "$code"
    # A cancel reaches the ranks a moment before it reaches this script: let it be seen as what it is.
    sleep 1 &
    wait "$!"
    finish "rank ${NAMES[i]} $code" 1
  done
  now=$(cat "$STATE/heartbeat" 2>/dev/null)
  if [ "$now" != "$beat" ]; then
    beat=$now
    silent_since=$SECONDS
  elif ((SECONDS - silent_since > HEARTBEAT_LIMIT)); then
    finish "heartbeat lost" 75
  fi
  sleep 0.5 &
  wait "$!"
done
"""


def batch_script(plan: SlurmPlan) -> str:
    """The batch script: bash, shellcheck-clean, every word from a recipe quoted."""
    site = plan.site
    deployment = plan.deployment
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(deployment.recipe)} / {_comment(deployment.id)}: written by pytest-gpubench.",
        "# Options are on the sbatch command line: in an #SBATCH line a # in an image name starts a comment.",
        "# shellcheck disable=SC2016  # single quotes are meant: nothing that a recipe says is expanded",
        "set -u",
        f"FOLDER={quote(site.folder)}",
        'STATE="$FOLDER/state"',
        f"GRACE={int(site.grace)}",
        f"HEARTBEAT_LIMIT={int(site.heartbeat_limit)}",
        _HELPERS.rstrip(),
        _ADDRESSES.rstrip(),
        f'if [ "${{#NODES[@]}}" -ne {plan.num_nodes} ]; then',
        f'  finish "nodes ${{#NODES[@]}} of {plan.num_nodes}" 1',
        "fi",
    ]
    lines += [f"GPUBENCH_NODE_{index}=${{NODES[{index}]}}" for index in range(plan.num_nodes)]
    lines += [_ports(plan)]
    if deployment.check_model_path:
        lines += ["", f"export GPUBENCH_MODEL_PATH={quote(deployment.model_path)}"]
    lines += [
        "",
        "# Runs in the container: says that the image is up, checks the staged model, becomes the server.",
        f"GPUBENCH_WRAPPER={quote(RANK_WRAPPER)}",
    ]
    for rank, argv in zip(plan.ranks, plan.srun, strict=True):
        lines += ["", *_start(plan, rank, argv)]
    lines += [_WATCH.rstrip(), ""]
    return "\n".join(lines)


def _ports(plan: SlurmPlan) -> str:
    """Ports of this job: a block from its id, moved on while somebody listens there."""
    workers = plan.workers
    width = len(_PORT_KINDS) * len(workers) + 1
    lines = [
        "",
        "# Ports belong to the job: a block from its id, below the ephemeral range, moved on when taken.",
        "listening() {",
        """  timeout 2 bash -c '</dev/tcp/"$0"/"$1"' "$1" "$2" 2>/dev/null""",
        "}",
    ]
    lines += [
        f'{head_variable(worker.index)}=$(address_of "$GPUBENCH_NODE_{worker.first_node}")'
        for worker in workers
    ]
    offsets = [worker.index * len(_PORT_KINDS) + extra for worker in workers for extra in (0, 1)]
    lines += [
        "taken=",
        "for try in {0..19}; do",
        f"  base=$((10000 + (SLURM_JOB_ID + try * 37) * {width} % 20000))",
        "  taken=",
        "  for port in " + " ".join(f"$((base + {offset}))" for offset in offsets) + "; do",
        f'    listening "${head_variable(0)}" "$port" && taken="$taken $port"',
        "  done",
        '  [ -z "$taken" ] && break',
        "done",
        f'[ -z "$taken" ] || finish "ports taken on $GPUBENCH_NODE_{workers[0].first_node}:$taken" 76',
    ]
    records = []
    for worker in workers:
        for number, kind in enumerate(_PORT_KINDS):
            name = port_variable(kind, worker.index)
            lines.append(f"{name}=$((base + {worker.index * len(_PORT_KINDS) + number}))")
            records.append(name)
        records.append(head_variable(worker.index))
    lines.append(f"GPUBENCH_ROUTER_PORT=$((base + {width - 1}))")
    records.append("GPUBENCH_ROUTER_PORT")
    lines += [f"export {' '.join(records)}"]
    records += [f"GPUBENCH_NODE_{index}" for index in range(plan.num_nodes)]
    lines += ['note endpoint "$(']
    lines += [f"  printf '%s=%s\\n' {name} \"${name}\"" for name in records]
    lines += [')"']
    return "\n".join(lines)


def _start(plan: SlurmPlan, rank: RankPlan, argv: tuple[str, ...]) -> list[str]:
    worker = plan.workers[rank.worker]
    started = plan.in_container(f"{plan.state}/{rank.name}.started")
    lines = [f"export GPUBENCH_STARTED={quote(started)}"]
    if worker.num_nodes == 1:
        # Servers that share a node race for internal ports above VLLM_PORT; several nodes must not share it.
        lines += [f'export VLLM_PORT="${port_variable("VLLM", worker.index)}"']
    if rank.command is not None:
        lines += [
            f"export GPUBENCH_RANK={rank.rank} GPUBENCH_NNODES={worker.num_nodes}",
        ]
    shared = [Runtime("${GPUBENCH_WRAPPER}") if word == RANK_WRAPPER else word for word in argv]
    first, *rest = command_lines(shared, "  ")
    lines += [f"start {rank.name} \\", first, *rest]
    return lines


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
