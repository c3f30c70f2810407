"""What MGP decides and tells in one process holds in all: grants, access entries, subscriptions, latest events."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Server, moderate
from defserve.auth import StaticTokens
from defserve.server import AccessPolicy, Entry, sharing
from tests.asgi import Exchange, Peer, last, text
from tests.raw import STATELESS
from tests.serve.http.shared.group import Client, Group, becomes
from tests.waiting import until

pytestmark = pytest.mark.anyio

TOKENS = StaticTokens({"ada": "ada", "ada-2": "ada", "root": {"principal": "root", "scopes": ["admin"]}})
SPEAKS = {"mgp": {"version": "0.3.0", "extensions": ["permissions", "access_control", "events"]}}


def declare(server: Server) -> None:
    @server.tool
    @moderate("memory.write")
    def note() -> str:
        return "noted"

    server.event_channel("news")


async def started(group: Group, *names: str, **options: Any) -> Client:
    for name in names:
        await group.start(name, declare=declare, auth=TOKENS, options={"permissions": "config_only", **options})
    return await group.client(names[0], token="ada", capabilities=SPEAKS)


async def is_refused(peer: Peer, tool: str = "note") -> bool:
    reply = await peer.ask("tools/call", {"name": tool, "arguments": {}})
    return "error" in reply or bool(reply["result"].get("isError"))


def told(stream: Exchange) -> list[tuple[int, Any]]:
    return [(each["params"]["sequence"], each["params"]["data"]) for each in stream.messages if "params" in each]


async def test_a_grant_given_in_one_process_holds_in_another_and_in_one_that_starts_later(pair: Group):
    client = await started(pair, "one", "two")
    assert await is_refused(client.at("two"))
    await client.at("one").ask("mgp/permission/grant", {"grants": {"memory.write": "approved"}})
    await client.knows("two", lambda log: not log.is_stale)
    await becomes(lambda: is_refused(client.at("two")), False)
    await pair.start("three", declare=declare, auth=TOKENS, options={"permissions": "config_only"})
    assert not await is_refused(client.at("three"))
    # It belongs to the token that gave it, everywhere.
    other = Peer(pair["three"].app)
    other.session, other.token, other._last_id = client.session, "ada-2", 9000
    assert await is_refused(other)
    await client.at("three").ask("mgp/permission/grant", {"grants": {"memory.write": "denied"}})
    for name in ("one", "two"):
        await becomes(lambda name=name: is_refused(client.at(name)), True)


async def test_an_access_entry_decided_in_one_process_holds_in_all(pair: Group):
    def access() -> AccessPolicy:
        return AccessPolicy("opt-in", [Entry("server_grant", "ada")], admin_scopes=["admin"])

    client = await started(pair, "one", access=access(), granted=["memory.write"])
    await pair.start("two", declare=declare, auth=TOKENS, options={"access": access(), "granted": ["memory.write"]})
    admin = await pair.client("two", token="root", capabilities=SPEAKS)
    about = {"server_id": "web", "agent_id": "ada"}
    assert not await is_refused(client.at("one"), "who")
    denied = {**about, "entry_type": "tool_grant", "tool_name": "who", "permission": "deny"}
    assert "result" in await admin.at("two").ask("mgp/access/grant", denied)
    await becomes(lambda: is_refused(client.at("one"), "who"), True)
    listed = await client.at("one").ask("tools/list", {})
    assert "who" not in [tool["name"] for tool in listed["result"]["tools"]]
    # Also one that was declared: it is gone in a process that starts later.
    revoked = await admin.at("two").ask("mgp/access/revoke", {**about, "entry_type": "server_grant"})
    assert revoked["result"]["revoked"] is True
    await becomes(lambda: is_refused(client.at("one"), "speaks"), True)
    await pair.start("three", declare=declare, auth=TOKENS, options={"access": access()})
    assert await is_refused(client.at("three"), "speaks")


async def test_an_event_reaches_the_subscribers_of_all_processes_once_and_its_numbers_go_on(pair: Group):
    client = await started(pair, "one", "two")
    stream = await client.at("two").listen().started()
    await client.at("one").ask("mgp/events/subscribe", {"channels": ["news"]})
    channel = {name: pair[name].server.mgp.events.channels["news"] for name in ("one", "two")}
    for number, name in enumerate(("one", "two", "two")):
        channel[name].emit_now(number)
        await stream.until(lambda number=number: len(told(stream)) == number + 1)
    await pair["one"].kill()  # it told the session so far
    await client.at("two").ask("ping")
    pair["two"].app.streamable.logs.find_log(client.session).is_stale = True
    await client.at("two").call("who")  # the other takes it over
    channel["two"].emit_now(3)
    await stream.until(lambda: len(told(stream)) == 4)
    assert told(stream) == [(1, 0), (2, 1), (3, 2), (4, 3)]
    stream.leave()
    await stream.ended()


async def test_an_event_that_is_too_large_to_be_shared_does_not_disturb_the_numbers_of_others(pair: Group):
    client = await started(pair, "one", "two")
    stream = await client.at("one").listen().started()
    await client.at("one").ask("mgp/events/subscribe", {"channels": ["news"]})
    await client.knows("two", lambda log: "news" in str(log.known))
    channel = {name: pair[name].server.mgp.events.channels["news"] for name in ("one", "two")}
    large = "x" * (sharing.MAX_EVENT_BYTES + 1)
    for name, data in (("one", 1), ("two", large), ("two", 2), ("one", large), ("one", 3)):
        channel[name].emit_now(data)
        if name == "one" or data != large:
            before = len(told(stream))
            await stream.until(lambda before=before: len(told(stream)) > before)
    # It reaches the sessions that its process owns.
    assert told(stream) == [(1, 1), (2, 2), (3, large), (4, 3)]
    stream.leave()
    await stream.ended()


async def test_an_event_for_a_principal_reaches_it_wherever_it_is_connected_and_nobody_else(pair: Group):
    ada = await started(pair, "one", "two")
    root = await pair.client("two", token="root", capabilities=SPEAKS)
    streams = [await each.at("two").listen().started() for each in (ada, root)]
    for each in (ada, root):
        await each.at("two").ask("mgp/events/subscribe", {"channels": ["news"]})
    for at, to in (("one", "ada"), ("two", "root"), ("one", None)):
        pair[at].server.mgp.events.channels["news"].emit_now(str(to), to=to)
    for stream in streams:
        await stream.until(lambda stream=stream: len(told(stream)) == 2)
    assert [sorted(data for _, data in told(stream)) for stream in streams] == [["None", "ada"], ["None", "root"]]
    for stream in streams:
        stream.leave()
        await stream.ended()


async def test_every_process_knows_the_latest_events_in_the_same_order(pair: Group):
    await started(pair, "one", "two")
    for number in range(6):
        pair[("one", "two")[number % 2]].server.mgp.events.channels["news"].emit_now(number)
    replies = []
    for name in ("one", "two"):
        peer = Peer(pair[name].app, STATELESS, {"extensions": {"dev.cloto/mgp": SPEAKS["mgp"]}})
        peer.token = "ada"
        await until(lambda name=name: len(pair[name].server.mgp.events.recent.list_events_after(None)[0]) == 6)
        replies.append((await peer.ask("mgp/events/replay", {"channels": ["*"]}))["result"]["events"])
    assert replies[0] == replies[1]
    assert sorted(event["data"] for event in replies[0]) == list(range(6))


async def test_the_answer_to_a_callback_may_reach_another_process_and_counts_once(pair: Group):
    for name in ("one", "two"):
        await pair.start(name, auth=TOKENS)
    speaks = {"mgp": {"version": "0.3.0", "extensions": ["callbacks"]}}
    client = await pair.client("one", token="ada", capabilities=speaks)
    call = client.at("one").begin_call("asks")
    asked = await call.next()
    answer = {"callback_id": asked["params"]["callback_id"], "response": "Ada"}
    stranger = await pair.client("two", token="root", capabilities=speaks)
    respond = "mgp/callback/respond"
    await until(lambda: pair["one"].link.is_written)
    unknown = {**answer, "callback_id": f"{pair['one'].link.worker}.1.unknown"}
    for peer, given in ((stranger.at("two"), {**answer, "response": "Eve"}), (client.at("two"), unknown)):
        assert "callback_not_pending" in str((await peer.ask(respond, given))["error"])
    assert (await client.at("two").ask(respond, answer))["result"] == {"accepted": True}
    again = await client.at("two").ask(respond, {**answer, "response": "Bob"})
    assert "callback_not_pending" in str(again["error"])
    await call.ended()
    assert text(last(call)) == "one heard Ada"


async def test_the_answer_to_a_callback_that_nobody_gets_is_refused(pair: Group):
    for name in ("one", "two"):
        await pair.start(name, auth=TOKENS)
    speaks = {"mgp": {"version": "0.3.0", "extensions": ["callbacks"]}}
    client = await pair.client("one", token="ada", capabilities=speaks)
    call = client.at("one").begin_call("asks")
    asked = (await call.next())["params"]["callback_id"]
    one = pair["one"].link
    await until(lambda: one.is_written)
    await one._redis.hset(f"{one._prefix}size:mail:{one.worker}", "added", 64 * 1024 * 1024)  # its mailbox is full
    for id, refusal in ((f"{'0' * 12}.1.x", "callback_not_pending"), (asked, "store_unavailable")):
        told = await client.at("two").ask("mgp/callback/respond", {"callback_id": id, "response": "Ada"})
        assert refusal in str(told["error"])
    await client.at("one").ask("mgp/callback/respond", {"callback_id": asked, "response": "Ada"})
    assert text(last(await call.ended())) == "one heard Ada"
