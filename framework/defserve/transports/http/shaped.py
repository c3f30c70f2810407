"""A single request whose reply is not JSON-RPC: it is run, and sent in the form that its shape gives it."""

from __future__ import annotations

from typing import Protocol

from defserve.transports.asgi import Header, HeaderList
from defserve.transports.http.answering import CLIENT_LEFT, Attached, SingleResponse, absorb, route_message
from defserve.transports.http.exchange import Exchange
from defserve.transports.session_provider import SessionProvider
from defserve.wire.messages import Request


class ShapedReply(Protocol):
    """How the reply to one request is encoded (a `runner.shaped_session.ReplyShape`). Its code is an HTTP status.

    Read `headers` after the reply was encoded. `kind` is the header of its media type.
    """

    @property
    def kind(self) -> Header: ...
    @property
    def headers(self) -> HeaderList: ...


async def answer_shaped(
    provider: SessionProvider, exchange: Exchange, offer: object, request: Request, reply: ShapedReply
) -> None:
    """Run a single request for the caller of an exchange, and send its outcome as `reply` encodes it."""
    conversation = provider.open_shaped(route_message, principal=exchange.principal, shape=reply)
    route = SingleResponse(provider, conversation, exchange, request.id)
    try:
        begun = conversation.begin(request, route, offer)
        if not isinstance(begun, tuple):
            with Attached(exchange, route) as attached:
                attached.watch()
                assert begun.rest is not None
                await begun.rest
                await absorb()
            begun = begun.reply or (b"", None)
    finally:
        exchange.abandon()
        conversation.close()
    body, status = begun
    if body:
        await exchange.respond(status or 200, body, reply.headers, kind=reply.kind)
    else:
        await exchange.respond(CLIENT_LEFT)  # nobody reads it, but some middleware needs a response
