"""A server on standard input and output, in a process of its own; lines are written and read by threads."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.attack.speaking.mcp import message, notification, opening

Json = dict[str, Any]


class Pipe:
    """What it says is gathered by a thread, so that nothing we write can block what we read."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        self.heard: queue.Queue[Json | None] = queue.Queue()
        self.complaints = b""
        for read in (self._read, self._read_errors):
            threading.Thread(target=read, daemon=True).start()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):
                self.heard.put(json.loads(line))
        self.heard.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaints = (self.complaints + line)[-20_000:]

    def write(self, data: bytes) -> bool:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError:
            return False
        return True

    def say(self, *messages: object) -> bool:
        return self.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    def next(self, seconds: float) -> Json | None:
        with suppress(queue.Empty):
            return self.heard.get(timeout=max(seconds, 0.01))
        return None

    def reply(self, id: Any, seconds: float = 20) -> Json | None:
        """The reply to a request. What comes before it is dropped."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            heard = self.next(left)
            if heard is None or (heard.get("id") == id and "method" not in heard):
                return heard
        return None

    def open(self, capabilities: Json | None = None) -> None:
        self.say(opening(capabilities))
        self.reply("open")
        self.say(notification("notifications/initialized"))

    def answers(self) -> bool:
        """Whether it still answers."""
        self.say(message("ping", {}, "still"))
        return self.reply("still") is not None
