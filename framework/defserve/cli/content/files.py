"""Bytes of a server, saved to a new file; and how a file that cannot be written is told."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from defserve.errors import UsageError

ENDINGS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "video/mp4": ".mp4",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/csv": ".csv",
}
OTHER: Final = ".bin"
LONGEST: Final = 60
WRITABLE: Final = "add --output DIR with a folder that you can write"


@contextmanager
def writing(fix: str) -> Generator[None]:
    """A file that the block cannot write is told with `fix`, as a UsageError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise UsageError(f"cannot write {error.filename}: {error.strerror}", fix=fix) from None


def save(data: bytes, name: str, kind: str, folder: str = ".") -> Path:
    """Write to a new file that is named after `name`, with a number if there is such a file. Raises UsageError.

    The folder is made if it is not there."""
    stem, ending = file_name(name, kind)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}", fix=WRITABLE) from None
    for number in count(1):
        path = Path(folder, f"{stem}{f'-{number}' if number > 1 else ''}{ending}")
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                file.write(data)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", fix=WRITABLE) from None
    raise AssertionError("unreachable")


def file_name(name: str, kind: str) -> tuple[str, str]:
    """A stem without anything that means something to a file system, and the ending of the media type."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2].partition("?")[0]).strip("-")
    ending = ENDINGS.get(kind.partition(";")[0].strip().lower(), OTHER)
    # `chart.png` of a URI ends with what the type adds.
    return stem.removesuffix(ending.replace(".", "-"))[:LONGEST] or "content", ending
