"""Scripts as processes of this one that start at once: what `subprocess.Popen` is, as far as tests use it."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.forking.spawning import forker


def start(
    script: Path, args: Sequence[str] = (), *, stdin: Any = subprocess.PIPE, env: Mapping[str, str]
) -> subprocess.Popen[bytes] | ForkedProcess:
    """`python script args…`, whose other streams are pipes; forked where that is possible."""
    if sys.platform == "linux":
        return ForkedProcess(script, args, stdin, env)
    command, pipe = [sys.executable, str(script), *args], subprocess.PIPE
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0, env=env)


class ForkedProcess:
    """A child of the forker. It is killed when this process ends."""

    def __init__(
        self, script: Path, args: Sequence[str], stdin: Any, env: Mapping[str, str], *, stderr: Any = subprocess.PIPE
    ) -> None:
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        theirs: list[int] = []
        if stdin == subprocess.PIPE:
            reading, writing = os.pipe()
            self.stdin = os.fdopen(writing, "wb", buffering=0)
            theirs.append(reading)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin.fileno()))
        self.stdout, their_stdout = _output()
        self.stderr: IO[bytes] | None = None
        if stderr == subprocess.PIPE:
            self.stderr, their_stderr = _output()
        else:
            their_stderr = os.open(os.devnull, os.O_WRONLY)
        theirs += [their_stdout, their_stderr]
        self._forker = socket.socket(socket.AF_UNIX)
        self._forker.connect(forker())
        job = marshal.dumps(([str(script), *args], os.getcwd(), dict(env)))
        socket.send_fds(self._forker, [len(job).to_bytes(4, "big")], theirs)
        self._forker.sendall(job)
        for stream in theirs:
            os.close(stream)
        self.pid = int.from_bytes(self._forker.recv(4), "big")

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._forker.settimeout(timeout)
            try:
                said = self._forker.recv(2)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            assert said, "the forker ended"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(said, "big"))
            self._forker.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended a moment ago; its forker is about to say so
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _output() -> tuple[IO[bytes], int]:
    """Our end of a pipe, and the end of the process that writes into it."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", buffering=0), writing
