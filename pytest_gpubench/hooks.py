"""The hooks of a run in which recipes are selected; each one only calls what does the work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_gpubench import __version__
from pytest_gpubench.collect import MasterFile, RecipeFile, Source, kind_of
from pytest_gpubench.errors import RecipeError
from pytest_gpubench.mock import MockCluster
from pytest_gpubench.options import rootdir_moved
from pytest_gpubench.point_run import RUN
from pytest_gpubench.progress import ProgressFiles, ProgressPrinter, append_events
from pytest_gpubench.recipe.types import Deployment, Point
from pytest_gpubench.recipe_warnings import record_warnings
from pytest_gpubench.results.text import mask
from pytest_gpubench.session import Session
from pytest_gpubench.summary import close_run, write_summary

__all__ = ["ActiveHooks"]

NO_SLURM = (
    "no `sbatch` on PATH, which {recipes} needs. Start pytest on a Slurm login node, or use --mock-slurm "
    "to run on the mocked Slurm with a simulated vLLM"
)


_UNINTERRUPTED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
MOVED_ROOT = (
    "gpubench: rootdir is {root}, so this folder's configuration was not read: pytest looks for it before it "
    "knows our options and takes a value for a path. Write --option=VALUE, or name --rootdir"
)


class ActiveHooks:
    """Registered by ``activation.activate``; one per process."""

    def __init__(
        self, config: pytest.Config, session: Session, sources: list[Source], cluster: MockCluster | None
    ) -> None:
        self.config = config
        self.session = session
        self.sources = sources
        self.cluster = cluster
        self.is_worker = hasattr(config, "workerinput")
        self.printer: ProgressPrinter | None = None
        self.progress_files: ProgressFiles | None = None

    # -- collection ----------------------------------------------------------------------------

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A selected recipe becomes a collector; every other file is somebody else's."""
        sources = [source for source in self.sources if source.path == file_path]
        if not sources:
            return None
        if sources[0].key is None:
            return self._recipe_file(parent, sources[0])
        master: MasterFile = MasterFile.from_parent(parent, path=file_path)
        master.make_recipe = self._recipe_file
        master.sources = sources
        return master

    def _recipe_file(self, parent: pytest.Collector, source: Source) -> RecipeFile:
        options = self.session.options
        catalog = self.session.catalog
        return RecipeFile.make(parent, source, catalog, options.suite, skip_rejected=options.skip_rejected)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One parameter per point."""
        file = metafunc.definition.getparent(RecipeFile)
        kind = kind_of(metafunc.function.__name__)
        if file is None or kind is None or "gpubench_point" not in metafunc.fixturenames:
            return
        parameters = file.parameters(kind)
        ids = [value.id if isinstance(value, Point) else None for value in parameters]
        metafunc.parametrize("gpubench_point", parameters, ids=ids)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Points of one deployment side by side, accuracy after throughput; the order else kept."""
        order: dict[str, int] = {}
        kinds = {"serving": 0, "slo": 1, "accuracy": 2}

        def place(item: pytest.Item) -> tuple[int, int]:
            point = point_of(item)
            if point is None:
                return order.setdefault(item.nodeid, len(order)), 0
            return order.setdefault(_key(point.deployment), len(order)), kinds[point.kind]

        items.sort(key=place)
        for item in items:
            if (point := point_of(item)) is not None:
                # Where people look: the line of the recipe, not the suite's function that all points share.
                where = f"{point.deployment.recipe}: {item.name}"
                item.location = (item.nodeid.split("::", 1)[0], max(0, point.line - 1), where)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say at once that there is no Slurm, before anything waits for it; tell what is odd in recipes."""
        if not self.is_worker:
            record_warnings(self.config, self.session.catalog.loaded())
        if self.is_worker or self.config.option.collectonly:
            return
        points = [point for item in session.items if (point := point_of(item)) is not None]
        self.session.ahead.plan(points)
        if self.printer is not None and self.progress_files is None:
            self.printer.total = len(points)
        self._need_slurm(points)

    def pytest_sessionstart(self) -> None:
        """Under xdist the controller collects nothing: judge all selected recipes here."""
        parallel = bool(getattr(self.config.option, "numprocesses", None))
        if self.is_worker and not self.session.options.dry_run and not self.config.option.collectonly:
            self.session.workers.enter(self.session.identity.worker)
        self._show_progress(parallel)
        if self.is_worker or not parallel or self.config.option.collectonly:
            return
        self._need_slurm(list(self._all_points()))
        record_warnings(self.config, self.session.catalog.loaded())

    def _show_progress(self, parallel: bool) -> None:
        narrator = self.session.narrator
        narrator.stream_logs = self.session.options.stream_logs
        folder = self.session.options.results / ".gpubench" / "progress"
        if self.is_worker:
            narrator.send_to(append_events(folder / f"{self.session.identity.worker}.jsonl"))
            return
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self.config.option.verbose < 0:
            return
        self.printer = ProgressPrinter(_line_writer(self.config, reporter, self.session), self.session.env)
        narrator.send_to(self.printer)
        if parallel and not self.config.option.collectonly:
            self.printer.total = sum(point.rejected is None for point in self._all_points())
            self.progress_files = ProgressFiles(folder, self.printer)
            self.progress_files.start()

    def _need_slurm(self, points: list[Point]) -> None:
        options = self.session.options
        if options.mock or options.dry_run:
            return
        needing = [
            p for p in points if p.deployment.runtime == "slurm" and p.deployment.servable and not p.rejected
        ]
        if needing and shutil.which("sbatch", path=self.session.env.get("PATH")) is None:
            recipes = ", ".join(dict.fromkeys(point.deployment.recipe for point in needing))
            raise pytest.UsageError(NO_SLURM.format(recipes=recipes))

    def _all_points(self) -> Iterator[Point]:
        for source in self.sources:
            try:
                yield from self.session.catalog.points(source)
            except RecipeError:
                continue  # shown at collection

    # -- run -----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Take back first what a run that was killed left: its client would write into our results."""
        option, options = self.config.option, self.session.options
        if self.is_worker or option.collectonly or options.dry_run or options.mock:
            return  # a mocked Slurm of our own is new and has no earlier jobs
        if getattr(option, "setupplan", False) or (
            session.testsfailed and not option.continue_on_collection_errors
        ):
            return
        if any(point.deployment.runtime == "slurm" for point in self._all_points()):
            self.session.reap()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """An interrupted point has a row, wherever the signal found it."""
        try:
            return (yield)
        except KeyboardInterrupt as err:
            run = item.stash.get(RUN, None)
            if run is not None:
                run.interrupted(err)
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        """Release what the next item does not need; a release that fails is this item's error."""
        try:
            yield
        finally:
            point = point_of(item)
            if point is not None:
                self._release(point, nextitem)

    def _release(self, point: Point, nextitem: pytest.Item | None) -> None:
        following = point_of(nextitem) if nextitem is not None else None
        before = len(self.session.pool.unreleased)
        keep = [] if following is None else [following.deployment, *self.session.ahead.upcoming(point)]
        self.session.pool.release_others(keep, successor=following.deployment if following else None)
        leaked = self.session.pool.unreleased[before:]
        if leaked:
            pytest.fail(f"not confirmed as released: {', '.join(leaked)}; run `gpubench reap`", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A point that failed has a row whatever failed it, and nothing that it reports holds a secret."""
        point = point_of(item)
        if point is not None and call.when != "teardown" and _failed(call):
            self._note_failure(item, point, call.excinfo)
        report = yield
        if point is not None:
            mask_report(report, self.session.secrets)
        return report

    def _note_failure(
        self, item: pytest.Item, point: Point, error: pytest.ExceptionInfo[BaseException] | None
    ) -> None:
        if "gpubench_run" not in getattr(item, "fixturenames", ()) or error is None:
            return  # a suite that keeps no rows
        run = item.stash.get(RUN, None) or self.session.point_run(item, point)
        run.crashed(error.exconly(tryshort=True))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Give everything back, then put the results together. Signals cannot cut that short."""
        with self.session.interrupts.absorb():
            self._finish(session)
            if self.session.interrupts.received is not None and session.exitstatus in _UNINTERRUPTED:
                session.exitstatus = pytest.ExitCode.INTERRUPTED
        try:
            yield
        finally:
            if self.session.workers.present() and not self.is_worker:
                # xdist has ended those by now that did not end themselves.
                with self.session.interrupts.absorb():
                    self.session.reap()

    def _finish(self, session: pytest.Session) -> None:
        try:
            if not self.is_worker and self.session.workers.present():
                self.session.recall_workers()
                self.session.reap()
            self.session.close()
        finally:
            if self.progress_files is not None:
                self.progress_files.close()
            if self.printer is not None:
                self.printer.close()
            if self.is_worker:
                self.session.workers.leave(self.session.identity.worker)
            else:
                points = list(self._all_points()) if not self.config.option.collectonly else []
                if not close_run(self.session, points) and session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED  # who reads the file would miss it

    def pytest_unconfigure(self) -> None:
        """The mocked cluster ends with the run."""
        if self.cluster is not None:
            with self.session.interrupts.absorb():
                self.cluster.close()
                shutil.rmtree(self.cluster.folder, ignore_errors=True)
            self.cluster = None

    # -- report --------------------------------------------------------------------------------

    def pytest_report_header(self) -> list[str]:
        """Version, Slurm, run id, results folder; and where pytest took an option's value for a path."""
        options = self.session.options
        place = "dry run" if options.dry_run else "mocked Slurm, simulated vLLM" if options.mock else "Slurm"
        run_id = self.session.identity.run_id
        lines = [f"gpubench: {__version__}, {place}, run {run_id}, results in {options.results}"]
        if rootdir_moved(self.config):
            lines.append(MOVED_ROOT.format(root=self.config.rootpath))
        return lines

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table of points."""
        if not self.is_worker:
            write_summary(self.session, terminalreporter)

    # -- xdist ---------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker the run's identity and the way to the (mocked) Slurm."""
        identity = dataclasses.replace(self.session.identity, worker=node.gateway.id)
        node.workerinput["gpubench"] = json.dumps(dataclasses.asdict(identity))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker that crashed cannot give its nodes back: do it for it."""
        if error:
            self.session.workers.wait_dead(node.gateway.id, self.session.clock, timeout=10.0)
            self.session.reap()

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """The point that a worker died in gets its row here."""
        for point in self._all_points():
            if self._nodeid(point) == crashitem:
                self.session.note_crash(point, str(report.longrepr))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the points of a deployment together."""
        from pytest_gpubench.schedule import DeploymentScheduling

        points = list(self._all_points())
        scopes = {self._nodeid(point): _key(point.deployment) for point in points}
        return DeploymentScheduling(config, log, scopes, self.session.ahead.costs(points))

    def _nodeid(self, point: Point) -> str:
        recipe = self.session.catalog.named(point.deployment.recipe)
        source = next(s for s in self.sources if self.session.catalog.get(s) is recipe)
        try:
            file = source.path.relative_to(self.config.rootpath).as_posix()
        except ValueError:
            file = str(source.path)
        parts = [file, *([source.key] if source.key else []), f"test_{point.kind}[{point.id}]"]
        return "::".join(parts)


def _line_writer(
    config: pytest.Config, reporter: pytest.TerminalReporter, session: Session
) -> Callable[[str], None]:
    capture = config.pluginmanager.get_plugin("capturemanager")

    def write(line: str) -> None:
        # Lines come while a test runs, when standard output is captured.
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            reporter.ensure_newline()
            reporter.write_line(mask(line, session.secrets))
            reporter.flush()

    return write


def _failed(call: pytest.CallInfo[None]) -> bool:
    outcomes = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception)
    return call.excinfo is not None and not isinstance(call.excinfo.value, outcomes)


def mask_report(report: pytest.TestReport, secrets: Sequence[str]) -> None:
    """Hide secrets in all that a report shows: a traceback with locals may hold a whole environment."""
    if report.longrepr is not None and not isinstance(report.longrepr, tuple):
        text = str(report.longrepr)
        masked = mask(text, secrets)
        if masked != text:
            report.longrepr = masked
    report.sections = [(title, mask(text, secrets)) for title, text in report.sections]
    report.user_properties = [
        (name, mask(value, secrets) if isinstance(value, str) else value)
        for name, value in report.user_properties
    ]


def point_of(item: pytest.Item) -> Point | None:
    """The point of an item, None for other tests."""
    callspec = getattr(item, "callspec", None)
    point = callspec.params.get("gpubench_point") if callspec is not None else None
    return point if isinstance(point, Point) else None


def _key(deployment: Deployment) -> str:
    return f"{deployment.recipe}/{deployment.id}"
