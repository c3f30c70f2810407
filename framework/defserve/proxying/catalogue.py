"""What a backend offers, shown in the registries of this server. Only what changed there is changed here.

Its lists are read first: all pages, within bounds, as raw JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.base.hidden_characters import is_printable_line
from defserve.base.redaction import get_logger
from defserve.client.replies import Json, is_method_missing, object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.core.registry import Registry
from defserve.errors import PeerError, UsageError
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.items import Item
from defserve.protocols.mcp.skills import SKILLS_EXTENSION_ID as SKILLS
from defserve.protocols.mcp.tools import TAGS_META_KEY
from defserve.protocols.mcp.transforms import MountPrefix, Transform, read_listed_tags
from defserve.protocols.mcp.uri_template import UriTemplate
from defserve.protocols.mgp.terms import SECURITY_META_KEY, derive_security
from defserve.proxying.boundary import find_hidden_character_in_names, sanitize_listed_item
from defserve.proxying.channel import BackendChannel
from defserve.proxying.items import RemotePrompt, RemoteResource, RemoteSkill, RemoteTool
from defserve.proxying.mounted import (
    MAX_NAME_LENGTH,
    ToolChoice,
    find_name_problem,
    find_tool_name_problem,
    make_outer_name,
)

if TYPE_CHECKING:
    from defserve.proxying.backend import Backend
    from defserve.proxying.events import EventRelay

log = get_logger("proxying")

LIST_SECONDS: Final = 10.0
MAX_ITEMS: Final = 10_000
MAX_PAGES: Final = 1_000
MAX_LIST_BYTES: Final = 32 * 1024 * 1024


class ListKind(NamedTuple):
    """One list: the capability that it needs, its method, its member of the result, and what names its items.

    With `is_extension`, the capability is one of the server's extensions.
    """

    capability: str
    method: str
    member: str
    key: str
    is_extension: bool = False

    def is_supported_by(self, capabilities: Json) -> bool:
        """Whether a server with these capabilities has the list."""
        return self.capability in (
            object_or_empty(capabilities.get("extensions")) if self.is_extension else capabilities
        )


LIST_KINDS: Final[Mapping[str, ListKind]] = {
    "tools": ListKind("tools", "tools/list", "tools", "name"),
    "prompts": ListKind("prompts", "prompts/list", "prompts", "name"),
    "resources": ListKind("resources", "resources/list", "resources", "uri"),
    "templates": ListKind("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
    "skills": ListKind(SKILLS, "skills/list", "skills", "uri", is_extension=True),
}


async def read_list(channel: BackendChannel, kind: ListKind) -> list[Json]:
    """Every item of a list, as it came. Raises PeerError if the list cannot be read, or is too long.

    A server that has the capability and not the method has no such items.
    """
    if not kind.is_supported_by(channel.terms.capabilities):
        return []
    items: list[Json] = []
    seen: set[str] = set()
    size, params = 0, Json()
    async with asyncio.timeout(LIST_SECONDS):
        while True:
            try:
                page = await channel.request(kind.method, params, LIST_SECONDS)
            except PeerError as error:
                if items or not is_method_missing(error):
                    raise
                log.info("a backend does not know %s, which belongs to what it offers: %s", kind.method, error.message)
                return []
            found = page.get(kind.member)
            items += [item for item in found if is_object(item)] if is_array(found) else []
            size += len(encode(found))
            cursor = page.get("nextCursor")
            if len(items) > MAX_ITEMS or size > MAX_LIST_BYTES or len(seen) > MAX_PAGES:
                raise PeerError(f"its {kind.method} is longer than {MAX_ITEMS} items or {MAX_LIST_BYTES} bytes")
            if not isinstance(cursor, str):
                return list(map(_plain, items)) if channel.offers_mgp else items
            if cursor in seen:
                raise PeerError(f"the pages of its {kind.method} never end: a cursor came twice")
            seen.add(cursor)
            params = {"cursor": cursor}


def _plain(item: Json) -> Json:
    """An item as a client without MGP would see it: what a tool says of its security is in `_meta`.

    So a list is the same whether a backend was asked with MGP or without. A block that only repeats the tool's hints,
    as every tool has one, is left out.
    """
    if "security" not in item:
        return item
    item = dict(item)
    security, meta = object_or_empty(item.pop("security")), object_or_empty(item.get("_meta"))
    if SECURITY_META_KEY in meta or security == derive_security(object_or_empty(item.get("annotations")), is_own=True):
        return item
    return {**item, "_meta": {**meta, SECURITY_META_KEY: security}}


# -- What a backend offers, shown in the registries of this server. Only what changed there is changed here.


RESERVED: Final = ("mgp.", "mgp_")
"""How names begin that belong to kernels (MGP §16)."""
PAUSE_SECONDS: Final = 0.1
"""Between two readings: a backend may say that its lists have changed whenever they are read."""
REST: Final = 9
"""For how many times as long as a reading took: a backend that changes long lists all the time is not all we serve."""
AT_ONCE: Final = 50
"""Items that are made before others have their turn."""
NAMED: Final = ("tools", "prompts", "events")
"""What has a name; the rest has a URI."""
TAGS_KEYS: Final = (TAGS_META_KEY, "fastmcp", "_fastmcp")
"""Where servers list the tags of a tool in its `_meta`."""

DECLARED_AGAIN: Final = ("tools", "prompts", "templates", "skills", "events")
"""Resources are many, and nothing is said of them."""


class MountedPrefixes:
    """The prefixes of all servers that are mounted on one, with their ids.

    The operator chose them, so a prefix is a promise whose a name is. Of several that fit a name, the longest counts.
    """

    def __init__(self, known: Iterable[tuple[str, MountPrefix]] = ()) -> None:
        self._known = list(known)

    def add(self, id: str, prefix: MountPrefix) -> None:
        self._known.append((id, prefix))

    def remove(self, prefix: MountPrefix) -> None:
        self._known = [known for known in self._known if known[1] is not prefix]

    def find_owner(self, name: str, own: MountPrefix) -> str | None:
        """The other server whose prefix a name, or a URI, has; None if one with the prefix `own` may offer it."""
        found = [(len(prefix.text or ""), id) for id, prefix in self._known if prefix.is_prefix_of(name)]
        longest, id = max(found, default=(0, ""))
        return id if longest > len(own.text or "") else None


class FrontRegistries(NamedTuple):
    """The server that a backend's items are shown in. `declare` lets its extensions look at an item.

    It raises UsageError for an item that is not allowed. `events` is there if the server has events.
    """

    mcp: MCP
    declare: Callable[[Item[Any]], None]
    mounted: MountedPrefixes
    events: EventRelay | None = None


class NameClash(UsageError):
    """Two servers offer something of the same name."""


class BackendCatalogue:
    """The items of one backend. `problems` says which of them are left out, and why."""

    def __init__(
        self, backend: Backend, front: FrontRegistries, choice: ToolChoice, transform: Transform | None = None
    ) -> None:
        self._backend, self._front, self._choice, self._transform = backend, front, choice, transform
        mcp = front.mcp
        self._registries: dict[str, Registry[Any]] = {
            "tools": mcp.tools.registry,
            "prompts": mcp.prompts.registry,
            "resources": mcp.resources.concrete,
            "templates": mcp.resources.templates,
            "skills": mcp.ensure_skills_section().registry,
        }
        self._kinds, self._makers = dict(LIST_KINDS), dict(MAKERS)
        if front.events is not None:
            self._kinds["events"], self._makers["events"] = front.events.kind, front.events.make_event
            self._registries["events"] = front.events.registry
        self._shown: dict[str, dict[str, Any]] = {kind: {} for kind in self._kinds}
        self._changed: dict[BackendChannel, set[str]] = {}
        self._task: asyncio.Task[None] | None = None
        self._private: dict[Hashable, set[str]] = {}
        self._declarations = 0
        self.problems: dict[str, list[str]] = {}
        self.bind_to_next_loop()
        self._warned: set[str] = set()

    def bind_to_next_loop(self) -> None:
        """Belong to the event loop that comes next."""
        self._refreshing = asyncio.Lock()

    def count_shown_items(self, kind: str) -> int:
        return len(self._shown[kind])

    async def refresh_lists(
        self, channel: BackendChannel, kinds: Sequence[str] | None = None, *, strict: bool = False
    ) -> None:
        """Read lists, or all of them, and show them.

        Raises PeerError if one cannot be read; with `strict`, NameClash for a taken name.
        """
        kinds = tuple(self._kinds) if kinds is None else kinds
        async with self._refreshing:
            lists = await asyncio.gather(
                *(read_list(channel, self._kinds[kind]) for kind in kinds), return_exceptions=True
            )
            for read in lists:
                if isinstance(read, BaseException):
                    raise read if isinstance(read, PeerError) else PeerError(_late(read))
            made: dict[str, dict[str, Any]] = {}
            for kind, read in zip(kinds, lists, strict=True):
                if isinstance(read, list):
                    made[kind] = await self._make_items(kind, read, is_private=channel.front is not None)
            if strict:
                self._refuse_clashes(made)
            key = channel.front.key if channel.front is not None else None
            for kind, items in made.items():
                if key is None:
                    self._show(kind, items)
                else:
                    self._show_to(key, kind, items)

    def schedule_list_refresh(self, channel: BackendChannel, kinds: Sequence[str]) -> None:
        """The backend says that lists have changed. Several changes at once are read once, and not all the time."""
        self._changed.setdefault(channel, set()).update(kinds)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_changed())

    def stop_refreshing(self) -> None:
        self._changed.clear()
        if self._task is not None:
            self._task.cancel()

    async def _read_changed(self) -> None:
        while self._changed:
            channel, kinds = self._changed.popitem()
            began = time.thread_time()
            try:
                await self.refresh_lists(channel, sorted(kinds))
            except PeerError as error:
                text = self._backend.secrets.redact_text(error.message)
                log.warning("server %r: its new lists cannot be read: %s", self._backend.id, text)
            await asyncio.sleep(max(PAUSE_SECONDS, REST * (time.thread_time() - began)))

    @property
    def private_front_keys(self) -> Collection[Hashable]:
        """The keys of the fronts that are shown items of their own."""
        return self._private.keys()

    def drop_private_items(self, key: Hashable) -> None:
        """The conversation of a front has ended: what only that one had is gone."""
        for kind in self._private.pop(key, ()):
            self._show_to(key, kind, {})

    def clear(self) -> None:
        """Take everything out of the server."""
        for kind in self._kinds:
            self._show(kind, {})

    def drop_names_of_others(self) -> None:
        """A backend was mounted beside this one: names with its prefix are no longer ours to offer."""
        for kind in self._kinds:
            kept = {name: item for name, item in self._shown[kind].items() if not self._is_others(name)}
            if len(kept) < len(self._shown[kind]):
                self._show(kind, kept)

    def notify_lists_changed(self) -> None:
        """The state of the backend, which lists tell, has changed."""
        for registry in self._registries.values():
            registry.notify_watchers()

    def declare_again(self) -> None:
        """What this server says of the items has changed: have each declared once more, as if it were new."""
        self._declarations += 1
        for kind in self._kinds.keys() & DECLARED_AGAIN:
            shown, registry = self._shown[kind], self._registries[kind]
            again = {name: self._make_again(kind, name, item) for name, item in shown.items()}
            self._show(kind, {name: item for name, item in again.items() if item is not None})
            for name, old in registry.items():
                if old.backend is not self._backend or not old.fronts:
                    continue
                if (item := self._make_again(kind, name, old)) is None:
                    registry.remove(name)
                else:
                    item.fronts = old.fronts
                    registry.add(name, item, where=item.where, replace=True)

    def _make_again(self, kind: str, name: str, item: Any) -> Any:
        made: dict[str, Any] = {}
        if (problem := self._make(kind, name, item.raw, made)) is not None:
            self._warn([f"{kind[:-1]} {name!r} is left out: {problem}"])
        return made.get(name)

    # -- items -------------------------------------------------------------------------------------------

    async def _make_items(self, kind: str, listed: list[Json], *, is_private: bool = False) -> dict[str, Any]:
        """Items of what is listed. A long list is made in pieces: others must not wait for all of it.

        The list of one front's conversation `is_private`. What all are shown is not made again for it: the backend may
        describe it otherwise there, and nobody would be shown that.
        """
        clean = self._backend.secrets.redact_sure_secrets(listed)
        while True:
            began, made, problems = self._declarations, dict[str, Any](), list[str]()
            for first in range(0, len(clean), AT_ONCE):
                self._make_all(kind, clean[first : first + AT_ONCE], made, problems, is_private)
                await asyncio.sleep(0)
            # Else what was said of the tools has changed meanwhile, and those made before do not know it.
            if began == self._declarations:
                break
        self.problems[kind] = problems
        if kind == "tools" and self._transform is not None:
            listed_names = [str(raw.get("name")) for raw in listed]
            self._warn(
                [
                    f"the transform names a tool {n!r}, which there is not"
                    for n in self._transform.find_missing_tools(listed_names)
                ]
            )
        self._warn(problems)
        return made

    def _make_all(
        self, kind: str, listed: list[Json], made: dict[str, Any], problems: list[str], is_private: bool
    ) -> None:
        shown = self._shown[kind]
        for raw in map(sanitize_listed_item, listed):
            name = raw.get(self._kinds[kind].key)
            if kind == "tools" and isinstance(name, str) and not self._takes(name, raw):
                continue
            problem = find_name_problem(name) if kind in NAMED else _uri_problem(name)
            problem = problem or find_hidden_character_in_names(raw)
            if problem is None:
                outer = self._outer(kind, str(name))
                if kind == "tools" and (problem := find_tool_name_problem(outer)) is not None:
                    pass
                elif (owner := self._owner(outer)) is not None:
                    problem = f"names with that prefix are those of server {owner!r} (mount this one with a prefix too)"
                elif outer in made:
                    problem = "it is listed twice"
                elif outer in shown and (is_private or shown[outer].raw == raw):
                    made[outer] = shown[outer]
                else:
                    problem = self._make(kind, outer, raw, made)
            if problem is not None:
                problems.append(f"{kind[:-1]} {str(name)[:100]!a} is left out: {problem}")

    def _takes(self, name: str, raw: Json) -> bool:
        is_shown = self._transform is None or self._transform.takes(name, read_listed_tags(raw, TAGS_KEYS))
        return is_shown and self._choice.is_offered(name)

    def _make(self, kind: str, outer: str, raw: Json, made: dict[str, Any]) -> str | None:
        try:
            item = self._makers[kind](self._backend, outer, raw)
            if kind == "tools" and self._transform is not None:
                self._transform.apply(item, str(raw["name"]))
            if kind == "templates":
                item.template = MountedTemplate(item.template, self._is_others)
            self._front.declare(item)
        except UsageError as error:
            return error.problem
        if kind in NAMED and (is_kernel_tool_name(outer) or is_kernel_tool_name(str(raw.get("name")))):
            return f"names that begin with {' or '.join(RESERVED)} are reserved"
        made[outer] = item
        return None

    def _owner(self, outer: str) -> str | None:
        return self._front.mounted.find_owner(outer, self._backend.prefix)

    def _is_others(self, outer: str) -> bool:
        return self._owner(outer) is not None

    def _outer(self, kind: str, name: str) -> str:
        prefix: MountPrefix = self._backend.prefix
        if kind not in NAMED:
            return prefix.prefix_uri(name)
        chosen = self._choice.get_offered_name(name) if kind == "tools" else name
        if kind == "tools" and self._transform is not None:
            chosen = self._transform.rename.get(name, chosen)
        outer = make_outer_name(prefix, chosen)
        if outer != prefix.prefix_name(chosen):
            whole = prefix.prefix_name(chosen)
            self._warn([f"{whole!r} is longer than {MAX_NAME_LENGTH} characters; it is offered as {outer!r}"])
        return outer

    # -- showing -----------------------------------------------------------------------------------------

    def _refuse_clashes(self, made: dict[str, dict[str, Any]]) -> None:
        for kind, items in made.items():
            registry, shown = self._registries[kind], self._shown[kind]
            for name in items:
                taken = registry.get(name)
                if taken is not None and taken is not shown.get(name) and taken.backend is not self._backend:
                    raise NameClash(
                        f"{registry.kind} {name!r} of server {self._backend.id!r} is already registered"
                        f" at {taken.where or 'this server'}",
                        fix='mount one of the two with a prefix (in mgp.toml: prefix = "…")',
                    )

    def _show(self, kind: str, items: dict[str, Any]) -> None:
        registry, shown = self._registries[kind], self._shown[kind]
        for name in [name for name in shown if name not in items]:
            if registry.get(name) is shown[name]:
                registry.remove(name)
            del shown[name]
        for name, item in items.items():
            old = shown.get(name)
            if old is item and registry.get(name) is item:
                continue
            taken = registry.get(name)
            if taken is not None and taken is not old and taken.backend is not self._backend:
                problem = f"{registry.kind} {name!r} is left out: {taken.where} offers one of that name"
                self.problems[kind].append(problem)
                self._warn([problem])
                continue
            registry.add(name, item, where=item.where, replace=taken is not None)
            shown[name] = item
        if kind in ("resources", "templates"):
            self._front.mcp.resources.cache.drop_contents()

    def _show_to(self, key: Hashable, kind: str, items: dict[str, Any]) -> None:
        """Show one front what its own conversation has beyond the rest."""
        registry, shown = self._registries[kind], self._shown[kind]
        before = self._find_private_items(key, kind)
        for name, item in before.items():
            if name not in items:
                item.fronts.discard(key)
                if not item.fronts:
                    registry.remove(name)
        for name, item in items.items():
            if name in shown:
                continue
            taken = registry.get(name)
            if taken is None:
                item.fronts = {key}
                registry.add(name, item, where=item.where)
            elif taken.backend is not self._backend or taken.fronts is None:
                continue
            elif taken.raw != item.raw and taken.fronts == {key}:
                item.fronts = {key}
                registry.add(name, item, where=item.where, replace=True)
            elif taken.raw != item.raw:
                # A name has one listing here, and that of another front may tell what is not for this one.
                taken.fronts.discard(key)
                self._warn([f"{registry.kind} {name!r} is left out for a client: another has a different one"])
                continue
            else:
                taken.fronts.add(key)
            self._private.setdefault(key, set()).add(kind)
        # A front that is told of a change looks at once. It must not be told too early, or of nothing.
        if self._find_private_items(key, kind).keys() != before.keys():
            registry.notify_watchers()

    def _find_private_items(self, key: Hashable, kind: str) -> dict[str, Any]:
        """What this front is shown beyond the rest."""
        items = self._registries[kind].items()
        return {
            name: item
            for name, item in items
            if item.backend is self._backend and item.fronts is not None and key in item.fronts
        }

    def _warn(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self._warned and len(self._warned) < 1_000:
                self._warned.add(problem)
                log.warning("server %r: %s", self._backend.id, problem)


MAKERS: Final[dict[str, Callable[[Backend, str, Json], Any]]] = {
    "tools": RemoteTool,
    "prompts": RemotePrompt,
    "resources": RemoteResource,
    "templates": lambda backend, uri, raw: RemoteResource(backend, uri, raw, template_of(uri)),
    "skills": RemoteSkill,
}


def is_kernel_tool_name(name: str) -> bool:
    """Whether a name belongs to kernels, and to no server behind one."""
    return name.lower().startswith(RESERVED)


def _uri_problem(uri: Any) -> str | None:
    if not isinstance(uri, str) or ":" not in uri:
        return "it has no URI"
    return None if is_printable_line(uri) and len(uri) <= 8 * 1024 else "its URI is too long, or cannot be shown"


def _late(error: BaseException) -> str:
    return "its lists did not come in time" if isinstance(error, TimeoutError) else f"its lists cannot be read: {error}"


# -- URI templates of backends. One that we cannot match is still offered: its backend may understand it.


class LooseTemplate(UriTemplate):
    """Matches every URI that begins as the template does, up to its first variable."""

    __slots__ = ("_head",)

    def __init__(self, text: str) -> None:
        self.text, self.names, self._head = text, (), text.partition("{")[0]

    def match_uri(self, uri: str) -> dict[str, Any] | None:
        return {} if len(self._head) > 0 and uri.startswith(self._head) else None


class MountedTemplate(UriTemplate):
    """A template that matches no URI which `is_others` says is of another mounted server."""

    __slots__ = ("_inner", "_is_others")

    def __init__(self, inner: UriTemplate, is_others: Callable[[str], bool]) -> None:
        self.text, self.names, self._inner, self._is_others = inner.text, inner.names, inner, is_others

    def expand(self, values: Mapping[str, Any]) -> str:
        return self._inner.expand(values)

    def match_uri(self, uri: str) -> dict[str, Any] | None:
        return None if self._is_others(uri) else self._inner.match_uri(uri)


def template_of(text: str) -> UriTemplate:
    try:
        return UriTemplate.parse(text)
    except ValueError:
        return LooseTemplate(text)
