"""`Server`: an author declares on it; whatever serves it, or connects to it, gets the composition."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from defserve.core.composition import Composition
from defserve.core.extension import Extension, Wrapper
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.protocols.mcp.asking.server_secret import ServerSecret
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.lifecycle import ServerDescription
from defserve.protocols.mgp.extension import MGP
from defserve.protocols.mgp.terms import SecurityOptions
from defserve.server.declarations import AuthorExtension, Declarations, compose_server
from defserve.server.decorators import check_log_level, check_option_values, find_author_location

if TYPE_CHECKING:
    from typing import Unpack

    from defserve.auth import Auth, TokenVerifier
    from defserve.binding.json_schemas import SchemaDialectName
    from defserve.client import Client
    from defserve.code_mode.run import CodeMode
    from defserve.openapi.api import ImportFields
    from defserve.protocols.mcp.events.draft import EventSettings
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mcpl.channels.directory import ChannelType
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.feature_sets import FeatureSet
    from defserve.protocols.mcpl.state.states import States
    from defserve.protocols.mcpx.extension import MCPX, ChatHandler, ProposalHandler
    from defserve.protocols.mcpx.participant import Participant
    from defserve.proxying.mounts import Mounts
    from defserve.proxying.targets import Command, Remote
    from defserve.search.ranking import Search
    from defserve.serve.http.app import HttpApp
    from defserve.server.decorators import WebFields
    from defserve.server.mounting import InProcessMount
    from defserve.server.options import FeatureSetFields, MountFields, ServerFields, StateFields
    from defserve.stores.identity import ServerIdentity, ServerStore
    from defserve.stores.store import Store

    OnChat = TypeVar("OnChat", bound=ChatHandler)
    OnProposal = TypeVar("OnProposal", bound=ProposalHandler)

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M")
Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]


class Server(Declarations):
    """A named set of tools, resources and prompts. Declare with the decorators, then `run`, `main` or `connect`.

    Tools, resources and prompts may change while it serves. Extensions, `around` and the lifespan may not.

    `namespace` says which server this is to all that it stores, seals or shares. Without it, and without a resource URL
    of its `auth`, its name does: then two servers of one name and one `secret` open what the other has sealed.
    """

    def __init__(
        self,
        name: str,
        version: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        limits: Limits | None = None,
        auth: Auth | TokenVerifier | Sequence[TokenVerifier] | None = None,
        extensions: Sequence[Extension] = (),
        secret: str | bytes | None = None,
        store: str | Store | None = None,
        shared: str | None = None,
        namespace: str | None = None,
        feature_sets: Literal["open", "strict"] = "open",
        search: Literal["auto", "always"] | Search | None = None,
        code_mode: bool | CodeMode = False,
        dialect: SchemaDialectName = "portable",
        experimental: Sequence[Literal["events"] | EventSettings] = (),
        **about: Unpack[ServerFields],
    ) -> None:
        module = sys._getframe(1).f_globals.get("__name__")  # pyright: ignore[reportPrivateUsage]
        described: dict[str, Any] = {**about}
        check_option_values(
            {"name": name, "version": version, "lifespan": lifespan, "limits": limits, "extensions": extensions}
            | {"secret": secret, "store": store, "shared": shared, "namespace": namespace}
            | {"dialect": dialect}
            | described
        )
        given = {name: described.pop(name, None) for name in SecurityOptions.__slots__}
        security = {name: value for name, value in given.items() if value is not None}
        try:
            self.identity = ServerDescription(name, version, distribution=module, **described)
        except TypeError:
            from defserve.server.options import ServerFields, refuse_unknown_fields

            refuse_unknown_fields(about, ServerFields, Server.__init__, "Server", find_author_location())
            raise
        if shared is not None or feature_sets != "open":
            from defserve.server.options import check_shared_and_feature_sets

            check_shared_and_feature_sets(shared, feature_sets, find_author_location())
        self.limits = limits or Limits()
        self.schema_dialect = None if dialect == "portable" else dialect
        self.show_address: Callable[[str], None] | None = None
        """Called with the network address, once it is served there, instead of printing it."""
        self.show_note: Callable[[str], None] | None = None
        """Called with each line that an operator should read at the start, instead of printing it."""
        self.auth: Auth | None = None
        authorization: list[Extension] = []
        if auth is not None:
            from defserve.server.rare_declarations import make_token_checks

            self.auth, *authorization = make_token_checks(auth, self.limits)
        self._namespace = namespace
        self._storage_identity: ServerIdentity | None = None
        if self.auth is not None:
            self.auth.bind_server(self.storage_identity)
            self.auth.title = self.identity.title or name
        self.store: ServerStore | None = None
        if store is not None:
            from defserve.stores.identity import make_server_store

            self.store = make_server_store(store, self.storage_identity, what="Server(store=…)")
        self.shared: str | None = shared if shared is not None else getattr(self.store, "url", None)
        """The Redis through which processes share sessions."""
        self._secret = ServerSecret(secret, store=self.store, identity=lambda: self.storage_identity)
        self.mcp = MCP(self.identity, self._secret)
        self.lifespan_value: Any = None
        self.lifespan = lifespan
        self._mounts: list[InProcessMount] = []
        self._remote_mounts: Mounts | None = None
        self.wrappers: dict[str, list[Wrapper]] = {}
        self.mgp = MGP(self.mcp.tools.registry, name, SecurityOptions(**security))
        self.mgp.log_name = lambda: self.storage_identity.label
        self.search = self.mgp.enable_search(search, self.mcp, self) if search is not None else None
        listing = (self.search.list,) if self.search is not None else ()
        self.extensions = (self.mcp, self.mgp, AuthorExtension(self), *authorization, *extensions, *listing)
        self.injectables = {k: v for e in self.extensions for k, v in e.injectables().items()}
        self._mcpl: MCPL | None = None
        self._mcpx: MCPX | None = None
        self._strict = feature_sets == "strict"
        self._composition: Composition | None = None
        self._overrides = {}
        if code_mode:
            from defserve.server.rare_declarations import make_code_mode

            mode, tools = make_code_mode(code_mode, self.mcp.tools.registry, self.search)
            self.extend(mode)
            for tool in tools:
                self.add_tool(tool)
        self._events: Events | None = None
        if experimental:
            from defserve.server.rare_declarations import make_experimental_events

            self._events = make_experimental_events(experimental, self, self._secret)
            self.extend(self._events)

    @classmethod
    def from_openapi(
        cls,
        document: Any,
        name: str | None = None,
        *,
        search: Literal["auto", "always"] | Search | None = "auto",
        **options: Unpack[ImportFields],
    ) -> Self:
        """A server with a tool for each operation of an API (OpenAPI 3.0 and 3.1).

        `document` is an object, a path, an address, or a text in JSON or YAML. `search` "auto" lists all tools up to
        30, and is "always" beyond. `ImportOptions` says what the other options mean. Raises UsageError for a document
        that cannot be read.
        """
        from defserve.server.mounting import make_openapi_server

        return make_openapi_server(cls, document, name, search, options)

    @classmethod
    def from_fastapi(
        cls,
        app: Any,
        name: str | None = None,
        *,
        search: Literal["auto", "always"] | Search | None = "auto",
        **options: Unpack[ImportFields],
    ) -> Self:
        """A server with a tool for each operation of a FastAPI app, which is called in this process.

        The app's lifespan is entered while the server serves. See `from_openapi` for the options.
        """
        from defserve.server.mounting import make_fastapi_server

        return make_fastapi_server(cls, app, name, search, options)

    def add_openapi(self, document: Any, **options: Unpack[ImportFields]) -> None:
        """Add a tool for each operation of an API to this server, before it serves; see `from_openapi`."""
        self._refuse_after_start("add_openapi")
        from defserve.server.mounting import add_openapi_tools

        add_openapi_tools(self, document, options)

    @property
    def name(self) -> str:
        """The name that clients see."""
        return self.identity.name

    @property
    def version(self) -> str:
        """The given version, or that of the author's distribution, or 0.0.0."""
        return self.identity.version

    @property
    def storage_identity(self) -> ServerIdentity:
        """Who this server is to everything that is stored, sealed or shared: its namespace, else the resource URL of
        its `auth`, else its name.
        """
        if self._storage_identity is None:
            from defserve.stores.identity import identify_server

            url = self.auth.resource_url if self.auth is not None else ""
            self._storage_identity = identify_server(self.name, namespace=self._namespace, url=url)
        return self._storage_identity

    # -- declaring ---------------------------------------------------------------------------------------

    def feature_set(self, name: str, description: str, **options: Unpack[FeatureSetFields]) -> FeatureSet:
        """Declare a behaviour that hosts switch on and off as a whole. Its verbs say what it does."""
        if options:
            from defserve.server.options import FeatureSetFields, refuse_unknown_option

            refuse_unknown_option(
                options, FeatureSetFields.__annotations__, f"feature set {name!r}", find_author_location()
            )
        return self.mcpl.feature_set(name, description, **options)

    def state(self, model: type[M], /, **options: Unpack[StateFields]) -> States[M]:
        """Keep a model for each caller, whose tools take it as `State[Model]`. It is saved when their call succeeds.

        The options are those of `StateOptions`. Hosts that speak MCPL see it as a feature set, `<name>.state`.
        """
        return self.mcpl.ensure_server_feature_set(self._namespace or self.name).state(model, **options)

    def remove_feature_set(self, name: str) -> None:
        """Remove a feature set with its tools, hooks and events. Hosts are told."""
        self.mcpl.remove(name)

    def channels(self, type: str, *, feature_set: FeatureSet) -> ChannelType:
        """Declare channels of a type (`discord`, `irc`, …) that this server connects to."""
        return self.mcpl.channels.declare(type, feature_set)

    @property
    def mcpl(self) -> MCPL:
        """The MCPL extension of this server. It is made with the first feature set."""
        if self._mcpl is None:
            self._refuse_after_start("the first feature set")
            from defserve.protocols.mcpl.extension import MCPL
            from defserve.protocols.mcpl.state.binding import StateStorage

            storage = StateStorage(
                self.store, self._secret.get_lasting_secret, self.limits, lambda: self.storage_identity
            )
            self._mcpl = MCPL(
                self._add_bound_tool, self.find_provider, self.mcp.tools.registry, self, storage, self._strict
            )
            self.extensions = (*self.extensions, self._mcpl)
            self.injectables |= self._mcpl.injectables()
        return self._mcpl

    @property
    def mcpx(self) -> MCPX:
        """What this server does in topics besides answering requests."""
        if self._mcpx is None:
            from defserve.protocols.mcpx.extension import MCPX

            self._mcpx = MCPX()
            if self._composition is None:
                self.extensions = (*self.extensions, self._mcpx)
        return self._mcpx

    def on_chat(self, handler: OnChat, /) -> OnChat:
        """Call a function `(chat, participant)` when somebody chats to this server in a topic. Returns it unchanged."""
        self.mcpx.chat_handlers.append(handler)
        return handler

    def on_proposal(self, handler: OnProposal, /) -> OnProposal:
        """Let a function `(proposal, participant)` decide about proposals in a topic. Returns it unchanged.

        True fulfils the proposal, False declines it, None leaves it to others.
        """
        self.mcpx.decisions.append(handler)
        return handler

    def mount(
        self, other: Server | str | Remote | Command, *, prefix: str | None = None, **options: Unpack[MountFields]
    ) -> None:
        """Serve another server's tools, resources and prompts as well, now and as they change.

        With a prefix `p`, tool and prompt `x` becomes `p_x` and resource `s://x` becomes `s://p/x`. The other server is
        an object of this process, or runs elsewhere: a `Remote` address, a `Command` to start, or a text that is one
        of the two. `transform` changes the tools: names, arguments, descriptions. Servers elsewhere are opened when
        this one begins to serve; the other `options` are for them alone.
        """
        self._refuse_after_start("mount")
        if not isinstance(other, Server):
            from defserve.server.mounting import check_mountable

            check_mountable(other, Server)
            self.mounts.declare(other, prefix, options)
            return
        if self in other.self_and_mounted:
            raise UsageError(f"server {self.name!r} cannot be mounted on itself", fix="mount in one direction only")
        from defserve.server.mounting import InProcessMount

        mount = InProcessMount(self.mcp, other, prefix, options.get("transform"))
        self._mounts.append(mount)
        if self._remote_mounts is not None:
            self._remote_mounts.claim_prefix(other.name, mount.prefix)
        self.mgp.mounted.append((f"{prefix}_" if prefix else "", other.mgp))
        self.mgp.events.forward_child_events(other.mgp.events)

    @property
    def mounts(self) -> Mounts:
        """The servers elsewhere that are mounted here, each a `Backend` by its id. Made before serving begins."""
        if self._remote_mounts is None:
            from defserve.proxying.catalogue import MountedPrefixes
            from defserve.proxying.mounts import FrontRegistries, Mounts

            prefixes = MountedPrefixes((mount.server.name, mount.prefix) for mount in self._mounts)
            relay = None
            if self._events is not None:
                from defserve.proxying.events import EventRelay

                relay = EventRelay(self._events)
            self._remote_mounts = Mounts(FrontRegistries(self.mcp, self._declare, prefixes, relay))
            self.extend(self._remote_mounts)
        return self._remote_mounts

    def extend(self, *extensions: Extension) -> None:
        """Add extensions to those given when the server was made, before it serves."""
        self._refuse_after_start(f"extension {extensions[0].name!r}")
        for extension in extensions:
            for item in self.mcp.items():
                extension.on_item_declared(item)
            self.injectables |= extension.injectables()
        self.extensions = (*self.extensions, *extensions)

    # -- serving -----------------------------------------------------------------------------------------

    def run(
        self,
        on: str = "stdio:",
        *,
        token: str | None = None,
        token_file: str | None = None,
        log_level: str | None = None,
        log_json: bool = False,
        telemetry: bool = False,
        workers: int | str | None = None,
        **web: Unpack[WebFields],
    ) -> None:
        """Serve on an address until the peer leaves or a signal ends it. Never reads the command line.

        `stdio:`, `http://host:port/path`, `https://…`, `ws://…`, `wss://…` and `unix:/path` are addresses; the
        options are for all but the first. `mcpx+ws://gateway/ws?topic=demo` joins a topic; the `token` (or the content
        of `token_file`) says who this server is. With `workers` (a number, or "auto" for one each core) so many
        processes serve the address. Each is started like this one and runs up to here, so `run` must not depend on
        what was done in this process alone. With `log_level` or `log_json`, logs go to stderr; from level "info"
        on, every request has a line. With `telemetry`, traces and metrics go to an OpenTelemetry collector, as the
        `OTEL_…` variables say. Raises SystemExit(130) after Ctrl-C; returns after SIGTERM and at the end of input.
        """
        try:
            check_web_options(web, Server.run)
            refuse_in_a_loop()
            self.observe(log_level=log_level, log_json=log_json, metrics=web.get("metrics", False), telemetry=telemetry)
            if workers is not None:
                from defserve.server.workers.running import serve_worker_group

                code = serve_worker_group(self, on, workers, web, log_json=log_json)
            else:
                from defserve.server.serving import serve_address

                code = serve_address(self, on, token, token_file, web)
        except UsageError as error:
            from defserve.server.serving import hide_uncaught_traceback

            hide_uncaught_traceback(error)
            raise
        if code:
            raise SystemExit(code)

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):
            """Only for what does not exist: names of other frameworks are met with ours."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property failed; this raises its error again
            from defserve.errors import make_attribute_error
            from defserve.server.options import SERVER_ATTRIBUTE_FIXES

            raise make_attribute_error("Server", name, SERVER_ATTRIBUTE_FIXES, dir(type(self)))

    def observe(
        self,
        *,
        log_level: str | None = None,
        log_json: bool = False,
        metrics: bool = False,
        telemetry: bool = False,
    ) -> None:
        """Set up logging, metrics and telemetry, as `run` does with these options. Call it before serving."""
        if log_level is None and not (log_json or metrics or telemetry):
            return
        if log_level is not None:
            check_log_level(log_level)
        from defserve.server.serving import make_observer_extensions

        if found := make_observer_extensions(self.extensions, log_level, log_json, metrics, telemetry, self.name):
            self.extend(*found)

    def join(self, on: str, *, token: str | None = None) -> AbstractAsyncContextManager[Participant]:
        """Serve in a topic, on the running loop. Entering it waits for the gateway's welcome."""
        from defserve.server.serving import join_topic

        return join_topic(self, on, token)

    def asgi(self, **options: Unpack[WebFields]) -> HttpApp:
        """This server as a plain ASGI app, to mount in Starlette or FastAPI; its lifespan needs no wiring."""
        from defserve.server import web

        check_web_options(options, Server.asgi)
        self.observe(metrics=options.get("metrics", False))
        return web.make_asgi_app(self.composition, self.mcp, self.auth, options)

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Serve as the command line says. Console scripts call this."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        if not arguments:
            self.run()
            return
        from defserve.server.command_line import parse_server_arguments

        try:
            self.run(**parse_server_arguments(arguments, self.name, lambda: self.version))
        except UsageError as error:
            raise SystemExit(f"error: {error}") from None

    @asynccontextmanager
    async def connect(self, version: str | None = None, **options: Any) -> AsyncGenerator[Client]:
        """A client of this server in the same process, for tests and embedding; see `defserve.client.Client`."""
        from defserve.client import Client
        from defserve.serve.lifespans import connect_in_memory

        async with connect_in_memory(self.composition) as link, Client(link, version=version, **options) as client:
            yield client

    @property
    def composition(self) -> Composition:
        """All declarations, for a runner. After its first use, extensions, mounts and `around` cannot change."""
        if self._composition is None:
            composition = compose_server(self)
            self.mcp.attach_composition(composition)
            if self._mcpl is not None:
                self._mcpl.attach_composition(composition)
            composition.overrides = self._overrides
            self._composition = composition
        return self._composition

    # -- for the layers below ----------------------------------------------------------------------------

    def check_mount_transforms(self) -> None:
        """Raises UsageError for a transform of a tool that there is not."""
        for mount in self._mounts:
            mount.check_transform()

    @property
    def self_and_mounted(self) -> list[Server]:
        """This server and all servers mounted on it, each once, children before parents."""
        found = {server: None for mount in self._mounts for server in mount.server.self_and_mounted}
        return [*found, self]


# -- What is checked before a server runs.


def refuse_in_a_loop() -> None:
    """Raises UsageError where an event loop runs: a server brings its own, and one thread has only one."""
    asyncio = sys.modules.get("asyncio")  # without it there is no loop, and the first answer does not wait for it
    if asyncio is None or asyncio._get_running_loop() is None:  # the hook for loops of others; it raises nothing
        return
    from defserve.server.options import OWN_LOOP_FIX

    raise UsageError(
        "server.run(…) was called in an event loop, and runs its own", where=find_author_location(), fix=OWN_LOOP_FIX
    )


def check_web_options(given: Mapping[str, Any], method: Callable[..., Any]) -> None:
    """Raises UsageError for an option that does not exist. Otherwise it would do nothing, and nobody would know."""
    from defserve.server.decorators import WebFields

    if given.keys() - WebFields.__annotations__.keys():
        from defserve.server.options import refuse_unknown_fields

        refuse_unknown_fields(given, WebFields, method, f"server.{method.__name__}", find_author_location())
