"""MCPL §14: channels are declared, opened and closed; without a session there are those the author added."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypedDict

import pytest

from defserve import Server, ToolError, UsageError
from defserve.protocols.mcpl.channels.messages import MAX_CHANNELS, Author, Channel, ReceivedMessage
from defserve.protocols.mcpl.vocabulary import UnknownFeatureSet
from tests.protocols.mcpl.channels.connectors import (
    DESCRIPTOR,
    GENERAL,
    GENERAL_WIRE,
    HELLO,
    NEWS,
    OPEN_GENERAL,
    ROADS,
    SET,
    SHARED,
    Discord,
    DiscordAddress,
    Watcher,
    check,
    code_of,
    complete,
    ids,
    join_x,
    opened,
)
from tests.protocols.mcpl.hosts import Json, hosting, session_of
from tests.raw import STATELESS, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


# -- what is advertised ----------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.1", "MCPL-5.1")
async def test_the_capability_follows_from_what_was_declared(discord: Discord):
    async with hosting(discord.server) as host:
        assert host.advertised["channels"] == {
            "register": True, "publish": True, "observe": False, "lifecycle": True, "streaming": False,
        }  # fmt: skip
        assert host.advertised["featureSets"][SET]["uses"] == ["channels.publish", "channels.observe"]


async def test_observers_are_advertised():
    server = Server("watcher", "1")
    watched = server.channels("*", feature_set=server.feature_set("watch", "Watch"))

    @watched.observe_chunks
    def see(delta: str) -> None: ...

    async with hosting(server) as host:
        assert host.advertised["channels"] == {
            "register": True, "publish": False, "observe": True, "lifecycle": False, "streaming": True,
        }  # fmt: skip
        assert host.advertised["featureSets"]["watch"]["uses"] == ["channels.observe"]


async def test_a_server_without_channels_has_no_such_methods():
    server = Server("plain", "1")
    server.feature_set("memory", "Remember")
    async with hosting(server) as host:
        assert "channels" not in host.advertised
        for method in ("channels/list", "channels/open", "channels/close", "channels/publish"):
            assert await code_of(host, method, {}) == -32601


@pytest.mark.req("MCPL-3.2")
async def test_a_plain_client_sees_nothing_of_channels(discord: Discord):
    discord.chat.add(SHARED)
    async with hosting(discord.server, mcpl=None) as host:
        discord.chat.add(Channel("discord:#more"))
        await turns()
        assert (host.asked, host.heard) == ([], [])
        assert await code_of(host, "channels/list", {}) == -32601


# -- opening and closing ---------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.3o", "MCPL-14.3x", "MCPL-14.2")
@pytest.mark.parametrize("road", ROADS)
async def test_a_host_opens_and_closes_a_channel(discord: Discord, road: str):
    async with hosting(discord.server, road=road) as host:
        result = (await host.ask("channels/open", OPEN_GENERAL))["result"]
        assert result == {"channel": GENERAL_WIRE}
        check(DESCRIPTOR, result["channel"])
        assert await ids(host) == ["discord:#general"]
        assert (await host.ask("channels/close", {"channelId": "discord:#general"}))["result"] == {"closed": True}
        assert discord.closed == ["discord:#general"]
        assert await ids(host) == []
        # What it asked for itself it is not told once more.
        assert (host.asked, host.heard) == ([], [])


@pytest.mark.req("MCPL-14.3o", "MCPL-14.6")
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"type": "discord", "address": {"guild": "acme", "channel": "#secret"}}, "it is by invitation only"),
        ({"type": "discord", "address": {"guild": "acme", "channel": "#full"}}, "the room is full"),
        ({"type": "discord", "address": {"guild": "acme"}}, "address.channel: missing"),
        ({"type": "discord", "address": "acme"}, "address: "),
        ({"type": "discord"}, "address: missing"),
        ({"type": "irc", "address": {}}, "there are no channels of type 'irc'"),
    ],
)
async def test_a_channel_that_cannot_be_opened_says_why(discord: Discord, asked: Json, reason: str):
    async with hosting(discord.server) as host:
        error = (await host.ask("channels/open", asked))["error"]
        assert error["code"] == -32024
        assert error["message"].startswith(f"Channel open failed: {reason}")
        assert error["data"]["error_type"] == "channel_open_failed"
        assert error["data"]["reason"].startswith(reason)
        assert await ids(host) == []


async def test_a_stranger_s_exception_is_masked(discord: Discord, caplog: pytest.LogCaptureFixture):
    async with hosting(discord.server) as host:
        error = (await host.ask("channels/open", {"type": "discord", "address": GENERAL | {"channel": "#broken"}}))[
            "error"
        ]
        assert error["code"] == -32024
        assert error["data"]["reason"].startswith("internal error (id ")
        assert "hunter2" not in str(error)


async def test_what_is_opened_must_be_a_channel():
    server = Server("wrong", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))

    @chat.open
    def join() -> Any:
        return "x:1"

    async with hosting(server) as host:
        assert await code_of(host, "channels/open", {"type": "x", "address": {"any": 1}}) == -32024


class Place(TypedDict):
    room: str


@for_each_row("kind", [Place, dict[str, str]])
async def test_addresses_may_be_of_any_type_with_a_json_form(kind: Any):
    server = Server("irc", "1")
    chat = server.channels("irc", feature_set=server.feature_set("irc", "IRC"))

    async def join(address: Any, metadata: dict[str, Any] | None = None) -> Channel:
        return Channel(f"irc:{address['room']}", address=address, metadata=metadata)

    join.__annotations__["address"] = kind
    chat.open(join)
    async with hosting(server) as host:
        reply = await host.ask("channels/open", {"type": "irc", "address": {"room": "tea"}, "metadata": {"k": 1}})
        assert reply["result"]["channel"]["address"] == {"room": "tea"}
        assert reply["result"]["channel"]["metadata"] == {"k": 1}
        assert await code_of(host, "channels/open", {"type": "irc", "address": {"room": 1}}) == -32024


@pytest.mark.req("MCPL-14.3x", "MCPL-14.6")
async def test_an_unknown_channel_is_refused(discord: Discord):
    async with hosting(discord.server) as host:
        for method in ("channels/close", "channels/publish", "channels/open"):
            error = (await host.ask(method, {"channelId": "discord:#nowhere", "content": []}))["error"]
            assert (error["code"], error["data"]["channelId"]) == (-32023, "discord:#nowhere")


async def test_a_channel_whose_author_says_no_stays_open():
    server = Server("sticky", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    chat.open(join_x)

    @chat.close
    def leave(channel: Channel) -> bool:
        return False

    async with hosting(server) as host:
        await host.ask("channels/open", {"type": "x", "address": {}})
        assert (await host.ask("channels/close", {"channelId": "x:1"}))["result"] == {"closed": False}
        assert await ids(host) == ["x:1"]


async def test_a_host_closes_a_shared_channel_for_itself_and_may_open_it_again_by_id(discord: Discord):
    discord.chat.add(SHARED)
    async with hosting(discord.server) as host, hosting(discord.server) as other:
        assert (await host.ask("channels/close", {"channelId": SHARED.id}))["result"] == {"closed": True}
        assert discord.closed == [SHARED.id]
        assert await code_of(host, "channels/close", {"channelId": SHARED.id}) == -32023
        assert discord.closed == [SHARED.id]
        assert (await ids(host), await ids(other)) == ([], [SHARED.id])
        assert await code_of(host, "channels/publish", HELLO | {"channelId": SHARED.id}) == -32023
        assert (await host.ask("channels/open", {"channelId": SHARED.id}))["result"] == {"channel": NEWS}
        assert await ids(host) == [SHARED.id]


async def test_the_address_of_a_shared_channel_leads_to_it(discord: Discord):
    shared = Channel("discord:#general", address=GENERAL)
    discord.chat.add(shared)
    async with hosting(discord.server) as host:
        assert (await opened(host))["label"] == "discord:#general"
        assert await ids(host) == ["discord:#general"]
        await host.ask("channels/close", {"channelId": "discord:#general"})
        assert discord.closed == ["discord:#general"]


@for_each_row("outcome", [False, RuntimeError("broken")], ids=["no", "error"])
async def test_a_shared_channel_that_could_not_be_closed_stays_open_for_the_host(outcome: bool | Exception):
    server = Server("chat", "1")
    chat = server.channels("chat", feature_set=server.feature_set("chat.rooms", "Chats"))
    chat.add(Channel("chat:lobby", "The lobby"))

    @chat.close
    async def leave(channel: Channel) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with hosting(server) as host:
        reply = await host.ask("channels/close", {"channelId": "chat:lobby"})
        assert reply.get("result") == ({"closed": False} if outcome is False else None)
        assert await ids(host) == ["chat:lobby"]


async def test_channels_are_closed_with_the_session(discord: Discord):
    async with hosting(discord.server) as host:
        await opened(host)
        await opened(host, "#random")
    await until(lambda: len(discord.closed) == 2)
    assert discord.closed == ["discord:#general", "discord:#random"]


async def test_channels_are_closed_when_their_set_is_taken_back_and_the_type_is_free_again(discord: Discord):
    discord.chat.add(SHARED)
    async with hosting(discord.server, answers={"channels/register": {}}) as host:
        await opened(host)
        discord.server.mcpl.remove(SET)
        await turns()
        assert discord.closed == ["discord:#general"]
        assert await ids(host) == []
        assert host.heard_of("channels/changed")[-1]["removed"] == ["discord:#news", "discord:#general"]
        with pytest.raises(UnknownFeatureSet):
            await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1"), to=session_of(discord.server))
        again = discord.server.channels("discord", feature_set=discord.server.feature_set("new", "New"))
        again.add(SHARED)
        assert await ids(host) == [SHARED.id]


async def test_a_session_has_only_so_many_channels_open(discord: Discord, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.protocols.mcpl.channels.section.MAX_CHANNELS", 2)
    assert MAX_CHANNELS == 1_000
    async with hosting(discord.server) as host:
        await opened(host, "#1")
        await opened(host, "#2")
        assert await code_of(host, "channels/open", OPEN_GENERAL) == -32024


async def test_an_opened_channel_can_be_described_anew(discord: Discord):
    async with hosting(discord.server) as host, hosting(discord.server) as other:
        await opened(host)
        await opened(other, "#random")
        address = DiscordAddress(guild="acme", channel="#general")
        discord.chat.update(Channel("discord:#general", "Renamed", address=address))
        await turns()
        assert host.heard_of("channels/changed")[0]["updated"] == [GENERAL_WIRE | {"label": "Renamed"}]
        assert other.heard == []


class SlowClose:
    """Rooms whose `close` waits for `go`, and gives or raises `outcome`."""

    def __init__(self) -> None:
        self.server, self.log, self.go = Server("slow", "1"), list[str](), asyncio.Event()
        self.outcome: bool | Exception | None = None
        rooms = self.server.channels("room", feature_set=self.server.feature_set("rooms", "Rooms"))
        rooms.open(self.open)
        rooms.close(self.close)
        rooms.publish(self.publish)

    async def open(self, address: dict[str, Any]) -> Channel:
        self.log.append("open")
        return Channel("room:1", address=address)

    async def close(self, channel: Channel) -> bool | None:
        self.log.append("close begins")
        await self.go.wait()
        self.log.append("close ends")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def publish(self, channel: Channel) -> None: ...

    async def begun(self) -> None:
        await until(lambda: self.log[-1] == "close begins")


OPEN_ROOM: Json = {"type": "room", "address": {"floor": 1, "door": 2}}
ROOM: Json = {"channelId": "room:1", "content": []}


async def test_a_channel_that_two_requests_close_is_closed_once():
    slow = SlowClose()
    async with hosting(slow.server) as host:
        await host.ask("channels/open", OPEN_ROOM)
        closes = [asyncio.create_task(host.ask("channels/close", ROOM)) for _ in range(2)]
        await slow.begun()
        await turns()
        slow.go.set()
        first, second = await asyncio.gather(*closes)
        assert first["result"] == {"closed": True}
        assert second["error"]["code"] == -32023
        assert slow.log == ["open", "close begins", "close ends"]


@for_each_row("asked", [OPEN_ROOM, {"type": "room", "address": {"door": 2, "floor": 1}}, ROOM | OPEN_ROOM])
async def test_a_channel_that_is_being_closed_is_opened_anew_when_it_is_closed(asked: Json):
    slow = SlowClose()
    async with hosting(slow.server) as host:
        await host.ask("channels/open", OPEN_ROOM)
        closing = asyncio.create_task(host.ask("channels/close", ROOM))
        await slow.begun()
        opening = asyncio.create_task(host.ask("channels/open", asked))
        await turns()
        assert await code_of(host, "channels/publish", ROOM) == -32023
        slow.go.set()
        assert (await closing)["result"] == {"closed": True}
        assert (await opening)["result"]["channel"]["id"] == "room:1"
        assert slow.log == ["open", "close begins", "close ends", "open"]
        assert "result" in await host.ask("channels/publish", ROOM)


async def test_a_channel_that_is_being_closed_is_not_found_by_its_id_when_it_is_closed():
    slow = SlowClose()
    async with hosting(slow.server) as host:
        await host.ask("channels/open", OPEN_ROOM)
        closing = asyncio.create_task(host.ask("channels/close", ROOM))
        await slow.begun()
        opening = asyncio.create_task(host.ask("channels/open", ROOM))
        await turns()
        slow.go.set()
        await closing
        assert (await opening)["error"]["code"] == -32023


@for_each_row("outcome", [False, ToolError("not now")], ids=["no", "failed"])
async def test_a_channel_that_could_not_be_closed_is_there_again(outcome: bool | Exception):
    slow = SlowClose()
    slow.outcome = outcome
    async with hosting(slow.server) as host:
        await host.ask("channels/open", OPEN_ROOM)
        closing = asyncio.create_task(host.ask("channels/close", ROOM))
        await slow.begun()
        opening = asyncio.create_task(host.ask("channels/open", ROOM))
        await turns()
        slow.go.set()
        assert (await closing).get("result") in ({"closed": False}, None)
        assert (await opening)["result"]["channel"]["id"] == "room:1"
        assert await ids(host) == ["room:1"]
        slow.outcome = None


async def test_a_host_that_leaves_does_not_stop_or_repeat_what_closes_its_channel():
    slow = SlowClose()
    async with hosting(slow.server):
        async with hosting(slow.server) as host:
            await host.ask("channels/open", OPEN_ROOM)
            closing = asyncio.create_task(host.ask("channels/close", ROOM))
            await slow.begun()
        closing.cancel()
        await turns()
        slow.go.set()
        await until(lambda: slow.log[-1] == "close ends")
        await turns()
        assert slow.log == ["open", "close begins", "close ends"]


async def test_what_a_blocking_function_opens_for_a_host_that_has_left_is_closed_again():
    server, log, begun, go = Server("slow", "1"), list[str](), threading.Event(), threading.Event()
    rooms = server.channels("room", feature_set=server.feature_set("rooms", "Rooms"))

    @rooms.open
    def join(address: dict[str, Any]) -> Channel:
        begun.set()
        go.wait(30)
        log.append("open")
        return Channel("room:1", address=address)

    @rooms.close
    async def leave(channel: Channel) -> None:
        log.append(f"close {channel.id}")

    async with hosting(server):
        async with hosting(server) as host:
            opening = asyncio.create_task(host.ask("channels/open", OPEN_ROOM))
            await until(begun.is_set)
        opening.cancel()
        await turns()
        assert log == []
        go.set()
        await until(lambda: log == ["open", "close room:1"])


async def test_what_a_blocking_function_opens_too_late_is_closed_again():
    server, log, go = Server("slow", "1"), list[str](), threading.Event()
    rooms = server.channels("room", feature_set=server.feature_set("rooms", "Rooms"))

    @rooms.open(timeout=0.01)
    def join(address: dict[str, Any]) -> Channel:
        go.wait(30)
        return Channel("room:1", address=address)

    @rooms.close
    def leave(channel: Channel) -> None:
        log.append(channel.id)

    async with hosting(server) as host:
        assert await code_of(host, "channels/open", OPEN_ROOM) == -32024
        go.set()
        await until(lambda: log == ["room:1"])
        assert await ids(host) == []


# -- without a session, and other hosts ------------------------------------------------------------------


async def test_shared_channels_work_without_a_session(discord: Discord):
    discord.chat.add(Channel("discord:#general", "#general (Acme Discord)", address=GENERAL))
    watcher = Watcher("*")
    async with hosting(discord.server, STATELESS) as host:
        assert (await host.ask("channels/list"))["result"]["channels"] == [GENERAL_WIRE]
        assert (await host.ask("channels/publish", HELLO))["result"]["messageId"] == "dmsg_1"
        for asked in (OPEN_GENERAL, {"channelId": "discord:#general"}):
            assert (await host.ask("channels/open", asked))["result"]["channel"] == GENERAL_WIRE
        assert (await host.ask("channels/close", {"channelId": "discord:#general"}))["result"]["closed"] is False
        error = (await host.ask("channels/open", {"type": "discord", "address": GENERAL | {"channel": "#x"}}))["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32603, "channel_open_failed")
        off = {"dev.defserve/featureSets": {"disabled": [SET]}}
        error = (await host.ask("channels/publish", {**HELLO, "_meta": off}))["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32603, "feature_set_disabled")
        assert host.asked == []
    async with hosting(watcher.server, STATELESS) as host:
        await host.tell("channels/outgoing/complete", host.with_meta(complete("ui")))
        await turns()
        assert [seen[0] for seen in watcher.seen] == ["ui"]


# -- complaints when things are declared -----------------------------------------------------------------


def test_declarations_that_cannot_work_are_refused(discord: Discord):
    chat, other = discord.chat, Server("other", "1")
    with pytest.raises(UsageError, match="belongs to another server"):
        other.channels("x", feature_set=discord.posting)
    with pytest.raises(UsageError, match="already registered"):
        discord.server.channels("discord", feature_set=discord.posting)
    with pytest.raises(UsageError, match="for publish already: send"):
        chat.publish(join_x)
    with pytest.raises(UsageError, match="needs no scope"):
        chat.observe(scope=str)
    with pytest.raises(UsageError, match="direction='up'"):
        odd: Any = "up"
        Channel("x", direction=odd)
    with pytest.raises(UsageError, match="there is no channel"):
        chat.remove("discord:#nowhere")
    with pytest.raises(UsageError, match="there is no channel"):
        chat.update(SHARED)

    def observes(channel: Channel, colour: str) -> None: ...

    with pytest.raises(UsageError, match="observe has no value for the parameter 'colour'"):
        chat.observe(observes)

    def yields(channel: Channel) -> Any:
        yield channel

    with pytest.raises(UsageError, match="yields"):
        chat.observe(yields)


@for_each_row("id", [4711, 0, b"x", ["x"]])
def test_an_id_that_is_not_text_is_refused_at_once_because_hosts_would_refuse_every_channel(id: Any):
    with pytest.raises(UsageError, match=r"id is text(?s:.*)fix: Channel\(id=str\("):
        Channel(id)
    with pytest.raises(UsageError, match="Author.*id is text"):
        Author(id)
    with pytest.raises(UsageError, match="label is text"):
        Channel("x", id)
    for wrong in ("id", "thread", "channel", "author"):
        given: dict[str, Any] = {"channel": "x", "author": "ada", "content": "hi", wrong: id}
        with pytest.raises(UsageError, match=f"Message.*{wrong} is text"):
            ReceivedMessage(**given)


def test_a_timestamp_that_is_a_number_is_refused_with_what_to_write():
    odd: Any = 1_700_000_000
    with pytest.raises(UsageError, match=r"fix: .*datetime\.fromtimestamp"):
        ReceivedMessage("x", "hi", "ada", timestamp=odd)


def test_only_a_channel_can_be_added(discord: Discord):
    odd: Any = "general"
    for verb in (discord.chat.add, discord.chat.update):
        with pytest.raises(UsageError, match=r"not a channel\s+fix: Channel\(\"general\"\)"):
            verb(odd)


def test_decorators_return_the_function_unchanged(discord: Discord):
    def seen(text: str) -> str:
        return text

    assert discord.chat.observe(seen) is seen
    assert discord.chat.observe_chunks(timeout=1)(_seen_chunk) is _seen_chunk


def _seen_chunk(delta: str) -> None: ...
