from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from defserve.core.messages import (
    EncodedJson,
    MalformedMessage,
    Notification,
    Reply,
    Request,
    decode,
    encode,
    encode_at_startup,
    encode_result,
)
from tests.rows import for_each_row

PARSE, INVALID, PARAMS = -32700, -32600, -32602


def text(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def nested(levels: int) -> bytes:
    """A request whose object is `levels` deep."""
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + b"[" * (levels - 2) + b"]" * (levels - 2) + b"}}"


IDS = [0, 1, -1, 2**70, -(2**70), "", "1", "é" * 256, "\u2028"]


@pytest.mark.req("MCP-2.1")
@for_each_row("id", IDS, ids=repr)
def test_an_id_comes_back_as_it_was_sent(id: int | str):
    request = decode(text(id=id, method="m"))
    assert isinstance(request, Request)
    answer = json.loads(encode_result(request.id, {}))
    assert (answer["id"], type(answer["id"])) == (id, type(id))


MALFORMED = {
    "nothing": (b"", PARSE, None),
    "not JSON": (b"{", PARSE, None),
    "two values": (b'{"jsonrpc":"2.0"} {}', PARSE, None),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":NaN}}', PARSE, None),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', PARSE, None),
    "an overlong form": (b'{"jsonrpc":"2.0","id":1,"method":"\xc0\xaf"}', PARSE, None),
    "an encoded surrogate": (b'{"jsonrpc":"2.0","id":1,"method":"\xed\xa0\x80"}', PARSE, None),
    "an escaped lone surrogate": (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', PARSE, None),
    "a NUL in a string": (b'{"jsonrpc":"2.0","id":1,"method":"a\x00"}', PARSE, None),
    "a NUL after it": (text(id=1, method="m") + b"\x00", PARSE, None),
    "a BOM": (b"\xef\xbb\xbf" + text(id=1, method="m"), PARSE, None),
    "an integer of 5000 digits": (b'{"jsonrpc":"2.0","method":"m","id":1' + b"0" * 5000 + b"}", PARSE, None),
    "deeper than the parser goes": (nested(1000), PARSE, None),
    "a number": (b"1", INVALID, None),
    "a string": (b'"ping"', INVALID, None),
    "a string of brackets": (b'"' + b"[{:" * 4000 + b'"', INVALID, None),
    "null": (b"null", INVALID, None),
    "an empty batch": (b"[]", INVALID, None),
    "a batch of very many": (b"[" + b",".join([text(id=1, method="ping")] * 257) + b"]", INVALID, None),
    "a batch of very many numbers": (b"[" + b"1," * 300_000 + b"1]", INVALID, None),
    "an empty object": (b"{}", INVALID, None),
    "no jsonrpc": (b'{"id":7,"method":"m"}', INVALID, 7),
    "jsonrpc 1.0": (b'{"jsonrpc":"1.0","id":7,"method":"m"}', INVALID, 7),
    "jsonrpc as a number": (b'{"jsonrpc":2.0,"id":7,"method":"m"}', INVALID, 7),
    "no method": (text(id=7), INVALID, 7),
    "a method that is a number": (text(id=7, method=1), INVALID, 7),
    "an empty method": (text(id=7, method=""), INVALID, 7),
    "a method that is too long": (text(id=7, method="m" * 129), INVALID, 7),
    "id null": (text(id=None, method="m"), INVALID, None),
    "id true": (text(id=True, method="m"), INVALID, None),
    "id 1.0": (text(id=1.0, method="m"), INVALID, None),
    "id an object": (text(id={}, method="m"), INVALID, None),
    "id a list": (text(id=[1], method="m"), INVALID, None),
    "id of 600 digits": (text(id=10**600, method="m"), INVALID, None),
    "id of 257 characters": (text(id="x" * 257, method="m"), INVALID, None),
    "params a list": (text(id=7, method="m", params=[]), PARAMS, 7),
    "params a string": (text(id=7, method="m", params="x"), PARAMS, 7),
    "65 levels": (nested(65), INVALID, 1),
    "150 levels": (nested(150), INVALID, 1),
    "too many members": (text(id=7, method="m", params={str(n): n for n in range(10_001)}), INVALID, 7),
}


@pytest.mark.req("MCP-2.2")
@for_each_row("case", MALFORMED)
def test_what_breaks_the_rules_is_refused_with_the_id_where_there_is_one(case: str):
    data, code, id = MALFORMED[case]
    message = decode(data)
    assert isinstance(message, MalformedMessage)
    assert (message.code, message.id, message.is_reply) == (code, id, False)


GOOD = {
    "64 levels": nested(64),
    "the most members": text(id=1, method="m", params={str(n): n for n in range(10_000)}),
    "the longest method": text(id=1, method="m" * 128),
    "params null": text(id=1, method="m", params=None),
    "a CR around it": b"\r" + text(id=1, method="m") + b"\r",
    "U+2028 unescaped": '{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\u2028"}}'.encode(),
    "a pair of surrogates": b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\ud83d\\ude00"}}',
    "brackets in a string": text(id=1, method="m", params={"a": "[{" * 200}),
    "unknown members": text(id=1, method="m", extra=[1]),
}


@for_each_row("case", GOOD)
def test_what_keeps_the_rules_is_a_request(case: str):
    message = decode(GOOD[case])
    assert isinstance(message, Request)
    assert message.id == 1 and isinstance(message.params, dict)


def test_the_last_of_duplicate_keys_wins():
    message = decode(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b"}')
    assert isinstance(message, Request) and (message.id, message.method) == (2, "b")


def test_a_notification_without_an_object_of_params_has_none():
    message = decode(text(method="m", params=[1]))
    assert isinstance(message, Notification) and message.params == {}


def test_a_null_id_leaves_the_notification_it_may_have_been():
    message = decode(text(id=None, method="m", params={"a": 1}))
    assert isinstance(message, MalformedMessage) and message.notification is not None
    assert (message.notification.method, message.notification.params) == ("m", {"a": 1})


@for_each_row("id", [1, "1", None])
def test_a_reply_has_a_result_or_an_error(id: int | str | None):
    good, bad = decode(text(id=id, result=[1])), decode(text(id=id, error={"code": 1, "message": "no"}))
    assert isinstance(good, Reply) and (good.id, good.result, good.error) == (id, [1], None)
    assert isinstance(bad, Reply) and (bad.id, bad.error) == (id, {"code": 1, "message": "no"})


BROKEN_REPLIES = {
    "both": text(id=1, result=1, error={}),
    "an error that is a string": text(id=1, error="no"),
    "no jsonrpc": b'{"id":1,"result":{}}',
}


@for_each_row("case", BROKEN_REPLIES)
def test_a_broken_reply_is_known_as_one_and_keeps_its_id(case: str):
    message = decode(BROKEN_REPLIES[case])
    assert isinstance(message, MalformedMessage) and message.is_reply and message.id == 1


def test_a_batch_is_a_list_of_messages_good_and_bad():
    messages = decode(b"[" + text(id=1, method="a") + b"," + text(method="b") + b",1,[]]")
    assert isinstance(messages, list)
    assert [type(message) for message in messages] == [Request, Notification, MalformedMessage, MalformedMessage]
    assert len(decode(b"[" + b",".join([text(id=1, method="ping")] * 256) + b"]")) == 256  # type: ignore[arg-type]


@for_each_row(
    ("value", "expected"),
    [
        (math.inf, None),
        ({"a": [-math.inf, math.nan]}, {"a": [None, None]}),
        ("a\ud800b", "a\ufffdb"),
        ({"\udfff": ["\ud800", ("\udc00",)]}, {"\ufffd": ["\ufffd", ["\ufffd"]]}),
        ("\u2028\r\n\x00", "\u2028\r\n\x00"),
        (2**70, 2**70),
    ],
)
def test_what_json_cannot_say_is_replaced(value: Any, expected: Any):
    for data in (encode(value), encode_at_startup(value)):
        assert json.loads(data) == expected and b"\n" not in data


def test_a_value_without_a_json_form_is_a_value_error():
    loop: list[Any] = []
    loop.append(loop)
    for value in (object(), loop, b"\xff", {"\ud800": object()}):
        with pytest.raises(ValueError):
            encode(value)
        with pytest.raises(ValueError):
            encode_at_startup(value)


def test_an_encoded_result_is_copied_as_it_stands():
    encoded = EncodedJson(b'{"x" : 1}')
    assert encode_at_startup(encoded) is encoded
    assert encode_result("a", encoded) == b'{"jsonrpc":"2.0","id":"a","result":{"x" : 1}}'
    assert encode_result(7, encoded) == b'{"jsonrpc":"2.0","id":7,"result":{"x" : 1}}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
members = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": st.integers() | st.text() | json_values,
        "method": st.sampled_from(["ping", "tools/list", "notifications/cancelled"]) | json_values,
        "params": st.dictionaries(st.text(max_size=4), json_values, max_size=3) | json_values,
        "result": json_values,
        "error": json_values,
    },
)
KINDS = Request | Notification | Reply | MalformedMessage


def assert_messages(found: Any) -> None:
    for message in found if isinstance(found, list) else [found]:
        assert isinstance(message, KINDS)
        if isinstance(message, MalformedMessage):
            assert message.code in (PARSE, INVALID, PARAMS)
        if isinstance(message, Request | Notification):
            assert isinstance(message.params, dict) and 0 < len(message.method) <= 128


@given(st.binary())
@example(b"\xef\xbb\xbf{}")
@example(b"[" * 100_000)
def test_any_bytes_give_messages(data: bytes):
    assert_messages(decode(data))


@given(members | st.lists(members, max_size=3) | json_values)
def test_any_json_gives_messages(value: Any):
    assert_messages(decode(json.dumps(value).encode()))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(
    st.integers(-(2**80), 2**80) | st.text(max_size=256),
    st.text(min_size=1, max_size=128),
    st.dictionaries(st.text(), plain, max_size=4),
)
def test_what_is_encoded_is_decoded_the_same(id: int | str, method: str, params: dict[str, Any]):
    data = encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    message = decode(data)
    assert b"\n" not in data
    assert isinstance(message, Request)
    assert (message.id, message.method, message.params) == (id, method, params)


@given(json_values)
def test_anything_json_like_is_encoded_as_one_line_of_json(value: Any):
    found: list[Any] = []
    for data in (encode(value), encode_at_startup(value)):
        found.append(json.loads(data.decode("utf-8", "strict")))
        assert b"\n" not in data
    assert found[0] == found[1]
