"""What a backend is sent: the same, whether the parts that calls repeat were encoded before or not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from pydantic_core import from_json

from defserve.auth.principals import Principal
from defserve.client.eras import SessionTerms
from defserve.core.messages import Request
from defserve.proxying.channel import BackendChannel, FrontClient
from defserve.proxying.targets import BackendSecrets

pytestmark = pytest.mark.anyio

ENVELOPE = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
ASKS: dict[str, Any] = {"elicitation": {"form": {}}}
PARAMS: list[dict[str, Any]] = [
    {"name": "add", "arguments": {"a": 1, "b": [2, None, {"c": "}"}]}},
    {"name": 'a "quoted" näme', "arguments": {}},
    {"uri": "text://x"},
    {},
    {"name": "add", "arguments": {"text": "\ud800 alone"}},
    {"name": "add", "arguments": {"x": float("inf")}},
]


def a_channel(stateless: bool) -> BackendChannel:
    channel = BackendChannel(cast(Any, None), None)
    version = "2026-07-28" if stateless else "2025-11-25"
    channel.terms = SessionTerms(version, {}, ENVELOPE if stateless else None)
    return channel


@pytest.mark.parametrize("stateless", [True, False])
async def test_an_encoded_request_says_what_the_request_says(stateless: bool):
    channel = a_channel(stateless)
    for params in PARAMS:
        for offers, level in (({}, None), (ASKS, None), (ASKS, "debug"), ({}, "info"), (ASKS, "debug")):
            said = channel.encode_params(params, offers, level)
            plain = from_json(said)
            expected = channel.with_meta(params, {}, offers, level)
            if "alone" in str(params):
                assert plain["arguments"] == {"text": "\ufffd alone"}
            elif "inf" in str(params):
                assert plain["arguments"] == {"x": None}
            else:
                assert plain == expected
            assert plain.get("_meta") == expected.get("_meta")
            assert b"\n" not in said


async def test_a_question_that_belongs_to_no_call_is_for_who_the_conversation_is_for():
    asked: list[Any] = []

    class OpenedByAnother:
        async def request(self, method: str, params: Any, identity: Any = None) -> Any:
            asked.append((identity, params["message"]))
            return {"action": "decline"}

    class Owner:
        id, secrets = "mail", BackendSecrets(())

    ann = Principal("ann", frozenset({"admin"}))
    front = FrontClient("key", cast(Any, OpenedByAnother()), ASKS, "ann", True, caller=ann)
    channel = BackendChannel(cast(Any, Owner()), front)
    answer = await channel.answer_request(Request(1, "elicitation/create", {"message": "Sure?"}, {}))
    assert (answer, asked) == ({"action": "decline"}, [(ann, "Server 'mail' asks: Sure?")])


async def test_a_question_waits_for_a_call_that_can_be_asked():
    class Exchange:
        async def ask_front(self, method: str, params: Any) -> Any:
            return {"action": "accept"}

    front = FrontClient("key", None, ASKS, "ann", True)
    channel = BackendChannel(cast(Any, None), front)
    answering = asyncio.create_task(channel.answer_request(Request(1, "elicitation/create", {}, {})))
    await asyncio.sleep(0)
    failed, asked = (cast(Any, Exchange()) for _ in range(2))
    # It could not be sent, so it is over before anybody has looked.
    channel.begin_exchange(failed)
    channel.end_exchange(failed)
    await asyncio.sleep(0.01)
    channel.begin_exchange(asked)
    assert await answering == {"action": "accept"}
