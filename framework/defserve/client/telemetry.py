"""OpenTelemetry of a client: a span and a histogram for each message that it sends, whose context goes along.

`Client(link, telemetry=TelemetryOptions())` traces one client. A server with `Telemetry()` traces what it sends to the
servers behind it the same way. Names and attributes are in `protocols.mcp.telemetry`.

How it works: `TracedConversation` is a conversation whose requests and notifications have spans. Without telemetry,
clients have a plain one: it pays nothing, and nothing here is imported.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from defserve.client.conversation import ClientConversation, Params
from defserve.client.eras import MCP_KEY_PREFIX
from defserve.client.exchange import ForwardedRequestListener, PendingRequest, RequestObserver
from defserve.client.link import ClientLink
from defserve.core.json_values import is_object
from defserve.core.messages import EncodedJson, Reply, RequestId
from defserve.errors import PeerGone
from defserve.protocols.mcp.errors import read_meta
from defserve.protocols.mcp.telemetry import (
    SUCCESS_OUTCOME,
    MessageTracer,
    MessageTransportInfo,
    OpenSpan,
    TelemetryOptions,
    read_exception_outcome,
    read_reply_outcome,
)

__all__ = ["TelemetryOptions", "TracedConversation"]

PROTOCOL_VERSION_KEY = MCP_KEY_PREFIX + "protocolVersion"


class TracedConversation(ClientConversation):
    """A conversation whose messages are traced as `telemetry` says; the other arguments are those of a plain one."""

    def __init__(self, telemetry: TelemetryOptions, link: ClientLink, **handlers: Any) -> None:
        super().__init__(link, **handlers)
        self._tracer = MessageTracer(telemetry, "client")
        self._version = ""
        self._session_began: float | None = None

    # -- messages ----------------------------------------------------------------------------------------

    async def _exchange(
        self,
        pending: PendingRequest,
        params: Params,
        within: float | None,
        cancellable: bool = True,
        observer: RequestObserver | None = None,
    ) -> Reply:
        span, params = self._start_span(pending.method, params, pending.id)
        try:
            reply = await super()._exchange(pending, params, within, cancellable, observer)
        except BaseException as error:
            self._tracer.finish(span, read_exception_outcome(error))
            raise
        if pending.method == "initialize" and is_object(reply.result):
            self._version = str(reply.result.get("protocolVersion") or "")
            span.set_attribute("mcp.protocol.version", self._version)
        self._tracer.finish(span, read_reply_outcome(reply), reply.result)
        return reply

    async def notify(self, method: str, params: Params, *, within: float | None = None) -> None:
        span, params = self._start_span(method, params, None)
        try:
            await super().notify(method, params, within=within)
        except BaseException as error:
            self._tracer.finish(span, read_exception_outcome(error))
            raise
        self._tracer.finish(span, SUCCESS_OUTCOME)

    @property
    def can_start_forwarding(self) -> bool:
        """No: what is forwarded takes the way of all requests, where it gets its span."""
        return False

    def start_forwarding(
        self, method: str, params: Params | EncodedJson, follower: ForwardedRequestListener
    ) -> PendingRequest | None:
        return None

    def _start_span(self, method: str, params: Params, id: RequestId | None) -> tuple[OpenSpan, Params]:
        given = dict(params)
        version = read_meta(given).get(PROTOCOL_VERSION_KEY) or self._version
        return self._tracer.start_sent_message_span(method, given, id, str(version), self._find_network())

    # -- the session -------------------------------------------------------------------------------------

    def mark_open(self) -> None:
        self._session_began = perf_counter()
        super().mark_open()

    def _leave(self, reason: PeerGone) -> None:
        if (began := self._session_began) is not None:
            self._session_began = None
            # Who closes a client has stopped reading before.
            error_type = "" if self._is_closing else "peer_gone"
            self._tracer.record_session_duration(
                perf_counter() - began, self._version, self._find_network(), error_type
            )
        super()._leave(reason)

    _is_closing = False

    async def aclose(self) -> None:
        self._is_closing = True
        await super().aclose()

    def _find_network(self) -> MessageTransportInfo:
        return describe_target(self.target, getattr(self._link, "session_id", None) or "")


def describe_target(target: str, session_id: str = "") -> MessageTransportInfo:
    """How the server at an address is reached. A command, and a server in this process, are at the end of a pipe."""
    parts = urlsplit(target) if "://" in target else None
    if parts is None or parts.scheme not in ("http", "https", "ws", "wss"):
        return MessageTransportInfo(session_id=session_id)
    is_secure = parts.scheme in ("https", "wss")
    protocol = "http" if parts.scheme in ("http", "https") else "websocket"
    port = parts.port or (443 if is_secure else 80)
    return MessageTransportInfo("tcp", protocol, "", parts.hostname or "", port, session_id)
