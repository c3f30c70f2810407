"""Declarations: how functions become tools, resources, prompts, completions, health checks and wrappers of methods.

At the end they are turned into one `Composition`, which is what is served: extensions, wrappers, lifespans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, overload

from defserve.binding.signature import find_source_location, get_function_name, split_annotated
from defserve.context import Context
from defserve.core.composition import Composition
from defserve.core.extension import Extension, Provider, Wrapper, is_coroutine_function
from defserve.errors import UsageError, did_you_mean
from defserve.limits import Limits
from defserve.protocols.mcp.extension import MCP, OPTIONAL_EXTENSION_FACETS
from defserve.protocols.mcp.items import Item
from defserve.protocols.mcp.prompts import Completion, Prompt, PromptOptions
from defserve.protocols.mcp.resources import Resource, ResourceOptions
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.protocols.mgp.extension import MGP
from defserve.server.decorators import (
    declare_or_decorate,
    find_author_location,
    read_item_options,
    require_uri,
    resolve_author_path,
)

if TYPE_CHECKING:
    from typing import Unpack

    from defserve.binding.injection import Dependency
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mgp.events import EventChannel
    from defserve.server.options import AppFields, EventFields, PromptFields, ResourceFields, ToolFields
    from defserve.server.rare_declarations import DependencyOverride
    from defserve.server.server import Server


F = TypeVar("F", bound=Callable[..., Any])
W = TypeVar("W", bound=Wrapper)


class Declarations:
    """The functions that a server offers. They may change while it serves; clients are told of changes."""

    mcp: MCP
    mgp: MGP
    limits: Limits
    extensions: tuple[Extension, ...]
    """Every protocol and part of one, in the order in which they act."""
    injectables: dict[Any, Provider]
    """Annotation → provider, of all extensions."""
    wrappers: dict[str, list[Wrapper]]
    schema_dialect: str | None = None
    """The narrower dialect in which schemas are published. None: they are portable."""
    _composition: Composition | None
    _overrides: dict[Callable[..., Any], Dependency]
    _events: Events | None

    # used bare: @server.tool
    @overload
    def tool(self, function: F, /) -> F: ...
    # used with options: @server.tool(timeout=3)
    @overload
    def tool(self, /, **options: Unpack[ToolFields]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Serve a function as a tool. Returns it unchanged."""
        return declare_or_decorate("server.tool", lambda function: self.add_tool(function, **options), function)

    def resource(self, uri: str, /, **options: Unpack[ResourceFields]) -> Callable[[F], F]:
        """Serve a function as the contents of a URI, or of every URI that a template (RFC 6570) matches."""
        require_uri("server.resource", uri)
        return declare_or_decorate("server.resource", lambda function: self.add_resource(function, uri, **options))

    def app(self, uri: str, /, **options: Unpack[AppFields]) -> Callable[[F], F]:
        """Serve a function as a view, which hosts show beside results: it returns HTML, or the `Path` of an HTML file.

        Tools name it with `app=`, by the function or by its `ui://` URI. A relative path starts in the folder of the
        function's file. The file is read again when it has changed.
        """
        require_uri("server.app", uri, "ui://name/view")
        return declare_or_decorate("server.app", lambda function: self.add_app(function, uri, **options))

    # used bare: @server.prompt
    @overload
    def prompt(self, function: F, /) -> F: ...
    # used with options: @server.prompt(title="…")
    @overload
    def prompt(self, /, **options: Unpack[PromptFields]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Serve a function as a prompt. Returns it unchanged."""
        return declare_or_decorate("server.prompt", lambda function: self.add_prompt(function, **options), function)

    # used bare: @server.event
    @overload
    def event(self, function: F, /) -> F: ...
    # used with options: @server.event(delivery=["poll"])
    @overload
    def event(self, /, **options: Unpack[EventFields]) -> Callable[[F], F]: ...
    def event(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a type of event (a draft): parameters are what subscribers filter by, the return type is its data.

        A plain function is never called. An async generator is a source, which runs while somebody listens. Needs
        `Server(…, experimental=["events"])`. Returns the function unchanged.
        """
        return declare_or_decorate("server.event", lambda function: self.add_event(function, **options), function)

    def completion(self, target: str, argument: str, /) -> Callable[[F], F]:
        """Suggest values for one argument of a prompt (by name) or of a resource template (by its text)."""

        def declare(function: Any) -> None:
            completion = Completion.of(function, find_provider=self.find_provider, owner=self)
            for extension in self.extensions:
                extension.on_item_declared(completion)
            self.mcp.completions.add(target, argument, completion)

        return declare_or_decorate("server.completion", declare)

    def skills(self, folder: str | PathLike[str], *, prefix: str = "", scopes: Sequence[str] = ()) -> None:
        """Serve every skill below a folder: each folder in it that has a `SKILL.md`, at `skill://PREFIX/NAME/SKILL.md`.

        The files are read now, and served as they were read. A relative path starts in the folder of the calling file.
        Callers need all `scopes` to see them.
        """
        self.mcp.ensure_skills_section().add_all(resolve_author_path(folder), prefix, scopes, self.add_resource, self)

    def skill(self, folder: str | PathLike[str], *, prefix: str = "", scopes: Sequence[str] = ()) -> None:
        """Serve one skill, a folder with a `SKILL.md`; see `skills`."""
        self.mcp.ensure_skills_section().add(resolve_author_path(folder), prefix, scopes, self.add_resource, self)

    # used bare: @server.health_check
    @overload
    def health_check(self, function: F, /) -> F: ...
    # used with options: @server.health_check(timeout=1)
    @overload
    def health_check(
        self, /, *, name: str | None = None, timeout: float = 5.0, critical: bool = False
    ) -> Callable[[F], F]: ...
    def health_check(
        self, function: Any = None, /, *, name: str | None = None, timeout: float = 5.0, critical: bool = False
    ) -> Any:
        """Declare a health check: a function that says whether something this server needs works. Returns it unchanged.

        None and True mean healthy. False, a text that says what is wrong, an exception, and no answer within `timeout`
        seconds mean unhealthy. Sync functions run in a thread. A `critical` check makes the whole server unhealthy.
        """

        def declare(function: Any) -> None:
            from defserve.protocols.mgp.lifecycle import HealthCheck

            check = HealthCheck(function, name or get_function_name(function), timeout, critical)
            if check.name in self.mgp.checks:
                raise UsageError(
                    f"there are two health checks called {check.name!r}",
                    where=find_source_location(function),
                    fix="give one a name=",
                )
            self.mgp.checks[check.name] = check

        return declare_or_decorate("server.health_check", declare, function)

    def around(self, method: str, /) -> Callable[[W], W]:
        """Wrap a method: `async (call, params, next)`. The first one declared is the outermost."""

        def declare(wrapper: W) -> W:
            self._refuse_after_start(f"around({method!r})")
            if not (is_coroutine_function(wrapper) or is_coroutine_function(type(wrapper).__call__)):
                raise UsageError(
                    f"around({method!r}): {getattr(wrapper, '__name__', wrapper)!r} is not async",
                    fix="write async def wrapper(call, params, next): return await next(call, params)",
                )
            self.wrappers.setdefault(method, []).append(wrapper)
            return wrapper

        return declare

    def event_channel(self, name: str, kind: Any = None, /, *, scopes: str | Sequence[str] = ()) -> EventChannel:
        """A channel of events: `usage = server.event_channel("model.token_usage", Usage)`, then `await usage.emit(…)`.

        `kind` is the type of the emitted values; peers need all `scopes` to receive them.
        """
        return self.mgp.events.declare(name, kind, scopes=scopes)

    def include(self, *targets: Any) -> None:
        """Declare every marked function of modules, objects or functions: `server.include(weather)`."""
        from defserve.server.rare_declarations import iter_marked_functions

        for target in targets:
            found = list(iter_marked_functions(target))
            if not found:
                raise UsageError(
                    f"nothing in {getattr(target, '__name__', target)!r} is marked",
                    fix="mark functions with @tool, @resource or @prompt from defserve",
                )
            for function, mark in found:
                getattr(self, mark.kind)(*mark.arguments, **mark.options)(function)

    # -- registries, open while serving ------------------------------------------------------------------

    def add_tool(
        self, tool: Tool | Callable[..., Any], *, replace: bool = False, **options: Unpack[ToolFields]
    ) -> None:
        """Add a tool, also while serving; clients are told that the list has changed.

        `replace` lets it take the name of another.
        """
        if not isinstance(tool, Tool):
            tool = Tool.of(
                tool, read_item_options(ToolOptions, options, tool), find_provider=self.find_provider, owner=self
            )
        if tool.options.app is not None or tool.options.visible_to is not None:
            from defserve.protocols.mcp.apps import link_tool_to_view

            tool = link_tool_to_view(tool, self.mcp.resources.concrete)
        self._declare(tool)
        self.mcp.tools.registry.add(tool.name, tool, where=tool.where, replace=replace)

    def remove_tool(self, name: str) -> None:
        """Remove a tool; clients are told that the list has changed."""
        self.mcp.tools.registry.remove(name)

    def add_resource(
        self,
        resource: Resource | Callable[..., Any],
        uri: str = "",
        *,
        replace: bool = False,
        **options: Unpack[ResourceFields],
    ) -> None:
        """Add a resource, also while serving."""
        if not isinstance(resource, Resource):
            about = read_item_options(ResourceOptions, options, resource)
            resource = Resource.of(resource, uri, about, find_provider=self.find_provider, owner=self)
        self._declare(resource)
        self.mcp.resources.add(resource, replace=replace)

    def add_app(self, function: Callable[..., Any], uri: str, **options: Unpack[AppFields]) -> None:
        """Add a view; see `app`. The first one is added before serving begins."""
        from defserve.protocols.mcp.apps import AppOptions, AppView

        about = read_item_options(AppOptions, options, function)
        self.add_resource(AppView.from_function(function, uri, about, find_provider=self.find_provider, owner=self))

    def remove_resource(self, uri: str) -> None:
        """Remove a resource, or a template by its text."""
        self.mcp.resources.remove(uri)

    def resource_updated(self, uri: str) -> None:
        """Tell every subscriber that the contents of a resource have changed. From any thread."""
        self.mcp.subscriptions.notify_resource_updated(uri)

    def add_prompt(
        self, prompt: Prompt | Callable[..., Any], *, replace: bool = False, **options: Unpack[PromptFields]
    ) -> None:
        """Add a prompt, also while serving."""
        if not isinstance(prompt, Prompt):
            about = read_item_options(PromptOptions, options, prompt)
            prompt = Prompt.of(prompt, about, find_provider=self.find_provider, owner=self)
        self._declare(prompt)
        self.mcp.prompts.registry.add(prompt.name, prompt, where=prompt.where, replace=replace)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt."""
        self.mcp.prompts.registry.remove(name)

    def add_event(self, function: Callable[..., Any], *, replace: bool = False, **options: Unpack[EventFields]) -> None:
        """Add a type of event, also while serving; see `event`."""
        from defserve.protocols.mcp.events.event_types import EventType, EventTypeOptions

        events = self._require_events()
        about = read_item_options(EventTypeOptions, options, function)
        available = events.list_available_delivery_modes()
        made = EventType.from_function(
            function, about, available=available, find_provider=self.find_provider, owner=self
        )
        if about.also:
            from defserve.server.rare_declarations import make_event_feeds

            made.feeds = make_event_feeds(made)
        self._declare(made)
        events.registry.add(made.name, made, where=made.where, replace=replace)

    def remove_event(self, name: str) -> None:
        """Remove a type of event; its streams and webhooks end."""
        self._require_events().registry.remove(name)

    async def emit_event(
        self, event: Callable[..., Any] | str, payload: Any, /, *, event_id: str | None = None, **arguments: Any
    ) -> str:
        """Tell subscribers what happened: `await server.emit_event(pushed, Push(…), repository="x")`. Returns its id.

        When it returns, the event is in the log of the server's store. `event` is the function that declares it, or its
        name. `arguments` are what subscribers filter by: a subscriber gets the event if each argument that it gave is
        equal. `event_id` is the id that the event has where it comes from, if it has one.
        """
        return await self._require_events().emit(event, payload, arguments, event_id)

    def emit_event_soon(
        self, event: Callable[..., Any] | str, payload: Any, /, *, event_id: str | None = None, **arguments: Any
    ) -> None:
        """The same from code that cannot await: in any thread, and before the server serves. Nothing says when, and
        whether, the store has it; a failure is logged.
        """
        self._require_events().emit_soon(event, payload, arguments, event_id)

    def _require_events(self) -> Events:
        if self._events is None:
            raise UsageError(
                "this server has no events: they are a draft, and have to be switched on",
                where=find_author_location(),
                fix='write Server(…, experimental=["events"])',
            )
        return self._events

    def _add_bound_tool(self, function: Callable[..., Any], binding: Any, options: Mapping[str, Any]) -> None:
        """Add a tool that belongs to a feature set."""
        about = read_item_options(ToolOptions, options, function)
        tool = Tool.of(function, about, find_provider=self.find_provider, owner=self)
        tool.facets["mcpl"] = binding
        self.add_tool(tool)

    def override(self, dependency: Callable[..., Any], replacement: Callable[..., Any], /) -> DependencyOverride:
        """Call `replacement` wherever a function of this server depends on `dependency`: for tests.

        It counts at once, until the end of the `with` block that it opens, or its `undo`. A replacement is a dependency
        like others: sync or async, with or without `yield`, and with dependencies of its own; it may depend on what it
        replaces. Servers that are mounted here take part. Raises UsageError for something that cannot be called.
        """
        from defserve.server.rare_declarations import DependencyOverride

        return DependencyOverride(self._overrides, dependency, replacement, self.find_provider)

    def _declare(self, item: Item[Any]) -> None:
        """Set the owner of an item, and check it. Raises UsageError for one that an extension does not allow."""
        if item.owner is None:
            item.owner = self
        item.check_limits(self.limits)
        for extension in self.extensions:
            extension.on_item_declared(item)

    def _refuse_after_start(self, what: str) -> None:
        if self._composition is not None:
            raise UsageError(f"{what} comes after the server has started", fix="declare it where you create the server")

    # -- for the layers below ----------------------------------------------------------------------------

    def find_provider(self, annotation: Any) -> Provider | None:
        """The provider of an injectable annotation; None for an argument that the peer sends."""
        # A marker in `Annotated[…]` may provide the parameter itself.
        for marker in split_annotated(annotation)[1]:
            if (find := getattr(marker, "find_provider", None)) is not None:
                return find(annotation, self.extensions)
        try:
            return self.injectables.get(annotation)
        except TypeError:  # an annotation that cannot be hashed is an argument
            return None


# -- Turns a server's declarations into a `Composition`, which the runner serves: extensions, wrappers, lifespans.


class AuthorExtension(Extension):
    """What every server contributes itself: the `Context` parameter and the author's lifespan."""

    name = "author"

    def __init__(self, server: Server) -> None:
        self._server = server

    def injectables(self) -> dict[Any, Provider]:
        return {Context: Context}

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        servers = self._server.self_and_mounted
        return _lifetime(servers) if any(server.lifespan is not None for server in servers) else None


@asynccontextmanager
async def _lifetime(servers: Sequence[Server]) -> AsyncGenerator[None]:
    """The lifespans of servers, each entered once, inside those before it."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        for server in servers:
            if server.lifespan is not None:
                stack.callback(setattr, server, "lifespan_value", None)
                try:
                    server.lifespan_value = await stack.enter_async_context(server.lifespan(server))
                except Exception as error:
                    error.add_note(f"The lifespan of server {server.name!r} failed, so it does not serve.")
                    raise
        yield


def compose_server(server: Server) -> Composition:
    """All declarations of a server. Raises UsageError for those that do not fit together."""
    _add_tasks(server)
    # Views come if there is one, here or on a server that is mounted, or a tool that asks for one. What servers
    # elsewhere have is not known yet.
    if _is_proxy(server) or any("apps" in item.facets for item in server.mcp.items()):
        from defserve.protocols.mcp.apps import Apps

        server.extend(Apps(server.mcp.resources.concrete))
    if server.shared is not None:
        from defserve.server.sharing import ProcessSharing

        server.extend(ProcessSharing(server.shared, server.storage_identity))
    composition = Composition(server.extensions, limits=server.limits, around=_wrappers(server))
    if unknown := sorted(set(server.wrappers) - composition.known_methods):
        from defserve.binding.signature import find_source_location

        raise UsageError(
            f"around({unknown[0]!r}) wraps a method that this server does not have",
            where=find_source_location(server.wrappers[unknown[0]][0]),
            fix=did_you_mean(unknown[0], sorted(composition.known_methods)),
        )
    if _is_proxy(server) and any(extension.name == "telemetry" for extension in server.extensions):
        from defserve.server.telemetry import trace_backends

        trace_backends(server.extensions, server.mounts)
    if server.search is not None:
        server.search.check(is_whole=not _is_proxy(server))
    server.check_mount_transforms()
    for child in server.self_and_mounted[:-1]:
        _refuse_left_behind(server, child)
    return composition


def _add_tasks(server: Server) -> None:
    """Serve tasks if a tool, of this server or of one that is mounted, runs as one. One elsewhere always may."""
    mcp, elsewhere = server.mcp, server.mounts if _is_proxy(server) else None
    if elsewhere is not None or any(tool.options.task for tool in mcp.tools.registry):
        from defserve.protocols.mcp.tasks.extension import Tasks

        tasks = Tasks(server.store, server.limits, mcp.tools.registry.get, mcp.subscriptions, elsewhere)
        server.extend(tasks)
        if elsewhere is not None:
            elsewhere.tasks = tasks.elsewhere


def _is_proxy(server: Server) -> bool:
    """Whether servers elsewhere are, or may be, mounted."""
    return any(extension.name == "proxying" for extension in server.extensions)


def _wrappers(server: Server) -> Mapping[str, Sequence[Wrapper]]:
    """The wrappers of each method. If tokens come in messages, their check is the outermost wrapper.

    Next is the one that gives a call of a meta-tool the name of the tool that is meant: all others see that name.
    """
    wrappers: dict[str, Sequence[Wrapper]] = {**server.wrappers}
    if server.search is not None:
        wrappers["tools/call"] = (server.search.calls, *server.wrappers.get("tools/call", ()))
    if server.auth is None or not server.auth.in_messages:
        return wrappers
    from defserve.protocols.mcp.authorization import MessageTokenCheck

    tokens = MessageTokenCheck(server.auth)
    opening = {name for extension in server.extensions for name in extension.opens_with}
    served = {name for extension in server.extensions for name in extension.methods()}
    return {name: (tokens, *wrappers.get(name, ())) for name in served - opening} | {
        name: wrappers for name, wrappers in wrappers.items() if name in opening
    }


def _refuse_left_behind(parent: Server, child: Server) -> None:
    """Raises UsageError if the child would lose protection by being mounted."""
    # Every server has these three. Those of LATE come with the items: the parent has its own.
    own = [
        e
        for e in child.extensions
        if not isinstance(e, MCP | MGP | AuthorExtension) and e.name not in OPTIONAL_EXTENSION_FACETS
    ]
    extensions = [extension for extension in own if extension not in parent.extensions]
    if settings := child.mgp.options.changed_protections:
        what, fix = f"{settings[0]}=", f"give it to Server({parent.name!r}, …) instead"
    elif extensions:
        what, fix = f"extension {extensions[0].name!r}", f"declare it on {parent.name!r} instead"
    elif child.wrappers:
        what, fix = f"around({next(iter(child.wrappers))!r})", f"declare it on {parent.name!r} instead"
    else:
        return
    raise UsageError(
        f"{what} of {child.name!r} would not act on {parent.name!r}, where {child.name!r} is mounted", fix=fix
    )
