"""The client: one link, opened and closed. `eras` knows both eras of the protocol; `answers` answers the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from anyio import CancelScope

from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.client.answers import Answers, maybe_await, send_with_input_rounds
from defserve.client.conversation import ProgressHandler, RequestObserver
from defserve.client.eras import (
    NEWEST_VERSION_BY_ERA,
    ClientOffer,
    HandshakeUpdateStream,
    ServerUpdate,
    SessionTerms,
    StatelessUpdateStream,
    UpdateFilter,
    UpdateStream,
    check_result_type,
    open_conversation,
)
from defserve.client.exchange import RequestHandler
from defserve.client.extension import ClientComposition, ClientExtension, choose_conversation_factory
from defserve.client.link import ClientLink
from defserve.client.replies import (
    RETURN_TYPE_KEY,
    Json,
    extract_result_value,
    get_single_text,
    number_or_none,
    object_or_empty,
)
from defserve.client.server_requests import ServerRequests
from defserve.core.json_values import is_object
from defserve.core.messages import Request
from defserve.errors import MethodNotFound, PeerError, PeerGone, explain_arguments

if TYPE_CHECKING:
    from defserve.client.apps import RenderedApp
    from defserve.client.events import ClientEvents, EventListener
    from defserve.client.mcpl.options import Mcpl
    from defserve.client.mcpl.peer import McplPeer
    from defserve.client.mgp.events import EventStream, LifecycleChanges
    from defserve.client.mgp.peer import Mgp, MgpPeer
    from defserve.client.mgp.streaming import Stream
    from defserve.client.tasks import ServerTask, StartedCall
    from defserve.client.telemetry import TelemetryOptions


INFO: Final[Mapping[str, Any]] = {"name": "defserve", "version": VERSION}

MAX_LIST_SECONDS: Final = 3_600.0
"""How long a list is kept at most where nobody says that it changed."""

log = get_logger("client")


@explain_arguments
class Client(ServerRequests):
    """Speaks MCP with one server, in either era: `async with Client(link) as client`.

    version      the protocol version to speak; None takes the newest that both sides know
    answers      who answers the server's questions; only these answers are offered to the server
    capabilities merged over the capabilities of `answers`
    methods      further requests of the server to answer: method to a function of its params, sync or async
    mgp          how the host guards its calls; without it MGP is not offered, and nothing is guarded
    mcpl         how the host works with servers that act on their own; without it MCPL is not offered
    apps         whether this client can show views (MCP apps); without it, servers hide them
    extensions   further protocols, or parts of one; each belongs to this client alone
    telemetry    what is traced of its messages; without it nothing is, and OpenTelemetry is not imported
    timeout      seconds that each request may take, unless the call gives its own; None waits for ever
    on_log       called with the params of each log notification; asks the server for `log_level`, or else "info"
    on_progress  called with progress, total and message of each tool call that has no handler of its own
    on_notification  called with the method and params of every notification, logs and progress included

    Every method raises PeerError if the server answers with an error, PeerTimeout if it does not answer in time, and
    PeerGone if it leaves. Cancelling a method cancels its request.

    If a server at an http address no longer knows the session, another one is opened, the log level and the
    subscriptions are said again, and a request that was refused for that reason is repeated. With `mgp`, `mcpl`, or
    an extension that cannot do so, the client ends instead.
    """

    def __init__(
        self,
        link: ClientLink,
        *,
        version: str | None = None,
        info: Mapping[str, Any] = INFO,
        answers: Answers | None = None,
        capabilities: Mapping[str, Any] | None = None,
        mgp: Mgp | None = None,
        mcpl: Mcpl | None = None,
        apps: bool = False,
        extensions: Sequence[ClientExtension] = (),
        telemetry: TelemetryOptions | None = None,
        timeout: float | None = 60.0,
        log_level: str | None = None,
        methods: Mapping[str, Callable[[Json], Any]] | None = None,
        on_log: Callable[[Json], object] | None = None,
        on_progress: ProgressHandler | None = None,
        on_notification: Callable[[str, Json], object] | None = None,
    ) -> None:
        self.answers = answers or Answers()
        self.timeout = timeout
        self._wanted_version = version
        self._log_level = log_level or ("info" if on_log else None)
        self._on_log, self._on_progress, self._on_notification = on_log, on_progress, on_notification
        self._conversation = choose_conversation_factory(telemetry)(
            link, on_request=self._answer_request, on_notification=self._hear, on_gone=self._on_peer_gone
        )
        plugged: list[ClientExtension] = []
        self.mgp: MgpPeer | None = None
        """What was negotiated with the server, and what it was granted."""
        if mgp is not None:
            from defserve.client.mgp.peer import MgpPeer

            self.mgp = MgpPeer(mgp, self._conversation, self, str(info.get("name")))
            plugged.append(self.mgp)
        self.mcpl: McplPeer | None = None
        """The server's feature sets, events, hooks and channels."""
        if mcpl is not None:
            from defserve.client.mcpl.peer import McplPeer

            self.mcpl = McplPeer(mcpl, self._conversation, self)
            plugged.append(self.mcpl)
        if apps:
            from defserve.client.apps import AppViewsExtension

            plugged.append(AppViewsExtension())
        self._composition = ClientComposition((*plugged, *extensions, self.answers))
        self._requests = self._composition.requests | {
            method: _answer_with(answer) for method, answer in (methods or {}).items()
        }
        self._offer = ClientOffer(
            dict(info), dict(capabilities or {}), {era: self._composition.offer(era) for era in NEWEST_VERSION_BY_ERA}
        )
        self._agreement: SessionTerms | None = None
        self._is_closing = False
        self._listeners: set[UpdateStream[Any]] = set()
        self._watched: dict[str, UpdateStream[ServerUpdate]] = {}
        self._listed: dict[str, Json] | None = None
        self._listed_until = 0.0

    async def __aenter__(self) -> Client:
        self._conversation.start()
        try:
            self._agreement = await open_conversation(
                self._conversation, self._offer, self._wanted_version, self.timeout, self._on_agreed
            )
            for extension in self._composition.extensions:
                await extension.on_opened()
            if not self.stateless and all(extension.can_reopen for extension in self._composition.extensions):
                self._conversation.enable_session_reopening(self._open_again)
            if self._log_level and "logging" in self.capabilities:
                await self._say_log_level(self._log_level)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        await self._close()

    async def _on_agreed(self, terms: SessionTerms) -> None:
        for extension in self._composition.extensions:
            await extension.on_agreed(terms)

    async def _open_again(self) -> None:
        self._agreement = await open_conversation(
            self._conversation, self._offer, self._wanted_version or "handshake", self.timeout
        )
        self._listed = None

    async def _close(self) -> None:
        # Also inside a cancelled scope: a child process must be ended.
        with CancelScope(shield=True):
            await self._conversation.aclose()

    @property
    def version(self) -> str:
        """The protocol version that both sides agreed on."""
        return self._open.version

    @property
    def stateless(self) -> bool:
        """Whether each request stands alone, without a session (2026-07-28 and later)."""
        return self._open.stateless

    @property
    def server_info(self) -> Json:
        """The server's name, version and title, as it gave them."""
        return self._open.server_info

    @property
    def capabilities(self) -> Json:
        """What the server offers."""
        return self._open.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models; None if it has none."""
        return self._open.instructions

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its value: structured content, a scalar, text, or a list of content blocks.

        A result without content is None. A tool that runs only as a task is started and waited for. Raises ToolError if
        the tool failed.
        """
        try:
            return await self.value(tool, await self.call_raw(tool, arguments))
        except PeerError as error:
            from defserve.client.tasks import is_task_required_error

            if not is_task_required_error(error):
                raise
        return await (await self.start(tool, **arguments)).result()

    async def value(self, tool: str, result: Json) -> Any:
        """The value that `call` returns for a result of `tool`."""
        for check in self._composition.result_checks:
            check(result)
        needs_type = not result.get("isError") and get_single_text(result) is not None
        return extract_result_value(result, (await self._returns_of(tool)) if needs_type else None)

    async def start(self, tool: str, /, **arguments: Any) -> StartedCall:
        """Call a tool and do not wait: `task = await client.start("tool")`, later `await task.result()`.

        A tool that runs as a task does so. Other calls, and all in a session, go on in the background of this client.
        """
        return await self.start_raw(tool, arguments)

    async def start_raw(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressHandler | None = None,
        timeout: float | None = None,
    ) -> StartedCall:
        """Like `start`. A call that is no task tells its progress, and may take `timeout` seconds."""
        from defserve.client.tasks import start_tool_call

        return await start_tool_call(self, self._open, tool, arguments or {}, on_progress, timeout)

    async def task(self, id: str, tool: str = "") -> ServerTask:
        """A task that was started before, by its id, such as in an earlier conversation.

        Raises PeerError if the server does not know it.
        """
        from defserve.client.tasks import fetch_server_task

        return await fetch_server_task(self, self._open, id, tool)

    async def render(self, tool: str, /, **arguments: Any) -> RenderedApp:
        """Call a tool as the model would, and fetch the view that shows its result. The client needs `apps=True`.

        Raises UsageError if the tool has no view, PeerError for a view that no host may show or a result without text.
        """
        from defserve.client.apps import render_app

        return await render_app(self, tool, arguments)

    def stream(self, tool: str, /, **arguments: Any) -> Stream:
        """Call a tool and read its parts as they come: `async with client.stream("tool") as s: async for part in s`.

        Needs `mgp` and a server that streams. From other servers the whole value comes as one part.
        """
        from defserve.client.mgp.streaming import Stream

        return Stream(self, self.mgp, tool, arguments, self._on_progress)

    async def call_raw(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressHandler | None = None,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Json:
        """Call a tool and return its result unchanged, also one with `isError`.

        `fields` are further members of the params, such as MCPL's `scope`, `state` and `checkpoint`.
        """
        params: Json = {**(fields or {}), "name": tool, "arguments": dict(arguments or {})}
        if meta:
            params["_meta"] = dict(meta)
        return await self.request("tools/call", params, on_progress=on_progress or self._on_progress, timeout=timeout)

    async def find_tool(self, tool: str, *, again: bool = False) -> Json:
        """A tool as the server lists it; empty if it is not listed. The list is kept until the server says it changed.

        `again` asks for a new list if the kept one does not have the tool or, without a session, is older than its
        server lets it get: there nobody says that it changed.
        """
        is_outdated = again and self.stateless and monotonic() >= self._listed_until
        if self._listed is None or is_outdated or (again and tool not in self._listed):
            read_at, lifetimes = monotonic(), [MAX_LIST_SECONDS]
            items = await self._pages("tools/list", "tools", on_page=lambda page: lifetimes.append(_lifetime(page)))
            self._listed = {str(item.get("name")): item for item in items if is_object(item)}
            self._listed_until = read_at + min(lifetimes)
        return self._listed.get(tool) or {}

    async def set_log_level(self, level: str) -> None:
        """Ask for log notifications of `level` and above. In the stateless era each later request carries the level."""
        self._log_level = level
        if not self.stateless:
            await self.request("logging/setLevel", {"level": level})

    async def _say_log_level(self, level: str) -> None:
        """A server that does not take the level can still be used."""
        try:
            await self.set_log_level(level)
        except PeerGone:
            raise
        except PeerError as error:
            log.debug("the server does not take the log level: %s", error.message)

    async def subscribe(self, uri: str) -> None:
        """Have changes of a resource reported to `on_notification`."""
        events = self._watched.get(uri)
        if self.stateless and events in self._listeners:  # else the server has ended it
            return
        if self.stateless or events is None:
            events = self._watched[uri] = self._news(UpdateFilter(uris=(uri,), is_read=False))
        try:
            await events.open()
        except BaseException:
            if self._watched.get(uri) is events:
                del self._watched[uri]
            raise

    async def unsubscribe(self, uri: str) -> None:
        """Stop reports of changes of a resource."""
        events = self._watched.pop(uri, None)
        if self.stateless:
            if events is not None:
                await events.close()
            return
        if events is not None:
            self._listeners.discard(events)
        # Streams read the same subscription.
        if not any(uri in other.wanted.uris for other in self._listeners):
            await self.request("resources/unsubscribe", {"uri": uri})

    def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
        tasks: Sequence[str] = (),
    ) -> UpdateStream[ServerUpdate]:
        """News of the named kinds: `async with client.listen(tools=True) as events: async for news in events`.

        `uris` are resources; `tasks` are ids of tasks, which sessions do not have. `events.honoured` is what is told.
        """
        chosen = {"tools": tools, "prompts": prompts, "resources": resources}
        return self._news(UpdateFilter(tuple(kind for kind, on in chosen.items() if on), tuple(uris), tuple(tasks)))

    def _news(self, wanted: UpdateFilter) -> UpdateStream[ServerUpdate]:
        if self.stateless:
            return StatelessUpdateStream(wanted, self._listeners, self._conversation, self._open, self.timeout)
        return HandshakeUpdateStream(wanted, self._listeners, self.request)

    def subscribe_events(
        self, channels: Sequence[str], *, min_severity: str | None = None, every: float = 1.0
    ) -> EventStream:
        """Events of a server that speaks MGP: `async with client.subscribe_events(["tool.*"]) as events: async for …`.

        Without a session they are asked for every `every` seconds.
        """
        from defserve.client.mgp.events import PolledEventStream, SessionEventStream

        params: Json = {"channels": list(channels)}
        if min_severity is not None:
            params["filter"] = {"min_severity": min_severity}
        if self.stateless:
            return PolledEventStream(params, self._listeners, self.request, every)
        return SessionEventStream(params, self._listeners, self.request)

    @property
    def events(self) -> ClientEvents:
        """Events of a server that has them (MCP Events, a draft): list, poll, and webhooks for others."""
        from defserve.client.events import ClientEvents

        return ClientEvents(self.request, self._pages, lambda: self._open)

    def listen_events(
        self, name: str, *, cursor: str | None = None, max_age_ms: int | None = None, **arguments: Any
    ) -> EventListener:
        """Events as they happen (MCP Events, a draft): `async for event in client.listen_events("pushed", repo="x")`.

        `arguments` are what the server filters by. With the `cursor` of an event that was read it goes on after that
        one. Use `async with` to end it as soon as you are done.
        """
        from defserve.client.events import EventListener, make_stream_params

        params = make_stream_params(name, cursor, max_age_ms, arguments)
        return EventListener(self._listeners, self._conversation, self._open, params, self.timeout)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressHandler | None = None,
        timeout: float | None = None,
        follow: bool = True,
        observer: RequestObserver | None = None,
    ) -> Json:
        """Send any request. With `follow`, a result that is `input_required` is answered and the request repeated, and
        one of a type that this request did not offer is an error.

        `observer` follows the request each time it is sent.
        """
        agreement, patience = self._open, self.timeout if timeout is None else timeout

        async def ask(params: Mapping[str, Any]) -> Json:
            complete = agreement.with_envelope(params, self._log_level)
            result = await self._conversation.request(
                method, complete, within=patience, on_progress=on_progress, observer=observer
            )
            if not is_object(result):
                raise PeerError(f"the result of {method} is not an object")
            if follow:
                check_result_type(method, result, object_or_empty(complete.get("_meta")), agreement)
            return result

        send = partial(send_with_input_rounds, ask, answers=self.answers) if follow else ask
        return await self._composition.wrap_request(method, send, observer)(params or {})

    def lifecycle(self) -> LifecycleChanges:
        """Changes of the server's state: `async with client.lifecycle() as changes: async for change in changes`.

        They are only sent in a session.
        """
        from defserve.client.mgp.events import LifecycleChanges

        return LifecycleChanges(self._listeners)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send any notification. Raises PeerGone if the server is gone, PeerTimeout if it does not take it in time."""
        await self._conversation.notify(method, params or {}, within=self.timeout)

    def notify_soon(self, method: str, params: Mapping[str, Any] | None = None) -> asyncio.Task[None]:
        """Send a notification from code that cannot await. The task is done when it was sent, or could not be."""
        return self._conversation.notify_soon(method, params or {})

    @property
    def _mgp_peer(self) -> MgpPeer:
        if self.mgp is None:
            raise PeerError("this client does not speak MGP: make it with Client(link, mgp=Mgp())")
        return self.mgp

    @property
    def _open(self) -> SessionTerms:
        if self._agreement is None:
            raise PeerGone("the client is not open yet: use it inside `async with`")
        return self._agreement

    async def _returns_of(self, tool: str) -> Json | None:
        """The type that `tool` declares for its text; None also if the tools cannot be listed."""
        try:
            found = await self.find_tool(tool)
        except PeerError as error:
            if not isinstance(error, PeerGone) and type(error) is not PeerError:
                raise  # a server that is gone has still answered the call
            found, self._listed = {}, self._listed or {}
        return object_or_empty(found.get("_meta")).get(RETURN_TYPE_KEY)

    async def _answer_request(self, request: Request) -> Any:
        if (answer := self._requests.get(request.method)) is None:
            raise MethodNotFound(f"this client does not answer {request.method}")
        return await answer(request)

    def _hear(self, method: str, params: Json) -> None:
        if method == "notifications/message" and self._on_log:
            self._on_log(params)
        elif method == "notifications/tools/list_changed":
            self._listed = None
        for hear in self._composition.notifications.get(method, ()):
            hear(method, params)
        news = ServerUpdate(method, params)
        for events in tuple(self._listeners):
            events.receive_update(news)
        if self._on_notification:
            self._on_notification(method, params)

    def _on_peer_gone(self, gone: PeerGone) -> None:
        reason = None if self._is_closing else gone
        for extension in self._composition.extensions:
            try:
                extension.on_closed(reason)
            except Exception:  # the others are told all the same
                log.exception("%s failed at the end of the conversation", extension.name)
        for events in tuple(self._listeners):
            events.end(reason)


def _answer_with(answer: Callable[[Json], Any]) -> RequestHandler:
    return lambda request: maybe_await(answer(request.params))


def _lifetime(page: Json) -> float:
    """Seconds that a page of a list may be kept; 0 if its server does not say so."""
    return max(number_or_none(page.get("ttlMs")) or 0.0, 0.0) / 1000
