"""The text of the batch script, from a :class:`~pytest_gpubench.plan.launch.LaunchPlan`. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from pytest_gpubench.plan.environment import launcher_names
from pytest_gpubench.plan.ranks import (
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    RankPlan,
    head_variable,
    port_variable,
)
from pytest_gpubench.plan.shell import Runtime, command_lines, quote
from pytest_gpubench.plan.site_hooks import rank_exports

if TYPE_CHECKING:
    from pytest_gpubench.plan.launch import LaunchPlan

__all__ = ["IMAGE_FILE", "IMAGE_VARIABLE", "RANK_WRAPPER", "rank_script"]

IMAGE_VARIABLE = "GPUBENCH_IMAGE"
"""Shell variable with what the steps start from: the imported file, or the image itself."""
IMAGE_FILE = "image.sqsh"
"""Name of the imported file in the state folder; the script removes it when the job ends."""

RANK_WRAPPER = (
    'date +%s >"$GPUBENCH_STARTED" 2>/dev/null; '
    'if [ -n "${GPUBENCH_MODEL_PATH-}" ] && [ ! -e "$GPUBENCH_MODEL_PATH" ]; then '
    'echo "gpubench: model path $GPUBENCH_MODEL_PATH is missing on node ${SLURMD_NODENAME-?}" >&2; '
    'exit 66; fi; exec "$@"'
)
"""What a rank's step runs before the server (66: ``EXIT_MODEL_MISSING``)."""

_SBATCH_COMMENT = (
    "# Options are on the sbatch command line: in an #SBATCH line a # in an image name starts a comment.",
)
_VLLM_PORTS = 40
"""How many ports from VLLM_PORT on belong to a worker: vLLM tries one after the other."""

_HELPERS = r"""
# A record is complete or absent: written aside, then renamed.
note() {
  printf '%s\n' "$2" 2>/dev/null >"$STATE/$1.part" && mv -f "$STATE/$1.part" "$STATE/$1"
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

# TERM to every step, KILL after the grace time; fails when it took a KILL.
stop_ranks() {
  local pid waited=0 alive=0
  for pid in "${PIDS[@]}"; do kill -TERM "$pid" 2>/dev/null; done
  while ((waited < GRACE * 5)); do
    alive=0
    for pid in "${PIDS[@]}"; do kill -0 "$pid" 2>/dev/null && alive=1; done
    ((alive)) || break
    sleep 0.2
    waited=$((waited + 1))
  done
  for pid in "${PIDS[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  ((!alive))
}

# End the job. Slurm ends what is left.
finish() {
  trap '' TERM INT HUP
  local code=$2
  note ended "$1" || code=74 # nobody can read why: the exit code says that nothing can be written
  stop_ranks
  last "$code"
}
trap 'finish "signal TERM" 143' TERM
trap 'finish "signal INT" 130' INT
trap 'finish "signal HUP" 129' HUP

# The heartbeat's *change* is timed with this node's own clock, so that clocks that differ between machines
# do not matter.
beat=
silent_since=$SECONDS
need_heartbeat() {
  local now
  now=$(cat "$STATE/heartbeat" 2>/dev/null)
  if [ "$now" != "$beat" ]; then
    beat=$now
    silent_since=$SECONDS
  elif ((SECONDS - silent_since > HEARTBEAT_LIMIT)); then
    finish "heartbeat lost" 75
  fi
}

# Wait for a process of ours, as long as somebody waits for us.
attend() {
  while kill -0 "$1" 2>/dev/null; do
    need_heartbeat
    sleep 0.5 &
    wait "$!"
  done
  wait "$1"
}
"""

