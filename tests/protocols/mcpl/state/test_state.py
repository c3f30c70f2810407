from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import jsonpatch
import pytest

from defserve import Context, Limits, Server, State, ToolError, dangerous
from defserve.auth import StaticTokens
from defserve.auth.principals import Principal, make_anonymous_principal
from defserve.protocols.mcpl.state.ownership import STATE_META_KEY
from defserve.stores.store import MemoryStore, StoreChange
from defserve.testing import SyncClient
from tests.protocols.mcpl.hosts import Host, Json, hosting
from tests.protocols.mcpl.state.state_hosts import SET, Notebook, Notes, host_as, notes_of, refusal, roll_back
from tests.raw import ERAS, HANDSHAKE, STATELESS, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)

LONG = "A note that is long enough for a patch to be the shorter way to say it, " * 4
BOB, STRANGER = Principal("bob"), make_anonymous_principal("203.0.113.7")


async def added(host: Host, text: str, **more: Any) -> Json:
    """The `state` of a result."""
    result = await host.call("add_note", {"text": text}, **more)
    assert result["content"] == [{"type": "text", "text": "Note added"}], result
    return result["state"]


# -- §8.1, §8.2 ------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-8.1")
async def test_a_set_with_a_state_offers_rollback_and_its_tools_are_tagged():
    notes = Notes()
    notes.server.feature_set("git.push", "Push")
    async with hosting(notes.server) as host:
        described = host.advertised["featureSets"][SET]
        assert described == {"description": "Manage notes", "uses": ["tools"], "rollback": True, "hostState": True}
        assert "rollback" not in host.advertised["featureSets"]["git.push"]
        tools = (await host.ask("tools/list"))["result"]["tools"]
    assert {tool["_meta"]["featureSet"] for tool in tools} == {SET}
    assert all("book" not in tool["inputSchema"].get("properties", {}) for tool in tools)


@eras
@pytest.mark.req("MCPL-8.2")
async def test_checkpoints_form_a_tree_and_a_call_after_a_rollback_branches(version: str):
    async with hosting(Notes().server, version) as host:
        abc = await added(host, "a")
        defg = await added(host, "d")
        assert (abc["parent"], defg["parent"]) == (None, abc["checkpoint"])
        reply = await roll_back(host, abc["checkpoint"])
        assert {**reply["result"], "_meta": 0, "resultType": 0} == {
            "checkpoint": abc["checkpoint"], "success": True, "_meta": 0, "resultType": 0,
        }  # fmt: skip
        xyz = await added(host, "x")
        assert xyz["parent"] == abc["checkpoint"]
        assert xyz["checkpoint"] not in (abc["checkpoint"], defg["checkpoint"])
        assert notes_of(await host.call("list_notes")) == ["a", "x"]


# -- §8.3 ------------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-8.3")
async def test_the_first_state_travels_whole_and_the_next_as_a_patch():
    notes = Notes()

    @notes.set.tool
    async def replace(book: State[Notebook]) -> None:
        book.notes, book.title = [], "Another title"

    async with hosting(notes.server) as host:
        first = await added(host, "")
        data = {"notes": [{"id": 1, "text": ""}], "title": ""}
        assert first == {"checkpoint": first["checkpoint"], "parent": None, "featureSet": SET, "data": data}
        assert "data" in (await host.call("replace"))["state"]  # since that is shorter
        second = await added(host, LONG)
        third = await added(host, "Buy groceries")
    assert third["patch"] == [{"op": "add", "path": "/notes/-", "value": {"id": 2, "text": "Buy groceries"}}]
    assert third["parent"] == second["checkpoint"]
    assert "data" not in third


@eras
@pytest.mark.req("MCPL-8.3", "MCPL-8.4")
async def test_a_host_that_applies_every_patch_has_the_state(version: str):
    held: Json = {}
    latest: str | None = None
    async with hosting(Notes().server, version) as host:
        for number in range(12):
            brought = {"state": held, "checkpoint": latest} if latest else {}
            state = await added(host, f"{number} {LONG}", **brought)
            held = state["data"] if "data" in state else jsonpatch.apply_patch(held, state["patch"])
            assert state["parent"] == latest
            assert ("patch" in state) is (number > 0)
            latest = state["checkpoint"]
    assert [note["text"] for note in held["notes"]] == [f"{number} {LONG}" for number in range(12)]


