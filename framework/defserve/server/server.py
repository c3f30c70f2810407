"""Server: what an author declares, composed and handed over to the runner and the host."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from defserve.binding.functions import name_of, place, where
from defserve.context import Context
from defserve.core.composition import Composition
from defserve.core.extension import Extension, Provider, Wrapper, is_coroutine_function
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.protocols.mcp.asking.sealing import Sealing
from defserve.protocols.mcp.completion import Completion
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.identity import Identity
from defserve.protocols.mcp.prompts import Prompt, PromptOptions
from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
from defserve.protocols.mcp.tools.tools import Tool, ToolOptions
from defserve.protocols.mgp.extension import MGP
from defserve.protocols.mgp.options import SecurityOptions
from defserve.server.marks import marked
from defserve.server.mounting import Mount, refuse_strays

if TYPE_CHECKING:
    from typing import Unpack

    from defserve.auth import Auth, TokenVerifier
    from defserve.host import Client
    from defserve.protocols.mcpl.channels.type import ChannelType
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.feature_sets import FeatureSet
    from defserve.protocols.mcpx.extension import MCPX, ChatHandler, Decision
    from defserve.protocols.mcpx.participant import Participant
    from defserve.protocols.mgp.events.channel import EventChannel
    from defserve.server.options import (
        FeatureSetFields,
        PromptFields,
        ResourceFields,
        ServerFields,
        ToolFields,
        WebFields,
    )
    from defserve.stores.store import Store
    from defserve.transports.http.app import HttpApp

    OnChat = TypeVar("OnChat", bound=ChatHandler)
    OnProposal = TypeVar("OnProposal", bound=Decision)

F = TypeVar("F", bound=Callable[..., Any])
W = TypeVar("W", bound=Wrapper)
Options = TypeVar("Options", ToolOptions, ResourceOptions, PromptOptions)
Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]


class Server:
    """A named set of tools, resources and prompts. Declare with the decorators, then `run`, `main` or `connect`.

    Registries stay open while it serves; extensions, `around` and the lifespan are fixed when serving begins.
    """

    def __init__(
        self,
        name: str,
        version: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        limits: Limits | None = None,
        auth: Auth | TokenVerifier | None = None,
        extensions: Sequence[Extension] = (),
        secret: str | bytes | None = None,
        store: str | Store | None = None,
        feature_sets: Literal["open", "strict"] = "open",
        **about: Unpack[ServerFields],
    ) -> None:
        caller = sys._getframe(1).f_globals.get("__name__")  # pyright: ignore[reportPrivateUsage]
        security, described = _apart(about, SecurityOptions.__slots__)
        try:
            self.identity = Identity(name, version, distribution=caller, **described)
        except TypeError:
            from defserve.server.options import ServerFields, refuse_unknown

            known = [
                *ServerFields.__annotations__,
                "lifespan",
                "limits",
                "auth",
                "extensions",
                "secret",
                "store",
                "feature_sets",
            ]
            refuse_unknown(about, known, "Server", _caller())
            raise
        self.limits = limits or Limits()
        self.store = _opened(store)
        self._sealing = Sealing(secret, store=self.store)
        self.mcp = MCP(self.identity, self._sealing)
        self.lifespan_value: Any = None
        self._lifespan, self._mounts = lifespan, list[Mount]()
        self._around: dict[str, list[Wrapper]] = {}
        self.auth = _checked_auth(auth)
        self.mgp = MGP(self.mcp.tools.registry, name, SecurityOptions(**security))
        self._extensions = (self.mcp, self.mgp, Author(self), *_authorization(self.auth, self.limits), *extensions)
        self._injectables: dict[Any, Provider] = {k: v for e in self._extensions for k, v in e.injectables().items()}
        self._mcpl: MCPL | None = None
        self._mcpx: MCPX | None = None
        self._strict = _checked_strict(feature_sets)
        self._composition: Composition | None = None

    @property
    def name(self) -> str:
        """What clients know it by."""
        return self.identity.name

    @property
    def version(self) -> str:
        """Its own, else that of the distribution it comes with, else 0.0.0."""
        return self.identity.version

    # -- declaring ---------------------------------------------------------------------------------------

    # used bare: @server.tool
    @overload
    def tool(self, function: F, /) -> F: ...
    # used with options: @server.tool(timeout=3)
    @overload
    def tool(self, /, **options: Unpack[ToolFields]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Serve a function as a tool. Returns it unchanged."""
        _no_text(function, "tool")

        def declare(function: F) -> F:
            self.add_tool(function, **options)
            return function

        return declare(function) if function is not None else declare

    def resource(self, uri: str, /, **options: Unpack[ResourceFields]) -> Callable[[F], F]:
        """Serve a function as the contents of a URI, or of every URI that a template (RFC 6570) matches."""
        if callable(uri):
            raise UsageError(
                "@server.resource needs a URI", where=where(uri), fix='write @server.resource("config://app")'
            )

        def declare(function: F) -> F:
            self.add_resource(function, uri, **options)
            return function

        return declare

    # used bare: @server.prompt
    @overload
    def prompt(self, function: F, /) -> F: ...
    # used with options: @server.prompt(title="…")
    @overload
    def prompt(self, /, **options: Unpack[PromptFields]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Serve a function as a prompt. Returns it unchanged."""
        _no_text(function, "prompt")

        def declare(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        return declare(function) if function is not None else declare

    def completion(self, target: str, argument: str, /) -> Callable[[F], F]:
        """Suggest values for one argument of a prompt (by name) or of a resource template (by its text)."""

        def declare(function: F) -> F:
            completion = Completion.of(function, find_provider=self.find_provider, owner=self)
            self.mcp.completions.add(target, argument, completion)
            return function

        return declare

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
        """Ask a function whether something this server needs is there. Returns it unchanged.

        None and True are good news; False, a text that says what is wrong, an exception and no answer within `timeout`
        seconds are bad. Sync ones run in a thread. One that is `critical` makes the whole server unhealthy.
        """
        _no_text(function, "health_check")

        def declare(function: F) -> F:
            from defserve.protocols.mgp.lifecycle.checks import HealthCheck

            check = HealthCheck(function, name or name_of(function), timeout, critical)
            if check.name in self.mgp.checks:
                raise UsageError(
                    f"there are two health checks called {check.name!r}", where=where(function), fix="give one a name="
                )
            self.mgp.checks[check.name] = check
            return function

        return declare(function) if function is not None else declare

    def feature_set(self, name: str, description: str, **options: Unpack[FeatureSetFields]) -> FeatureSet:
        """Declare a behaviour that hosts switch on and off as one; its verbs say what it does."""
        return self.mcpl.feature_set(name, description, **options)

    def remove_feature_set(self, name: str) -> None:
        """Take a feature set back with its tools, hooks and events; hosts are told."""
        self.mcpl.remove(name)

    def channels(self, type: str, *, feature_set: FeatureSet) -> ChannelType:
        """Declare channels of a type (`discord`, `irc`, …) that this server connects to."""
        return self.mcpl.channels.declare(type, feature_set)

    @property
    def mcpl(self) -> MCPL:
        """The live part of this server, there from the first feature set on."""
        if self._mcpl is None:
            if self._composition is not None:
                raise UsageError(
                    "the first feature set comes after serving began", fix="declare it where the server is made"
                )
            from defserve.protocols.mcpl.extension import MCPL
            from defserve.protocols.mcpl.state.storage import Keeping

            keeping = Keeping(self.store, self._sealing.known, self.limits)
            self._mcpl = MCPL(
                self._add_tied_tool, self.find_provider, self.mcp.tools.registry, self, keeping, self._strict
            )
            self._extensions = (*self._extensions, self._mcpl)
            self._injectables |= self._mcpl.injectables()
        return self._mcpl

    @property
    def mcpx(self) -> MCPX:
        """What this server does in topics besides answering requests."""
        if self._mcpx is None:
            from defserve.protocols.mcpx.extension import MCPX

            self._mcpx = MCPX()
            if self._composition is None:
                self._extensions = (*self._extensions, self._mcpx)
        return self._mcpx

    def on_chat(self, handler: OnChat, /) -> OnChat:
        """Tell a function `(chat, participant)` what is said to this server in a topic. Returns it unchanged."""
        self.mcpx.chat_handlers.append(handler)
        return handler

    def on_proposal(self, handler: OnProposal, /) -> OnProposal:
        """Let a function `(proposal, participant)` decide on what others propose in a topic. Returns it unchanged.

        True fulfils the proposal, False declines it, None leaves it to others.
        """
        self.mcpx.decisions.append(handler)
        return handler

    def _add_tied_tool(self, function: Callable[..., Any], tie: Any, options: Mapping[str, Any]) -> None:
        given: Any = options
        tool = Tool.of(function, _options(ToolOptions, given, function), find_provider=self.find_provider, owner=self)
        tool.facets["mcpl"] = tie
        self.add_tool(tool)

    def around(self, method: str, /) -> Callable[[W], W]:
        """Wrap a method: `async (call, params, next)`. The first one declared is the outermost."""

        def declare(wrapper: W) -> W:
            if self._composition is not None:
                raise UsageError(
                    f"around({method!r}) comes after serving began", fix="declare it where the server is made"
                )
            if not (is_coroutine_function(wrapper) or is_coroutine_function(type(wrapper).__call__)):
                raise UsageError(
                    f"around({method!r}): {getattr(wrapper, '__name__', wrapper)!r} is not async",
                    fix="write async def wrapper(call, params, next): return await next(call, params)",
                )
            self._around.setdefault(method, []).append(wrapper)
            return wrapper

        return declare

    def event_channel(self, name: str, kind: Any = None, /, *, scopes: str | Sequence[str] = ()) -> EventChannel:
        """A channel of events: `usage = server.event_channel("model.token_usage", Usage)`, then `await usage.emit(…)`.

        `kind` is the type of what is emitted; peers need all `scopes` to hear of it.
        """
        return self.mgp.events.declare(name, kind, scopes=scopes)

    def include(self, *targets: Any) -> None:
        """Declare every marked function of modules, objects or functions: `server.include(weather)`."""
        declare: dict[str, Callable[..., Any]] = {
            "tool": self.tool, "resource": self.resource, "prompt": self.prompt, "completion": self.completion,
        }  # fmt: skip
        for target in targets:
            found = list(marked(target))
            if not found:
                raise UsageError(
                    f"nothing in {getattr(target, '__name__', target)!r} is marked",
                    fix="mark functions with @tool, @resource or @prompt from defserve",
                )
            for function, mark in found:
                declare[mark.kind](*mark.arguments, **mark.options)(function)

    def mount(self, other: Server, *, prefix: str | None = None) -> None:
        """Serve another server's tools, resources and prompts as well, now and as they change.

        With a prefix `p`, tool and prompt `x` becomes `p_x` and resource `s://x` becomes `s://p/x`.
        """
        if self in other.household:
            raise UsageError(f"server {self.name!r} cannot be mounted on itself", fix="mount in one direction only")
        if self._composition is not None:
            raise UsageError("mount comes after serving began", fix="mount servers where the parent is made")
        self._mounts.append(Mount(self.mcp, other, prefix))
        self.mgp.mounted.append((f"{prefix}_" if prefix else "", other.mgp))
        self.mgp.events.follow(other.mgp.events)

    def extend(self, *extensions: Extension) -> None:
        """Add extensions to those given when the server was made, before it serves."""
        if self._composition is not None:
            raise UsageError(
                f"extension {extensions[0].name!r} comes after serving began",
                fix="give it where the server is made: Server(…, extensions=[…])",
            )
        for extension in extensions:
            for item in self.mcp.items():
                extension.declared(item)
            self._injectables |= extension.injectables()
        self._extensions = (*self._extensions, *extensions)

    # -- registries, open while serving ------------------------------------------------------------------

    def add_tool(
        self, tool: Tool | Callable[..., Any], *, replace: bool = False, **options: Unpack[ToolFields]
    ) -> None:
        """Add a tool, also while serving; clients are told that the list has changed.

        `replace` lets it take the name of another.
        """
        if not isinstance(tool, Tool):
            tool = Tool.of(tool, _options(ToolOptions, options, tool), find_provider=self.find_provider, owner=self)
        elif tool.owner is None:
            tool.owner = self
        tool.check(self.limits)
        for extension in self._extensions:
            extension.declared(tool)
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
            about = _options(ResourceOptions, options, resource)
            resource = Resource.of(resource, uri, about, find_provider=self.find_provider, owner=self)
        elif resource.owner is None:
            resource.owner = self
        resource.check(self.limits)
        for extension in self._extensions:
            extension.declared(resource)
        self.mcp.resources.add(resource, replace=replace)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource, or a template by its text."""
        self.mcp.resources.remove(uri)

    def resource_updated(self, uri: str) -> None:
        """Tell every subscriber that the contents of a resource have changed. From any thread."""
        self.mcp.subscriptions.updated(uri)

    def add_prompt(
        self, prompt: Prompt | Callable[..., Any], *, replace: bool = False, **options: Unpack[PromptFields]
    ) -> None:
        """Add a prompt, also while serving."""
        if not isinstance(prompt, Prompt):
            about = _options(PromptOptions, options, prompt)
            prompt = Prompt.of(prompt, about, find_provider=self.find_provider, owner=self)
        elif prompt.owner is None:
            prompt.owner = self
        prompt.check(self.limits)
        for extension in self._extensions:
            extension.declared(prompt)
        self.mcp.prompts.registry.add(prompt.name, prompt, where=prompt.where, replace=replace)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt."""
        self.mcp.prompts.registry.remove(name)

    # -- serving -----------------------------------------------------------------------------------------

    def run(
        self,
        on: str = "stdio:",
        *,
        token: str | None = None,
        token_file: str | None = None,
        log_level: str | None = None,
        log_json: bool = False,
        **web: Unpack[WebFields],
    ) -> None:
        """Serve on an address until the peer leaves or a signal ends it. Never reads the command line.

        `stdio:`, `http://host:port/path`, `https://…`, `ws://…`, `wss://…` and `unix:/path` are addresses; the
        options are for all but the first. `mcpx+ws://gateway/ws?topic=demo` joins a topic, where the `token` (or what
        is in `token_file`) says who this server is. With `log_level` or `log_json`, logging is set up to write to
        stderr, from "info" on with a line for every request. Ends with SystemExit(130) after Ctrl-C; returns after
        SIGTERM and at the end of input.
        """
        self.observe(log_level=log_level, log_json=log_json, metrics=web.get("metrics", False))
        from defserve.serving.addresses import serve

        code = serve(self, on, token, token_file, web)
        if code:
            raise SystemExit(code)

    def observe(self, *, log_level: str | None = None, log_json: bool = False, metrics: bool = False) -> None:
        """Set up logging, have requests logged and calls counted, as `run` does when it is asked to. Before serving."""
        if log_level is None and not (log_json or metrics):
            return
        from defserve.serving.addresses import observers

        found = observers(self._extensions, log_level, log_json, metrics)
        if found:
            self.extend(*found)

    def join(self, on: str, *, token: str | None = None) -> AbstractAsyncContextManager[Participant]:
        """Serve in a topic from within a running loop; entered when the gateway has sent its welcome."""
        from defserve.serving.addresses import joined

        return joined(self, on, token)

    def asgi(self, **options: Unpack[WebFields]) -> HttpApp:
        """This server as a plain ASGI app, to mount in Starlette or FastAPI; its lifespan needs no wiring."""
        from defserve.serving import web

        self.observe(metrics=options.get("metrics", False))
        return web.app(self.composition, self.mcp, self.auth, options)

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Serve as the command line says; what console scripts call."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        if not arguments:
            self.run()
            return
        from defserve.runner.arguments import parse

        try:
            self.run(**parse(arguments, self.name, lambda: self.version))
        except UsageError as error:
            raise SystemExit(f"error: {error}") from None

    @asynccontextmanager
    async def connect(self, version: str | None = None, **options: Any) -> AsyncGenerator[Client]:
        """A client of this server in the same process, for tests and embedding; see `defserve.host.Client`."""
        from defserve.host import Client
        from defserve.runner.memory import serving

        async with serving(self.composition) as link, Client(link, version=version, **options) as client:
            yield client

    @property
    def composition(self) -> Composition:
        """Everything declared, folded. From its first use on, extensions, mounts and `around` are fixed."""
        if self._composition is None:
            composition = Composition(self._extensions, limits=self.limits, around=self._guarded())
            unknown = sorted(set(self._around) - composition.known_methods)
            if unknown:
                raise UsageError(f"around({unknown[0]!r}) wraps a method nobody serves", fix="check its spelling")
            everyone = (MCP, MGP, Author)
            for child in self.household[:-1]:
                strays = [e for e in child._extensions if not isinstance(e, everyone) and e not in self._extensions]
                refuse_strays(self.name, child.name, child.mgp.options.acts, strays, child._around)
            self.mcp.compose(composition)
            if self._mcpl is not None:
                self._mcpl.compose(composition)
            self._composition = composition
        return self._composition

    def _guarded(self) -> Mapping[str, Sequence[Wrapper]]:
        """What wraps the methods: where tokens come in messages, asking for them goes before all else."""
        if self.auth is None or not self.auth.in_messages:
            return self._around
        from defserve.protocols.mcp.authorization.message_tokens import MessageTokens

        tokens = MessageTokens(self.auth)
        opening = {name for extension in self._extensions for name in extension.opens_with}
        served = {name for extension in self._extensions for name in extension.methods()}
        return {name: (tokens, *self._around.get(name, ())) for name in served - opening} | {
            name: wrappers for name, wrappers in self._around.items() if name in opening
        }

    # -- for the layers below ----------------------------------------------------------------------------

    def find_provider(self, annotation: Any) -> Provider | None:
        """The provider of an injectable annotation; None for an argument the peer sends."""
        try:
            found = self._injectables.get(annotation)
        except TypeError:  # an annotation that cannot be hashed is an argument
            return None
        # `State` brings its module along; without it no annotation can mean one.
        states = sys.modules.get("defserve.protocols.mcpl.state.binding") if found is None else None
        return states.provider(self._mcpl, annotation) if states is not None else found

    @asynccontextmanager
    async def lifetime(self) -> AsyncGenerator[None]:
        """This server's lifespan, inside those of the servers mounted on it, each entered once."""
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            for server in self.household:
                if server._lifespan is not None:
                    stack.callback(setattr, server, "lifespan_value", None)
                    server.lifespan_value = await stack.enter_async_context(server._lifespan(server))
            yield

    @property
    def has_lifetime(self) -> bool:
        """Whether it, or one mounted in it, has a `lifespan` to enter before the first call."""
        return any(server._lifespan is not None for server in self.household)

    @property
    def household(self) -> list[Server]:
        """This server and all that are mounted on it, each once, children before parents."""
        found = {server: None for mount in self._mounts for server in mount.server.household}
        return [*found, self]


class Author(Extension):
    """What the author contributes by declaring: the `Context` parameter and the server's lifespan."""

    name = "author"

    def __init__(self, server: Server) -> None:
        self._server = server

    def injectables(self) -> dict[Any, Provider]:
        return {Context: Context}

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        return self._server.lifetime() if self._server.has_lifetime else None


def _no_text(function: Any, kind: str) -> None:
    if isinstance(function, str):
        raise UsageError(
            f"@server.{kind}({function!r}): options have names",
            where=_caller(),
            fix=f'@server.{kind}(name="{function}")',
        )


def _options(kind: type[Options], given: Mapping[str, Any], function: Any) -> Options:
    try:
        return kind(**given)
    except TypeError:
        from dataclasses import fields

        from defserve.server.options import refuse_unknown

        subject = kind.__name__.removesuffix("Options").lower()
        known = [field.name for field in fields(kind)]
        refuse_unknown(given, known, f"{name_of(function)}: {subject}", where(function))
        raise


def _apart(fields: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of these names, and the others."""
    mine = {name: fields[name] for name in names if name in fields}
    return mine, {name: value for name, value in fields.items() if name not in mine}


def _caller() -> str:
    """`file.py:12` of the author's line that called the function of this module that asks."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals is globals():
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno)


def _opened(store: str | Store | None) -> Store | None:
    if not isinstance(store, str):
        return store
    from defserve.stores.open import open_store

    return open_store(store)


def _checked_strict(feature_sets: str) -> bool:
    if feature_sets not in ("open", "strict"):
        raise UsageError(
            f"Server(feature_sets={feature_sets!r})",
            where=_caller(),
            fix='say "open" (a set is on until the host says otherwise) or "strict" (it is off until then)',
        )
    return feature_sets == "strict"


def _checked_auth(auth: Auth | TokenVerifier | None) -> Auth | None:
    if auth is None:
        return None
    from defserve.auth.options import as_auth

    return as_auth(auth)


def _authorization(auth: Auth | None, limits: Limits) -> tuple[Extension, ...]:
    """Scopes and rates concern callers who come over the network with a token; others do not pay for them."""
    if auth is None:
        return ()
    from defserve.auth.buckets import Rate
    from defserve.protocols.mcp.authorization.authorization import Authorization

    return (Authorization(Rate(limits.rate, limits.burst)),)