_SLURM_NODES = r"""
last() {
  rm -f "$STATE"/image.sqsh*
  exit "$1"
}

# Slurm knows how to reach a node; its name alone may not resolve.
address_of() {
  local found
  found=$(scontrol show node "$1" -o 2>/dev/null | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p' | head -n 1)
  printf '%s\n' "${found:-$1}"
}
SEED=$SLURM_JOB_ID
# A job that Slurm starts again is another server than the one that was waited for, or nobody waits any more.
((${SLURM_RESTART_COUNT:-0})) && finish "requeued" 77
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
"""

_LOCAL_NODES = r"""
# No Slurm ends what a rank left behind: containers go by id, processes with this script's group.
last() {
  local file
  for file in "$STATE"/*.cid; do
    [ -s "$file" ] && docker rm --force "$(cat "$file")" >/dev/null 2>&1
  done
  note code "$1"
  kill -KILL 0
}
address_of() { echo 127.0.0.1; }
SEED=$$
NODES=("$(hostname)")
"""

_WATCH = r"""
# What was measured on: noted beside the ranks' start, since it may take a while on a cold driver.
if command -v nvidia-smi >/dev/null 2>&1; then
  note gpus "$(timeout 30 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)" &
fi

# One loop watches the ranks and the heartbeat.
ROUTED_HEREwhile :; do
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
  if [ -e "$STATE/handover" ]; then
    # The nodes go to the next deployment: its script takes this one's place.
    next=$(cat "$STATE/handover")
    stop_ranks || finish "ranks that did not stop" 1
    exec bash "$next"
  fi
ROUTER_HERE
  need_heartbeat
  sleep 0.5 &
  wait "$!"
done
"""


def rank_script(plan: LaunchPlan) -> str:
    """The script: bash, shellcheck-clean, every word from a recipe quoted."""
    site = plan.site
    deployment = plan.deployment
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(deployment.recipe)} / {_comment(deployment.id)}: written by pytest-gpubench.",
        *(_SBATCH_COMMENT if plan.scheduled else ()),
        "# shellcheck disable=SC2016  # single quotes are meant: nothing that a recipe says is expanded",
        "set -u",
        f"FOLDER={quote(site.folder)}",
        f"STATE={quote(plan.state)}",
        f"GRACE={int(site.grace)}",
        f"HEARTBEAT_LIMIT={int(site.heartbeat_limit)}",
        _HELPERS.rstrip(),
        (_SLURM_NODES if plan.scheduled else _LOCAL_NODES).rstrip(),
        f'if [ "${{#NODES[@]}}" -ne {plan.num_nodes} ]; then',
        f'  finish "nodes ${{#NODES[@]}} of {plan.num_nodes}" 1',
        "fi",
    ]
    lines += [f"GPUBENCH_NODE_{index}=${{NODES[{index}]}}" for index in range(plan.num_nodes)]
    if plan.imports is not None:
        lines += ["", *_import_image(plan, plan.imports)]
    if plan.staged_check:
        lines += ["", *_choose_model(plan)]
    lines += [_ports(plan)]
    if deployment.check_model_path:
        lines += ["", f"export GPUBENCH_MODEL_PATH={quote(deployment.model_path)}"]
    lines += [
        "",
        "# Runs in the container: says that the image is up, checks the staged model, becomes the server.",
        f"GPUBENCH_WRAPPER={quote(RANK_WRAPPER)}",
    ]
    for rank, argv in zip(plan.ranks, plan.commands, strict=True):
        lines += ["", *_start(plan, rank, argv)]
    lines += [_watch(plan), ""]
    return "\n".join(lines)