@pytest.mark.req("MCPL-8.3")
async def test_a_host_that_was_never_told_the_parent_is_sent_the_whole():
    notes = Notes()
    async with hosting(notes.server, mcpl=None) as plain:
        await plain.call("add_note", {"text": LONG})
    async with hosting(notes.server) as host:
        state = await added(host, "short")
        assert state["parent"] is not None and "patch" not in state
        assert [note["text"] for note in state["data"]["notes"]] == [LONG, "short"]
        assert "patch" in await added(host, "shorter")


@pytest.mark.req("MCPL-8.3")
@for_each_row(("mode", "members"), [("data", {"data"}), ("opaque", set[str]())])
async def test_the_author_says_how_it_travels(mode: str, members: set[str]):
    notes = Notes(mode=mode)
    async with hosting(notes.server) as host:
        assert host.advertised["featureSets"][SET].get("hostState", False) is (mode == "data")
        for text in (LONG, "short"):
            state = await added(host, text)
            assert state.keys() == {"checkpoint", "parent", "featureSet"} | members


async def test_a_patch_of_too_many_operations_is_not_sent():
    notes = Notes(Server("notes", "1", limits=Limits(patch_operations=1)))

    @notes.set.tool
    async def shout(book: State[Notebook]) -> None:
        book.notes[0].text, book.notes[1].text = "A", "B"

    async with hosting(notes.server) as host:
        await added(host, "a")
        await added(host, "b")
        await added(host, LONG)
        assert "data" in (await host.call("shout"))["state"]
        assert "patch" in await added(host, "c")


@pytest.mark.req("MCPL-8.3")
async def test_a_state_that_is_too_large_is_refused_and_nothing_is_kept():
    notes = Notes(Server("notes", "1", limits=Limits(checkpoint=500)))
    async with hosting(notes.server) as host:
        await added(host, "a")
        assert refusal(await host.call("add_note", {"text": "x" * 500}))[0] == "limit_exceeded"
        assert notes_of(await host.call("list_notes")) == ["a"]
        big: Json = {"notes": [], "title": "x" * 500}
        assert refusal(await host.call("list_notes", state=big))[0] == "limit_exceeded"


async def test_a_state_with_a_number_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    async with hosting(Notes().server) as host:
        send = host.link.send
        monkeypatch.setattr(host.link, "send", lambda frame: send(frame.replace(b'"1e400"', b"1e400")))
        for state in ({"title": "1e400"}, ["1e400"], "1e400"):
            reply = await host.ask("tools/call", {"name": "list_notes", "arguments": {}, "state": state})
            assert reply["error"]["code"] == -32602
            assert reply["error"]["message"].startswith("Invalid params: state cannot be kept")
        assert notes_of(await host.call("list_notes")) == []


# -- §8.4 ------------------------------------------------------------------------------------------------


@eras
@pytest.mark.req("MCPL-8.4")
async def test_a_call_computes_from_the_checkpoint_it_names(version: str):
    async with hosting(Notes().server, version) as host:
        first = await added(host, "a")
        await added(host, "b")
        branch = await added(host, "c", checkpoint=first["checkpoint"])
        assert branch["parent"] == first["checkpoint"]
        assert notes_of(await host.call("list_notes")) == ["a", "c"]


@eras
@pytest.mark.req("MCPL-8.4")
async def test_a_call_computes_from_the_state_it_brings_and_the_checkpoint_is_its_lineage(version: str):
    async with hosting(Notes().server, version) as host:
        first = await added(host, "a")
        await added(host, "b")
        state = await added(host, "c", state=first["data"], checkpoint=first["checkpoint"])
        assert state["parent"] == first["checkpoint"]
        assert notes_of(await host.call("list_notes")) == ["a", "c"]


async def test_a_host_that_has_no_checkpoint_yet_may_say_so():
    async with hosting(Notes().server) as host:
        first = await added(host, "a", checkpoint=None, state=None)
        assert (await added(host, "b", checkpoint=None))["parent"] == first["checkpoint"]


@pytest.mark.req("MCPL-8.4")
async def test_a_state_alone_is_known_again_where_the_host_was_told_of_it():
    async with hosting(Notes().server) as host:
        first, second = await added(host, "a"), await added(host, "b")
        again = await added(host, "c", state=first["data"])
        assert again["parent"] == first["checkpoint"]
        assert second["checkpoint"] != again["checkpoint"]


