"""MCP skills (SEP-2640): `skills/list`, `skills/get` and `resources/directory/read`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from defserve.core.call import Call
from defserve.core.extension import Handler
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcp.lifecycle import Dialect, dialect_cache_hints, dialect_of
from defserve.protocols.mcp.listing import Listing, cursor_at, position_of
from defserve.protocols.mcp.params import text
from defserve.protocols.mcp.resources.resources import URI_LENGTH, Resources
from defserve.protocols.mcp.skills.folder import DEEPEST, SKILL_FILE, Room, find_skills, read_folder
from defserve.protocols.mcp.skills.skill import SEGMENT, SkillManifest, SkillResource, encoded, resources
from defserve.wire.messages import Params

EXTENSION: Final = "io.modelcontextprotocol/skills"
MOST_FILES: Final = 8 * 1024
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all skills of a server together: they are held in memory."""

DIRECTORY: Final = "inode/directory"
_MEMBER: Final = "directory"

AddResource = Callable[[SkillResource], None]


class ListedSkill(Protocol):
    """A skill of this server, or of one elsewhere."""

    @property
    def uri(self) -> str: ...

    def describe(self, dialect: Dialect) -> Params: ...

    def entry(self, dialect: Dialect) -> Params:
        """The skill as its list shows it."""
        ...


class SkillSource(Protocol):
    """Servers elsewhere, whose skills are in the registry, too. They are asked for all that is not our own."""

    async def before_list(self, call: Call) -> None:
        """See that their skills in the registry are those of now."""
        ...

    async def get(self, call: Call, uri: str) -> Params | None:
        """The result of `skills/get`; None if nobody could have the skill."""
        ...

    async def read_directory(self, call: Call, uri: str, cursor: Any) -> Params | None:
        """The result of `resources/directory/read`; None if nobody could have the folder."""
        ...


