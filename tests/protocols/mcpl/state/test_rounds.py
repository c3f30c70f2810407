"""A call that is repeated with answers, or run again as a task, is the same call: it starts where it did before."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from defserve import Context, Server, dangerous
from defserve.auth.principals import Principal
from defserve.protocols.mcpl.state.ownership import STATE_META_KEY
from defserve.stores.store import MemoryStore
from tests.protocols.mcpl.hosts import Host, Json, hosting
from tests.protocols.mcpl.state.state_hosts import Notebook, Notes, host_as, notes_of, refusal, roll_back
from tests.raw import STATELESS, until

pytestmark = pytest.mark.anyio

ASKABLE: Json = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
BROUGHT: Json = {"notes": [{"id": 1, "text": "brought"}], "title": ""}
REFUSED = "Invalid or expired requestState"
BOB = Principal("bob")


class Asking(Notes):
    """Notes with tools that remember a note, ask, and write down what they remember."""

    def _declare(self) -> None:
        super()._declare()
        self.runs = 0

        async def remember(ctx: Context, book: Notebook) -> None:
            text = await ctx.once("text", lambda: " ".join(note.text for note in book.notes))
            if await ctx.confirm("Keep it?"):
                book.title = text

        @self.set.tool
        async def keep(ctx: Context, book: Annotated[Notebook, self.states]) -> str:
            await remember(ctx, book)
            return book.title

        @self.set.tool(task="optional", retry=3, poll=0.05)
        async def keep_later(ctx: Context, book: Annotated[Notebook, self.states]) -> str:
            text = await ctx.once("text", lambda: " ".join(note.text for note in book.notes))
            self.runs += 1
            self.entered.set()
            await self.gate.wait()
            book.title = f"{text}/{' '.join(note.text for note in book.notes)}"
            return book.title

        @self.set.tool
        @dangerous(confirm=False)
        async def burn(book: Annotated[Notebook, self.states]) -> str:
            return book.title


def asking(store: MemoryStore | None = None, **options: Any) -> Asking:
    return Asking(Server("notes", "1", store=store or MemoryStore(), secret="s" * 32), mode="data", **options)


async def first_round(host: Host, **brought: Any) -> Json:
    """What the second round repeats, with a yes."""
    result = await host.call("keep", **brought)
    (key,) = result["inputRequests"]
    answers = {key: {"action": "accept", "content": {"value": True}}}
    return {"requestState": result["requestState"], "inputResponses": answers}


async def made(host: Host, text: str, **more: Any) -> Json:
    return (await host.call("add_note", {"text": text}, **more))["state"]


def in_meta(**brought: Any) -> Json:
    return {"_meta": {STATE_META_KEY: brought}}


async def test_a_repeated_call_starts_where_its_first_round_did():
    async with hosting(asking().server, STATELESS, capabilities=ASKABLE) as host:
        one, two = await made(host, "one"), await made(host, "two")
        ways: list[Json] = [
            {},
            {"checkpoint": None},
            {"checkpoint": one["checkpoint"]},
            {"checkpoint": two["checkpoint"]},
            {"state": one["data"]},
            {"state": BROUGHT},
            {"state": one["data"], "checkpoint": one["checkpoint"]},
            in_meta(state=two["data"]),
        ]
        for first in ways:
            for second in ways:
                answers = await first_round(host, **first)
                reply = await host.ask("tools/call", {"name": "keep", "arguments": {}, **second, **answers})
                if first is second:
                    assert "result" in reply and not reply["result"].get("isError"), (first, reply)
                else:
                    assert reply.get("error", {}).get("message") == REFUSED, (first, second, reply)


async def test_the_two_places_of_a_state_bind_alike():
    async with hosting(asking().server, STATELESS, capabilities=ASKABLE) as host:
        one = await made(host, "one")
        answers = await first_round(host, checkpoint=one["checkpoint"])
        result = await host.call("keep", **in_meta(checkpoint=one["checkpoint"]), **answers)
        assert result["content"][0]["text"] == "one"


async def test_what_the_first_round_has_seen_is_known_in_the_second():
    """The head is another one by then, so the second round itself sees nothing that was brought."""
    async with hosting(asking().server, STATELESS, capabilities=ASKABLE) as host:
        ours = await made(host, "ours")
        await made(host, "more", state=BROUGHT)
        answers = await first_round(host)
        assert (await roll_back(host, ours["checkpoint"]))["result"]["success"] is True
        result = await host.call("keep", **answers)
        assert result["content"][0]["text"] == "brought more"
        assert refusal(await host.call("burn"))[0] == "state_refused"
        assert (await roll_back(host, ours["checkpoint"]))["result"]["success"] is True
        result = await host.call("keep", **await first_round(host))
        assert result["content"][0]["text"] == "ours"
        assert not (await host.call("burn")).get("isError")


# -- tasks that run again --------------------------------------------------------------------------------


async def left_behind(store: MemoryStore, **brought: Any) -> str:
    """The id of a task whose server has ended before it."""
    notes = asking(store)
    async with host_as(notes.server, BOB, STATELESS, capabilities=ASKABLE) as host:
        id = (await host.call("keep_later", **brought))["taskId"]
        await until(notes.entered.is_set)
    return id


async def ended(host: Host, id: str, **more: Any) -> Json:
    async with asyncio.timeout(20):
        while True:
            task = (await host.ask("tasks/get", {"taskId": id, **more}))["result"]
            if task["status"] != "working":
                return task
            await asyncio.sleep(0.005)


async def test_a_task_that_runs_again_starts_where_it_did_whatever_the_one_who_looks_brings():
    store = MemoryStore()
    async with host_as(asking(store).server, BOB, STATELESS, capabilities=ASKABLE) as host:
        one, two = await made(host, "one"), await made(host, "two")
    for brought in ({"checkpoint": one["checkpoint"]}, in_meta(checkpoint=one["checkpoint"])):
        id = await left_behind(store, **brought)
        notes = asking(store)
        notes.gate.set()
        async with host_as(notes.server, BOB, STATELESS, capabilities=ASKABLE) as host:
            task = await ended(host, id, **in_meta(checkpoint=two["checkpoint"]))
            assert task["result"]["content"][0]["text"] == "one/one" and notes.runs == 1
            assert task["result"]["state"]["parent"] == one["checkpoint"]


async def test_a_task_that_runs_again_for_a_host_without_state_is_still_that_of_its_first_host():
    store = MemoryStore()
    async with host_as(asking(store).server, BOB, STATELESS, capabilities=ASKABLE) as host:
        one, _ = await made(host, "one"), await made(host, "two")
    id = await left_behind(store, checkpoint=one["checkpoint"])
    notes = asking(store)
    notes.gate.set()
    async with host_as(notes.server, BOB, STATELESS, capabilities=ASKABLE, mcpl=None) as host:
        assert (await ended(host, id))["result"]["content"][0]["text"] == "one/one"


async def test_what_the_first_run_of_a_task_has_seen_is_known_in_the_next():
    store = MemoryStore()
    async with host_as(asking(store).server, BOB, STATELESS, capabilities=ASKABLE) as host:
        ours = await made(host, "ours")
        await made(host, "more", state=BROUGHT)
    id = await left_behind(store)
    notes = asking(store)
    notes.gate.set()
    async with host_as(notes.server, BOB, STATELESS, capabilities=ASKABLE) as host:
        assert (await roll_back(host, ours["checkpoint"]))["result"]["success"] is True
        assert (await ended(host, id))["result"]["content"][0]["text"] == "brought more/ours"
        assert refusal(await host.call("burn"))[0] == "state_refused"
        assert notes_of(await host.call("list_notes")) == ["ours"]
