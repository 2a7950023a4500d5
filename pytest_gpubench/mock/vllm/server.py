"""``vllm serve``: the life of one rank, with log lines like vLLM's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from .. import hostlist, phases, procs
from ..faults import FaultBox, ForeignServer, LoadHangs, LogNoise, PortTaken, ServerExits
from ..slurm.store import Store
from .api import Api
from .engine import Engine
from .http import serve
from .rendezvous import Meeting, join, resolve
from .serve_args import ArgumentError, ServeArgs, parse
from .settings import Sim, load

__all__ = ["main"]

_FOREIGN = "GPUBENCH_MOCK_FOREIGN"
_NOISE = b"\x1b[31mERROR\x1b[0m \x00\x07 bad byte \xff\n" + b"".join(
    b"Loading safetensors checkpoint shards: %3d%%\r" % number for number in range(100)
)


def main(folder: Path, argv: list[str]) -> int:
    """Serve until told to stop; the exit status of the process."""
    try:
        args = parse(argv)
    except ArgumentError as err:
        if err.status == 2:
            sys.stderr.write("usage: vllm serve [model_tag] [options]\n")
        sys.stderr.write(f"{err}\n")
        return err.status
    if os.environ.get(_FOREIGN):
        Store(folder).registry.add("foreign server")
    return asyncio.run(Rank(folder, args).run())


class _Exit(Exception):
    """The process ends with a status."""


class Rank:
    """One process of ``vllm serve``."""

    def __init__(self, folder: Path, args: ServeArgs) -> None:
        self.folder, self.args = folder, args
        self.faults = FaultBox(folder)
        self.job, self.job_name = phases.current_job(folder)
        self.position = _position(args)
        self.sim: Sim = load(folder, args.model, self.position)
        self.stop = asyncio.Event()
        self.ready = False
        self.api: Api | None = None
        self.engine: Engine | None = None
        self.meeting: Meeting | None = None
        self.child = 0

    async def run(self) -> int:
        """From start to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        phases.mark(self.folder, self.job, "loading")
        work = asyncio.create_task(self._follower() if self.args.headless else self._head())
        guard = asyncio.create_task(self._guard())
        stopped = asyncio.create_task(self.stop.wait())
        await asyncio.wait({work, guard, stopped}, return_when=asyncio.FIRST_COMPLETED)
        code = 0
        for task in (guard, work):
            if task.done() and task.exception() is not None:
                error = task.exception()
                code = int(error.args[0]) if isinstance(error, _Exit) else 1
                if not isinstance(error, _Exit):
                    self._log("ERROR", f"{type(error).__name__}: {error}")
                break
        else:
            self._log("INFO", "[launcher.py:110] Shutting down FastAPI HTTP server.")
            await asyncio.sleep(self.sim.shutdown_seconds)
        work.cancel()
        guard.cancel()
        stopped.cancel()
        if code < 0:
            os.kill(os.getpid(), -code)
            time.sleep(1)
        if self.child:
            procs.send([self.child], signal.SIGKILL)
        return code

    def _log(self, level: str, text: str) -> None:
        who = "EngineCore" if self.args.headless or not text.startswith("[launcher") else "APIServer"
        stamp = time.strftime("%m-%d %H:%M:%S")
        sys.stdout.write(f"({who} pid={os.getpid()}) {level} {stamp} {text}\n")
        sys.stdout.flush()

    def _fail(self, text: str, code: int = 1) -> _Exit:
        self._log("ERROR", text)
        return _Exit(code)

    # -- both kinds ------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await asyncio.sleep(self.sim.import_seconds)
        model, version = self.args.model, self.sim.version
        self._log("INFO", f"[utils.py:253] non-default args: {self.args.given | {'model_tag': model}}")
        self._log("INFO", f"[core.py:93] Initializing a V1 LLM engine (v{version}) with config: {model=!r}")
        if self.sim.engine_process:
            self.child = _engine_process()
        if self.faults.find(LogNoise, self.job_name) is not None:
            os.write(1, _NOISE)
        if self.sim.extra_log:
            self._log("INFO", self.sim.extra_log)

    async def _load(self) -> None:
        self._log("INFO", f"[gpu_model_runner.py:2602] Starting to load model {self.args.model}...")
        await asyncio.sleep(self.sim.load_seconds / 2)
        self._log("INFO", "Loading safetensors checkpoint shards:  50% Completed | 1/2")
        if self.faults.find(LoadHangs, self.job_name, rank=self.position) is not None:
            await asyncio.sleep(86_400)
        await asyncio.sleep(self.sim.load_seconds / 2)
        self._log("INFO", "Loading safetensors checkpoint shards: 100% Completed | 2/2")
        took = f"{self.sim.load_seconds:.6f}"
        self._log("INFO", f"[gpu_model_runner.py:2653] Model loading took 1.0000 GiB and {took} seconds")

    async def _guard(self) -> None:
        """End the process when a fault says so."""
        while True:
            fault = self.faults.find(ServerExits, self.job_name, rank=self.position)
            if fault is not None and self._due(fault):
                for line in fault.text.splitlines():
                    self._log("ERROR", line)
                raise _Exit(fault.code)
            await asyncio.sleep(0.05)

    def _due(self, fault: ServerExits) -> bool:
        if fault.after_requests is not None:
            return self._answered() >= fault.after_requests
        began = phases.since(self.folder, self.job, fault.phase)
        return began is not None and time.time() >= began + fault.seconds

    def _answered(self) -> int:
        """Requests that the head answered."""
        if self.api is not None:
            return self.api.answered
        try:
            return int((self.folder / "spool" / str(self.job) / "answered").read_text() or 0)
        except (OSError, ValueError):
            return 0

    def _nodes(self) -> list[str]:
        return Store(self.folder).node_names() + hostlist.expand(os.environ.get("SLURM_JOB_NODELIST", ""))

    def _master(self) -> tuple[str, int]:
        host = self.args.text("master-addr", "127.0.0.1")
        try:
            return resolve(host, self._nodes()), self.args.number("master-port", 29501)
        except OSError as err:
            raise self._fail(f"torch.distributed.DistNetworkError: {host}: {err.strerror}") from None

    # -- the follower ----------------------------------------------------------------------------------------

    async def _follower(self) -> None:
        await self._start()
        address, port = self._master()
        self._log("INFO", f"[parallel_state.py:1208] rank {self.args.rank} joins {address}:{port}")
        if self.args.nnodes > 1:
            try:
                reader, writer = await join(address, port, self.args.rank, self.sim.rendezvous_seconds)
            except TimeoutError as err:
                raise self._fail(f"torch.distributed.DistNetworkError: {err}") from None
        await self._load()
        if self.args.nnodes > 1:
            writer.write(b"ready\n")
            while await reader.read(64):
                pass
            # vllm#32136: a follower outlives its head.
            self._log(
                "WARNING",
                "[shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
            )
        await self.stop.wait()

    # -- the head --------------------------------------------------------------------------------------------

    async def _head(self) -> None:
        self._log("INFO", f"[launcher.py:54] vLLM API server version {self.sim.version}")
        host, port = self.args.text("host", "0.0.0.0"), self.args.number("port", 8000)
        if self.faults.find(ForeignServer, self.job_name) is not None and not os.environ.get(_FOREIGN):
            await self._let_foreign_server_in(port)
        sock = self._bind(host, port)
        await self._start()
        self.meeting = Meeting(self.args.nnodes - 1)
        if self.args.nnodes > 1:
            address, master_port = self._master()
            try:
                await self.meeting.listen(address, master_port, self._follower_died)
            except OSError as err:
                name = "EADDRINUSE, message: address already in use" if err.errno == 98 else str(err)
                text = "The server socket has failed to listen on any local network address."
                where = f"port: {master_port}, name: {name}"
                raise self._fail(f"torch.distributed.DistNetworkError: {text} {where}") from None
        try:
            await asyncio.wait_for(self.meeting.complete.wait(), self.sim.rendezvous_seconds)
        except asyncio.TimeoutError:
            missing = sorted(self.meeting.expected - self.meeting.joined)
            raise self._fail(f"RuntimeError: ranks {missing} did not join") from None
        await self._load()
        await asyncio.sleep(self.sim.capture_seconds)
        self._log(
            "INFO", "[core.py:218] init engine (profile, create kv cache, warmup model) took 0.05 seconds"
        )
        caching = "no-enable-prefix-caching" not in self.args.given
        self.engine = Engine(
            self.sim, self.args.engines, caching, self.args.number("max-num-seqs", 256), self.args.served[0]
        )
        job = (self.job, self.job_name)
        self.api = Api(self.args, self.sim, self.engine, self.faults, job, lambda: self.ready)
        server = await serve(sock, self.api)
        self.ready = True
        if self.meeting.lost:
            self._follower_died()
        phases.mark(self.folder, self.job, "ready")
        self._log("INFO", f"[launcher.py:60] Starting vLLM API server 0 on http://{host}:{port}")
        sys.stdout.write("INFO:     Application startup complete.\n")
        sys.stdout.flush()
        async with server:
            await server.serve_forever()

    def _bind(self, host: str, port: int) -> socket.socket:
        """Take the port at once, as vLLM does, so that nobody else can."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if self.faults.find(PortTaken, self.job_name) is not None:
                raise OSError(98, "Address already in use")
            sock.bind((resolve(host, self._nodes()), port))
        except OSError as err:
            raise self._fail(f"OSError: [Errno {err.errno}] {err.strerror}: ('{host}', {port})") from None
        return sock

    async def _let_foreign_server_in(self, port: int) -> None:
        """Start somebody else's server, which belongs to no job, and wait until it answers."""
        fault = self.faults.find(ForeignServer, self.job_name)
        assert fault is not None
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLURM") and name != procs.MARK
        }
        # No job ends it, as on a shared node; the cluster does when it is closed.
        kept[procs.MARK] = f"{os.environ['GPUBENCH_MOCK']}:foreign:"
        launch = Path(__file__).parents[1] / "launch.py"
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(launch), "vllm", "serve", fault.model, "--port", str(port)],
            env={**kept, _FOREIGN: "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return

    def _follower_died(self) -> None:
        kind = self.sim.follower_death
        if kind == "exit":
            self._log(
                "ERROR", "[multiproc_executor.py:231] Worker proc died unexpectedly, shutting down executor."
            )
            self.stop.set()
        elif kind == "health":
            self.ready = False
        elif kind == "hang" and self.engine is not None:
            self.engine.stopped = True


def _position(args: ServeArgs) -> int:
    """The rank that settings and faults speak of: ``--node-rank``, else the position of the node in the
    job."""
    if "node-rank" in args.given:
        return args.rank
    nodes = hostlist.expand(os.environ.get("SLURM_JOB_NODELIST", ""))
    node = os.environ.get("SLURMD_NODENAME", "")
    return nodes.index(node) if node in nodes else 0


def _engine_process() -> int:
    """A child that does nothing, and outlives a parent that is killed."""
    child = os.fork()
    if child:
        return child
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.closerange(3, 1024)  # above all the port, and the connection to the other ranks
    while True:
        signal.pause()
