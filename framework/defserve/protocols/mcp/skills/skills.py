"""MCP skills (SEP-2640): `skills/list`, `skills/get` and `resources/directory/read`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from defserve.core.call import Call
from defserve.core.extension import Handler
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcp.lifecycle import dialect_cache_hints, dialect_of
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


class Skills:
    """The skills of a server."""

    def __init__(self, served: Resources) -> None:
        self.registry: Registry[SkillManifest] = Registry("skill")
        self.folders: list[Path] = []
        """The folders that were read."""
        self._resources = served
        self._listing = Listing("skills", self.registry, describe=SkillManifest.entry)
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
        return {
            "skills/list": self._listing.page,
            "skills/get": self.get,
            "resources/directory/read": self.read_directory,
        }

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
        base, dialect = uri, dialect_of(call)
        if uri.endswith("/"):
            return []
        for _ in range(DEEPEST + 1):
            if (manifest := self._visible(call, f"{base}/{SKILL_FILE}")) is not None:
                break
            base = base.rpartition("/")[0]
        else:
            return []
        children: list[Params] = []
        for path, is_folder in manifest.skill.children_of(uri[len(base) + 1 :]):
            child = f"{base}/{encoded(path)}"
            if is_folder:
                children.append({"uri": child, "name": path.rpartition("/")[2], "mimeType": DIRECTORY})
            elif (found := self._resources.find(call, child)) is not None:
                children.append(found[0].describe(dialect))
        return children

    def _visible(self, call: Call, uri: str) -> SkillManifest | None:
        manifest = self.registry.get(uri) if len(uri) <= URI_LENGTH else None
        return manifest if manifest is not None and call.session.composition.visible(call, manifest) else None


def _segments(prefix: str) -> list[str]:
    segments = prefix.split("/") if prefix else []
    if not all(map(SEGMENT.fullmatch, segments)):
        raise UsageError(
            f"prefix {prefix!r} is not a path of a URI", fix='use letters, digits, . _ ~ - and slashes: "acme/billing"'
        )
    return segments
