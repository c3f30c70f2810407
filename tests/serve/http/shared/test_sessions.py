"""A session belongs to all processes: any of them answers any of its requests."""

from __future__ import annotations

from typing import Any

import pytest

from defserve.stores.shared import lua_scripts
from tests.asgi import Peer
from tests.serve.http.shared.group import Group
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def test_any_process_answers_a_request_of_any_session(group: Group):
    client = await group.client()
    assert await client.at("one").call("who") == "one"
    assert await client.at("two").call("who") == group["two"].name


@pytest.mark.parametrize("shared", ["redis"], indirect=True)
async def test_a_session_that_is_known_costs_no_round_trip(group: Group, monkeypatch: pytest.MonkeyPatch):
    client = await group.client()
    await client.at("two").call("who")
    asked: list[Any] = []

    def ask(*args: Any, **more: Any) -> None:
        asked.append(args)

    with monkeypatch.context() as patch:
        for worker in group.workers.values():
            patch.setattr(worker.link, "run_script", ask)
            patch.setattr(worker.link, "queue_script", ask)
        said = [await client.at(name).call("who") for name in ("one", "two", "one")]
    assert said == ["one", "two", "one"]
    asked = [each for each in asked if each[0] != lua_scripts.RENEW_LEASE]
    assert asked == []


async def test_an_unknown_session_is_not_found_and_one_that_was_ended_is_gone_everywhere(group: Group):
    client = await group.client()
    await client.at("two").call("who")
    assert (await client.at("two").delete().ended()).status == 204
    await until(lambda: not group["one"].known)
    for name in ("one", "two"):
        assert (await client.at(name).begin_call("who").ended()).status == 404
    stranger = Peer(group["one"].app)
    for id in ("x" * 32, "x", "../" * 10, "*" * 32):
        stranger.session = id
        assert (await stranger.begin_call("who").ended()).status == 404


async def test_what_a_session_has_set_holds_everywhere(group: Group):
    client = await group.client()
    await client.at("two").call("who")  # known before the change
    assert "result" in await client.at("one").ask("logging/setLevel", {"level": "debug"})
    await client.knows("two", lambda log: "debug" in str(log.session.conversation.record()))
    exchange = await client.at("two").begin_call("speaks").ended()
    assert [m["params"]["data"] for m in exchange.messages if "params" in m] == ["a detail"]