@eras
@pytest.mark.req("MCPL-8.4")
async def test_a_state_that_nobody_knows_begins_a_branch_of_its_own(version: str):
    async with hosting(Notes().server, version) as host:
        await added(host, "a")
        mine = {"notes": [{"id": 7, "text": "mine"}]}
        state = await added(host, "c", state=mine)
        assert state["parent"] is None
        assert notes_of(await host.call("list_notes")) == ["mine", "c"]


@pytest.mark.req("MCPL-8.4")
async def test_without_a_handshake_meta_may_carry_it_and_the_result_has_it_twice():
    async with hosting(Notes().server, STATELESS) as host:
        first = await added(host, "a")
        await added(host, "b")
        carried = {STATE_META_KEY: {"checkpoint": first["checkpoint"]}}
        result = await host.call("add_note", {"text": "c"}, _meta=carried)
        assert result["state"]["parent"] == first["checkpoint"]
        assert result["_meta"][STATE_META_KEY] == result["state"]


@eras
async def test_a_tampered_pair_is_refused(version: str):
    async with hosting(Notes().server, version) as host:
        first = await added(host, "a")
        forged = {"notes": [{"id": 1, "text": "owned"}], "title": ""}
        kind, _ = refusal(await host.call("add_note", {"text": "b"}, state=forged, checkpoint=first["checkpoint"]))
        assert kind == "state_tampered"
        assert notes_of(await host.call("list_notes")) == ["a"]


async def test_a_pair_of_somebody_else_is_refused():
    notes = Notes()
    async with host_as(notes.server) as alice, host_as(notes.server, BOB) as bob:
        state = await added(alice, "a")
        pair = {"state": state["data"], "checkpoint": state["checkpoint"]}
        assert refusal(await bob.call("list_notes", **pair))[0] == "state_tampered"
        assert notes_of(await alice.call("list_notes", **pair)) == ["a"]


@eras
async def test_a_state_that_does_not_fit_its_model_is_refused(version: str):
    async with hosting(Notes().server, version) as host:
        kind, text = refusal(await host.call("list_notes", state={"notes": [{"id": "x", "text": "secret"}]}))
        assert kind == "state_refused"
        assert text.startswith("The state of notes.edit does not fit its model: notes.0.id: ") and "secret" not in text
        assert "fix: if the model has changed" in text
        for checkpoint in (3, "x" * 1_000):
            reply = await host.ask("tools/call", {"name": "list_notes", "arguments": {}, "checkpoint": checkpoint})
            assert reply["error"]["code"] == -32602


async def test_a_content_for_an_opaque_state_is_refused():
    async with hosting(Notes(mode="opaque").server) as host:
        assert refusal(await host.call("list_notes", state={"notes": []}))[0] == "state_refused"


async def test_a_dangerous_tool_takes_no_state_that_nothing_proves():
    notes = Notes()

    @notes.set.tool
    @dangerous(confirm=False)
    async def burn(book: State[Notebook]) -> int:
        return len(book.notes)

    async with hosting(notes.server) as host:
        first = await added(host, "a")
        unproven = {"notes": [{"id": 1, "text": "b"}], "title": ""}
        kind, text = refusal(await host.call("burn", state=unproven))
        assert (kind, "checkpoint" in text) == ("state_refused", True)
        assert notes_of(await host.call("burn", state=first["data"], checkpoint=first["checkpoint"])) == 1
        assert notes_of(await host.call("list_notes", state=unproven)) == ["b"]


@pytest.mark.req("MCPL-8.0")
@eras
async def test_a_plain_client_has_state_and_sees_nothing_of_it(version: str):
    async with hosting(Notes().server, version, mcpl=None) as host:
        for text in ("a", "b"):
            # Fields that it may send for reasons of its own are let pass.
            result = await host.call("add_note", {"text": text}, state={"mine": 1}, checkpoint="chk_whatever")
            assert "state" not in result and STATE_META_KEY not in result.get("_meta", {})
        assert notes_of(await host.call("list_notes")) == ["a", "b"]
        assert (await roll_back(host, "chk_x"))["error"]["code"] == -32601


@pytest.mark.req("MCPL-8.0")
async def test_unknown_fields_of_a_request_are_let_pass():
    async with hosting(Notes().server) as host:
        state = await added(host, "a", hostState=True, somethingNew={"x": 1})
        reply = await host.ask(
            "state/rollback", {"featureSet": SET, "checkpoint": state["checkpoint"], "conversation": "c1"}
        )
        assert reply["result"]["success"] is True


# -- what a call does to it ------------------------------------------------------------------------------


