"""MCP skills (SEP-2640): `skills/list`, `skills/get` and `resources/directory/read`.

Skills are folders with a `SKILL.md`, listed with digests and read as resources. A folder is read once, when it is
declared. Digests, sizes and contents come from these bytes, so they always agree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from mimetypes import MimeTypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Offer
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcp.errors import read_text_param
from defserve.protocols.mcp.function import Function, find_no_provider
from defserve.protocols.mcp.items import ListMethod, decode_list_cursor, encode_list_cursor
from defserve.protocols.mcp.lifecycle import Dialect, build_cache_hints, get_dialect
from defserve.protocols.mcp.resources import MAX_URI_LENGTH, Resource, ResourceOptions, Resources
from defserve.protocols.mcp.skill_files import (
    MAX_FOLDER_DEPTH,
    SKILL_MANIFEST_FILENAME,
    BadFrontmatter,
    SkillFile,
    SkillFolder,
    SkillMemoryBudget,
    find_skill_folders,
    read_frontmatter,
    read_skill_folder,
)

if TYPE_CHECKING:
    from defserve.proxying.mounts import RemoteSkills

SKILLS_EXTENSION_ID: Final = "io.modelcontextprotocol/skills"
MAX_SERVER_FILES: Final = 8 * 1024
MAX_SERVER_BYTES: Final = 64 * 1024 * 1024
"""Of all skills of a server together: they are held in memory."""

DIRECTORY: Final = "inode/directory"
_MEMBER: Final = "directory"


# -- A skill: its frontmatter, its files, and what the wire shows of them under a URI.


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

    def copy_as(self, uri: str) -> SkillResource:
        return SkillResource(uri, self.options, self.function, self.owner, self.source)


AddResource = Callable[[SkillResource], None]


class ListedSkill(Protocol):
    """A skill of this server, or of one elsewhere."""

    @property
    def uri(self) -> str: ...

    def describe(self, dialect: Dialect) -> Params: ...

    def build_list_entry(self, dialect: Dialect) -> Params:
        """The skill as its list shows it."""
        ...


class Skills(Extension):
    """The skills of a server."""

    def __init__(self, served: Resources) -> None:
        self.registry: Registry[ListedSkill] = Registry("skill")
        self.folders: list[Path] = []
        """The folders that were read."""
        self._resources = served
        self._listing = ListMethod(
            "skills", self.registry, describe=lambda skill, dialect: skill.build_list_entry(dialect)
        )
        self.elsewhere: RemoteSkills | None = None
        self._room = SkillMemoryBudget(MAX_SERVER_FILES, MAX_SERVER_BYTES)

    def add(self, path: str, prefix: str, scopes: Sequence[str], add: AddResource, owner: Any) -> None:
        """Read a skill and serve its files, with those of skills inside it. Raises UsageError."""
        folder = Path(os.path.abspath(path))
        self._add(folder, (*_segments(prefix), encode_path(folder.name)), scopes, add, owner)

    def add_all(self, path: str, prefix: str, scopes: Sequence[str], add: AddResource, owner: Any) -> None:
        """Read every skill below a folder. Raises UsageError if there is none."""
        root = Path(os.path.abspath(path))
        self.folders.append(root)
        found = find_skill_folders(root)
        if not found:
            fix = "a relative path starts beside the file that names it; to ship it, put the folder into the package"
            raise UsageError(
                f"there is no skill below {str(root)!r}: no folder in it has a {SKILL_MANIFEST_FILENAME}",
                fix="it is a skill itself: use server.skill(…)" if (root / SKILL_MANIFEST_FILENAME).exists() else fix,
            )
        for folder in found:
            segments = [encode_path(part) for part in folder.relative_to(root).parts]
            self._add(folder, (*_segments(prefix), *segments), scopes, add, owner)

    def _add(self, folder: Path, segments: Sequence[str], scopes: Sequence[str], add: AddResource, owner: Any) -> None:
        self.folders.append(folder)
        found = read_skill_folder(folder)
        files = make_skill_resources(found, segments, scopes, owner)
        self._room.reserve_folder(found)
        for file in files:
            add(file)
            if isinstance(file, SkillManifest):
                self.registry.add(file.uri, file, where=file.where)

    # -- on the wire -------------------------------------------------------------------------------------

    def capabilities(self, offer: Offer) -> Params:
        return {"extensions": {SKILLS_EXTENSION_ID: {"directoryRead": True}}}

    def methods(self) -> Mapping[str, Handler]:
        if self.elsewhere is not None:
            return self._methods_with(self.elsewhere)
        return {
            "skills/list": self._listing.build_page,
            "skills/get": self.get,
            "resources/directory/read": self.read_directory,
        }

    def _methods_with(self, source: RemoteSkills) -> Mapping[str, Handler]:
        """The methods, with skills of servers elsewhere."""

        async def list(call: Call, params: Params) -> Any:
            await source.wait_before_listing(call)
            return self._listing.build_page(call, params)

        async def get(call: Call, params: Params) -> Params:
            uri = read_text_param(params, "uri")
            is_ours = self._visible(call, uri) is not None or len(uri) > MAX_URI_LENGTH
            found = None if is_ours else await source.get_skill(call, uri)
            return self.get(call, params) if found is None else found

        async def read_directory(call: Call, params: Params) -> Params:
            uri = read_text_param(params, "uri")
            is_ours = len(uri) > MAX_URI_LENGTH or self._manifest_above(call, uri) is not None
            found = None if is_ours else await source.read_directory(call, uri, params.get("cursor"))
            return self.read_directory(call, params) if found is None else found

        return {"skills/list": list, "skills/get": get, "resources/directory/read": read_directory}

    def get(self, call: Call, params: Params) -> Params:
        uri, dialect = read_text_param(params, "uri"), get_dialect(call)
        manifest = self._visible(call, uri)
        if manifest is None:
            raise InvalidParams(f"Unknown skill: {uri[:MAX_URI_LENGTH]}", data={"uri": uri[:MAX_URI_LENGTH]})
        return {"skill": manifest.build_list_entry(dialect), **build_cache_hints(dialect)}

    def read_directory(self, call: Call, params: Params) -> Params:
        uri, dialect = read_text_param(params, "uri"), get_dialect(call)
        position = decode_list_cursor(_MEMBER, params.get("cursor"))
        children = self._children(call, uri)
        if not children:
            raise InvalidParams(f"Not a directory: {uri[:MAX_URI_LENGTH]}", data={"uri": uri[:MAX_URI_LENGTH]})
        end = position + 1 + call.session.composition.limits.page
        result: Params = {"resources": children[position + 1 : end], **build_cache_hints(dialect)}
        if end < len(children):
            result["nextCursor"] = encode_list_cursor(_MEMBER, end - 1)
        return result

    def _children(self, call: Call, uri: str) -> list[Params]:
        """What a folder of a skill holds; nothing if there is no such folder, or none that the caller may see."""
        dialect, manifest = get_dialect(call), self._manifest_above(call, uri)
        if manifest is None:
            return []
        base = manifest.uri.removesuffix(f"/{SKILL_MANIFEST_FILENAME}")
        children: list[Params] = []
        for path, is_folder in manifest.skill.children_of(uri[len(base) + 1 :]):
            child = f"{base}/{encode_path(path)}"
            if is_folder:
                children.append({"uri": child, "name": path.rpartition("/")[2], "mimeType": DIRECTORY})
            elif (found := self._resources.find_resource(call, child)) is not None:
                children.append(found[0].describe(dialect))
        return children

    def _manifest_above(self, call: Call, uri: str) -> SkillManifest | None:
        """The skill of ours that a folder is in."""
        return next(filter(None, (self._visible(call, above) for above in list_possible_manifest_uris(uri))), None)

    def _visible(self, call: Call, uri: str) -> SkillManifest | None:
        manifest = self.registry.get(uri) if len(uri) <= MAX_URI_LENGTH else None
        return (
            manifest
            if isinstance(manifest, SkillManifest) and call.session.composition.visible(call, manifest)
            else None
        )


def list_possible_manifest_uris(uri: str) -> Iterator[str]:
    """Where the `SKILL.md` of the skill may be that a folder, or a file, belongs to: the innermost first."""
    for _ in range(MAX_FOLDER_DEPTH + 1):
        if uri.endswith("/") or not uri:
            return
        yield f"{uri}/{SKILL_MANIFEST_FILENAME}"
        uri = uri.rpartition("/")[0]


def _segments(prefix: str) -> list[str]:
    segments = prefix.split("/") if prefix else []
    if not all(map(SEGMENT.fullmatch, segments)):
        raise UsageError(
            f"prefix {prefix!r} is not a path of a URI", fix='use letters, digits, . _ ~ - and slashes: "acme/billing"'
        )
    return segments


# The Agent Skills specification: 1 to 64 characters, single hyphens inside.
SKILL_NAME_PATTERN: Final = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]*")

# The tables of Python alone: those of the machine would make servers differ.
_MIME_TYPES: Final = MimeTypes()
_TEXTS: Final = {".md": "text/markdown", ".yaml": "application/yaml", ".yml": "application/yaml"}


class Skill:
    """One folder with a `SKILL.md`, as it was read."""

    __slots__ = ("folder", "frontmatter")

    def __init__(self, folder: SkillFolder) -> None:
        """Raises UsageError for a folder that is not a skill."""
        self.folder, self.frontmatter = folder, _load_frontmatter(folder)

    @property
    def name(self) -> str:
        return self.frontmatter["name"]

    @property
    def description(self) -> str:
        return self.frontmatter["description"]

    def build_list_entry(self, uri: str) -> Params:
        """The skill as lists show it, for a `SKILL.md` at this URI."""
        base = uri.removesuffix(SKILL_MANIFEST_FILENAME)
        files = [
            {"uri": base + encode_path(f.path), "digest": f.digest, "size": len(f.data)} for f in self.folder.files
        ]
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
            if child not in seen and encode_path(file.path).startswith(start):
                seen.add(child)
                yield child, len(parts) > depth


class SkillManifest(SkillResource):
    """The `SKILL.md` of a skill. It stands for the whole skill: who sees it sees the skill."""

    __slots__ = ("skill",)

    def __init__(
        self, uri: str, options: ResourceOptions, function: Function, owner: Any, source: str, skill: Skill
    ) -> None:
        super().__init__(uri, options, function, owner, source)
        self.skill = skill

    def copy_as(self, uri: str) -> SkillManifest:
        return SkillManifest(uri, self.options, self.function, self.owner, self.source, self.skill)

    def build_list_entry(self, dialect: Dialect) -> Params:
        """The skill as its list shows it."""
        return self.skill.build_list_entry(self.uri)


def make_skill_resources(
    folder: SkillFolder, segments: Sequence[str], scopes: Sequence[str], owner: Any
) -> list[SkillResource]:
    """Every file of a folder as a resource below `segments`. Each folder in it with a `SKILL.md` is a skill, too.

    Raises UsageError for what is not a skill.
    """
    base = f"skill://{'/'.join(segments)}/"
    if not any(file.path == SKILL_MANIFEST_FILENAME for file in folder.files):
        why = next((f": {one.reason}" for one in folder.left_out if one.path == SKILL_MANIFEST_FILENAME), "")
        raise UsageError(
            f"the skill in {folder.root} has no {SKILL_MANIFEST_FILENAME}{why}",
            where=str(folder.root),
            fix=f"there are skills in it: use server.skills({folder.root.name!r})"
            if any(file.name == SKILL_MANIFEST_FILENAME for file in folder.files)
            else f"write {SKILL_MANIFEST_FILENAME}; first lines: ---, name: {folder.root.name}, description: …, ---",
        )
    common = ResourceOptions(inline=True, scopes=tuple(scopes))
    found: list[SkillResource] = []
    for file in folder.files:
        uri, source = base + encode_path(file.path), str(folder.root / file.path)
        function = Function(partial(contents, file), find_no_provider, inline=True)
        options = replace(common, name=file.name, mime_type=mime_type(file), size=len(file.data), listed=False)
        if file.name == SKILL_MANIFEST_FILENAME:
            skill = Skill(folder.get_subfolder(file.path.rpartition("/")[0]))
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


def encode_path(path: str) -> str:
    """A path as the end of a URI."""
    return quote(path, safe="/")


def _load_frontmatter(folder: SkillFolder) -> Params:
    path = folder.root / SKILL_MANIFEST_FILENAME
    file = next(file for file in folder.files if file.path == SKILL_MANIFEST_FILENAME)
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
    if not isinstance(name, str) or not SKILL_NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"the name {name!r} of a skill is not 1 to 64 lower-case letters, digits and single hyphens",
            where=str(path),
            fix=f"write name: {expected}"
            if SKILL_NAME_PATTERN.fullmatch(expected)
            else "rename the skill and its folder",
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
