"""Files that one process writes and its user alone can read: opened under a lock, or replaced as a whole."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from defserve.errors import UsageError

# On Windows a file is text unless it is said to be none; elsewhere a link must not lead the file astray.
_FLAGS: Final[int] = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def open_locked(path: Path, name: str) -> int:
    """A descriptor that appends to the file, which is made if need be. The lock ends with the process, however it ends.

    Raises UsageError, with the file called `name`, if it cannot be opened, is no file, or is locked by another.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | _FLAGS, 0o600)
    except OSError as error:
        raise UsageError(
            f"{name} {path} cannot be opened: {error.strerror}", fix="name a file in a folder that can be written"
        ) from None
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"{name} {path} is not a file", fix="name a file")
        if not _lock(file):
            raise UsageError(
                f"{name} {path} is open in another process or server", fix="give each process one of its own"
            )
        if os.name == "posix" and mode & 0o077:
            os.fchmod(file, 0o600)
    except BaseException:
        os.close(file)
        raise
    return file


def replace(path: Path, content: bytes) -> None:
    """Give a file new content, all at once, and return when that is on the disk. Raises OSError."""
    draft = path.with_name(f"{path.name}.new")
    file = os.open(draft, os.O_WRONLY | os.O_TRUNC | _FLAGS, 0o600)
    try:
        write(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(draft, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write(file: int, content: bytes) -> None:
    """Write all of it; the system may take it in pieces. Raises OSError."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


if sys.platform == "win32":
    import msvcrt

    # Far behind any content, since what is locked here cannot be read by others.
    _PLACE = 1 << 62

    def _lock(file: int) -> bool:
        os.lseek(file, _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
