"""A server process on a port of this machine: spawn, wait until it listens, weigh, end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from typing import Self

from tests.waiting import wait_until

from .contenders import HttpContender
from .processes import Launch, ServerFailed, cpu_seconds_of, memory_of

PATIENCE = 20.0


class HttpServer:
    """One running server. Use as a context manager: leaving it ends the process."""

    def __init__(self, contender: HttpContender, launch: Launch, through: tuple[str, ...] = ()) -> None:
        """Spawn it; `through` are interpreter arguments before the script, such as a profiler's."""
        self.contender = contender
        self.port = _free_port()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        program = launch.node if contender.needs_node else launch.python
        command = [str(program), *through, contender.script, str(self.port), *contender.arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            env=launch.environment_with(contender.paths),
            process_group=0,
        )

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with its workers
        self._process.wait()
        self._stderr.close()

    def interrupt(self) -> None:
        """Ask it to stop, and wait for it to leave by itself."""
        self._process.terminate()
        self._process.wait(timeout=10)

    def failed(self, reason: str) -> ServerFailed:
        self._stderr.seek(0)
        tail = self._stderr.read()[-2000:].decode(errors="replace")
        return ServerFailed(f"{self.contender.name}: {reason}\n{tail}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """The processor time it has used."""
        return cpu_seconds_of(self._process.pid)

    def resident(self) -> float:
        """Resident memory, in MiB."""
        return memory_of(self._process.pid)[0]

    def peak(self) -> float:
        """Resident memory at its peak, in MiB."""
        return memory_of(self._process.pid)[1]

    def _wait(self) -> None:
        try:
            wait_until(self._listens, PATIENCE)
        except TimeoutError as error:
            raise self.failed("the server does not listen") from error

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise self.failed("the server ended")
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]
