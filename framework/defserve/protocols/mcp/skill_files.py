"""The files of a skill: a folder read once, with digests, and the YAML frontmatter of its `SKILL.md`.

Symbolic links that lead out of a folder, hidden files and everything else that is not a plain file are not served.
Servers and clients share this.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.base.yaml_values import UnsupportedYaml, parse_yaml
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.errors import UsageError

SKILL_MANIFEST_FILENAME: Final = "SKILL.md"
MAX_SKILL_FILES: Final = 512
MAX_SKILL_BYTES: Final = 16 * 1024 * 1024
MAX_FOLDER_DEPTH: Final = 16
"""Of one skill (SEP-2640: limits), and how deep its folders may be."""

_NOT_PORTABLE: Final = re.compile(r"[\x00-\x1f/\\:]")
_CACHES: Final = frozenset({"__pycache__", "node_modules"})

# O_NOFOLLOW: what was looked at is what is opened. O_NONBLOCK: a pipe that took its place cannot hold us up.
_FLAGS: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def is_portable_filename(name: str) -> bool:
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


class SkillFolder(NamedTuple):
    """What a folder held when it was read."""

    root: Path
    files: tuple[SkillFile, ...]
    left_out: tuple[LeftOut, ...]

    def get_subfolder(self, path: str) -> SkillFolder:
        """One of its folders, with paths that begin there."""
        start = f"{path}/" if path else ""
        files = [file._replace(path=file.path[len(start) :]) for file in self.files if file.path.startswith(start)]
        left = [one._replace(path=one.path[len(start) :]) for one in self.left_out if one.path.startswith(start)]
        return SkillFolder(self.root / path, tuple(files), tuple(left))


class SkillMemoryBudget:
    """How much more a server may hold in memory. What several skills share is counted once."""

    def __init__(self, files: int, size: int) -> None:
        self.files, self.size = files, size

    def reserve_folder(self, folder: SkillFolder) -> None:
        """Raises UsageError if there is no room for it."""
        files, size = len(folder.files), sum(len(file.data) for file in folder.files)
        if files > self.files or size > self.size:
            raise UsageError(
                f"the skills of this server are too large together: {files} files of {size} bytes in {folder.root}, "
                f"and room for {self.files} of {self.size} bytes",
                fix="move large data out of the skills, or serve some of them from another server",
            )
        self.files, self.size = self.files - files, self.size - size


def read_skill_folder(root: Path, most_files: int = MAX_SKILL_FILES, most_bytes: int = MAX_SKILL_BYTES) -> SkillFolder:
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
    return SkillFolder(root, tuple(files), tuple(left_out))


def find_skill_folders(root: Path) -> list[Path]:
    """The outermost folders below `root` with a `SKILL.md`, in order. Links are not followed. Raises UsageError."""
    try:
        return list(_find(root, MAX_FOLDER_DEPTH)) if root.is_dir() else []
    except OSError as error:
        raise _unreadable(root, error) from None


def _find(folder: Path, depth: int) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in _CACHES or not entry.is_dir(follow_symlinks=False):
            continue
        if os.path.lexists(os.path.join(entry.path, SKILL_MANIFEST_FILENAME)):
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
    if not is_portable_filename(entry.name):
        return "its name means something else on other systems"
    if path.count("/") >= MAX_FOLDER_DEPTH:
        return f"it is deeper than {MAX_FOLDER_DEPTH} folders"
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


# -- The YAML block at the head of a `SKILL.md`, as the JSON value that every implementation makes of it.
#
# It is read in the strict manner (`base/yaml_values.py`).


MAX_FRONTMATTER_LENGTH: Final = 32 * 1024
MAX_YAML_DEPTH: Final = 16

_BLOCK: Final = re.compile(r"\ufeff?---\r?\n(?:(?P<yaml>.*?)\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)

# YAML 1.1 takes these for the end of a line, and YAML 1.2 does not.
_OLD_BREAKS: Final = re.compile("[\x85\u2028\u2029]")


class BadFrontmatter(ValueError):
    """The text says what is wrong."""


def read_frontmatter(text: str) -> Params:
    """The frontmatter of a `SKILL.md`. Raises BadFrontmatter."""
    # The block of a valid file ends within the bound, so no more is searched.
    found = _BLOCK.match(text[: MAX_FRONTMATTER_LENGTH + 16])
    if found is None or found.end() > MAX_FRONTMATTER_LENGTH:
        if text.removeprefix("\ufeff").startswith("---"):
            raise BadFrontmatter(
                f"the frontmatter has no closing line `---` within its first {MAX_FRONTMATTER_LENGTH} characters"
            )
        raise BadFrontmatter("it does not begin with frontmatter, a YAML block between two lines `---`")
    value = parse_frontmatter(found["yaml"] or "")
    if not is_object(value):
        raise BadFrontmatter("the frontmatter is not a YAML mapping of names to values")
    return value


def parse_frontmatter(text: str) -> Any:
    """The YAML between the two lines as a JSON value. Raises BadFrontmatter."""
    if len(text) > MAX_FRONTMATTER_LENGTH:
        raise BadFrontmatter(f"the frontmatter is longer than {MAX_FRONTMATTER_LENGTH} characters")
    if old := _OLD_BREAKS.search(text):
        raise BadFrontmatter(f'U+{ord(old[0]):04X} is not read alike by all: write it as an escape in "quotes"')
    import yaml

    # YAML 1.2: the last line of a block text ends, even if no line break follows.
    whole = f"{text}\n" if text.rpartition("\n")[2].strip() else text
    try:
        return parse_yaml(whole, "the frontmatter", max_depth=MAX_YAML_DEPTH, first_line=2)
    except UnsupportedYaml as error:
        raise BadFrontmatter(str(error)) from None
    except yaml.YAMLError as error:
        raise BadFrontmatter(f"the frontmatter is not YAML: {_short(error)}") from None


# The usual mistakes.
_HINTS: Final = {
    "mapping values": ' (put a text with ": " in it into "quotes")',
    r"'\t'": " (write blanks instead of tabs)",
}


def _short(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 2}: " if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error)[:200]
    hint = next((hint for words, hint in _HINTS.items() if words in problem), "")
    return f"{place}{problem}{hint}"


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: `1` is `1.0`, and `true` is not `1`."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if is_object(one) and is_object(other):
        return one.keys() == other.keys() and all(is_same_json(value, other[name]) for name, value in one.items())
    if is_array(one) and is_array(other):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    return one == other
