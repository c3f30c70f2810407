"""Logs of a child that several callers share: each hears its own, and all of those that belong to nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Remote, Server
from defserve.auth import StaticTokens
from tests.at_address import at_address
from tests.proxying.talkers import talker

pytestmark = pytest.mark.anyio

KEYS = {"a" * 40: "ann", "b" * 40: "bo"}

# When two calls are there, it logs for both, and for the one of Ann; then it answers.
TWO_AT_ONCE = """
calls = []
for call in told():
    calls.append(call)
    if len(calls) == 2:
        said = [one["params"] for one in calls]
        [token] = [one["_meta"]["progressToken"] for one in said if one["arguments"]["who"] == "ann"]
        say(method="notifications/message", params={"level": "info", "data": "for all"})
        say(method="notifications/message", params={"level": "info", "data": "own", "_meta": {"progressToken": token}})
        for one in calls:
            answer(one["id"], "done")
"""


async def test_logs_reach_the_call_that_they_name_or_everybody_who_shares_the_child() -> None:
    server = Server("desk", auth=StaticTokens(KEYS))
    server.mount(talker(TWO_AT_ONCE, per="shared"), prefix="e")
    heard: dict[str, list[Any]] = {"ann": [], "bo": []}

    def client(key: str) -> Any:
        def hear(log: dict[str, Any]) -> None:
            heard[KEYS[key]].append(log["data"])

        return Remote(url, token=key).connect("stateless", on_log=hear, log_level="info", on_progress=print)

    async with at_address(server) as url:
        async with client("a" * 40) as ann, client("b" * 40) as bo:
            calls = [one.call("e_talk", who=who) for who, one in (("ann", ann), ("bo", bo))]
            assert await asyncio.gather(*calls) == ["done", "done"]
    assert heard == {"ann": ["for all", "own"], "bo": ["for all"]}


async def test_a_level_that_is_no_text_is_no_level(caplog: pytest.LogCaptureFixture) -> None:
    server, heard = Server("desk"), list[Any]()
    body = """
for call in told():
    for level in ([], {}, 5, None, "loud", "info"):
        say(method="notifications/message", params={"level": level, "data": str(level)})
    answer(call["id"], "done")
"""
    server.mount(talker(body), prefix="e")
    async with server.connect("handshake", on_log=heard.append) as client:
        assert await client.call("e_talk") == "done"
    assert [log["data"] for log in heard] == ["info"]
    assert "failed" not in caplog.text


async def test_who_has_two_calls_hears_a_message_once() -> None:
    server = Server("desk")
    server.mount(talker(TWO_AT_ONCE, per="shared"), prefix="e")
    heard: list[Any] = []
    async with server.connect("handshake", on_log=heard.append, on_progress=print) as client:
        calls = [client.call("e_talk", who=who) for who in ("ann", "bo")]
        assert await asyncio.gather(*calls) == ["done", "done"]
    assert [log["data"] for log in heard] == ["for all", "own"]


NO_LEVEL = """
for call in told():
    say(method="notifications/message", params={"level": ["info"], "data": "of no level"})
    say(method="notifications/message", params={"level": "info", "data": "own"})
    answer(call["id"], "done")
"""


async def test_a_message_whose_level_is_no_text_is_left_out_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    server, heard = Server("desk"), list[Any]()
    server.mount(talker(NO_LEVEL, per="shared"), prefix="e")

    def hear(log: dict[str, Any]) -> None:
        heard.append(log["data"])

    async with at_address(server) as url:
        async with Remote(url).connect("stateless", on_log=hear, log_level="info") as client:
            assert await client.call("e_talk") == "done"
    assert heard == ["own"]
    assert "failed" not in caplog.text
