"""States that a server changes by itself, with hosts that are told and hosts that are not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import BaseModel, Field

from defserve import Server, State
from defserve.errors import NoBackChannel, PeerError
from defserve.protocols.mcpl.state.states import States
from defserve.protocols.mcpl.vocabulary import StateRefused
from tests.protocols.mcpl.hosts import MCPL, MCPL_05, SILENCE, HostError, Json, hosting, session_of
from tests.raw import text_of, until
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05")]

TAKES: Json = {**MCPL_05, "stateUpdate": True}
ACCEPTED: Json = {"state/update": {"accepted": True}}


class Book(BaseModel):
    lines: list[str] = []
    count: int = 0


class Score(BaseModel):
    points: int = Field(default=0, le=10)


def notes(**options: Any) -> tuple[Server, States[Book]]:
    server = Server("notes", "1")
    keeping = server.feature_set("notes.keep", "Keep notes")
    books = keeping.state(Book, **{"per": "session", **options})

    @keeping.tool
    async def note(line: str, book: State[Book]) -> str:
        book.lines.append(line)
        return " ".join(book.lines)

    @keeping.tool
    async def tidy() -> str:
        made = await books.update(lambda book: book.lines.sort())
        return made.id if made is not None else "tidy already"

    @keeping.tool
    async def both(book: State[Book]) -> None:
        await books.update(add("deadlock"))

    return server, books


def add(line: str) -> Any:
    return lambda book: book.lines.append(line)


async def test_a_host_that_takes_states_is_told():
    server, books = notes()
    async with hosting(server, mcpl=TAKES, answers=ACCEPTED) as host:
        await host.grant()
        session = session_of(server)
        first = await books.update(add("x" * 200), owner=session)
        second = await books.update(add("b"), owner=session)
        assert first is not None and second is not None
        whole, patch = host.list_requested_uris("state/update")
        assert whole == {
            "featureSet": "notes.keep",
            "checkpoint": first.id,
            "parent": None,
            "data": {"lines": ["x" * 200], "count": 0},
        }
        assert (patch["checkpoint"], patch["parent"]) == (second.id, first.id)
        assert patch["patch"] == [{"op": "add", "path": "/lines/-", "value": "b"}] or "patch" in patch
        assert text_of(await host.call("note", {"line": "c"})).endswith(" b c")


async def test_inside_a_tool_it_is_the_callers():
    server, _ = notes()
    async with hosting(server, mcpl=TAKES, answers=ACCEPTED) as host:
        await host.grant()
        for line in ("b", "a"):
            await host.call("note", {"line": line})
        id = text_of(await host.call("tidy"))
        assert [one["checkpoint"] for one in host.list_requested_uris("state/update")] == [id]
        assert text_of(await host.call("tidy")) == "tidy already"
        assert text_of(await host.call("note", {"line": "c"})) == "a b c"


@for_each_row("mcpl", [MCPL, MCPL_05, None], ids=["0.4", "0.5", "plain"])
async def test_other_hosts_hear_nothing_and_the_state_has_changed(mcpl: Any):
    server, books = notes()
    async with hosting(server, mcpl=mcpl) as host:
        if host.is_05:
            await host.grant()
        await books.update(add("a"), owner=session_of(server))
        assert host.asked == []
        assert text_of(await host.call("note", {"line": "b"})) == "a b"


async def test_hosts_that_do_not_answer_hold_up_no_other():
    server, books = notes(per="server")
    async with AsyncExitStack() as opened:
        silent = {"state/update": SILENCE}
        hosts = [await opened.enter_async_context(hosting(server, mcpl=TAKES, answers=silent)) for _ in range(3)]
        for host in hosts:
            await host.grant()
        updating = asyncio.create_task(books.update(add("a")))
        await until(lambda: all(host.list_requested_uris("state/update") for host in hosts))
        updating.cancel()


async def test_before_a_grant_nothing_is_told():
    server, books = notes()
    async with hosting(server, mcpl=TAKES, answers=ACCEPTED) as host:
        await books.update(add("a"), owner=session_of(server))
        assert host.asked == []


@pytest.mark.parametrize("answer", [{"accepted": False, "reason": "behind"}, {}, HostError(-32601)], ids=str)
async def test_a_host_that_refuses_is_logged(answer: Any, caplog: pytest.LogCaptureFixture):
    server, books = notes()
    async with hosting(server, mcpl=TAKES, answers={"state/update": answer}) as host:
        await host.grant()
        assert await books.update(add("a"), owner=session_of(server)) is not None
        assert "state/update of notes.keep" in caplog.text


async def test_an_opaque_state_keeps_its_content():
    server, books = notes(mode="opaque")
    async with hosting(server, mcpl=TAKES, answers=ACCEPTED) as host:
        await host.grant()
        await books.update(add("secret"), owner=session_of(server))
        assert set(host.list_requested_uris("state/update")[0]) == {"featureSet", "checkpoint", "parent"}


async def test_a_tool_that_holds_the_state_changes_its_own_value():
    server, _ = notes()
    async with hosting(server) as host:
        assert (await host.call("both"))["isError"]


async def test_what_cannot_be_kept_changes_nothing():
    server, books = notes()

    def count(book: Book) -> None:
        book.count = 2**60

    async with hosting(server, mcpl=TAKES, answers=ACCEPTED) as host:
        await host.grant()
        with pytest.raises(StateRefused, match="past 2\\^53"):
            await books.update(count, owner=session_of(server))
        assert host.asked == []
        assert text_of(await host.call("note", {"line": "a"})) == "a"


async def test_a_change_that_does_not_fit_the_model_is_refused():
    server = Server("score", "1")
    scores = server.feature_set("score.keep", "Keep the score").state(Score, per="session")

    def exceed(score: Score) -> None:
        score.points = 11

    async with hosting(server, mcpl=TAKES, answers=ACCEPTED) as host:
        await host.grant()
        with pytest.raises(StateRefused, match="does not fit its model: points"):
            await scores.update(exceed, owner=session_of(server))
        assert host.asked == []


async def test_a_host_is_asked_for_the_state_it_keeps():
    server, books = notes()
    answers = {"state/get": {"checkpoint": "c1", "data": {"lines": ["kept"]}}}
    async with hosting(server, mcpl=TAKES, answers=answers) as host:
        await host.grant()
        found = await books.of_host(session_of(server))
        assert (found.checkpoint, found.value) == ("c1", Book(lines=["kept"]))
        assert host.list_requested_uris("state/get") == [{"featureSet": "notes.keep"}]


@for_each_row(
    ("answer", "error"),
    [
        ({"checkpoint": 5}, PeerError),
        ([], PeerError),
        ({"checkpoint": "x" * 5_000}, PeerError),
        (HostError(-32006, "No host-managed state"), PeerError),
        ({"checkpoint": "c", "data": {"lines": 5}}, StateRefused),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_what_a_host_says_is_checked(answer: Any, error: type[Exception]):
    server, books = notes()
    async with hosting(server, mcpl=TAKES, answers={"state/get": answer}) as host:
        await host.grant()
        with pytest.raises(error):
            await books.of_host(session_of(server))


async def test_a_host_that_keeps_nothing_is_not_asked():
    server, books = notes()
    async with hosting(server, mcpl=MCPL_05) as host:
        await host.grant()
        with pytest.raises(NoBackChannel):
            await books.of_host(session_of(server))
        assert host.asked == []
