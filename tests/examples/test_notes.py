from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import jsonpatch
import pytest

from defserve.client import Answers, Client
from defserve.errors import PeerError, ToolError

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

SET = "notes.edit"
MCPL: dict[str, Any] = {"experimental": {"mcpl": {"version": "0.4", "featureSets": True}}}
UNOWNED = "cannot be told apart"


@pytest.fixture
def kept_in(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_STORE", store)


class Notebook:
    """A host's side: it tracks checkpoints, applies patches and sends back what it has."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.at: str | None = None
        self.known: dict[str | None, Any] = {}

    async def call(self, tool: str, **arguments: Any) -> Any:
        brought = {"checkpoint": self.at} | ({"state": self.known[self.at]} if self.at in self.known else {})
        result = await self.client.call_raw(tool, arguments, fields=brought)
        state = result.get("state")
        if state is not None:
            assert state["featureSet"] == SET
            assert state["parent"] == self.at
            before = self.known.get(state["parent"])
            self.at = state["checkpoint"]
            self.known[self.at] = state["data"] if "data" in state else jsonpatch.apply_patch(before, state["patch"])
        return await self.client.value(tool, result)

    async def roll_back(self, checkpoint: str) -> dict[str, Any]:
        result = await self.client.request("state/rollback", {"featureSet": SET, "checkpoint": checkpoint})
        self.at = checkpoint
        return result


@pytest.mark.req("MCPL-8.2", "MCPL-8.3", "MCPL-8.4", "MCPL-8.5")
@pytest.mark.usefixtures("kept_in")
async def test_a_host_goes_back_and_branches(connect_to: ConnectTo):
    async with connect_to("notes", capabilities=MCPL) as client:
        book = Notebook(client)
        assert await book.call("list_notes") == []
        marks = [book.at]
        for text in ("Remember to…", "Buy groceries", "Call Alice"):
            assert await book.call("add_note", text=text) == "Note added"
            marks.append(book.at)
        with pytest.raises(ToolError, match="an empty note"):
            await book.call("add_note", text="")
        assert await book.call("list_notes") == ["Remember to…", "Buy groceries", "Call Alice"]
        assert (await book.roll_back(str(marks[1])))["success"] is True
        await book.call("add_note", text="Buy bread")
        assert await book.call("list_notes") == ["Remember to…", "Buy bread"]
        await book.roll_back(str(marks[3]))
        assert await book.call("list_notes") == ["Remember to…", "Buy groceries", "Call Alice"]
        with pytest.raises(PeerError, match="Checkpoint not found"):
            await book.roll_back("chk_old")


async def test_a_plain_client_has_a_notebook_if_it_can_be_told_apart(connect_to: ConnectTo, transport: str):
    async with connect_to("notes") as client:
        if client.stateless and transport in ("http", "websocket"):
            with pytest.raises(ToolError, match=UNOWNED):
                await client.call("add_note", text="a")
            return
        for text in "ab":
            await client.call("add_note", text=text)
        with pytest.raises(ToolError):
            await client.call("add_note", text="")
        assert await client.call("list_notes") == ["a", "b"]
        assert await client.call("versions") == [1, 2]


async def test_notes_are_thrown_away_only_if_a_person_agrees(connect_to: ConnectTo):
    says = [False, True]
    answers = Answers(ask=lambda message, schema: {"value": says.pop(0)})
    async with connect_to("notes", known=True, capabilities=MCPL, answers=answers) as client:
        book = Notebook(client)
        await book.call("add_note", text="a")
        with pytest.raises(ToolError, match="kept"):
            await book.call("clear")
        assert await book.call("list_notes") == ["a"]
        assert await book.call("clear") == "1 notes gone"
        assert await book.call("list_notes") == []


# An anonymous notebook, over the network, ends with its session.
@pytest.mark.parametrize("transport", ["memory", "stdio"])
@pytest.mark.parametrize("store", ["sqlite", "redis"], indirect=True)
@pytest.mark.usefixtures("kept_in")
async def test_what_is_kept_in_a_file_or_in_redis_outlives_the_process(connect_to: ConnectTo):
    for count in range(2):
        async with connect_to("notes") as client:
            assert await client.call("list_notes") == ["a"] * count
            await client.call("add_note", text="a")


@pytest.mark.parametrize("transport", ["stdio"])
@pytest.mark.parametrize("version", ["2025-11-25"])
@pytest.mark.parametrize("store", ["redis", "sqlite"], indirect=True)
@pytest.mark.usefixtures("kept_in")
async def test_two_processes_with_one_store_lose_nothing_and_fork_nothing(connect_to: ConnectTo, store: str):
    refused = 0

    async def add(client: Client, text: str) -> None:
        nonlocal refused
        while True:
            try:
                await client.call("add_note", text=text)
            except ToolError as error:
                assert error.message == "The state was changed meanwhile; try again"
                refused += 1
            else:
                return

    async with connect_to("notes") as one, connect_to("notes") as other:
        async with anyio.create_task_group() as group:
            for number in range(25):
                group.start_soon(add, one, f"one {number}")
                group.start_soon(add, other, f"other {number}")
        kept = await one.call("list_notes")
        assert sorted(kept) == sorted(f"{who} {number}" for who in ("one", "other") for number in range(25))
        # One note more with every checkpoint: a chain, and no refused call in it.
        assert await other.call("versions") == list(range(1, 51))
    if store.startswith("redis"):
        assert refused == 0  # they take turns
