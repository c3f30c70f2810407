"""The backends of a server, as an extension: they open with its lifespan, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.client.replies import Json, object_or_empty
from defserve.core.call import Call
from defserve.core.extension import Extension, Listener
from defserve.core.registry import Registry
from defserve.errors import UsageError, did_you_mean
from defserve.protocols.mcp.app_policy import can_show_apps
from defserve.protocols.mcp.asking.client_requests import ParkedWorkRegistry
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY
from defserve.protocols.mcp.lifecycle import build_cache_hints, get_dialect
from defserve.protocols.mcp.skills import SKILLS_EXTENSION_ID, ListedSkill, list_possible_manifest_uris
from defserve.protocols.mcp.tasks.extension import RemoteTasks, TaskLost
from defserve.protocols.mcp.transforms import MountPrefix
from defserve.proxying import boundary, items
from defserve.proxying.backend import Backend, describe_unconnected_backend
from defserve.proxying.boundary import (
    QUOTE_MARK,
    adapt_backend_result,
    find_hidden_character_in_names,
    quote_backend_text,
    sanitize_listed_item,
)
from defserve.proxying.calls import TASK_SERVER_FIELD
from defserve.proxying.catalogue import FrontRegistries
from defserve.proxying.channel import identify_front
from defserve.proxying.items import RemoteResource, RemoteSkill
from defserve.proxying.mounted import BackendOptions, ToolChoice
from defserve.proxying.targets import BackendTarget, Command, Remote, parse_mount_target

if TYPE_CHECKING:
    from defserve.core.messages import Params
    from defserve.core.session import Session
    from defserve.protocols.mcp.telemetry import TelemetryOptions


LIST_WAIT_SECONDS: Final = 2.0
"""How long a list waits for backends that are still opening. The rest follows by list_changed."""
LATE_SECONDS: Final = 10.0
"""How long a call waits for a backend that is opened for the first time."""
STOP_SECONDS: Final = 5.0
MAX_INSTRUCTIONS_LENGTH: Final = 4_000
STATES_KEY: Final = "dev.defserve/servers"


class FrontView(NamedTuple):
    """What lists depend on: the key of a front with items of its own, and whether they say whose each item is."""

    own: Hashable
    names_servers: bool


class Mounts(Extension):
    """All backends of one server. They may come and go while it serves."""

    name = "proxying"

    def __init__(self, front: FrontRegistries) -> None:
        self._front = front
        self.backends: dict[str, Backend] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened_at = 0.0
        self._parking = ParkedWorkRegistry()
        self.tasks: RemoteTasks | None = None
        """Who keeps the tasks of backends. Set before serving begins."""
        self._telemetry: TelemetryOptions | None = None
        front.mcp.resources.unlisted = self._find_unlisted_resource
        front.mcp.lifecycle.more_instructions = self._instructions
        front.mcp.attach_backend_sources(self, self.wait_before_listing, self._states, self._late)
        if front.events is not None:
            front.events.events.attach_backend_sources(self.wait_before_listing, self._states, self._late)
        self.skills = front.mcp.ensure_skills_section().elsewhere = RemoteSkills(
            self, front.mcp.ensure_skills_section().registry
        )

    def declare(self, given: str | BackendTarget, prefix: str | None, options: Mapping[str, Any]) -> Backend:
        """Read what `Server.mount` was given. Raises UsageError for what cannot work."""
        fields = dict(options)
        id, tools = fields.pop("id", None), ToolChoice.from_option(fields.pop("tools", None))
        known = ("id", *BackendOptions.__slots__)
        if unknown := next((name for name in fields if name not in known), None):
            raise UsageError(
                f"mount has no option {unknown!r}", fix=_of_target(unknown) or did_you_mean(unknown, known)
            )
        return self.add(id, parse_mount_target(given), BackendOptions(prefix=prefix, tools=tools, **fields))

    def add(self, id: str | None, target: BackendTarget, options: BackendOptions) -> Backend:
        """Declare a backend. Raises UsageError if the name is taken. While serving, call its `start`."""
        id = id or options.prefix or self._free(target.shown)
        if id in self.backends:
            raise UsageError(f"there are two mounted servers called {id!r}", fix="give one of them another prefix")
        backend = Backend(id, target, self._front, options, self._parking, self._keep_task)
        self.backends[id] = backend
        backend.telemetry = self._telemetry
        self.claim_prefix(id, backend.prefix)
        return backend

    def trace_messages(self, telemetry: TelemetryOptions) -> None:
        """Trace what is sent to the backends, now and later. Call it before serving."""
        self._telemetry = telemetry
        for backend in self.backends.values():
            backend.telemetry = telemetry

    def claim_prefix(self, id: str, prefix: MountPrefix) -> None:
        """Names with this prefix are those of one server; backends that offer such names have them taken out."""
        self._front.mounted.add(id, prefix)
        for backend in self.backends.values():
            backend.catalogue.drop_names_of_others()

    async def remove(self, id: str, reason: str = "deregistered", timeout: float = STOP_SECONDS) -> None:
        """Stop a backend and forget it."""
        backend = self.backends.pop(id)
        self._front.mounted.remove(backend.prefix)
        await backend.stop(reason, timeout)

    def visible(self, call: Call, item: Any) -> bool:
        fronts: set[Hashable] | None = getattr(item, "fronts", None)
        return fronts is None or identify_front(call).key in fronts

    def view(self, call: Call) -> object:
        private = [backend for backend in self.backends.values() if backend.catalogue.private_front_keys]
        key = identify_front(call).key if private else None
        own = key if any(key in backend.catalogue.private_front_keys for backend in private) else None
        names_servers = call.terms.offer is not None and can_show_apps(call.terms.offer.capabilities)
        return FrontView(own, names_servers) if own is not None or names_servers else None

    def describe(self, item: Any, view: object) -> Mapping[str, Any]:
        """A host of views is told whose an item is: a view reaches those of its own server."""
        is_named = isinstance(view, FrontView) and view.names_servers and item.server_id is not None
        return {"_meta": {SERVER_ID_META_KEY: item.server_id}} if is_named else {}

    def session_closed(self, session: Session) -> None:
        for backend in self.backends.values():
            backend.on_session_closed(session)

    def credential_ended(self, session: Session, credential: str) -> None:
        for backend in self.backends.values():
            backend.credential_ended(credential)

    def notifications(self) -> Mapping[str, Listener]:
        return {"notifications/roots/list_changed": self._roots_changed}

    def negotiate(self, offer: Any) -> object:
        return self

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        if self._loop is not None:
            raise UsageError(
                "a server with mounted servers is already served on another event loop",
                fix="serve it on one loop, or make a server for each",
            )
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        try:
            await asyncio.gather(*(backend.start() for backend in self.backends.values()))
            yield
        finally:
            self._loop = None
            try:
                await self._parking.close()
            finally:
                stops = (backend.stop("kernel_shutdown", STOP_SECONDS) for backend in self.backends.values())
                await asyncio.gather(*stops, return_exceptions=True)

    async def wait_before_listing(self, call: Call) -> None:
        """Wait for backends that have never been open, as long as the server itself is young."""
        young = self._opened_at + LIST_WAIT_SECONDS - asyncio.get_running_loop().time()
        opening = [one for one in self.backends.values() if one.is_new]
        if opening and young > 0:
            await asyncio.gather(*(backend.ready(young) for backend in opening))

    async def _late(self, call: Call, name: str) -> bool:
        """A name, or URI, is not known. Wait for the backends that are opened for the first time and may have it.

        Raises what the caller is told if one of them does not run.
        """
        opening = [one for one in self.backends.values() if one.is_new and one.may_offer_name(name)]
        await asyncio.gather(*(backend.ready(LATE_SECONDS) for backend in opening))
        for backend in self.backends.values():
            # Nobody knows what it has. That it does not run says more than that there is no such name.
            if (
                not backend.is_known
                and backend.prefix.text
                and backend.may_offer_name(name)
                and backend.is_open_to(call)
            ):
                raise boundary.make_not_connected_error(backend, backend.state)
        return bool(opening)

    def find_owner(self, uri: str, able: Callable[[Backend], bool]) -> Backend | None:
        """The backend that may have what is not listed, by its prefix, or because there is no other without one."""
        backends = [one for one in self.backends.values() if able(one)]
        owners = [one for one in backends if one.prefix.text and one.prefix.strip_uri(uri) is not None]
        owners = owners or [one for one in backends if not one.prefix.text]
        return owners[0] if len(owners) == 1 else None

    def _find_unlisted_resource(self, uri: str) -> RemoteResource | None:
        """A resource that a backend may have, though it lists none with this URI: results and skills name such."""
        skill = self.skills.find_holder(uri)
        owner = self.find_owner(uri, lambda one: "resources" in one.capabilities) if skill is None else skill.backend
        if owner is None:
            return None
        found = RemoteResource(owner, uri, {"uri": uri, "name": uri})
        if skill is not None:  # a file is for whom its skill is
            found.facets.update(skill.facets)
        self.declare_found(found)
        return found

    def declare_found(self, item: RemoteResource) -> None:
        """Tell the front's extensions of something that no list has, before anybody sees it."""
        self._front.declare(item)

    def _instructions(self, call: Call) -> Iterator[str]:
        """What backends say about their use, each under its name. Their lines are marked: a heading is ours."""
        for backend in self.backends.values():
            text = quote_backend_text(backend.instructions or "", MAX_INSTRUCTIONS_LENGTH, MAX_INSTRUCTIONS_LENGTH)
            if text and not backend.hides_instructions and backend.state == "connected" and backend.is_open_to(call):
                yield f"## {backend.id}\n\n{QUOTE_MARK}{text}"

    async def watch_resources(self, call: Call, uris: Collection[str]) -> None:
        """The caller wants to hear of changes of these resources."""
        owners = self._owners(call, uris)
        watching = [asyncio.ensure_future(one.watch_resources(call, own)) for one, own in owners.items()]
        try:
            await asyncio.gather(*watching)
        except BaseException:
            for task in watching:
                task.cancel()
            done = await asyncio.gather(*watching, return_exceptions=True)
            for (one, own), outcome in zip(owners.items(), done, strict=True):
                if outcome is None:
                    await one.unwatch_resources(call, own)
            raise

    async def unwatch_resources(self, call: Call, uris: Collection[str]) -> None:
        """It no longer wants to."""
        await asyncio.gather(*(one.unwatch_resources(call, own) for one, own in self._owners(call, uris).items()))

    async def ask_task(self, call: Call, where: Params, method: str, params: Params) -> Params:
        """See `TaskServers`."""
        backend = self.backends.get(where[TASK_SERVER_FIELD])
        if backend is None:
            raise TaskLost
        return await backend.ask_task(call, where, method, params)

    def release_task(self, where: Params) -> None:
        """See `TaskServers`."""
        if (backend := self.backends.get(where[TASK_SERVER_FIELD])) is not None:
            backend.release_task(where)

    async def _keep_task(self, call: Call, created: Params, where: Params) -> Params:
        assert self.tasks is not None
        return await self.tasks.store_task(call, created, where)

    def _owners(self, call: Call, uris: Collection[str]) -> dict[Backend, list[str]]:
        """The backends of these resources, each with its own."""
        owners: dict[Backend, list[str]] = {}
        for uri in uris:
            found = self._front.mcp.resources.find_resource(call, uri)
            backend = found[0].backend if found is not None and isinstance(found[0], RemoteResource) else None
            if isinstance(backend, Backend):
                owners.setdefault(backend, []).append(uri)
        return owners

    def _states(self, call: Call) -> Params:
        """What lists say in `_meta`: the backends whose items may be missing, or do not work at the moment.

        Who may not use a backend does not hear of it.
        """
        down = {
            id: describe_unconnected_backend(one)
            for id, one in self.backends.items()
            if one.state != "connected" and one.is_open_to(call)
        }
        return {STATES_KEY: down} if down else {}

    def _roots_changed(self, session: Session, params: Params) -> None:
        for backend in self.backends.values():
            backend.notify_roots_changed(session)

    def _free(self, name: str) -> str:
        number, found = 1, name
        while found in self.backends:
            number += 1
            found = f"{name}-{number}"
        return found


