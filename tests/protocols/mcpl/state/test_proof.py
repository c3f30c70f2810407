"""What a caller brought never passes as ours, over any number of steps, and never moves what others share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import jsonpatch
import pytest

from defserve import Context, Remote, Server, State, dangerous
from defserve.auth import StaticTokens
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal, make_anonymous_principal
from defserve.protocols.mcpl.state.ownership import STATE_META_KEY
from defserve.state import Checkpoint, States
from defserve.stores.store import MemoryStore
from tests.at_address import at_address
from tests.protocols.mcpl.hosts import Host, Json, hosting
from tests.protocols.mcpl.state.state_hosts import Note, Notebook, Notes, host_as, notes_of, refusal, roll_back
from tests.raw import ERAS, HANDSHAKE, STATELESS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SECRET = "s" * 32
LONG = "A note that is long enough for a patch to be the shorter way to say it, " * 4
BROUGHT: Json = {"notes": [{"id": 1, "text": "brought"}], "title": ""}
BOB, EVE, STRANGER = Principal("bob"), Principal("eve"), make_anonymous_principal("203.0.113.7")


class Guarded(Notes):
    """Notes with dangerous tools: `burn` takes the state, the others ask for it."""

    def _declare(self) -> None:
        super()._declare()

        @self.set.tool
        @dangerous(confirm=False)
        async def burn(book: State[Notebook]) -> list[str]:
            return [note.text for note in book.notes]

        @self.server.tool
        @dangerous(confirm=False)
        async def look() -> list[str]:
            return [note.text for note in (await self.states.at()).notes]

        @self.server.tool
        @dangerous(confirm=False)
        async def compare(a: str, b: str) -> int:
            return len(await self.states.diff(a, b))

        @self.server.tool
        @dangerous(confirm=False)
        async def touch() -> str:
            await self.states.update(lambda book: setattr(book, "title", "touched"))
            return "touched"


def guarded(store: MemoryStore | None = None, **options: Any) -> Guarded:
    return Guarded(Server("notes", "1", store=store or MemoryStore(), secret=SECRET), **options)


async def made(host: Host, text: str = "more", **more: Any) -> Json:
    result = await host.call("add_note", {"text": text}, **more)
    assert not result.get("isError"), result
    return result["state"]


async def is_burnt(host: Host, **more: Any) -> bool:
    """Whether the dangerous tool takes the state."""
    result = await host.call("burn", **more)
    if not result.get("isError"):
        return True
    kind, text = refusal(result)
    assert kind == "state_refused" and "fix:" in text
    return False


# -- what is brought stays brought -----------------------------------------------------------------------


@for_each_row("version", ERAS)
async def test_a_checkpoint_made_of_a_brought_state_proves_nothing(version: str):
    async with hosting(guarded(mode="data").server, version) as host:
        state = await made(host, state=BROUGHT)
        assert not await is_burnt(host, checkpoint=state["checkpoint"])
        assert not await is_burnt(host, checkpoint=state["checkpoint"], state=state["data"])
        assert not await is_burnt(host, state=state["data"])
        assert not await is_burnt(host)


async def again(host: Host, state: Json) -> Json:
    return await made(host)


async def from_its_checkpoint(host: Host, state: Json) -> Json:
    return await made(host, checkpoint=state["checkpoint"])


async def as_a_pair(host: Host, state: Json) -> Json:
    return await made(host, checkpoint=state["checkpoint"], state=state["data"])


async def alone(host: Host, state: Json) -> Json:
    return await made(host, state=state["data"])


async def by_rollback(host: Host, state: Json) -> Json:
    await made(host)
    assert (await roll_back(host, state["checkpoint"]))["result"]["success"] is True
    return await made(host)


STEPS: list[Callable[[Host, Json], Awaitable[Json]]] = [again, from_its_checkpoint, as_a_pair, alone, by_rollback]


@for_each_row("step", STEPS, ids=lambda step: step.__name__)
async def test_every_step_inherits_that_it_was_brought(step: Callable[[Host, Json], Awaitable[Json]]):
    async with hosting(guarded(mode="data").server) as host:
        state = await made(host, state=BROUGHT)
        for _ in range(2):
            state = await step(host, state)
            assert not await is_burnt(host, checkpoint=state["checkpoint"], state=state["data"])
            assert not await is_burnt(host, checkpoint=state["checkpoint"])


@for_each_row("step", STEPS, ids=lambda step: step.__name__)
async def test_every_step_inherits_that_it_is_ours(step: Callable[[Host, Json], Awaitable[Json]]):
    async with hosting(guarded(mode="data").server) as host:
        state = await made(host, "ours")
        for _ in range(2):
            state = await step(host, state)
            assert await is_burnt(host, checkpoint=state["checkpoint"], state=state["data"])
            assert await is_burnt(host, checkpoint=state["checkpoint"])


async def test_a_host_that_applies_patches_to_what_it_brought_proves_nothing():
    async with hosting(guarded().server) as host:
        first = await made(host, LONG, state=BROUGHT)
        state = await made(host, "short", state=(held := first["data"]), checkpoint=first["checkpoint"])
        held = jsonpatch.apply_patch(held, state["patch"])
        assert not await is_burnt(host, state=held, checkpoint=state["checkpoint"])
        assert not await is_burnt(host, state=held)


async def test_a_pruned_checkpoint_still_says_that_it_was_brought():
    notes = guarded(mode="data", keep=1)
    async with hosting(notes.server) as host:
        brought, ours = await made(host, state=BROUGHT), await made(host, "x", checkpoint=None)
        await (await notes.states.trees()).prune(await key_of(notes))
        pair = {"state": brought["data"], "checkpoint": brought["checkpoint"]}
        assert not await is_burnt(host, **pair)
        assert ours["parent"] == brought["checkpoint"]


async def key_of(notes: Notes) -> Any:
    (key,) = await (await notes.states.trees()).list_trees()
    return key


async def test_another_worker_and_a_restart_know_that_it_was_brought():
    store = MemoryStore()
    async with hosting(guarded(store, mode="data").server) as host:
        ours = await made(host, "ours")
        brought = await made(host, state=BROUGHT)
    async with hosting(guarded(store, mode="data").server) as host:
        for state, is_ours in ((brought, False), (ours, True)):
            assert await is_burnt(host, checkpoint=state["checkpoint"]) is is_ours
            assert await is_burnt(host, checkpoint=state["checkpoint"], state=state["data"]) is is_ours


async def test_a_dangerous_tool_that_asks_for_the_state_is_not_given_it_either():
    async with hosting(guarded(mode="data").server) as host:
        ours = await made(host, "ours")
        assert notes_of(await host.call("look")) == ["ours"]
        brought = await made(host, state=BROUGHT)
        for tool, arguments in (
            ("look", {}),
            ("compare", {"a": ours["checkpoint"], "b": brought["checkpoint"]}),
            ("touch", {}),
        ):
            assert refusal(await host.call(tool, arguments))[0] == "state_refused", tool
        assert notes_of(await host.call("compare", {"a": ours["checkpoint"], "b": ours["checkpoint"]})) == 0


async def test_what_the_server_changes_by_itself_inherits_it():
    notes = guarded(mode="data")
    async with hosting(notes.server) as host:
        brought = await made(host, state=BROUGHT)

        def retitle(book: Notebook) -> None:
            book.title = "by the server"

        updated = await notes.states.update(retitle, owner="local")
        assert updated is not None and updated.parent == brought["checkpoint"]
        assert [at.proved for at in await notes.states.checkpoints(owner="local")] == [False, False]
        assert not await is_burnt(host)


async def test_the_way_back_is_a_checkpoint_that_is_ours():
    notes = guarded(mode="data")
    async with hosting(notes.server) as host:
        ours = await made(host, "ours")
        await made(host, state=BROUGHT)
        assert not await is_burnt(host)
        assert (await roll_back(host, ours["checkpoint"]))["result"]["success"] is True
        assert await is_burnt(host)
        proved: list[Checkpoint] = [at for at in await notes.states.checkpoints(owner="local") if at.proved]
        assert [at.id for at in proved] == [ours["checkpoint"]]


# -- what a tool copies ----------------------------------------------------------------------------------


class Copying(Guarded):
    """Guarded notes, another set, and tools that copy the text of a checkpoint, each on a way of its own."""

    def _declare(self) -> None:
        super()._declare()
        other = self.server.feature_set("other.edit", "Other notes")
        copies: States[Notebook] = other.state(Notebook, mode="data", per=self.states.per)
        self.copies = copies

        async def read(id: str) -> str:
            return " ".join(note.text for note in (await self.states.at(id)).notes)

        @self.server.resource("notes://{id}")
        async def notes_at(id: str) -> str:
            return await read(id)

        @self.server.tool
        @dangerous(confirm=False)
        async def read_inside(id: str, ctx: Context) -> str:
            return str(await ctx.read_resource(f"notes://{id}"))

        @self.server.resource("quiet://one")
        async def quiet() -> str:
            self.entered.set()
            await self.gate.wait()
            return "quiet"

        @self.server.tool
        @dangerous(confirm=False)
        async def read_beside(id: str, ctx: Context) -> str:
            self.entered.clear()
            self.gate.clear()
            reading = asyncio.create_task(ctx.read_resource("quiet://one"))
            await self.entered.wait()
            try:
                return await read(id)
            finally:
                self.gate.set()
                await reading

        @self.set.tool
        async def copy_at(id: str, book: Annotated[Notebook, self.states]) -> str:
            book.title = await read(id)
            return "copied"

        @self.set.tool
        async def copy_diff(id: str, book: Annotated[Notebook, self.states]) -> str:
            first, *_ = await self.states.checkpoints()
            book.title = str(await self.states.diff(first, id))
            return "copied"

        @self.set.tool
        async def copy_resource(id: str, ctx: Context, book: Annotated[Notebook, self.states]) -> str:
            book.title = str(await ctx.read_resource(f"notes://{id}"))
            return "copied"

        @self.set.tool
        async def copy_in_a_task(id: str, book: Annotated[Notebook, self.states]) -> str:
            book.title = await asyncio.create_task(read(id))
            return "copied"

        @self.set.tool
        async def copy_held(book: Annotated[Notebook, self.states]) -> str:
            await copies.update(lambda copy: setattr(copy, "title", str(book.notes)))
            return "copied"

        @self.server.tool
        async def copy_in_change(id: str) -> str:
            async def change(copy: Notebook) -> None:
                copy.title = await read(id)

            await copies.update(change)
            return "copied"

        @self.server.tool
        async def copy_through_another(id: str) -> str:
            await copies.update(lambda copy: copy.notes.append(Note(id=1, text="before")))
            text = await read(id)
            await copies.update(lambda copy: setattr(copy, "title", text))
            return "copied"

        @other.tool
        async def copy_over(id: str, copy: Annotated[Notebook, copies]) -> str:
            copy.title = await read(id)
            return "copied"

        @other.tool
        def write_copy(text: str, copy: Annotated[Notebook, copies]) -> str:
            copy.title = text
            return "written"

        @other.tool
        @dangerous(confirm=False)
        def burn_copy(copy: Annotated[Notebook, copies]) -> str:
            return copy.title


def copying(**options: Any) -> Copying:
    return Copying(Server("notes", "1", store=MemoryStore(), secret=SECRET), mode="data", **options)


INTO_THE_SAME = ["copy_at", "copy_diff", "copy_resource", "copy_in_a_task"]
INTO_ANOTHER = ["copy_in_change", "copy_through_another", "copy_over"]


@for_each_row("version", ERAS)
@for_each_row("tool", INTO_THE_SAME)
async def test_a_copy_of_what_was_brought_was_brought(tool: str, version: str):
    async with hosting(copying().server, version) as host:
        ours = await made(host, "ours")
        brought = await made(host, state=BROUGHT)
        copied = await host.call(tool, {"id": brought["checkpoint"]}, checkpoint=ours["checkpoint"])
        assert "brought" in copied["state"]["data"]["title"]
        assert not await is_burnt(host)
        assert not await is_burnt(host, state=copied["state"]["data"])
        copied = await host.call(tool, {"id": ours["checkpoint"]}, checkpoint=ours["checkpoint"])
        if copied.get("state") is not None:
            assert await is_burnt(host, checkpoint=copied["state"]["checkpoint"])


@for_each_row("tool", INTO_ANOTHER)
async def test_a_copy_in_another_set_was_brought_too(tool: str):
    notes = copying()
    async with hosting(notes.server) as host:
        ours, brought = await made(host, "ours"), await made(host, state=BROUGHT)
        await host.call(tool, {"id": ours["checkpoint"]})
        assert not (await host.call("burn_copy")).get("isError")
        assert not (await host.call(tool, {"id": brought["checkpoint"]})).get("isError")
        assert refusal(await host.call("burn_copy"))[0] == "state_refused"
        *before, last = await notes.copies.checkpoints(owner="local")
        assert all(at.proved for at in before) and not last.proved


async def test_what_a_call_holds_is_copied_as_what_it_is():
    notes = copying()
    async with hosting(notes.server) as host:
        await made(host, "ours")
        assert not (await host.call("copy_held")).get("isError")
        assert not (await host.call("burn_copy")).get("isError")
        await host.call("copy_held", state=BROUGHT)
        assert refusal(await host.call("burn_copy"))[0] == "state_refused"


@for_each_row("tool", ["read_inside", "read_beside"])
async def test_a_dangerous_tool_that_reads_a_resource_is_told_nothing_that_was_brought(tool: str):
    async with hosting(copying().server) as host:
        ours, brought = await made(host, "ours"), await made(host, state=BROUGHT)
        assert "ours" in str(await host.call(tool, {"id": ours["checkpoint"]}))
        result = await host.call(tool, {"id": brought["checkpoint"]})
        assert refusal(result)[0] == "state_refused" and "brought more" not in str(result)


@for_each_row("tool", INTO_THE_SAME)
async def test_a_copy_of_what_was_brought_never_moves_what_others_share(tool: str):
    notes = copying(per="server")
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, EVE) as eve:
        ours = await made(bob, "ours")
        brought = await made(eve, state=BROUGHT)
        copied = await eve.call(tool, {"id": brought["checkpoint"]})
        assert "brought" in copied["state"]["data"]["title"]
        assert (await notes.states.at()).title == ""
        assert await is_burnt(bob)
        assert (await made(bob, "next"))["parent"] == ours["checkpoint"]


@for_each_row("tool", INTO_ANOTHER)
async def test_a_copy_into_another_set_never_moves_what_others_share(tool: str):
    notes = copying(per="server")
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, EVE) as eve:
        await bob.call("write_copy", {"text": "bob's"})
        brought = await made(eve, state=BROUGHT)
        result = await eve.call(tool, {"id": brought["checkpoint"]})
        if result.get("isError"):
            kind, text = refusal(result)
            assert kind == "state_refused" and "fix:" in text
        assert (await notes.copies.at()).title == "bob's"
        assert not (await bob.call("burn_copy")).get("isError")


async def test_a_shared_state_of_the_first_version_goes_on():
    """Nothing that it kept is proved, and calls that see nothing else continue it."""
    notes = guarded(mode="data", per="server")
    async with host_as(notes.server, BOB) as bob:
        first = await made(bob, "a")
        trees, key = await notes.states.trees(), await key_of(notes)
        held = await trees.load_checkpoint(key, first["checkpoint"])
        old = await trees.commit(held._replace(verified=False), {"notes": [], "title": "old"})
        assert (await made(bob, "b"))["parent"] == old.checkpoint.id
        await notes.states.update(lambda book: setattr(book, "title", "new"))
        assert notes_of(await bob.call("list_notes")) == ["b"]
        assert not await is_burnt(bob)


# -- MCPL §8.4: a host that sends the state alone --------------------------------------------------------


@pytest.mark.req("MCPL-8.4")
@for_each_row("version", ERAS)
async def test_a_state_that_equals_a_proved_checkpoint_of_the_caller_is_proved(version: str):
    """In another session, at another worker, and although the head is elsewhere."""
    store = MemoryStore()
    async with hosting(guarded(store, mode="data").server) as host:
        first, *_ = [await made(host, text) for text in "abc"]
    async with hosting(guarded(store, mode="data").server, version) as host:
        assert await is_burnt(host, state=dict(reversed(first["data"].items())))
        assert (await made(host, state=first["data"]))["parent"] == first["checkpoint"]
        assert not await is_burnt(host, state={**first["data"], "title": "x"})


async def test_what_another_caller_has_proved_proves_nothing():
    notes = guarded(mode="data")
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, EVE) as eve:
        state = await made(bob, "a")
        assert await is_burnt(bob, state=state["data"])
        assert not await is_burnt(eve, state=state["data"])


async def test_callers_that_cannot_be_told_apart_prove_nothing_for_one_another():
    notes = guarded(mode="data")
    async with host_as(notes.server, STRANGER, STATELESS) as one, host_as(notes.server, STRANGER, STATELESS) as other:
        state = await made(one, "a", checkpoint=None)
        assert (await made(other, "b", state=state["data"]))["parent"] is None


async def test_a_proved_checkpoint_is_preferred_to_a_brought_one_of_the_same_content():
    notes = guarded(mode="data")
    async with hosting(notes.server) as host:
        ours = await made(host, "a")
        twin = await made(host, "a", state={"notes": [], "title": ""})
        assert ours["data"] == twin["data"] and not await is_burnt(host)
        assert await is_burnt(host, state=twin["data"])


# -- what others share -----------------------------------------------------------------------------------


@for_each_row("who", [LOCAL_PRINCIPAL, BOB, STRANGER], ids=["local", "token", "stranger"])
@for_each_row("version", ERAS)
async def test_what_a_caller_brings_never_replaces_what_others_read(version: str, who: Principal):
    notes = guarded(mode="data", per="server")
    async with host_as(notes.server, EVE) as other, host_as(notes.server, who, version) as caller:
        assert (await made(caller, state=BROUGHT))["parent"] is None
        assert notes_of(await other.call("list_notes")) == []
        first, _ = await made(other, "a"), await made(other, "b")
        brought = await made(caller, state=BROUGHT)
        await made(caller, checkpoint=brought["checkpoint"])
        pair = {"state": brought["data"], "checkpoint": brought["checkpoint"]}
        assert [note["text"] for note in (await made(caller, "mine", **pair))["data"]["notes"]] == [
            "brought", "more", "mine",
        ]  # fmt: skip
        await made(caller, checkpoint=first["checkpoint"])
        await made(caller, state=first["data"])
        assert notes_of(await other.call("list_notes")) == ["a", "b"]
        assert await is_burnt(other)


async def test_a_state_that_equals_the_shared_head_continues_it():
    notes = guarded(mode="data", per="server")
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, EVE) as eve:
        first = await made(bob, "a")
        second = await made(eve, "b", state=first["data"])
        assert second["parent"] == first["checkpoint"]
        third = await made(bob, "c", state=second["data"], checkpoint=second["checkpoint"])
        assert third["parent"] == second["checkpoint"]
        assert notes_of(await bob.call("list_notes")) == ["a", "b", "c"]


@pytest.mark.req("MCPL-8.6")
async def test_nobody_rolls_a_shared_state_back_to_what_was_brought():
    notes = guarded(mode="data", per="server")
    async with host_as(notes.server, BOB) as bob:
        first, _ = await made(bob, "a"), await made(bob, "b")
        brought = await made(bob, state=BROUGHT)
        result = (await roll_back(bob, brought["checkpoint"]))["result"]
        assert result["success"] is False and "share" in result["reason"]
        assert notes_of(await bob.call("list_notes")) == ["a", "b"]
        assert (await roll_back(bob, first["checkpoint"]))["result"]["success"] is True
        assert notes_of(await bob.call("list_notes")) == ["a"]


async def test_a_stranger_does_not_roll_back_what_others_share():
    notes = guarded(mode="data", per="server")
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, STRANGER, HANDSHAKE[-1]) as stranger:
        state = await made(stranger, "a")
        await made(bob, "b")
        result = (await roll_back(stranger, state["checkpoint"]))["result"]
        assert result["success"] is False and "verified identity" in result["reason"]
        assert notes_of(await bob.call("list_notes")) == ["a", "b"]


class Listing(Guarded):
    """Guarded notes that tell what their caller can list and read."""

    def _declare(self) -> None:
        super()._declare()

        @self.server.tool
        async def versions() -> list[str]:
            return [at.id for at in await self.states.checkpoints()]

        @self.server.tool
        async def ends() -> list[str]:
            return [at.id for at in await self.states.branches()]

        @self.server.tool
        async def read(id: str) -> str:
            return (await self.states.at(id)).model_dump_json()

        @self.server.tool
        async def change_from(a: str, b: str) -> str:
            return str(await self.states.diff(a, b))


def listing(**options: Any) -> Listing:
    return Listing(Server("notes", "1", store=MemoryStore(), secret=SECRET), mode="data", per="server", **options)


@for_each_row("version", ERAS)
async def test_a_branch_off_what_others_share_is_its_makers_alone(version: str):
    notes = listing()
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, EVE, version) as eve:
        line = [(await made(bob, text))["checkpoint"] for text in "ab"]
        brought = await made(eve, "mine", state=BROUGHT)
        branched = await made(eve, "mine", checkpoint=line[0])
        longer = await made(eve, "mine", checkpoint=branched["checkpoint"])
        own = [state["checkpoint"] for state in (brought, branched, longer)]
        assert longer["parent"] == own[1]
        assert notes_of(await bob.call("versions")) == line and notes_of(await bob.call("ends")) == line[1:]
        assert notes_of(await eve.call("versions")) == line + own
        assert set(notes_of(await eve.call("ends"))) == {line[1], own[0], own[2]}
        for id in own:
            assert "mine" in str(await eve.call("read", {"id": id}))
            assert "mine" in str(await eve.call("change_from", {"a": line[0], "b": id}))
            foreign: list[Json] = [
                {"name": "read", "arguments": {"id": id}},
                {"name": "change_from", "arguments": {"a": line[0], "b": id}},
                {"name": "list_notes", "arguments": {}, "checkpoint": id},
            ]
            for params in foreign:
                reply = await bob.ask("tools/call", params)
                assert reply["error"]["code"] == -32005 and "mine" not in str(reply)
        assert [at.id for at in await notes.states.checkpoints()] == line
        result = (await roll_back(eve, own[1]))["result"]
        assert result["success"] is False and "branch" in result["reason"]
        assert await is_burnt(eve, checkpoint=own[1]) and await is_burnt(eve, state=branched["data"])
        assert not await is_burnt(eve, checkpoint=own[0])


@pytest.mark.parametrize("who", [EVE, STRANGER], ids=["token", "stranger"])
@pytest.mark.parametrize("version", ERAS)
async def test_branches_off_what_others_share_never_drop_its_history(version: str, who: Principal):
    notes = listing(keep=3)
    async with host_as(notes.server, BOB) as bob, host_as(notes.server, who, version) as eve:
        line = [(await made(bob, text))["checkpoint"] for text in "abc"]
        for number in range(100):
            how: Json = {"state": {**BROUGHT, "title": f"{number}"}} if number % 2 else {"checkpoint": line[0]}
            await made(eve, f"{number}", **how)
        assert notes_of(await bob.call("versions")) == line
        assert (await roll_back(bob, line[0]))["result"]["success"] is True
        trees = await notes.states.trees()
        kept = [len(await trees.list_checkpoints(key)) for key in await trees.list_trees()]
        assert sorted(kept) == [3, 3]


async def test_strangers_at_many_addresses_share_the_room_for_their_branches():
    notes = listing(keep=3)
    for number in range(4):
        async with host_as(notes.server, make_anonymous_principal(f"203.0.113.{number}"), STATELESS) as stranger:
            state = await made(stranger, "x", state=BROUGHT)
            assert (await made(stranger, "y", checkpoint=state["checkpoint"]))["parent"] == state["checkpoint"]
            assert notes_of(await stranger.call("versions")) == []
    assert len(await (await notes.states.trees()).list_trees()) == 1


async def test_the_branches_of_a_session_end_with_it():
    notes = listing()
    async with host_as(notes.server, BOB) as bob:
        await made(bob, "a")
        async with host_as(notes.server, STRANGER) as stranger:
            await made(stranger, state=BROUGHT)
            assert len(await (await notes.states.trees()).list_trees()) == 2
        await is_forgotten(notes)
        assert notes_of(await bob.call("list_notes")) == ["a"]


async def is_forgotten(notes: Notes) -> None:
    trees = await notes.states.trees()
    async with asyncio.timeout(10):
        while len(await trees.list_trees()) != 1:  # noqa: ASYNC110 (the other side sets no event)
            await asyncio.sleep(0.005)


# -- through others --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("version", ERAS)
async def test_a_server_in_front_passes_on_nothing_that_a_caller_brings(version: str):
    token = "b" * 40
    notes = Guarded(Server("notes", "1", store=MemoryStore(), secret=SECRET, auth=StaticTokens({token: "bob"})))
    front = Server("front", "1")
    front.feature_set("front.own", "Speaks MCPL itself")
    async with at_address(notes.server) as url:
        front.mount(Remote(url, token=token), prefix="x")
        async with hosting(front, version) as host:
            for brought in ({"state": BROUGHT}, {"_meta": {STATE_META_KEY: {"state": BROUGHT}}}):
                assert not (await host.call("x_add_note", {"text": "ours"}, **brought)).get("isError")
            assert notes_of(await host.call("x_list_notes")) == ["ours", "ours"]
            assert all(at.proved for at in await notes.states.checkpoints(owner="bob"))
