"""Resources that say how long they are good for are read once in that time."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Context, Server
from defserve.core.extension import Extension
from defserve.protocols.mcp.resources import KEY_BYTES, ResourceContentsCache
from tests.raw import ERAS, HANDSHAKE, STATELESS, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

TTL = 60


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def served(clock: Clock) -> Server:
    """A server whose resources count how often they were read."""
    server = Server("s", "1")
    server.mcp.resources.cache = ResourceContentsCache(clock)
    server.mcp.subscriptions.add_update_listener(server.mcp.resources.cache.drop_contents)
    reads: dict[str, int] = {}

    def count(name: str) -> str:
        reads[name] = reads.get(name, 0) + 1
        return f"{name} {reads[name]}"

    @server.resource("x://kept", ttl=TTL)
    def kept() -> str:
        return count("kept")

    @server.resource("x://each/{name}", ttl=TTL)
    async def each(name: str) -> str:
        return count(name)

    @server.resource("x://mine", ttl=TTL)
    def mine(ctx: Context) -> str:
        return count("mine")

    @server.resource("x://always")
    def always() -> str:
        return count("always")

    return server


async def read(peer: Any, uri: str) -> str:
    return (await peer.ask("resources/read", {"uri": uri}))["result"]["contents"][0]["text"]


@pytest.mark.req("GGEN-M3")
@for_each_row("version", ERAS)
async def test_what_was_read_is_kept_for_its_time_and_no_longer(version: str):
    clock = Clock()
    async with raw(served(clock), version) as peer:
        assert next(each["uri"] for each in (await peer.ask("resources/list"))["result"]["resources"]) == "x://kept"
        assert await read(peer, "x://kept") == "kept 1"
        clock.now += TTL - 0.1
        assert await read(peer, "x://kept") == "kept 1"
        clock.now += 0.1
        assert await read(peer, "x://kept") == "kept 2"


@pytest.mark.req("GGEN-M3")
async def test_clients_are_told_what_is_left_of_the_time():
    clock = Clock()
    async with raw(served(clock), STATELESS) as peer:
        assert (await peer.ask("resources/read", {"uri": "x://kept"}))["result"]["ttlMs"] == TTL * 1000
        clock.now += 20
        assert (await peer.ask("resources/read", {"uri": "x://kept"}))["result"]["ttlMs"] == (TTL - 20) * 1000


async def test_every_uri_of_a_template_is_kept_by_itself():
    async with raw(served(Clock()), HANDSHAKE[-1]) as peer:
        assert [await read(peer, f"x://each/{name}") for name in ("a", "b", "a")] == ["a 1", "b 1", "a 1"]


async def test_who_reads_does_not_matter():
    server = served(Clock())
    async with server.connect() as one, server.connect() as other:
        assert await one.read_text("x://kept") == await other.read_text("x://kept") == "kept 1"


@for_each_row("name", ["mine", "always"])
async def test_what_may_depend_on_the_caller_or_has_no_time_is_read_again(name: str):
    async with raw(served(Clock()), HANDSHAKE[-1]) as peer:
        assert [await read(peer, f"x://{name}") for _ in range(2)] == [f"{name} 1", f"{name} 2"]


@pytest.mark.req("GGEN-M3")
async def test_an_update_is_read_at_once():
    server = served(Clock())
    async with raw(server, HANDSHAKE[-1]) as peer:
        assert await read(peer, "x://kept") == "kept 1"
        assert await read(peer, "x://each/a") == "a 1"
        server.resource_updated("x://kept")
        assert await read(peer, "x://kept") == "kept 2"
        assert await read(peer, "x://each/a") == "a 1"


async def test_a_resource_that_is_replaced_is_read_anew():
    server = served(Clock())

    def other() -> str:
        return "other"

    async with raw(server, HANDSHAKE[-1]) as peer:
        assert await read(peer, "x://kept") == "kept 1"
        server.add_resource(other, "x://kept", replace=True, ttl=TTL)
        assert await read(peer, "x://kept") == "other"


async def test_an_update_of_a_mounted_server_is_read_at_once():
    child, parent = served(Clock()), Server("parent", "1")
    parent.mount(child, prefix="sub")
    async with parent.connect() as client:
        (uri,) = [each["uri"] for each in await client.resources() if each["uri"].endswith("kept")]
        assert [await client.read_text(uri) for _ in range(2)] == ["kept 1", "kept 1"]
        child.resource_updated("x://kept")
        assert await client.read_text(uri) == "kept 2"


async def test_whoever_changes_a_result_on_its_way_changes_only_that_one():
    server = Server("s", "1", extensions=[Shouting()])

    @server.resource("x://kept", ttl=TTL)
    def kept() -> str:
        return "hello"

    async with server.connect() as client:
        assert [await client.read_text("x://kept") for _ in range(2)] == ["hello!", "hello!"]


class Shouting(Extension):
    name = "shouting"

    def negotiate(self, offer: Any) -> object:
        return self

    def around(self) -> dict[str, Any]:
        async def louder(call: Any, params: Any, following: Any) -> Any:
            result = await following(call, params)
            result["contents"][0]["text"] += "!"
            return result

        return {"resources/read": louder}


def test_what_was_begun_before_a_change_is_not_kept():
    kept = ResourceContentsCache(Clock())
    changes = kept.changes
    kept.drop_contents("x://a")
    kept.store_contents("x://a", "v", [{"text": "old"}], TTL, changes)
    assert kept.find_contents("x://a", "v") is None


def test_what_was_not_read_for_longest_goes_first():
    kept = ResourceContentsCache(Clock(), most=2 * (KEY_BYTES + 6))
    for uri in ("a", "b"):
        kept.store_contents(uri, "v", [{"text": "12345"}], TTL, kept.changes)
    assert kept.find_contents("a", "v") is not None
    kept.store_contents("c", "v", [{"blob": "12345"}], TTL, kept.changes)
    assert [kept.find_contents(uri, "v") is not None for uri in "abc"] == [True, False, True]
    kept.store_contents("d", "v", [{"text": "x" * 1000}], TTL, kept.changes)
    assert kept.find_contents("d", "v") is None and kept.find_contents("a", "v") is not None
