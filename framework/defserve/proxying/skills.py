"""Skills of backends: listed with ours, and asked for where they are. Their files are read as resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.host.fields import Json, object_of
from defserve.protocols.mcp.lifecycle import dialect_cache_hints, dialect_of
from defserve.protocols.mcp.skills.skills import EXTENSION, ListedSkill, manifests_above
from defserve.proxying.catalogue import uris
from defserve.proxying.catalogue.items import RemoteResource, RemoteSkill
from defserve.proxying.conversations.passing import shaped
from defserve.proxying.descriptions import find_hidden_name, readable

if TYPE_CHECKING:
    from defserve.proxying.backend import Backend

LIST_SECONDS: Final = 2.0
"""How long a list waits for backends that tell their skills again."""


class Backends(Protocol):
    """The backends of a server."""

    @property
    def backends(self) -> Mapping[str, Backend]: ...

    async def before_list(self, call: Call) -> None: ...

    def owner(self, uri: str, able: Callable[[Backend], bool]) -> Backend | None: ...

    def declare_found(self, item: RemoteResource) -> None: ...


class RemoteSkills:
    """See `mcp.skills.skills.SkillSource`."""

    def __init__(self, backends: Backends, registry: Registry[ListedSkill]) -> None:
        self._backends, self._registry = backends, registry

    async def before_list(self, call: Call) -> None:
        await self._backends.before_list(call)
        await asyncio.gather(*(one.read_skills(LIST_SECONDS) for one in self._backends.backends.values()))

    async def get(self, call: Call, uri: str) -> Json | None:
        """A listed skill is told as it is listed: that is what was compared with what an operator has approved."""
        dialect, visible = dialect_of(call), call.session.composition.visible
        listed = self._registry.get(uri)
        if isinstance(listed, RemoteSkill):
            if not visible(call, listed):
                return None
            return {**dialect_cache_hints(dialect), "skill": listed.entry(dialect)}
        backend = self._owner(call, uri)
        if backend is None or (inner := backend.prefix.inner_uri(uri)) is None:
            return None
        found = await _ask(backend, call, backend.relay(call, "skills/get", {"uri": inner}))
        raw = readable(object_of(found.get("skill")))
        if find_hidden_name(raw) is not None:
            return None
        skill = RemoteSkill(backend, uri, raw)
        self._backends.declare_found(skill)
        return {**found, "skill": skill.entry(dialect)} if visible(call, skill) else None

    async def read_directory(self, call: Call, uri: str, cursor: Any) -> Json | None:
        backend = self._owner(call, uri)
        if backend is None or (inner := backend.prefix.inner_uri(uri)) is None:
            return None
        if not _offered(backend).get("directoryRead"):
            return None
        params = {"uri": inner} if cursor is None else {"uri": inner, "cursor": cursor}
        found = await _ask(backend, call, backend.relay(call, "resources/directory/read", params))
        return uris.in_directory(found, backend.prefix)

    def holder(self, uri: str) -> RemoteSkill | None:
        """The listed skill that has this file or folder."""
        return self._holder(uri, lambda skill: True)

    def _owner(self, call: Call, uri: str) -> Backend | None:
        visible = call.session.composition.visible
        known = self._holder(uri, lambda skill: visible(call, skill))
        if known is None and self.holder(uri) is not None:
            return None  # it is there, and not for this caller
        if known is not None:
            return known.backend  # pyright: ignore[reportReturnType]
        return self._backends.owner(uri, lambda one: _is_offered(one) and one.serves(call))

    def _holder(self, uri: str, may: Callable[[RemoteSkill], bool]) -> RemoteSkill | None:
        for place in (uri, *manifests_above(uri)):
            skill = self._registry.get(place)
            if isinstance(skill, RemoteSkill) and may(skill):
                return skill
        return None


async def _ask(backend: Backend, call: Call, work: Coroutine[Any, Any, Json]) -> Json:
    """A result of a backend for a front of another version."""
    dialect, seconds = dialect_of(call), backend.timeout or call.session.composition.limits.tool
    found = await call.engine.within(call, seconds, work)
    return {**dialect_cache_hints(dialect), **shaped(found, dialect)}


def _offered(backend: Backend) -> Json:
    return object_of(object_of(backend.capabilities.get("extensions")).get(EXTENSION))


def _is_offered(backend: Backend) -> bool:
    return EXTENSION in object_of(backend.capabilities.get("extensions"))
