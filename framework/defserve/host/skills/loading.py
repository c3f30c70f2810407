"""Loading a skill: its `SKILL.md` first, every file verified before it is given away."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

from defserve.host.fields import Json
from defserve.host.skills.entry import CheckedEntry, ListedFile, UnverifiedSkill
from defserve.protocols.mcp.skills.folder import SKILL_FILE
from defserve.protocols.mcp.skills.frontmatter import BadFrontmatter, read_frontmatter, same_json
from defserve.wire.jsonvalue import is_object

ReadResource = Callable[[str], Awaitable[list[Json]]]


class LoadedSkill:
    """A skill whose `SKILL.md` was read and verified. Only the files of its entry can be read, verified as well."""

    __slots__ = ("_checked", "_read", "entry", "text")

    def __init__(self, read: ReadResource, entry: Json, checked: CheckedEntry, text: str) -> None:
        self._read, self._checked = read, checked
        self.entry = entry
        """The entry that everything is compared with."""
        self.text = text
        """The whole `SKILL.md`."""

    @property
    def uri(self) -> str:
        return self._checked.uri

    @property
    def frontmatter(self) -> Json:
        return self._checked.frontmatter

    @property
    def paths(self) -> list[str]:
        """Its files, relative to its folder."""
        return list(self._checked.files)

    @property
    def fingerprint(self) -> str:
        """See `CheckedEntry.fingerprint`."""
        return self._checked.fingerprint

    async def read(self, path: str) -> bytes:
        """The bytes of a file. Raises UnverifiedSkill if it is not one of the entry's, or differs from it."""
        file = self._checked.files.get(path)
        if file is None:
            raise UnverifiedSkill(f"{self.uri} lists no file {path!r}")
        return self.text.encode() if path == SKILL_FILE else await _verified(self._read, file)


async def load_skill(read: ReadResource, entry: Json) -> LoadedSkill:
    """Read the `SKILL.md` of an entry, and nothing else. Raises UnverifiedSkill on any difference."""
    checked = CheckedEntry(entry)
    data = await _verified(read, checked.files[SKILL_FILE])
    try:
        text = data.decode()
        found = read_frontmatter(text)
    except UnicodeDecodeError:
        raise UnverifiedSkill(f"{checked.uri} is not UTF-8") from None
    except BadFrontmatter as error:
        raise UnverifiedSkill(f"{checked.uri}: {error}") from None
    for name in {**found, **checked.frontmatter}:
        here, there = name in found, name in checked.frontmatter
        if not (here and there and same_json(found[name], checked.frontmatter[name])):
            raise UnverifiedSkill(f"{checked.uri}: {name[:200]!r} is not the same in the file and in the list")
    return LoadedSkill(read, entry, checked, text)


async def read_verified(read: ReadResource, entry: Json) -> dict[str, bytes]:
    """Every file of a skill by its path. The first one that differs ends it: no other is asked for."""
    skill = await load_skill(read, entry)
    return {path: await skill.read(path) for path in skill.paths}


async def _verified(read: ReadResource, file: ListedFile) -> bytes:
    contents = await read(file.uri)
    if len(contents) != 1 or not is_object(contents[0]) or contents[0].get("uri") != file.uri:
        raise UnverifiedSkill(f"reading {file.uri} gave something else than its contents")
    data = _bytes(contents[0])
    if data is None:
        raise UnverifiedSkill(f"reading {file.uri} gave neither text nor bytes")
    file.verify(data)
    return data


def _bytes(content: Json) -> bytes | None:
    text: Any = content.get("text")
    blob: Any = content.get("blob")
    try:
        if isinstance(text, str):
            return text.encode()
        return base64.b64decode(blob, validate=True) if isinstance(blob, str) else None
    except ValueError:  # half a character, or no Base64
        return None
