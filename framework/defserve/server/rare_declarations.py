"""Declarations that few servers need, each imported when it is used: marks without a server, overrides, features."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from defserve.base.redaction import get_logger
from defserve.binding.injection import Dependency
from defserve.binding.signature import ProviderFinder, get_function_name, read_dependency
from defserve.errors import UsageError, did_you_mean
from defserve.server.decorators import declare_or_decorate, find_author_location, require_uri

if TYPE_CHECKING:
    from typing import Unpack

    from defserve.auth import Auth, TokenVerifier
    from defserve.code_mode.extension import CodeModeExtension
    from defserve.code_mode.run import CodeMode
    from defserve.core.extension import Extension
    from defserve.core.registry import Registry
    from defserve.limits import Limits
    from defserve.protocols.mcp.asking.server_secret import ServerSecret
    from defserve.protocols.mcp.events.draft import EventSettings
    from defserve.protocols.mcp.events.event_log import Occurrence
    from defserve.protocols.mcp.events.event_types import EventType, OccurrenceListener
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mcpl.feature_sets import FeatureSet
    from defserve.protocols.mgp.events import EventChannel
    from defserve.protocols.mgp.meta_tools import ToolSearch
    from defserve.server.options import AppFields, PromptFields, ResourceFields, ToolFields
    from defserve.server.server import Server


log = get_logger()

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__defserve_marks__"


class PendingDeclaration:
    """What a function is to become: a kind, its positional arguments, its options."""

    __slots__ = ("kind", "arguments", "options")

    def __init__(self, kind: str, arguments: tuple[str, ...], options: dict[str, Any]) -> None:
        self.kind, self.arguments, self.options = kind, arguments, options

    def put_on(self, function: Any) -> None:
        """Raises UsageError if it is not a function, or cannot carry a mark."""
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__  # pyright: ignore  (a class gives the function in it)
        try:
            if not callable(function):
                raise UsageError(
                    f"@{self.kind} marks functions, not {function!r}",
                    where=find_author_location(),
                    fix="put it above a def",
                )
            function.__dict__.setdefault(ATTRIBUTE, []).append(self)
        except AttributeError:
            raise UsageError(
                f"{function!r} cannot carry a mark", fix=f"register it directly: server.{self.kind}(…)"
            ) from None


# used bare: @tool
@overload
def tool(function: F, /) -> F: ...


# used with options: @tool(timeout=3)
@overload
def tool(**options: Unpack[ToolFields]) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool for `server.include`."""
    return declare_or_decorate("tool", PendingDeclaration("tool", (), options).put_on, function)


def resource(uri: str, /, **options: Unpack[ResourceFields]) -> Callable[[F], F]:
    """Mark a function as a resource for `server.include`."""
    require_uri("resource", uri)
    return declare_or_decorate("resource", PendingDeclaration("resource", (uri,), dict(options)).put_on)


def app(uri: str, /, **options: Unpack[AppFields]) -> Callable[[F], F]:
    """Mark a function as a view for `server.include`."""
    require_uri("app", uri, "ui://name/view")
    return declare_or_decorate("app", PendingDeclaration("app", (uri,), dict(options)).put_on)


# used bare: @prompt
@overload
def prompt(function: F, /) -> F: ...


# used with options: @prompt(title="…")
@overload
def prompt(**options: Unpack[PromptFields]) -> Callable[[F], F]: ...


