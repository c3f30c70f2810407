"""What a protocol may contribute to a client, and all contributions as lookup tables: the other half of the plug.

`core.extension` is the half of a server. Every contribution is optional.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.client.conversation import ClientConversation
from defserve.client.eras import merge_objects
from defserve.client.exchange import NotificationHandler, RequestHandler, RequestObserver
from defserve.client.replies import Json
from defserve.core.extension import ALL_METHODS
from defserve.errors import PeerGone, UsageError

if TYPE_CHECKING:
    from defserve.client.eras import SessionTerms
    from defserve.protocols.mcp.telemetry import TelemetryOptions

SendParams: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Json]]
"""Sends one request whose method is already chosen, and gives back its result."""
RequestWrapper: TypeAlias = Callable[[str, SendParams, RequestObserver | None, Mapping[str, Any]], Awaitable[Json]]
"""`async (method, send, observer, params)`: sees the params of our request on their way out, and its result."""


class ClientExtension:
    """A protocol on the side of the client, or a part of one. Subclass it and override what you contribute.

    The tables are read once, when the client is made, and hold for every server: what was not agreed on with this one
    is for the handler to refuse. An object with a state of its own serves one client.
    """

    name: str = ""

    can_reopen = False
    """Whether a session that the server has lost may be opened again. Not if more was agreed on than is offered."""

    def offer(self, era: str) -> Mapping[str, Any]:
        """Merged, at any depth, into the capabilities that the client offers: in a "handshake", or "stateless"."""
        return {}

    async def on_agreed(self, terms: SessionTerms) -> None:
        """The server has answered our offer. It is told that we are ready afterwards; what this raises ends it all."""

    async def on_opened(self) -> None:
        """The conversation is open, and requests can be sent."""

    def requests(self) -> Mapping[str, RequestHandler]:
        """Method to handler, for what the server asks."""
        return {}

    def notifications(self) -> Mapping[str, NotificationHandler]:
        """Method to handler, for what the server tells. Several extensions may hear the same."""
        return {}

    def around(self) -> Mapping[str, RequestWrapper]:
        """Method to wrapper of our own requests; `ALL_METHODS` stands for all others. The last is outermost."""
        return {}

    def check_result(self, result: Json) -> None:
        """The result of a tool is about to become a value. Raises what it stands for, if it is an error."""

    def on_closed(self, gone: PeerGone | None) -> None:
        """The conversation has ended: the server is `gone`, or the client was closed (None)."""


class ClientComposition:
    """All extensions of a client as lookup tables. Raises UsageError if two of them answer the same request."""

    __slots__ = ("extensions", "requests", "notifications", "wrappers", "result_checks")

    def __init__(self, extensions: Sequence[ClientExtension]) -> None:
        self.extensions = extensions
        self.requests: dict[str, RequestHandler] = {}
        self.notifications: dict[str, list[NotificationHandler]] = {}
        owners: dict[str, ClientExtension] = {}
        for extension in extensions:
            for method, answer in extension.requests().items():
                if method in owners:
                    raise UsageError(
                        f"request {method!r} is answered by both {owners[method].name} and {extension.name}",
                        fix="leave one of the two out of Client(extensions=…)",
                    )
                owners[method], self.requests[method] = extension, answer
            for method, hear in extension.notifications().items():
                self.notifications.setdefault(method, []).append(hear)
        around = [extension.around() for extension in extensions]
        self.wrappers = {
            method: [wrap for of in around if (wrap := of.get(method) or of.get(ALL_METHODS)) is not None]
            for method in {ALL_METHODS}.union(*around)
        }
        no_check = ClientExtension.check_result
        self.result_checks = [one.check_result for one in extensions if type(one).check_result is not no_check]

    def offer(self, era: str) -> Json:
        """What all of them offer; where two differ, the later one counts."""
        offered: Json = {}
        for extension in self.extensions:
            offered = merge_objects(offered, extension.offer(era))
        return offered

    def wrap_request(self, method: str, send: SendParams, observer: RequestObserver | None) -> SendParams:
        """How a request of ours is sent, with everything that the extensions do around it."""
        for wrap in self.wrappers.get(method) or self.wrappers[ALL_METHODS]:
            send = partial(wrap, method, send, observer)
        return send


# -- The conversation that a client, or a proxy, has with its server.


def choose_conversation_factory(telemetry: TelemetryOptions | None) -> Callable[..., ClientConversation]:
    """What makes a conversation: a plain one, or one whose messages are traced."""
    if telemetry is None:
        return ClientConversation
    from defserve.client.telemetry import TracedConversation

    return partial(TracedConversation, telemetry)
