"""Folders for what lasts as long as a process, and that only this user can use."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from defserve.errors import UsageError

OTHERS: Final = 0o077


def private_folders(name: str) -> Iterator[Path]:
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


def made_private_folder(name: str, content: str) -> Path:
    """The first folder that exists or can be made, and that nobody else can use.

    Raises UsageError, which calls what is to be written `content`.
    """
    problem = "there is no folder for it"
    for folder in private_folders(name):
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
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & OTHERS
