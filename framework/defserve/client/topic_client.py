"""A host in a topic: it asks, proposes, fulfils, chats, and sees the others' messages.

It needs a gateway, but no server of its own. Unread news are bounded: a slow listener misses the oldest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from defserve.base.peer_bounds import weight_of_text
from defserve.client.replies import RETURNS_KEY, lone_text, object_of, value_of
from defserve.client.unread_items import UnreadItems
from defserve.core.json_values import is_object
from defserve.core.messages import METHOD_NOT_FOUND
from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.protocols.mcpx.envelope import MCP_VERSION, REQUEST, RESPONSE, kind_of
from defserve.protocols.mcpx.participant import NotCapable, NotWelcome, Participant, Payload
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import Chat, Heard, TopicRequest
from defserve.serve.outbound import WebSocketClient
from defserve.version import VERSION

LONGEST_MESSAGE: Final = 4 * 1024 * 1024
WELCOME_SECONDS: Final = 10.0
HEARD_AT_MOST: Final = 10_000

log = logging.getLogger("defserve.client")


class TopicClient(Participant):
    """A participant over one connection: `async with join_topic(url, token=…) as me`.

    Besides the verbs of `Participant`, `call_tool` returns a tool's value instead of its result, and `heard` yields
    everything that happens in the topic. Standard requests to us are answered as by a server without tools.
    """

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()
        self.end_reason = ""
        """Why the gateway closed the connection, if it said so."""
        self._heard: list[UnreadItems[Heard]] = []
        self._answered_already: set[str] = set()
        self._listed: dict[tuple[str, str], dict[str, Any] | None] = {}

    async def call_tool(self, to: str, tool: str, /, **arguments: Any) -> Any:
        """Call a tool of a participant, or propose the call if we must not make it; returns the tool's value.

        Raises ToolError if the tool failed.
        """
        result = await self.perform(to, "tools/call", {"name": tool, "arguments": arguments})
        return value_of(result, await self._returns(to, tool) if lone_text(result) is not None else None)

    def answer(self, proposal: Proposal, result: Payload) -> None:
        """Fulfil a proposal without asking anyone: we did it ourselves, and `result` is what its proposer gets.

        Raises ProposalNotPending for a proposal that is over, and NotCapable.
        """
        self.must_be_pending(proposal)
        kinds = [kind_of(base, proposal.method, proposal.params) for base in (REQUEST, RESPONSE)]
        if missing := next((kind for kind in kinds if not self.may(kind)), None):
            raise NotCapable(missing, self.capabilities.patterns)
        asked = {"jsonrpc": "2.0", "id": 0, "method": proposal.method, "params": proposal.params}
        request = self.post(kinds[0], asked, to=self.id, about=proposal.id)
        self._answered_already.add(request.id)
        self.topic.proposals.fulfilled_by(request)
        to = (self.id, proposal.proposer)
        self.post(kinds[1], {"jsonrpc": "2.0", "id": 0, "result": result}, to=to, about=request.id)

    def heard(self) -> AsyncIterator[Heard]:
        """What happens in the topic from now on: chat, presence, proposals, requests, responses, refusals."""
        unread: UnreadItems[Heard] = UnreadItems(HEARD_AT_MOST)
        self._heard.append(unread)
        return self._listen(unread)

    def said(self) -> AsyncIterator[Chat]:
        """Chat to us or to everyone, from now on."""
        return self._said(self.heard())

    async def _said(self, heard: AsyncIterator[Heard]) -> AsyncIterator[Chat]:
        async for found in heard:
            if isinstance(found, Chat) and (not found.to or self.id in found.to):
                yield found

    async def _listen(self, unread: UnreadItems[Heard]) -> AsyncIterator[Heard]:
        try:
            while True:
                yield await unread.get()
        except StopAsyncIteration:
            return
        finally:
            self._heard.remove(unread)

    # -- the connection ----------------------------------------------------------------------------------

    def received(self, frames: list[bytes | None]) -> None:
        """Take frames from the gateway: answer requests, and pass everything on to the listeners."""
        for frame in frames:
            if frame is None or (heard := self.hear(frame)) is None:
                continue
            if isinstance(heard, TopicRequest):
                self._answer(heard)
            if self._heard:
                size = weight_of_text(frame)
                for unread in self._heard:
                    unread.put(heard, size)  # a slow listener misses the oldest

    def ended(self, reason: str = "") -> None:
        """The connection is gone."""
        self.end_reason = reason
        self.detach()
        self.over.set()
        for unread in self._heard:
            unread.end()

    def _answer(self, asked: TopicRequest) -> None:
        envelope, payload = asked.envelope, asked.envelope.body
        if self.id not in envelope.to or "id" not in payload:
            return
        if envelope.sender == self.id and envelope.id in self._answered_already:
            self._answered_already.discard(envelope.id)
            return
        method = asked.kind.method
        error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
        body: Payload = {"result": _ANSWERS[method]} if method in _ANSWERS else {"error": error}
        kind = str(asked.kind._replace(base=RESPONSE))
        try:
            self.post(kind, {"jsonrpc": "2.0", "id": payload["id"], **body}, to=envelope.sender, about=envelope.id)
        except (NotCapable, NotWelcome) as error:
            log.debug("%s", error.message)

    async def _returns(self, to: str, tool: str) -> dict[str, Any] | None:
        """The declared type of a tool's value; it is asked for once. None if there is none, or we must not ask."""
        if (to, tool) not in self._listed:
            try:
                self._listed[to, tool] = await self.tool(to, tool)
            except PeerError:
                return None
        found = object_of((self._listed[to, tool] or {}).get("_meta")).get(RETURNS_KEY)
        return found if is_object(found) else None


_ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "initialize": {
        "protocolVersion": MCP_VERSION,
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "defserve", "version": VERSION},
    },
    "ping": {},
    "tools/list": {"tools": []},
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": []},
}


@asynccontextmanager
async def join_topic(url: str, *, token: str | None = None) -> AsyncGenerator[TopicClient]:
    """Join the topic of a `ws(s)://gateway/ws?topic=…` address. The block starts when the gateway has welcomed us.

    Raises PeerError if the gateway refuses, PeerGone if there is none, PeerTimeout if no welcome comes.
    """
    transport = await WebSocketClient.open(url.removeprefix("mcpx+"), token=token, longest=LONGEST_MESSAGE)
    client = TopicClient()
    client.attach(transport.send)
    try:
        transport.start(asyncio.get_running_loop(), client.received, lambda: client.ended(transport.end[1]))
        await _welcomed(client, transport)
        yield client
    finally:
        await transport.written(1.0)
        await transport.aclose()


async def _welcomed(client: TopicClient, transport: WebSocketClient) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (client.present, client.over)]
    done, pending = await asyncio.wait(waits, timeout=WELCOME_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if not done:
        raise PeerTimeout(f"no welcome within {WELCOME_SECONDS:g} s")
    if not client.present.is_set():
        code, reason = transport.end
        raise (PeerError if code == 1008 else PeerGone)(f"the gateway closed the connection: {code} {reason}".rstrip())