def prompt(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a prompt for `server.include`."""
    return declare_or_decorate("prompt", PendingDeclaration("prompt", (), options).put_on, function)


def completion(target: str, argument: str, /) -> Callable[[F], F]:
    """Mark a function that completes an argument, for `server.include`."""
    return declare_or_decorate("completion", PendingDeclaration("completion", (target, argument), {}).put_on)


def iter_marked_functions(target: Any) -> Iterator[tuple[Callable[..., Any], PendingDeclaration]]:
    """The marked functions of a module, an object (bound to it), or a function, in order of definition."""
    if callable(target) and hasattr(target, ATTRIBUTE):
        functions = [target]
    elif isinstance(target, ModuleType):
        functions = list(vars(target).values())
    elif isinstance(target, type):
        functions = [_bind_to_class(target, value) for value in vars(target).values()]
    else:
        functions = [getattr(target, name) for name in _list_marked_names(target.__class__)]
    for function in functions:
        for mark in getattr(function, ATTRIBUTE, ()) if callable(function) else ():
            yield function, mark


def _bind_to_class(cls: type[Any], value: Any) -> Any:
    """What `Class.name` gives, without running a property."""
    return value.__get__(None, cls) if isinstance(value, staticmethod | classmethod) else value  # pyright: ignore


def _list_marked_names(cls: type[Any]) -> list[str]:
    """The marked attributes of a class, those of its bases first. Looked up on the class, so that no property runs."""
    names = dict.fromkeys(name for kind in reversed(cls.__mro__) for name in vars(kind))
    return [name for name in names if hasattr(getattr(cls, name, None), ATTRIBUTE)]


# -- A dependency replaced by another function, for tests.


class DependencyOverride:
    """A replacement in force, until `undo` or the end of its `with` block. Then the one before it counts again."""

    def __init__(
        self,
        overrides: dict[Callable[..., Any], Dependency],
        dependency: Callable[..., Any],
        replacement: Callable[..., Any],
        find_provider: ProviderFinder,
    ) -> None:
        for given in (dependency, replacement):
            if not callable(given):
                raise UsageError(
                    f"override takes two functions, and {given!r} is none",
                    fix="server.override(open_db, lambda: fake_db)",
                )
        self._overrides: dict[Callable[..., Any], Dependency] | None = overrides
        self._dependency, self._replacement = dependency, replacement
        self._before = overrides.get(dependency)
        overrides[dependency] = read_dependency(replacement, find_provider)

    def undo(self) -> None:
        """End it. A second time, it does nothing."""
        if self._overrides is None:
            return
        if self._before is None:
            self._overrides.pop(self._dependency, None)
        else:
            self._overrides[self._dependency] = self._before
        self._overrides = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"Override({get_function_name(self._dependency)} by {get_function_name(self._replacement)})"


# -- Parts that a server has only if its author asks for them, each imported then: tokens, code mode, events.


def make_token_checks(auth: Auth | TokenVerifier | Sequence[TokenVerifier], limits: Limits) -> tuple[Auth, Extension]:
    """How tokens are checked, and the extension for their scopes and rates."""
    from defserve.auth.auth_options import parse_auth_option
    from defserve.auth.rates import Rate
    from defserve.protocols.mcp.authorization import Authorization

    options = parse_auth_option(auth)
    return options, Authorization(Rate(limits.rate, limits.burst), options)


def make_code_mode(
    options: bool | CodeMode, registry: Registry[Tool], search: ToolSearch | None
) -> tuple[CodeModeExtension, list[Tool]]:
    """Code mode for the tools of a registry, and the tools that it adds to them. A search finds these always."""
    from defserve.code_mode.extension import CodeModeExtension
    from defserve.code_mode.run import parse_code_mode_option

    mode = CodeModeExtension(parse_code_mode_option(options), registry)
    if search is not None:
        mode.discover = search.section.discover
        search.section.always |= mode.names
    return mode, list(mode.tools())


EXPERIMENTAL: Final = ("events",)


def make_experimental_events(chosen: Sequence[str | EventSettings], server: Server, secret: ServerSecret) -> Events:
    """The events of a server that asks for them. Raises UsageError for an experiment that does not exist."""
    from defserve.protocols.mcp.events.draft import EventSettings
    from defserve.protocols.mcp.events.extension import Events
    from defserve.stores.identity import make_server_store
    from defserve.stores.store import MemoryStore

    settings = EventSettings()
    for each in (chosen,) if isinstance(chosen, str) else chosen:
        if isinstance(each, EventSettings):
            settings = each
        elif each not in EXPERIMENTAL:
            raise UsageError(
                f"Server(experimental=…): {each!r} is not possible",
                where=find_author_location(),
                fix=did_you_mean(str(each), EXPERIMENTAL),
            )
    store = server.store or make_server_store(server.shared or MemoryStore(), server.storage_identity)
    return Events(store, secret, server.mcp.subscriptions, settings, server.auth)


# -- `also=`: events that also go to a channel of MGP, or to the hosts of a feature set of MCPL.


MAX_WAITING_PUSHES: Final = 256
"""Events that wait for the answers of hosts. Then a host misses some."""


def make_event_feeds(event: EventType) -> tuple[OccurrenceListener, ...]:
    """What gets the events of a type as well. Raises UsageError for what would tell more callers than the event may."""
    from defserve.protocols.mcpl.feature_sets import FeatureSet
    from defserve.protocols.mgp.events import EventChannel

    def refuse(problem: str, fix: str) -> UsageError:
        return UsageError(f"event {event.name!r}: {problem}", where=event.where, fix=fix)

    if event.is_source:
        raise refuse(
            "also=… is not for a source, which runs only for those who listen to MCP events",
            "declare it without a body, and emit it with `await server.emit_event(…)`",
        )
    feeds: list[OccurrenceListener] = []
    for target in event.options.also:
        if isinstance(target, EventChannel):
            if missing := sorted(set(event.options.scopes) - target.scopes):
                raise refuse(
                    f"channel {target.name!r} is open to callers without the scope {missing[0]!r}",
                    f'server.event_channel("{target.name}", scopes={sorted(event.options.scopes)!r})',
                )
            feeds.append(_make_channel_feed(target))
        elif isinstance(target, FeatureSet):
            if event.options.scopes:
                raise refuse(
                    f"it has scopes, and feature set {target.name!r} pushes to every host that has switched it on",
                    "leave the scopes out, or push to the callers who may know: feature_set.push(…, to=…)",
                )
            target.record_declaration("pushEvents")
            feeds.append(_make_push_feed(event, target))
        else:
            raise refuse(
                f"also={target!r} is neither a channel nor a feature set",
                "make one with server.event_channel(…) or server.feature_set(…)",
            )
    return tuple(feeds)


def _make_channel_feed(channel: EventChannel) -> OccurrenceListener:
    def feed(occurrence: Occurrence) -> None:
        try:
            channel.emit_now(_merge_arguments(occurrence))
        except ValueError as error:
            log.error("event %s does not fit channel %s: %s", occurrence.id, channel.name, error)

    return feed


def _make_push_feed(event: EventType, feature_set: FeatureSet) -> OccurrenceListener:
    from defserve.base.concurrency import BackgroundTasks
    from defserve.protocols.mcpl.peers import everyone

    waiting = BackgroundTasks()

    async def push(occurrence: Occurrence) -> None:
        text = f"{event.description or event.name}\n{json.dumps(_merge_arguments(occurrence), ensure_ascii=False)}"
        try:
            await feature_set.push(text, id=occurrence.id, origin={"event": event.name}, to=everyone)
        except Exception as error:
            log.error("event %s was not pushed to the hosts of %s: %s", occurrence.id, feature_set.name, error)

    def feed(occurrence: Occurrence) -> None:
        if len(waiting) < MAX_WAITING_PUSHES:
            waiting.start(push(occurrence))
        else:
            log.warning("event %s is not pushed: hosts have not answered %d others", occurrence.id, len(waiting))

    return feed


def _merge_arguments(occurrence: Occurrence) -> dict[str, Any]:
    """Subscribers of other protocols give no arguments, so they get those of the event with its data."""
    return {**occurrence.arguments, **occurrence.data}
