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
import sys
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.errors import UsageError

SKILL_FILE: Final = "SKILL.md"
MAX_FILES: Final = 512
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_FOLDER_DEPTH: Final = 16
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

    def reserve_folder(self, folder: Folder) -> None:
        """Raises UsageError if there is no room for it."""
        files, size = len(folder.files), sum(len(file.data) for file in folder.files)
        if files > self.files or size > self.size:
            raise UsageError(
                f"the skills of this server are too large together: {files} files of {size} bytes in {folder.root}, "
                f"and room for {self.files} of {self.size} bytes",
                fix="move large data out of the skills, or serve some of them from another server",
            )
        self.files, self.size = self.files - files, self.size - size


def read_folder(root: Path, most_files: int = MAX_FILES, most_bytes: int = MAX_BYTES) -> Folder:
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
        return list(_find(root, MAX_FOLDER_DEPTH)) if root.is_dir() else []
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
# YAML 1.2 with its core schema: a date is a text, `yes` is a text, `0o17` is fifteen. PyYAML finds the words, and the
# values are made here. What JSON cannot say, or what could grow (aliases), is refused.


MAX_FRONTMATTER_LENGTH: Final = 32 * 1024
MAX_YAML_DEPTH: Final = 16

_BLOCK: Final = re.compile(r"\ufeff?---\r?\n(?:(?P<yaml>.*?)\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.DOTALL)

# YAML 1.1 takes these for the end of a line, and YAML 1.2 does not.
_OLD_BREAKS: Final = re.compile("[\x85\u2028\u2029]")

_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NOT_NUMBERS: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_NUMBER_LENGTH: Final = 320
_MAX_NUMBER: Final = sys.float_info.max
_STRING: Final = "tag:yaml.org,2002:str"
_CONTAINERS: Final = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


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
    value = parse_yaml(found["yaml"] or "")
    if not is_object(value):
        raise BadFrontmatter("the frontmatter is not a YAML mapping of names to values")
    return value


def parse_yaml(text: str) -> Any:
    """One YAML document as a JSON value. Raises BadFrontmatter for broken YAML, and for what JSON cannot say."""
    if len(text) > MAX_FRONTMATTER_LENGTH:
        raise BadFrontmatter(f"the frontmatter is longer than {MAX_FRONTMATTER_LENGTH} characters")
    if old := _OLD_BREAKS.search(text):
        raise BadFrontmatter(f'U+{ord(old[0]):04X} is not read alike by all: write it as an escape in "quotes"')
    import yaml

    # YAML 1.2: the last line of a block text ends, even if no line break follows.
    whole = f"{text}\n" if text.rpartition("\n")[2].strip() else text
    parse = cast("Callable[[str, Any], Iterator[Any]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
    builder = _Builder()
    try:
        for event in parse(whole, yaml.SafeLoader):
            builder.feed_event(type(event).__name__, event)
    except yaml.YAMLError as error:
        raise BadFrontmatter(f"the frontmatter is not YAML: {_short(error)}") from None
    return builder.value


class _Builder:
    """Makes one JSON value of YAML events. It keeps its own stack, so depth costs no recursion."""

    def __init__(self) -> None:
        self.value: Any = None
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[str | None] = []
        self._documents = 0

    def feed_event(self, kind: str, event: Any) -> None:
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise BadFrontmatter("the frontmatter is more than one YAML document")
        elif kind == "AliasEvent":
            raise _at(event, f"the alias *{event.anchor} is not supported: write the value out")
        elif kind == "ScalarEvent":
            self._add_value(event, _scalar(event))
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._begin(event, {} if kind == "MappingStartEvent" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._keys.pop()

    def _begin(self, event: Any, container: list[Any] | dict[str, Any]) -> None:
        if event.tag not in _CONTAINERS:
            raise _at(event, f"the tag {event.tag} is not supported")
        if len(self._open) == MAX_YAML_DEPTH:
            raise _at(event, f"it is nested deeper than {MAX_YAML_DEPTH} levels")
        self._add_value(event, container)
        self._open.append(container)
        self._keys.append(None)

    def _add_value(self, event: Any, value: Any) -> None:
        if not self._open:
            self.value = value
            return
        inside = self._open[-1]
        if isinstance(inside, list):
            inside.append(value)
        elif (key := self._keys[-1]) is not None:
            inside[key] = value
            self._keys[-1] = None
        elif not isinstance(value, str):
            raise _at(event, 'a name that is not a text: put it into "quotes"')
        elif value in inside:
            raise _at(event, f"{value[:64]!r} is there twice")
        else:
            self._keys[-1] = value


def _scalar(event: Any) -> Any:
    """A scalar by the core schema: quoted ones are texts, plain ones what they look like."""
    text = _join_surrogates(event)
    if event.tag in ("!", _STRING) or (event.tag is None and not event.implicit[0]):
        return text
    if event.tag is not None:
        raise _at(event, f"the tag {event.tag} is not supported")
    if text in _WORDS:
        return _WORDS[text]
    for pattern, read in _NUMBERS:
        if pattern.fullmatch(text):
            number = read(text) if len(text) <= _MAX_NUMBER_LENGTH else inf
            if abs(number) <= _MAX_NUMBER:
                return number
            raise _at(event, 'a number is too large for JSON: put it into "quotes"')
    if _NOT_NUMBERS.fullmatch(text):
        raise _at(event, f'JSON has no {text}: put it into "quotes"')
    return text


def _join_surrogates(event: Any) -> str:
    """The text, with a character that was written as two escapes as one."""
    text: str = event.value
    if not _SURROGATE.search(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _at(event, "an escape stands for half a character") from None


_NUMBERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...]] = (
    (_INTEGER, int),
    (re.compile("0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile("0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (_FLOAT, float),
)


def _at(event: Any, problem: str) -> BadFrontmatter:
    return BadFrontmatter(f"line {event.start_mark.line + 2}: {problem}")


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


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: `1` is `1.0`, and `true` is not `1`."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if is_object(one) and is_object(other):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if is_array(one) and is_array(other):
        return len(one) == len(other) and all(map(same_json, one, other))
    return one == other
