"""Why a deployment ended: Slurm's record, the batch script's own note, and the ranks' exits. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpubench.errors import InfraError, ServerError, SlurmError
from pytest_gpubench.plan.launch import EXIT_MODEL_MISSING, EXIT_UNWRITABLE
from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.states import reason_of
from pytest_gpubench.slurm.types import JobInfo, JobState

__all__ = ["Evidence", "diagnose", "rank_failure"]

_IMPORT = re.compile(
    r"pyxis:.*(fail|error|couldn't)|enroot-.*(fail|error)|\[ERROR\].*(rootfs|image|squashfs)", re.I
)
_ENROOT = re.compile(r"enroot-.*(fail|error|no such)|\[ERROR\]|no such file", re.I)
_PORT = re.compile(r"address already in use|EADDRINUSE", re.I)
_SLURM_WORDS = re.compile(r"(srun|slurmstepd|slurmd)\b[^ ]*:")
_UNREACHED = re.compile(r"^srun: error: .*unable to contact slurm controller", re.I | re.M)
_MISSING = re.compile(r"gpubench: (model path .* is missing on node .*)")


@dataclass(frozen=True)
class Evidence:
    """``ended`` is the script's note (empty when it left none); ``tails`` maps a rank to its log's end."""

    info: JobInfo
    ended: str
    exits: Mapping[str, int]
    started: frozenset[str]
    tails: Mapping[str, str]
    nodes: Mapping[str, str]  # rank -> node
    ours_cancelled: bool = False
    unwritable: str = ""  # why the results folder cannot be written, seen from here


def diagnose(evidence: Evidence) -> InfraError:
    """The first cause. What Slurm did to the job comes before what that did to the ranks."""
    info = evidence.info
    slurm_reason = reason_of(info, ours_cancelled=evidence.ours_cancelled)
    if slurm_reason is not None and slurm_reason not in (Reason.JOB_ENDED, Reason.JOB_LOST):
        return SlurmError(slurm_reason, _slurm_text(slurm_reason, info), details=_record(evidence))
    noteless = evidence.unwritable and not evidence.ended and not evidence.exits
    if noteless or info.exit_code == EXIT_UNWRITABLE or evidence.ended.startswith("results folder"):
        seen = f" ({evidence.unwritable})" if evidence.unwritable else ""
        return SlurmError(
            Reason.RESULTS_UNWRITABLE,
            f"job {info.id} could not write its notes into the results folder{seen}, which both sides need: "
            "is the disk full, or the folder not shared with the nodes?",
            details=_record(evidence),
        )
    if evidence.ended == "requeued":
        return SlurmError(Reason.REQUEUED, _slurm_text(Reason.REQUEUED, info), details=_record(evidence))
    words = evidence.ended.split()
    if words[:1] == ["rank"] and len(words) >= 3:
        return rank_failure(evidence, words[1], _number(words[2]))
    if evidence.ended.startswith("image import"):
        tail = evidence.tails.get("image", "")
        why = "it took longer than `deadlines.image`" if evidence.ended.endswith(" 124") else _cause(tail)
        return ServerError(
            Reason.IMPORT_FAILED, f"the image could not be imported: {why}", details=_record(evidence)
        )
    if evidence.ended.startswith("ports taken"):
        return SlurmError(
            Reason.PORT_TAKEN,
            f"{evidence.ended}: no free block of ports in 20 tries",
            details=_record(evidence),
        )
    if evidence.ended.startswith("heartbeat"):
        return SlurmError(
            Reason.HEARTBEAT_LOST,
            "the job ended itself: the heartbeat file did not change for its limit. Was the controlling "
            "process stopped, or is the results folder not shared with the nodes?",
            details=_record(evidence),
        )
    if evidence.ended.startswith("nodes"):
        return SlurmError(
            Reason.NODE_FAILED, f"the allocation has {evidence.ended[6:]} nodes", details=_record(evidence)
        )
    if evidence.exits:
        rank, code = next(iter(evidence.exits.items()))
        return rank_failure(evidence, rank, code)
    if evidence.ended.startswith("signal"):
        return SlurmError(
            Reason.CANCELLED,
            f"job {info.id} was ended from outside ({evidence.ended}); Slurm has no record of by whom",
            details=_record(evidence),
        )
    reason = slurm_reason or Reason.JOB_LOST
    return SlurmError(reason, _slurm_text(reason, info), details=_record(evidence))


def rank_failure(evidence: Evidence, rank: str, code: int) -> InfraError:
    """A rank that ended, by its exit code and the end of its log."""
    tail = evidence.tails.get(rank, "")
    node = evidence.nodes.get(rank, "")
    where = f"{rank} on {node}" if node else rank
    if code == EXIT_MODEL_MISSING and (missing := _MISSING.search(tail)):
        return ServerError(
            Reason.MODEL_NOT_STAGED,
            f"{missing.group(1)} ({rank}). Stage it there, or set `models.staged: preferred` in the profile",
            details=_record(evidence),
        )
    if rank not in evidence.started and _IMPORT.search(tail):
        return ServerError(
            Reason.IMPORT_FAILED,
            f"{where}: the container image could not be started: {_cause(tail)}",
            details=_record(evidence),
        )
    if rank not in evidence.started and _UNREACHED.search(tail):
        return SlurmError(
            Reason.SLURM_UNREACHABLE, f"{where}: {_line(tail, _UNREACHED)}", details=_record(evidence)
        )
    if _PORT.search(tail):
        return ServerError(
            Reason.PORT_TAKEN, f"{where}: {_line(tail, _PORT)} (exit code {code})", details=_record(evidence)
        )
    return ServerError(
        Reason.SERVER_EXITED,
        f"{where} ended with exit code {code}{_signal(code)}; last line: {_last(tail)}",
        details=_record(evidence),
    )


def _slurm_text(reason: Reason, info: JobInfo) -> str:
    by = f" by uid {info.cancelled_by}" if info.cancelled_by else ""
    words = f" ({info.reason})" if info.reason and info.reason != "None" else ""
    what = {
        Reason.CANCELLED: f"job {info.id} was cancelled from outside{by}; this run did not cancel it",
        Reason.TIME_LIMIT: f"job {info.id} reached its time limit. Raise `slurm.time`, or measure less",
        Reason.NODE_FAILED: f"a node of job {info.id} failed",
        Reason.PREEMPTED: f"job {info.id} was preempted",
        Reason.REQUEUED: f"job {info.id} was requeued: its server is another one",
        Reason.OUT_OF_MEMORY: f"job {info.id} ran out of memory",
        Reason.JOB_LOST: f"job {info.id} left the queue, and no Slurm command knows how it ended",
        Reason.JOB_ENDED: f"job {info.id} ended ({info.state.value}) while it was needed",
    }.get(reason, f"job {info.id}: {info.state.value}")
    return what + words


def _record(evidence: Evidence) -> str:
    info = evidence.info
    parts = [f"Slurm: job {info.id} {info.state.value}"]
    if info.reason:
        parts.append(f"reason {info.reason}")
    if info.exit_code is not None:
        parts.append(f"exit code {info.exit_code}")
    if info.exit_signal:
        parts.append(f"signal {info.exit_signal}")
    if info.state is not JobState.UNKNOWN and info.source:
        parts.append(f"says {info.source}")
    lines = [", ".join(parts), f"cancelled by this run: {'yes' if evidence.ours_cancelled else 'no'}"]
    if evidence.ended:
        lines.append(f"the batch script noted: {evidence.ended}")
    lines += [f"{rank} exit code {code}{_signal(code)}" for rank, code in evidence.exits.items()]
    return "\n".join(lines)


def _signal(code: int) -> str:
    import signal

    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    try:
        return f" ({signal.Signals(number).name})" if number else ""
    except ValueError:
        return ""


def _line(tail: str, pattern: re.Pattern[str]) -> str:
    return next((line.strip() for line in tail.splitlines() if pattern.search(line)), "")[:500]


def _cause(tail: str) -> str:
    """Pyxis's words and Enroot's own, else the last line."""
    lines = dict.fromkeys(line for pattern in (_IMPORT, _ENROOT) if (line := _line(tail, pattern)))
    return "; ".join(lines) or _last(tail)


def _last(tail: str) -> str:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    own = [line for line in lines if not _SLURM_WORDS.match(line)]  # Slurm only repeats the exit code
    return (own or lines)[-1][:300] if lines else "(the log is empty)"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1
