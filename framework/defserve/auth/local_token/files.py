"""The files that hold local tokens: one for each address, readable by its owner alone, removed when the server ends.

A server locks its file for as long as it lives. So the file of a server that was killed is known by its free lock: its
key is shown to nobody, since another program may listen there.

A key that clients have in their settings is *kept*: a server that starts at that address again uses it again.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from defserve.base.folders import only_change
from defserve.errors import UsageError
from defserve.stores.files import config_file, write
from defserve.stores.private_folder import OTHERS, is_private_folder, made_private_folder, private_folders

# An IP address and a port.
Place = tuple[str, int]

FOLDER: Final = "local-tokens"
KEPT_FOLDER: Final = "kept-local-tokens"
_KEY: Final = re.compile(rb"[A-Za-z0-9_-]{43}")


@contextmanager
def published(places: Iterable[Place]) -> Generator[str]:
    """The key of a server that has bound these addresses, in files for as long as the block runs.

    Nobody else can serve there, so whatever lies at the place of a file is replaced.
    Raises UsageError if no file can be written that others cannot read.
    """
    places = list(places)
    key = next((found for place in places if (found := _read(_kept(place)))), None) or secrets.token_urlsafe(32)
    folder = made_private_folder(FOLDER, "the local token")
    with ExitStack() as files:
        for place in places:
            files.enter_context(_held(folder / _name(place), key))
        yield key


@contextmanager
def _held(path: Path, key: str) -> Generator[None]:
    """A locked file with the key, while the block runs. Only forks inherit the lock, and they have the sockets too."""
    file = _write(path, key)
    try:
        yield
    finally:
        _remove(path, file)
        os.close(file)


def read_key(place: Place) -> str | None:
    """The key of the server that runs at an address now, if it is one of this user."""
    paths = (folder / _name(place) for folder in private_folders(FOLDER))
    return next((found for path in paths if (found := _read(path, of_living=True))), None)


def keep_key(place: Place) -> str | None:
    """The key of the server that runs at an address now, and from now on of every server that starts there.

    Raises UsageError if it cannot be kept.
    """
    key, path = read_key(place), _kept(place)
    if key is not None and _read(path) != key:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(_write(path, key))
        except OSError as error:
            raise _unwritable(path, error) from None
    return key


def _kept(place: Place) -> Path:
    return config_file(KEPT_FOLDER) / _name(place)


def _name(place: Place) -> str:
    return f"{place[0]}_{place[1]}"


# -- files -----------------------------------------------------------------------------------------------


def _write(path: Path, key: str) -> int:
    """Put a new file in place of whatever is there. The file is locked until it is closed. Raises UsageError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = -1
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        _is_locked(file, shared=False)
        write(file, key.encode())
        with only_change(path.parent):
            os.rename(draft, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        if file >= 0:
            os.close(file)
        raise _unwritable(path, error) from None
    return file


def _read(path: Path, *, of_living: bool = False) -> str | None:
    """The key in a file, if the file and its folder are this user's and nobody else can read them.

    With `of_living`, only if the server that wrote it lives. What a dead one left is removed.
    """
    if not is_private_folder(path.parent):
        return None
    try:
        # Without blocking: something else than a file may lie there.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & OTHERS:
            return None
        # Shared, so that clients do not take each other for the server.
        if of_living and not _is_locked(file, shared=True):
            _remove(path, file)
            return None
        content = os.read(file, 256)
    finally:
        os.close(file)
    return content.decode() if _KEY.fullmatch(content) else None


def _remove(path: Path, file: int) -> None:
    """Remove an open file from its place. Another server may have taken the place since: then its file stays."""
    with suppress(OSError), only_change(path.parent):
        if os.path.samestat(os.lstat(path), os.fstat(file)):
            os.unlink(path)


def _is_locked(file: int, *, shared: bool) -> bool:
    """Whether another process has locked a file. If not, it is locked until it is closed.

    A file system without locks leaves no way to tell: then files count as locked.
    """
    import fcntl  # not on every system; local tokens are for those that have it

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"the local token {path} cannot be written: {error.strerror}", fix="check that folder")
