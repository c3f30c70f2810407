"""Any bytes give a valid reply, a protocol error or silence by rule: never another exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve import Context, Server
from tests.core.stepping import Talk
from tests.effort import examples

META = "io.modelcontextprotocol/"
ENVELOPE = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}

server = Server("fuzzed")


@server.tool
async def echo(ctx: Context, text: str = "", count: int = 1) -> str:
    ctx.progress(1)
    ctx.log.info(text)
    return text * min(count, 10)


@server.resource("note://{name}")
async def note(name: str) -> str:
    return name


@server.prompt
async def greet(name: str) -> str:
    return f"Hello {name}"


METHODS = [*sorted(server.composition.known_methods), *sorted(server.composition.known_notifications), "no/such"]
# These wait for more than one step, by design.
METHODS.remove("subscriptions/listen")

numbers = st.integers(-5, 5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(
    ["echo", "greet", "note://a", "note://{name}", "info", "2025-11-25", "ref/prompt", "ref/resource", "open", "1"]
)
meta = st.just(ENVELOPE) | st.dictionaries(
    st.sampled_from([*ENVELOPE, META + "clientInfo", META + "logLevel", "progressToken"]), known | values, max_size=5
)
params = st.dictionaries(
    st.sampled_from(
        [
            "name",
            "arguments",
            "uri",
            "cursor",
            "level",
            "ref",
            "argument",
            "context",
            "requestId",
            "protocolVersion",
            "capabilities",
            "clientInfo",
            "requestState",
            "inputResponses",
            "progressToken",
            "progress",
        ]
    ),
    known | values | st.dictionaries(st.sampled_from(["type", "name", "uri", "value", "text"]), known | values),
    max_size=6,
)
member = {
    "jsonrpc": st.just("2.0"),
    "id": st.integers(0, 3) | st.text(max_size=3) | values,
    "method": st.sampled_from(METHODS) | st.text(max_size=5),
    "params": st.builds(lambda params, meta: {**params, "_meta": meta}, params, meta) | params | values,
}
requests = st.fixed_dictionaries(member)
messages = requests | st.fixed_dictionaries(
    {}, optional={**member, "jsonrpc": st.just("2.0") | values, "result": values, "error": values}
)
frames = (
    st.binary(max_size=60)
    | st.none()
    | (messages | st.lists(messages, max_size=3) | values).map(lambda value: json.dumps(value).encode())
    | st.tuples(messages, st.integers(0, 200), st.binary(min_size=1, max_size=2)).map(lambda parts: _mutated(*parts))
)


def _mutated(message: Any, position: int, garbage: bytes) -> bytes:
    data = json.dumps(message).encode()
    return data[:position] + garbage + data[position + 1 :]


def assert_json_rpc(message: Any) -> None:
    for one in message if isinstance(message, list) else [message]:
        assert one["jsonrpc"] == "2.0"
        if "method" in one:
            assert isinstance(one["method"], str) and "id" not in one and isinstance(one["params"], dict)
            continue
        assert ("result" in one) != ("error" in one)
        assert one.get("id") is None or type(one["id"]) in (int, str)
        if "error" in one:
            assert type(one["error"]["code"]) is int and isinstance(one["error"]["message"], str)
            assert "internal error" not in one["error"]["message"], one
        else:
            assert "id" in one and isinstance(one["result"], dict)
            assert not one["result"].get("isError") or "internal error" not in json.dumps(one["result"]), one


def opened(version: str | None) -> Talk:
    talk = Talk(server.composition)
    return talk.open(version) if version else talk


@pytest.mark.hypothesis
@pytest.mark.req("MCP-2.2", "MCP-2.3")
@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-03-26", "2025-11-25"])
def test_anything_a_peer_says_is_answered_by_the_rules(version: str | None):
    @settings(max_examples=examples(30))
    @given(st.lists(frames, min_size=1, max_size=4))
    def any_frames(said: list[bytes | None]) -> None:
        talk = opened(version)
        try:
            for frame in said:
                for reply in talk.say(frame) + talk.step():
                    assert_json_rpc(reply)
            assert talk.session.in_flight == {} and server.composition.running == 0
            assert talk.ask("still here", "ping") == [{"jsonrpc": "2.0", "id": "still here", "result": {}}]
        finally:
            talk.session.close()

    any_frames()


@given(requests)
def test_a_request_without_a_handshake_gets_exactly_one_answer(request: dict[str, Any]):
    params = request["params"] if isinstance(request["params"], dict) else {}
    body = {**request, "id": 1, "params": {**params, "_meta": {**ENVELOPE, "progressToken": 1}}}
    talk = opened(None)
    try:
        replies = talk.say(body) + talk.step()
        for reply in replies:
            assert_json_rpc(reply)
        assert [reply["id"] for reply in replies if "id" in reply] == [1]
    finally:
        talk.session.close()