@eras
@pytest.mark.parametrize("mcpl", [{}, None], ids=["mcpl", "plain"])
@pytest.mark.parametrize("brought", [{}, {"checkpoint": None}, {"state": {"notes": []}}], ids=["", "null", "state"])
async def test_a_call_that_changes_nothing_makes_no_checkpoint(version: str, mcpl: Json | None, brought: Json):
    notes = Notes()
    async with hosting(notes.server, version, **({} if mcpl == {} else {"mcpl": None})) as host:
        for _ in range(2):
            result = await host.call("list_notes", **brought)
            assert notes_of(result) == [] and "state" not in result
        assert await (await notes.states.trees()).list_trees() == []
        await host.call("add_note", {"text": "a"})
        await host.call("list_notes")
        assert len(await notes.states.checkpoints(owner="local")) == 1


@eras
async def test_a_failed_call_changes_nothing(version: str):
    async with hosting(Notes().server, version) as host:
        await added(host, "a")
        result = await host.call("fail")
        assert result["isError"] and "state" not in result
        assert notes_of(await host.call("list_notes")) == ["a"]


async def test_a_cancelled_call_changes_nothing():
    notes = Notes()
    async with hosting(notes.server) as host:
        await added(host, "a")
        asking = asyncio.create_task(host.ask("tools/call", {"name": "slow", "arguments": {"text": "b"}}))
        await notes.entered.wait()
        await host.tell("notifications/cancelled", {"requestId": host._last_id})  # pyright: ignore
        assert notes_of(await host.call("list_notes")) == ["a"]  # which waited for nobody
        asking.cancel()


async def test_what_was_done_before_a_question_is_done_again_not_twice():
    notes = Notes()

    @notes.set.tool
    async def clear(book: State[Notebook], ctx: Context) -> str:
        book.notes.clear()
        return str(await ctx.confirm("Sure?"))

    asking: Json = {"elicitation": {"form": {}}}
    async with hosting(notes.server, STATELESS, capabilities=asking) as host:
        await added(host, "a")
        first = await host.call("clear")
        assert first["resultType"] == "input_required" and "state" not in first
        assert notes_of(await host.call("list_notes")) == ["a"]
        (key,) = first["inputRequests"]
        asked = first["inputRequests"][key]["params"]["requestedSchema"]["properties"]
        answer = {key: {"action": "accept", "content": dict.fromkeys(asked, True)}}
        second = await host.call("clear", requestState=first["requestState"], inputResponses=answer)
        assert second["state"]["data"]["notes"] == []


async def test_calls_on_one_state_come_one_after_another():
    notes = Notes()
    async with hosting(notes.server) as host:
        slow = asyncio.create_task(host.call("slow", {"text": "a"}))
        await notes.entered.wait()
        quick = asyncio.create_task(added(host, "b"))
        await turns()
        assert not quick.done()
        notes.gate.set()
        first, second = (await slow)["state"], await quick
        assert second["parent"] == first["checkpoint"]
        assert notes_of(await host.call("list_notes")) == ["a", "b"]


async def test_calls_may_each_have_a_branch_instead():
    notes = Notes(concurrency="branch")
    async with hosting(notes.server) as host:
        root = await added(host, "root")
        slow = asyncio.create_task(host.call("slow", {"text": "a"}))
        await notes.entered.wait()
        quick = await added(host, "b")
        notes.gate.set()
        assert (await slow)["state"]["parent"] == quick["parent"] == root["checkpoint"]
        ends = {branch.id for branch in await notes.states.branches(owner="local")}
        assert ends == {(await slow)["state"]["checkpoint"], quick["checkpoint"]}


async def test_a_call_that_waits_too_long_is_told_to_come_back():
    notes = Notes(Server("notes", "1", limits=Limits(lock=0.05)))

    @notes.set.tool(timeout=5)
    async def very_slow(book: State[Notebook]) -> str:
        notes.entered.set()
        await notes.gate.wait()
        return "done"

    async with hosting(notes.server) as host:
        slow = asyncio.create_task(host.call("very_slow"))
        await notes.entered.wait()
        assert refusal(await host.call("add_note", {"text": "b"}))[0] == "state_busy"
        notes.gate.set()
        assert not (await slow).get("isError")


