"""Reads mgp.toml and the files that it includes. Every mistake is named with its line before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError
from defserve.kernel.config.building import kernel_settings, server_entry
from defserve.kernel.config.entries import KernelConfig, ServerEntry
from defserve.kernel.config.fields import FILE, SERVER, WITHOUT_EFFECT
from defserve.kernel.config.lines import line_at, lines_of
from defserve.kernel.config.settings import WRONG, Mistake
from defserve.kernel.config.settings import Path as Place
from defserve.wire.jsonvalue import is_array, is_object

INCLUDED: Final = {"servers", "paths"}


class ConfigMistakes(UsageError):
    """A file, or one that it includes, has mistakes. `mistakes` has each of them."""

    def __init__(self, path: Path, mistakes: Sequence[UsageError]) -> None:
        self.mistakes = tuple(mistakes)
        if len(mistakes) == 1:
            super().__init__(mistakes[0].problem, where=mistakes[0].where, fix=mistakes[0].fix)
            return
        listed = "\n".join(f"  {each!s}".replace("\n", "\n  ") for each in mistakes)
        super().__init__(f"{path} has {len(mistakes)} mistakes:\n{listed}")


def load(path: str | Path) -> KernelConfig:
    """Read a file. Relative paths in it start from its folder.

    Raises ConfigMistakes for its mistakes, and UsageError for a file that cannot be read or is not TOML.
    """
    file = _File(Path(path).absolute())
    top = FILE.read({name: value for name, value in file.table.items() if name != "servers"}, (), file.report)
    files = [file]
    for name in top.get("include", ()):
        files.append(included := _File(file.path.parent / name))
        for other in included.table.keys() - INCLUDED:
            included.report(Mistake((other,), "does not belong into an included file", f"move it to {file.path.name}"))
    servers = _unique([(each, entry) for each in files for entry in each.servers()])
    settings = kernel_settings(top.get("kernel", {}), file.path.parent, file.report)
    if mistakes := [mistake for each in files for mistake in each.mistakes]:
        raise ConfigMistakes(file.path, mistakes)
    return KernelConfig(
        file.path,
        settings,
        tuple(servers),
        tuple(each.path for each in files),
        tuple(note for each in files for note in each.notes),
    )


class _File:
    """One file: its table, the mistakes found in it, and the lines that they are on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mistakes: list[UsageError] = []
        self.notes: list[str] = []
        try:
            text = path.read_bytes().decode("utf-8")
            self.table: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not TOML: {error}", fix="correct that line") from None
        except FileNotFoundError:
            raise UsageError(f"{path} is not there", fix="put it back, or correct its name") from None
        except RecursionError:
            raise UsageError(
                f"{path} is not TOML that can be read: it is nested too deeply", fix="make it flatter"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}", fix="give a TOML file in UTF-8") from None
        self._lines = lines_of(text)
        if "paths" in self.table:
            self.notes.append(f"{self._where(('paths',))}: paths has no effect here")

    def report(self, mistake: Mistake) -> None:
        text = f"{self._subject(mistake.path)} {mistake.problem}"
        self.mistakes.append(UsageError(text, where=self._where(mistake.path), fix=mistake.fix))

    def servers(self) -> list[ServerEntry]:
        """The servers without mistakes."""
        given = self.table.get("servers", [])
        if not is_array(given) or not all(map(is_object, given)):
            self.report(Mistake(("servers",), "must be a list of tables", "write [[servers]] above each server"))
            return []
        found = (self._server(index, table) for index, table in enumerate(given))
        return [entry for entry in found if entry is not None]

    def _server(self, index: int, table: Mapping[str, Any]) -> ServerEntry | None:
        path: Place = ("servers", index)
        before = len(self.mistakes)
        read = SERVER.read(table, path, self.report)
        if read is WRONG or len(self.mistakes) > before:
            return None
        for name in WITHOUT_EFFECT:
            if name in read:
                where = (*path, name)
                self.notes.append(f"{self._where(where)}: {self._subject(where)} has no effect here")
        return server_entry(read, path, self.path.parent, self._where(path), self.report)

    def _where(self, path: Place) -> str:
        return f"{self.path}:{line_at(self._lines, path)}"

    def _subject(self, path: Place) -> str:
        """What a mistake is about: `server 'office.mail': mgp.trust_level`."""
        if len(path) < 2 or path[0] != "servers" or not isinstance(path[1], int):
            return ".".join(map(str, path)) or "the file"
        id = self.table["servers"][path[1]].get("id")
        server = f"server {id[:60]!r}" if isinstance(id, str) and id else f"server {path[1] + 1}"
        return f"{server}: {'.'.join(map(str, path[2:]))}" if len(path) > 2 else server


def _unique(found: Sequence[tuple[_File, ServerEntry]]) -> list[ServerEntry]:
    """The entries; a second one with an id is reported in its file."""
    seen: dict[str, ServerEntry] = {}
    for file, entry in found:
        if entry.id in seen:
            file.mistakes.append(
                UsageError(
                    f"the id {entry.id!r} is taken by {seen[entry.id].where}",
                    where=entry.where,
                    fix="give each server an id of its own",
                )
            )
        seen.setdefault(entry.id, entry)
    return list(seen.values())
