"""MCPL §14.2–14.3: a host is told which channels it has, when it is ready and when that changes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import NoBackChannel, PeerError
from defserve.protocols.mcpl.channels.messages import Channel, ReceivedMessage
from defserve.protocols.mcpl.vocabulary import ChannelNotPermitted
from tests.protocols.mcpl.channels.connectors import (
    DESCRIPTOR,
    GENERAL,
    GENERAL_WIRE,
    HELLO,
    NEWS,
    ROADS,
    SET,
    SHARED,
    Discord,
    DiscordAddress,
    check,
    code_of,
    ids,
    opened,
)
from tests.protocols.mcpl.hosts import MCPL, MCPL_05, Host, HostError, Json, hosting, session_of
from tests.raw import text_of, turns, until

pytestmark = pytest.mark.anyio


# -- registering -----------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.3r", "MCPL-14.2")
@pytest.mark.parametrize("road", ROADS)
async def test_channels_are_registered_when_the_host_is_ready(discord: Discord, road: str):
    address = DiscordAddress(guild="acme", channel="#general")
    described = Channel(
        "discord:#general",
        "#general (Acme Discord)",
        "outbound",
        address=address,
        metadata={"serverId": "discord-connector"},
    )
    discord.chat.add(described)
    async with hosting(discord.server, road=road, answers={"channels/register": {}}) as host:
        (params,) = await host.until_asked("channels/register")
        assert params == {
            "channels": [GENERAL_WIRE | {"direction": "outbound", "metadata": {"serverId": "discord-connector"}}]
        }
        check(DESCRIPTOR, params["channels"][0])


async def test_a_host_that_refuses_the_registration_can_still_list(discord: Discord, caplog: pytest.LogCaptureFixture):
    discord.chat.add(SHARED)
    async with hosting(discord.server, answers={"channels/register": HostError(-32603, "not now")}) as host:
        await host.until_asked("channels/register")
        await until(lambda: "not now" in caplog.text)
        assert await ids(host) == ["discord:#news"]


@pytest.mark.parametrize("channels", [False, {"register": False}])
async def test_a_host_that_refuses_channels_is_told_of_none(discord: Discord, channels: Any):
    discord.chat.add(SHARED)
    async with hosting(discord.server, mcpl={**MCPL, "channels": channels}) as host:
        discord.chat.add(Channel("discord:#more"))
        await turns()
        assert (host.asked, host.heard) == ([], [])


SILENT = {key: value for key, value in MCPL.items() if key != "channels"}


async def test_a_host_that_is_silent_about_channels_is_asked_once(discord: Discord):
    discord.chat.add(SHARED)
    async with hosting(discord.server, mcpl=SILENT) as host:
        await host.until_asked("channels/register")
        await turns()
        discord.chat.add(Channel("discord:#more"))
        await turns()
        assert (len(host.asked), host.heard) == (1, [])
        with pytest.raises(NoBackChannel, match="does not offer channels"):
            await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1"))


async def test_a_host_that_serves_channels_without_offering_them_gets_them(discord: Discord):
    discord.chat.add(SHARED)
    answers = {"channels/register": {}, "channels/incoming": {"results": [{"messageId": "m1", "accepted": True}]}}
    async with hosting(discord.server, mcpl=SILENT, answers=answers) as host:
        await host.until_asked("channels/register")
        (receipt,) = await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1", id="m1"))
        assert receipt.accepted


async def test_a_host_that_only_cannot_list_its_channels_still_gets_them(discord: Discord):
    discord.chat.add(SHARED)
    answers = {"channels/register": {}, "channels/incoming": {}}
    async with hosting(discord.server, mcpl=SILENT, answers=answers):
        with pytest.raises(PeerError):
            await discord.chat.host_channels()
        (receipt,) = await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1", id="m1"))
        assert receipt.accepted


async def test_a_host_of_0_5_is_told_after_its_receipt(discord: Discord):
    discord.chat.add(SHARED)
    answers = {"channels/register": {"results": [{"id": SHARED.id, "accepted": True}]}}
    async with hosting(discord.server, mcpl=MCPL_05, answers=answers) as host:
        await turns()
        assert host.asked == []
        host.frames.clear()
        await host.grant("channels.register")
        assert host.asked == []  # the set needs more than that
        await host.grant()
        assert host.list_requested_uris("channels/register") == [{"channels": [NEWS]}]
        assert host.frames == ["reply", "reply", "channels/register"]


@pytest.mark.req("MCPL-05")
@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ({"results": [{"id": "discord:#news", "accepted": True}]}, ["discord:#a"]),
        ({"results": [{"id": ["odd"]}, {"id": "discord:#news", "accepted": True}]}, ["discord:#a"]),
        (
            {"results": [{"id": "discord:#a", "accepted": True}, {"id": "discord:#news", "accepted": False}]},
            ["discord:#news"],
        ),
        ({"registered": ["discord:#a"]}, ["discord:#news"]),
        ({"registered": [], "results": [{"id": "discord:#a", "accepted": True}]}, ["discord:#news"]),
        ({}, []),
    ],
)
async def test_a_host_of_0_5_judges_every_channel(discord: Discord, answer: Json, refused: list[str]):
    channels = [SHARED, Channel("discord:#a")]
    for channel in channels:
        discord.chat.add(channel)
    async with hosting(
        discord.server, mcpl=MCPL_05, answers={"channels/register": answer, "channels/incoming": {}}
    ) as host:
        await host.grant()
        for channel in channels:
            if channel.id in refused:
                with pytest.raises(ChannelNotPermitted):
                    await discord.chat.incoming(ReceivedMessage(channel, "hi", "u1"), to=session_of(discord.server))
            else:
                await discord.chat.incoming(ReceivedMessage(channel, "hi", "u1"), to=session_of(discord.server))


@pytest.mark.req("MCPL-05")
@pytest.mark.parametrize("knows", [True, False])
async def test_a_host_of_0_5_is_asked_about_changes(discord: Discord, knows: bool):
    answers = (
        {"channels/changed": {"results": [{"id": SHARED.id, "accepted": False, "reason": "full"}]}} if knows else {}
    )
    async with hosting(discord.server, mcpl=MCPL_05, answers=answers) as host:
        await host.grant()
        discord.chat.add(SHARED)
        change = {"added": [NEWS], "removed": [], "updated": []}
        assert await host.until_asked("channels/changed") == [change]
        await turns()
        assert host.heard_of("channels/changed") == ([] if knows else [change])
        if knows:
            with pytest.raises(ChannelNotPermitted):
                await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1"), to=session_of(discord.server))


@pytest.mark.req("MCPL-05")
async def test_a_grant_that_comes_later_registers_then(discord: Discord):
    discord.chat.add(SHARED)
    async with hosting(discord.server, mcpl=MCPL_05, answers={"channels/register": {}}) as host:
        await host.grant("tools")
        assert host.asked == []
        for _ in range(2):  # a host that takes it back has forgotten
            await host.grant("tools")
            await host.grant()
        assert host.list_requested_uris("channels/register") == [{"channels": [NEWS]}] * 2


@pytest.mark.req("MCPL-14.3c")
@pytest.mark.parametrize("road", ROADS)
async def test_changes_are_told_at_runtime(discord: Discord, road: str):
    chat = discord.chat
    chat.add(SHARED)
    async with hosting(discord.server, road=road, answers={"channels/register": {}}) as host:
        await host.until_asked("channels/register")
        chat.add(Channel("discord:#random", "Random"))
        chat.update(Channel("discord:#news", "Old news"))
        chat.remove("discord:#random")
        await until(lambda: len(host.heard_of("channels/changed")) == 3)
        random = {**NEWS, "id": "discord:#random", "label": "Random"}
        assert host.heard_of("channels/changed") == [
            {"added": [random], "removed": [], "updated": []},
            {"added": [], "removed": [], "updated": [{**NEWS, "label": "Old news"}]},
            {"added": [], "removed": ["discord:#random"], "updated": []},
        ]


async def test_a_channel_may_be_added_from_a_thread(discord: Discord):
    async with hosting(discord.server) as host:
        thread = threading.Thread(target=discord.chat.add, args=(SHARED,))
        thread.start()
        await until(lambda: bool(host.heard_of("channels/changed")))
        thread.join()
        assert host.heard_of("channels/changed") == [{"added": [NEWS], "removed": [], "updated": []}]


async def test_the_channels_of_a_set_come_and_go_with_it(discord: Discord):
    discord.chat.add(SHARED)
    async with hosting(discord.server, answers={"channels/register": {}}) as host:
        await host.until_asked("channels/register")
        await host.update(disabled=[SET])
        assert await ids(host) == []
        assert await code_of(host, "channels/publish", HELLO | {"channelId": SHARED.id}) == -32001
        await host.update(enabled=[SET])
        assert await ids(host) == [SHARED.id]
        discord.server.mcpl.remove(SET)
        await turns()
        assert await code_of(host, "channels/publish", HELLO | {"channelId": SHARED.id}) == -32023
        changes = [(len(c["added"]), c["removed"]) for c in host.heard_of("channels/changed")]
        assert changes == [(0, [SHARED.id]), (1, []), (0, [SHARED.id])]


# -- listing ---------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.3l")
@pytest.mark.parametrize("road", ROADS)
async def test_channels_are_listed_both_ways(discord: Discord, road: str):
    discord.chat.add(SHARED)
    ui = {"id": "ui", "type": "host", "label": "Window", "direction": "outbound"}
    answers = {"channels/register": {}, "channels/list": {"channels": [ui, {"id": "bare", "direction": "sideways"}]}}

    @discord.server.tool
    async def asks() -> str:
        return ", ".join(f"{one.id} {one.type} {one.direction}" for one in await discord.chat.host_channels())

    async with hosting(discord.server, road=road, answers=answers) as host:
        await opened(host)
        assert (await host.ask("channels/list", {}))["result"] == {"channels": [NEWS, GENERAL_WIRE]}
        assert await discord.chat.host_channels(to=session_of(discord.server)) == [
            Channel("ui", "Window", "outbound", type="host"),
            Channel("bare"),
        ]
        assert host.list_requested_uris("channels/list") == [{}]
        assert text_of(await host.call("asks")) == "ui host outbound, bare None bidirectional"


@pytest.mark.parametrize("answer", [{}, {"channels": "ui"}, {"channels": [{"id": ""}]}, {"channels": [5]}])
async def test_a_host_that_answers_no_list_is_at_fault(discord: Discord, answer: Json):
    async with hosting(discord.server, answers={"channels/list": answer}):
        with pytest.raises(PeerError, match="wrong shape"):
            await discord.chat.host_channels()


# -- whatever happens ------------------------------------------------------------------------------------


class Mirror:
    """What a host believes to have, from what it was told and what it asked for itself."""

    def __init__(self, host: Host) -> None:
        self.host, self.believed, self._heard, self._asked = host, dict[str, Json](), 0, 0

    def catch_up(self) -> None:
        registered = self.host.list_requested_uris("channels/register")
        changes = self.host.heard_of("channels/changed") + self.host.list_requested_uris("channels/changed")
        for params in registered[self._asked :]:
            self.believed |= {one["id"]: one for one in params["channels"]}
        for change in changes[self._heard :]:
            assert not {one["id"] for one in change["added"]} & self.believed.keys()
            assert {*change["removed"], *(one["id"] for one in change["updated"])} <= self.believed.keys()
            self.believed |= {one["id"]: one for one in (*change["added"], *change["updated"])}
            for id in change["removed"]:
                del self.believed[id]
        self._asked, self._heard = len(registered), len(changes)


WORDS = st.sampled_from(["add", "remove", "rename", "open", "close", "reopen", "enable", "disable"])


@pytest.mark.slow
@given(st.lists(st.tuples(WORDS, st.integers(0, 2)), max_size=25), st.sampled_from(["0.4", "0.5"]))
def test_what_a_host_was_told_is_what_there_is(steps: list[tuple[str, int]], version: str):
    async def act(word: str, number: int, discord: Discord, mirror: Mirror) -> None:
        host, id = mirror.host, f"discord:#{number}"
        label, shared = len(host.heard), discord.server.mcpl.channels.directory.shared
        if word == "add" and id not in shared:
            discord.chat.add(Channel(id, str(label)))
        elif word == "remove" and id in shared:
            discord.chat.remove(id)
        elif word == "rename" and id in shared:
            discord.chat.update(Channel(id, f"renamed {label}"))
        elif word in ("enable", "disable"):
            if word == "enable" and host.is_05:
                await host.grant()
            else:
                await host.update(**{f"{word}d": [SET]})
        elif word in ("open", "reopen"):
            by_address = {"type": "discord", "address": GENERAL | {"channel": f"#{number}"}}
            params = {"channelId": id} if word == "reopen" else by_address
            reply = await host.ask("channels/open", params)
            mirror.catch_up()
            if "result" in reply:
                mirror.believed[id] = reply["result"]["channel"]
        elif word == "close" and "result" in await host.ask("channels/close", {"channelId": id}):
            mirror.catch_up()
            del mirror.believed[id]

    async def run() -> None:
        discord = Discord()
        answers: Json = {"channels/register": {}, "channels/changed": {}}
        async with hosting(discord.server, mcpl=MCPL if version == "0.4" else MCPL_05, answers=answers) as host:
            mirror = Mirror(host)
            for word, number in steps:
                await act(word, number, discord, mirror)
                await turns()
                mirror.catch_up()
                reply = await host.ask("channels/list")
                listed = [] if "error" in reply else reply["result"]["channels"]
                assert ("error" in reply) <= host.is_05
                assert mirror.believed == {one["id"]: one for one in listed}

    asyncio.run(run())
