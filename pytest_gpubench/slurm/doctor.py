"""What Slurm says of a login node and of a profile: commands, controller, partition, GRES, Pyxis.

Every check asks through a command runner and answers with findings; nothing is submitted
(``sbatch --test-only`` is judged by the controller and then forgotten).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pytest_gpubench.recipe.slurm_forms import time_seconds
from pytest_gpubench.recipe.types import SlurmSettings
from pytest_gpubench.world import Clock, CommandResult

__all__ = [
    "Ask",
    "Finding",
    "Partition",
    "check_commands",
    "check_controller",
    "check_partition",
    "check_pyxis",
    "check_submission",
    "gres_fits",
    "parse_partitions",
]

Ask = Callable[[Sequence[str]], CommandResult]
"""Runs one command to its end, with a timeout, in a clean environment."""

MAX_SKEW = 5.0
"""Seconds that two clocks may differ before it is worth a word."""
OLDEST = (20, 11)
"""``srun --overlap``, by which clients run inside the allocation, came with Slurm 20.11."""
SINFO_FORMAT = "%P|%a|%l|%D|%T|%G"
_NEEDED = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
_UNUSABLE = ("down", "drain", "fail", "maint", "unk", "power_down", "future", "inval")


@dataclass(frozen=True)
class Finding:
    """``level``: ok, warn or fail. ``advice`` is what to do or to put in the profile."""

    level: str
    topic: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Partition:
    """A partition as sinfo lists it; ``limit`` is Slurm's own text, ``gres`` one text per kind of node."""

    name: str
    default: bool
    up: bool
    limit: str
    nodes: int
    usable: int
    gres: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPU resources as a profile writes them: ``gpu:b300:4``."""
        return tuple(dict.fromkeys(part for text in self.gres for part in _parts(text) if _is_gpu(part)))


def check_commands(ask: Ask) -> list[Finding]:
    """Whether Slurm's commands are there, and new enough."""
    answers = {name: ask([name, "--version"]) for name in (*_NEEDED, "sacct")}
    missing = [name for name in _NEEDED if answers[name].missing]
    if missing:
        return [
            Finding(
                "fail",
                "slurm commands",
                f"not on PATH: {', '.join(missing)}",
                "run on a Slurm login node, or load the module that puts Slurm on PATH",
            )
        ]
    broken = next((answers[name] for name in _NEEDED if not answers[name].ok), None)
    if broken is not None:
        return [Finding("fail", "slurm commands", broken.describe(), "repair Slurm's configuration here")]
    match = re.search(r"slurm\S*\s+(\d+)\.(\d+)\S*", answers["sbatch"].stdout, re.IGNORECASE)
    version = match[0] if match else answers["sbatch"].stdout.strip() or "unknown version"
    findings = [Finding("ok", "slurm commands", f"{', '.join(_NEEDED)}: {version}")]
    if match and (int(match[1]), int(match[2])) < OLDEST:
        findings = [
            Finding("fail", "slurm commands", f"{version} has no srun --overlap", "20.11 or newer is needed")
        ]
    if not answers["sacct"].ok:
        findings.append(
            Finding("warn", "accounting", "sacct does not answer: how forgotten jobs ended cannot be told")
        )
    return findings


