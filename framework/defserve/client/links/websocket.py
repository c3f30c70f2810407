"""A server at a ws(s) address: each message is one text frame, the subprotocol is `mcp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from defserve.auth.oauth import convert_to_http_url
from defserve.client.link import HttpChallenge
from defserve.client.links.endpoint import AUTHORIZATION_HEADER, MAX_AUTH_ROUNDS
from defserve.client.links.http_client import RequestAddress
from defserve.errors import PeerGone
from defserve.serve.address import CredentialsRequired
from defserve.serve.outbound import dial_websocket, import_websockets

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from defserve.client.signin.authorizer import ServerAuthorizer

SUBPROTOCOL: Final = "mcp"

MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class WebSocketLink:
    """One connection, opened by `WebSocketLink.connect`. A server that answers no ping counts as gone."""

    def __init__(self, socket: ClientConnection, address: str, authorizer: ServerAuthorizer | None = None) -> None:
        self._socket, self._address, self._authorizer = socket, address, authorizer
        self._Closed: type[Exception] = import_websockets().ConnectionClosed

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        longest: int = MAX_MESSAGE_BYTES,
        authorizer: ServerAuthorizer | None = None,
    ) -> WebSocketLink:
        """Open a connection. `token` is sent as a bearer token; a message longer than `longest` ends the connection.

        `authorizer` gives tokens instead of `token`, until the server takes one. Raises PeerError if the server
        refuses, PeerGone if there is none, UsageError without `websockets`.
        """
        if authorizer is None:
            return cls(
                *await dial_websocket(url, token=token, headers=headers, longest=longest, subprotocols=[SUBPROTOCOL])
            )
        try:
            return await cls._connect_authorized(url, headers or {}, longest, authorizer)
        except BaseException:
            await authorizer.aclose()
            raise

    @classmethod
    async def _connect_authorized(
        cls, url: str, headers: Mapping[str, str], longest: int, authorizer: ServerAuthorizer
    ) -> WebSocketLink:
        for left in reversed(range(MAX_AUTH_ROUNDS + 1)):
            shown = await authorizer.headers("GET", str(RequestAddress(convert_to_http_url(url))))
            try:
                socket, address = await dial_websocket(
                    url, headers={**headers, **shown}, longest=longest, subprotocols=[SUBPROTOCOL]
                )
            except CredentialsRequired as refusal:
                challenge = HttpChallenge(
                    refusal.data["status"], refusal.headers, shown.get(AUTHORIZATION_HEADER, ""), refusal.peers
                )
                if not left or not await authorizer.handle_challenge(challenge):
                    raise
                continue
            if socket.response is not None:
                authorizer.on_request_accepted(
                    {name.lower(): value for name, value in socket.response.headers.raw_items()}
                )
            return cls(socket, address, authorizer)
        raise AssertionError("unreachable")

    async def send(self, message: bytes) -> None:
        """Send one message as a text frame. Raises PeerGone if the connection is closed."""
        try:
            await self._socket.send(message, text=True)
        except self._Closed as closed:
            raise self._to_peer_gone(closed) from None

    async def receive(self) -> bytes | None:
        """The next message. Raises PeerGone, with the reason, once the connection is closed."""
        try:
            return await self._socket.recv(decode=False)
        except self._Closed as closed:
            raise self._to_peer_gone(closed) from None

    async def aclose(self) -> None:
        """Close the connection. Safe to call twice."""
        try:
            if self._authorizer is not None:
                await self._authorizer.aclose()
        finally:
            await self._socket.close()

    def _to_peer_gone(self, closed: Any) -> PeerGone:
        # The side that closed first gave the reason; the other side only repeats it.
        frame = closed.sent if closed.rcvd is None or closed.rcvd_then_sent is False else closed.rcvd
        why = f"{frame.code} {frame.reason}".rstrip() if frame else "without a reason"
        return PeerGone(f"the connection with {self._address} was closed: {why}")
