"""A server process on two blocking pipes: spawn, shake hands, ask, weigh, end."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self

from .contenders import Contender

HANDSHAKE_VERSION = "2025-11-25"
STATELESS_VERSION = "2026-07-28"
STATELESS_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Launch(NamedTuple):
    """How servers are started in this run."""

    python: Path
    environment: dict[str, str]
    node: Path | None = None
    """None if there is none, and then no contender that needs it takes part."""

    def environment_with(self, paths: tuple[Path, ...]) -> dict[str, str]:
        """The variables of a process that imports from `paths` before anywhere else."""
        return {**self.environment, "PYTHONPATH": os.pathsep.join([*map(str, paths), self.environment["PYTHONPATH"]])}


class ServerFailed(Exception):
    """The server ended, or answered with an error; the text ends with what it wrote to stderr."""


class ServerProcess:
    """One running server. Use as a context manager: leaving it ends the process."""

    def __init__(self, contender: Contender, shape: str, launch: Launch, through: tuple[str, ...] = ()) -> None:
        """Spawn it; `through` are interpreter arguments before the script, such as a profiler's."""
        self.contender = contender
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self.spawned_at = perf_counter()
        program = launch.node if contender.needs_node else launch.python
        self._process = subprocess.Popen(
            [program, *through, contender.script, shape],  # type: ignore[list-item]
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=launch.environment_with(contender.paths),
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        self._next_id = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # How a server ends is not measured, and a worker thread may keep it alive past EOF.
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def end_input(self) -> None:
        """Close its stdin, and wait for it to leave by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)

    def take_ids(self, count: int) -> int:
        """Reserve `count` request ids, never used before in this conversation; the first one is returned."""
        first = self._next_id
        self._next_id += count
        return first

    def initialize(self) -> None:
        client = {"name": "bench", "version": "1"}
        self.request("initialize", {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": client})
        write_all(self.input, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def list_tools(self) -> list[list[dict[str, Any]]]:
        """Fetch tools/list to its end, page by page."""
        page = self.request("tools/list", {})
        pages = [page["tools"]]
        while cursor := page.get("nextCursor"):
            page = self.request("tools/list", {"cursor": cursor})
            pages.append(page["tools"])
        return pages

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask and wait; notifications in between are skipped. Raises ServerFailed."""
        id = self.take_ids(1)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        write_all(self.input, json.dumps(message, separators=(",", ":")).encode() + b"\n")
        pending = b""
        while True:
            *lines, pending = (pending + self.read()).split(b"\n")
            for line in lines:
                reply = json.loads(line)
                if reply.get("id") != id:
                    continue
                if "result" not in reply or reply["result"].get("isError"):
                    raise self.failed(f"{method} answered {line.decode()[:500]}")
                return reply["result"]

    def read(self) -> bytes:
        data = os.read(self.output, 1 << 18)
        if not data:
            raise self.failed("the server ended")
        return data

    def failed(self, reason: str) -> ServerFailed:
        self._stderr.seek(0)
        tail = self._stderr.read()[-2000:].decode(errors="replace")
        return ServerFailed(f"{self.contender.name}: {reason}\n{tail}")

    def memory(self) -> tuple[float, float]:
        """Resident memory now and at its peak, in MiB."""
        return memory_of(self._process.pid)

    def cpu_seconds(self) -> float:
        """The processor time it has used."""
        return cpu_seconds_of(self._process.pid)


def memory_of(process: int) -> tuple[float, float]:
    """Resident memory of a process, now and at its peak, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return _mebibytes(fields["VmRSS"]), _mebibytes(fields["VmHWM"])


def cpu_seconds_of(process: int) -> float:
    """The processor time of all threads of a process."""
    # Linux's number for the clock of another process: its inverted id, and 2 for the scheduler's exact time.
    return time.clock_gettime((~process << 3) | 2)


def list_children(process: int) -> list[int]:
    """The processes that a process has started and that still run."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _mebibytes(field: str) -> float:
    return int(field.split()[0]) / 1024