def check_controller(ask: Ask, clock: Clock) -> list[Finding]:
    """Whether slurmctld answers, and how far its clock is from ours."""
    ping = ask(["scontrol", "ping"])
    states = re.findall(r"Slurmctld\(([^)]*)\) at (\S+) is (\w+)", ping.stdout)
    if not any(state == "UP" for _, _, state in states):
        return [Finding("fail", "controller", ping.describe(), "wait for slurmctld, or ask the site")]
    hosts = ", ".join(f"{host} {state.lower()}" for _, host, state in states)
    findings = [Finding("ok", "controller", hosts)]
    before = clock.time()
    config = ask(["scontrol", "show", "config"])
    after = clock.time()
    match = re.search(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", config.stdout)
    if match is None:
        return [*findings, Finding("warn", "clock", "slurmctld does not say its time")]
    theirs = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").timestamp()
    # It is cut to whole seconds and was taken between our two looks.
    skew = max(before - theirs - 1.0, theirs - after, 0.0)
    return [*findings, clock_finding("slurmctld", skew)]


def clock_finding(whose: str, skew: float) -> Finding:
    """A finding on ``skew`` seconds between our clock and another one."""
    if skew <= MAX_SKEW:
        return Finding("ok", "clock", f"agrees with {whose}")
    return Finding(
        "warn",
        "clock",
        f"differs from {whose} by {skew:.0f} s: times in rows and logs will not match",
        "run NTP on both",
    )


def check_partition(
    ask: Ask, slurm: SlurmSettings | None, *, num_nodes: int = 1
) -> tuple[list[Finding], list[Partition]]:
    """The profile's partition, its nodes, GRES and time limit; without a profile what there is."""
    answer = ask(["sinfo", "--noheader", f"--format={SINFO_FORMAT}"])
    partitions = parse_partitions(answer.stdout) if answer.ok else []
    if not partitions:
        return [Finding("fail", "partition", answer.describe(), "no partition is visible to you")], []
    listed = ", ".join(f"{p.name}{'*' if p.default else ''}" for p in partitions)
    if slurm is None:
        return [Finding("ok", "partition", f"{listed} (* default)")], partitions
    wanted = slurm.partition
    chosen = next((p for p in partitions if p.name == wanted or (wanted is None and p.default)), None)
    if chosen is None and wanted is None:
        text = "the profile names none and there is no default"
        return [Finding("fail", "partition", text, f"slurm.partition: one of {listed}")], partitions
    if chosen is None:
        text = f"{wanted} does not exist or is not visible to you"
        return [Finding("fail", "partition", text, f"slurm.partition: one of {listed}")], partitions
    return [_nodes(chosen, num_nodes), *_gres(chosen, slurm), *_limit(chosen, slurm)], partitions


def _nodes(partition: Partition, wanted: int) -> Finding:
    text = f"{partition.name}: {partition.usable} of {partition.nodes} nodes usable, {wanted} needed"
    if not partition.up:
        return Finding("fail", "partition", f"{partition.name} is not up", "choose another, or ask the site")
    if partition.nodes < wanted:
        return Finding("fail", "partition", text, "the job would be pending for ever: fewer nodes")
    if partition.usable < wanted:
        return Finding("warn", "partition", text, "the job waits until nodes come back")
    return Finding("ok", "partition", text)


def _gres(partition: Partition, slurm: SlurmSettings) -> Iterable[Finding]:
    there = ", ".join(partition.gpus) or "no GPU"
    if slurm.gres is None:
        if partition.gpus and not slurm.exclusive:
            advice = f"slurm.gres: {partition.gpus[0]}"
            yield Finding(
                "warn", "gres", f"the profile asks for no GPU; {partition.name} has {there}", advice
            )
        else:
            yield Finding("ok", "gres", f"not asked for; {partition.name} has {there}")
    elif any(gres_fits(slurm.gres, text) for text in partition.gres):
        yield Finding("ok", "gres", f"{slurm.gres} on {partition.name} ({there})")
    else:
        advice = f"slurm.gres: {partition.gpus[0]}" if partition.gpus else "another partition"
        yield Finding(
            "fail", "gres", f"{slurm.gres} is on no node of {partition.name}, which has {there}", advice
        )


def _limit(partition: Partition, slurm: SlurmSettings) -> Iterable[Finding]:
    try:
        allowed = time_seconds(partition.limit)
        asked = None if slurm.time is None else time_seconds(slurm.time)
    except ValueError:
        return
    if slurm.time is None:
        yield Finding(
            "warn", "time limit", f"not set; {partition.name} allows {partition.limit}", "slurm.time"
        )
    elif allowed is not None and (asked is None or asked > allowed):
        text = f"{slurm.time} is above the {partition.limit} of {partition.name}"
        yield Finding("fail", "time limit", text, f'slurm.time: "{partition.limit}" at most')
    else:
        yield Finding("ok", "time limit", f"{slurm.time} of {partition.limit}")


def check_submission(ask: Ask, slurm: SlurmSettings, *, num_nodes: int) -> Finding:
    """``sbatch --test-only`` with the profile's options: Slurm itself judges account, QOS and limits."""
    argv = ["sbatch", "--test-only", "--nodes", str(num_nodes), "--ntasks-per-node", "1"]
    for option, value in (
        ("--partition", slurm.partition),
        ("--gres", slurm.gres),
        ("--time", slurm.time),
        ("--account", slurm.account),
        ("--qos", slurm.qos),
        ("--reservation", slurm.reservation),
    ):
        argv += [option, value] if value is not None else []
    argv += ["--exclusive"] if slurm.exclusive else []
    answer = ask([*argv, *slurm.extra_sbatch_args, "--wrap", "true"])
    said = " ".join((answer.stderr or answer.stdout).split())
    if answer.ok:
        return Finding("ok", "submission", said or "sbatch --test-only takes the profile's options")
    return Finding("fail", "submission", answer.describe(), "account, qos, reservation or limits of slurm:")


def check_pyxis(ask: Ask, runtime: str) -> list[Finding]:
    """Whether srun knows Pyxis's options, against what the profile's ``container.runtime`` says."""
    answer = ask(["srun", "--help"])
    there = "--container-image" in answer.stdout + answer.stderr
    enroot = ask(["enroot", "version"])
    found = [
        Finding("ok", "enroot", f"version {enroot.stdout.strip()}")
        if enroot.ok
        else Finding("warn", "enroot", "not on this node; the compute nodes need it for Pyxis")
    ]
    if runtime == "none":
        return [Finding("ok", "pyxis", f"{'there' if there else 'not there'}, not used (runtime: none)")]
    if there:
        return [Finding("ok", "pyxis", "srun has --container-image"), *found]
    if runtime == "pyxis":
        text = "srun has no --container-image, but the profile wants Pyxis"
        return [Finding("fail", "pyxis", text, "ask the site for Pyxis, or container.runtime: none"), *found]
    text = "srun has no --container-image: vLLM must be installed on the nodes themselves"
    return [Finding("warn", "pyxis", text, "container.runtime: none says that this is meant")]


def parse_partitions(text: str) -> list[Partition]:
    """sinfo's lines, one per partition, state and GRES, as one partition each."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|", 5)
        if len(fields) != 6 or not fields[3].isdigit():
            continue
        starred, avail, limit, count, state, gres = fields
        name, nodes = starred.rstrip("*"), int(fields[3])
        usable = 0 if state.lower().startswith(_UNUSABLE) or state.endswith("*") else int(count)
        old = found.get(name)
        listed = () if gres in {"(null)", ""} else (gres,)
        found[name] = Partition(
            name,
            starred.endswith("*"),
            avail == "up",
            limit,
            nodes + (old.nodes if old else 0),
            usable + (old.usable if old else 0),
            tuple(dict.fromkeys((old.gres if old else ()) + listed)),
        )
    return list(found.values())


def gres_fits(wanted: str, there: str) -> bool:
    """Whether every resource of ``gpu:b300:4`` is in a node's ``gpu:b300:4(S:0-1),shard:8``."""
    available = [_split(part) for part in _parts(there)]
    for part in _parts(wanted):
        name, kind, count = _split(part)
        if not any(n == name and (kind is None or k == kind) and c >= count for n, k, c in available):
            return False
    return True


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.sub(r"\([^()]*\)", "", text).split(",") if part.strip()]


def _split(part: str) -> tuple[str, str | None, int]:
    fields = part.removeprefix("gres/").replace("=", ":").split(":")
    count = int(fields.pop()) if len(fields) > 1 and fields[-1].isdigit() else 1
    return fields[0], fields[1] if len(fields) > 1 else None, count


def _is_gpu(part: str) -> bool:
    return _split(part)[0] == "gpu"
