"""A server as a process that can be killed, spoken to over its pipes."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


class Broken(Exception):
    """What must never happen."""


def start_python(
    arguments: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None] | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=environment,
        preexec_fn=prepare,
    )


class ServedProcess:
    """Runs Python with these arguments, from its making to `kill` or `close`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None] | None = None
    ) -> None:
        path = os.pathsep.join((str(ROOT / "framework"), str(ROOT)))
        self.process = start_python(arguments, {**os.environ, **environment, "PYTHONPATH": path}, prepare)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        self._ids, self._pending = count(1), b""
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._output, selectors.EVENT_READ)

    def send(self, method: str, params: Json) -> int:
        """The id of a request whose answer is to be received."""
        id = next(self._ids)
        self._write({"id": id, "method": method, "params": params})
        return id

    def receive(self, until: float) -> Json | None:
        """The next answer; None if none came until then. Raises Broken if the process is gone."""
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                message = json.loads(line)
                if "method" not in message:
                    return message
                continue
            if not self._ready.select(max(0.0, until - time.monotonic())):
                return None
            data = self._output.read(1 << 16)
            if not data:
                raise Broken("the server ended by itself")
            self._pending += data

    def ask(self, method: str, params: Json) -> Json:
        """A whole answer, while no other request is under way."""
        id = self.send(method, params)
        answer = self.receive(time.monotonic() + PATIENCE)
        if answer is None or answer.get("id") != id:
            raise Broken(f"{method} was not answered but {answer}")
        return answer

    def kill(self) -> list[Json]:
        """As if by `kill -9`; the answers that were in the pipe by then."""
        self.process.kill()
        rest = self._pending
        while data := self._output.read(1 << 16):
            rest += data
        self.close()
        whole = rest.split(b"\n")[:-1]
        return [message for line in whole if "method" not in (message := json.loads(line))]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._ready.close()
        self._input.close()
        self._output.close()

    def _write(self, message: Json) -> None:
        self._input.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def complaint(answer: Json) -> str | None:
    """What an answer says went wrong."""
    if "error" in answer:
        return answer["error"]["message"]
    result = answer["result"]
    if result.get("isError"):
        return result["content"][0]["text"]
    return None if result.get("success", True) else str(result.get("reason"))
