"""The files that hold local tokens: one for each address, readable by its owner alone, removed when the server ends.

A key that clients have in their settings is *kept*: a server that starts at that address again uses it again.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

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

    Nobody else can serve there, so a file that is left there belongs to a server that was killed, and is replaced.
    Raises UsageError if no file can be written that others cannot read.
    """
    places = list(places)
    key = next((found for place in places if (found := _read(_kept(place)))), None) or secrets.token_urlsafe(32)
    folder = made_private_folder(FOLDER, "the local token")
    paths = [folder / _name(place) for place in places]
    try:
        for path in paths:
            _write(path, key)
        yield key
    finally:
        for path in paths:
            with suppress(OSError):
                # Another server may have taken the address since.
                if _read(path) == key:
                    os.unlink(path)


def read_key(place: Place) -> str | None:
    """The key of the server that runs at an address now, if it is one of this user."""
    return next((found for folder in private_folders(FOLDER) if (found := _read(folder / _name(place)))), None)


def keep_key(place: Place) -> str | None:
    """The key of the server that runs at an address now, and from now on of every server that starts there.

    Raises UsageError if it cannot be kept.
    """
    key, path = read_key(place), _kept(place)
    if key is not None and _read(path) != key:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, key)
        except OSError as error:
            raise _unwritable(path, error) from None
    return key


def _kept(place: Place) -> Path:
    return config_file(KEPT_FOLDER) / _name(place)


def _name(place: Place) -> str:
    return f"{place[0]}_{place[1]}"


# -- files -----------------------------------------------------------------------------------------------


def _write(path: Path, key: str) -> None:
    """Put a new file in place of whatever is there. Raises UsageError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            write(file, key.encode())
        finally:
            os.close(file)
        os.rename(draft, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        raise _unwritable(path, error) from None


def _read(path: Path) -> str | None:
    """The key in a file, if the file and its folder are this user's and nobody else can read them."""
    if not is_private_folder(path.parent):
        return None
    try:
        # Without blocking: something else than a file may lie there.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & OTHERS
        content = os.read(file, 256) if is_ours else b""
    finally:
        os.close(file)
    return content.decode() if _KEY.fullmatch(content) else None


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"the local token {path} cannot be written: {error.strerror}", fix="check that folder")
