from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, computed_field

from defserve import Context, Depends, Server, State, UsageError
from defserve.protocols.mcpl.content import Turn
from defserve.state import CheckpointNotFound, States
from defserve.stores.store import MemoryStore, StoreChange, StoreFull
from tests.protocols.mcpl.hosts import hosting
from tests.protocols.mcpl.state.state_hosts import SET, Note, Notebook, Notes, notes_of, refusal, roll_back
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


class Counter(BaseModel):
    count: int = 0


class Needy(BaseModel):
    name: str


# -- complaints at registration --------------------------------------------------------------------------


def test_an_undeclared_state_is_refused_at_the_tool_that_takes_it():
    def bump(counter: State[Counter]) -> None: ...

    for server in (Server("s", "1"), Notes().server):
        with pytest.raises(UsageError, match=r"test_authoring.py:\d+: bump: parameter 'counter': the server keeps no"):
            server.tool(bump)


def test_two_states_of_one_model_have_to_be_told_apart():
    server = Server("s", "1")
    one, two = server.feature_set("a.one", "One"), server.feature_set("a.two", "Two")
    one.state(Counter)
    second = two.state(Counter)

    def bump(counter: State[Counter]) -> None: ...

    with pytest.raises(UsageError, match=r"State\[Counter\] is kept by a.one and a.two"):
        one.tool(bump)

    def bump_second(counter: Annotated[Counter, second]) -> None: ...

    bump_second.__annotations__["counter"] = Annotated[Counter, second]
    two.tool(bump_second)
    with pytest.raises(UsageError, match="takes <state of a.two>"):
        one.tool(bump_second, name="other")


def test_a_state_is_for_the_tools_of_its_set():
    notes = Notes()
    elsewhere = notes.server.feature_set("a.b", "Elsewhere")

    def read(book: State[Notebook]) -> str:
        return ""

    def recall(turn: Turn, book: State[Notebook]) -> str:
        return ""

    for declare in (notes.server.tool, elsewhere.tool, notes.server.resource("notes://all"), notes.server.prompt):
        with pytest.raises(UsageError, match=f"'read' takes <state of {SET}>"):
            declare(read)
    with pytest.raises(UsageError, match="recall: parameter 'book': only the tools of its set can take a state"):
        notes.set.before_inference(recall)


@for_each_row(
    ("declare", "complaint"),
    [
        (lambda notes: notes.set.state(Counter), "has a state already"),
        (lambda notes: _set(notes).state(Counter, mode="delta"), "mode='delta'"),
        (lambda notes: _set(notes).state(Counter, per="user"), "per='user'"),
        (lambda notes: _set(notes).state(Counter, concurrency="merge"), "concurrency='merge'"),
        (lambda notes: _set(notes).state(Counter, keep=0), "keep=0"),
        (lambda notes: _set(notes).state(Counter, ttl=-1), "ttl=-1"),
        (lambda notes: _set(notes).state(Counter, store="mysql://x"), "not the address of a store"),
        (lambda notes: _set(notes).state(Needy), r"Needy\(\) cannot make the initial state: name: "),
    ],
)
def test_a_model_that_cannot_be_kept_is_refused(declare: Callable[[Any], Any], complaint: str):
    with pytest.raises(UsageError, match=complaint):
        declare(Notes())


def _set(notes: Notes) -> Any:
    return notes.server.feature_set("a.b", "Another")


def test_a_state_is_declared_before_serving():
    notes = Notes()
    _ = notes.server.composition
    with pytest.raises(UsageError, match="after the server has started"):
        _set(notes).state(Counter)


def test_a_store_is_checked_where_the_server_is_made():
    with pytest.raises(UsageError, match="not the address of a store"):
        Server("s", "1", store="mysql://x")
    with pytest.raises(UsageError, match="did you mean 'store'"):
        Server("s", "1", stores="memory:")  # pyright: ignore


# -- what functions are given ----------------------------------------------------------------------------


async def test_a_call_has_one_value_for_all_who_take_it():
    notes = Notes()

    def latest(book: State[Notebook]) -> list[Note]:
        return book.notes

    latest.__annotations__["book"] = State[Notebook]

    @notes.set.tool
    async def pile(book: State[Notebook], shared: Annotated[list[Note], Depends(latest)]) -> bool:
        shared.append(Note(id=9, text="through the dependency"))
        return book.notes is shared

    pile.__annotations__["shared"] = Annotated[list[Note], Depends(latest)]
    async with hosting(notes.server) as host:
        result = await host.call("pile")
        assert notes_of(result) is True
        assert result["state"]["data"]["notes"] == [{"id": 9, "text": "through the dependency"}]


