"""Measure one point on a running server: warm-up, repetitions, raw files, cache counters."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pytest_gpubench.bench.client import ClientRun, bench_argv, warmup_prompts
from pytest_gpubench.bench.command import read_result
from pytest_gpubench.bench.prefix_cache import CacheCounters, hit_rate, read_counters
from pytest_gpubench.bench.result import RawResult
from pytest_gpubench.bench.seeds import measure_seed, warmup_seed
from pytest_gpubench.errors import ClientError, InfraError, LogTail, ResultError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import Load, Point
from pytest_gpubench.results.text import read_tail
from pytest_gpubench.serving.server import Server
from pytest_gpubench.world import Clock

__all__ = ["Measured", "measure"]

RESULT_SECONDS = 30.0
"""How long a result file may take to appear after the client ended: NFS shows new files late."""
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Measured:
    """What a point's client runs gave; the tuples are parallel, one entry per repetition."""

    raws: tuple[RawResult, ...]
    seeds: tuple[int, ...]
    hit_rates: tuple[float | None, ...]
    exit_code: int


def measure(server: Server, point: Point, folder: Path, clock: Clock, *, attempt: int = 1) -> Measured:
    """Run the point's client; raises InfraError. ``folder`` gets ``bench.json``, ``bench-run-<n>.json``."""
    load = point.load
    if load is None:
        raise ValueError(f"{point.id} has no load")
    _clear(folder)
    raws: list[RawResult] = []
    seeds: list[int] = []
    rates: list[float | None] = []
    code = 0
    for repetition in range(load.repetitions):
        name = "bench.json" if load.repetitions == 1 else f"bench-run-{repetition + 1}.json"
        seed = _seed(point, load, repetition, attempt)
        _warm_up(server, point, load, folder, repetition, attempt)
        for api in server.apis:
            server.probe.reset_prefix_cache(api.url)
        before = _counters(server)
        began = clock.time()
        code = _run(server, point, load, folder, name, seed)
        raw = _collect(server, point, folder / name, _log(server), began, code, clock)
        if raw.failed or not raw.completed:
            server.settle()
        raws.append(raw)
        seeds.append(seed)
        rates.append(hit_rate(before, _counters(server)))
    if load.repetitions > 1:
        middle = sorted(range(len(raws)), key=lambda index: raws[index].total_throughput or 0.0)
        chosen = middle[len(middle) // 2]
        shutil.copyfile(folder / f"bench-run-{chosen + 1}.json", folder / "bench.json")
    return Measured(tuple(raws), tuple(seeds), tuple(rates), code)


def _seed(point: Point, load: Load, repetition: int, attempt: int) -> int:
    if load.seed is not None:
        return load.seed + repetition  # the same prompts again would hit the prefix cache
    # The attempt counts from 1 in rows; the first one keeps the seed that the plan shows.
    return measure_seed(point.id, point.deployment.recipe, repetition, attempt - 1)


def _clear(folder: Path) -> None:
    """A result left by an earlier run must not be taken for this one's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("bench*.json"):
            old.unlink()
    except OSError as err:
        raise InfraError(Reason.RESULTS_UNWRITABLE, f"{folder}: {err.strerror or err}", Phase.BENCH) from err


def _warm_up(server: Server, point: Point, load: Load, folder: Path, repetition: int, attempt: int) -> None:
    if warmup_prompts(point.deployment, load) <= 0:
        return
    seed = warmup_seed(point.id, point.deployment.recipe, repetition, attempt - 1)
    run = ClientRun(
        server.backend.client_path(str(folder)), "bench-warmup.json", seed, server.url, warmup=True
    )
    argv = bench_argv(point.deployment, load, run)
    server.run_client(argv, _log(server), f"{point.id} warm-up", point.deployment.deadlines.bench)
    (folder / "bench-warmup.json").unlink(missing_ok=True)


def _run(server: Server, point: Point, load: Load, folder: Path, name: str, seed: int) -> int:
    run = ClientRun(server.backend.client_path(str(folder)), name, seed, server.url)
    argv = bench_argv(point.deployment, load, run)
    return server.run_client(argv, _log(server), point.id, point.deployment.deadlines.bench)


def _log(server: Server) -> str:
    """The client's log lies with the deployment's logs."""
    return str(server.backend.log_folder / "client.log")


def _client_tail(log: str) -> list[LogTail]:
    text = read_tail(Path(log))
    return [LogTail("client", log, text)] if text else []


def _collect(
    server: Server, point: Point, path: Path, log: str, began: float, code: int, clock: Clock
) -> RawResult:
    """Wait, bounded, for the file; what it says is judged later, the client's exit code is no evidence."""
    deadline = clock.monotonic() + RESULT_SECONDS
    while not path.exists():
        if clock.monotonic() > deadline or (
            code != 0 and clock.monotonic() > deadline - RESULT_SECONDS + 3.0
        ):
            reason = Reason.NO_RESULT if code == 0 else Reason.CLIENT_FAILED
            _need_space(path.parent, f"no result file {path.name}, after exit code {code} of the client")
            raise ClientError(
                reason,
                f"the client ended with exit code {code} and left no result file {path}",
                Phase.BENCH,
                tails=[*_client_tail(log), *server.backend.tails()],
            )
        server.check()
        clock.sleep(0.2)
    try:
        # Clocks of node and login node differ: the file was deleted before, so a minute of grace is enough.
        return read_result(point.deployment.client, path, written_after=began - 60.0)
    except ResultError as err:
        _need_space(path.parent, f"{err}, after exit code {code} of the client")
        raise


def _need_space(folder: Path, what: str) -> None:
    """Raise when nothing can be written into the folder: that is why a result is cut or missing."""
    probe = folder / f".space-{os.getpid()}"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as err:
        text = f"{folder} cannot be written ({err.strerror or err}): {what}"
        raise InfraError(Reason.RESULTS_UNWRITABLE, text, Phase.BENCH) from err
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _counters(server: Server) -> CacheCounters | None:
    """Counters of every API together; an engine's labels are kept apart by its API."""
    hits: dict[str, float] = {}
    queries: dict[str, float] = {}
    for api in server.apis:
        if api.label == "router":
            continue
        text = server.probe.metrics(api.url)
        counters = read_counters(text) if text is not None else None
        if counters is None:
            return None
        hits.update({f"{api.url} {engine}": value for engine, value in counters.hits.items()})
        queries.update({f"{api.url} {engine}": value for engine, value in counters.queries.items()})
    return CacheCounters(hits, queries)
