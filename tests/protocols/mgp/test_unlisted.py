"""Who confirms a dangerous call of a tool that its caller's list does not show. Whoever asks its own user by the list
cannot know of it, so this server asks, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from defserve import Server, dangerous
from defserve.code_mode import CodeMode
from defserve.search.ranking import Search
from tests.protocols.mgp.callers import Trail, code_of, speaking
from tests.protocols.mgp.test_confirmation import ASKS, MGP, SESSION, next_message
from tests.raw import ERAS, STATELESS, Json, Raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PERSON = {"action": "accept", "content": {"value": True}}


def searched() -> Server:
    return Server("disks", "1", audit=Trail(), search="always")


def coded() -> Server:
    return Server("disks", "1", audit=Trail(), code_mode=CodeMode(list_tools=False))


def listing() -> Server:
    return Server("disks", "1", audit=Trail())


def pinning() -> Server:
    return Server("disks", "1", audit=Trail(), search=Search(level="L3", pinned=["wipe"]))


def itself(name: str) -> Json:
    return {"name": name, "arguments": {"disk": "sda"}}


def inside(name: str) -> Json:
    return {"name": name, "arguments": {"name": "wipe", "arguments": {"disk": "sda"}}}


# How a server hides a tool, and by which name it is called → whether the caller's list shows that name.
HIDDEN: list[tuple[Callable[[], Server], Json, bool]] = [
    (searched, itself("wipe"), False),
    (searched, inside("mgp.tools.call"), False),
    (searched, inside("mgp/tools/call"), False),
    (searched, inside("mgp_tools_call"), True),
    (coded, itself("wipe"), False),
    (listing, itself("wipe"), True),
    (pinning, itself("wipe"), True),
    (pinning, inside("mgp.tools.call"), False),
]


def wiping(make: Callable[[], Server]) -> tuple[Server, list[str]]:
    server, wiped = make(), list[str]()

    @server.tool
    @dangerous
    def wipe(disk: str) -> str:
        wiped.append(disk)
        return "wiped"

    return server, wiped


async def called(peer: Raw, params: Json) -> tuple[Json, list[str]]:
    """The reply to a call, and the questions that a person has agreed to on the way."""
    asked: list[str] = []
    if peer.version == STATELESS:
        reply = await peer.ask("tools/call", params)
        while reply.get("result", {}).get("resultType") == "input_required":
            ((key, question),) = reply["result"]["inputRequests"].items()
            asked.append(question["params"]["message"])
            more = {"inputResponses": {key: PERSON}, "requestState": reply["result"]["requestState"]}
            reply = await peer.ask("tools/call", params | more)
        return reply, asked
    id = await peer.begin("tools/call", params)
    while (message := await next_message(peer)).get("id") != id:
        if message.get("method") == "elicitation/create":
            asked.append(message["params"]["message"])
            await peer.send({"jsonrpc": "2.0", "id": message["id"], "result": PERSON})
    return message, asked


@for_each_row("version", ERAS)
@for_each_row(("make", "params", "is_shown"), HIDDEN)
async def test_a_client_confirms_by_itself_only_what_its_list_shows(
    make: Callable[[], Server], params: Json, is_shown: bool, version: str
):
    server, wiped = wiping(make)
    async with speaking(server, version, MGP, capabilities=ASKS) as peer:
        _, asked = await called(peer, params)
        assert (asked, wiped) == ([] if is_shown else ["Run wipe?\n  disk: sda"], ["sda"])


@for_each_row("version", ERAS)
@for_each_row("extensions", [MGP, ()])
@for_each_row(("make", "params", "is_shown"), HIDDEN)
async def test_what_is_not_listed_is_refused_to_a_client_that_cannot_be_asked(
    make: Callable[[], Server], params: Json, is_shown: bool, extensions: Any, version: str
):
    server, wiped = wiping(make)
    async with speaking(server, version, extensions) as peer:
        reply, _ = await called(peer, params)
        assert code_of(reply) == (None if is_shown else "confirmation_required")
        assert wiped == (["sda"] if is_shown else [])


async def test_a_tool_that_was_loaded_is_listed_and_its_client_confirms_it():
    server, wiped = wiping(searched)
    async with speaking(server, SESSION, MGP, capabilities=ASKS) as peer:
        assert len((await called(peer, itself("wipe")))[1]) == 1
        assert (await called(peer, itself("wipe")))[1] == []
    assert wiped == ["sda", "sda"]
