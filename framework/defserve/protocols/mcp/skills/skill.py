"""A skill: its frontmatter, its files, and what the wire shows of them under a URI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from mimetypes import MimeTypes
from typing import Any, Final
from urllib.parse import quote

from defserve.errors import UsageError
from defserve.protocols.mcp.function import Function, nothing_injectable
from defserve.protocols.mcp.lifecycle import Dialect
from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
from defserve.protocols.mcp.skills.folder import SKILL_FILE, Folder, SkillFile
from defserve.protocols.mcp.skills.frontmatter import BadFrontmatter, read_frontmatter
from defserve.wire.messages import Params

SCHEME: Final = "skill://"
# The Agent Skills specification: 1 to 64 characters, single hyphens inside.
NAME: Final = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]*")

# The tables of Python alone: those of the machine would make servers differ.
_MIME_TYPES: Final = MimeTypes()
_TEXTS: Final = {".md": "text/markdown", ".yaml": "application/yaml", ".yml": "application/yaml"}


class Skill:
    """One folder with a `SKILL.md`, as it was read."""

    __slots__ = ("folder", "frontmatter")

    def __init__(self, folder: Folder) -> None:
        """Raises UsageError for a folder that is not a skill."""
        self.folder, self.frontmatter = folder, _checked_frontmatter(folder)

    @property
    def name(self) -> str:
        return self.frontmatter["name"]

    @property
    def description(self) -> str:
        return self.frontmatter["description"]

    def entry(self, uri: str) -> Params:
        """The skill as lists show it, for a `SKILL.md` at this URI."""
        base = uri.removesuffix(SKILL_FILE)
        files = [{"uri": base + encoded(f.path), "digest": f.digest, "size": len(f.data)} for f in self.folder.files]
        return {"uri": uri, "frontmatter": self.frontmatter, "resources": files}

    def children_of(self, folder: str) -> Iterator[tuple[str, bool]]:
        """The path of each direct child of a folder in it, and whether the child is a folder itself.

        `folder` is the end of a URI, as a client sends it; empty for the skill's own folder.
        """
        start, depth = (f"{folder}/", folder.count("/") + 2) if folder else ("", 1)
        seen = set[str]()
        for file in self.folder.files:
            parts = file.path.split("/")
            child = "/".join(parts[:depth])
            if child not in seen and encoded(file.path).startswith(start):
                seen.add(child)
                yield child, len(parts) > depth


class SkillResource(Resource):
    """A file of a skill. Its contents are the bytes that were read with the skill."""

    __slots__ = ("source",)

    def __init__(self, uri: str, options: ResourceOptions, function: Function, owner: Any, source: str) -> None:
        super().__init__(uri, options, function, None, owner)
        self.source = source

    @property
    def where(self) -> str:
        return self.source

    @property
    def description(self) -> str:
        return self.options.description or ""

    def renamed(self, uri: str) -> SkillResource:
        return SkillResource(uri, self.options, self.function, self.owner, self.source)


class SkillManifest(SkillResource):
    """The `SKILL.md` of a skill. It stands for the whole skill: who sees it sees the skill."""

    __slots__ = ("skill",)

    def __init__(
        self, uri: str, options: ResourceOptions, function: Function, owner: Any, source: str, skill: Skill
    ) -> None:
        super().__init__(uri, options, function, owner, source)
        self.skill = skill

    def renamed(self, uri: str) -> SkillManifest:
        return SkillManifest(uri, self.options, self.function, self.owner, self.source, self.skill)

    def entry(self, dialect: Dialect) -> Params:
        """The skill as its list shows it."""
        return self.skill.entry(self.uri)


def resources(folder: Folder, segments: Sequence[str], scopes: Sequence[str], owner: Any) -> list[SkillResource]:
    """Every file of a folder as a resource below `segments`. Each folder in it with a `SKILL.md` is a skill, too.

    Raises UsageError for what is not a skill.
    """
    base = f"{SCHEME}{'/'.join(segments)}/"
    if not any(file.path == SKILL_FILE for file in folder.files):
        raise _no_manifest(folder)
    common = ResourceOptions(inline=True, scopes=tuple(scopes))
    found: list[SkillResource] = []
    for file in folder.files:
        uri, source = base + encoded(file.path), str(folder.root / file.path)
        function = Function(partial(contents, file), nothing_injectable, inline=True)
        options = replace(common, name=file.name, mime_type=mime_type(file), size=len(file.data), listed=False)
        if file.name == SKILL_FILE:
            skill = Skill(folder.below(file.path.rpartition("/")[0]))
            options = replace(options, name=skill.name, description=skill.description, listed=True)
            found.append(SkillManifest(uri, options, function, owner, source, skill))
        else:
            found.append(SkillResource(uri, options, function, owner, source))
    return found


def contents(file: SkillFile) -> str | bytes:
    """A text, if its bytes are those of one, so that they can be had back from it. Else the bytes."""
    if b"\0" in file.data:  # six bytes each in a JSON text
        return file.data
    try:
        return file.data.decode()
    except UnicodeDecodeError:
        return file.data


def mime_type(file: SkillFile) -> str:
    ending = f".{file.name.rpartition('.')[2].lower()}"
    known = _TEXTS.get(ending) or _MIME_TYPES.guess_type(f"x{ending}")[0]
    return known or ("text/plain" if isinstance(contents(file), str) else "application/octet-stream")


def encoded(path: str) -> str:
    """A path as the end of a URI."""
    return quote(path, safe="/")


def _checked_frontmatter(folder: Folder) -> Params:
    path = folder.root / SKILL_FILE
    file = next(file for file in folder.files if file.path == SKILL_FILE)
    try:
        found = read_frontmatter(file.data.decode())
    except UnicodeDecodeError as error:
        raise UsageError(
            f"it is not UTF-8 (byte {error.start})", where=str(path), fix="save the file as UTF-8"
        ) from None
    except BadFrontmatter as error:
        raise UsageError(
            str(error), where=str(path), fix="begin the file with ---, the lines name: … and description: …, and ---"
        ) from None
    name, description, expected = found.get("name"), found.get("description"), folder.root.name
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"the name {name!r} of a skill is not 1 to 64 lower-case letters, digits and single hyphens",
            where=str(path),
            fix=f"write name: {expected}" if NAME.fullmatch(expected) else "rename the skill and its folder",
        )
    if name != expected:
        raise UsageError(
            f"the skill is called {name!r} and its folder {expected!r}", where=str(path), fix="give both the same name"
        )
    if not isinstance(description, str) or not description.strip():
        raise UsageError(
            "the skill has no description", where=str(path), fix="say in description: … what it does and when to use it"
        )
    return found


def _no_manifest(folder: Folder) -> UsageError:
    why = next((f": {one.reason}" for one in folder.left_out if one.path == SKILL_FILE), "")
    return UsageError(
        f"the skill in {folder.root} has no {SKILL_FILE}{why}",
        where=str(folder.root),
        fix=f"there are skills in it: use server.skills({folder.root.name!r})"
        if any(file.name == SKILL_FILE for file in folder.files)
        else f"write {SKILL_FILE}; it begins with the lines ---, name: {folder.root.name}, description: …, ---",
    )
