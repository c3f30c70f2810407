from __future__ import annotations

import asyncio

import pytest

from defserve import Context, Server, State, UsageError
from defserve.state import CannotUndo, Checkpoint
from defserve.stores.store import MemoryStore, StoreChange
from tests.protocols.mcpl.hosts import hosting
from tests.protocols.mcpl.state.state_hosts import SET, Notebook, Notes, notes_of, roll_back
from tests.raw import ERAS, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


@eras
@pytest.mark.req("MCPL-8.5", "MCPL-8.6")
async def test_the_authors_undo_sees_where_it_leads_and_where_it_comes_from(version: str):
    notes = Notes()
    seen: list[tuple[str, int, int]] = []

    @notes.set.on_rollback
    async def undo(to: Checkpoint, ctx: Context) -> None:
        assert isinstance(ctx, Context)
        target, now = await notes.states.at(to), await notes.states.at()
        seen.append((to.id, len(target.notes), len(now.notes)))

    async with hosting(notes.server, version) as host:
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        await host.call("add_note", {"text": "b"})
        result = (await roll_back(host, first))["result"]
        assert (result["checkpoint"], result["success"], "reason" in result) == (first, True, False)
        assert notes_of(await host.call("list_notes")) == ["a"]
    assert seen == [(first, 1, 2)]


@eras
@pytest.mark.req("MCPL-8.6")
async def test_what_cannot_be_undone_is_told_and_nothing_moves(version: str):
    notes = Notes()

    @notes.set.on_rollback
    def undo(to: Checkpoint) -> None:
        raise CannotUndo("External API call cannot be undone")

    async with hosting(notes.server, version) as host:
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        await host.call("add_note", {"text": "b"})
        result = (await roll_back(host, first))["result"]
        assert (result["success"], result["reason"]) == (False, "External API call cannot be undone")
        assert result["checkpoint"] == first
        assert notes_of(await host.call("list_notes")) == ["a", "b"]


async def test_an_undo_that_breaks_is_masked_and_nothing_moves():
    notes = Notes()

    @notes.set.on_rollback
    async def undo(to: Checkpoint) -> None:
        raise ValueError("password 1234")

    async with hosting(notes.server) as host:
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        await host.call("add_note", {"text": "b"})
        result = (await roll_back(host, first))["result"]
        assert result["success"] is False
        assert result["reason"].startswith("internal error (id ")
        assert notes_of(await host.call("list_notes")) == ["a", "b"]


async def test_nothing_is_undone_for_a_checkpoint_that_is_gone():
    notes = Notes()
    undone: list[str] = []

    @notes.set.on_rollback
    async def undo(to: Checkpoint) -> None:
        undone.append(to.id)

    async with hosting(notes.server) as host:
        await host.call("add_note", {"text": "a"})
        assert (await roll_back(host, "chk_old"))["error"]["code"] == -32005
    assert undone == []


@for_each_row("concurrency", ["serial", "branch"])
async def test_the_state_follows_an_undo_during_which_its_checkpoint_grew_too_old(concurrency: str):
    notes, now = Notes(ttl=60.0, concurrency=concurrency), [1_000.0]

    @notes.set.on_rollback
    async def undo(to: Checkpoint) -> None:
        now[0] += 61

    async with hosting(notes.server) as host:
        (await notes.states.trees())._clock = lambda: now[0]
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        second = (await host.call("add_note", {"text": "b"}))["state"]["checkpoint"]
        assert (await roll_back(host, first))["result"]["success"] is True
        assert notes_of(await host.call("list_notes")) == ["a"]
        assert (await roll_back(host, second))["error"]["code"] == -32005
        assert now == [1_061.0]


async def test_the_state_follows_an_undo_during_which_calls_pushed_its_checkpoint_out():
    notes = Notes(keep=2, concurrency="branch")

    @notes.set.on_rollback
    async def undo(to: Checkpoint) -> None:
        for text in "cde":
            await host.call("add_note", {"text": text})
        trees = await notes.states.trees()
        (key,) = await trees.list_trees()
        assert await trees.prune(key) == 3

    async with hosting(notes.server) as host:
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        await host.call("add_note", {"text": "b"})
        assert (await roll_back(host, first))["result"]["success"] is True
        assert notes_of(await host.call("list_notes")) == ["a"]


async def test_a_rollback_may_lead_forward_again():
    async with hosting(Notes().server) as host:
        ids = [(await host.call("add_note", {"text": text}))["state"]["checkpoint"] for text in "abc"]
        for place in (0, 2, 1, 1):
            assert (await roll_back(host, ids[place]))["result"]["success"] is True
            assert notes_of(await host.call("list_notes")) == list("abc"[: place + 1])


async def test_a_rollback_is_finished_although_the_host_no_longer_waits():
    class Slow(MemoryStore):
        begun, gate, slow = asyncio.Event(), asyncio.Event(), False

        async def change(self, change: StoreChange) -> bool:
            if self.slow:
                self.begun.set()
                await self.gate.wait()
            return await super().change(change)

    store = Slow()
    async with hosting(Notes(store=store).server) as host:
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        await host.call("add_note", {"text": "b"})
        store.slow = True
        back = asyncio.create_task(roll_back(host, first))
        await store.begun.wait()
        await host.tell("notifications/cancelled", {"requestId": host._last_id})  # pyright: ignore
        listing = asyncio.create_task(host.call("list_notes"))
        await turns()
        assert not listing.done()
        store.gate.set()
        assert notes_of(await listing) == ["a"]
        back.cancel()


def test_a_wrong_undo_is_refused_when_it_is_declared():
    server = Server("s", "1")
    bare = server.feature_set("a.b", "No state")

    async def undo(to: Checkpoint) -> None: ...
    async def asks(to: Checkpoint, why: str) -> None: ...
    async def holds(to: Checkpoint, book: State[Notebook]) -> None: ...

    with pytest.raises(UsageError, match="no state to roll back"):
        bare.on_rollback(undo)
    notes = Notes(server)
    with pytest.raises(UsageError, match="no value for the parameter 'why'"):
        notes.set.on_rollback(asks)
    with pytest.raises(UsageError, match="parameter 'book'.*\n.*at()"):
        notes.set.on_rollback(holds)
    assert notes.set.on_rollback(undo) is undo
    with pytest.raises(UsageError, match=f"'{SET}' has an on_rollback already"):
        notes.set.on_rollback(undo)
