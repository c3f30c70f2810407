"""Keys come one by one, and the terminal is as it was after every way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from select import select
from typing import Any

import pytest

pytest.importorskip("pty")

import fcntl
import pty
import termios

from tests.rows import for_each_row
from tests.waiting import wait_until

SECONDS = 50.0
PROGRAM = """
import asyncio
from defserve.cli.keyboard import Keyboard

async def main():
    ended = asyncio.get_running_loop().create_future()

    def take(key):
        print(f"<{key}>", flush=True)
        if key == "q":
            ended.set_result(None)
        if key == "r":
            print("ready", flush=True)
        if key == "x":
            ended.set_exception(RuntimeError("a crash"))

    with Keyboard(take) as keyboard:
        print("ready", flush=True)
        while not ended.done():
            await asyncio.wait([ended], timeout=0.05)
        ended.result()

asyncio.run(main())
"""

# What a shell does: the program is a job of its own, which it starts again after Enter.
SHELL = """
import os, signal, sys

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
while os.WIFSTOPPED(status := os.waitpid(job, os.WUNTRACED)[1]):
    os.tcsetpgrp(0, os.getpgrp())
    print("stopped", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, job)
    os.kill(job, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Desk:
    """A terminal with a program at it."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, theirs: int) -> None:
        self.process, self._terminal, self._theirs = process, terminal, theirs

    def type_keys(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def see(self, text: str) -> None:
        seen = b""
        while text.encode() not in seen:
            assert select([self._terminal], [], [], SECONDS)[0], seen
            seen += os.read(self._terminal, 65536)

    @property
    def mode(self) -> Any:
        return termios.tcgetattr(self._theirs)

    @property
    def is_echoing(self) -> bool:
        return bool(self.mode[3] & termios.ECHO)


@contextmanager
def desk(program: str = PROGRAM) -> Generator[Desk]:
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # It is the terminal of that session, so that typed keys are signals.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield Desk(process, mine, theirs)
    finally:
        process.kill()
        process.wait()
        os.close(mine)
        os.close(theirs)


@for_each_row(
    ("way_out", "code"),
    [
        ("q", 0),
        ("x", 1),
        ("\x03", 130),
        ("\x1c", -signal.SIGQUIT),
        (signal.SIGHUP, -signal.SIGHUP),
    ],
)
def test_the_terminal_is_as_it_was_after_every_way_out(way_out: str | signal.Signals, code: int):
    with desk() as person:
        before = person.mode
        person.see("ready")
        assert not person.is_echoing
        if isinstance(way_out, str):
            person.type_keys(way_out)
        else:
            person.process.send_signal(way_out)
        person.process.wait(SECONDS)
        assert person.process.returncode in (code, -signal.SIGINT if code == 130 else code)
        assert person.mode == before


def test_a_key_counts_without_enter():
    with desk() as person:
        person.see("ready")
        person.type_keys("ab")
        person.see("<b>")


def test_a_stopped_command_gives_the_terminal_back_until_it_goes_on():
    with desk(SHELL.replace("PROGRAM", repr(PROGRAM))) as person:
        before = person.mode
        for _ in range(2):
            person.see("ready")
            person.type_keys("\x1a")
            person.see("stopped")
            assert person.mode == before
            person.type_keys("\n")
            wait_until(lambda: not person.is_echoing)
            person.type_keys("r")
        person.type_keys("q")
        assert person.process.wait(SECONDS) == 0 and person.mode == before


def test_what_is_typed_while_reading_is_paused_belongs_to_a_question():
    ask = "with keyboard.pause_reading():\n            input('name? ')\n        while"
    asking = PROGRAM.replace("while", ask).replace("ready", "begun").replace("ended.result()", "print('over')")
    with desk(asking) as person:
        person.see("name? ")
        assert person.is_echoing
        person.type_keys("qq\n")
        wait_until(lambda: not person.is_echoing)
        person.type_keys("q")
        person.see("over")
        assert person.process.wait(SECONDS) == 0
