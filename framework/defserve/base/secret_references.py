"""Secrets by reference: a setting names where its secret is, and never holds it.

    file:/run/secrets/token            the content of a file; `$NAME` in the path is a variable, `~` the home folder
    command:op read op://team/api/key  what a program prints; it is started without a shell
    anything else                      is the secret itself

A file is read again when it changes, and a program is run again after `COMMAND_SECONDS`. What was read is kept in
memory only, and appears in no message: an error names the reference, and says how to fix it.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from defserve.base.redaction import get_logger
from defserve.errors import UsageError

MAX_SECRET_BYTES: Final = 64 * 1024
COMMAND_SECONDS: Final = 300.0
"""How long what a program has printed counts."""
RUN_SECONDS: Final = 30.0
"""How long a program may take."""
RETRY_SECONDS: Final = 5.0
"""When something that failed is tried again, while what was read before still counts."""

FILE: Final = "file:"
COMMAND: Final = "command:"
_KINDS: Final = (FILE, COMMAND)

log = get_logger()


def is_secret_reference(text: str) -> bool:
    """Whether a setting names where its secret is."""
    return text.startswith(_KINDS)


def check_secret_reference(text: str, what: str) -> None:
    """Raises UsageError for a reference that can never be read. Nothing is read yet."""
    rest = text.partition(":")[2]
    if text.startswith(FILE) and not os.path.isabs(_expand(rest)) and "$" not in rest:
        raise UsageError(
            f"{what}: {text[:200]!r} is not the absolute path of a file", fix="write file:/run/secrets/NAME"
        )
    if text.startswith(COMMAND):
        _split_command(text, what)


class SecretReader:
    """Reads references, and again when they have changed. From any thread.

    `run` starts a program and gives what it prints; `clock` counts seconds.
    """

    def __init__(
        self,
        *,
        run: Callable[[list[str]], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._clock, self._lock = run or run_program, clock, threading.Lock()
        self._kept: dict[str, _Reading] = {}  # one for each reference that an operator wrote

    def read_secret(self, reference: str, what: str = "a secret") -> str:
        """The secret, as it is now. Raises UsageError if it cannot be read, and was never read before."""
        with self._lock:
            kept = self._kept.get(reference)
            if kept is not None and self._is_current(reference, kept):
                return kept.values[0]
            stamp, now = self._stamp(reference), self._clock()
            try:
                value = self._read_anew(reference, what)
            except UsageError as error:
                if kept is None:
                    raise
                log.warning("%s; what was read before still counts", error.problem)
                self._kept[reference] = kept._replace(stamp=stamp, until=now + RETRY_SECONDS)
                return kept.values[0]
            before = tuple(each for each in (kept.values if kept is not None else ()) if each != value)
            until = now + (COMMAND_SECONDS if reference.startswith(COMMAND) else float("inf"))
            self._kept[reference] = _Reading((value, *before[:1]), stamp, until)
            return value

    def list_recent_values(self, reference: str) -> tuple[str, ...]:
        """What a reference has given, this time and the time before: to be hidden in what is shown."""
        kept = self._kept.get(reference)
        return kept.values if kept is not None else ()

    def _is_current(self, reference: str, kept: _Reading) -> bool:
        is_same_file = reference.startswith(COMMAND) or self._stamp(reference) == kept.stamp
        return is_same_file and self._clock() < kept.until

    def _stamp(self, reference: str) -> tuple[int, ...]:
        """What differs when the file does."""
        if not reference.startswith(FILE):
            return ()
        try:
            found = os.stat(_expand(reference.removeprefix(FILE)))
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read_anew(self, reference: str, what: str) -> str:
        if reference.startswith(FILE):
            content = _read_file(reference, what)
        else:
            words = _split_command(reference, what)
            try:
                content = self._run(words)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{what}: the program {words[0]} gives no secret: {error}",
                    fix="run the command by hand, as the user that this server runs as, and see what it says",
                ) from None
        shown = reference if reference.startswith(FILE) else f"{COMMAND}{_split_command(reference, what)[0]} …"
        if len(content) > MAX_SECRET_BYTES:
            raise UsageError(f"{what}: {shown} gives more than {MAX_SECRET_BYTES} bytes", fix="name a secret alone")
        try:
            value = content.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            value = ""
        if not value.strip() or "\0" in value:
            raise UsageError(f"{what}: {shown} gives no text", fix="put the secret there, as text")
        return value


class _Reading(NamedTuple):
    """What was read: the value and the one before it. It counts while the file has this stamp, and `until` then."""

    values: tuple[str, ...]
    stamp: tuple[int, ...]
    until: float


class SecretSetting:
    """A secret as a setting gives it: the text itself, or a reference that is read when the secret is needed.

    Raises UsageError for a reference that can never be read. `what` is what messages call it.
    """

    __slots__ = ("_text", "_what", "_reader")

    def __init__(self, text: str, what: str) -> None:
        self._text, self._what, self._reader = text, what, None
        if is_secret_reference(text):
            check_secret_reference(text, what)
            self._reader = SecretReader()

    def __repr__(self) -> str:
        return "SecretSetting(…)"

    def read_secret(self) -> str:
        """The secret, as it is now. A program is waited for. Raises UsageError."""
        return self._text if self._reader is None else self._reader.read_secret(self._text, self._what)

    async def load_secret(self) -> str:
        """The same in an event loop, which goes on meanwhile."""
        if self._reader is None or self._text.startswith(FILE):
            return self.read_secret()
        from anyio import to_thread

        return await to_thread.run_sync(self.read_secret)


def read_secret_setting(text: str, what: str) -> str:
    """The secret that a setting means, read once. Raises UsageError."""
    return SecretSetting(text, what).read_secret()


# -- Files and programs.


def _expand(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path))


def _read_file(reference: str, what: str) -> bytes:
    path = _expand(reference.removeprefix(FILE))
    if not os.path.isabs(path):
        raise UsageError(
            f"{what}: {reference!r} names no file: a variable in it is not set", fix="set it, or leave it out"
        )
    try:
        with open(path, "rb") as file:
            return file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{what}: {reference} cannot be read: {error.strerror}",
            fix="check the path, and that the user that this server runs as may read it",
        ) from None


def _split_command(reference: str, what: str) -> list[str]:
    try:
        words = shlex.split(reference.removeprefix(COMMAND))
    except ValueError:
        words = []
    if not words:
        raise UsageError(
            f"{what}: there is no command line after `command:`", fix="write command:op read op://VAULT/ITEM/FIELD"
        )
    if bad := [word for word in words if re.fullmatch(r"[|&;<>]+", word)]:
        raise UsageError(
            f"{what}: {bad[0]!r} in a command means nothing without a shell",
            fix="name one program that prints the secret; put more into a script of your own",
        )
    return words


def run_program(words: list[str]) -> bytes:
    """What a program prints. It gets no input, and has `RUN_SECONDS`. Raises OSError, ValueError.

    What it writes to stderr is not shown: nobody knows what is in it.
    """
    import signal
    from subprocess import DEVNULL, PIPE, Popen

    is_group = os.name == "posix"
    process: Any = Popen(words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=is_group)
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL) if is_group else process.kill()

    timer = threading.Timer(RUN_SECONDS, end)
    timer.start()
    try:
        printed: bytes = process.stdout.read(MAX_SECRET_BYTES + 1)
        if len(printed) > MAX_SECRET_BYTES:
            end()
        code = process.wait()
    finally:
        timer.cancel()
        process.stdout.close()
    if is_late.is_set() and len(printed) <= MAX_SECRET_BYTES:
        raise TimeoutError(f"it takes more than {RUN_SECONDS:g} s")
    if code != 0 and len(printed) <= MAX_SECRET_BYTES:
        raise ValueError(f"it ends with the code {code}")
    return printed
