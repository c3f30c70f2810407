"""The host and servers that keep state, over every road."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve.client import Answers, Client, Mcpl, RemoteServer, RolledBack, StateChange
from defserve.client.mcpl import state as states
from defserve.client.mcpl.state import StateSendMode
from defserve.errors import PeerError, PeerTimeout, ToolError, UsageError
from defserve.protocols.mcpl.vocabulary import UnknownFeatureSet
from defserve.stores.checkpoints.json_patches import apply_patch_to_text
from tests.at_address import at_address, fresh
from tests.client.mcpl.scripted import Trail, hosting, live_server, stateless_server
from tests.forking.spawning import spawn
from tests.rows import for_each_row
from tests.waiting import DEADLINE, until

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[3] / "examples"
ROADS = ["memory", "stdio", "http", "ws"]
HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
SET = "notes.edit"
BLOCK: dict[str, Any] = {"version": "0.4", "featureSets": {SET: {"uses": ["tools"], "rollback": True}}}


@asynccontextmanager
async def example(name: str, road: str = "memory", version: str = HANDSHAKE, **options: Any) -> AsyncGenerator[Client]:
    how: dict[str, Any] = {"answers": options.pop("answers", None), "timeout": options.pop("timeout", 20)}
    key = options.pop("key", None)
    settings: dict[str, Any] = {"audit": [], **options}
    mcpl = Mcpl(**settings)
    if road == "memory":
        async with fresh(name).connect(version, mcpl=mcpl, **how) as client:
            yield client
    elif road == "stdio":
        link = await spawn(EXAMPLES / f"{name}.py")
        async with Client(link, version=version, mcpl=mcpl, **how) as client:
            yield client
    else:
        async with (
            at_address(fresh(name), road, key) as url,
            RemoteServer(url, token=key).connect(version, mcpl=mcpl, **how) as client,
        ):
            yield client


def texts(client: Client) -> list[str]:
    """The notes, as the host itself has them."""
    assert client.mcpl is not None
    return [note["text"] for note in client.mcpl.state(SET).content["notes"]]


def sent(server: Any) -> list[dict[str, Any]]:
    """What the calls brought along besides their names and arguments."""
    calls = (message["params"] for message in server.sent if message.get("method") == "tools/call")
    return [{name: call[name] for name in ("checkpoint", "state") if name in call} for call in calls]


@pytest.mark.slow
@pytest.mark.req("MCPL-8.2", "MCPL-8.3", "MCPL-8.4", "MCPL-8.5")
@for_each_row("version", [HANDSHAKE, STATELESS])
@for_each_row("road", ROADS)
@for_each_row("sending", ["host", "checkpoint"])
async def test_a_host_follows_rolls_back_and_branches(road: str, version: str, sending: StateSendMode):
    async with example("notes", road, version, state=sending) as client:
        mcpl = client.mcpl
        assert mcpl is not None
        assert mcpl.state(SET).checkpoint is None
        marks: list[Any] = []
        for text in "abc":
            await client.call("add_note", text=text)
            marks.append(mcpl.state(SET).checkpoint)
        assert texts(client) == ["a", "b", "c"] == await client.call("list_notes")
        with pytest.raises(ToolError):
            await client.call("add_note", text="")
        assert await mcpl.rollback(SET, marks[0]) == RolledBack(marks[0], True)
        assert texts(client) == ["a"] == await client.call("list_notes")
        await client.call("add_note", text="d")
        mcpl.branch(SET, marks[1])
        await client.call("add_note", text="e")
        assert texts(client) == ["a", "b", "e"] == await client.call("list_notes")
        state = mcpl.state(SET)
        assert list(state.parents.values()) == [None, marks[0], marks[1], marks[0], marks[1]]
        with pytest.raises(PeerError) as caught:
            await mcpl.rollback(SET, "chk_old")
        assert caught.value.code == (-32005 if version == HANDSHAKE else caught.value.code)
        assert "Checkpoint not found" in caught.value.message


@for_each_row("version", [HANDSHAKE, STATELESS])
async def test_a_host_that_sends_nothing_goes_on_where_the_server_is(version: str):
    async with example("notes", version=version, state=None) as client:
        mcpl = client.mcpl
        assert mcpl is not None
        for text in "ab":
            await client.call("add_note", text=text)
        first, second = mcpl.state(SET).parents
        mcpl.branch(SET, first)
        assert await client.call("list_notes") == ["a"]
        await client.call("add_note", text="c")
        await client.call("add_note", text="d")
        assert await client.call("list_notes") == ["a", "c", "d"]
        await mcpl.rollback(SET, second)
        assert await client.call("list_notes") == ["a", "b"]


@pytest.mark.req("MCPL-8.5", "MCPL-8.6")
@for_each_row("version", [HANDSHAKE, STATELESS])
@for_each_row("road", ROADS)
async def test_opaque_checkpoints_are_followed_by_their_names(road: str, version: str):
    trail = Trail()
    async with example("git_like", road, version, audit=[trail], key="k" * 40) as client:
        mcpl = client.mcpl
        assert mcpl is not None
        for message in ("one", "two"):
            await client.call("git_commit", message=message)
        state = mcpl.state("git.commit")
        first, second = state.parents
        assert (state.checkpoint, state.content) == (second, None)
        assert (await mcpl.rollback("git.commit", first)).success
        assert await client.call("git_log") == ["one"]
        await client.call("git_commit", message="three")
        pushed = await client.call("git_push")
        refused = await mcpl.rollback("git.commit", second)
        assert (refused.success, refused.reason) == (False, f"{pushed} was pushed")
        assert await client.call("git_log") == ["three", "one"]
        assert [record["outcome"] for record in trail.of("state/rollback")] == ["success", "failure"]


@for_each_row("road", ["http", "ws"])
async def test_a_caller_that_cannot_be_told_apart_begins_anew_where_it_says_nothing(road: str):
    async with example("notes", road, STATELESS) as client:
        for text in "ab":
            await client.call("add_note", text=text)
        assert client.mcpl is not None
        client.mcpl.branch(SET, None)
        await client.call("add_note", text="c")
        assert texts(client) == ["c"]


async def test_calls_of_one_host_at_once_do_not_branch_off():
    async with example("notes", road="stdio") as client:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(client.call("add_note", text=str(number)))
        assert sorted(map(int, texts(client))) == list(range(20))


@pytest.mark.slow
async def test_a_call_that_waits_too_long_for_its_turn_is_given_up():
    refused: list[Exception] = []

    async def nested(message: str, schema: Any) -> Any:
        try:
            await client.call("list_notes")
        except PeerTimeout as error:
            refused.append(error)
        return {"value": True}

    async with example("notes", answers=Answers(ask=nested), timeout=2) as client:
        await client.call("add_note", text="a")
        assert await client.call("clear") == "1 notes gone"
    assert "takes too long" in str(refused[0])


async def test_a_host_that_kept_the_content_comes_back_with_it():
    server = fresh("notes")
    async with server.connect(HANDSHAKE, mcpl=Mcpl(audit=[])) as client:
        await client.call("add_note", text="a")
        assert client.mcpl is not None
        kept = client.mcpl.state(SET)
        await client.call("add_note", text="b")
    async with server.connect(HANDSHAKE, mcpl=Mcpl(audit=[])) as client:
        assert client.mcpl is not None
        client.mcpl.branch(SET, kept.checkpoint, kept.content)
        assert await client.call("list_notes") == ["a"]
        changed = {"notes": [{"id": 1, "text": "forged"}]}
        client.mcpl.branch(SET, kept.checkpoint, changed)
        with pytest.raises((ToolError, PeerError), match="does not belong"):
            await client.call("list_notes")


@for_each_row("version", [HANDSHAKE, STATELESS])
async def test_a_host_is_told_of_every_checkpoint_and_of_who_made_it(version: str):
    told: list[StateChange] = []
    async with example("notes", version=version, on_state=told.append) as client:
        for text in "ab":
            await client.call("add_note", text=text)
        assert client.mcpl is not None
        first, second = client.mcpl.state(SET).parents
        await client.mcpl.rollback(SET, first)
        with pytest.raises(ToolError):
            await client.call("add_note", text="")
    one = {"notes": [{"id": 1, "text": "a"}]}
    two = {"notes": [*one["notes"], {"id": 2, "text": "b"}]}
    assert told == [
        StateChange(SET, first, None, one, "add_note"),
        StateChange(SET, second, first, two, "add_note"),
        StateChange(SET, first, None, one, by_rollback=True),
    ]


# -- against scripted servers: what others send ----------------------------------------------------------


def stating(*states: Any, meta: bool = False) -> dict[str, Any]:
    """Replies of a server whose calls tell these states, one after another."""
    left = list(states)

    def call(request: Any) -> Any:
        state = left.pop(0)
        told = {"_meta": {"dev.defserve/state": state}} if meta else {"state": state}
        return {"content": [], **(told if state is not None else {})}

    tool = {"name": "add_note", "inputSchema": {"type": "object"}, "_meta": {"featureSet": SET}}
    return {"tools/call": call, "tools/list": {"tools": [tool]}}


@pytest.mark.req("MCPL-8.3", "MCPL-8.4")
async def test_the_exchange_of_the_document():
    add = {"op": "add", "path": "/notes/-", "value": {"id": 1, "text": "Remember to..."}}
    server = live_server(
        BLOCK,
        stating(
            {"checkpoint": "chk_abc", "parent": None, "data": {"notes": []}},
            {"checkpoint": "chk_def", "parent": "chk_abc", "patch": [add]},
            None,
        ),
    )
    async with hosting(server) as mcpl:
        for _ in range(3):
            await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        notes = [{"id": 1, "text": "Remember to..."}]
        assert mcpl.state(SET).content == {"notes": notes}
    assert sent(server) == [
        {},
        {"checkpoint": "chk_abc", "state": {"notes": []}},
        {"checkpoint": "chk_def", "state": {"notes": notes}},
    ]


class SlowPatches:
    """Stands in for the patching of states: each waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.allowed = threading.Event(), threading.Event()
        monkeypatch.setattr(states, "apply_patch_to_text", self._apply)

    def _apply(self, held: bytes, ops: Any) -> Any:
        self.begun.set()
        assert self.allowed.wait(DEADLINE)
        return apply_patch_to_text(held, ops)


