"""Small values of an SQLite file as they were last seen here, good as long as nobody else writes to it.

So whoever asks for one need not wait for a thread. Whether somebody else has written is told by two numbers in a file
beside the store's: of the commit begun last, raised within its transaction, so by one at a time; and of one that is
done, written after it, so maybe late. If the first is not what it was left at here, or the two differ because somebody
is amid a commit or died there, it means: look into the store.

What is written never rests on this: in its transaction the writer asks SQLite itself whether others have been there.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

SMALL: Final = 512
MOST: Final = 8192
BESIDE: Final = "-tally"

Place = tuple[str, str]
"""A space and a name."""

_BYTES: Final = 16
_BEGUN: Final = 0
_DONE: Final = 1
_NEVER: Final = -1
_HIGHEST: Final = 1 << 62


class Seen:
    """What is known of the file at `path`. Anybody may ask; one thread reads and one writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[Place, bytes] = {}
        self._tally: memoryview | None = None
        self._known = self._mine = _NEVER
        self._lock = Lock()

    def open(self) -> None:
        """Find the numbers, or begin to count, in a file for those who may use the store's. Raises OSError."""
        if self._tally is None:
            with self._lock:
                self._tally = self._tally or _mapped(self._path)

    def close(self) -> None:
        """Know nothing any more."""
        with self._lock:
            self._forget()
            self._tally = None

    def find(self, space: str, names: Sequence[str]) -> dict[str, bytes] | None:
        """The values of these names; None if one of them is not known for sure. Waits for nobody."""
        tally = self._tally
        known = self._known
        if tally is None or tally[_BEGUN] != known:
            return None
        found: dict[str, bytes] = {}
        for name in names:
            value = self._values.get((space, name))
            if value is None:
                return None
            found[name] = value
        # Those of one commit and the next must not come together.
        return found if self._known == known else None

    # -- reading -----------------------------------------------------------------------------------------

    def look(self) -> int:
        """Before values are read: the number to hand to `learn`."""
        with self._lock:
            if self._tally is None:
                return _NEVER
            number = self._tally[_BEGUN]
            is_done = self._tally[_DONE] == number
            if number != self._known:
                self._forget()
                if is_done:
                    self._known = number
            # What is read amid a commit, be it an own one, may be from before it or after.
            return number if is_done else _NEVER

    def learn(self, values: Mapping[Place, bytes], number: int) -> None:
        """These were read since, and do not expire."""
        with self._lock:
            # An own commit meanwhile may have come after what was read.
            if number != _NEVER and self._known == number:
                self._keep(values)

    # -- writing, within a transaction -------------------------------------------------------------------

    def known(self, *, is_alone: bool) -> Mapping[Place, bytes]:
        """What is known of the store as it is now, if nobody else has written to it."""
        with self._lock:
            if self._tally is None or self._tally[_BEGUN] != self._known or not is_alone:
                self._forget()
            return self._values

    def begin(self, places: Iterable[Place]) -> None:
        """Say that a commit follows, and of what: others may see it before its writer hears that it is done.

        Raises OSError.
        """
        with self._lock:
            # A store that is being closed may have let go of it just now.
            self._tally = tally = self._tally or _mapped(self._path)
            self._mine = self._known = tally[_BEGUN] = _next(tally[_BEGUN])
            for place in places:
                self._values.pop(place, None)

    def end(self, outcome: Mapping[Place, bytes | None]) -> None:
        """Say that it is done, and what came of it: values, or None where there is none that lasts."""
        with self._lock:
            # If the next writer came the moment the transaction ended, and that was noticed, this is no news.
            if self._known == self._mine:
                self._keep(outcome)
            self._say_it_is_done()

    def fail(self) -> None:
        """Say that nothing more follows; whether anything was committed is not known."""
        with self._lock:
            self._forget()
            self._say_it_is_done()

    def _say_it_is_done(self) -> None:
        # Should the next writer come just now, the two numbers differ until the one after it: no harm.
        if self._tally is not None and self._tally[_BEGUN] == self._mine:
            self._tally[_DONE] = self._mine
        self._mine = _NEVER

    def _keep(self, values: Mapping[Place, bytes | None]) -> None:
        if len(self._values) + len(values) > MOST:
            self._values.clear()
        for place, value in values.items():
            if value is not None and len(value) <= SMALL:
                self._values[place] = value
            else:
                self._values.pop(place, None)

    def _forget(self) -> None:
        self._values.clear()
        self._known = _NEVER


def _next(number: int) -> int:
    """One more. To begin with, or again in a file that somebody has emptied, one that nobody knows."""
    return number + 1 if 0 < number < _HIGHEST else 1 + int.from_bytes(os.urandom(6))


def _mapped(path: Path) -> memoryview:
    # Links are followed, as SQLite does: by whatever name, there is one file beside the one.
    store = os.path.realpath(path)
    like = os.stat(store)
    try:
        file = os.open(f"{store}{BESIDE}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        is_new = True
    except FileExistsError:
        file = os.open(f"{store}{BESIDE}", os.O_RDWR | os.O_CREAT, 0o600)
        is_new = False
    try:
        if is_new and os.name == "posix":
            # Whatever the umask; and root, who may pass by first, must not keep out those whose store it is.
            if os.geteuid() == 0:
                os.fchown(file, like.st_uid, like.st_gid)
            os.fchmod(file, like.st_mode & 0o777)
        if os.fstat(file).st_size < _BYTES:
            # Written, not only made longer, so it has its room on the disk; and nothing that another may have counted.
            os.lseek(file, _BYTES - 1, os.SEEK_SET)
            os.write(file, b"\0")
        return memoryview(mmap.mmap(file, _BYTES)).cast("Q")
    finally:
        os.close(file)
