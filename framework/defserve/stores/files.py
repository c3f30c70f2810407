"""Files that only their owner can read: one that is locked, one that is replaced as a whole, a secret made once.

Below: folders of this user, and the messages about stored data that another version of defserve wrote.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from defserve.errors import UsageError

# On Windows a file is text unless it is opened as binary. Elsewhere a symbolic link must not redirect the file.
_FLAGS: Final[int] = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

LOCK_SECONDS: Final = 10.0
LOCK_POLL_SECONDS: Final = 0.005
LATER_SECRET: Final = b"defserve-secret-format:"
"""In format 1 a secret is the whole text of its file. A file of a later format begins with this and its number."""


def open_locked_file(path: Path, name: str) -> int:
    """Open a file to append to, and lock it. A missing file is created. The lock ends with the process.

    Raises UsageError if it cannot be opened, is not a file, or is locked elsewhere. The message calls it `name`.
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
                f"{name} {path} is open in another process or server", fix="use another file for each process or server"
            )
        if os.name == "posix" and mode & 0o077:
            os.fchmod(file, 0o600)
    except BaseException:
        os.close(file)
        raise
    return file


@contextmanager
def hold_file_lock(path: Path, seconds: float = LOCK_SECONDS) -> Generator[None]:
    """Hold the lock that this file stands for; whoever else wants it waits. The lock ends with the process.

    Raises OSError if the file cannot be made, and TimeoutError if another holds it for too long.
    """
    file = os.open(path, os.O_RDWR | _FLAGS, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _lock(file):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is locked by another process for more than {seconds:g} s")
            time.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(file)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file as a whole, and return when it is on the disk. Raises OSError."""
    draft = path.with_name(f"{path.name}.new")
    file = os.open(draft, os.O_WRONLY | os.O_TRUNC | _FLAGS, 0o600)
    give_to_owner_of(path, file)
    _write_synced(file, content)
    os.replace(draft, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def give_to_owner_of(path: Path, file: int) -> None:
    """Give a file that is open to the owner of the one at `path`, if there is one. Only root can, and has to."""
    if os.name == "posix" and os.geteuid() == 0:
        with suppress(OSError):
            status = os.stat(path)
            if os.fstat(file).st_nlink == 1:  # or it is also another file, which somebody has linked here
                os.fchown(file, status.st_uid, status.st_gid)


def write_fully(file: int, content: bytes) -> None:
    """Write the whole content: one system call may write only a part of it. Raises OSError."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _write_synced(file: int, content: bytes) -> None:
    """Fill a new file, and close it when its content is on the disk."""
    try:
        write_fully(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def get_user_file_path(name: str) -> Path:
    """A file in the user's own defserve folder. It need not exist."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "defserve", name)


def read_private_file(path: Path, name: str, limit: int = -1) -> bytes:
    """The content of a file, at most `limit` bytes. `name` is what a message calls it.

    Raises UsageError if others can read it, and OSError.
    """
    with path.open("rb") as file:
        if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
            raise UsageError(f"{name} {path} can be read by others", fix=f"chmod 600 {path}")
        return file.read(limit)


def read_secret(path: Path, name: str) -> bytes:
    """The secret in a file. Raises UsageError if it is empty or others can read it. The message calls it `name`."""
    secret = read_private_file(path, name, 4096).strip()
    if not secret:
        raise UsageError(f"{name} {path} is empty", fix="remove it, and a new one is made")
    if secret.startswith(LATER_SECRET):
        found = secret.removeprefix(LATER_SECRET).split()[0].decode(errors="replace")
        raise UsageError(
            make_newer_format_message(f"{name} {path}", found, 1), fix="use the defserve that made it, or a later one"
        )
    return secret


def make_secret(path: Path, name: str) -> bytes:
    """A new secret of 256 bits, kept in the file; or the secret that is there already. Raises OSError."""
    import secrets

    secret = secrets.token_urlsafe(32).encode()
    # The file is linked into place when it is complete: two processes that make one at once must use the same secret.
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        file = os.open(draft, os.O_WRONLY | os.O_EXCL | _FLAGS, 0o600)
        try:
            _write_synced(file, secret + b"\n")
            os.link(draft, path)
        finally:
            draft.unlink()
    except FileExistsError:
        return read_secret(path, name)
    return secret


def load_secret_file(path: Path, name: str, *, make: bool, fix: str) -> bytes:
    """The secret in a file. With `make`, a missing one is made. Raises UsageError with this `fix`."""
    try:
        return read_secret(path, name)
    except FileNotFoundError:
        if not make:
            raise UsageError(f"{name} {path} does not exist", fix=fix) from None
    except OSError as error:
        raise UsageError(f"{name} {path} cannot be read: {error.strerror}", fix=fix) from None
    try:
        return make_secret(path, name)
    except OSError as error:
        raise UsageError(f"{name} {path} cannot be made: {error.strerror}", fix=fix) from None


if sys.platform == "win32":
    import msvcrt

    # Far behind any content, because no other process can read locked bytes.
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


# -- Folders for what lasts as long as a process, and that only this user can use.


OTHERS_MODE_BITS: Final = 0o077


def list_possible_private_folders(name: str) -> Iterator[Path]:
    """Where the folder may be, the best place first. A client may lack a variable that its server has.

    `DEFSERVE_RUNTIME_DIR` names the only place.
    """
    if (only := os.environ.get("DEFSERVE_RUNTIME_DIR")) and os.path.isabs(only):
        yield Path(only, name)
        return
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    for base in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}", state):
        if base and os.path.isabs(base):
            yield Path(base, "defserve", name)


def make_private_folder(name: str, content: str) -> Path:
    """The first folder that exists or can be made, and that nobody else can use.

    Raises UsageError, which calls what is to be written `content`.
    """
    problem = "there is no folder for it"
    for folder in list_possible_private_folders(name):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
            continue
        if is_private_folder(folder):
            return folder
        problem = f"{folder} belongs to somebody else, or others can use it"
    raise UsageError(f"{content} cannot be written: {problem}", fix="chmod 700 that folder, or set XDG_RUNTIME_DIR")


def is_private_folder(folder: Path) -> bool:
    """Whether it is a folder of this user that others can neither read nor change."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & OTHERS_MODE_BITS


# -- The messages about stored data that another version of defserve wrote. `stores/__init__.py` has the rule.


UNOWNED_VALUES_PROBLEM: Final = (
    "The store has values of defserve 0.1.0, which do not say which server they belong to; "
    "say it once: defserve state adopt STORE --server NAME"
)


def make_newer_format_message(what: str, found: object, known: int) -> str:
    """The message for `what`, which has the format `found`, where this version reads up to `known`."""
    return f"{what} has format {found}; this version of defserve reads up to format {known}: upgrade defserve"