async def test_a_tool_that_streams_keeps_its_state():
    notes = Notes()

    @notes.set.tool
    async def count(book: State[Notebook]) -> AsyncGenerator[str]:
        for number in range(3):
            book.notes.append(Note(id=number, text="n"))
            yield str(number)

    async with hosting(notes.server) as host:
        await host.call("count")
        assert notes_of(await host.call("list_notes")) == ["n", "n", "n"]


async def test_a_state_its_model_would_refuse_is_the_authors_mistake_and_is_not_kept():
    notes = Notes()

    @notes.set.tool
    async def spoil(book: State[Notebook]) -> str:
        book.notes.append("no note")  # pyright: ignore
        return "done"

    async with hosting(notes.server) as host:
        assert refusal(await host.call("spoil"))[0] == "internal_error"
        assert notes_of(await host.call("list_notes")) == []


async def test_a_call_that_changes_nothing_makes_no_checkpoint():
    notes = Notes()
    async with hosting(notes.server) as host:
        await host.call("add_note", {"text": "a"})
        assert "state" not in await host.call("list_notes")
        assert len(await notes.states.checkpoints(owner="local")) == 1


async def test_a_model_may_compute_and_rename():
    class Basket(BaseModel):
        model_config = {"extra": "forbid"}
        items: list[int] = []

        @computed_field
        @property
        def total(self) -> int:
            return sum(self.items)

    server = Server("s", "1")
    shop = server.feature_set("shop.basket", "Basket")
    baskets = shop.state(Basket)

    async def put(price: int, basket: Any) -> int:
        basket.items.append(price)
        return basket.total

    put.__annotations__ |= {"price": int, "basket": State[Basket], "return": int}
    shop.tool(put)
    async with hosting(server) as host:
        assert [notes_of(await host.call("put", {"price": price})) for price in (1, 2)] == [1, 3]
    assert (await baskets.at(owner="local")).items == [1, 2]


# -- the handle ------------------------------------------------------------------------------------------


async def test_inside_a_call_the_handle_speaks_of_the_caller():
    notes = Notes()

    @notes.set.tool
    async def story(book: State[Notebook]) -> dict[str, Any]:
        checkpoints = await notes.states.checkpoints()
        book.notes.clear()
        return {
            "then": [len((await notes.states.at(checkpoint)).notes) for checkpoint in checkpoints],
            "now": len((await notes.states.at()).notes),
            "ends": len(await notes.states.branches()),
            "diff": await notes.states.diff(checkpoints[0], checkpoints[-1].id),
        }

    @notes.set.tool
    def in_a_thread(ctx: Context) -> int:
        return len(ctx.wait(notes.states.checkpoints()))

    async with hosting(notes.server) as host:
        first = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        await host.call("add_note", {"text": "b"})
        await roll_back(host, first)
        await host.call("add_note", {"text": "c"})
        assert notes_of(await host.call("in_a_thread")) == 3
        told = (await host.call("story"))["structuredContent"]
    assert told == {
        "then": [1, 2, 2],
        "now": 2,
        "ends": 2,
        "diff": [{"op": "add", "path": "/notes/-", "value": {"id": 2, "text": "c"}}],
    }


async def test_outside_a_call_it_says_whose_is_meant():
    notes = Notes()
    async with hosting(notes.server) as host:
        made = (await host.call("add_note", {"text": "a"}))["state"]["checkpoint"]
        with pytest.raises(UsageError, match="owner="):
            await notes.states.checkpoints()
        assert [checkpoint.id for checkpoint in await notes.states.checkpoints(owner="local")] == [made]
        assert [note.text for note in (await notes.states.at(made, owner="local")).notes] == ["a"]
        with pytest.raises(CheckpointNotFound):
            await notes.states.at(made, owner="bob")
        with pytest.raises(CheckpointNotFound):
            await notes.states.diff(made, "chk_old", owner="local")
    assert (await notes.states.at(owner="nobody yet")) == Notebook()


async def test_a_states_copy_is_the_callers_own():
    notes = Notes()
    async with hosting(notes.server) as host:
        await host.call("add_note", {"text": "a"})
        (await notes.states.at(owner="local")).notes.clear()
        assert notes_of(await host.call("list_notes")) == ["a"]


def test_a_state_types_as_its_model_and_keeps_its_handle_typed():
    states: States[Notebook] = Notes().states

    def body(book: State[Notebook]) -> list[Note]:
        return book.notes

    assert body(Notebook()) == [] and states.model is Notebook


# -- where it is kept ------------------------------------------------------------------------------------


