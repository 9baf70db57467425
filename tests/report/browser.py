"""A headless Chromium, driven through its DevTools pipe: JSON messages over two file descriptors, no library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40, "ArrowUp": 38, "End": 35, "Home": 36}


def find_chromium() -> str:
    """-> its path. Without one the test is skipped, but fails where IPLL_REQUIRE_BROWSER=1 promises a browser."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        message = "needs Chromium: install it from your system's packages (apt-get install chromium)"
        if os.environ.get("IPLL_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{message}; IPLL_REQUIRE_BROWSER=1 forbids to skip this")
        pytest.skip(message)
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(find_chromium(), profile)
        try:
            yield browser
        finally:
            browser.close()


class Browser:
    """One page in one browser. `events` holds what the page has done since it was opened."""

    def __init__(self, path: str, profile: str) -> None:
        to_browser, self._out = _pipe()
        self._in, from_browser = _pipe()

        def hand_over() -> None:  # Chromium reads commands from descriptor 3 and writes answers to 4
            os.dup2(to_browser, 3)
            os.dup2(from_browser, 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        self._process = subprocess.Popen(
            [path, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=hand_over, start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self, seconds: float = 60.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], seconds)
            assert ready, "Chromium does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> float:
        """Loads a file and waits until it is there -> seconds until it was laid out and its scripts had run."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        begun = time.monotonic()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.named("Page.loadEventFired"):
            self.events.append(self._read())
        self.evaluate("document.body.offsetHeight")
        return time.monotonic() - begun

    def named(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def problems(self) -> list[dict[str, Any]]:
        """-> errors and console messages of the page, blocked resources included."""
        return self.named("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")

    def requests(self) -> list[str]:
        """-> addresses of everything that the page has asked for, but what lies in itself."""
        asked = [str(event["request"]["url"]) for event in self.named("Network.requestWillBeSent")]
        return [address for address in asked if not address.startswith("data:")]

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
            common = {"key": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper()))}
            down: dict[str, Any] = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
            self.call("Input.dispatchKeyEvent", **down, **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def close(self) -> None:
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        try:
            self._process.wait(timeout=10)  # it ends when its pipe does
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _pipe() -> tuple[int, int]:
    """Like os.pipe, on descriptors above those that Chromium wants."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
