"""The journal of jobs: what was intended, submitted and given back, on disk before anybody waits.

One JSON Lines file per process, each line written and synced at once, so that after a kill at any
moment ``gpubench reap`` still finds every job. A line cut short by the kill is passed over.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any

from pytest_gpubench.slurm.owner import Owner
from pytest_gpubench.slurm.types import JobId

__all__ = ["Journal", "JournalEntry", "journal_folder", "open_jobs"]


def journal_folder(results: Path) -> Path:
    """Where the journals of a results folder lie."""
    return results / ".gpubench" / "journal"


@dataclass(frozen=True)
class JournalEntry:
    """A job that was intended or submitted and not released. ``id`` None: sbatch's answer was not seen."""

    job_name: str
    owner: Owner
    id: JobId | None = None
    cluster: str | None = None
    at: float = 0.0  # of the intention, seconds since the epoch
    cancelled: bool = False
    file: str = ""


class Journal:
    """Appends to this process's file in ``folder``; may be used by several threads.

    A line that cannot be written (disk full) goes to ``warn`` and is tried again with the next one;
    in memory no job is ever lost: see :meth:`open`.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self._warn = warn or (lambda text: None)
        self._lock = RLock()
        self._entries: dict[str, JournalEntry] = {}
        self._names: dict[JobId, str] = {}
        self._unwritten: list[str] = []
        self._file: Path | None = None
        self._torn = False
        self._owner = Owner.current()

    def intend(self, job_name: str, *, cluster: str | None = None) -> None:
        """Before sbatch is called: a job of this unique name may exist from now on."""
        now = time.time()
        with self._lock:
            self._entries[job_name] = JournalEntry(job_name, self._owner, None, cluster, now)
            self._write("intend", name=job_name, cluster=cluster, at=now)

    def submitted(self, job_name: str, job: JobId) -> None:
        """As soon as the id is known."""
        with self._lock:
            entry = self._entries.get(job_name) or JournalEntry(job_name, self._owner, at=time.time())
            self._entries[job_name] = replace(entry, id=job, cluster=job.cluster or entry.cluster)
            self._names[job] = job_name
            self._write("submitted", name=job_name, id=job.number, cluster=job.cluster)

    def cancelled(self, job: JobId) -> None:
        """Slurm was asked to cancel the job; it may still hold its nodes."""
        with self._lock:
            name = self._names.get(job)
            if name in self._entries:
                self._entries[name] = replace(self._entries[name], cancelled=True)
            self._write("cancelled", name=name, id=job.number, cluster=job.cluster)

    def released(self, job: JobId, how: str) -> None:
        """The job surely holds no nodes any more."""
        with self._lock:
            name = self._names.get(job)
            self._entries.pop(name or "", None)
            self._write("released", name=name, id=job.number, cluster=job.cluster, how=how)

    def abandoned(self, job_name: str, how: str) -> None:
        """No job of this name exists: sbatch refused it, or the queue surely lacks it."""
        with self._lock:
            self._entries.pop(job_name, None)
            self._write("released", name=job_name, id=None, cluster=None, how=how)

    def adopt(self, entry: JournalEntry) -> None:
        """Take over another process's entry, so that :meth:`released` closes it under its name."""
        with self._lock:
            self._entries[entry.job_name] = entry
            if entry.id is not None:
                self._names[entry.id] = entry.job_name

    def open(self) -> list[JournalEntry]:
        """This process's jobs that are not released, whatever could be written."""
        with self._lock:
            return list(self._entries.values())

    def _write(self, event: str, **values: Any) -> None:
        record = {"event": event, **values, "when": time.time()}
        self._unwritten.append(json.dumps(record, separators=(",", ":")))
        try:
            self._flush()
        except OSError as err:
            where = self._file or self.folder
            self._warn(
                f"the job journal {where} cannot be written ({err}); "
                f"if this process is killed, look for its jobs yourself: {', '.join(self._entries) or 'none'}"
            )

    def _flush(self) -> None:
        if self._file is None or self._owner.pid != os.getpid():
            self._open_file()
        assert self._file is not None
        text = ("\n" if self._torn else "") + "".join(line + "\n" for line in self._unwritten)
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = text.encode()
            self._torn = True  # until all of it is on disk
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
            self._torn = False
        finally:
            os.close(handle)
        self._unwritten.clear()

    def _open_file(self) -> None:
        """A new file of this process (also of a forked one), its first line saying who writes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._owner = Owner.current()
        path = self.folder / f"{self._owner.host}-{self._owner.pid}-{time.time_ns()}.jsonl"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _sync_folder(self.folder)
        self._file = path
        self._torn = False
        self._unwritten.insert(
            0, json.dumps({"event": "owner", **asdict(self._owner)}, separators=(",", ":"))
        )


def open_jobs(folder: Path) -> list[JournalEntry]:
    """All jobs of all processes that are not released, oldest first; unreadable lines are passed over."""
    entries: dict[str, JournalEntry] = {}
    released: set[str] = set()
    for path in sorted(folder.glob("*.jsonl")):
        owner = Owner(0, "?")
        for record in _records(path):
            event, name = record.get("event"), record.get("name")
            job = _job_id(record)
            if event == "owner":
                owner = _owner(record)
            elif event == "released" and isinstance(name, str):
                released.add(name)
            elif event in {"intend", "submitted"} and isinstance(name, str):
                entry = entries.get(name) or JournalEntry(name, owner, file=str(path))
                at = record.get("at")
                entries[name] = replace(
                    entry,
                    id=job or entry.id,
                    cluster=_text(record.get("cluster")) or entry.cluster,
                    at=float(at) if isinstance(at, int | float) else entry.at,
                )
            elif event == "cancelled" and isinstance(name, str) and name in entries:
                entries[name] = replace(entries[name], cancelled=True)
    # By name, which is unique: a later Slurm gives the same numbers again.
    return sorted((e for e in entries.values() if e.job_name not in released), key=lambda entry: entry.at)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut short by a kill or a full disk
        if isinstance(record, dict):
            yield record


def _job_id(record: dict[str, Any]) -> JobId | None:
    number = record.get("id")
    return JobId(number, _text(record.get("cluster"))) if type(number) is int and number > 0 else None


def _owner(record: dict[str, Any]) -> Owner:
    pid = record.get("pid")
    return Owner(
        pid if type(pid) is int else 0,
        *(_text(record.get(key)) or "" for key in ("host", "boot_id", "start", "namespace")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _sync_folder(folder: Path) -> None:
    """Make the new file's name survive a power cut, where the file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
