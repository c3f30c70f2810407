from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from defserve.client.replies import RawReply, read_raw_reply
from defserve.core.messages import MAX_REPLY_DEPTH, MalformedMessage, Reply, decode
from tests.rows import for_each_row

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def shown(message: Any) -> Any:
    if isinstance(message, list):
        return [shown(each) for each in message]
    kind = Reply if isinstance(message, Reply) else type(message)
    names = [name for name in kind.__slots__ if name not in ("raw", "notification")]
    return kind, [getattr(message, name) for name in names]


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@for_each_row(
    "reply",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{"a": [1,  2], "b":1.50}}',
        b'{"result":{"a": [1,  2], "b":1.50},"jsonrpc":"2.0","id":7}',
    ],
)
def test_the_result_keeps_its_bytes(reply: bytes):
    message = read_raw_reply(reply)
    assert isinstance(message, RawReply)
    assert (message.id, message.error, message.result) == (7, None, {"a": [1, 2], "b": 1.5})
    assert message.raw == b'{"a": [1,  2], "b":1.50}'


@for_each_row("space", [b"\n", b"\r", b"\r\n"])
def test_a_result_over_several_lines_is_passed_on_as_one_line(space: bytes):
    message = read_raw_reply(b'{"jsonrpc":"2.0","id":7,"result":{' + space + b'"a":1}}')
    assert isinstance(message, RawReply)
    assert message.raw == b'{"a":1}'


@for_each_row(
    "smuggled",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{},"id":8}',
        b'{"jsonrpc":"2.0","id":7,"result":{},"result":{"other":1}}',
        b'{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":"m"}}',
        b'{"result":{},"x":1,"jsonrpc":"2.0","id":7}',
        b'{"result":{}},{"jsonrpc":"2.0","id":7}',
        b'{"jsonrpc":"2.0","id":7,"result":}',
        b'{"jsonrpc":"2.0","id":07,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}} ',
        b'{"jsonrpc":"2.0","id":,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":NaN}',
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 195 + b"]" * 195 + b"}",
        b'{"jsonrpc":"2.0","id":7,"result":"\xff"}',
    ],
)
def test_what_stands_beside_the_result_never_comes_along(smuggled: bytes):
    message, plain = read_raw_reply(smuggled), decode(smuggled, MAX_REPLY_DEPTH)
    assert shown(message) == shown(plain)
    if isinstance(message, RawReply):
        assert json.loads(message.raw) == message.result


def test_a_result_that_is_too_deep_is_no_reply():
    for depth, kind in ((190, RawReply), (191, RawReply), (192, MalformedMessage), (193, MalformedMessage)):
        data = b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * depth + b"]" * depth + b"}"
        assert type(read_raw_reply(data)) is kind, depth
        assert isinstance(decode(data, MAX_REPLY_DEPTH), Reply) is (kind is RawReply)


@given(JSON, st.integers(), st.booleans())
def test_every_reply_is_read_as_the_codec_reads_it(result: Any, id: int, result_first: bool):
    ends = {"jsonrpc": "2.0", "id": id}
    data = compact({"result": result, **ends} if result_first else {**ends, "result": result})
    message = read_raw_reply(data)
    assert shown(message) == shown(decode(data))
    if isinstance(message, RawReply):
        assert json.loads(message.raw) == result


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_as_the_codec_reads_them(middle: bytes, result_first: bool):
    ends = (
        (b'{"result":', b',"jsonrpc":"2.0","id":7}') if result_first else (b'{"jsonrpc":"2.0","id":7,"result":', b"}")
    )
    data = middle.join(ends)
    assert shown(read_raw_reply(data)) == shown(decode(data))


@for_each_row(
    ("sent", "read"),
    [
        (r"cut \ud83d", "cut \ufffd"),
        (r"\uDE00 and \ud83d\ud83d\ude00", "\ufffd and \ufffd\U0001f600"),
        (r"a path \\ud83d and \ud7ff \ud83d", "a path \\ud83d and \ud7ff \ufffd"),
    ],
)
def test_half_of_a_character_that_a_server_cut_is_read_as_a_replacement(sent: str, read: str):
    for data in (
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"}}',
        b'{"result":{"text":"%b"},"jsonrpc":"2.0","id":7}',
        b'{"jsonrpc": "2.0", "id": 7, "result": {"text": "%b"}}',
    ):
        message = read_raw_reply(data % sent.encode())
        assert isinstance(message, Reply) and message.result == {"text": read}


def test_what_is_no_json_stays_unreadable_beside_half_a_character():
    assert isinstance(read_raw_reply(b'{"jsonrpc":"2.0","id":7,"result":"\\ud83d" "x"}'), MalformedMessage)
