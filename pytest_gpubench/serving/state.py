"""The state folder: what the rank script notes and the controlling process reads. One file per fact."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pytest_gpubench.errors import InfraError, LogTail
from pytest_gpubench.plan.launch import LaunchPlan
from pytest_gpubench.plan.ranks import ROUTER_PORT, head_variable, port_variable
from pytest_gpubench.plan.script import IMAGE_FILE
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.results.text import read_tail
from pytest_gpubench.serving.backend import Api

__all__ = ["StateFolder"]


class StateFolder:
    """Reads and prepares ``<deployment>/state/<job name>``; every read is of files that are complete or
    absent.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.folder = Path(plan.site.folder)
        self.path = Path(plan.state)

    @property
    def heartbeat(self) -> Path:
        """The file that must keep changing."""
        return self.path / "heartbeat"

    @property
    def script(self) -> Path:
        """The script that starts the ranks."""
        return self.folder / self.plan.script_name

    def prepare(self, attempt: int) -> None:
        """An empty state folder and the script; logs of an earlier start of this run are kept aside."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            old = [*self.folder.glob("*.log"), *self.folder.glob("*.sbatch"), *self.folder.glob("ranks.sh")]
            if attempt > 1 and old:
                aside = self.folder / f"start-{attempt - 1}"
                aside.mkdir(exist_ok=True)
                for path in old:
                    path.replace(aside / path.name)
            for path in old:
                path.unlink(missing_ok=True)
            # Earlier starts' notes go; a job that still watches its heartbeat there ends itself.
            shutil.rmtree(self.path.parent, ignore_errors=True)
            self.path.mkdir(parents=True)
            self.script.write_text(self.plan.script, encoding="utf-8")
        except OSError as err:
            text = f"{err.filename or self.folder}: {err.strerror or err}"
            raise InfraError(Reason.RESULTS_UNWRITABLE, text, Phase.QUEUE) from err

    def unwritable(self) -> str:
        """Why nothing can be written here; empty when it can."""
        probe = self.path / f"probe.{os.getpid()}"
        try:
            probe.write_bytes(b"?")
        except OSError as err:
            return err.strerror or str(err)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)
        return ""

    def read(self, name: str) -> str:
        """The text of one note, empty while it is absent."""
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    @property
    def ended(self) -> str:
        """Why the script ended, in its own words."""
        return self.read("ended")

    def gpus(self) -> tuple[tuple[str, ...], str | None]:
        """Names of the head node's GPUs and the driver's version, where nvidia-smi is there to ask."""
        lines = [line.rsplit(",", 1) for line in self.read("gpus").splitlines() if "," in line]
        names = tuple(name.strip() for name, _ in lines)
        return names, lines[0][1].strip() if lines else None

    def started(self) -> frozenset[str]:
        """Ranks whose process is up."""
        return frozenset(self._names(".started"))

    def exits(self) -> dict[str, int]:
        """Rank -> exit code, of the ranks that ended."""
        exits: dict[str, int] = {}
        for name in sorted(self._names(".exit")):
            with contextlib.suppress(ValueError):
                exits[name] = int(self.read(f"{name}.exit"))
        return exits

    def values(self) -> dict[str, str]:
        """The run-time values: addresses, ports, nodes."""
        pairs = (line.partition("=") for line in self.read("endpoint").splitlines())
        return {name: value for name, equals, value in pairs if equals}

    def nodes(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Host names in rank order; empty before the script has noted them."""
        names = [values.get(f"GPUBENCH_NODE_{index}", "") for index in range(self.plan.num_nodes)]
        return tuple(names) if all(names) else ()

    def apis(self, values: Mapping[str, str]) -> tuple[Api, ...]:
        """The head of every worker, then the router once it was asked for."""
        apis = []
        for worker in self.plan.workers:
            host = values.get(head_variable(worker.index))
            port = values.get(port_variable("API", worker.index), "")
            if host and port.isdigit():
                node = values.get(f"GPUBENCH_NODE_{worker.first_node}", "")
                apis.append(Api(worker.label, host, int(port), node))
        port = values.get(ROUTER_PORT, "")
        if apis and self.plan.router is not None and port.isdigit() and self.router_wanted:
            apis.append(Api("router", apis[0].host, int(port), apis[0].node))
        return tuple(apis)

    def age(self) -> float:
        """Seconds from the script's first note to now, both as the file system's clock has them."""
        try:
            return max(0.0, self.heartbeat.stat().st_mtime - (self.path / "endpoint").stat().st_mtime)
        except OSError:
            return 0.0

    def hand_over(self, script: Path) -> None:
        """Tell the running script to stop its ranks and to become ``script``."""
        part = self.path / "handover.part"
        try:
            part.write_text(f"{script}\n", encoding="utf-8")
            part.replace(self.path / "handover")
        except OSError as err:
            text = f"{err.filename or self.path}: {err.strerror or err}"
            raise InfraError(Reason.RESULTS_UNWRITABLE, text, Phase.QUEUE) from err

    @property
    def router_wanted(self) -> bool:
        """Whether the script was told that the router's backends are ready."""
        return (self.path / "backends-ready").exists()

    def start_router(self) -> None:
        """Tell the script that the backends are ready."""
        with contextlib.suppress(OSError):
            (self.path / "backends-ready").touch()

    def rank_nodes(self, values: Mapping[str, str]) -> dict[str, str]:
        """Rank (and the router) -> host name."""
        processes = [*self.plan.ranks, *([self.plan.router] if self.plan.router is not None else [])]
        return {one.name: values.get(f"GPUBENCH_NODE_{one.node}", "") for one in processes}

    def rank_tails(self) -> dict[str, str]:
        """Rank -> the end of its log; the log of the image's import beside them."""
        return {name: read_tail(self.folder / f"{name}.log") for name in [*self._log_names(), "image"]}

    def drop_image(self) -> None:
        """Remove the imported image, should the script have been killed before it could."""
        for path in self.path.glob(f"{IMAGE_FILE}*"):
            path.unlink(missing_ok=True)

    def tails(self, values: Mapping[str, str], extra: tuple[str, ...] = ()) -> list[LogTail]:
        """Log ends for a report: the dead first, then the others, then ``extra`` files of the folder."""
        exits = self.exits()
        names = self._log_names()
        nodes = self.rank_nodes(values)
        found = []
        for name in sorted(names, key=lambda name: (name not in exits, names.index(name))):
            path = self.folder / f"{name}.log"
            if text := read_tail(path):
                where = f" on {nodes[name]}" if nodes.get(name) else ""
                found.append(LogTail(f"{name}{where}", str(path), text))
        for name in extra:
            if text := read_tail(self.folder / name):
                found.append(LogTail(name, str(self.folder / name), text))
        return found

    def _log_names(self) -> list[str]:
        names = [rank.name for rank in self.plan.ranks]
        return [*names, "router"] if self.plan.router is not None else names

    def _names(self, suffix: str) -> list[str]:
        try:
            return [name[: -len(suffix)] for name in os.listdir(self.path) if name.endswith(suffix)]
        except OSError:
            return []
