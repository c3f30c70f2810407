"""Paths from outside stay below a root. `judge` looks at text only; `resolve` and `open_within` ask the file system.

- `judge` refuses what could mean another place on any system. It is pure, and the same everywhere.
- `resolve` also follows symbolic links and refuses those that lead out. Before the file is opened, someone who can
  write below the root may still swap a directory for a link.
- `open_within` closes that gap: it walks down directory by directory and follows no link at all. Hard links are
  ordinary files; whoever can make them below the root can already read what they link.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path, PurePath

from defserve.base.hidden_characters import iter_hidden_character_notes
from defserve.errors import UsageError
from defserve.guard.verdict import Verdict, Violation, make_refused_verdict, require_allowed

MAX_BYTES = 4096
MAX_NAME_BYTES = 255

_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])\s*(?:[.:].*)?", re.IGNORECASE | re.DOTALL
)
# C0 and C1 begin the overlong forms that lax decoders take for dots and slashes; no UTF-8 text holds them.
_ENCODED = re.compile(r"%(?:25)*(?:2e|2f|5c|00|c[01])", re.IGNORECASE)
_FORM = "a path relative to the root, with '/' between names, without '..', '~', drives or links that lead out"


def judge(path: str, root: str | Path) -> Verdict:
    """Whether `path` can only mean something below `root`, by its text. Touches no file, never raises."""
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        return make_refused_verdict([Violation("text", "Blocked path: it is not text")], {"form": _FORM})
    found = list(_violations(path))
    if not found:
        return Verdict(True)
    inside = _relative(path, root)
    return make_refused_verdict(found, {"form": _FORM, **({"path": inside, "nearest": [inside]} if inside else {})})


def _violations(path: str) -> Iterator[Violation]:
    if len(path) > MAX_BYTES or len(path.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        yield Violation("length", f"Blocked path: longer than {MAX_BYTES} bytes")
        return
    if not path.strip():
        yield Violation("empty", "Blocked path: it is empty")
    for index, what in iter_hidden_character_notes(path):
        yield Violation("hidden-text", f"Blocked {what} at position {index}")
        return
    if _ENCODED.search(path):
        yield Violation("encoded", "Blocked path: it hides separators in percent escapes")
    yield from _elsewhere(path)
    # Lookalikes of dots and slashes become real ones where names are normalised.
    plain = unicodedata.normalize("NFKC", path)
    if plain != path and (re.search(r"[\\/]", plain.replace("/", "", path.count("/"))) or ".." in _names(plain)):
        yield Violation("lookalike", "Blocked path: lookalikes of '.', '/' or '\\'")


def _elsewhere(path: str) -> Iterator[Violation]:
    """What leads to another place: from the top, upwards, home, to a drive, to a device."""
    if "\\" in path:
        yield Violation("backslash", "Blocked backslash in a path")
    if path.startswith(("/", "\\")):
        yield Violation("absolute", "Blocked absolute path")
    if re.match(r"\s*[A-Za-z]:", path):
        yield Violation("drive", "Blocked drive in a path")
    if path.startswith("~"):
        yield Violation("home", "Blocked '~' in a path")
    for name in _names(path):
        if name == "..":
            yield Violation("parent", "Blocked '..' in a path")
        elif name not in ("", ".") and not name.rstrip(". "):
            # Some systems drop trailing dots and spaces, and then `.. ` is `..`.
            yield Violation("parent", f"Blocked name in a path: '{name}'")
        elif _RESERVED.fullmatch(name):
            yield Violation("reserved", f"Blocked device name in a path: '{name}'")
        elif len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            yield Violation("length", f"Blocked name in a path: longer than {MAX_NAME_BYTES} bytes")


def _names(path: str) -> list[str]:
    return re.split(r"[\\/]", path)


def _relative(path: str, root: str | Path) -> str | None:
    """The relative form of an absolute path that is plainly below the root, for a hint."""
    try:
        inside = PurePath(path).relative_to(PurePath(root)).as_posix()
    except (ValueError, TypeError):
        return None
    return None if any(True for _ in _violations(inside)) else inside


def resolve(path: str, root: str | Path) -> Path:
    """Where `path` really is, links followed. The end of it need not exist yet; the root may itself be a link.

    Raises Rejected if the text is refused, or if a link leads out of the root.
    """
    require_allowed(judge(path, root), "Path refused", "path")
    top = os.path.realpath(root)
    real = os.path.realpath(os.path.join(top, path))
    if real != top and not real.startswith(top.rstrip(os.sep) + os.sep):
        _refuse("link", "Blocked path: a link in it leads out of the root")
    return Path(real)


def open_within(path: str, root: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file or directory below `root`. Returns its descriptor; the caller must close it.

    No name on the way may be a link, and the end may not be a pipe, socket or device. The root may be a link.
    Raises Rejected for these and for refused text, OSError as `os.open` does, and UsageError if the system cannot open
    a file relative to a directory.
    """
    if os.open not in os.supports_dir_fd:
        raise UsageError("this system cannot open files without following links", fix="use resolve() instead")
    require_allowed(judge(path, root), "Path refused", "path")
    names = [name for name in path.split("/") if name not in ("", ".")]
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names[:-1]:
            below = _open_at(name, here, os.O_RDONLY | os.O_DIRECTORY, 0)
            os.close(here)
            here = below
        # Not blocking: opening a pipe would otherwise wait for its other end.
        return _plain(_open_at(names[-1] if names else ".", here, flags | os.O_NONBLOCK, mode))
    finally:
        os.close(here)


def _open_at(name: str, directory: int, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
    except OSError as problem:
        # With O_DIRECTORY a link is "not a directory" on some systems; a pipe without a reader is ENXIO.
        if problem.errno == errno.ELOOP or (problem.errno == errno.ENOTDIR and _is_link(name, directory)):
            _refuse("link", f"Blocked link in a path: '{name}'")
        if problem.errno == errno.ENXIO:
            _refuse("device", "Blocked path: a pipe, socket or device")
        raise


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _plain(descriptor: int) -> int:
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        os.close(descriptor)
        _refuse("device", "Blocked path: a pipe, socket or device")
    os.set_blocking(descriptor, True)
    return descriptor


def _refuse(rule: str, message: str) -> None:
    require_allowed(make_refused_verdict([Violation(rule, message)], {"form": _FORM}), "Path refused", "path")
