"""The verbs of the State panel, against servers of both eras, with and without a store that can be read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Server
from defserve.client.client import Client
from defserve.client.link import ClientLink
from defserve.client.mcpl.state import StateChange
from defserve.client.targets import connect_url
from defserve.errors import PeerError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.state import MAX_CONTENT_BYTES, MAX_IDS, OPAQUE, UNTOLD
from defserve.inspector.protocol import BadMessage
from defserve.inspector.state_trees import FindStoredState, make_state_finder
from defserve.serve.lifespans import connect_in_memory
from tests.at_address import at_address, fresh
from tests.inspector import asking
from tests.inspector.asking import following
from tests.inspector.beds import BEDS, MAIL, greenhouse
from tests.waiting import until

pytestmark = pytest.mark.anyio

ERAS = ["handshake", "stateless"]


def stored_in(server: Server) -> FindStoredState:
    section = server.mcpl.state
    assert section is not None
    return make_state_finder(section)


@asynccontextmanager
async def inspecting(server: Server, era: str, stored: bool = False) -> AsyncGenerator[Inspection]:
    found = stored_in(server) if stored else None
    async with Inspection(
        InspectionTarget("it", ("it.py",), lambda: connect_in_memory(server.composition), era, found)
    ) as inspection:
        yield inspection


async def do(inspection: Inspection, verb: str, set: str = BEDS, **arguments: Any) -> Any:
    return await asking.do(inspection, verb, set=set, **arguments)


async def planted(inspection: Inspection) -> list[str]:
    """The ids of: a bed, a plant in it, and, after a rollback to the bed, another plant."""
    client = await inspection.client()
    assert client.mcpl is not None
    await client.call("add_bed", name="fern")
    bed = client.mcpl.state(BEDS).checkpoint
    await client.call("add_plant", bed="fern", plant="moss")
    moss = client.mcpl.state(BEDS).checkpoint
    assert bed is not None
    assert moss is not None
    await do(inspection, "state.rollback", checkpoint=bed)
    await client.call("add_plant", bed="fern", plant="basil")
    basil = client.mcpl.state(BEDS).checkpoint
    assert basil is not None
    return [bed, moss, basil]


def own(found: Any, name: str = BEDS) -> dict[str, Any]:
    return next(each for each in found["sets"] if each["name"] == name)["trees"][0]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("era", ERAS)
async def test_the_tree_the_difference_and_the_contents(era: str, stored: bool):
    async with inspecting(greenhouse(), era, stored) as inspection:
        bed, moss, basil = await planted(inspection)
        found = await do(inspection, "state.sets")
        assert ([each["name"] for each in found["sets"]], found["others"]) == ([BEDS, MAIL], 1)
        tree = own(found)
        assert (tree["kept"], tree["own"], tree["owner"] is not None) == (3, True, stored)
        where = {"owner": tree["owner"]} if stored else {}
        told = await do(inspection, "state.changes", ids=[bed, moss, basil], **where)
        assert told == {bed: "begins", moss: '+ beds/fern/plants/0 "moss"', basil: '+ beds/fern/plants/0 "basil"'}
        difference = await do(inspection, "state.diff", a=moss, b=basil, **where)
        assert difference["ops"] == [{"op": "replace", "path": "/beds/fern/plants/0", "was": "moss", "value": "basil"}]
        assert (difference["count"], difference["bytes"] > 20) == (1, True)
        rows = (await do(inspection, "state.lines", a=moss, b=basil, **where))["rows"]
        assert [row[:2] for row in rows if not isinstance(row, int) and row[2]] == [
            ('        "moss"', '        "basil"')
        ]
        whole = await do(inspection, "state.content", b=basil, **where)
        assert whole["content"] == {"beds": {"fern": {"wanted": 18, "plants": ["basil"]}}}
        first = await do(inspection, "state.diff", b=bed, **where)
        assert [op["path"] for op in first["ops"]] == [""]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("era", ERAS)
async def test_a_tree_is_followed_as_calls_commit(era: str, stored: bool):
    async with inspecting(greenhouse(), era, stored) as inspection:
        bed, moss, basil = await planted(inspection)
        tree = own(await do(inspection, "state.sets"))
        async with following(inspection, "state.follow", set=BEDS, owner=tree["owner"] or "") as parts:
            await until(lambda: len(parts) == 2)
            assert parts[0]["facts"].get("keep") == (1000 if stored else None)
            assert [row[:2] for row in parts[1]["checkpoints"]] == [[bed, -1], [moss, 0], [basil, 0]]
            assert [row[4] for row in parts[1]["checkpoints"]] == ["add_bed", "add_plant", "add_plant"]
            assert (parts[1]["head"], parts[1]["at"]) == (basil, basil)
            client = await inspection.client()
            await client.call("set_target", bed="fern", wanted=24)
            await until(lambda: len(parts) == 3)
            assert parts[2]["checkpoints"][0][1] == 2
            assert parts[2]["checkpoints"][0][4:] == ["set_target", "beds/fern/wanted: 18 → 24", "inspector"]
            await do(inspection, "state.rollback", checkpoint=moss)
            await until(lambda: len(parts) == 4)
            assert (parts[3]["checkpoints"], parts[3]["head"]) == ([], moss)


@pytest.mark.parametrize("era", ERAS)
async def test_a_refusal_of_the_server_is_told_and_the_head_stays(era: str):
    async with inspecting(greenhouse(), era, stored=True) as inspection:
        client = await inspection.client()
        for text in "ab":
            await client.call("send_mail", text=text)
        assert client.mcpl is not None
        first, second = client.mcpl.state(MAIL).parents
        assert await do(inspection, "state.rollback", MAIL, checkpoint=first) == {
            "success": False,
            "reason": "A mail that was sent cannot be taken back",
        }
        tree = own(await do(inspection, "state.sets"), MAIL)
        view = inspection.states.open_tree(era, MAIL, tree["owner"])
        assert (await view.get_head_id(), view.describe_tree()["undoes"]) == (second, True)
        # Its content is in the store, and the author does not want hosts to see it.
        for verb in ("state.diff", "state.lines", "state.content"):
            assert await do(inspection, verb, MAIL, owner=tree["owner"], a=first, b=second) == {"missing": OPAQUE}


async def test_a_checkpoint_that_the_server_does_not_know_is_an_error():
    async with inspecting(greenhouse(), "handshake") as inspection:
        await planted(inspection)
        with pytest.raises(PeerError, match="Checkpoint not found") as caught:
            await do(inspection, "state.rollback", checkpoint="chk_nothing")
        assert caught.value.code == -32005
        assert await do(inspection, "state.diff", b="chk_nothing") == {"missing": UNTOLD}


@pytest.mark.parametrize("era", ERAS)
async def test_a_branch_starts_where_it_was_told_and_the_head_stays(era: str):
    async with inspecting(greenhouse(), era) as inspection:
        _, moss, basil = await planted(inspection)
        assert await do(inspection, "state.branch", checkpoint=moss) == {"at": moss}
        view = inspection.states.open_tree(era, BEDS, None)
        assert await view.get_head_id() == basil
        client = await inspection.client()
        assert await client.call("add_plant", bed="fern", plant="mint") == 2
        assert (await view.list_checkpoints())[-1].parent == moss
        await do(inspection, "state.branch", checkpoint="")
        assert state_of(client) is None


def state_of(client: Client) -> str | None:
    assert client.mcpl is not None
    return client.mcpl.state(BEDS).checkpoint


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_elsewhere_is_followed_by_what_it_tells(era: str):
    async with at_address(greenhouse()) as url:

        @asynccontextmanager
        async def link() -> AsyncGenerator[ClientLink]:
            yield await connect_url(url)

        async with Inspection(InspectionTarget(url, (url,), link, era)) as inspection:
            bed, moss, basil = await planted(inspection)
            view = inspection.states.open_tree(era, BEDS, None)
            assert [(at.id, at.parent) for at in await view.list_checkpoints()] == [
                (bed, None),
                (moss, bed),
                (basil, bed),
            ]
            assert await do(inspection, "state.rollback", checkpoint=moss) == {"success": True, "reason": None}
            client = await inspection.client()
            assert await client.call("add_plant", bed="fern", plant="mint") == 2
            assert (await view.list_checkpoints())[-1].parent == moss


async def test_a_server_without_state_says_so():
    async with inspecting(fresh("hello"), "stateless") as inspection:
        assert await do(inspection, "state.sets") == {"version": None, "sets": [], "others": 0}


async def test_a_very_long_content_is_not_sent():
    async with inspecting(greenhouse(), "stateless") as inspection:
        inspection.states.record_change("stateless", StateChange(BEDS, "long", None, "x" * MAX_CONTENT_BYTES))
        assert await do(inspection, "state.content", b="long") == {"bytes": MAX_CONTENT_BYTES + 2}


async def test_the_page_cannot_ask_for_too_many_changes_at_once():
    async with inspecting(greenhouse(), "stateless") as inspection:
        for ids in ("chk_1", ["chk_1"] * (MAX_IDS + 1)):
            with pytest.raises(BadMessage, match="'ids' is a list"):
                await do(inspection, "state.changes", ids=ids)


# -- a call and its state ------------------------------------------------------------------------------------


def find_call(inspection: Inspection, tool: str) -> int:
    """The newest call of a tool."""
    recorder = inspection.recorder
    found = recorder.get_messages(recorder.first, recorder.count)
    return [each.seq for each in found if (each.kind, each.method, each.about) == ("request", "tools/call", tool)][-1]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_is_shown_with_what_it_began_with_and_what_it_left(era: str):
    async with inspecting(greenhouse(), era) as inspection:
        client = await inspection.client()
        await client.call("add_bed", name="fern")
        await client.call("add_plant", bed="fern", plant="moss")
        first, second = find_call(inspection, "add_bed"), find_call(inspection, "add_plant")
        bed, moss = await do(inspection, "state.of_call", seq=first), await do(inspection, "state.of_call", seq=second)
        assert bed["before"] is None and bed["after"] == moss["before"]
        assert moss["set"] == BEDS and moss["content"]["beds"]["fern"]["plants"] == ["moss"]
        assert [op["path"] for op in moss["ops"]] == ["/beds/fern/plants/0"]
        entry = inspection.recorder.get_message(second)
        assert entry is not None and entry.checkpoint == moss["after"] and entry.trace == moss["trace"]
        # Both ways: the checkpoint leads back to its call.
        rows = (await asking.do(inspection, "wire.rows", filter=f"checkpoint:{moss['after']}"))["rows"]
        assert [row["seq"] for row in rows] == [second]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("at", "plants"), [("before", ["moss"]), ("after", ["moss", "moss"])])
async def test_a_call_is_made_again_from_its_checkpoint_and_nothing_is_lost(era: str, at: str, plants: list[str]):
    async with inspecting(greenhouse(), era) as inspection:
        client = await inspection.client()
        await client.call("add_bed", name="fern")
        await client.call("add_plant", bed="fern", plant="moss")
        seq = find_call(inspection, "add_plant")
        await client.call("set_target", bed="fern", wanted=22)
        asked = await do(inspection, "state.run_again", seq=seq, at=at)
        assert asked["confirm"]["tool"] == "add_plant"
        done = await do(inspection, "state.run_again", seq=seq, at=at, confirmed=True)
        assert done["error"] is None and done["seq"] > seq
        old, new = [await do(inspection, "state.of_call", seq=each) for each in (seq, done["seq"])]
        assert new["before"] == old[at]
        assert new["content"]["beds"]["fern"] == {"wanted": 18, "plants": plants}
        known = {each.id for each in await inspection.states.open_tree(era, BEDS, None).list_checkpoints()}
        assert len(known) == 4 and {old["before"], old["after"], new["after"]} <= known


@pytest.mark.parametrize("era", ERAS)
async def test_what_has_no_state_says_so_and_cannot_be_run_from_there(era: str):
    async with inspecting(greenhouse(), era) as inspection:
        client = await inspection.client()
        await client.call("send_mail", text="hello")
        mail = await do(inspection, "state.of_call", seq=find_call(inspection, "send_mail"))
        assert mail["missing"] == OPAQUE and mail["after"]
        for seq, problem in ((0, "not a call"), (10**9, "no longer kept")):
            for verb in ("state.of_call", "state.run_again"):
                with pytest.raises(BadMessage, match=problem):
                    await do(inspection, verb, seq=seq, at="before")
        with pytest.raises(BadMessage, match="before or after"):
            await do(inspection, "state.run_again", seq=find_call(inspection, "send_mail"), at="now")
