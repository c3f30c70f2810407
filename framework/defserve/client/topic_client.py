"""A host in a topic: it asks, proposes, fulfils, chats, and sees the others' messages.

It needs a gateway, but no server of its own. Unread news are bounded: a slow listener misses the oldest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from defserve.base.peer_bounds import estimate_parsed_json_bytes
from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.client.replies import (
    RETURN_TYPE_KEY,
    UnreadItemQueue,
    extract_result_value,
    get_single_text,
    object_or_empty,
)
from defserve.core.json_values import is_object
from defserve.core.messages import METHOD_NOT_FOUND
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError
from defserve.protocols.mcpx.envelope import (
    CONTEXT_FIELD_BY_METHOD,
    REQUEST_KIND,
    RESPONSE_KIND,
    TOPIC_MCP_VERSION,
    make_message_kind,
)
from defserve.protocols.mcpx.participant import NotCapable, NotWelcome, Participant, Payload
from defserve.protocols.mcpx.proposals import Proposal, build_fulfilment_params
from defserve.protocols.mcpx.topic import Chat, TopicEvent, TopicRequest, remove_token_from_address
from defserve.serve.outbound import WebSocketClient

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
WELCOME_SECONDS: Final = 10.0

log = get_logger("client")


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
        self._heard: list[UnreadItemQueue[TopicEvent]] = []
        self._answered_already: set[str] = set()
        self._listed: dict[tuple[str, str], dict[str, Any] | None] = {}

    async def call_tool(self, to: str, tool: str, /, **arguments: Any) -> Any:
        """Call a tool of a participant, or propose the call if we must not make it; returns the tool's value.

        Raises ToolError if the tool failed.
        """
        result = await self.perform(to, "tools/call", {"name": tool, "arguments": arguments})
        return extract_result_value(
            result, await self._returns(to, tool) if get_single_text(result) is not None else None
        )

    def answer(self, proposal: Proposal, result: Payload) -> None:
        """Fulfil a proposal without asking anyone: we did it ourselves, and `result` is what its proposer gets.

        Raises ProposalNotPending for a proposal that is over, and NotCapable.
        """
        self.require_pending(proposal)
        params = build_fulfilment_params(proposal)
        kinds = [make_message_kind(base, proposal.method, params) for base in (REQUEST_KIND, RESPONSE_KIND)]
        if missing := next((kind for kind in kinds if not self.may(kind)), None):
            raise NotCapable(missing, self.capabilities.patterns)
        asked = {"jsonrpc": "2.0", "id": 0, "method": proposal.method, "params": params}
        request = self.post(kinds[0], asked, to=self.id, about=proposal.id)
        self._answered_already.add(request.id)
        self.topic.proposals.record_fulfilment(request)
        self.post(
            kinds[1], {"jsonrpc": "2.0", "id": 0, "result": result}, to=((self.id, proposal.proposer)), about=request.id
        )

    def heard(self) -> AsyncIterator[TopicEvent]:
        """What happens in the topic from now on: chat, presence, proposals, requests, responses, refusals."""
        unread: UnreadItemQueue[TopicEvent] = UnreadItemQueue(10_000)
        self._heard.append(unread)
        return self._listen(unread)

    def iter_chat(self) -> AsyncIterator[Chat]:
        """Chat to us or to everyone, from now on."""
        return self._filter_chat(self.heard())

    async def _filter_chat(self, heard: AsyncIterator[TopicEvent]) -> AsyncIterator[Chat]:
        async for found in heard:
            if isinstance(found, Chat) and (not found.to or self.id in found.to):
                yield found

    async def _listen(self, unread: UnreadItemQueue[TopicEvent]) -> AsyncIterator[TopicEvent]:
        try:
            while True:
                yield await unread.get()
        except StopAsyncIteration:
            return
        finally:
            self._heard.remove(unread)

    # -- the connection ----------------------------------------------------------------------------------

    def feed_frames(self, frames: list[bytes | None]) -> None:
        """Take frames from the gateway: answer requests, and pass everything on to the listeners."""
        for frame in frames:
            if frame is None or (heard := self.receive_frame(frame)) is None:
                continue
            if isinstance(heard, TopicRequest):
                self._answer(heard)
            if self._heard:
                size = estimate_parsed_json_bytes(frame)
                for unread in self._heard:
                    unread.put(heard, size)  # a slow listener misses the oldest

    def on_connection_closed(self, reason: str = "") -> None:
        """The connection is gone."""
        self.end_reason = reason
        self.detach_gateway()
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
        kind = str(asked.kind._replace(base=RESPONSE_KIND))
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
        found = object_or_empty((self._listed[to, tool] or {}).get("_meta")).get(RETURN_TYPE_KEY)
        return found if is_object(found) else None


_ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "initialize": {
        "protocolVersion": TOPIC_MCP_VERSION,
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "defserve", "version": VERSION},
    },
    "ping": {},
    "tools/list": {"tools": []},
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": []},
}


def make_topic_address(url: str, topic: str, fix: str) -> str:
    """The address of a topic at a gateway; without a `topic`, of the one that the address names.

    Raises UsageError, which says `fix` if no topic is named.
    """
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        parts = urlsplit("")
    if parts.scheme.removeprefix("mcpx+") not in ("ws", "wss") or not parts.netloc:
        raise UsageError(f"{url[:200]!r} is not the address of a gateway", fix="write ws://host:port/ws")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    # An address that was copied has a topic of its own. A gateway takes exactly one.
    named = topic or next((value for name, value in pairs if name == "topic"), "")
    if not named:
        raise UsageError("no topic is given", fix=fix)
    others = [(name, value) for name, value in pairs if name != "topic"]
    return urlunsplit((*parts[:3], urlencode([*others, ("topic", named)]), ""))


@asynccontextmanager
async def join_topic(url: str, *, token: str | None = None) -> AsyncGenerator[TopicClient]:
    """Join the topic of a `ws(s)://gateway/ws?topic=…` address. The block starts when the gateway has welcomed us.

    Raises PeerError if the gateway refuses, PeerGone if there is none, PeerTimeout if no welcome comes.
    """
    transport = await WebSocketClient.open(url.removeprefix("mcpx+"), token=token, longest=MAX_MESSAGE_BYTES)
    client = TopicClient()
    client.topic.place = remove_token_from_address(url.removeprefix("mcpx+"))
    client.attach_gateway(transport.send)
    try:
        transport.start(
            asyncio.get_running_loop(), client.feed_frames, lambda: client.on_connection_closed(transport.end[1])
        )
        await _await_welcome(client, transport)
        yield client
    finally:
        await transport.wait_until_written(1.0)
        await transport.aclose()


async def _await_welcome(client: TopicClient, transport: WebSocketClient) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (client.present, client.over)]
    try:
        done, _ = await asyncio.wait(waits, timeout=WELCOME_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
    if not done:
        raise PeerTimeout(f"no welcome within {WELCOME_SECONDS:g} s")
    if not client.present.is_set():
        code, reason = transport.end
        raise (PeerError if code == 1008 else PeerGone)(f"the gateway closed the connection: {code} {reason}".rstrip())


# -- A proposal as a person reads it who says yes or no: all that a yes would send, and nothing else.


MAX_RECIPIENTS_SHOWN: Final = 20
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


class ProposalText:
    """The parts of a proposal in our own words, safe to print: `who`, `what` and a line for each argument.

    A proposer chose every text in it. So no text is shown as part of another, no name hides a value, and a long value
    is shown with its beginning and its end. `warning` says what a yes does not send, or why it sends nothing.
    """

    __slots__ = ("proposer", "who", "what", "lines", "warning")

    def __init__(self, proposal: Proposal, present: Collection[str]) -> None:
        from defserve.protocols.mgp.permissions import format_confirmation_question

        self.proposer, self.who = quote_text(proposal.proposer), _name_recipients(proposal.to, present)
        self.warning = "its _meta is not sent" if "_meta" in proposal.params else ""
        try:
            params = build_fulfilment_params(proposal)
        except UsageError as error:
            params, self.warning = proposal.params, quote_line(f"a yes does nothing: {error.problem}")
        self.what = quote_text(proposal.method)
        if proposal.context:
            self.what += f" {quote_text(proposal.context)}"
            field = CONTEXT_FIELD_BY_METHOD[proposal.method]
            params = {name: value for name, value in params.items() if name != field}
        arguments = params.get("arguments")
        shown = arguments if proposal.context and params.keys() <= {"arguments"} and is_object(arguments) else params
        self.lines = format_confirmation_question("", shown, {}).split("\n")[1:]

    def __str__(self) -> str:
        more = [f"  ({self.warning})"] if self.warning else []
        return "\n".join([f"{self.proposer} proposes to {self.who}: {self.what}", *self.lines, *more])


def quote_text(text: str) -> str:
    """A name that somebody else chose: as it is, or in quotes if it could be read as something else."""
    return text if _PLAIN.fullmatch(text) is not None else repr(quote_line(text))


def quote_line(text: str) -> str:
    """The text on one line, without characters that hide or reorder it."""
    from defserve.base.redaction import escape_unprintable
    from defserve.protocols.mgp.permissions import SHOWN_HEAD_LENGTH, SHOWN_TAIL_LENGTH, shorten_text

    return escape_unprintable(shorten_text(text, SHOWN_HEAD_LENGTH // 2, SHOWN_TAIL_LENGTH // 2))


def _name_recipients(to: tuple[str, ...], present: Collection[str]) -> str:
    """Those of the recipients that are here, and how many are not: what is no participant is only a text."""
    if not to:
        return "anyone"
    here = [name for name in dict.fromkeys(to) if name in present]
    away, more = len(set(to)) - len(here), len(here) - MAX_RECIPIENTS_SHOWN
    named = ", ".join(map(quote_text, here[:MAX_RECIPIENTS_SHOWN])) or "nobody who is here"
    return f"{named}{f' and {more} more' if more > 0 else ''}{f' ({away} named are not here)' if away else ''}"
