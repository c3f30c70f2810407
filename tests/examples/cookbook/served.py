"""A program of the cookbook as a process of its own, at a port that is free."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

ADDRESS = re.compile(r"http://[\d.]+:8000")


@contextmanager
def started(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """The command as its recipe has it, but on loopback and at a port that is free: the process and the port."""
    words = [ADDRESS.sub("http://127.0.0.1:0", word) for word in command]
    with log.open("w") as said:
        process = subprocess.Popen(words, cwd=folder, env=dict(variables), stderr=said)
    try:
        wait_until(lambda: "serving on" in log.read_text() or process.poll() is not None)
        port = re.search(r"127\.0\.0\.1:(\d+)", log.read_text())
        assert port is not None, log.read_text()
        yield process, int(port[1])
    finally:
        process.kill()
        process.wait()
