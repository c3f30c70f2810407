"""A server that is a table: what to reply to each method. It keeps what it was sent, and says what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from defserve.client.conversation import ClientConversation
from defserve.client.exchange import NotificationHandler, RequestHandler
from defserve.client.link import LostRequest
from defserve.client.replies import RawReply
from defserve.errors import PeerError, PeerGone

SILENCE: Any = object()


class Forward:
    """A `Follower` made of functions."""

    def __init__(
        self, token: Any, on_notification: NotificationHandler | None, on_request: RequestHandler | None
    ) -> None:
        self.token, self.on_notification, self.on_request = token, on_notification, on_request


async def forward(
    conversation: ClientConversation,
    method: str,
    params: Any,
    *,
    within: float = 30,
    on_notification: NotificationHandler | None = None,
    on_request: RequestHandler | None = None,
) -> RawReply:
    """Pass on one request, as a proxy does for somebody else."""
    follower = Forward(params.get("_meta", {}).get("progressToken"), on_notification, on_request)
    return await conversation.forward_request(method, params, follower, within)


class Fail(Exception):
    """A reply that is an error."""

    def __init__(self, code: int, message: str = "no", data: Any = None) -> None:
        self.error = {"code": code, "message": message} | ({"data": data} if data is not None else {})


class PretendServer:
    """A `Link` whose other end is the table `replies`: a result, SILENCE, a Fail, or a function of the message."""

    def __init__(self, replies: dict[str, Any] | None = None) -> None:
        self.replies: dict[str, Any] = {**HANDSHAKE, **(replies or {})}
        self.sent: list[dict[str, Any]] = []
        self.closed = False
        self._inbox: asyncio.Queue[bytes | LostRequest | PeerGone | None] = asyncio.Queue()
        self._arrived = asyncio.Event()

    async def send(self, message: bytes) -> None:
        assert b"\n" not in message
        request = json.loads(message)
        self.sent.append(request)
        self._arrived.set()
        if "method" in request and "id" in request:
            self._reply(request, self.replies.get(request["method"], Fail(-32601, "method not found")))

    async def receive(self) -> bytes | LostRequest | None:
        item = await self._inbox.get()
        if isinstance(item, PeerGone):
            raise item
        return item

    async def aclose(self) -> None:
        self.closed = True

    def say(self, message: Any) -> None:
        """Send any message: a dict (given its jsonrpc member), a list as a batch, or raw bytes."""
        if isinstance(message, dict):
            message = {"jsonrpc": "2.0", **message}
        self._inbox.put_nowait(message if isinstance(message, bytes) else json.dumps(message).encode())

    def leave(self, reason: PeerGone | None = None) -> None:
        self._inbox.put_nowait(reason)

    def lose(self, id: int | str, error: PeerError) -> None:
        self._inbox.put_nowait(LostRequest(id, error))

    async def told(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message it was sent that matches, waiting for it."""
        async with asyncio.timeout(20):
            while True:
                for message in self.sent:
                    if matches(message):
                        return message
                self._arrived.clear()
                await self._arrived.wait()

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The params of every message of that method."""
        return [message.get("params", {}) for message in self.sent if message.get("method") == method]

    def _reply(self, request: dict[str, Any], reply: Any) -> None:
        if callable(reply):
            try:
                reply = reply(request)
            except Fail as fail:
                reply = fail
        if isinstance(reply, Fail):
            self.say({"id": request["id"], "error": reply.error})
        elif reply is not SILENCE:
            self.say({"id": request["id"], "result": reply})


def _echo_version(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "protocolVersion": request["params"]["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "pretend", "version": "1"},
        "instructions": "Pretend.",
    }


HANDSHAKE: dict[str, Any] = {"initialize": _echo_version}

STATELESS: dict[str, Any] = {
    "initialize": Fail(-32601),
    "server/discover": {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "instructions": "Pretend.",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "pretend", "version": "2"}},
    },
}
