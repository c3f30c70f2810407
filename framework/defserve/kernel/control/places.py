"""Where the control sockets of kernels are: named after their file and their process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from defserve.errors import UsageError
from defserve.kernel.config.locating import OVERRIDE, locate, places
from defserve.stores.private_folder import is_private_folder, made_private_folder, private_folders

FOLDER: Final = "kernels"
LONGEST: Final = 100
"""Bytes of a socket's path that every system takes."""


def own_place(config: Path) -> Path:
    """The path of this process's socket. Several kernels may serve one file. Raises UsageError."""
    path = made_private_folder(FOLDER, "the control socket") / f"{_name(config)}-{os.getpid()}.sock"
    if len(os.fsencode(path)) > LONGEST:
        raise UsageError(
            f"the path of the control socket is too long: {path}", fix="set XDG_RUNTIME_DIR to a short one"
        )
    return path


def places_of(config: Path) -> dict[int, Path]:
    """The sockets of the kernels that serve a file, by process. Those that nobody listens on are left out."""
    found: dict[int, Path] = {}
    for folder in private_folders(FOLDER):
        if is_private_folder(folder):
            for path in sorted(folder.glob(f"{_name(config)}-*.sock")):
                process = path.stem.rpartition("-")[2]
                if process.isdecimal() and _listens(path, int(process)):
                    found.setdefault(int(process), path)
    return found


def located_kernel(given: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file whose kernel is asked. A kernel goes on without its file, and is found by the name of it."""
    try:
        return locate(given, environ)
    except UsageError:
        named = given or environ.get(OVERRIDE)
        gone = [Path(named).expanduser().absolute()] if named else places(environ)
        found = next((path for path in gone if places_of(path)), None)
        if found is None:
            raise
        return found


def _name(config: Path) -> str:
    return sha256(os.fsencode(os.path.realpath(config))).hexdigest()[:16]


def _listens(path: Path, process: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            # A kernel that starts has bound its socket and does not listen yet: only a dead one's is removed.
            # The folder is ours alone, so nobody else's file can be meant.
            if not _is_running(process):
                path.unlink(missing_ok=True)
            return False
        except OSError:
            return False
    return True


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
