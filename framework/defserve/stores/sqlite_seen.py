"""Small values of an SQLite file as they were last seen here, good as long as nobody else writes to it.

So whoever asks for one need not wait for a thread. Whether somebody else has written is told by a number in a file
beside the store's, which each process raises before it commits, to an odd one, and again after. A number that is
not what it was left at here, or that a process died with, means: look into the store.

What is written never rests on this: in its transaction the writer asks SQLite itself whether others have been there.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

SMALL: Final = 512
MOST: Final = 8192
BESIDE: Final = "-tally"

Place = tuple[str, str]
"""A space and a name."""

_BYTES: Final = 8
_NEVER: Final = -1


class Seen:
    """What is known. Anybody may ask; one thread reads and one writes."""

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path}{BESIDE}")
        self._values: dict[Place, bytes] = {}
        self._tally: memoryview | None = None
        self._known = _NEVER
        self._lock = Lock()

    def open(self, mode: Callable[[], int]) -> None:
        """Find the number, or begin to count, in a file of this mode. Raises OSError."""
        if self._tally is None:
            with self._lock:
                self._tally = self._tally or _mapped(self._path, mode())

    def close(self) -> None:
        """Know nothing any more."""
        with self._lock:
            self._forget()
            self._tally = None

    def find(self, space: str, names: Sequence[str]) -> dict[str, bytes] | None:
        """The values of these names; None if one of them is not known for sure. Waits for nobody."""
        tally = self._tally
        if tally is None or tally[0] != self._known:
            return None
        found: dict[str, bytes] = {}
        for name in names:
            value = self._values.get((space, name))
            if value is None:
                return None
            found[name] = value
        return found

    # -- reading -----------------------------------------------------------------------------------------

    def look(self) -> int:
        """Before values are read: the number to hand to `learn`."""
        with self._lock:
            if self._tally is None:
                return _NEVER
            number = self._tally[0]
            if number != self._known:
                self._forget()
                if number % 2 == 0:
                    self._known = number
            return self._known

    def learn(self, values: Mapping[Place, bytes], number: int) -> None:
        """These were read since, and do not expire."""
        with self._lock:
            # An own commit meanwhile may have come after what was read.
            if number != _NEVER and self._known == number and number % 2 == 0:
                self._keep(values)

    # -- writing, within a transaction -------------------------------------------------------------------

    def known(self, *, is_alone: bool) -> Mapping[Place, bytes]:
        """What is known of the store as it is now, if nobody else has written to it."""
        with self._lock:
            if self._tally is None or self._tally[0] != self._known or not is_alone:
                self._forget()
            return self._values

    def begin(self) -> None:
        """Say that a commit follows."""
        with self._lock:
            assert self._tally is not None
            number = self._tally[0]
            self._known = self._tally[0] = number + 1 + number % 2

    def end(self, outcome: Mapping[Place, bytes | None]) -> None:
        """Say that it is done, and what came of it: values, or None where there is none that lasts."""
        with self._lock:
            self._keep(outcome)
            self._say_it_is_done()

    def fail(self) -> None:
        """Say that nothing more follows; whether anything was committed is not known."""
        with self._lock:
            self._values.clear()
            if self._known % 2 == 1:
                self._say_it_is_done()

    def _say_it_is_done(self) -> None:
        # The next writer may have come the moment the transaction ended: then the number is its business.
        if self._tally is not None and self._tally[0] == self._known:
            self._known = self._tally[0] = self._known + 1
        else:
            self._forget()

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


def _mapped(path: Path, mode: int) -> memoryview:
    file = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if os.fstat(file).st_size < _BYTES:
            # Written, not only made longer, so it has its room on the disk; and nothing that another may have counted.
            os.lseek(file, _BYTES - 1, os.SEEK_SET)
            os.write(file, b"\0")
        return memoryview(mmap.mmap(file, _BYTES)).cast("Q")
    finally:
        os.close(file)
