"""Rows to the perf dashboard: one POST each, retried, never twice, never lost, never a simulated one.

Sending never changes a verdict. What could not be sent stays in the spool for ``gpubench push``.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import OptionError
from pytest_gpubench.results.row import DASHBOARD_FIELDS, is_figure
from pytest_gpubench.results.spool import Entry, Spool, failed, idempotency_key
from pytest_gpubench.results.text import clean, mask

if TYPE_CHECKING:
    import requests
    from tenacity import RetryCallState

__all__ = ["IngestSettings", "PushReport", "dashboard_row", "push", "queue_rows", "send_rows"]

_BODY = 2000  # bytes of an answer that are read and shown
_RETRIED = frozenset({408, 425, 429})


@dataclass(frozen=True)
class IngestSettings:
    """Where rows go and how patiently. Times are seconds; ``budget`` bounds one row with all its tries."""

    url: str
    token: str = field(repr=False)
    tries: int = 4
    connect_timeout: float = 5.0
    read_timeout: float = 20.0
    max_wait: float = 30.0
    budget: float = 90.0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> IngestSettings | None:
        """The settings when both ``PERF_INGEST_URL`` and ``INGEST_BEARER_TOKEN`` are set, else None."""
        url, token = env.get("PERF_INGEST_URL", "").strip(), env.get("INGEST_BEARER_TOKEN", "").strip()
        if not url or not token:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError("PERF_INGEST_URL: expected a http:// or https:// URL with a host")
        if not token.isascii() or not token.isprintable() or " " in token:
            # An HTTP header cannot carry it; the library's own error would print the token.
            raise OptionError("INGEST_BEARER_TOKEN: holds characters that an HTTP header cannot carry")
        return cls(url, token)


@dataclass(frozen=True)
class PushReport:
    """What became of the rows. ``kept`` and ``refused``: label and reason, all still in the spool."""

    sent: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> bool:
        """True when nothing is left to send."""
        return not self.kept and not self.refused

    def lines(self) -> list[str]:
        """The report for the terminal."""
        text = [f"ingest: {len(self.sent)} rows sent"]
        text += [f"ingest: {label}: refused, kept: {why}" for label, why in self.refused]
        text += [f"ingest: {label}: not sent, kept: {why}" for label, why in self.kept]
        if not self.complete:
            text.append("ingest: `gpubench push` sends the rows that were kept")
        return text


class _Sleep(Protocol):
    def __call__(self, seconds: float, /) -> None: ...


class _Retry(Exception):
    """This try failed in a way that another may not; ``after`` is what the server asks for, in seconds."""

    def __init__(self, text: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(text)


class _Refused(Exception):
    """The dashboard answered and does not want the row."""


def dashboard_row(row: Mapping[str, JSON]) -> dict[str, JSON]:
    """The dashboard's fields of a row: its names and units, nothing of ours beside them."""
    payload = {name: row[name] for name in DASHBOARD_FIELDS if name in row and name != "nightly"}
    if row.get("nightly") is True:  # the dashboard has the field on nightly rows only
        payload["nightly"] = True
    payload.update({name: value for name, value in row.items() if is_figure(name)})
    return payload


def queue_rows(rows: Iterable[Mapping[str, JSON]], spool: Spool) -> list[Entry]:
    """Put the rows that the dashboard takes into the spool: real ones of serving points."""
    queued = []
    for row in rows:
        # Missing is not False: only a row that says it is real is sent.
        if row.get("simulated") is not False or row.get("kind") != "serving":
            continue
        entry = Entry(idempotency_key(row), f"{row.get('workload')} {row.get('point')}", dashboard_row(row))
        spool.put(entry)
        queued.append(entry)
    return queued