async def test_a_file_keeps_it_and_the_secret_that_vouches_for_it(tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'notes.db'}"
    async with hosting(Notes(Server("notes", "1", store=address)).server) as host:
        state = (await host.call("add_note", {"text": "a"}))["state"]
    async with hosting(Notes(Server("notes", "1", store=address)).server) as host:
        assert notes_of(await host.call("list_notes")) == ["a"]
        pair = {"state": state["data"], "checkpoint": state["checkpoint"]}
        assert (await host.call("add_note", {"text": "b"}, **pair))["state"]["parent"] == state["checkpoint"]


async def test_servers_with_one_secret_take_one_anothers_states():
    one, other, stranger = (Notes(Server("notes", "1", secret=secret * 32)) for secret in "aab")
    async with hosting(one.server) as host:
        state = (await host.call("add_note", {"text": "a"}))["state"]
    pair = {"state": state["data"], "checkpoint": state["checkpoint"]}
    async with hosting(other.server) as host:
        made = (await host.call("add_note", {"text": "b"}, **pair))["state"]
        assert made["parent"] == state["checkpoint"]
        assert notes_of(await host.call("list_notes")) == ["a", "b"]
    async with hosting(stranger.server) as host:
        assert refusal(await host.call("list_notes", **pair))[0] == "state_tampered"


async def test_a_store_is_opened_with_the_server_and_closed_with_it():
    class Watched(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.story: list[str] = []

        async def open(self) -> None:
            self.story.append("open")

        async def close(self) -> None:
            self.story.append("close")

    class Missing(MemoryStore):
        async def open(self) -> None:
            raise StoreFull("there is no room")

    servers, own = Watched(), Watched()
    notes = Notes(Server("notes", "1", store=servers))
    notes.server.feature_set("a.b", "Another").state(Counter, store=own)
    async with hosting(notes.server):
        async with hosting(notes.server):
            assert (servers.story, own.story) == (["open"], ["open"])
    assert servers.story == own.story == ["open", "close"]
    # If one cannot be opened, the server does not begin, and those before it are closed.
    notes = Notes(Server("notes", "1", store=servers))
    notes.server.feature_set("a.b", "Another").state(Counter, store=Missing())
    with pytest.raises(StoreFull):
        async with hosting(notes.server):
            pass
    assert servers.story == ["open", "close"] * 2


async def test_a_failing_store_fails_only_the_call():
    class Trouble(MemoryStore):
        full = False

        async def change(self, change: StoreChange) -> bool:
            if self.full:
                raise StoreFull("there is no room")
            return await super().change(change)

    store = Trouble()
    async with hosting(Notes(store=store).server) as host:
        await host.call("add_note", {"text": "a"})
        store.full = True
        assert refusal(await host.call("add_note", {"text": "b"})) == ("store_full", "there is no room")
        assert notes_of(await host.call("list_notes")) == ["a"]
        store.full = False
        await host.call("add_note", {"text": "c"})
        assert notes_of(await host.call("list_notes")) == ["a", "c"]


def test_a_state_that_nobody_keeps_is_met_with_lines_that_can_be_typed():
    def read(counter: State[Counter]) -> int:
        return counter.count

    with pytest.raises(UsageError, match="the server keeps no Counter") as raised:
        Server("counts", "1").tool(read)
    assert raised.value.fix == "declare it first: server.state(Counter)"


def test_a_rollback_without_a_state_says_where_one_is_declared():
    with pytest.raises(UsageError, match="has no state to roll back") as raised:
        Server("counts", "1").feature_set("a.b", "A set").on_rollback(lambda to: None)
    assert raised.value.fix == "declare it first, on the same set: notes.state(Model)"


@for_each_row(
    ("name", "said"),
    [
        ("rollback", r"await \.undo\(\).*copy what await \.at\(checkpoint\) gives"),
        ("head", r"await \.history\(limit=1\)"),
        ("get", r"await \.at\(\)"),
        ("set", r"await \.update\(change\)"),
        ("tool", r"on the server or feature set, with a parameter of State\[Model\]"),
        ("on_rollback", "the feature set has it: @notes.on_rollback"),
        ("checkpoint", "did you mean 'checkpoints'"),
    ],
)
def test_a_verb_that_a_state_does_not_have_is_met_with_the_one_it_has(name: str, said: str):
    with pytest.raises(AttributeError, match=f"State has no attribute '{name}'\n  fix: .*{said}"):
        getattr(Notes().states, name)


def test_hidden_names_of_a_state_are_not_explained():
    assert not hasattr(Notes().states, "__get_pydantic_core_schema__")
