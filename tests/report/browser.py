"""A headless Chromium, spoken to over its DevTools pipe: no driver package, no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page. Every wait has a deadline; the process group is killed at the end."""

    def __init__(self, program: str, profile: Path, *, width: int = 1360, height: int = 900) -> None:
        # The child reads its commands from descriptor 3 and answers on 4.
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        plug = f'exec 3<&{to_child} 4>&{from_child}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", plug, "chromium", program, *FLAGS, f"--user-data-dir={profile}",
             f"--window-size={width},{height}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_child, from_child),
            start_new_session=True,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        os.close(self._in)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    # -- protocol ------------------------------------------------------------------------------

    def call(self, method: str, *, timeout: float = 30.0, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise AssertionError(f"chromium gave no answer to {what}")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    # -- use -----------------------------------------------------------------------------------

    def open(self, path: Path, *, timeout: float = 30.0) -> None:
        """Load a file and wait until its script has drawn."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + timeout
        while self.evaluate("document.readyState + ' ' + Boolean(window.Plotly)") != "complete true":
            assert time.monotonic() < deadline, f"{path} did not load"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Let the page handle what it was sent and paint twice."""
        self.evaluate(
            "new Promise((done) => requestAnimationFrame("
            "() => requestAnimationFrame(() => setTimeout(done, 20))))"
        )

    def prefer(self, scheme: str) -> None:
        """What ``prefers-color-scheme`` says."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def press(self, key: str, text: str = "", *, code: int = 0) -> None:
        """One key as a keyboard sends it; ``text`` is what it types."""
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def tab(self) -> None:
        self.press("Tab", code=9)

    def enter(self) -> None:
        self.press("Enter", "\r", code=13)

    def type(self, text: str) -> None:
        for letter in text:
            self.press(letter, letter)

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        more: dict[str, Any] = {"clip": clip, "captureBeyondViewport": True} if full else {}
        shot = self.call("Page.captureScreenshot", format="png", **more)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Console errors and warnings, exceptions, and every request that is not the page itself."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
                if params["entry"]["source"] != "rendering":  # the graphics driver of this machine
                    found.append(str(params["entry"]))
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    found.append(f"request to {url}")
        return found