def _import_image(plan: LaunchPlan, image: str) -> list[str]:
    """Import the image once, into a file that all nodes see; without Enroot here each step imports it."""
    uri = image if "://" in image else f"docker://{image}"
    limit = int(plan.deployment.deadlines.image)
    return [
        "# The image is imported once, written aside, then renamed. Jobs take turns: imports at the same",
        "# time into one cache fail with half-written layers (InferenceX#1510).",
        f"{IMAGE_VARIABLE}={quote(image)}",
        f'if [ "${{GPUBENCH_IMPORTED-}}" = {quote(uri)} ] &&',
        f'  mv -f "$GPUBENCH_IMPORTED_FILE" "$STATE/{IMAGE_FILE}" 2>/dev/null; then',
        f"  {IMAGE_VARIABLE}=$STATE/{IMAGE_FILE} # from the deployment that had these nodes before",
        "elif command -v enroot >/dev/null 2>&1; then",
        '  rm -f "${GPUBENCH_IMPORTED_FILE-}"',
        "  (",
        f"    flock -w {limit} 9",
        f'    exec timeout {limit} enroot import --output "$STATE/{IMAGE_FILE}.part" {quote(uri)}',
        '  ) 9>"$FOLDER/../../.image-import.lock" </dev/null >>"$FOLDER/image.log" 2>&1 &',
        '  attend "$!" || finish "image import $?" 78',
        f'  mv -f "$STATE/{IMAGE_FILE}.part" "$STATE/{IMAGE_FILE}" || finish "image import" 78',
        f"  {IMAGE_VARIABLE}=$STATE/{IMAGE_FILE}",
        "fi",
        f"export GPUBENCH_IMPORTED={quote(uri)}",
        f'export GPUBENCH_IMPORTED_FILE="$STATE/{IMAGE_FILE}"',
    ]


def _choose_model(plan: LaunchPlan) -> list[str]:
    *most, last = command_lines(_shared(plan, plan.staged_check))
    return [
        "# The staged model where every node has it, else the hub's: one server never mixes the two.",
        f"GPUBENCH_MODEL={quote(plan.deployment.model_path)}",
        *most,
        f'{last} </dev/null >>"$FOLDER/staged-check.log" 2>&1 &',
        'if attend "$!"; then',
        f"  GPUBENCH_MODEL={quote(plan.deployment.preferred_path or '')}",
        "fi",
    ]


def _watch(plan: LaunchPlan) -> str:
    """The loop; a router starts once the controlling process has seen its backends ready."""
    if plan.router is None:
        return _WATCH.rstrip().replace("ROUTER_HERE\n", "").replace("ROUTED_HERE", "")
    first, *rest = command_lines(_shared(plan, plan.router_command), "    ")
    lines = [
        '  if [ -z "$routed" ] && [ -e "$STATE/backends-ready" ]; then',
        "    routed=1",
        f"    export GPUBENCH_STARTED={quote(plan.in_container(f'{plan.state}/router.started'))}",
        "    unset GPUBENCH_MODEL_PATH VLLM_PORT",
        "    start router \\",
        f"  {first}",
        *(f"  {line}" for line in rest),
        "  fi\n",
    ]
    loop = _WATCH.rstrip().replace("ROUTED_HERE", "routed=\n", 1)
    return loop.replace("ROUTER_HERE\n", "\n".join(lines))


def _shared(plan: LaunchPlan, argv: tuple[str, ...]) -> list[str]:
    """The command with the script's own variables for what is only known, or only written, there."""
    variables = {RANK_WRAPPER: "GPUBENCH_WRAPPER"}
    if plan.imports is not None:
        variables[plan.imports] = IMAGE_VARIABLE
    return [Runtime(f"${{{variables[word]}}}") if word in variables else word for word in argv]


