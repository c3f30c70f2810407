"""A server in a process of its own, spoken to in raw lines."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import defserve
from tests.forking.processes import start

PATIENCE = 50.0
FRAMEWORK = Path(defserve.__file__).parent.parent

OPENING = """
from __future__ import annotations
import asyncio, ctypes, contextvars, os, subprocess, sys, threading, time
from contextlib import asynccontextmanager
from defserve import Context, Limits, Server, ToolError
def tell(text): sys.stderr and os.write(2, (text + "\\n").encode())
"""


def write_script(folder: Path, source: str, opening: str = OPENING) -> Path:
    script = folder / "served.py"
    script.write_text(opening + textwrap.dedent(source) + "\nserver.run()\n")
    return script


class ServerProcess:
    """Runs `source` (given its imports and `server.run()`) and reads what it says on stdout and stderr.

    It has imported the framework already when it begins, unless it is to be `fresh`.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        *,
        opening: str = OPENING,
        stdin: Any = subprocess.PIPE,
        fresh: bool = False,
    ) -> None:
        script = write_script(folder, source, opening)
        env = {**os.environ, "PYTHONPATH": str(FRAMEWORK), "PYTHONUNBUFFERED": ""}
        pipe = subprocess.PIPE
        if fresh:
            command = [sys.executable, str(script)]
            self.process = subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0, env=env)
        else:
            self.process = start(script, stdin=stdin, env=env)
        self._said = {1: b"", 2: b""}

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    # -- speaking ----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def say(self, *messages: Any) -> None:
        """Messages (dicts are given their jsonrpc member), in one write."""
        self.write(b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages))

    def ask(self, id: Any, method: str, **params: Any) -> None:
        self.say({"id": id, "method": method, "params": params})

    def call(self, id: Any, tool: str, **arguments: Any) -> None:
        self.ask(id, "tools/call", name=tool, arguments=arguments)

    def open(self, version: str = "2025-11-25") -> ServerProcess:
        about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        self.ask("open", "initialize", **about)
        assert self.read()["id"] == "open"
        self.say({"method": "notifications/initialized"})
        return self

    def end(self) -> None:
        """Close its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    # -- listening ---------------------------------------------------------------------------------------

    def line(self, stream: int = 1, patience: float = PATIENCE) -> bytes | None:
        """The next line of stdout (1) or stderr (2); None at its end."""
        source = self.process.stdout if stream == 1 else self.process.stderr
        assert source is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._said[stream]:
            ready, _, _ = select.select([source], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise AssertionError(f"nothing on {stream} within {patience} s; so far {self._said}")
            data = os.read(source.fileno(), 65536)
            if not data:
                rest, self._said[stream] = self._said[stream], b""
                return rest or None
            self._said[stream] += data
        line, self._said[stream] = self._said[stream].split(b"\n", 1)
        return line

    def read(self, patience: float = PATIENCE) -> Any:
        line = self.line(patience=patience)
        assert line is not None, f"it said nothing more; stderr: {self.rest(2)!r}"
        return json.loads(line)

    def text(self, id: Any, patience: float = PATIENCE) -> str:
        """The words of the next reply, which answers `id`."""
        reply = self.read(patience)
        assert reply["id"] == id, reply
        return reply["result"]["content"][0]["text"]

    def wait_for(self, text: str) -> None:
        """Until stderr has had a line with this text."""
        while True:
            line = self.line(2)
            assert line is not None, f"stderr ended without {text!r}"
            if text.encode() in line:
                return

    def rest(self, stream: int = 1) -> list[bytes]:
        """All lines up to the end."""
        return list(iter(lambda: self.line(stream), None))

    def exit_code(self, patience: float = PATIENCE) -> int:
        return self.process.wait(patience)

    def seconds_to_exit(self) -> float:
        """How long it takes to end from now."""
        began = time.monotonic()
        self.process.wait(PATIENCE)
        return time.monotonic() - began
