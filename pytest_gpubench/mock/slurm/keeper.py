"""The keeper of a job: one detached process that plays slurmctld's and slurmd's part for it, from submission
to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection

from .. import faults as fault_kinds
from .. import phases, procs
from ..faults import FaultBox
from . import formats, schedule, script
from .model import Job
from .store import Store

__all__ = ["Keeper", "detach"]

_STRIKES: dict[type[fault_kinds.Fault], str] = {
    fault_kinds.CancelledExternally: "cancel",
    fault_kinds.Requeued: "requeue",
    fault_kinds.Preempted: "preempt",
    fault_kinds.NodeFails: "node_fail",
    fault_kinds.OutOfMemory: "oom",
}


def detach(store: Store, what: str, keep: Collection[int] = ()) -> bool:
    """Fork a registered process in a session of its own; True in the child.

    The child has no standard streams, and of the other open files only those in ``keep``: a lock or a pipe
    of the caller is not held by a job.
    """
    if os.fork():
        return False
    os.setsid()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    store.registry.add(what)
    return True


class Keeper:
    """Waits for nodes, runs the batch script, and sees the job out."""

    def __init__(self, store: Store, job_id: int) -> None:
        self.store = store
        self.id = job_id
        self.spool = store.folder / "spool" / str(job_id)
        self.faults = FaultBox(store.folder)
        self.mark = f"{store.folder}:{job_id}:"
        self.warned = False

    def run(self) -> None:
        """Until the job has ended for good."""
        try:
            while self._wait_for_nodes():
                if not self._run_once():
                    break
        finally:
            (self.spool / "env.json").unlink(missing_ok=True)
            self.store.registry.remove()

    def _job(self) -> Job:
        job = self.store.job(self.id)
        if job is None:
            raise SystemExit(f"job {self.id} vanished from the state folder")
        return job

    def _wait_for_nodes(self) -> bool:
        """True when the job runs, False when it was cancelled before."""
        while True:
            if self._controller_is_away():
                time.sleep(self.store.spec.poll)
                continue
            with self.store.lock():
                known = self.store.job(self.id)
                if known is None or known.ended:
                    return False
                job = known
                self._strike(job)
                if job.order in ("cancel", "preempt"):
                    job.state, job.end, job.start, job.order = "CANCELLED", time.time(), time.time(), ""
                    self.store.put(job)
                    return False
                job.order = ""
                if job.state == "RUNNING" or schedule.try_start(
                    self.store, job, self.store.active(), self.faults
                ):
                    return True
            time.sleep(self.store.spec.poll)

    def _controller_is_away(self) -> bool:
        """True while slurmctld starts no job and carries out no order."""
        return any(
            self.faults.find(kind) is not None
            for kind in (fault_kinds.ControllerHangs, fault_kinds.ControllerDown)
        )

    # -- running ---------------------------------------------------------------------------------------------

    def _run_once(self) -> bool:
        """Run the script (or hold the nodes for srun); True when the job was requeued."""
        job = self._job()
        phases.mark(self.store.folder, self.id, "running")
        process: subprocess.Popen[bytes] | None = None
        if job.batch:
            try:
                process = script.start(self.store, job, self.spool)
            except script.BadInterpreter as err:
                return self._finish(job, "FAILED", "NonZeroExitCode", code=err.status)
            except OSError:
                return self._finish(job, "FAILED", "JobLaunchFailure", signal_number=53)
        while process is None or process.poll() is None:
            job = self._job()
            self._strike(job)
            if job.order and self.faults.find(fault_kinds.ControllerHangs) is None:
                return self._interrupted(job, process)
            time.sleep(self.store.spec.poll)
        status = process.wait()
        if status == 0:
            return self._finish(job, "COMPLETED", "None")
        if status < 0:
            return self._finish(job, "FAILED", "JobLaunchFailure", signal_number=-status)
        return self._finish(job, "FAILED", "NonZeroExitCode", code=status)

    # -- being interrupted -----------------------------------------------------------------------------------

    def _strike(self, job: Job) -> None:
        """Turn the faults that are due, and the time limit, into an order."""
        if job.order:
            return
        if job.owner and not procs.alive(job.owner, job.owner_start):
            job.order = "release" if job.state == "RUNNING" else "cancel"
            return
        if job.state == "RUNNING":
            short = self.faults.find(fault_kinds.TimeLimit, job.name)
            limit = job.minutes * self.store.spec.minute if job.minutes >= 0 else float("inf")
            limit = short.seconds if short else limit
            self._warn(job, limit)
            if time.time() - job.start > limit:
                job.order = "time_limit"
                return
        for kind, order in _STRIKES.items():
            fault = self.faults.find(kind, job.name)
            if fault is None or self.faults.struck(kind, self.id):
                continue
            phase, seconds = getattr(fault, "phase", "running"), getattr(fault, "seconds", 0.0)
            began = job.submit if phase == "pending" else phases.since(self.store.folder, self.id, phase)
            if began is None or time.time() < began + seconds:
                continue
            self.faults.once(kind, self.id)
            job.order = order
            if isinstance(fault, fault_kinds.NodeFails) and job.nodes:
                job.order_text = job.nodes[int(fault.node)] if fault.node.isdigit() else fault.node
                with self.store.lock():
                    self.store.set_node(job.order_text, "DOWN", "Not responding")
            if isinstance(fault, fault_kinds.CancelledExternally):
                job.order_text = str(fault.uid)
            if isinstance(fault, fault_kinds.Preempted) and fault.requeue:
                job.order_text = "requeue"

    def _warn(self, job: Job, limit: float) -> None:
        """Send the signal that ``--signal`` asked for, once, before the time limit."""
        if not job.signal or self.warned or time.time() - job.start < limit - job.signal_before:
            return
        self.warned = True
        if job.signal_batch:  # the script's shell alone
            procs.send([int((self.spool / "batch.pid").read_text())], job.signal)
        else:
            procs.send(self._leaders(None), job.signal)

    def _interrupted(self, job: Job, process: subprocess.Popen[bytes] | None) -> bool:
        order, text = job.order, job.order_text
        if order == "release":  # srun's own allocation
            return self._finish(job, "COMPLETED", "None")
        why = {
            "time_limit": " DUE TO TIME LIMIT",
            "preempt": " DUE TO PREEMPTION",
            "requeue": " DUE TO JOB REQUEUE",
            "node_fail": " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
        }.get(order, "")
        if order == "oom":
            script.say(
                job, f"error: Detected 1 oom_kill event in StepId={job.id}.batch. Some of the step tasks"
            )
        else:
            stamp = formats.clock(time.time())
            script.say(job, f"error: *** JOB {job.id} ON {job.nodes[0]} CANCELLED AT {stamp}{why} ***")
        with self.store.lock():
            job = self._job()
            job.order, job.order_text = order, text
            if order in ("node_fail", "oom"):
                job.completing_nodes = []
            else:
                job.state, job.completing_nodes, job.end = "COMPLETING", list(job.nodes), time.time()
            self.store.put(job)
        self._stop(process, 0.0 if order in ("node_fail", "oom") else self.store.spec.kill_wait)
        if order == "requeue" or (job.requeue and (order == "node_fail" or text == "requeue")):
            return self._requeue(job)
        signal_number = 9 if order == "oom" else 15
        final, reason = {
            "cancel": ("CANCELLED", "None"),
            "time_limit": ("TIMEOUT", "TimeLimit"),
            "preempt": ("PREEMPTED", "None"),
            "node_fail": ("NODE_FAIL", "NodeDown"),
            "oom": ("OUT_OF_MEMORY", "OutOfMemory"),
        }[order]
        code = 0
        if order == "cancel" and process is not None and process.returncode is not None:
            # A script that traps the signal has the last word.
            code, signal_number = max(0, process.returncode), max(0, -process.returncode)
        if order == "time_limit":
            signal_number = 0
        return self._finish(job, final, reason, code=code, signal_number=signal_number)

    def _stop(self, process: subprocess.Popen[bytes] | None, grace: float) -> None:
        """CONT and TERM to the script and the tasks, KILL to all their processes after ``grace`` seconds;
        returns when all are gone."""
        deadline = time.monotonic() + grace
        procs.send([step.keeper for step in self.store.steps(self.id)], signal.SIGUSR2)
        if grace > 0:
            found = self._leaders(process)
            procs.send(found, signal.SIGCONT)
            procs.send(found, signal.SIGTERM)
        while time.monotonic() < deadline:
            if process is not None:
                process.poll()
            if not self._processes():
                break
            self._tell_held_nodes(batch=process is not None and process.returncode is None)
            time.sleep(self.store.spec.poll)
        end = time.monotonic() + 5.0
        while found := self._processes():
            procs.send(found, signal.SIGKILL)
            if process is not None:
                process.poll()
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        if process is not None:
            process.wait()
        # The keepers of the steps report to their srun and go; a moment is theirs.
        end = time.monotonic() + 2.0
        while (steps := self.store.steps(self.id)) and time.monotonic() < end:
            time.sleep(0.02)
        for step in steps:
            procs.send([step.keeper], signal.SIGKILL)
            self.store.drop_step(step.job, step.id)

    def _leaders(self, process: subprocess.Popen[bytes] | None) -> list[int]:
        """The script and the tasks; as with proctrack/cgroup only KILL reaches their children."""
        tasks = [pid for step in self.store.steps(self.id) for pid, _, _, _ in step.tasks]
        return tasks if process is None or process.poll() is not None else [process.pid, *tasks]

    def _tell_held_nodes(self, *, batch: bool) -> None:
        """A job that completes is shown with the nodes on which something of it still runs."""
        held = {node for step in self.store.steps(self.id) for node in step.nodes}
        with self.store.lock():
            job = self._job()
            if batch and job.batch:
                held.add(job.nodes[0])
            left = [node for node in job.nodes if node in held]
            if job.state == "COMPLETING" and left and left != job.completing_nodes:
                job.completing_nodes = left
                self.store.put(job)

    def _processes(self) -> list[int]:
        keepers = set(self.store.registry.living())
        return [pid for pid in procs.marked(self.mark) if pid not in keepers]

    # -- ending ----------------------------------------------------------------------------------------------

    def _finish(self, job: Job, final: str, reason: str, *, code: int = 0, signal_number: int = 0) -> bool:
        """End the job: steps that still run are stopped, nodes are held while COMPLETING. Always False."""
        with self.store.lock():
            job = self._job()
            job.end = job.end or time.time()
            job.state, job.reason, job.order, job.final = "COMPLETING", reason, "", final
            job.exit_code, job.exit_signal = code, signal_number
            job.completing_nodes = list(job.nodes)
            self.store.put(job)
        self._stop(None, self.store.spec.kill_wait)
        stuck = self.faults.find(fault_kinds.StuckCompleting, job.name)
        time.sleep(stuck.seconds if stuck else self.store.spec.completing)
        with self.store.lock():
            job = self._job()
            job.state, job.completing_nodes, job.final = final, [], ""
            self.store.put(job)
        return False

    def _requeue(self, job: Job) -> bool:
        """Put the job back into the queue under its id. Always True."""
        time.sleep(self.store.spec.completing)
        with self.store.lock():
            job = self._job()
            job.state, job.reason, job.order, job.order_text = "PENDING", "BeginTime", "", ""
            job.begin = time.time() + self.store.spec.requeue_delay
            job.nodes, job.completing_nodes, job.start, job.end = [], [], 0.0, 0.0
            job.gpus = {}
            job.restarts += 1
            job.next_step = 0
            self.store.put(job)
        phases.clear(self.store.folder, self.id)
        return True