def send_rows(
    rows: Iterable[Mapping[str, JSON]],
    spool: Spool,
    settings: IngestSettings,
    *,
    sleep: _Sleep = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> PushReport:
    """Spool the rows, then send them and whatever waited in the spool."""
    queue_rows(rows, spool)
    return push(spool, settings, sleep=sleep, monotonic=monotonic)


def push(
    spool: Spool,
    settings: IngestSettings,
    *,
    sleep: _Sleep = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> PushReport:
    """Send what waits in the spool. After one row has used up its tries the others get one try each, so
    that a dead dashboard costs minutes, not hours; after two in a row they are kept untried.
    """
    import requests

    sent: list[str] = []
    kept: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    dead = 0
    with requests.Session() as session:
        session.auth = _bearer(settings.token)
        for entry in list(spool.entries()):
            if dead >= 2:
                kept.append((entry.label, "not tried: the dashboard does not answer"))
                continue
            tries = settings.tries if dead == 0 else 1
            try:
                _send(session, entry, settings, tries, sleep, monotonic)
            except _Refused as err:
                dead = 0
                refused.append((entry.label, str(err)))
                spool.put(failed(entry, refused=str(err)))
            except _Retry as err:
                dead += 1
                kept.append((entry.label, str(err)))
                spool.put(failed(entry, error=str(err)))
            else:
                dead = 0
                sent.append(entry.label)
                spool.remove(entry)
    return PushReport(tuple(sent), tuple(kept), tuple(refused))


def _send(
    session: requests.Session,
    entry: Entry,
    settings: IngestSettings,
    tries: int,
    sleep: _Sleep,
    monotonic: Callable[[], float],
) -> None:
    import tenacity

    # Jitter, so that the rows of many runs do not come back in step.
    backoff = tenacity.wait_exponential(multiplier=0.5, max=settings.max_wait) + tenacity.wait_random(0, 0.25)
    deadline = monotonic() + settings.budget

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.after if isinstance(error, _Retry) else None
        return backoff(state) if asked is None else min(max(asked, 0.0), settings.max_wait)

    def stop(state: RetryCallState) -> bool:
        return state.attempt_number >= tries or monotonic() + wait(state) >= deadline

    for attempt in tenacity.Retrying(
        stop=stop, wait=wait, sleep=sleep, retry=tenacity.retry_if_exception_type(_Retry), reraise=True
    ):
        with attempt:
            _post(session, entry, settings, monotonic)


def _post(
    session: requests.Session, entry: Entry, settings: IngestSettings, monotonic: Callable[[], float]
) -> None:
    import requests

    limit = monotonic() + settings.read_timeout
    try:
        with session.post(
            settings.url,
            json=dict(entry.payload),
            headers={"Idempotency-Key": entry.key, "X-Source": "pytest-gpubench"},
            timeout=(settings.connect_timeout, settings.read_timeout),
            allow_redirects=False,  # a redirect would carry the row, and maybe the token, elsewhere
            stream=True,  # the answer is read bounded, below
        ) as answer:
            status, after = answer.status_code, _retry_after(answer.headers.get("Retry-After"))
            if 200 <= status < 300:
                return
            body = _body(answer, limit, monotonic)
    except requests.RequestException as err:
        raise _Retry(_tidy(f"{type(err).__name__}: {err}", settings)) from None
    text = _tidy(f"HTTP {status}: {body or 'no text'}", settings)
    if status >= 500 or status in _RETRIED:
        raise _Retry(text, after)
    raise _Refused(text)


def _body(answer: requests.Response, limit: float, monotonic: Callable[[], float]) -> str:
    """The beginning of the answer; a server that drips its answer does not hold us."""
    content = b""
    for chunk in answer.iter_content(512):
        content += chunk
        if len(content) >= _BODY or monotonic() > limit:
            break
    return content[:_BODY].decode("utf-8", "replace")


def _tidy(text: str, settings: IngestSettings) -> str:
    return " ".join(clean(mask(text, [settings.token])).split())[:_BODY]


def _bearer(token: str) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    """Authentication as a callable: a header given directly loses against an entry in ~/.netrc."""

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign


def _retry_after(text: str | None) -> float | None:
    """Seconds that ``Retry-After`` asks for, given as a number or as a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
