"""`undo`, `redo` and `history` of a state: for authors of tools, with and without hosts that speak MCPL."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from defserve import Server, State, ToolError, UsageError
from defserve.auth import StaticTokens
from defserve.client import Client, Mcpl
from defserve.protocols.mcpl.state.undo import overwrite_in_place
from defserve.state import CannotUndo, Checkpoint, States
from defserve.stores.store import MemoryStore
from tests import asgi
from tests.effort import examples
from tests.raw import ERAS

pytestmark = pytest.mark.anyio

HOST = {"experimental": {"mcpl": {"version": "0.4", "featureSets": True}}}


class Notebook(BaseModel):
    notes: list[str] = []


def undo_server(*, store: Any = "memory:", on_rollback: Any = None, **options: Any) -> tuple[Server, States[Notebook]]:
    server = Server("notes", "1", store=store, auth=options.pop("auth", None))
    notes = server.feature_set("notes.edit", "Edits notes")
    notebooks = notes.state(Notebook, **options)
    if on_rollback is not None:
        notes.on_rollback(on_rollback)

    @notes.tool
    def add(text: str, book: State[Notebook]) -> list[str]:
        book.notes.append(text)
        return book.notes

    @notes.tool
    async def undo(book: State[Notebook], times: int = 1) -> list[str]:
        for _ in range(times):
            if not await notebooks.undo():
                raise ToolError("There is nothing to undo")
        return book.notes

    @notes.tool
    async def redo(book: State[Notebook]) -> list[str]:
        if not await notebooks.redo():
            raise ToolError("There is nothing to redo")
        return book.notes

    @notes.tool
    async def undo_and_add(text: str, book: State[Notebook]) -> list[str]:
        await notebooks.undo()
        book.notes.append(text)
        return book.notes

    @notes.tool
    def drop(book: State[Notebook]) -> list[str]:
        book.notes.pop()
        return book.notes

    @notes.tool
    def get(book: State[Notebook]) -> list[str]:
        return book.notes

    @notes.tool
    async def lengths(limit: int, book: State[Notebook]) -> list[int]:
        return [len((await notebooks.at(one)).notes) for one in await notebooks.history(limit)]

    @server.tool
    async def undo_elsewhere() -> bool:
        return await notebooks.undo()

    return server, notebooks


async def add_all(client: Client, texts: str) -> None:
    for text in texts:
        await client.call("add", text=text)


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("concurrency", ["serial", "branch"])
async def test_each_undo_goes_one_change_further_back_to_the_initial_state(version: str, concurrency: Any):
    server, _ = undo_server(concurrency=concurrency)
    async with server.connect(version=version) as client:
        await add_all(client, "abc")
        assert [await client.call("undo") for _ in range(3)] == [["a", "b"], ["a"], []]
        with pytest.raises(ToolError, match="nothing to undo"):
            await client.call("undo")
        assert [await client.call("redo") for _ in range(3)] == [["a"], ["a", "b"], ["a", "b", "c"]]
        with pytest.raises(ToolError, match="nothing to redo"):
            await client.call("redo")


async def test_a_state_without_a_change_has_nothing_to_undo_or_redo():
    server, _ = undo_server()
    async with server.connect() as client:
        for tool in ("undo", "redo"):
            with pytest.raises(ToolError, match="nothing to"):
                await client.call(tool)


async def test_after_an_undo_a_change_goes_on_from_there_and_ends_what_could_be_redone():
    server, _ = undo_server()
    async with server.connect() as client:
        await add_all(client, "ab")
        await client.call("undo")
        assert await client.call("add", text="x") == ["a", "x"]
        with pytest.raises(ToolError, match="nothing to redo"):
            await client.call("redo")
        assert await client.call("undo") == ["a"]
        assert await client.call("undo") == []


async def test_several_steps_in_one_call_count_even_if_the_content_is_what_it_was():
    server, _ = undo_server()
    async with server.connect() as client:
        await add_all(client, "ab")
        await client.call("drop")
        assert await client.call("undo", times=2) == ["a"]
        assert await client.call("undo") == []
        assert await client.call("redo") == ["a"]
        assert await client.call("redo") == ["a", "b"]


async def test_an_undo_in_a_call_that_fails_changes_nothing():
    server, _ = undo_server()
    async with server.connect() as client:
        await add_all(client, "ab")
        with pytest.raises(ToolError, match="nothing to undo"):
            await client.call("undo", times=3)
        assert await client.call("get") == ["a", "b"]


async def test_what_a_call_changes_after_its_undo_is_one_change():
    server, _ = undo_server()
    async with server.connect() as client:
        await add_all(client, "ab")
        assert await client.call("undo_and_add", text="x") == ["a", "x"]
        assert await client.call("undo") == ["a", "b"]


async def test_the_history_has_the_changes_that_can_be_undone_and_stops_at_its_limit():
    server, _ = undo_server()
    async with server.connect() as client:
        await add_all(client, "abcd")
        assert await client.call("lengths", limit=9) == [4, 3, 2, 1]
        await client.call("undo", times=2)
        assert await client.call("lengths", limit=9) == [2, 1]
        await client.call("add", text="x")
        assert await client.call("lengths", limit=2) == [3, 2]


class CountingStore(MemoryStore):
    reads = 0

    async def get(self, space: Any, names: Any) -> Any:
        self.reads += 1
        return await super().get(space, names)

    def scan(self, space: Any) -> Any:
        raise AssertionError("the whole tree was read")


async def test_an_undo_reads_the_same_however_many_checkpoints_there_are():
    store = CountingStore()
    server, _ = undo_server(store=store)
    used: list[int] = []
    async with server.connect() as client:
        for _ in range(2):
            await add_all(client, "abcdefghij" * 3)
            before = store.reads
            await client.call("undo")
            await client.call("lengths", limit=1)
            used.append(store.reads - before)
    assert used[0] == used[1]


async def test_a_change_whose_parent_was_pruned_cannot_be_undone():
    server, _ = undo_server(keep=2)
    async with server.connect() as client:
        await add_all(client, "abcd")
        assert await client.call("undo") == ["a", "b", "c"]
        with pytest.raises(ToolError, match="nothing to undo"):
            await client.call("undo")


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("keeps", ["host", "checkpoint", None])
async def test_a_host_sees_an_undo_as_a_checkpoint_below_the_one_before_it(version: str, keeps: Any):
    server, _ = undo_server()
    async with server.connect(version=version, mcpl=Mcpl(state=keeps)) as client:
        await add_all(client, "ab")
        assert client.mcpl is not None
        before = client.mcpl.state("notes.edit").checkpoint
        assert await client.call("undo") == ["a"]
        here = client.mcpl.state("notes.edit")
        assert here.checkpoint is not None
        assert here.checkpoint not in (before, None)
        assert here.parents[here.checkpoint] == before
        assert here.content in ({"notes": ["a"]}, None) and (keeps != "host" or here.content is not None)
        assert await client.call("undo") == []
        assert await client.call("redo") == ["a"]


async def test_after_a_host_has_rolled_back_an_undo_goes_back_from_there():
    server, _ = undo_server()
    async with server.connect(version=ERAS[0], mcpl=Mcpl()) as client:
        await add_all(client, "abc")
        assert client.mcpl is not None
        first, second, third = client.mcpl.state("notes.edit").parents
        assert (await client.mcpl.rollback("notes.edit", second)).success
        assert await client.call("undo") == ["a"]
        assert (await client.mcpl.rollback("notes.edit", third)).success
        assert await client.call("undo") == ["a", "b"]
        client.mcpl.branch("notes.edit", first)
        await client.call("add", text="x")
        assert await client.call("undo") == ["a"]


async def test_what_a_host_brought_without_a_checkpoint_is_not_undone_to_the_initial_state():
    server, _ = undo_server()
    async with asgi.living(server.asgi()) as app:
        peer = asgi.Peer(app, ERAS[0], capabilities=HOST)
        await peer.open()
        brought = {"state": {"notes": ["brought"]}}
        added = await peer.ask("tools/call", {"name": "add", "arguments": {"text": "a"}, **brought})
        assert added["result"]["structuredContent"] == {"result": ["brought", "a"]}
        undone = await peer.ask(
            "tools/call",
            {"name": "undo", "arguments": {}, "checkpoint": added["result"]["state"]["checkpoint"]},
        )
        assert undone["result"]["isError"] is True


async def test_callers_who_share_a_state_undo_its_last_change_and_branches_stay_their_own():
    auth = StaticTokens({"token-of-ann": "ann", "token-of-bob": "bob"})
    server, _ = undo_server(per="server", auth=auth)
    async with asgi.living(server.asgi()) as app:
        peers: dict[str, asgi.Peer] = {}
        for who in ("ann", "bob"):
            peers[who] = peer = asgi.Peer(app, ERAS[0], capabilities=HOST)
            peer.token = f"token-of-{who}"
            await peer.open()

        async def call(who: str, tool: str, **more: Any) -> Any:
            params = {"name": tool, "arguments": more.pop("arguments", {}), **more}
            return (await peers[who].ask("tools/call", params))["result"]

        first = await call("ann", "add", arguments={"text": "a"})
        await call("ann", "add", arguments={"text": "b"})
        branched = await call("bob", "add", arguments={"text": "x"}, checkpoint=first["state"]["checkpoint"])
        assert branched["structuredContent"] == {"result": ["a", "x"]}
        back = await call("bob", "undo", checkpoint=branched["state"]["checkpoint"])
        assert back["structuredContent"] == {"result": ["a"]}
        assert (await call("ann", "get"))["structuredContent"] == {"result": ["a", "b"]}
        assert (await call("bob", "undo"))["structuredContent"] == {"result": ["a"]}
        assert (await call("ann", "get"))["structuredContent"] == {"result": ["a"]}


async def test_the_authors_own_undo_runs_first_and_can_refuse():
    told: list[int] = []

    async def refuse(to: Checkpoint) -> None:
        told.append(to.number)
        if len(told) > 1:
            raise CannotUndo("That mail was read")

    server, _ = undo_server(on_rollback=refuse)
    async with server.connect() as client:
        await add_all(client, "abc")
        assert await client.call("undo") == ["a", "b"]
        with pytest.raises(Exception, match="That mail was read"):
            await client.call("undo")
        assert await client.call("get") == ["a", "b"]
    assert told == [2, 1]


async def test_outside_a_call_the_owner_says_whose_change_is_taken_back():
    server, notebooks = undo_server(auth=StaticTokens({"token-of-ann": "ann"}))
    async with asgi.living(server.asgi()) as app:
        peer = asgi.Peer(app, ERAS[0])
        peer.token = "token-of-ann"
        await peer.open()
        await peer.ask("tools/call", {"name": "add", "arguments": {"text": "a"}})
        assert [at.number for at in await notebooks.history(owner="ann")] == [1]
        assert await notebooks.undo(owner="ann") is True
        assert (await notebooks.at(owner="ann")).notes == []
        assert await notebooks.undo(owner="ann") is False
        assert await notebooks.redo(owner="ann") is True
        assert (await notebooks.at(owner="ann")).notes == ["a"]
    with pytest.raises(UsageError, match="owner"):
        await notebooks.undo()


async def test_a_tool_that_does_not_take_the_state_is_told_to(caplog: pytest.LogCaptureFixture):
    server, _ = undo_server()
    async with server.connect() as client:
        await client.call_raw("undo_elsewhere", {})
    assert "take it as a parameter: State[Notebook]" in caplog.text


@dataclass(slots=True)
class Slotted:
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Frozen:
    notes: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("value", "source"),
    [
        (Notebook(notes=["a"]), Notebook(notes=["b"])),
        (Slotted(["a"]), Slotted(["b"])),
        (Frozen(("a",)), Frozen(("b",))),
        (["a"], ["b"]),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_a_value_takes_the_content_of_another_in_place(value: Any, source: Any):
    overwrite_in_place(value, source)
    assert value == source


class Model:
    """What undo should do: a list of contents, and a place in it."""

    def __init__(self) -> None:
        self.line, self.at = [list[str]()], 0

    def add(self, text: str) -> list[str]:
        self.line[self.at + 1 :] = [[*self.line[self.at], text]]
        self.at += 1
        return self.line[self.at]

    def move(self, by: int) -> list[str] | None:
        if not 0 <= self.at + by < len(self.line):
            return None
        self.at += by
        return self.line[self.at]


steps = st.lists(st.sampled_from(["a", "b", "undo", "undo", "redo"]), max_size=24)


@given(steps=steps, keeps=st.sampled_from(["host", "checkpoint", None, "plain"]), era=st.sampled_from(ERAS))
@settings(max_examples=examples(30), deadline=None)
def test_any_sequence_of_changes_undos_and_redos_is_what_a_line_with_a_place_gives(steps: Any, keeps: Any, era: str):
    async def run() -> None:
        server, _ = undo_server()
        model = Model()
        options: dict[str, Any] = {} if keeps == "plain" else {"mcpl": Mcpl(state=keeps)}
        async with server.connect(version=era, **options) as client:
            for step in steps:
                if step in ("undo", "redo"):
                    expected = model.move(-1 if step == "undo" else 1)
                    got = await client.call_raw(step, {})
                    assert got.get("isError", False) is (expected is None)
                else:
                    expected = model.add(step)
                    got = await client.call_raw("add", {"text": step})
                if expected is not None:
                    assert got["structuredContent"] == {"result": expected}
            assert await client.call("lengths", limit=99) == list(range(model.at, 0, -1))

    asyncio.run(run())
