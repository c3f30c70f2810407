"""A change that one process tells reaches the sessions and listeners of all, once."""

from __future__ import annotations

import pytest

from tests.asgi import Exchange, Peer
from tests.effort import calls_of
from tests.raw import STATELESS
from tests.serve.http.shared.group import Group
from tests.waiting import until

pytestmark = pytest.mark.anyio


def methods(exchange: Exchange) -> list[str]:
    return [message["method"].removeprefix("notifications/") for message in exchange.messages]


async def leave(exchange: Exchange) -> None:
    exchange.leave()
    await exchange.ended()


@pytest.mark.parametrize("teller", ["one", "two", "three"])
async def test_subscribers_of_any_process_are_told_once(group: Group, teller: str):
    await group.start("three")  # serves no session at all
    client = await group.client("one")
    await client.at("two").ask("resources/subscribe", {"uri": "memo://a"})
    stream = await client.at("two").listen().started()
    group[teller].server.resource_updated("memo://a")
    group[teller].server.resource_updated("memo://b")
    await stream.until(lambda: bool(stream.messages))
    group[teller].server.remove_tool("who")
    await stream.until(lambda: len(stream.messages) >= 2)
    assert methods(stream) == ["resources/updated", "tools/list_changed"]
    await leave(stream)


@pytest.mark.parametrize("shared", ["redis"], indirect=True)
async def test_a_change_costs_nothing_for_sessions_that_did_not_ask_for_it(group: Group):
    tell = group["one"].link._receivers["change"][0]
    fields = {"t": b"change", "k": b"resource", "v": b"memo://a", "w": b"0123456789ab"}

    def effort(id: str) -> int:
        work = tell(fields, id).__await__()
        return calls_of(lambda: next(work, None))

    await (await group.client("one")).at("one").ask("resources/subscribe", {"uri": "memo://a"})
    alone = effort("1-0")
    for _ in range(5):
        await group.client("one")
    assert effort("2-0") == alone


async def test_a_listener_without_a_session_hears_of_changes_elsewhere(group: Group):
    listener = Peer(group["one"].app, STATELESS)
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["memo://a"]}
    stream = listener.begin_request("subscriptions/listen", {"notifications": wanted})
    await stream.until(lambda: len(stream.messages) == 1)
    group["two"].server.resource_updated("memo://a")
    group["two"].server.remove_tool("who")
    group["one"].server.resource_updated("memo://a")
    await stream.until(lambda: len(stream.messages) >= 4)
    assert sorted(methods(stream)[1:]) == ["resources/updated", "resources/updated", "tools/list_changed"]
    await leave(stream)


@pytest.mark.parametrize("shared", ["redis"], indirect=True)
async def test_what_changed_while_a_session_had_no_owner_is_told_by_the_next_one(group: Group):
    client = await group.client("one")
    await client.at("two").ask("resources/subscribe", {"uri": "memo://a"})
    await until(lambda: "memo" in str(next(iter(group["one"].app.streamable.logs)).known))
    await group["one"].kill()
    group["two"].server.resource_updated("memo://a")
    await until(lambda: group["two"].link.is_written)
    await group.start("three")
    stream = await client.at("three").listen().started()
    await stream.until(lambda: bool(stream.messages))
    group["three"].server.resource_updated("memo://a")
    await stream.until(lambda: len(stream.messages) >= 2)
    assert methods(stream) == ["resources/updated", "resources/updated"]
    await leave(stream)
