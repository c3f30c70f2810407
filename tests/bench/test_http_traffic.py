"""What the HTTP driver makes of bytes; nothing here is timed."""

from __future__ import annotations

import json

from tests.bench.http_traffic import FIRST_ID, HttpRequest, is_whole
from tests.rows import for_each_row

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@for_each_row("reply", [PLAIN + b"done", CHUNKED + b"4\r\ndone\r\n0\r\n\r\n"])
def test_a_reply_is_whole_with_its_last_byte_and_not_before(reply: bytes) -> None:
    assert [size for size in range(len(reply) + 1) if is_whole(reply[:size])] == [len(reply)]


def test_a_numbered_request_is_as_long_as_its_head_says() -> None:
    request = HttpRequest.of(8000, {"method": "ping", "params": {}}, {"Mcp-Session-Id": "s"}).numbered(FIRST_ID + 7)
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert json.loads(body) == {"jsonrpc": "2.0", "id": FIRST_ID + 7, "method": "ping", "params": {}}
