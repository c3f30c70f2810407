"""What a backend is sent: the same, whether the parts that calls repeat were encoded before or not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pydantic_core import from_json

from defserve.auth.principals import Principal
from defserve.client.eras import SessionTerms
from defserve.core.messages import Request
from defserve.proxying.channel import BackendChannel, FrontClient, OpenRequest, Updates
from defserve.proxying.targets import BackendSecrets
from tests.waiting import until

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


class HeldOpen(OpenRequest):
    """A request for changes that the server takes when `may_open` is set."""

    made: ClassVar[list[HeldOpen]] = []

    async def open(self) -> None:
        self.made.append(self)
        self.may_open = asyncio.Event()
        self._listeners.add(self)
        try:
            await self.may_open.wait()
        except asyncio.CancelledError:
            self._listeners.discard(self)
            raise

    def end_by_server(self) -> None:
        self._listeners.discard(self)
        self.end()


async def test_a_subscription_that_is_called_off_leaves_the_one_before_it_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HeldOpen, "made", made := list[HeldOpen]())
    monkeypatch.setattr("defserve.proxying.channel.OpenRequest", HeldOpen)
    monkeypatch.setattr("defserve.proxying.channel.REOPEN_UPDATES_SECONDS", 0.0)
    updates = Updates(cast("Any", SimpleNamespace(stateless=True, conversation=None, terms=None, gone=None)))

    async def begin(**wanted: Any) -> asyncio.Task[None]:
        known, task = len(made), asyncio.create_task(updates.request_updates(**wanted))
        await until(lambda: len(made) > known)
        return task

    opening = await begin(kinds=("tools",))
    made[0].may_open.set()
    await opening
    given_up = await begin(uris=lambda: ["note://live"])
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    made[0].end_by_server()
    await until(lambda: len(made) == 3)
    assert made[2].wanted == made[0].wanted
    made[2].may_open.set()
    updates.close()