def _of_target(option: str) -> str:
    """Where an option belongs that is not of the mount but of the server that is mounted."""
    kinds = [kind.__name__ for kind in (Command, Remote) if option in signature(kind).parameters]
    return "write " + " or ".join(f"{kind}(…, {option}=…)" for kind in kinds) if kinds else ""


# -- Skills of backends: listed with ours, and asked for where they are. Their files are read as resources.


LIST_SECONDS: Final = 2.0
"""How long a list waits for backends that tell their skills again."""


class RemoteSkills:
    """The skills of servers elsewhere. `get` and `read_directory` give None for what is none of theirs."""

    def __init__(self, backends: Mounts, registry: Registry[ListedSkill]) -> None:
        self._backends, self._registry = backends, registry

    async def wait_before_listing(self, call: Call) -> None:
        await self._backends.wait_before_listing(call)
        await asyncio.gather(*(one.refresh_stale_skills(LIST_SECONDS) for one in self._backends.backends.values()))

    async def get_skill(self, call: Call, uri: str) -> Json | None:
        """A listed skill is told as it is listed: that is what was compared with what an operator has approved."""
        dialect, visible = get_dialect(call), call.session.composition.visible
        listed = self._registry.get(uri)
        if isinstance(listed, RemoteSkill):
            is_shown = visible(call, listed)
            return {**build_cache_hints(dialect), "skill": listed.build_list_entry(dialect)} if is_shown else None
        backend = self._owner(call, uri)
        if backend is None or (inner := backend.prefix.strip_uri(uri)) is None:
            return None
        found = await _ask(backend, call, backend.relay(call, "skills/get", {"uri": inner}))
        raw = sanitize_listed_item(object_or_empty(found.get("skill")))
        if find_hidden_character_in_names(raw) is not None:
            return None
        skill = RemoteSkill(backend, uri, raw)
        self._backends.declare_found(skill)
        return {**found, "skill": skill.build_list_entry(dialect)} if visible(call, skill) else None

    async def read_directory(self, call: Call, uri: str, cursor: Any) -> Json | None:
        backend = self._owner(call, uri)
        if backend is None or (inner := backend.prefix.strip_uri(uri)) is None:
            return None
        skills = object_or_empty(object_or_empty(backend.capabilities.get("extensions")).get(SKILLS_EXTENSION_ID))
        if not skills.get("directoryRead"):
            return None
        params = {"uri": inner} if cursor is None else {"uri": inner, "cursor": cursor}
        found = await _ask(backend, call, backend.relay(call, "resources/directory/read", params))
        return items.prefix_directory(found, backend.prefix)

    def find_holder(self, uri: str) -> RemoteSkill | None:
        """The listed skill that has this file or folder."""
        return self._holder(uri, lambda skill: True)

    def _owner(self, call: Call, uri: str) -> Backend | None:
        visible = call.session.composition.visible
        known = self._holder(uri, lambda skill: visible(call, skill))
        if known is None and self.find_holder(uri) is not None:
            return None  # it is there, and not for this caller
        if known is not None:
            return known.backend  # pyright: ignore[reportReturnType]
        return self._backends.find_owner(
            uri,
            lambda one: (
                SKILLS_EXTENSION_ID in object_or_empty(one.capabilities.get("extensions")) and one.is_open_to(call)
            ),
        )

    def _holder(self, uri: str, may: Callable[[RemoteSkill], bool]) -> RemoteSkill | None:
        for place in (uri, *list_possible_manifest_uris(uri)):
            skill = self._registry.get(place)
            if isinstance(skill, RemoteSkill) and may(skill):
                return skill
        return None


async def _ask(backend: Backend, call: Call, work: Coroutine[Any, Any, Json]) -> Json:
    """A result of a backend for a front of another version."""
    dialect, seconds = get_dialect(call), backend.timeout or call.session.composition.limits.tool
    found = await call.engine.run_with_timeout(call, seconds, work)
    return {**build_cache_hints(dialect), **adapt_backend_result(found, dialect)}
