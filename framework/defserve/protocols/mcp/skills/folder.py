"""Reads a folder once: every file with its bytes and digest, each folder below that holds a skill of its own."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from defserve.errors import UsageError

SKILL_FILE: Final = "SKILL.md"
MOST_FILES: Final = 512
MOST_BYTES: Final = 16 * 1024 * 1024
DEEPEST: Final = 16
"""Of one skill (SEP-2640: limits), and how deep its folders may be."""

_NOT_PORTABLE: Final = re.compile(r"[\x00-\x1f/\\:]")
_CACHES: Final = frozenset({"__pycache__", "node_modules"})
# O_NOFOLLOW: what was looked at is what is opened. O_NONBLOCK: a pipe that took its place cannot hold us up.
_FLAGS: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def is_portable(name: str) -> bool:
    """Whether a name of a file is nothing but that, on every system."""
    return name not in ("", ".", "..") and not _NOT_PORTABLE.search(name)


class SkillFile(NamedTuple):
    """A file as it was read. `path` is relative to the folder that was read, with slashes."""

    path: str
    data: bytes
    digest: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class LeftOut(NamedTuple):
    """A file or folder that is not served, and why."""

    path: str
    reason: str


class Folder(NamedTuple):
    """What a folder held when it was read."""

    root: Path
    files: tuple[SkillFile, ...]
    left_out: tuple[LeftOut, ...]

    def below(self, path: str) -> Folder:
        """One of its folders, with paths that begin there."""
        start = f"{path}/" if path else ""
        files = [file._replace(path=file.path[len(start) :]) for file in self.files if file.path.startswith(start)]
        left = [one._replace(path=one.path[len(start) :]) for one in self.left_out if one.path.startswith(start)]
        return Folder(self.root / path, tuple(files), tuple(left))


class Room:
    """How much more a server may hold in memory. What several skills share is counted once."""

    def __init__(self, files: int, size: int) -> None:
        self.files, self.size = files, size

    def take(self, folder: Folder) -> None:
        """Raises UsageError if there is no room for it."""
        files, size = len(folder.files), sum(len(file.data) for file in folder.files)
        if files > self.files or size > self.size:
            raise UsageError(
                f"the skills of this server are too large together: {files} files of {size} bytes in {folder.root}, "
                f"and room for {self.files} of {self.size} bytes",
                fix="move large data out of the skills, or serve some of them from another server",
            )
        self.files, self.size = self.files - files, self.size - size


def read_folder(root: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> Folder:
    """Every file below `root`. Raises UsageError if it is no folder, is too large or cannot be read."""
    if not root.is_dir():
        raise UsageError(
            f"there is no folder {str(root)!r}", fix="a relative path starts in the folder of the file that names it"
        )
    files: list[SkillFile] = []
    left_out: list[LeftOut] = []
    room = most_bytes
    try:
        for path, found in _walk(root, Path(os.path.realpath(root)), "", left_out):
            if len(files) == most_files:
                raise _too_large(root, f"more than {most_files} files")
            data = _bytes(found, room)
            if data is None:
                left_out.append(LeftOut(path, "it is not a plain file"))
                continue
            if len(data) > room:
                raise _too_large(root, f"more than {most_bytes} bytes")
            room -= len(data)
            files.append(SkillFile(path, data, f"sha256:{hashlib.sha256(data).hexdigest()}"))
    except OSError as error:
        raise _unreadable(root, error) from None
    return Folder(root, tuple(files), tuple(left_out))


def find_skills(root: Path) -> list[Path]:
    """The outermost folders below `root` with a `SKILL.md`, in order. Links are not followed. Raises UsageError."""
    try:
        return list(_find(root, DEEPEST)) if root.is_dir() else []
    except OSError as error:
        raise _unreadable(root, error) from None


def _find(folder: Path, depth: int) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in _CACHES or not entry.is_dir(follow_symlinks=False):
            continue
        if os.path.lexists(os.path.join(entry.path, SKILL_FILE)):
            yield Path(entry.path)
        elif depth:
            yield from _find(Path(entry.path), depth - 1)


def _walk(folder: Path, root: Path, inside: str, left_out: list[LeftOut]) -> Iterator[tuple[str, Path]]:
    """Path in the skill → where its bytes are. Sorted, so that lists and pages are the same on every machine."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path, found = f"{inside}{entry.name}", Path(entry.path)
        if reason := _reason(entry, path, root):
            left_out.append(LeftOut(path, reason))
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(found, root, f"{path}/", left_out)
        else:
            yield path, Path(os.path.realpath(found)) if entry.is_symlink() else found


def _reason(entry: os.DirEntry[str], path: str, root: Path) -> str | None:
    """Why an entry is not served; None if it is."""
    if entry.name.startswith("."):
        return "it is hidden"
    if entry.name in _CACHES:
        return "it is a cache"
    if not is_portable(entry.name):
        return "its name means something else on other systems"
    if path.count("/") >= DEEPEST:
        return f"it is deeper than {DEEPEST} folders"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if entry.is_symlink():
        target = Path(os.path.realpath(entry.path))
        if not target.is_relative_to(root):
            return "it is a symbolic link out of the folder"
        if not target.is_file():
            return "it is a symbolic link to something else than a file"
        if any(part.startswith(".") for part in target.relative_to(root).parts):
            return "it is a symbolic link to a hidden file"
    return None


def _bytes(path: Path, most: int) -> bytes | None:
    """The bytes of a plain file, or `most` + 1 of them. None for anything else."""
    try:
        opened = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    with open(opened, "rb") as file:
        return file.read(most + 1) if stat.S_ISREG(os.fstat(opened).st_mode) else None


def _unreadable(root: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{error.filename or root} cannot be read: {error.strerror}",
        where=str(root),
        fix="give the user that serves it the right to read it, or move it out of the folder",
    )


def _too_large(root: Path, how: str) -> UsageError:
    return UsageError(
        f"the skill in {root} is too large: {how}",
        where=str(root),
        fix="move what a model does not need out of the folder, or into a skill of its own",
    )
