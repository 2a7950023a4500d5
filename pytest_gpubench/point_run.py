"""One point from setup to row: what the fixtures and the suite call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError, InfraError
from pytest_gpubench.gates import Verdict
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Gates, Point
from pytest_gpubench.results.outcome import Failure, Outcome
from pytest_gpubench.results.row import judge_point, with_verdict
from pytest_gpubench.serving.server import Server

if TYPE_CHECKING:
    from pytest_gpubench.results.compare import Baseline, Rule
    from pytest_gpubench.serving.measure import Measured
    from pytest_gpubench.session import Session

__all__ = ["RUN", "PointRun"]

PROPERTIES = (
    "status", "reason", "workload", "point", "model", "image", "device", "conc", "isl", "osl", "gpu_count",
    "tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu", "median_ttft", "p99_ttft", "median_tpot",
    "p99_tpot", "failure_rate", "completed", "failed", "duration", "job_id", "attempt", "simulated", "run_id",
)  # fmt: skip
"""Row fields that JUnit gets as properties, ``gpubench_`` before their name."""

LAST_LINES = 15


RUN = pytest.StashKey["PointRun"]()
"""The run of an item that is a point."""


class PointRun:
    """Drives one point. The row is written whatever happens, also when the run is interrupted."""

    def __init__(self, session: Session, item: pytest.Item, point: Point) -> None:
        self.session = session
        self.item = item
        self.point = point
        self.outcome = Outcome(simulated=session.simulated)
        self.row: dict[str, JSON] | None = None
        self._open = False  # asked for a server, and not judged yet
        self._judged = False
        item.stash[RUN] = self
        self._unwritten: InfraError | None = None

    # -- setup ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Write the plan; skip what is not to be run."""
        from pytest_gpubench.point_plan import write_plan

        point = self.point
        options = self.session.options
        if options.resume and not options.dry_run and self.session.has_valid_row(point):
            pytest.skip(
                "already measured: a valid row for this recipe, point and image is in the results folder"
            )
        try:
            text = write_plan(self.session, point)
        except InfraError as err:
            self._fail(err)
        if options.dry_run:
            self.session.narrator.line(text)
            pytest.skip("dry run")
        if point.rejected is not None:
            pytest.skip(f"rejected: {point.rejected}")
        if not point.deployment.servable:
            pytest.skip(
                point.deployment.unservable_reason or f"{point.deployment.framework} cannot be served here"
            )

    def acquire(self) -> Server:
        """The running server; an ERROR with its reason when there is none."""
        self._open = True
        try:
            server = self.session.pool.acquire(self.point.deployment)
        except InfraError as err:
            self._fail(err)
        self._note_server(server)
        return server

    # -- call ----------------------------------------------------------------------------------

    def measure(self, server: Server) -> Outcome:
        """Run the client once per repetition and keep what it gave."""
        from pytest_gpubench.serving.measure import measure

        def once(server: Server, attempt: int) -> None:
            self._keep(measure(server, self.point, self._folder, self.session.clock, attempt=attempt))

        return self._attempts(server, once)

    def evaluate(self, server: Server) -> Outcome:
        """Run the accuracy task and keep its scores."""
        from pytest_gpubench.serving.evaluate import NotHere, evaluate

        def once(server: Server, attempt: int) -> None:
            try:
                found = evaluate(server, self.point, self._folder)
            except NotHere as err:
                pytest.skip(str(err))
            self.outcome = replace(
                self.outcome,
                accuracy=found.scores,
                accuracy_source=found.source,
                accuracy_data=found.data,
                accuracy_samples=found.samples,
                client_exit_code=found.exit_code,
            )

        return self._attempts(server, once)

    def search(self, server: Server) -> Outcome:
        """Search the highest load within the ceilings; the figures of the best one become the row's."""
        from pytest_gpubench.slo_run import run_search

        def once(server: Server, attempt: int) -> None:
            probes, best = run_search(self.session, server, self.point, attempt)
            self.outcome = replace(self.outcome, slo_probes=probes)
            if best is not None:
                self._keep(best)

        return self._attempts(server, once)

    def _attempts(self, server: Server, once: Callable[[Server, int], None]) -> Outcome:
        """Call ``once``; a failure of the infrastructure is repeated as often as the options allow."""
        attempts = 1 + self.session.options.retry_infra
        clock = self.session.clock
        self._replan(server)
        self.session.ahead.prefetch(self.point, self.session.pool, self.session.options.prefetch)
        for attempt in range(1, attempts + 1):
            self.outcome = replace(self.outcome, started=clock.time(), attempt=attempt)
            try:
                once(server, attempt)
            except InfraError as err:
                self._note_server(server)
                if attempt < attempts and err.reason.infrastructure:
                    server = self._again(err)
                    continue
                self._fail(err)
            except GpubenchError as err:
                failure = Failure(Reason.UNREADABLE_RESULT, str(err))
                self.outcome = replace(self.outcome, failure=failure)
            break
        self._note_server(server)
        self.outcome = replace(self.outcome, ended=clock.time())
        if self.outcome.started is not None:
            self.session.ahead.took(self.point, clock.time() - self.outcome.started)
        return self.outcome

    def _keep(self, measured: Measured) -> None:
        self.outcome = replace(
            self.outcome,
            raws=measured.raws,
            seeds=measured.seeds,
            prefix_cache_hit_rates=measured.hit_rates,
            client_exit_code=measured.exit_code,
        )

    @property
    def _folder(self) -> Path:
        return self.session.point_folder(self.point)

    def judge(self, gates: Gates) -> None:
        """Build the row, write it, and fail the test if a gate is missed."""
        row, verdict = self._write_row(replace(self.point, gates=gates))
        self._narrate(row)
        running = self.session.pool.running(self.point.deployment)
        if running is not None and verdict.status != "passed":
            running.suspect = True
        if self._unwritten is not None and (verdict.status == "passed" or verdict.expected):
            raise pytest.fail.Exception(str(self._unwritten), pytrace=False)
        if verdict.status == "passed":
            return
        if verdict.expected:
            pytest.xfail(verdict.message)
        self._sections()
        pytest.fail(verdict.message, pytrace=False)

    def interrupted(self, error: KeyboardInterrupt) -> None:
        """Write the row of a point that was under way; nothing before it began or after it was judged."""
        if not self._open:
            return
        failure = Failure(Reason.INTERRUPTED, f"interrupted ({error})" if str(error) else "interrupted")
        server = self.session.pool.latest(self.point.deployment)
        if server is not None:
            self._note_server(server)
        self.outcome = replace(self.outcome, failure=failure, ended=self.session.clock.time(), raws=())
        with self.session.interrupts.shield():
            self._write_row(self.point)

    def crashed(self, text: str) -> None:
        """Write the row of a point that an unexpected exception ended, unless it was judged before."""
        if self._judged or self.session.options.dry_run:
            return
        failure = Failure(Reason.HARNESS_ERROR, text)
        server = self.session.pool.latest(self.point.deployment)
        if server is not None and self._open:
            self._note_server(server)
        self.outcome = replace(self.outcome, failure=failure, ended=self.session.clock.time(), raws=())
        row, _ = self._write_row(self.point)
        self._narrate(row)

    # -- parts ---------------------------------------------------------------------------------

    def _again(self, error: InfraError) -> Server:
        """Keep the failed attempt's row; then the running server if it is healthy, else a new one."""
        detail = f"{self.point.id}: {error.message}"
        self.session.narrator.say(self.point.deployment, "repeat", detail)
        ended = self.session.clock.time()
        self.outcome = replace(self.outcome, failure=Failure.of(error), ended=ended, raws=())
        self._write_row(self.point, final=False)
        self.outcome = Outcome(simulated=self.outcome.simulated, attempt=self.outcome.attempt + 1)
        try:
            server = self.session.pool.acquire(self.point.deployment)
        except InfraError as err:
            self._fail(err)
        self._replan(server)
        return server

    def _replan(self, server: Server) -> None:
        from pytest_gpubench.point_plan import write_plan

        try:
            write_plan(self.session, self.point, values=server.values)
        except InfraError as err:
            self._fail(err)

    def _note_server(self, server: Server) -> None:
        self.outcome = replace(
            self.outcome,
            phase_seconds=dict(server.timings.seconds),
            job_id=server.backend.job_id,
            nodes=server.nodes,
            vllm_version=server.version,
            slurm_version=server.hardware.slurm_version,
            gpu_names=server.hardware.gpu_names,
            driver_version=server.hardware.driver_version,
        )

    def _fail(self, error: InfraError) -> NoReturn:
        """Infrastructure: the row says so, the report carries the logs, no traceback."""
        failure = Failure.of(error)
        running = self.session.pool.latest(self.point.deployment)
        if running is not None:
            self._note_server(running)
        self.outcome = replace(self.outcome, failure=failure, ended=self.session.clock.time(), raws=())
        row, _ = self._write_row(self.point)
        self._narrate(row)
        self._sections()
        # Without a context: the error that led here is told in full by this one.
        raise pytest.fail.Exception(told(error), pytrace=False) from None

    def _write_row(self, point: Point, *, final: bool = True) -> tuple[dict[str, JSON], Verdict]:
        row, verdict = judge_point(point, self.outcome, self.session.run_info(point))
        if self.session.comparison is not None:
            row, verdict = compared(row, verdict, *self.session.comparison)
        self.row = dict(row)
        try:
            self.session.store.write_row(row)
        except InfraError as err:
            # The row goes on with the report, and the summary names the file; it is not in the results.
            self._unwritten = err
            self.session.warnings.append(str(err))
        if final:
            self._open, self._judged = False, True
            self.session.spool(row)
            self.item.user_properties.extend(
                (f"gpubench_{name}", value) for name in PROPERTIES if (value := row.get(name)) is not None
            )
        return row, verdict

    def _narrate(self, row: Mapping[str, JSON]) -> None:
        tput = row.get("tput_per_gpu")
        figure = f"{tput:.1f} tok/s/GPU" if isinstance(tput, float) else ""
        cause = str(row.get("reason") or "")
        detail = ", ".join(part for part in (figure, cause) if part)
        self.session.narrator.point(self.point.deployment, self.point.id, str(row["status"]), detail)

    def _sections(self) -> None:
        failure = self.outcome.failure
        if failure is None:
            return
        for tail in failure.tails:
            self.item.add_report_section("call", f"log: {tail.title} ({tail.path})", tail.text)


def told(error: InfraError) -> str:
    """The error and the last words of the log it blames: JUnit shows these and not the sections."""
    if not error.tails:
        return str(error)
    tail = error.tails[0]
    return "\n".join(
        [str(error), f"last lines of {tail.title} ({tail.path}):", *tail.text.splitlines()[-LAST_LINES:]]
    )


def compared(
    row: dict[str, JSON], verdict: Verdict, baseline: Baseline, rules: Sequence[Rule]
) -> tuple[dict[str, JSON], Verdict]:
    """Row and verdict with the comparison in them: a regression fails the test itself, not the summary."""
    from pytest_gpubench.results.compare import compare

    found = compare(row, baseline, rules)
    verdict = found.apply(verdict)
    return with_verdict(row, verdict, found.as_json()), verdict
