"""A headless Chromium, and the npm packages to drive it and to play the host of a view."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.suite_install import install_all, node

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE.parents[1] / ".browser"
EXT_APPS: Final = ("@modelcontextprotocol/ext-apps", "2.0.4")
PACKAGES: Final = (
    EXT_APPS,
    ("esbuild", "0.28.2"),
    ("puppeteer-core", "24.43.1"),
    ("axe-core", "4.14.0"),
    ("oidc-provider", "9.13.3"),
)
SCRIPTS: Final = ("host.js", "view.js")
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--no-sandbox",  # it runs as root in containers; all it sees are pages of these tests
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-device-scale-factor=2",
    # It can reach loopback, and nothing else.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Browser:
    """One page of a headless Chromium. Scripts are awaited until what they evaluate to is true."""

    def __init__(self, executable: str) -> None:
        self._command = [str(node()), str(FOLDER / "drive.mjs"), executable, *FLAGS]
        self._start()

    def begin(self) -> None:
        """An empty page in a profile of its own. If the browser has ended, or hangs, it is another browser."""
        try:
            self._do("begin", "")
        except (AssertionError, OSError):
            self.close()
            self._start()
            self._do("begin", "")

    def open(self, url: str) -> None:
        self._do("open", url)

    def run_early(self, script: str) -> None:
        """Run a script in each page that is opened from now on, before its own."""
        self._do("early", script)

    def page(self, script: str) -> Any:
        """The value of a script in the page; None if it did not become true."""
        return self._do("page", script)

    def frame(self, script: str) -> Any:
        """The value of a script in the frame of the page; None if it did not become true."""
        return self._do("frame", script)

    def click(self, selector: str) -> None:
        """Click an element of the frame, as a person would."""
        self._do("click", selector)

    def press(self, selector: str) -> None:
        """Click an element of the page, as a person would."""
        self._do("press", selector)

    def hover(self, selector: str) -> None:
        """Move the pointer onto an element of the page."""
        self._do("hover", selector)

    def drag(self, selector: str, start: float, stop: float) -> None:
        """Drag over an element of the page, from one share of its width to another."""
        self._do("drag", [selector, start, stop])

    def cpu(self) -> float:
        """Milliseconds of processor time that the page's own thread has taken."""
        return self._do("cpu", "")

    def trace(self) -> None:
        """Begin to write down what the page does."""
        self._do("trace", "")

    def traced(self) -> dict[str, list[float]]:
        """What it did since: milliseconds of processor time of each of its `tasks`, `scripts` and `layouts`."""
        return self._do("traced", "")

    def look(self, width: int, height: int, scheme: str = "light", *, scripts: bool = True) -> None:
        """The size of the window, the colours its person prefers, and whether scripts run. For the next page opened."""
        self._do("size", [width, height])
        self._do("scheme", scheme)
        self._do("scripts", scripts)

    def key(self, *names: str) -> None:
        """Press keys, one after the other: `Tab`, `Control+Enter`."""
        self._do("key", names)

    def type(self, text: str) -> None:
        self._do("type", text)

    def go(self, letter: str, arrived: str) -> None:
        """Press G and the letter of a panel. On a busy machine the letter may come too late to belong to the G."""
        for _ in range(5):
            self.key("g", letter)
            if self._do("soon", arrived):
                return
        raise AssertionError(f"G {letter} did not lead to {arrived}")

    def upload(self, selector: str, path: Path) -> None:
        """Choose a file, as a person would in the dialog of the system."""
        self._do("upload", [selector, str(path)])

    def tab(self) -> str:
        """Go on in the tab that the page has opened, and give its address. `leave` closes it and goes back."""
        return self._do("tab", "")

    def leave(self) -> None:
        self._do("leave", "")

    def tabs(self) -> int:
        """How many tabs are open that the page has opened."""
        return self._do("tabs", "")

    def asked(self) -> list[str]:
        """The addresses that the page has asked for since it was opened."""
        return self._do("asked", "")

    def complaints(self) -> list[str]:
        """What the browser complained of since the page was opened."""
        return self._do("complaints", "")

    def shot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the window, or of the whole page."""
        self._do("whole" if whole else "shot", str(path))

    def close(self) -> None:
        with suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._last = 0
        self.version: str = self._answer()

    def _do(self, command: str, argument: Any) -> Any:
        self._last += 1
        self._stdin.write(json.dumps([self._last, command, argument]) + "\n")
        self._stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        """The answer to the last command. Those before it may be left of a test that was cut off."""
        while line := self._stdout.readline():
            answer = json.loads(line)
            if answer["id"] == self._last:
                assert "error" not in answer, answer["error"]
                return answer["result"]
        raise AssertionError("the browser has ended")


def found() -> str:
    """The Chromium of this machine, installed if that is possible. Skips the test if there is none."""
    if (executable := _executable()) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
        subprocess.run(
            command, capture_output=True, timeout=300, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
        executable = _executable()
    if executable is None:
        pytest.skip("there is no Chromium, and it could not be installed: apt install chromium")
    return executable


def _executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def bundled() -> dict[str, str]:
    """The scripts of the host's page and of a view, each with the packages it imports.

    Skips the test if they cannot be installed.
    """
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        try:
            install_all(PACKAGES, FOLDER)
        except SystemExit as failed:
            pytest.skip(f"npm packages could not be installed: {failed}")
        for name in ("drive.mjs", "issuer.mjs", *SCRIPTS):  # beside the packages, where Node and esbuild look for them
            _copy(HERE / name, FOLDER / name)
        return {name: _bundle(name) for name in SCRIPTS}


def _copy(source: Path, target: Path) -> None:
    """Another process may be reading it."""
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copy(source, target)


def _bundle(script: str) -> str:
    bundler = FOLDER / "node_modules" / "esbuild" / "bin" / "esbuild"
    options = ["--bundle", "--format=esm", "--charset=utf8", "--log-level=error"]
    done = subprocess.run([str(node()), str(bundler), script, *options], cwd=FOLDER, check=True, capture_output=True)
    return done.stdout.decode()