class Skills:
    """The skills of a server."""

    def __init__(self, served: Resources) -> None:
        self.registry: Registry[ListedSkill] = Registry("skill")
        self.folders: list[Path] = []
        """The folders that were read."""
        self._resources = served
        self._listing = Listing("skills", self.registry, describe=lambda skill, dialect: skill.entry(dialect))
        self.elsewhere: SkillSource | None = None
        self._room = Room(MOST_FILES, MOST_BYTES)

    def add(self, path: str, prefix: str, scopes: Sequence[str], add: AddResource, owner: Any) -> None:
        """Read a skill and serve its files, with those of skills inside it. Raises UsageError."""
        folder = Path(os.path.abspath(path))
        self._add(folder, (*_segments(prefix), encoded(folder.name)), scopes, add, owner)

    def add_all(self, path: str, prefix: str, scopes: Sequence[str], add: AddResource, owner: Any) -> None:
        """Read every skill below a folder. Raises UsageError if there is none."""
        root = Path(os.path.abspath(path))
        self.folders.append(root)
        found = find_skills(root)
        if not found:
            fix = "a relative path starts beside the file that names it; to ship it, put the folder into the package"
            raise UsageError(
                f"there is no skill below {str(root)!r}: no folder in it has a {SKILL_FILE}",
                fix="it is a skill itself: use server.skill(…)" if (root / SKILL_FILE).exists() else fix,
            )
        for folder in found:
            segments = [encoded(part) for part in folder.relative_to(root).parts]
            self._add(folder, (*_segments(prefix), *segments), scopes, add, owner)

    def _add(self, folder: Path, segments: Sequence[str], scopes: Sequence[str], add: AddResource, owner: Any) -> None:
        self.folders.append(folder)
        found = read_folder(folder)
        files = resources(found, segments, scopes, owner)
        self._room.take(found)
        for file in files:
            add(file)
            if isinstance(file, SkillManifest):
                self.registry.add(file.uri, file, where=file.where)

    # -- on the wire -------------------------------------------------------------------------------------

    def capabilities(self) -> Params:
        return {EXTENSION: {"directoryRead": True}}

    def methods(self) -> Mapping[str, Handler]:
        if self.elsewhere is not None:
            return self._methods_with(self.elsewhere)
        return {
            "skills/list": self._listing.page,
            "skills/get": self.get,
            "resources/directory/read": self.read_directory,
        }

    def _methods_with(self, source: SkillSource) -> Mapping[str, Handler]:
        """The methods, with skills of servers elsewhere."""

        async def list(call: Call, params: Params) -> Any:
            await source.before_list(call)
            return self._listing.page(call, params)

        async def get(call: Call, params: Params) -> Params:
            uri = text(params, "uri")
            is_ours = self._visible(call, uri) is not None or len(uri) > URI_LENGTH
            found = None if is_ours else await source.get(call, uri)
            return self.get(call, params) if found is None else found

        async def read_directory(call: Call, params: Params) -> Params:
            uri = text(params, "uri")
            is_ours = len(uri) > URI_LENGTH or self._manifest_above(call, uri) is not None
            found = None if is_ours else await source.read_directory(call, uri, params.get("cursor"))
            return self.read_directory(call, params) if found is None else found

        return {"skills/list": list, "skills/get": get, "resources/directory/read": read_directory}

    def get(self, call: Call, params: Params) -> Params:
        uri, dialect = text(params, "uri"), dialect_of(call)
        manifest = self._visible(call, uri)
        if manifest is None:
            raise InvalidParams(f"Unknown skill: {uri[:URI_LENGTH]}", data={"uri": uri[:URI_LENGTH]})
        return {"skill": manifest.entry(dialect), **dialect_cache_hints(dialect)}

    def read_directory(self, call: Call, params: Params) -> Params:
        uri, dialect = text(params, "uri"), dialect_of(call)
        position = position_of(_MEMBER, params.get("cursor"))
        children = self._children(call, uri)
        if not children:
            raise InvalidParams(f"Not a directory: {uri[:URI_LENGTH]}", data={"uri": uri[:URI_LENGTH]})
        end = position + 1 + call.session.composition.limits.page
        result: Params = {"resources": children[position + 1 : end], **dialect_cache_hints(dialect)}
        if end < len(children):
            result["nextCursor"] = cursor_at(_MEMBER, end - 1)
        return result

    def _children(self, call: Call, uri: str) -> list[Params]:
        """What a folder of a skill holds; nothing if there is no such folder, or none that the caller may see."""
        dialect, manifest = dialect_of(call), self._manifest_above(call, uri)
        if manifest is None:
            return []
        base = manifest.uri.removesuffix(f"/{SKILL_FILE}")
        children: list[Params] = []
        for path, is_folder in manifest.skill.children_of(uri[len(base) + 1 :]):
            child = f"{base}/{encoded(path)}"
            if is_folder:
                children.append({"uri": child, "name": path.rpartition("/")[2], "mimeType": DIRECTORY})
            elif (found := self._resources.find(call, child)) is not None:
                children.append(found[0].describe(dialect))
        return children

    def _manifest_above(self, call: Call, uri: str) -> SkillManifest | None:
        """The skill of ours that a folder is in."""
        return next(filter(None, (self._visible(call, above) for above in manifests_above(uri))), None)

    def _visible(self, call: Call, uri: str) -> SkillManifest | None:
        manifest = self.registry.get(uri) if len(uri) <= URI_LENGTH else None
        return (
            manifest
            if isinstance(manifest, SkillManifest) and call.session.composition.visible(call, manifest)
            else None
        )


def manifests_above(uri: str) -> Iterator[str]:
    """Where the `SKILL.md` of the skill may be that a folder, or a file, belongs to: the innermost first."""
    for _ in range(DEEPEST + 1):
        if uri.endswith("/") or not uri:
            return
        yield f"{uri}/{SKILL_FILE}"
        uri = uri.rpartition("/")[0]


def _segments(prefix: str) -> list[str]:
    segments = prefix.split("/") if prefix else []
    if not all(map(SEGMENT.fullmatch, segments)):
        raise UsageError(
            f"prefix {prefix!r} is not a path of a URI", fix='use letters, digits, . _ ~ - and slashes: "acme/billing"'
        )
    return segments