GROWN = {"checkpoint": "chk_b", "parent": "chk_a", "patch": [{"op": "add", "path": "/n", "value": 1}]}


async def test_the_loop_of_a_host_goes_on_while_a_patch_is_applied(monkeypatch: pytest.MonkeyPatch):
    slow = SlowPatches(monkeypatch)
    server = live_server(BLOCK, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, GROWN))
    async with hosting(server) as mcpl:
        call = mcpl._client.call_raw  # pyright: ignore[reportPrivateUsage]
        await call("add_note")
        second = asyncio.create_task(call("add_note"))
        await until(slow.begun.is_set)
        assert mcpl.state(SET).checkpoint == "chk_a"
        slow.allowed.set()
        await second
        assert (mcpl.state(SET).checkpoint, mcpl.state(SET).content) == ("chk_b", {"n": 1})


async def test_where_a_host_branches_off_while_a_patch_is_applied_it_stays(monkeypatch: pytest.MonkeyPatch):
    slow, told = SlowPatches(monkeypatch), list[StateChange]()
    server = live_server(BLOCK, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, GROWN, None))
    async with hosting(server, Mcpl(audit=[], on_state=told.append)) as mcpl:
        call = mcpl._client.call_raw  # pyright: ignore[reportPrivateUsage]
        await call("add_note")
        second = asyncio.create_task(call("add_note"))
        await until(slow.begun.is_set)
        mcpl.branch(SET, "chk_a")
        slow.allowed.set()
        await second
        assert (mcpl.state(SET).checkpoint, list(mcpl.state(SET).parents)) == ("chk_a", ["chk_a", "chk_b"])
        await call("add_note")
    assert [change.checkpoint for change in told] == ["chk_a"]
    assert sent(server)[2] == {"checkpoint": "chk_a", "state": {}}