async def test_a_state_that_another_process_changed_is_not_overwritten():
    shared = MemoryStore()
    one, other = (Notes(Server("notes", "1", store=shared, secret="s" * 32)) for _ in range(2))
    async with hosting(one.server) as here, hosting(other.server) as there:
        await added(here, "a")
        slow = asyncio.create_task(here.call("slow", {"text": "lost?"}))
        await one.entered.wait()
        assert (await added(there, "b"))["parent"] is not None
        one.gate.set()
        kind, text = refusal(await slow)
        assert (kind, text) == ("state_conflict", "The state was changed meanwhile; try again")
        assert notes_of(await here.call("list_notes")) == ["a", "b"]


async def test_a_commit_that_has_begun_is_finished_although_the_call_is_stopped():
    class Slow(MemoryStore):
        begun, gate = asyncio.Event(), asyncio.Event()

        async def change(self, change: StoreChange) -> bool:
            if ":state:" in change.space:
                self.begun.set()
                await self.gate.wait()
            return await super().change(change)

    store = Slow()
    async with hosting(Notes(store=store).server) as host:
        asking = asyncio.create_task(host.ask("tools/call", {"name": "add_note", "arguments": {"text": "b"}}))
        await store.begun.wait()
        await host.tell("notifications/cancelled", {"requestId": host._last_id})  # pyright: ignore
        listing = asyncio.create_task(host.call("list_notes"))
        await turns()
        assert not listing.done()
        store.gate.set()
        assert notes_of(await listing) == ["b"]
        asking.cancel()


# -- §8.5–8.7 --------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-8.7")
async def test_a_pruned_or_unknown_checkpoint_is_an_error_of_its_own():
    async with hosting(Notes(keep=2).server) as host:
        first, *_ = [await added(host, text) for text in "abc"]
        for checkpoint in (first["checkpoint"], "chk_old"):
            error = (await roll_back(host, checkpoint))["error"]
            assert (error["code"], error["message"]) == (-32005, "Checkpoint not found")
            assert error["data"]["checkpoint"] == checkpoint
            reply = await host.ask("tools/call", {"name": "list_notes", "arguments": {}, "checkpoint": checkpoint})
            assert reply["error"]["code"] == -32005


@pytest.mark.req("MCPL-8.7")
async def test_without_a_handshake_the_codes_of_the_reserved_range_stay_unused():
    async with hosting(Notes().server, STATELESS) as host:
        error = (await roll_back(host, "chk_old"))["error"]
        assert (error["code"], error["data"]["error_type"]) == (-32603, "checkpoint_not_found")
        assert refusal(await host.call("list_notes", checkpoint="chk_old"))[0] == "checkpoint_not_found"


async def test_nobody_rolls_back_what_is_not_theirs():
    notes = Notes()
    async with host_as(notes.server) as alice, host_as(notes.server, BOB) as bob:
        state = await added(alice, "a")
        await added(bob, "b")
        assert (await roll_back(bob, state["checkpoint"]))["error"]["code"] == -32005


@pytest.mark.req("MCPL-8.5")
async def test_a_rollback_names_a_set_that_is_there_enabled_and_has_a_state():
    notes = Notes()
    notes.server.feature_set("git.push", "Push")
    async with hosting(notes.server) as host:
        state = await added(host, "a")
        assert (await roll_back(host, state["checkpoint"], "no.such"))["error"]["code"] == -32003
        assert (await roll_back(host, state["checkpoint"], "git.push"))["error"]["code"] == -32602
        assert (await host.ask("state/rollback", {"featureSet": SET}))["error"]["code"] == -32602
        await host.update(disabled=[SET])
        assert (await roll_back(host, state["checkpoint"]))["error"]["code"] == -32001


async def test_a_server_without_state_knows_no_rollback():
    server = Server("s", "1")
    server.feature_set("memory.retrieval", "Recall")
    async with hosting(server) as host:
        assert (await roll_back(host, "chk_x"))["error"]["code"] == -32601


async def test_a_rollback_waits_for_the_call_that_runs():
    notes = Notes()
    async with hosting(notes.server) as host:
        first = await added(host, "a")
        slow = asyncio.create_task(host.call("slow", {"text": "b"}))
        await notes.entered.wait()
        back = asyncio.create_task(roll_back(host, first["checkpoint"]))
        await turns()
        assert not back.done()
        notes.gate.set()
        await slow
        assert (await back)["result"]["success"] is True
        assert notes_of(await host.call("list_notes")) == ["a"]


# -- whose it is -----------------------------------------------------------------------------------------


