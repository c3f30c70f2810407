"""A real terminal of a fixed size: a command line runs in it, and what it writes there is given back."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from select import select
from typing import NamedTuple

SECONDS = 50.0


class Seen(NamedTuple):
    """What came to the screen, stdout and stderr together, and the exit code."""

    code: int
    text: str


def at_terminal(
    *argv: str,
    width: int = 80,
    typed: Sequence[tuple[str, str | Callable[[], str]]] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Seen:
    """Run `defserve` at a terminal. Each of `typed` is a text to wait for, and what is typed then, or what to do."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "defserve", *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**given, "TERM": "xterm-256color", **(env or {})},
        cwd=cwd,
        start_new_session=True,
        # It is the terminal of that session, so that a typed Ctrl-C is a signal.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        text = _watched(mine, list(typed))
        return Seen(process.wait(SECONDS), text.replace("\r\n", "\n"))
    finally:
        os.close(mine)
        if process.poll() is None:
            process.kill()
            process.wait()


def _watched(terminal: int, typed: list[tuple[str, str | Callable[[], str]]]) -> str:
    seen, looked_at = b"", 0
    while select([terminal], [], [], SECONDS)[0]:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        seen += part
        while typed and (found := seen.find(typed[0][0].encode(), looked_at)) >= 0:
            looked_at = found + 1
            keys = typed.pop(0)[1]
            os.write(terminal, (keys if isinstance(keys, str) else keys()).encode())
    return seen.decode(errors="replace")