async def test_a_call_has_its_result_even_if_its_set_goes_while_states_are_read(monkeypatch: pytest.MonkeyPatch):
    slow = SlowPatches(monkeypatch)
    last = {"checkpoint": "chk_c", "parent": "chk_b", "data": {}}
    server = live_server(BLOCK, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, GROWN, last))
    async with hosting(server, Mcpl(state=None, audit=[])) as mcpl:
        call = mcpl._client.call_raw  # pyright: ignore[reportPrivateUsage]
        await call("add_note")
        second = asyncio.create_task(call("add_note"))
        await until(slow.begun.is_set)
        third = asyncio.create_task(call("add_note"))
        await until(lambda: len(sent(server)) == 3)
        server.say({"method": "featureSets/changed", "params": {"removed": [SET]}})
        await until(lambda: SET not in mcpl.feature_sets)
        slow.allowed.set()
        assert [result["state"]["checkpoint"] for result in (await second, await third)] == ["chk_b", "chk_c"]


@pytest.mark.req("MCPL-05")
async def test_of_two_updates_of_one_parent_the_second_is_refused_even_while_the_first_is_applied(
    monkeypatch: pytest.MonkeyPatch,
):
    slow = SlowPatches(monkeypatch)
    server = live_server(BLOCK, stating())
    async with hosting(server, Mcpl(version="0.5", audit=[])) as mcpl:
        first = {"featureSet": SET, "checkpoint": "chk_a", "parent": None, "data": {}}
        assert (await server.ask("state/update", first))["result"] == {"accepted": True}
        asked = [
            server.ask("state/update", {"featureSet": SET, **GROWN, "checkpoint": id}) for id in ("chk_b", "chk_c")
        ]
        both = asyncio.gather(*asked)
        await until(slow.begun.is_set)
        slow.allowed.set()
        assert [reply["result"]["accepted"] for reply in await both] == [True, False]
        assert mcpl.state(SET).checkpoint == "chk_b"