@for_each_row("version", [HANDSHAKE[0], *ERAS])
async def test_principals_have_states_of_their_own_that_sessions_share(version: str):
    notes = Notes()
    async with host_as(notes.server, BOB, version) as bob, host_as(notes.server, BOB, version) as again:
        await bob.call("add_note", {"text": "bob's"})
        assert notes_of(await again.call("list_notes")) == ["bob's"]
        async with host_as(notes.server, Principal("eve"), version) as eve:
            assert notes_of(await eve.call("list_notes")) == []


async def test_anonymous_sessions_have_states_of_their_own_that_end_with_them():
    notes = Notes()
    async with host_as(notes.server, STRANGER) as one, host_as(notes.server, STRANGER) as other:
        await one.call("add_note", {"text": "a"})
        assert notes_of(await other.call("list_notes")) == []
        await other.call("add_note", {"text": "b"})
        trees = await notes.states.trees()
        assert len(await trees.list_trees()) == 2
    async with asyncio.timeout(20):
        while await trees.list_trees():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_anonymous_calls_without_a_session_name_where_they_start():
    notes = Notes()
    async with host_as(notes.server, STRANGER, STATELESS) as host:
        kind, text = refusal(await host.call("add_note", {"text": "a"}))
        assert kind == "state_unowned" and '"checkpoint"' in text
        first = await added(host, "a", checkpoint=None)
        other = await added(host, "b", checkpoint=None)
        assert first["parent"] is other["parent"] is None
        assert notes_of(await host.call("list_notes", checkpoint=first["checkpoint"])) == ["a"]
        assert notes_of(await host.call("list_notes", checkpoint=other["checkpoint"])) == ["b"]
        assert (await added(host, "c", checkpoint=first["checkpoint"]))["parent"] == first["checkpoint"]
    async with host_as(notes.server, make_anonymous_principal("203.0.113.8"), STATELESS) as elsewhere:
        kind, _ = refusal(await elsewhere.call("list_notes", checkpoint=first["checkpoint"]))
        assert kind == "checkpoint_not_found"


async def test_a_plain_anonymous_client_without_a_session_is_told_what_to_do():
    async with host_as(Notes().server, STRANGER, STATELESS, mcpl=None) as host:
        assert refusal(await host.call("add_note", {"text": "a"}))[0] == "state_unowned"
    async with host_as(Notes(per="server").server, STRANGER, STATELESS, mcpl=None) as host:
        await host.call("add_note", {"text": "a"})
        assert notes_of(await host.call("list_notes")) == ["a"]


async def test_a_state_may_be_the_sessions_or_everyones():
    for per, seen in (("session", []), ("server", ["a"])):
        notes = Notes(per=per)
        async with host_as(notes.server) as one, host_as(notes.server, BOB) as other:
            await one.call("add_note", {"text": "a"})
            assert notes_of(await other.call("list_notes")) == seen
            assert notes_of(await one.call("list_notes")) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_many_interleaved_callers_never_see_one_another(count: int):
    notes = Notes(Server("notes", "1", limits=Limits(sessions_per_principal=1_000, in_flight_total=1_000)))

    async def converse(host: Host, number: int) -> None:
        for text in ("x", "y"):
            await added(host, f"{number} {text}")
        assert notes_of(await host.call("list_notes")) == [f"{number} x", f"{number} y"]

    async with AsyncExitStack() as stack:
        callers = [
            await stack.enter_async_context(host_as(notes.server, Principal(f"caller-{number}"), STATELESS))
            for number in range(count)
        ]
        await asyncio.gather(*(converse(host, number) for number, host in enumerate(callers)))
        stolen = (await added(callers[0], "mine"))["checkpoint"]
        refused = await asyncio.gather(*(host.call("list_notes", checkpoint=stolen) for host in callers[1:]))
    assert {refusal(result)[0] for result in refused} == {"checkpoint_not_found"}


by_session = Server("by-session", auth=StaticTokens({"k7Jq-a-long-random-text": "ada"}))
by_session.state(Notebook, per="session")


@by_session.tool
def count_notes(book: State[Notebook]) -> int:
    """How many notes there are."""
    return len(book.notes)


@pytest.mark.serves(by_session, over="http", token="k7Jq-a-long-random-text")
@pytest.mark.eras("stateless")
def test_a_known_caller_is_told_that_the_state_belongs_to_sessions(client: SyncClient):
    with pytest.raises(ToolError, match="for each session, and this request has no session") as refused:
        client.call("count_notes")
    assert "sign in" not in str(refused.value)
