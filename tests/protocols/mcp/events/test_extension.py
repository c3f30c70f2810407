"""Declare, emit, list, poll and stream, as a peer sees them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import Server
from defserve.errors import LimitExceeded, UsageError
from defserve.protocols.mcp.events import extension, streams
from defserve.protocols.mcp.events.draft import MAX_EVENT_DATA_BYTES
from defserve.protocols.mcp.events.event_log import EventLog
from defserve.protocols.mcp.events.extension import Events
from defserve.server import EventSettings
from defserve.stores import store as leases
from defserve.stores.store import LEASE_SPACES, MemoryStore, StoreChange
from tests.protocols.mcp.events.repositories import (
    EXTENSION,
    SEP,
    SUBSCRIPTION,
    Push,
    ask_result,
    make_server,
    numbers,
    open_stream,
    poll,
)
from tests.raw import HANDSHAKE, Json, raw, turns, until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

METHODS = ("list", "poll", "stream", "subscribe", "unsubscribe")


# -- the switch


@for_each_row("method", METHODS)
async def test_without_the_switch_the_methods_do_not_exist(method: str):
    async with raw(Server("plain", "1")) as peer:
        assert (await peer.ask(f"events/{method}"))["error"]["code"] == -32601
        assert EXTENSION not in str(peer.opening["capabilities"])


@for_each_row("version", HANDSHAKE)
async def test_versions_before_the_draft_have_no_events(version: str):
    async with raw(make_server(), version) as peer:
        assert (await peer.ask("events/list"))["error"]["code"] == -32601
        assert "events" not in peer.opening["capabilities"]


CODE = """
import sys
from defserve import Server
server = Server("s", "1"{options})
server.composition
print(any(name.startswith("defserve.protocols.mcp.events") for name in sys.modules))
"""


@pytest.mark.parametrize(("options", "is_imported"), [("", "False"), (", experimental=['events']", "True")])
def test_only_a_server_with_the_switch_imports_events(options: str, is_imported: str):
    command = [sys.executable, "-c", CODE.replace("{options}", options)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == is_imported


def test_events_add_nothing_to_the_call_of_a_tool():
    plain, switched = Server("plain", "1"), make_server()
    for server in (plain, switched):
        server.tool(name="one")(_one)
    methods = [server.composition.negotiate_terms(_offer(server)).methods["tools/call"] for server in (plain, switched)]
    assert methods[0].run.__func__ is methods[1].run.__func__  # pyright: ignore  (no wrapper around it)
    tools = [server.mcp.tools.registry.get("one") for server in (plain, switched)]
    tables = [server.composition.negotiate_terms(_offer(server)).table for server in (plain, switched)]
    assert [table.pipeline(tool).empty for table, tool in zip(tables, tools, strict=True)] == [True, True]


def _one() -> str:
    return "1"


def _offer(server: Server) -> Any:
    from defserve.core.extension import Offer

    return Offer("2026-07-28", {}, {}, stateless=True)


def test_an_event_needs_the_switch():
    with pytest.raises(UsageError, match="experimental"):
        Server("plain").event(_declared)


def test_an_experiment_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="did you mean 'events'"):
        Server("plain", experimental=["event"])  # pyright: ignore[reportArgumentType]


def _declared() -> Push: ...


# -- declaring


async def test_an_event_is_listed_as_it_is_declared():
    async with raw(make_server()) as peer:
        assert peer.opening["capabilities"]["extensions"] == {EXTENSION: {"listChanged": True}}
        assert peer.opening["capabilities"]["events"] == {}
        listed = await ask_result(peer, "events/list")
        assert listed["events"] == [
            {
                "name": "pushed",
                "description": "Somebody pushed commits.",
                "delivery": ["poll", "push", "webhook"],
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "repository": {"type": "string"},
                        "branch": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                    },
                    "required": ["repository"],
                    "additionalProperties": False,
                },
                "payloadSchema": {
                    "type": "object",
                    "properties": {"commits": {"type": "integer"}},
                    "required": ["commits"],
                },
            }
        ]


def _text() -> str: ...


def _untyped(): ...


def _busy() -> Push:
    return Push(commits=1)


def _reserved(event_id: str) -> Push: ...


@for_each_row(
    "function, options, problem",
    [
        (_text, {}, "not an object"),
        (_untyped, {}, "not an object"),
        (_busy, {}, "never run"),
        (_reserved, {}, "emit_event takes itself"),
        (_declared, {"delivery": ["mail"]}, "does not exist"),
        (_declared, {"delivery": []}, "in no way"),
        (_declared, {"name": "a b"}, "name"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(function: Any, options: Any, problem: str):
    with pytest.raises(UsageError, match=problem):
        make_server().add_event(function, **options)


async def test_an_event_that_needs_a_scope_is_hidden_from_callers_without_it():
    server = make_server()
    server.add_event(_declared, name="secret", scopes=["secret:read"])
    # The local user has every scope.
    async with raw(server) as peer:
        assert len((await ask_result(peer, "events/list"))["events"]) == 2


def test_a_server_with_events_cannot_be_mounted_and_lose_them():
    parent = Server("parent", "1")
    parent.mount(make_server())
    with pytest.raises(UsageError, match="events"):
        _ = parent.composition


# -- emitting


async def test_a_payload_that_does_not_fit_is_refused_where_it_is_emitted():
    server = make_server()
    with pytest.raises(TypeError):
        await server.emit_event("pushed", {"commits": "many"}, repository="x")


@for_each_row("arguments", [{}, {"repository": 7}, {"repository": "x", "other": 1}])
async def test_arguments_that_do_not_fit_are_refused_where_they_are_emitted(arguments: Json):
    with pytest.raises(UsageError, match="cannot be emitted"):
        await make_server().emit_event("pushed", Push(commits=1), **arguments)


async def test_data_that_no_webhook_could_carry_is_refused():
    class Long(BaseModel):
        text: str

    server = make_server()

    @server.event
    def written() -> Long: ...

    with pytest.raises(LimitExceeded):
        await server.emit_event(written, Long(text="x" * MAX_EVENT_DATA_BYTES))


@for_each_row("event", ["pished", _declared])
async def test_an_event_that_is_not_declared_cannot_be_emitted(event: Any):
    with pytest.raises(UsageError):
        await make_server().emit_event(event, Push(commits=1))


async def test_an_event_can_be_emitted_before_serving_and_from_a_thread():
    server = make_server()
    server.emit_event_soon("pushed", Push(commits=1), repository="x", event_id="upstream-1")
    async with raw(server) as peer:
        await open_stream(peer)
        thread = threading.Thread(
            target=lambda: server.emit_event_soon("pushed", Push(commits=2), repository="x", event_id="upstream-2")
        )
        thread.start()
        heard = await peer.hear()
        while heard["params"]["eventId"] != "upstream-2":
            heard = await peer.hear()
        thread.join()
        assert heard["params"]["data"] == {"commits": 2}


async def test_events_that_nobody_waits_for_are_in_the_store_before_the_server_has_ended(tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'events.db'}"
    server = make_server(address)
    async with raw(server) as peer:
        cursor = (await poll(peer, None))["cursor"]
        for number in range(1_000):
            server.emit_event_soon("pushed", Push(commits=number), repository="x")
    async with raw(make_server(address)) as peer:
        told, has_more = list[Json](), True
        while has_more:
            page = await poll(peer, cursor)
            told, cursor, has_more = [*told, *page["events"]], page["cursor"], page["hasMore"]
    assert numbers(told) == list(range(1_000))


async def test_events_that_the_store_does_not_take_before_the_end_are_counted_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(extension, "FAREWELL_SECONDS", 0.0)
    store = MemoryStore()
    server = make_server(store)
    async with raw(server):

        async def change_late(change: StoreChange) -> bool:
            await turns()
            return True

        monkeypatch.setattr(store, "change", change_late)
        server.emit_event_soon("pushed", Push(commits=1), repository="x")
    assert "1 events that were emitted are not in the store" in caplog.text


async def test_another_loop_emits_through_the_one_that_serves():
    server = make_server()
    async with raw(server) as peer:
        await open_stream(peer)
        await asyncio.to_thread(lambda: asyncio.run(server.emit_event("pushed", Push(commits=5), repository="x")))
        assert (await peer.hear())["params"]["data"] == {"commits": 5}


# -- polling


async def test_a_poll_without_a_cursor_brings_only_a_cursor():
    async with raw(make_server()) as peer:
        await peer.call("push", {"repository": "x"})
        first = await poll(peer, None)
        assert (first["events"], first["truncated"], first["hasMore"]) == ([], False, False)
        assert first["nextPollMs"] >= 1000
        await peer.call("push", {"repository": "x", "commits": 2})
        second = await poll(peer, first["cursor"])
        (event,) = second["events"]
        assert set(event) == {"eventId", "name", "timestamp", "data"}
        assert (event["name"], event["data"]) == ("pushed", {"commits": 2})
        assert (await poll(peer, second["cursor"]))["events"] == []


@for_each_row(
    "arguments, expected",
    [
        ({"repository": "x"}, [1, 2]),
        ({"repository": "x", "branch": "main"}, [1]),
        ({"repository": "x", "branch": None}, [1, 2]),
        ({"repository": "y"}, [3]),
        ({"repository": "z"}, []),
    ],
)
async def test_a_subscriber_gets_what_equals_each_argument_it_gave(arguments: Json, expected: list[int]):
    async with raw(make_server()) as peer:
        start = (await poll(peer, None))["cursor"]
        await peer.call("push", {"repository": "x", "branch": "main", "commits": 1})
        await peer.call("push", {"repository": "x", "branch": "dev", "commits": 2})
        await peer.call("push", {"repository": "y", "commits": 3})
        assert numbers((await poll(peer, start, arguments=arguments))["events"]) == expected


async def test_pages_follow_one_another_without_a_gap():
    async with raw(make_server()) as peer:
        cursor, found = (await poll(peer, None))["cursor"], list[int]()
        for number in range(7):
            await peer.call("push", {"repository": "x" if number % 2 else "y", "commits": number})
        while True:
            page = await poll(peer, cursor, maxEvents=2)
            found += numbers(page["events"])
            cursor = page["cursor"]
            if not page["hasMore"]:
                break
        assert found == [1, 3, 5]


async def test_a_cursor_past_retention_is_truncated_and_no_error():
    async with raw(make_server(settings=EventSettings(max_events=2))) as peer:
        cursor = (await poll(peer, None))["cursor"]
        for number in range(5):
            await peer.call("push", {"repository": "x", "commits": number})
        page = await poll(peer, cursor)
        assert (numbers(page["events"]), page["truncated"]) == ([3, 4], True)
        assert (await poll(peer, page["cursor"]))["truncated"] is False


async def test_max_age_leaves_out_what_is_older_and_says_so():
    async with raw(make_server()) as peer:
        cursor = (await poll(peer, None))["cursor"]
        await peer.call("push", {"repository": "x"})
        while not (page := await poll(peer, cursor, maxAgeMs=1))["truncated"]:
            assert numbers(page["events"]) == [1]  # it is not older yet
        assert page["events"] == []
        assert numbers((await poll(peer, cursor, maxAgeMs=60_000))["events"]) == [1]


ERRORS: list[tuple[Json, Json, Json]] = [
    ({"name": "nope"}, {"sep": -32023, "sketch": -32011}, {"kind": "event"}),
    ({"name": "streamed"}, {"sep": -32026, "sketch": -32014}, {"feature": "delivery", "value": "poll"}),
    ({"name": "pushed", "arguments": {}}, {"sep": -32602, "sketch": -32602}, {}),
    ({"name": "pushed", "arguments": {"repository": 1}}, {"sep": -32602, "sketch": -32602}, {}),
    ({"name": "pushed", "arguments": []}, {"sep": -32602, "sketch": -32602}, {}),
    ({"name": 7}, {"sep": -32602, "sketch": -32602}, {}),
    ({"cursor": "bad"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"cursor": 7}, {"sep": -32602, "sketch": -32602}, {}),
    ({"maxAgeMs": -1}, {"sep": -32602, "sketch": -32602}, {}),
    ({"maxEvents": "x"}, {"sep": -32602, "sketch": -32602}, {}),
]


@pytest.mark.parametrize("dialect", ["sep", "sketch"])
@for_each_row("params, codes, data", ERRORS)
async def test_errors_have_the_number_of_the_dialect(params: Json, codes: Json, data: Json, dialect: str):
    server = make_server()
    server.add_event(_declared, name="streamed", delivery=["push"])
    async with raw(server, capabilities=SEP if dialect == "sep" else {}) as peer:
        about = {"name": "pushed", "arguments": {"repository": "x"}, "cursor": None, **params}
        error = (await peer.ask("events/poll", about))["error"]
        assert error["code"] == codes[dialect]
        assert {name: error["data"].get(name) for name in data} == data


async def test_a_cursor_of_one_event_is_no_cursor_of_another():
    server = make_server()
    server.add_event(_declared, name="other")
    async with raw(server) as peer:
        cursor = (await poll(peer, None))["cursor"]
        reply = await peer.ask("events/poll", {"name": "other", "arguments": {}, "cursor": cursor})
        assert reply["error"]["code"] == -32602


# -- streaming


async def test_a_stream_begins_with_active_and_brings_events_with_cursors():
    async with raw(make_server()) as peer:
        id, first = await open_stream(peer)
        assert first["truncated"] is False
        await peer.call("push", {"repository": "y", "commits": 1})
        await peer.call("push", {"repository": "x", "commits": 2})
        heard = await peer.hear()
        assert heard["method"] == "notifications/events/event"
        assert heard["params"]["_meta"] == {SUBSCRIPTION: id}
        assert set(heard["params"]) == {"eventId", "name", "timestamp", "data", "cursor", "_meta"}
        await peer.tell("notifications/cancelled", {"requestId": id})
        await peer.call("push", {"repository": "x", "commits": 3})
        assert await peer.news() == []
        # What came after the cursor of the last event is not lost.
        assert numbers((await poll(peer, heard["params"]["cursor"]))["events"]) == [3]


async def test_a_stream_goes_on_after_a_cursor():
    async with raw(make_server()) as peer:
        cursor = (await poll(peer, None))["cursor"]
        await peer.call("push", {"repository": "x", "commits": 1})
        _, first = await open_stream(peer, cursor)
        assert first == {"cursor": cursor, "truncated": False, "_meta": first["_meta"]}
        assert (await peer.hear())["params"]["data"] == {"commits": 1}


async def test_a_stream_goes_on_whatever_the_store_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(streams, "RETRY_SECONDS", 0.0)
    server, read_page, failures = make_server(), EventLog.read_page, list[str]()

    async def fail_once(self: EventLog, *given: Any, **options: Any) -> Any:
        if not failures:
            failures.append("no thread can be started")
            raise RuntimeError(failures[0])
        return await read_page(self, *given, **options)

    async with raw(server) as peer:
        await open_stream(peer)
        await turns()
        monkeypatch.setattr(EventLog, "read_page", fail_once)
        await server.emit_event("pushed", Push(commits=1), repository="x")
        heard = [await peer.hear(), await peer.hear()]
        assert [each["method"] for each in heard] == ["notifications/events/error", "notifications/events/event"]
    assert "no thread can be started" in caplog.text


async def test_a_stream_after_a_lost_cursor_says_truncated():
    async with raw(make_server(settings=EventSettings(max_events=1))) as peer:
        cursor = (await poll(peer, None))["cursor"]
        for number in range(3):
            await peer.call("push", {"repository": "x", "commits": number})
        _, first = await open_stream(peer, cursor)
        assert first["truncated"] is True
        assert (await peer.hear())["params"]["data"] == {"commits": 2}


async def test_a_silent_stream_has_a_heartbeat(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.01)
    async with raw(make_server()) as peer:
        id, first = await open_stream(peer)
        beat = await peer.hear()
        assert beat["method"] == "notifications/events/heartbeat"
        assert beat["params"] == {"cursor": first["cursor"], "_meta": {SUBSCRIPTION: id}}


@pytest.mark.parametrize(("capabilities", "code"), [(SEP, -32023), ({}, -32011)])
async def test_a_stream_ends_when_its_event_is_removed(capabilities: Json, code: int):
    server = make_server()
    async with raw(server, capabilities=capabilities) as peer:
        id, _ = await open_stream(peer)
        server.remove_event("pushed")
        final = await peer.reply_to(id)
        assert final["result"]["_meta"][SUBSCRIPTION] == id
        (ended,) = [each for each in peer.heard if each["method"] == "notifications/events/terminated"]
        assert ended["params"]["error"]["code"] == code
        assert ended["params"]["error"]["data"] == {"kind": "event"}


async def test_a_stream_ends_when_its_event_changes_and_goes_on_if_it_does_not():
    server = make_server()

    def pushed(repository: str, branch: str | None = None) -> Push: ...

    def other(repository: int) -> Push: ...

    async with raw(server, capabilities=SEP) as peer:
        id, _ = await open_stream(peer)
        server.add_event(pushed, replace=True)
        await server.emit_event(pushed, Push(commits=1), repository="x")
        while (await peer.hear())["method"] != "notifications/events/event":
            pass
        server.add_event(other, name="pushed", replace=True)
        await peer.reply_to(id)
        (ended,) = [each for each in peer.heard if each["method"] == "notifications/events/terminated"]
        assert ended["params"]["error"]["data"] == {"reason": "schema_changed"}


async def test_a_caller_has_so_many_streams_and_everybody_so_many():
    server = make_server(settings=EventSettings(streams=2))
    async with raw(server, capabilities=SEP) as peer:
        first, _ = await open_stream(peer)
        await open_stream(peer)
        about = {"name": "pushed", "arguments": {"repository": "x"}}
        error = (await peer.ask("events/stream", about))["error"]
        assert (error["code"], error["data"]["limit"], error["data"]["max"]) == (-32025, "streams", 2)
        await peer.tell("notifications/cancelled", {"requestId": first})
        await until(lambda: len(list(server.composition.list_calls())) == 1)
        await open_stream(peer)


async def test_streams_do_not_take_the_room_of_calls():
    from defserve import Limits

    async with raw(make_server(limits=Limits(in_flight=1, in_flight_total=4))) as peer:
        for _ in range(3):
            await open_stream(peer)
        await peer.call("push", {"repository": "y"})


# -- sources


async def test_a_password_in_the_error_of_a_source_is_not_in_the_log(caplog: pytest.LogCaptureFixture):
    server = make_server()

    @server.event
    async def ticked(who: str) -> AsyncIterator[Push]:
        if who:
            raise OSError("no answer from postgres://app:s3cret@db/books")
        yield Push(commits=1)

    async with raw(server) as peer:
        await open_stream(peer, name="ticked", arguments={"who": "a"})
        await until(lambda: "the source of event ticked failed" in caplog.text)
    assert "@db/books" in caplog.text and "s3cret" not in caplog.text


async def test_a_source_runs_once_for_each_set_of_arguments_while_somebody_listens():
    server, running, ended = make_server(), list[str](), list[str]()

    @server.event
    async def ticked(who: str) -> AsyncIterator[Push]:
        running.append(who)
        try:
            for number in range(1_000):
                yield Push(commits=number)
                await asyncio.sleep(0.005)
        finally:
            ended.append(who)

    async with raw(server) as peer:
        about: Json = {"name": "ticked", "arguments": {"who": "a"}}
        one, _ = await open_stream(peer, **about)
        two, _ = await open_stream(peer, **about)
        other, _ = await open_stream(peer, name="ticked", arguments={"who": "b"})
        heard: dict[int, list[int]] = {one: [], two: [], other: []}
        while not all(len(found) >= 3 for found in heard.values()):
            message = (await peer.hear())["params"]
            if "data" in message:
                heard[message["_meta"][SUBSCRIPTION]].append(message["data"]["commits"])
        assert sorted(running) == ["a", "b"]
        assert heard[one][:3] == heard[two][:3] == [0, 1, 2]
        await peer.tell("notifications/cancelled", {"requestId": other})
        await until(lambda: ended == ["b"])
        await peer.tell("notifications/cancelled", {"requestId": one})
        await peer.tell("notifications/cancelled", {"requestId": two})
        await until(lambda: sorted(ended) == ["a", "b"])


async def test_a_process_that_has_lost_its_lease_stops_its_source_and_takes_it_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(leases, "RENEWED_EVERY", 0.02)
    monkeypatch.setattr(streams, "SOURCE_LEASE_SECONDS", 0.02)
    server, running = make_server(), list[str]()

    @server.event
    async def ticked() -> AsyncIterator[Push]:
        running.append("here")
        try:
            await asyncio.sleep(600)
            yield Push(commits=1)
        finally:
            running.clear()

    async with raw(server) as peer:
        await open_stream(peer, name="ticked", arguments={})
        await until(lambda: running == ["here"])
        (events,) = [extension for extension in server.extensions if isinstance(extension, Events)]
        (name,) = [name async for name in events.store.spaces(LEASE_SPACES)]
        space = LEASE_SPACES.make_space(name.removeprefix(LEASE_SPACES))
        # What another process does after it found the lease at its end.
        await events.store.change(StoreChange(space, put={"holder": b"another"}))
        await until(lambda: not running)
        assert "another process" in caplog.text
        await asyncio.sleep(0.1)
        assert not running
        await events.store.change(StoreChange(space, drop=["holder"]))
        await until(lambda: running == ["here"])


# -- changes of the list


async def test_a_listener_hears_that_the_list_of_events_has_changed():
    server = make_server()
    async with raw(server) as peer:
        id = await peer.begin("subscriptions/listen", {"notifications": {"eventsListChanged": True}})
        acknowledged = await peer.hear()
        assert acknowledged["params"]["notifications"] == {"eventsListChanged": True}
        server.add_event(_declared, name="late")
        changed = await peer.hear()
        assert changed["method"] == "notifications/events/list_changed"
        assert changed["params"]["_meta"] == {SUBSCRIPTION: id}


async def test_a_listener_that_does_not_want_it_is_not_told():
    async with raw(make_server()) as peer:
        await peer.begin("subscriptions/listen", {"notifications": {"eventsListChanged": False}})
        assert (await peer.hear())["params"]["notifications"] == {}