def test_a_content_that_is_kept_counts_with_its_names():
    contents = states.StateContentCache(100_000)
    for number in range(1_000):
        contents.store_content("s", f"{number:0>1000}", 0)
    assert contents.get_content("s", f"{999:0>1000}") == 0
    assert sum(contents.get_content("s", f"{number:0>1000}") is not None for number in range(1_000)) < 100


async def test_without_a_session_the_mirror_in_meta_is_read():
    server = stateless_server(BLOCK, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, None, meta=True))
    async with hosting(server) as mcpl:
        for _ in range(2):
            await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        assert mcpl.state(SET).checkpoint == "chk_a"
    assert sent(server) == [{}, {"checkpoint": "chk_a", "state": {}}]


@for_each_row(
    "state",
    [
        {"checkpoint": "chk_b", "parent": "chk_a", "patch": [{"op": "remove", "path": "/none"}]},
        {"checkpoint": "chk_b", "parent": "chk_unknown", "patch": []},
        {"checkpoint": "chk_b", "parent": 7, "patch": "none"},
        {"checkpoint": "chk_b", "parent": "chk_a", "patch": [{"op": "add", "path": "", "value": "x" * 2_000_000}]},
    ],
)
async def test_a_patch_that_cannot_be_followed_leaves_the_checkpoint(state: Any):
    server = live_server(BLOCK, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, state, None))
    async with hosting(server) as mcpl:
        for _ in range(3):
            await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        assert (mcpl.state(SET).checkpoint, mcpl.state(SET).content) == ("chk_b", None)
    assert sent(server)[2] == {"checkpoint": "chk_b"}


@for_each_row(
    "state",
    [
        {"checkpoint": 7, "parent": None},
        {"parent": None, "data": {}},
        {"checkpoint": "chk_a", "featureSet": "undeclared", "data": {}},
        {"checkpoint": "chk_a", "featureSet": [], "data": {}},
        "chk_a",
    ],
)
async def test_what_is_no_state_is_passed_over(state: Any):
    server = live_server(BLOCK, stating(state, None))
    async with hosting(server) as mcpl:
        for _ in range(2):
            await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        assert mcpl.state(SET).checkpoint is None
    assert sent(server) == [{}, {}]


async def test_what_the_caller_says_itself_goes_before():
    server = live_server(BLOCK, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, None))
    async with hosting(server) as mcpl:
        call = mcpl._client.call_raw  # pyright: ignore[reportPrivateUsage]
        await call("add_note")
        await call("add_note", fields={"checkpoint": "chk_own"})
    assert sent(server)[1] == {"checkpoint": "chk_own"}


