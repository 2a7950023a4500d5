"""A clock, a backend and a probe without a world behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpubench.errors import InfraError, LogTail
from pytest_gpubench.recipe.types import Deadlines, Deployment, Profile
from pytest_gpubench.serving.backend import Api, Hardware, Look

READY = Look(
    pending=False,
    nodes=("n1",),
    apis=(Api("server", "127.0.0.1", 8000, "n1"),),
    started=frozenset({"rank-0"}),
    values={"GPUBENCH_NODE_0": "n1"},
)


def deployment(**changes: object) -> Deployment:
    defaults: dict[str, object] = {
        "recipe": "r",
        "id": "tp1",
        "model": "org/model",
        "model_path": "org/model",
        "image": None,
        "vllm_commit": None,
        "profile": Profile(name="P", platform="h200"),
        "runtime": "slurm",
        "deadlines": Deadlines(queue=100, image=50, load=60, ready=20, bench=30, teardown=10),
    }
    return Deployment(**{**defaults, **changes})  # type: ignore[arg-type]


class FakeClock:
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeProcess:
    def __init__(self, clock: FakeClock, seconds: float, code: int) -> None:
        self._clock = clock
        self._end = clock.now + seconds
        self._code = code
        self.terminated = False
        self.pid = 4711

    def poll(self) -> int | None:
        if self.terminated:
            return -15
        return self._code if self._clock.now >= self._end else None

    def terminate(self, grace: float) -> int | None:
        self.terminated = True
        return -15


@dataclass
class FakeBackend:
    """``looks`` are (from second, Look); the last one that has begun is seen."""

    clock: FakeClock
    looks: list[tuple[float, Look]] = field(default_factory=lambda: [(0.0, READY)])
    rank_names: tuple[str, ...] = ("rank-0",)
    job_id: str | None = "42"
    launch_error: InfraError | None = None
    client_seconds: float = 1.0
    client_code: int = 0
    released: bool = True
    stops: int = 0
    launched: float | None = None
    processes: list[FakeProcess] = field(default_factory=list)

    @property
    def log_folder(self) -> Path:
        return Path("/logs")

    def held_seconds(self) -> float:
        return 0.0

    def launch(self, previous: object = None) -> None:
        if self.launch_error is not None:
            raise self.launch_error
        self.launched = self.clock.now

    def look(self) -> Look:
        assert self.launched is not None
        age = self.clock.now - self.launched
        return [look for since, look in self.looks if age >= since][-1]

    def hardware(self) -> Hardware:
        return Hardware()

    def start_router(self) -> None:
        pass

    def start_client(self, argv: Sequence[str], log: str, name: str) -> FakeProcess:
        process = FakeProcess(self.clock, self.client_seconds, self.client_code)
        self.processes.append(process)
        return process

    def client_path(self, host: str) -> str:
        return host

    def tails(self) -> list[LogTail]:
        return [LogTail("rank-0 on n1", "/logs/rank-0.log", "last words")]

    def stop(self) -> bool:
        self.stops += 1
        return self.released


class FakeProbe:
    """Answers as told; ``healthy_after`` in clock seconds."""

    def __init__(self, clock: FakeClock, healthy_after: float = 0.0) -> None:
        self.clock = clock
        self.healthy_after = clock.now + healthy_after
        self.names: list[str] | None = ["org/model"]
        self.problem: str | None = None
        self.on_complete: Callable[[], None] = lambda: None

    def healthy(self, url: str) -> bool:
        return self.clock.now >= self.healthy_after

    def models(self, url: str) -> list[str] | None:
        return self.names

    def completes(self, url: str, model: str, timeout: float, chat: bool = False) -> str | None:
        self.on_complete()
        return self.problem

    def version(self, url: str) -> str | None:
        return "0.32.0"

    def metrics(self, url: str) -> str | None:
        return None

    def reset_prefix_cache(self, url: str) -> bool:
        return False
