"""What Slurm's commands print, as data. Pure; anything unexpected is UNKNOWN or None, never a guess."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.slurm.nodelist import expand
from pytest_gpubench.slurm.states import canceller, fold_rows, fold_state
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState
from pytest_gpubench.world import CommandResult

__all__ = [
    "SACCT_FORMAT",
    "SQUEUE_FORMAT",
    "Answer",
    "SqueueRow",
    "classify",
    "describe",
    "parse_sacct",
    "parse_sbatch",
    "parse_scontrol_job",
    "parse_squeue",
]

SQUEUE_FORMAT = "%i|%T|%S|%j|%N|%r"
"""Id, state, start time, name, nodes, reason: the reason last, since it may hold every character."""
SACCT_FORMAT = "JobIDRaw,State,ExitCode,NodeList,JobName"
"""The job name last, for the same reason."""


class Answer(Enum):
    """What kind of answer a command gave, before its output is read."""

    OK = "ok"
    UNKNOWN_ID = "unknown id"  # Slurm surely does not know the job (any more)
    ENDED = "already ended"
    UNREACHABLE = "unreachable"  # the controller never got the request
    UNCLEAR = "unclear"  # it may have got the request: timeouts, lost answers, nonsense
    NO_ACCOUNTING = "no accounting"
    BAD_CLUSTER = "bad cluster"  # --clusters needs an accounting database that does not answer
    REFUSED = "refused"


# Slurm's own words, compared in lower case; the first match decides.
_WORDS: tuple[tuple[str, Answer], ...] = (
    ("invalid job id specified", Answer.UNKNOWN_ID),
    ("invalid job id", Answer.UNKNOWN_ID),
    ("already completing or completed", Answer.ENDED),
    ("accounting storage is disabled", Answer.NO_ACCOUNTING),
    ("accounting_storage/none", Answer.NO_ACCOUNTING),
    ("invalid entry for --cluster", Answer.BAD_CLUSTER),
    ("no cluster", Answer.BAD_CLUSTER),
    ("unable to contact slurm controller", Answer.UNREACHABLE),
    ("connection refused", Answer.UNREACHABLE),
    ("could not establish a configuration source", Answer.UNREACHABLE),
    ("cannot stat file", Answer.UNREACHABLE),
    ("controller not responding", Answer.UNREACHABLE),
    ("slurm backup controller in standby mode", Answer.UNREACHABLE),
    ("socket timed out", Answer.UNCLEAR),
    ("timed out", Answer.UNCLEAR),
    ("transport endpoint", Answer.UNCLEAR),
    ("connection reset", Answer.UNCLEAR),
    ("connection timed out", Answer.UNCLEAR),
    ("communication connection failure", Answer.UNCLEAR),
    ("zero bytes were transmitted or received", Answer.UNCLEAR),
    ("resource temporarily unavailable", Answer.UNCLEAR),
    ("temporarily unable to accept job", Answer.UNREACHABLE),
    ("problem talking to the database", Answer.UNCLEAR),
    ("unexpected message received", Answer.UNCLEAR),
)


def classify(result: CommandResult) -> Answer:
    """Sort an answer. Exit 0 with an error text and no output is UNCLEAR: squeue ends so on a timeout."""
    if result.timed_out:
        return Answer.UNCLEAR
    if result.missing:
        return Answer.UNREACHABLE
    text = f"{result.stderr}\n{result.stdout if not result.ok else ''}".lower()
    found = next((answer for words, answer in _WORDS if words in text), None)
    if not result.ok:
        return found or Answer.REFUSED
    if found is not None and not result.stdout.strip():
        return found
    return Answer.OK


def describe(result: CommandResult, timeout: float) -> str:
    """The command, how it ended and its own words; a timeout says how long was waited."""
    text = result.describe()
    return f"{text} (no answer within {timeout:g} s)" if result.timed_out else text


_BARE_ID = re.compile(r"([1-9][0-9]{0,17})(?:;([A-Za-z0-9._-]+))?", re.ASCII)
_SENTENCE = re.compile(
    r"Submitted batch job ([1-9][0-9]{0,17})\b(?: on cluster ([A-Za-z0-9._-]+))?", re.IGNORECASE | re.ASCII
)


def parse_sbatch(stdout: str) -> JobId | None:
    """The id in sbatch's answer, or None when there is none or more than one.

    ``4711``, ``4711;cluster`` on a line of its own (site wrappers print above it), or the sentence
    ``Submitted batch job 4711 on cluster X`` of wrappers that drop ``--parsable``.
    """
    found: dict[int, JobId] = {}
    for line in stdout.splitlines():
        match = _BARE_ID.fullmatch(line.strip()) or _SENTENCE.search(line)
        if match is not None:
            job = JobId(int(match[1]), match[2])
            known = found.get(job.number)
            found[job.number] = known if known is not None and known.cluster else job
    return next(iter(found.values())) if len(found) == 1 else None


@dataclass(frozen=True)
class SqueueRow:
    """One folded answer of squeue; ``start`` is the start time as text of a row that is just RUNNING.

    Other states leave it empty: a node that is powered up for the job moves the start time.
    """

    info: JobInfo
    start: str


# 4711, 4711+0 (heterogeneous), 4711_3 and 4711_[0-9%2] (array), 4711.batch (step).
_ROW_ID = re.compile(r"([1-9][0-9]{0,17})(?:[+_.].*)?", re.ASCII)


def _number(text: str) -> int | None:
    match = _ROW_ID.fullmatch(text.strip())
    return int(match[1]) if match else None


def _nodes(text: str) -> tuple[str, ...]:
    text = text.strip()
    if text in {"", "(null)", "None", "None assigned", "N/A"}:
        return ()
    return expand(text)


def _job(
    job: JobId,
    state_text: str,
    *,
    reason: str = "",
    nodes: str = "",
    name: str = "",
    exit_text: str = "",
    restarts: int = 0,
    source: str,
    raw: str,
) -> JobInfo:
    state = fold_state(state_text)
    if state is JobState.UNKNOWN:
        reason = f"{source} gave the unknown state {state_text!r}"
    try:
        hosts = _nodes(nodes)
    except SlurmError as err:
        hosts = ()
        if not state.ended:  # without its nodes a living job cannot be used
            state, reason = JobState.UNKNOWN, err.message
    code, _, signal = exit_text.partition(":")
    return JobInfo(
        id=job,
        state=state,
        reason="" if reason in {"None", "(null)"} else reason,
        nodes=hosts,
        name=name,
        exit_code=int(code) if _is_number(code) else None,
        exit_signal=int(signal) if _is_number(signal) and signal.strip("0") else None,
        restarts=restarts,
        cancelled_by=canceller(state_text),
        source=source,
        raw=raw,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _fold(rows: Iterable[tuple[int, JobInfo]]) -> dict[int, JobInfo]:
    grouped: dict[int, list[JobInfo]] = {}
    for number, info in rows:
        grouped.setdefault(number, []).append(info)
    return {number: fold_rows(infos) for number, infos in grouped.items()}


def parse_squeue(stdout: str, cluster: str | None = None) -> dict[int, SqueueRow]:
    """Job number -> answer, from lines of :data:`SQUEUE_FORMAT`; other lines are passed over."""
    rows: list[tuple[int, JobInfo]] = []
    starts: dict[int, str] = {}
    for line in stdout.splitlines():
        fields = line.split("|", 5)
        number = _number(fields[0])
        if len(fields) < 6 or number is None:
            continue  # "CLUSTER: name" headings, messages of wrappers
        _, state, start, name, nodes, reason = fields
        info = _job(
            JobId(number, cluster),
            state,
            reason=reason.strip(),
            nodes=nodes,
            name=name.strip(),
            source="squeue",
            raw=line,
        )
        rows.append((number, info))
        starts.setdefault(number, start.strip() if state.strip() in {"RUNNING", "R"} else "")
    return {number: SqueueRow(info, starts[number]) for number, info in _fold(rows).items()}


def _field(block: str, key: str, until: str = r"\s|$") -> str:
    """The value of ``key=`` up to ``until``; JobName, Reason and such may hold blanks."""
    match = re.search(rf"(?:^|\s){key}=(.*?)(?={until})", block, re.MULTILINE)
    return match[1] if match else ""


def parse_scontrol_job(stdout: str, job: JobId) -> JobInfo | None:
    """What ``scontrol show job`` says of ``job``, None when the text does not speak of it."""
    rows: list[JobInfo] = []
    for block in re.split(r"\n[ \t]*\n", stdout):
        name = _field(block, "JobName", "$")
        block = block.replace(f"JobName={name}", "", 1)  # a name may look like a field
        ids = {_field(block, key) for key in ("JobId", "ArrayJobId", "HetJobId")}
        state = _field(block, "JobState")
        if str(job.number) not in ids or not state:
            continue
        restarts = _field(block, "Restarts")
        rows.append(
            _job(
                job,
                state,
                reason=_field(block, "Reason", r"\s+Dependency=|$").strip(),
                nodes=_field(block, "NodeList"),
                name=name.strip(),
                exit_text=_field(block, "ExitCode"),
                restarts=int(restarts) if _is_number(restarts) else 0,
                source="scontrol",
                raw=block.strip()[:4000],
            )
        )
    return fold_rows(rows) if rows else None


def parse_sacct(stdout: str, numbers: Collection[int], cluster: str | None = None) -> dict[int, JobInfo]:
    """Job number -> answer for those of ``numbers`` that lines of :data:`SACCT_FORMAT` speak of."""
    rows: list[tuple[int, JobInfo]] = []
    for line in stdout.splitlines():
        fields = line.split("|", 4)
        number = _number(fields[0])
        if len(fields) < 5 or number is None or number not in numbers:
            continue
        _, state, exit_text, nodes, name = fields
        info = _job(
            JobId(number, cluster),
            state,
            nodes=nodes,
            name=name.strip(),
            exit_text=exit_text,
            source="sacct",
            raw=line,
        )
        rows.append((number, info))
    return _fold(rows)
