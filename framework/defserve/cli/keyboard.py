"""Single keys of the terminal, while a command runs. The terminal is as it was after every way out.

A stopped command (Ctrl-Z) gives the terminal back, and takes it again when it goes on. In the background nothing of the
terminal is touched: the system would stop the command for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

MAX_KEYS_READ: Final = 64
LAST_SIGNALS: Final = ("SIGQUIT", "SIGHUP")
"""Signals that end a command without any of its own code, unless it listens."""


def can_read_keys() -> bool:
    """Whether a person sits at standard input, and this system can give us single keys."""
    return os.name == "posix" and sys.stdin.isatty()


class Keyboard:
    """`with Keyboard(take_key)`: gives each key that is pressed to `take_key`, on the running loop. It is not shown."""

    def __init__(self, take_key: Callable[[str], None]) -> None:
        self._take_key = take_key
        self._loop = asyncio.get_running_loop()
        self._terminal = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._is_paused = False

    def __enter__(self) -> Keyboard:
        self._take_terminal()
        self._loop.add_reader(self._terminal, self._read_keys)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._loop.add_signal_handler(signal.SIGCONT, self._take_terminal)
        for name in LAST_SIGNALS:
            self._loop.add_signal_handler(getattr(signal, name), self._end, getattr(signal, name))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._terminal)
        for number in (signal.SIGTSTP, signal.SIGCONT, *(getattr(signal, name) for name in LAST_SIGNALS)):
            self._loop.remove_signal_handler(number)
        self._give_terminal_back()

    @contextmanager
    def pause_reading(self) -> Generator[None]:
        """While the block runs, what is typed belongs to somebody else, and is shown: a question is asked."""
        self._is_paused = True
        self._loop.remove_reader(self._terminal)
        self._give_terminal_back()
        try:
            yield
        finally:
            self._is_paused = False
            self._take_terminal()
            self._loop.add_reader(self._terminal, self._read_keys)

    def _read_keys(self) -> None:
        if not self._is_in_foreground():
            return
        try:
            pressed = os.read(self._terminal, MAX_KEYS_READ)
        except OSError:  # the terminal has gone
            pressed = b""
        if not pressed:
            self._loop.remove_reader(self._terminal)
        for key in pressed.decode(errors="replace"):
            self._take_key(key)

    def _take_terminal(self) -> None:
        """Keys come one by one and are not shown. Signals and line ends stay as they are."""
        import termios
        import tty

        if self._is_paused or not self._is_in_foreground():
            return
        with suppress(termios.error):  # the terminal has gone
            before = termios.tcgetattr(self._terminal)
            self._before = self._before or before
            tty.setcbreak(self._terminal, termios.TCSADRAIN)

    def _give_terminal_back(self) -> None:
        import termios

        if self._before is not None and self._is_in_foreground():
            with suppress(termios.error):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        self._before = None

    def _is_in_foreground(self) -> bool:
        """Whether we may use the terminal. One that is not of our session knows no background."""
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return True

    def _stop(self) -> None:
        """Stop as Ctrl-Z does, and go on when the shell says so. In the background, `SIGCONT` takes the terminal."""
        self._give_terminal_back()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        signal.raise_signal(signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._take_terminal()

    def _end(self, number: signal.Signals) -> None:
        """End as the signal does, with the terminal given back."""
        self._give_terminal_back()
        self._loop.remove_signal_handler(number)
        signal.raise_signal(number)
