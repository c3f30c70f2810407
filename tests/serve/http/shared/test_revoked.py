"""A key that is revoked anywhere ends in every process what it has opened, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from defserve.auth import ApiKeys, live_credentials
from tests.serve.http.shared.group import Group
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.anyio

KeysAt = Callable[[str], ApiKeys]


@pytest.fixture(autouse=True)
def no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is told can end anything in time."""
    monkeypatch.setattr(live_credentials.LiveCredentials.__init__, "__defaults__", (600.0,))


@pytest.fixture
async def keys_at() -> AsyncIterator[KeysAt]:
    made: list[ApiKeys] = []

    def at(address: str) -> ApiKeys:
        made.append(ApiKeys(address, pepper="p" * 16, server="web"))
        return made[-1]

    yield at
    for each in made:
        await each.close()


async def test_a_revoked_key_ends_its_streams_and_sessions_in_all_processes(pair: Group, keys_at: KeysAt):
    address = pair.address.replace("prefix=", "prefix=keys-")
    keys = keys_at(address)
    made = await keys.create("ada", permissions=["ToolInvoke(*)"])
    other = await keys.create("bob", permissions=["ToolInvoke(*)"])
    for name in ("one", "two"):
        await pair.start(name, auth=keys_at(address))
    ada = await pair.client("one", token=made.token)
    bob = await pair.client("one", token=other.token)
    streams = [await each.at("two").listen().started() for each in (ada, bob)]
    waiting = ada.at("one").begin_call("wait")
    await until(lambda: bool(list(pair["one"].server.composition.list_calls())))
    await keys.revoke(made.key.id)
    async with asyncio.timeout(20):
        await streams[0].ended()
        await waiting.ended()
    assert pair["one"].ended == ["wait"]
    await until(lambda: ada.session not in pair["one"].known | pair["two"].known)
    assert (await ada.at("two").begin_call("who").ended()).status == 401
    # The other one goes on.
    assert await bob.at("two").call("who") == "two"
    streams[1].leave()
    await streams[1].ended()


async def test_a_session_goes_on_with_the_next_key_in_another_process(pair: Group, keys_at: KeysAt):
    address = pair.address.replace("prefix=", "prefix=keys-")
    keys = keys_at(address)
    old, new = [await keys.create("ada", permissions=["ToolInvoke(who)"]) for _ in range(2)]
    for name in ("one", "two"):
        await pair.start(name, auth=keys_at(address))
    ada = await pair.client("one", token=old.token)
    peer = ada.at("two")
    peer.token = new.token
    assert await peer.call("who") == "two"
    await ada.knows("one", lambda log: len(log.credentials) == 2)
    await keys.revoke(old.key.id)
    async with asyncio.timeout(20):
        while len(pair["two"].app.streamable.logs.find_log(ada.session).credentials) != 1:
            assert await peer.call("who") == "two"
    assert await peer.call("who") == "two"
    assert (await peer.delete().ended()).status == 204


async def test_a_key_that_is_revoked_while_nothing_can_be_told_ends_when_it_can_be(
    pair: Group, keys_at: KeysAt, request: pytest.FixtureRequest
):
    own = RedisServer("--appendonly", "yes").start()
    request.addfinalizer(own.remove)
    keys = keys_at(own.address)
    made = await keys.create("ada", permissions=["ToolInvoke(*)"])
    await pair.start("one", auth=keys_at(own.address))
    ada = await pair.client("one", token=made.token)
    stream = await ada.at("one").listen().started()
    keys._store.raw.announce = None  # type: ignore[attr-defined]
    await keys.revoke(made.key.id)
    own.kill()
    own.start()
    async with asyncio.timeout(20):
        await stream.ended()
