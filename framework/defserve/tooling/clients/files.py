"""A settings file is read, edited as text, backed up and replaced in one step; if that fails, it is left alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError
from defserve.host.clients.table import Format
from defserve.tooling.clients import jsonc, toml
from defserve.tooling.clients.documents import BrokenDocument, NotEditable
from defserve.wire.jsonvalue import is_mapping

BACKUP: Final = ".bak"
PRIVATE: Final = 0o600
"""A new file may hold secrets, such as keys in `env`."""

PUT: Final[dict[Format, Callable[[str, Sequence[str], Any], str]]] = {"json": jsonc.put, "toml": toml.put}
REMOVE: Final[dict[Format, Callable[[str, Sequence[str]], str]]] = {"json": jsonc.remove, "toml": toml.remove}
PARSE: Final[dict[Format, Callable[[str], Any]]] = {"json": jsonc.parse, "toml": toml.parse}


class SettingsEdit(NamedTuple):
    """The text of a file before an edit (None: it does not exist) and after it."""

    path: Path
    before: str | None
    after: str

    @property
    def changes(self) -> bool:
        return (self.before or "") != self.after

    def diff(self) -> str:
        """The change, as `diff -u` shows it."""
        from difflib import unified_diff

        old, new = (self.before or "").splitlines(keepends=True), self.after.splitlines(keepends=True)
        lines = unified_diff(old, new, os.devnull if self.before is None else str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> Path | None:
        """Replace the file and return its backup, if there was a file. Raises UsageError."""
        # A link stays a link; the file it points to is replaced.
        target = Path(os.path.realpath(self.path))
        try:
            if self.before is None:
                target.parent.mkdir(parents=True, exist_ok=True)
            if _content(target) != self.before:
                raise UsageError(
                    f"{self.path} has changed in the meantime; it was left alone", fix="run the command again"
                )
            if self.before is None:
                _replace(target, self.after, PRIVATE)
                return None
            mode = stat.S_IMODE(target.stat().st_mode)
            backup = target.with_name(target.name + BACKUP)
            _replace(backup, self.before, mode)
            _replace(target, self.after, mode)
            return backup
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}", fix="check its permissions") from None


def put(path: Path, format: Format, keys: Sequence[str], value: Any) -> SettingsEdit:
    """The file with `value` at `keys`. Raises UsageError for a file that cannot be read or edited."""
    before = read(path)
    return SettingsEdit(path, before, _edited(path, lambda: PUT[format](before or "", keys, value)))


def remove(path: Path, format: Format, keys: Sequence[str]) -> SettingsEdit:
    """The file without what is at `keys`."""
    before = read(path)
    return SettingsEdit(path, before, _edited(path, lambda: REMOVE[format](before or "", keys)))


def holds_only(path: Path, format: Format, keys: Sequence[str]) -> bool:
    """Whether the file is exactly what `put` makes of an empty one: then it was made for the entry at `keys`."""
    value = holds(path, format)
    for key in keys:
        value = value.get(key) if is_mapping(value) else None
    return value is not None and not path.is_symlink() and read(path) == PUT[format]("", keys, value)


def discard(path: Path) -> None:
    """Remove a file and its backup. Raises UsageError."""
    try:
        path.unlink()
        path.with_name(path.name + BACKUP).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot remove {path}: {error.strerror}", fix="check the permissions") from None


def holds(path: Path, format: Format) -> Any:
    """The content of the file; an empty object if there is no file. Raises UsageError."""
    return _edited(path, lambda: PARSE[format](read(path) or ""))


def read(path: Path) -> str | None:
    """The text of a file, None if there is none. Raises UsageError if it cannot be read."""
    try:
        return _content(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="check its permissions") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text and was left alone", fix="save it as UTF-8") from None


def _content(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None


def _edited(path: Path, edit: Callable[[], Any]) -> Any:
    try:
        return edit()
    except BrokenDocument as error:
        raise UsageError(
            f"this file is broken and was left alone: {error.problem}",
            where=f"{path}:{error.line}",
            fix="correct that line",
        ) from None
    except NotEditable as error:
        raise UsageError(
            f"{path} was left alone: {error}",
            fix="use --dry-run on an empty folder to see the entry, and add it by hand",
        ) from None


def _replace(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
    try:
        with open(file, "wb") as written:
            written.write(text.encode("utf-8"))
            written.flush()
            os.fsync(written.fileno())
        os.chmod(draft, mode)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
