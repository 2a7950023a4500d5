"""A scripted command runner and a clock that jumps: no process is started, nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_gpubench.slurm.client import CliSlurm, SlurmTimeouts
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState
from pytest_gpubench.world import CommandResult, ProcessHandle

Handler = Callable[[Sequence[str]], CommandResult]


class FakeClock:
    """Sleeping moves the time; ``slept`` keeps each pause."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


def said(out: str = "", err: str = "", code: int | None = 0) -> CommandResult:
    """A command that ended with ``code``; its argv is filled in by the runner."""
    return CommandResult((), code, out, err)


def timed_out(out: str = "", err: str = "") -> CommandResult:
    return CommandResult((), None, out, err, timed_out=True)


def missing() -> CommandResult:
    return CommandResult((), None, "", "No such file or directory", missing=True)


INVALID = said(err="slurm_load_jobs error: Invalid job id specified", code=1)
NO_ACCOUNTING = said(err="Slurm accounting storage is disabled", code=1)
REFUSED_CONNECTION = said(
    err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1
)
SOCKET_TIMEOUT = said(
    err="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", code=1
)


class FakeRunner:
    """Answers by program name: a list is used up, its last answer repeats; a callable sees the argv."""

    def __init__(self, clock: FakeClock | None = None, **programs: Sequence[CommandResult] | Handler) -> None:
        self.clock = clock
        self.programs: dict[str, list[CommandResult] | Handler] = {
            name: answer if callable(answer) else list(answer) for name, answer in programs.items()
        }
        self.calls: list[tuple[str, ...]] = []
        self.envs: list[Mapping[str, str]] = []
        self.timeouts: list[float] = []

    def run(
        self, argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        assert env is not None
        self.calls.append(tuple(argv))
        self.envs.append(env)
        self.timeouts.append(timeout)
        answers = self.programs.get(argv[0])
        assert answers is not None, f"unexpected call {argv}"
        if callable(answers):
            result = answers(argv)
        else:
            result = answers.pop(0) if len(answers) > 1 else answers[0]
        if result.timed_out and self.clock is not None:
            self.clock.now += timeout
        return CommandResult(
            tuple(argv), result.returncode, result.stdout, result.stderr, result.timed_out, result.missing
        )

    def start(
        self, argv: Sequence[str], *, log: str, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> ProcessHandle:
        raise AssertionError("the Slurm client starts no long-running process")

    def called(self, program: str) -> list[tuple[str, ...]]:
        return [argv for argv in self.calls if argv[0] == program]


def row(
    number: object, state: str, *, name: str = "n", nodes: str = "", reason: str = "None", start: str = "N/A"
) -> str:
    """One line as squeue prints it."""
    return f"{number}|{state}|{start}|{name}|{nodes}|{reason}\n"


def client(runner: FakeRunner, clock: FakeClock, *, env: Mapping[str, str] | None = None) -> CliSlurm:
    return CliSlurm(runner, clock, env={"PATH": "/bin"} if env is None else env, timeouts=SlurmTimeouts())


class FakeClient:
    """A queue as a dictionary; ``queries`` counts the calls of ``info``."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobInfo] = {}
        self.queries: list[list[JobId]] = []

    def put(self, number: int, state: JobState, **values: object) -> JobId:
        job = JobId(number)
        self.jobs[job] = JobInfo(job, state, **values)  # type: ignore[arg-type]
        return job

    def info(self, ids: Sequence[JobId]) -> dict[JobId, JobInfo]:
        self.queries.append(list(ids))
        return {job: self.jobs.get(job, JobInfo(job, JobState.GONE)) for job in ids}
