"""Rates that were declared are counted once for all processes; while Redis is away, each process counts by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.auth import ApiKeys, StaticTokens
from defserve.stores.shared.shared_tables import TAKE_TOKENS
from defserve.stores.store import MemoryStore
from tests.asgi import Peer, last
from tests.raw import STATELESS
from tests.serve.http.shared.group import Group

pytestmark = pytest.mark.anyio


def caller(group: Group, at: str, token: str) -> Peer:
    peer = Peer(group[at].app, STATELESS)
    peer.token = token
    return peer


async def outcome(group: Group, at: str, token: str, tool: str = "who") -> Any:
    """The limit that refused a call, and None for one that ran."""
    reply = last(await caller(group, at, token).begin_call(tool).ended())
    return reply["result"]["_meta"].get("dev.defserve/error", {}).get("limit")


async def outcomes(group: Group, token: str, count: int, tool: str = "who") -> list[Any]:
    return await asyncio.gather(*(outcome(group, ("one", "two")[n % 2], token, tool) for n in range(count)))


async def asked_of_redis(group: Group) -> list[str]:
    """The scripts that the first process runs from here on."""
    link, asked = group["one"].link, list[str]()
    run = link.run_script
    link.run_script = lambda script, *args: asked.append(script) or run(script, *args)
    return asked


async def test_a_rate_is_counted_once_for_all_processes_and_for_each_caller_and_tool(pair: Group):
    auth = StaticTokens({"ada": "ada", "bob": "bob"})
    for name in ("one", "two"):
        await pair.start(name, auth=auth, rate=0.001, burst=5)
    refused = [each for each in await outcomes(pair, "ada", 12) if each is not None]
    assert refused == ["rate"] * 7
    assert [each for each in await outcomes(pair, "bob", 4) if each is not None] == []
    assert [each for each in await outcomes(pair, "ada", 4, "speaks") if each is not None] == []


async def test_the_quota_of_a_key_is_counted_once_for_all_processes_all_of_its_limits_or_none(pair: Group):
    keys = ApiKeys(MemoryStore(), pepper="p" * 16)
    key = await keys.create("ada", permissions=["ToolInvoke(*)"], per_minute=4, per_hour=6)
    for name in ("one", "two"):
        await pair.start(name, auth=keys)
    found = await outcomes(pair, key.token, 10)
    assert sorted(each or "" for each in found) == [""] * 4 + ["per_minute"] * 6
    link = pair["one"].link
    hour = await link._redis.get(f"{link._prefix}rate:{key.key.id}\nper_hour")
    clock = await link._redis.time()
    used = (int(hour) / 1_000_000 - clock[0] - clock[1] / 1_000_000) / 600  # one call of six in an hour is ten minutes
    assert 3 < used <= 4, "a call that one limit refused counts for the other"


async def test_a_call_without_a_declared_rate_asks_redis_nothing(pair: Group):
    await pair.start("one", auth=StaticTokens({"ada": "ada"}))
    asked = await asked_of_redis(pair)
    assert await outcome(pair, "one", "ada") is None
    assert TAKE_TOKENS not in asked


async def test_a_declared_rate_costs_one_round_trip(pair: Group):
    await pair.start("one", auth=StaticTokens({"ada": "ada"}), rate=7, burst=7)
    asked = await asked_of_redis(pair)
    assert await outcome(pair, "one", "ada") is None
    assert asked.count(TAKE_TOKENS) == 1


async def test_while_redis_is_away_each_process_counts_by_itself(pair: Group):
    auth = StaticTokens({"ada": "ada"})
    for name in ("one", "two"):
        await pair.start(name, auth=auth, rate=0.001, burst=3)
        pair[name].link.is_up = False
    found = await outcomes(pair, "ada", 10)
    assert found.count(None) == 6
    for name in ("one", "two"):
        pair[name].link.is_up = True
    assert (await outcomes(pair, "ada", 6)).count(None) == 3