async def test_a_plain_server_is_sent_nothing_of_state():
    server = live_server(None, stating({"checkpoint": "chk_a", "parent": None, "data": {}}, None))
    async with hosting(server) as mcpl:
        for _ in range(2):
            await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(UnknownFeatureSet):
            mcpl.state(SET)
        with pytest.raises(UnknownFeatureSet):
            await mcpl.rollback(SET, "chk_a")
    assert sent(server) == [{}, {}]


def test_a_way_of_sending_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="checkpoint"):
        Mcpl(state="patch")  # pyright: ignore[reportArgumentType]


# -- whose checkpoint -------------------------------------------------------------------------------------


NAMELESS: Any = {"checkpoint": "chk_a", "parent": None, "data": {"a": 1}}
OTHER: Any = {"description": "x", "uses": ["tools"], "rollback": True}
TWO: Any = {**BLOCK, "featureSets": {**BLOCK["featureSets"], "other": OTHER}}


async def test_a_checkpoint_without_a_name_belongs_to_the_only_set_that_keeps_state():
    replies = stating(NAMELESS, None)
    replies["tools/list"] = {"tools": [{"name": "add_note", "inputSchema": {"type": "object"}}]}
    server = live_server(BLOCK, replies)
    async with hosting(server) as mcpl:
        for _ in range(2):
            await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        assert mcpl.state(SET).checkpoint == "chk_a"
    assert sent(server)[1] == {"checkpoint": "chk_a", "state": {"a": 1}}


async def test_a_checkpoint_that_could_be_of_several_sets_is_dropped(caplog: pytest.LogCaptureFixture):
    replies = stating(NAMELESS, None)
    replies["tools/list"] = {"tools": [{"name": "add_note", "inputSchema": {"type": "object"}}]}
    async with hosting(live_server(TWO, replies)) as mcpl:
        await mcpl._client.call_raw("add_note")  # pyright: ignore[reportPrivateUsage]
        assert mcpl.state(SET).checkpoint is mcpl.state("other").checkpoint is None
    assert "belongs to no feature set" in caplog.text


# -- what a server changes by itself -----------------------------------------------------------------------


@pytest.mark.req("MCPL-05")
async def test_a_server_updates_a_state_and_asks_for_it():
    server = live_server(BLOCK, stating(NAMELESS))
    async with hosting(server, Mcpl(version="0.5", audit=[])) as mcpl:
        get = {"featureSet": SET}
        assert (await server.ask("state/get", get))["result"] == {"checkpoint": None, "data": None}
        first = {"featureSet": SET, "checkpoint": "c1", "parent": None, "data": {"n": 1}}
        assert (await server.ask("state/update", first))["result"] == {"accepted": True}
        second = {"featureSet": SET, "checkpoint": "c2", "parent": "c1"}
        patch = [{"op": "replace", "path": "/n", "value": 2}]
        assert (await server.ask("state/update", {**second, "patch": patch}))["result"] == {"accepted": True}
        assert (await server.ask("state/get", get))["result"] == {"checkpoint": "c2", "data": {"n": 2}}
        assert mcpl.state(SET).checkpoint == "c2"
        refused = (await server.ask("state/update", {**second, "checkpoint": "c3", "data": {}}))["result"]
        assert refused["accepted"] is False and "another checkpoint" in refused["reason"]
        both = {**second, "parent": "c2", "data": {}, "patch": []}
        assert (await server.ask("state/update", both))["error"]["code"] == -32602
        assert (await server.ask("state/get", {"featureSet": "nobody"}))["error"]["code"] == -32003


@pytest.mark.req("MCPL-05")
async def test_a_host_that_keeps_no_state_says_so():
    for mcpl, code in ((Mcpl(version="0.5", state=None, audit=[]), -32601), (Mcpl(audit=[]), -32601)):
        server = live_server(BLOCK, stating(NAMELESS))
        async with hosting(server, mcpl):
            assert (await server.ask("state/get", {"featureSet": SET}))["error"]["code"] == code
    plain: Any = {"version": "0.4", "featureSets": {SET: {"description": "x", "uses": ["tools"]}}}
    server = live_server(plain)
    async with hosting(server, Mcpl(version="0.5", audit=[])):
        assert (await server.ask("state/get", {"featureSet": SET}))["error"]["code"] == -32006
