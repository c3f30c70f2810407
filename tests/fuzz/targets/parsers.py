"""Parsers that take a peer's bytes. In pieces they read the same as in one, and they raise nothing but their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from defserve.base.http_connection import BrokenHttpConnection, ResponseFraming
from defserve.client.links.event_streams import SseParser
from defserve.core.messages import LineSplitter, Request, decode, encode, encode_result
from defserve.errors import PeerError, ProtocolError
from defserve.protocols.mcp.uri_template import UriTemplate
from defserve.protocols.mcpx.envelope import BrokenEnvelope, Envelope, parse_envelope
from defserve.serve.http1.request import RequestHeadCache

T = TypeVar("T")
LIMIT = 200
MOST_PIECES = 200


def pieces(data: bytes) -> tuple[bytes, list[bytes]]:
    """The first byte says how long the pieces are into which the rest is cut; those of long data are longer."""
    rest = data[1:]
    size = max((data[0] % 16) + 1 if data else 1, len(rest) // MOST_PIECES)
    return rest, [rest[at : at + size] for at in range(0, len(rest), size)]


def codec(data: bytes) -> None:
    """Bytes are a message, several, or a protocol error; a request that is written again is the same request."""
    try:
        said = decode(data)
    except ProtocolError as error:
        assert error.message
        return
    for one in said if isinstance(said, list) else [said]:
        if isinstance(one, Request):
            again = decode(encode({"jsonrpc": "2.0", "id": one.id, "method": one.method, "params": one.params}))
            assert isinstance(again, Request) and (again.id, again.method) == (one.id, one.method)
            assert json.loads(encode_result(one.id, {"a": 1})) == {"jsonrpc": "2.0", "id": one.id, "result": {"a": 1}}


def framing(data: bytes) -> None:
    """Lines, with a limit, come out the same however the bytes are cut."""
    whole, parts = pieces(data)
    assert _lines([whole]) == _lines(parts)


def _lines(parts: list[bytes]) -> list[bytes | None]:
    lines = LineSplitter(LIMIT)
    found = [line for part in parts for line in lines.feed(part)]
    assert all(line is None or (len(line) <= LIMIT and b"\n" not in line) for line in found)
    return [*found, lines.finish()]


def server_sent_events(data: bytes) -> None:
    """The client's parser of event streams, however the bytes are cut."""
    whole, parts = pieces(data)
    assert _outcome(lambda: _events([whole])) == _outcome(lambda: _events(parts))


def _events(parts: list[bytes]) -> tuple[list[tuple[str, bytes]], str, float | None]:
    parser = SseParser(LIMIT)
    found = [(event.kind, event.data) for part in parts for event in parser.feed(part)]
    return found, parser.last_id, parser.retry


def _outcome(work: Callable[[], T]) -> T | str:
    try:
        return work()
    except PeerError as error:
        return str(error)


def http_responses(data: bytes) -> None:
    """The client's parser of HTTP responses, however the bytes are cut."""
    whole, parts = pieces(data)
    one, other = _response([whole]), _response(parts)
    # Where it is broken, the body may have come up to there or not.
    assert one[0] == other[0] and (one[0] == "broken" or one == other), (one, other)


def _response(parts: list[bytes]) -> tuple[Any, ...]:
    framing, body = ResponseFraming(), b""
    try:
        for part in parts:
            if framing.over:
                break
            body += framing.feed(part)
        if not framing.over:
            framing.end()
    except BrokenHttpConnection as error:
        assert str(error)
        return ("broken",)
    head = framing.head
    return ("read", head and head.status, body, framing.over)


def uri_templates(data: bytes) -> None:
    """A template is refused with a reason, or matches any URI in its own way, and expands what it matched."""
    text, _, uri = data.decode(errors="surrogateescape").partition("\n")
    try:
        template = UriTemplate.parse(text)
    except ValueError as error:
        assert str(error)
        return
    found = template.match_uri(uri)
    if found is not None:
        assert set(found) <= set(template.names)
        assert isinstance(template.expand(found), str)


def known_heads(data: bytes) -> None:
    """A head is known only if a request before it had the same bytes, but for its length. Then its body is whole."""
    first, _, second = data.partition(b"\xff\xff")
    heads = RequestHeadCache()
    head = heads.add_head(first, _scope(first))
    known, length, body = heads.find(second)
    if known is None:
        return
    assert known is head
    top, _, rest = second.partition(b"\r\n\r\n")
    assert body == rest and int(length) == len(body)
    assert known.match(second) == (known, length, body)
    lengths = [line for line in top.split(b"\r\n")[1:] if line.lower().startswith(b"content-length:")]
    assert [line.split(b":")[1].strip() for line in lengths] == [b"%d" % len(body)]
    before = first.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert [line for line in top.split(b"\r\n") if line not in lengths] == [
        line for line in before if not line.lower().startswith(b"content-length:")
    ]


def _scope(data: bytes) -> dict[str, Any]:
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return {"type": "http", "http_version": "1.1", "method": "POST", "path": "/", "headers": headers}


def envelopes(data: bytes) -> None:
    """Any bytes are an envelope of a topic, or broken with a reason. What is written again is the same."""
    found = parse_envelope(data)
    if isinstance(found, BrokenEnvelope):
        assert found.reason in ("not_json", "wrong_version", "invalid_envelope") and found.message
        return
    again = parse_envelope(found.encode())
    assert isinstance(again, Envelope), again.message
    assert (again.id, again.kind, again.sender, again.to) == (found.id, found.kind, found.sender, found.to)