def _ports(plan: LaunchPlan) -> str:
    """Ports of this job: a block from its id, moved on while somebody listens there."""
    workers = plan.workers
    ports, width = _port_offsets(plan)
    lines = [
        "",
        "# Ports belong to the job: a block from its id and folder, below the ephemeral ones.",
        "listening() {",
        """  timeout 2 bash -c '</dev/tcp/"$0"/"$1"' "$1" "$2" 2>/dev/null""",
        "}",
    ]
    lines += [
        f'{head_variable(worker.index)}=$(address_of "$GPUBENCH_NODE_{worker.first_node}")'
        for worker in workers
    ]
    wanted = [
        (head_variable(worker.index), ports[port_variable(kind, worker.index)])
        for worker in workers
        for kind in (("API", "MASTER") if worker.num_nodes > 1 else ("API",))
    ]
    if plan.router is not None:
        wanted += [(head_variable(0), ports[name]) for name in (ROUTER_PORT, ROUTER_METRICS_PORT)]
    lines += [
        "taken=",
        "for try in {0..19}; do",
        f"  base=$((10000 + ({_place(plan)} + (SEED + try * 37) * {width}) % 20000))",
        "  taken=",
        *(
            f'  listening "${head}" $((base + {offset})) && taken="$taken ${head}:$((base + {offset}))"'
            for head, offset in wanted
        ),
        '  [ -z "$taken" ] && break',
        "done",
        '[ -z "$taken" ] || finish "ports taken on$taken" 76',
    ]
    lines += [f"{name}=$((base + {offset}))" for name, offset in ports.items()]
    records = [*ports, *(head_variable(worker.index) for worker in workers)]
    lines += [f"export {' '.join(records)}"]
    records += [f"GPUBENCH_NODE_{index}" for index in range(plan.num_nodes)]
    if plan.staged_check:
        records.append("GPUBENCH_MODEL")
    if plan.imports is not None:
        records.append(IMAGE_VARIABLE)
    lines += ['note endpoint "$(']
    lines += [f"  printf '%s=%s\\n' {name} \"${name}\"" for name in records]
    lines += [')" || finish "results folder not writable" 74']
    return "\n".join(lines)


def _place(plan: LaunchPlan) -> int:
    """A number from the folder: two clusters (or mocks) that share hosts count their jobs from 1 both."""
    return zlib.crc32(plan.site.folder.encode()) % 20000


def _port_offsets(plan: LaunchPlan) -> tuple[dict[str, int], int]:
    """Shell variable -> its port's place in the job's block, and the size of the block."""
    ports: dict[str, int] = {}
    used = 0
    for worker in plan.workers:
        role = plan.deployment.role(worker.role)
        size = (plan.deployment.parallel if role is None else role.parallel).world_size
        # NIXL takes one side channel port per data-parallel rank, counted up from the one it is given.
        for kind, count in (("API", 1), ("MASTER", 1), ("DP", 1), ("SIDE", size), ("VLLM", _VLLM_PORTS)):
            ports[port_variable(kind, worker.index)] = used
            used += count
    if plan.router is not None:
        ports |= {ROUTER_PORT: used, ROUTER_METRICS_PORT: used + 1}
        used += 2
    return ports, used


def _start(plan: LaunchPlan, rank: RankPlan, argv: tuple[str, ...]) -> list[str]:
    names = launcher_names(plan.deployment, rank)
    lines = [f"export GPUBENCH_STARTED={quote(plan.in_container(f'{plan.state}/{rank.name}.started'))}"]
    if "VLLM_PORT" in names:
        lines += [f'export VLLM_PORT="${port_variable("VLLM", rank.worker)}"']
    elif rank.worker and any(other.num_nodes == 1 for other in plan.ranks):
        lines += ["unset VLLM_PORT"]
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" in names:
        lines += [
            f'VLLM_NIXL_SIDE_CHANNEL_HOST=$(address_of "$GPUBENCH_NODE_{rank.node}")',
            f'VLLM_NIXL_SIDE_CHANNEL_PORT="${port_variable("SIDE", rank.worker)}"',
            "export VLLM_NIXL_SIDE_CHANNEL_HOST VLLM_NIXL_SIDE_CHANNEL_PORT",
        ]
    if rank.command is not None:
        exports = rank_exports(plan.deployment, rank)
        lines += [f"export {name}={quote(value)}" for name, value in exports.items()]
    first, *rest = command_lines(_shared(plan, argv), "  ")
    lines += [f"start {rank.name} \\", first, *rest]
    return lines


def _comment(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
