"""MCPL §14.3: messages come in to whoever has their channels, and to nobody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Context, Server, Text, UsageError
from defserve.auth import StaticTokens
from defserve.client import HttpLink
from defserve.errors import NoBackChannel, PeerError
from defserve.protocols.mcpl.channels.messages import Author, Channel, MessageReceipt, ReceivedMessage
from defserve.protocols.mcpl.peers import everyone
from defserve.protocols.mcpl.vocabulary import AmbiguousPeer, UnknownChannel
from tests.at_address import at_address
from tests.protocols.mcpl.channels.connectors import (
    MESSAGE,
    ROADS,
    SHARED,
    Discord,
    check,
    code_of,
    ids,
    join_x,
    opened,
)
from tests.protocols.mcpl.hosts import MCPL, Host, HostError, hosting, hosting_at, listening, session_of
from tests.raw import HANDSHAKE, STATELESS, text_of, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


# -- incoming --------------------------------------------------------------------------------------------

TWO = [
    ReceivedMessage(
        "discord:#general",
        "What's the status?",
        author=Author("u_777", "Alice"),
        id="dmsg_123",
        thread="t_42",
        timestamp="2026-03-05T10:30:00Z",
        metadata={"mentions": ["@bob"]},
    ),
    ReceivedMessage(
        "discord:#general",
        [Text("I was wondering the same")],
        Author("u_888", "Bob"),
        id="dmsg_124",
        thread="t_42",
        timestamp="2026-03-05T10:30:05Z",
    ),
]
TWO_WIRE = {
    "messages": [
        {
            "channelId": "discord:#general",
            "messageId": "dmsg_123",
            "threadId": "t_42",
            "author": {"id": "u_777", "name": "Alice"},
            "timestamp": "2026-03-05T10:30:00Z",
            "content": [{"type": "text", "text": "What's the status?"}],
            "metadata": {"mentions": ["@bob"]},
        },
        {
            "channelId": "discord:#general",
            "messageId": "dmsg_124",
            "threadId": "t_42",
            "author": {"id": "u_888", "name": "Bob"},
            "timestamp": "2026-03-05T10:30:05Z",
            "content": [{"type": "text", "text": "I was wondering the same"}],
            "metadata": {},
        },
    ]
}


@pytest.mark.req("MCPL-14.3i", "MCPL-B")
@pytest.mark.parametrize("road", ROADS)
async def test_a_batch_comes_in_and_each_message_is_answered_for(discord: Discord, road: str):
    results = [
        {"messageId": "dmsg_124", "accepted": False, "reason": "muted"},
        {"messageId": "dmsg_123", "accepted": True, "conversationId": "conv_123"},
    ]
    async with hosting(discord.server, road=road, answers={"channels/incoming": {"results": results}}) as host:
        await opened(host)
        receipts = await discord.chat.incoming(TWO)
        assert host.list_requested_uris("channels/incoming") == [TWO_WIRE]
        for message in TWO_WIRE["messages"]:
            check(MESSAGE, message)
        session = session_of(discord.server)
        assert receipts == [
            MessageReceipt("dmsg_123", True, "conv_123", session=session),
            MessageReceipt("dmsg_124", False, reason="muted", session=session),
        ]


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [({}, True), (None, True), ({"accepted": False}, False), ({"results": []}, False), ({"results": ["odd"]}, False)],
)
async def test_hosts_answer_in_many_ways(discord: Discord, answer: Any, accepted: bool):
    async with hosting(discord.server, answers={"channels/incoming": lambda _: answer}) as host:
        await opened(host)
        (receipt,) = await discord.chat.incoming(ReceivedMessage("discord:#general", "hi", "u1"))
        assert receipt.accepted is accepted


async def test_a_message_needs_no_more_than_its_words(discord: Discord):
    async with hosting(discord.server, answers={"channels/incoming": {}}) as host:
        await opened(host)
        await discord.chat.incoming(ReceivedMessage("discord:#general", "hi", "u1"))
        (params,) = host.list_requested_uris("channels/incoming")
        check(MESSAGE, params["messages"][0])
        assert params["messages"][0]["author"] == {"id": "u1", "name": "u1"}
        assert "threadId" not in params["messages"][0]


async def test_many_messages_travel_in_batches_in_order(discord: Discord):
    async with hosting(discord.server, answers={"channels/incoming": {}}) as host:
        await opened(host)
        messages = [ReceivedMessage("discord:#general", str(number), "u1", id=str(number)) for number in range(250)]
        receipts = await discord.chat.incoming(messages)
        batches = [
            [m["messageId"] for m in params["messages"]] for params in host.list_requested_uris("channels/incoming")
        ]
        assert [len(batch) for batch in batches] == [100, 100, 50]
        assert [id for batch in batches for id in batch] == [receipt.message_id for receipt in receipts]


async def test_an_error_of_the_host_reaches_the_author(discord: Discord):
    async with hosting(discord.server, answers={"channels/incoming": HostError(-32603, "asleep")}) as host:
        await opened(host)
        with pytest.raises(PeerError, match="asleep"):
            await discord.chat.incoming(ReceivedMessage("discord:#general", "hi", "u1"))


async def test_a_handler_speaks_to_the_session_at_hand(discord: Discord):
    server = Server("echo", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    chat.open(join_x)

    @chat.publish
    async def send(channel: Channel, text: str, ctx: Context) -> str:
        assert ctx.can("channels")
        (receipt,) = await chat.incoming(ReceivedMessage(channel, f"echo of {text}", "echo"))
        return str(receipt.accepted)

    async with (
        hosting(server, answers={"channels/incoming": {}}) as host,
        hosting(server, answers={"channels/incoming": {}}) as other,
    ):
        for one in (host, other):
            await one.ask("channels/open", {"type": "x", "address": {}})
        reply = await host.ask("channels/publish", {"channelId": "x:1", "content": "hello"})
        assert reply["result"] == {"delivered": True, "messageId": "True"}
        (params,) = host.list_requested_uris("channels/incoming")
        assert params["messages"][0]["content"] == [{"type": "text", "text": "echo of hello"}]
        assert other.asked == []


async def test_over_http_a_handler_s_messages_travel_on_the_stream_of_its_request():
    server = Server("echo", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    chat.open(join_x)

    @chat.publish
    async def send(channel: Channel, text: str) -> None:
        await chat.incoming(ReceivedMessage(channel, f"echo of {text}", "echo"))

    # Such a host opens no stream for what belongs to no request.
    async with at_address(server, "http") as url:
        link = HttpLink(url, listens=False)
        deaf = Host(link, HANDSHAKE[-1], {"experimental": {"mcpl": MCPL}}, {"channels/incoming": {}})
        async with listening(deaf, "deaf") as host:
            await host.ask("channels/open", {"type": "x", "address": {}})
            reply = await host.ask("channels/publish", {"channelId": "x:1", "content": "hello"})
            assert reply["result"] == {"delivered": True}
            (params,) = host.list_requested_uris("channels/incoming")
            assert params["messages"][0]["content"] == [{"type": "text", "text": "echo of hello"}]
        await link.aclose()


async def test_a_wrong_message_or_channel_is_a_usage_error(discord: Discord):
    odd: Any = "hello"
    async with hosting(discord.server):
        with pytest.raises(UsageError, match="is not a message"):
            await discord.chat.incoming([odd])
        with pytest.raises(UnknownChannel):
            await discord.chat.incoming(ReceivedMessage("discord:#nowhere", "hi", "u1"), to=session_of(discord.server))
        with pytest.raises(NoBackChannel, match="Unknown channel"):
            await discord.chat.incoming(ReceivedMessage("discord:#nowhere", "hi", "u1"))


# -- two hosts -------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_hosts(server: Server, road: str) -> AsyncGenerator[tuple[Host, Host]]:
    """Alice's and Bob's, of whom the server knows where they come over the network."""
    answers = {"channels/incoming": {}, "channels/register": {}}
    if road == "memory":
        async with hosting(server, answers=answers) as alice, hosting(server, answers=answers) as bob:
            yield alice, bob
        return
    async with (
        at_address(server, road) as url,
        hosting_at(url, token="token-of-alice", answers=answers) as alice,
        hosting_at(url, token="token-of-bob", answers=answers) as bob,
    ):
        yield alice, bob


@pytest.mark.req("MCPL-14.3i", "MCPL-14.3l")
@for_each_row("road", ROADS)
async def test_two_principals_never_see_each_other_s_channels(road: str):
    discord = Discord(Server("discord", "1", auth=StaticTokens({"token-of-alice": "alice", "token-of-bob": "bob"})))
    async with two_hosts(discord.server, road) as (alice, bob):
        await opened(alice, "#alice")
        await opened(bob, "#bob")
        assert (await ids(alice), await ids(bob)) == (["discord:#alice"], ["discord:#bob"])
        for method in ("channels/publish", "channels/close", "channels/open"):
            assert await code_of(bob, method, {"channelId": "discord:#alice", "content": "x"}) == -32023
        # A mixed batch: each message goes to who has its channel.
        messages = [ReceivedMessage(f"discord:#{name}", "hi", "u1", id=name) for name in ("alice", "bob", "alice")]
        receipts = await discord.chat.incoming(messages)
        assert [receipt.message_id for receipt in receipts] == ["alice", "bob", "alice"]
        assert [m["channelId"] for m in alice.list_requested_uris("channels/incoming")[0]["messages"]] == [
            "discord:#alice"
        ] * 2
        assert [m["channelId"] for m in bob.list_requested_uris("channels/incoming")[0]["messages"]] == ["discord:#bob"]
        assert (alice.heard, bob.heard) == ([], [])


async def test_a_message_to_a_channel_object_reaches_only_the_host_that_has_it():
    server = Server("direct", "1")
    chat = server.channels("dm", feature_set=server.feature_set("dm", "Direct"))
    kept: list[Channel] = []

    @chat.open
    def join(address: dict[str, str]) -> Channel:
        kept.append(Channel("dm:1", address=address))
        return kept[-1]

    answers = {"channels/incoming": {}}
    async with hosting(server, answers=answers) as bob:
        async with hosting(server, answers=answers) as alice:
            await alice.ask("channels/open", {"type": "dm", "address": {"user": "alice"}})
            await bob.ask("channels/open", {"type": "dm", "address": {"user": "bob"}})
            await chat.incoming(ReceivedMessage(kept[0], "for Alice", "u1"))
            assert len(alice.asked) == 1
        with pytest.raises(NoBackChannel):
            await chat.incoming(ReceivedMessage(kept[0], "for Alice", "u1"))
        assert bob.asked == []


async def test_where_several_hosts_have_a_channel_the_author_says_whom(discord: Discord):
    discord.chat.add(SHARED)
    answers = {"channels/register": {}, "channels/incoming": {}}
    message = ReceivedMessage(SHARED, "hi", "u1", id="m1")
    async with hosting(discord.server, answers=answers) as alice, hosting(discord.server, answers=answers) as bob:
        sessions = list(discord.server.composition.sessions)
        with pytest.raises(AmbiguousPeer):
            await discord.chat.incoming(message)
        receipts = await discord.chat.incoming(message, to=everyone)
        assert {receipt.session for receipt in receipts} == set(sessions)
        bob.answers["channels/incoming"] = HostError(-32603, "asleep")
        receipts = await discord.chat.incoming(message, to=everyone)
        assert sorted((receipt.accepted, receipt.reason) for receipt in receipts) == [(False, "asleep"), (True, None)]
        bob.answers["channels/incoming"] = {"results": [{"messageId": ["m1"], "accepted": True}]}
        receipts = await discord.chat.incoming(message, to=everyone)
        unsaid = "the host did not mention it"
        assert sorted((receipt.accepted, receipt.reason) for receipt in receipts) == [(False, unsaid), (True, None)]
        bob.answers["channels/incoming"] = {}
        await alice.ask("channels/close", {"channelId": SHARED.id})
        assert len(await discord.chat.incoming(message)) == 1
        assert [len(one.list_requested_uris("channels/incoming")) for one in (alice, bob)] == [3, 4]


# -- without a road back ---------------------------------------------------------------------------------


@for_each_row("inbox", [False, True])
async def test_messages_for_a_host_that_cannot_be_called_wait_in_the_inbox_if_there_is_one(inbox: bool):
    discord = Discord(inbox=inbox)
    discord.chat.add(SHARED)

    @discord.server.tool
    async def say(ctx: Context) -> str:
        able = ctx.can("channels")
        try:
            (receipt,) = await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1", id="m1"))
        except NoBackChannel:
            return f"{able} none"
        return f"{able} {receipt.inbox}"

    async with hosting(discord.server, STATELESS) as host:
        said = text_of(await host.call("say"))
        assert said == ("True inbox://chat.discord" if inbox else "False none")
        if inbox:
            reply = await host.ask("resources/read", {"uri": "inbox://chat.discord"})
            assert '"messageId":"m1"' in reply["result"]["contents"][0]["text"].replace(": ", ":")


async def test_a_host_with_claude_s_channels_is_sent_those_where_the_set_opts_in():
    discord = Discord(claude_channel=True)
    discord.chat.add(SHARED)
    async with hosting(discord.server, mcpl=None, capabilities={"experimental": {"claude/channel": {}}}) as host:
        (receipt,) = await discord.chat.incoming(ReceivedMessage(SHARED, "hi", Author("u1", "Alice"), id="m1"))
        await turns()
        assert receipt.accepted
        (params,) = host.heard_of("notifications/claude/channel")
        assert params["content"] == "hi"
        assert params["meta"]["channel_id"] == SHARED.id and params["meta"]["author"] == "Alice"


@for_each_row(
    "named",
    ["chat:lobby", Channel("chat:lobby"), Channel("chat:lobby", "Another label"), Channel("chat:lobby", metadata={})],
    ids=["id", "bare", "label", "metadata"],
)
async def test_a_channel_is_found_by_its_id_whatever_describes_it(named: Any):
    server = Server("chat", "1")
    chat = server.channels("chat", feature_set=server.feature_set("chat.rooms", "Chats"))
    chat.add(Channel("chat:lobby", "The lobby", address={"room": 1}))
    async with hosting(server) as host:
        host.answers["channels/incoming"] = lambda params: {}
        (receipt,) = await chat.incoming(ReceivedMessage(named, "Hi", author=Author("u1")))
        assert receipt.accepted
        with pytest.raises(NoBackChannel, match="Unknown channel"):
            await chat.incoming(ReceivedMessage(Channel("chat:lobby", address={"room": 2}), "Hi", author=Author("u1")))
