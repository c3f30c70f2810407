"""Who is woken by an event: an index and a follower, against readers that look at each event themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.auth.principals import Principal, encode_principal
from defserve.core.messages import Params
from defserve.errors import DefserveError
from defserve.protocols.mcp.events import streams, webhook_records, webhooks
from defserve.protocols.mcp.events.event_log import Cursor, EventLog
from defserve.protocols.mcp.events.event_types import FilterIndex, matches_filter
from defserve.protocols.mcp.events.extension import Events
from defserve.protocols.mcp.events.streams import EventHub, LogFollower
from defserve.protocols.mcp.events.webhook_records import Subscription, WebhookRecords, make_caller_webhook_space
from defserve.server import EventSettings
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import MemoryStore, StoreBusy
from defserve.testing import WebhookReceiver
from tests.effort import cpu_within, examples
from tests.protocols.mcp.events.repositories import Push, make_server
from tests.raw import raw, until

# -- the index

SCALARS = st.sampled_from(("", "x", "y", "1", "null", 0, 1, 1.0, True, False))
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=2)
FILTERS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
EMITTED = st.dictionaries(st.sampled_from("abc"), VALUES | st.none(), max_size=3)


@given(st.lists(FILTERS, max_size=12), st.sets(st.integers(0, 11)), st.lists(EMITTED, min_size=1, max_size=5))
def test_the_index_finds_those_whose_filter_matches_and_nobody_else(
    filters: list[Params], removed: set[int], emitted: list[Params]
):
    index = FilterIndex[int]()
    for number, wanted in enumerate(filters):
        index.add(wanted, number)
    for number in removed & set(range(len(filters))):
        index.remove(filters[number], number)
    for arguments in [*emitted, *filters]:
        for is_exact in (False, True):
            expected = [
                number
                for number, wanted in enumerate(filters)
                if number not in removed and matches_filter(wanted, arguments, is_exact=is_exact)
            ]
            assert sorted(index.find(arguments, is_exact=is_exact)) == expected


def test_an_index_that_everybody_has_left_keeps_nothing():
    index = FilterIndex[int]()
    for number in range(3):
        index.add({"a": number}, number)
    for number in range(3):
        index.remove({"a": number}, number)
    assert not index._values  # pyright: ignore[reportPrivateUsage]


# -- the follower, against a model


class YieldingStore(MemoryStore):
    """Gives others a turn whenever it is read, as a store elsewhere does. Some reads fail."""

    failures = 0

    async def get(self, space: str, names: Sequence[str]) -> dict[str, bytes]:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise StoreBusy("the store is away")
        return await super().get(space, names)


class Reader:
    """Reads a log from a cursor, waits in the follower, and notes the numbers of the events that it got."""

    def __init__(self, hub: EventHub, follower: LogFollower, wanted: Params, start: Cursor, keeps: bool) -> None:
        self._hub, self._follower = hub, follower
        self.wanted_arguments, self.position, self.start = wanted, start, start
        self.kept_number = start.number if keeps else None
        self.got, self.gaps, self.looks, self.failures = list[int](), 0, 0, 0
        self._woken, self._has_news = asyncio.Event(), False
        self.task = asyncio.create_task(self._run())

    def read_soon(self, is_due: bool = False) -> None:
        self._has_news = True
        self._woken.set()

    def report_failure(self, error: DefserveError) -> None:
        self.failures += 1

    def look_up(self) -> None:
        """Something else has woken it."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            with suppress(StoreBusy):
                await self._read()
            self._follower.add(self)
            try:
                await self._woken.wait()
            finally:
                self._follower.remove(self)
            self._woken.clear()

    async def _read(self) -> None:
        while self._has_news:
            self.looks += 1
            page = await self._hub.read_page("pushed", self.position)
            self.gaps += page.is_truncated
            found = [
                event.number
                for event in page.events
                if matches_filter(self.wanted_arguments, event.arguments, is_exact=event.is_exact)
            ]
            self.got += found
            self.position = page.cursor
            self.kept_number = None if self.kept_number is None else page.cursor.number
            self._has_news = bool(found) and page.has_more


async def play(steps: list[tuple[str, int]], max_events: int) -> None:
    """Do what the steps say, and compare what each reader got with the events that there were."""
    store, emitted = YieldingStore(), list[str]()
    stored = make_server_store(store, ServerIdentity("name", "git"))
    hub: EventHub
    log = EventLog(stored, EventSettings(max_events=max_events), on_added=lambda name: hub.wake(name))
    quiet = EventLog(stored, EventSettings(max_events=max_events))
    """Another process, of which nobody hears."""

    async def run_source(event: Any, wanted: Params) -> None:
        raise AssertionError("there is no source")

    hub = EventHub(log, stored, run_source)
    start, readers = await log.ensure_end_cursor("pushed"), list[Reader]()
    with hub.listen("pushed") as follower:
        for what, number in steps:
            reader = readers[number % len(readers)] if readers else None
            if what in ("emit", "emit elsewhere"):
                for _ in range(1 + 40 * (number == 7)):
                    to = "xyz"[number % 3]
                    with suppress(StoreBusy):
                        await (log if what == "emit" else quiet).append("pushed", {"to": to}, {})
                        emitted.append(to)
            elif what == "come":
                begin = Cursor(start.epoch, max(0, len(emitted) - 30 * (number % 5)))
                wanted = {"to": "xyz"[number % 3]} if number % 4 else dict[str, Any]()
                readers.append(Reader(hub, follower, wanted, begin, keeps=number % 2 == 0))
            elif what == "turns":
                for _ in range(number):
                    await asyncio.sleep(0)
            elif what == "fail":
                store.failures = number % 3
            elif what == "change types":
                hub.wake()
            elif reader is not None:
                reader.look_up()

        def are_over() -> bool:
            return all(reader.position.number >= len(emitted) for reader in readers)

        store.failures = 0
        for _ in range(40):
            hub.wake("pushed")
            for _ in range(60):
                await asyncio.sleep(0)
            for reader in readers:
                reader.look_up()  # it takes its position from the follower
            await asyncio.sleep(0)
            if are_over():
                break
        assert are_over()
        for reader in readers:
            wanted = reader.wanted_arguments.get("to")
            behind = list(enumerate(emitted))[reader.start.number :]
            expected = [number for number, to in behind if wanted in (None, to)]
            first_kept = len(emitted) - max_events
            assert reader.got == [number for number in expected if number in set(reader.got)]
            if reader.got != expected:
                assert reader.gaps
                assert max(set(expected) - set(reader.got)) < first_kept
        for reader in readers:
            reader.task.cancel()
        await asyncio.gather(*(reader.task for reader in readers), return_exceptions=True)
        assert not follower._index._values  # pyright: ignore[reportPrivateUsage]
    await hub.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("emit", "emit", "emit elsewhere", "come", "come", "turns", "turns", "look", "fail", "change types")
        ),
        st.integers(0, 11),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=examples(25))
def test_each_reader_gets_each_of_its_events_once_and_in_order(steps: list[tuple[str, int]]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "RETRY_SECONDS", 0)
        asyncio.run(play(steps, max_events=10_000))


@given(STEPS)
@settings(max_examples=examples(25))
def test_a_reader_that_misses_what_the_log_has_let_go_of_is_told(steps: list[tuple[str, int]]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "RETRY_SECONDS", 0)
        asyncio.run(play(steps, max_events=20))


# -- what is promised to webhooks


LOOPBACK = EventSettings(allow_loopback=True, webhooks=5_000, webhooks_total=5_000)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that began without webhooks looks soon for those that another has left."""
    monkeypatch.setattr(webhooks, "IDLE_LOOK_SECONDS", 0.02)


async def write_webhooks(events: Events, receiver: WebhookReceiver, wanted: Sequence[Params]) -> list[str]:
    """Webhooks in the store as another process has left them, behind the last event; their ids."""
    records, start = WebhookRecords(events.store, None), await events.log.ensure_end_cursor("pushed")
    caller, ids = Principal("somebody"), list[str]()
    for arguments in wanted:
        ids.append(f"sub_{len(ids):032x}")
        subscription = Subscription(
            ids[-1], "pushed", receiver.url, arguments, encode_principal(caller), "sep", [], expires=None
        )
        await records.store_subscription(
            make_caller_webhook_space(caller), subscription, receiver.secret, start, most=5_000
        )
    return ids


async def load_places(events: Events, ids: Sequence[str]) -> list[int]:
    """How far each webhook has come, as the store has it."""
    records, places = WebhookRecords(events.store, None), list[int]()
    for id in ids:
        loaded = await records.load_subscription(make_caller_webhook_space(Principal("somebody")), id)
        assert loaded is not None
        places.append(loaded[1].number)
    return places


def find_events(server: Any) -> Events:
    (events,) = [extension for extension in server.extensions if isinstance(extension, Events)]
    return events


@pytest.mark.anyio
@pytest.mark.usefixtures("impatient")
async def test_an_event_that_passes_a_webhook_is_not_written_down_and_nothing_comes_twice_after_a_restart(
    address: str,
):
    with WebhookReceiver() as receiver:
        server = make_server(address, LOOPBACK)
        async with raw(server):
            events = find_events(server)
            ids = await write_webhooks(events, receiver, [{"repository": f"r{number}"} for number in range(20)])
            await server.emit_event("pushed", Push(commits=1), repository="r3")
            await asyncio.to_thread(receiver.wait_for_events, 1)
            for _ in range(30):
                await server.emit_event("pushed", Push(commits=0), repository="elsewhere")
            await server.emit_event("pushed", Push(commits=2), repository="r3")
            await asyncio.to_thread(receiver.wait_for_events, 2)
            async with asyncio.timeout(30):
                while (places := await load_places(events, ids))[3] != 32:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            assert [place for number, place in enumerate(places) if number != 3] == [0] * 19
        again = make_server(address, LOOPBACK)
        async with raw(again):
            for number in (5, 3, 19):
                await again.emit_event("pushed", Push(commits=number), repository=f"r{number}")
            await asyncio.to_thread(receiver.wait_for_events, 5)
        assert sorted(event.data["commits"] for event in receiver.events) == [1, 2, 3, 5, 19]
        assert (receiver.duplicates, receiver.control) == ([], [])


@pytest.mark.anyio
@pytest.mark.usefixtures("impatient")
async def test_an_idle_webhook_is_written_down_before_the_log_lets_go_of_what_passed_it(tmp_path: Any):
    address = f"sqlite:///{tmp_path / 'events.db'}"
    small = EventSettings(allow_loopback=True, max_events=50)
    with WebhookReceiver() as receiver:
        server = make_server(address, small)
        async with raw(server):
            ids = await write_webhooks(find_events(server), receiver, [{"repository": f"r{n}"} for n in range(4)])
            await server.emit_event("pushed", Push(commits=1), repository="r1")
            await asyncio.to_thread(receiver.wait_for_events, 1)
            for _ in range(20):  # each renews a fifth of the log
                for _ in range(10):
                    await server.emit_event("pushed", Push(commits=0), repository="elsewhere")
                # A fifth of the log is left for what comes before the next process reads it.
                least = (await find_events(server).log.ensure_end_cursor("pushed")).number - 40
                async with asyncio.timeout(30):
                    while min(await load_places(find_events(server), ids)) < least:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
        again = make_server(address, small)
        async with raw(again):
            for number in range(4):
                await again.emit_event("pushed", Push(commits=10 + number), repository=f"r{number}")
            await asyncio.to_thread(receiver.wait_for_events, 5)
        assert sorted(event.data["commits"] for event in receiver.events) == [1, 10, 11, 12, 13]
        assert (receiver.duplicates, receiver.control) == ([], [])


@pytest.mark.anyio
async def test_idle_webhooks_have_their_turns_though_processes_come_and_go(tmp_path: Any):
    address = f"sqlite:///{tmp_path / 'events.db'}"
    small = EventSettings(allow_loopback=True, max_events=50)
    with WebhookReceiver() as receiver:
        ids = list[str]()
        for _ in range(12):
            server = make_server(address, small)
            async with raw(server):
                events = find_events(server)
                if not ids:
                    ids += await write_webhooks(events, receiver, [{"repository": f"r{n}"} for n in range(3)])
                for _ in range(10):  # a fifth of the log
                    await server.emit_event("pushed", Push(commits=0), repository="elsewhere")
                end = (await events.log.ensure_end_cursor("pushed")).number
                async with asyncio.timeout(30):
                    while min(await load_places(events, ids)) < end - 40:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
        assert receiver.control == []


@pytest.mark.anyio
async def test_a_webhook_is_told_if_the_log_has_let_go_of_events_that_nobody_looked_at(tmp_path: Any):
    address = f"sqlite:///{tmp_path / 'events.db'}"
    small = EventSettings(allow_loopback=True, max_events=10)
    with WebhookReceiver() as receiver:
        server = make_server(address, small)
        async with raw(server):
            await write_webhooks(find_events(server), receiver, [{"repository": f"r{n}"} for n in range(3)])
        emitting = find_events(server).log
        for number in range(30):
            await emitting.append("pushed", {"repository": "elsewhere"}, {"commits": number})
        await emitting.append("pushed", {"repository": "r2"}, {"commits": 7})
        await emitting.store.close()
        async with raw(make_server(address, small)):
            await asyncio.to_thread(receiver.wait_for_events, 1)
            await asyncio.to_thread(receiver.wait_until, lambda: len(receiver.control) >= 3)
        assert [body["type"] for body in receiver.control] == ["gap"] * 3


@pytest.mark.anyio
async def test_a_webhook_that_fails_is_not_held_up_by_what_passes_it_and_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(webhook_records, "FIRST_RETRY_SECONDS", 0.02)
    server = make_server(settings=LOOPBACK)
    with WebhookReceiver() as receiver:
        async with raw(server) as peer:
            delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
            await peer.ask(
                "events/subscribe", {"name": "pushed", "arguments": {"repository": "x"}, "delivery": delivery}
            )
            receiver.answer_with(500, 500, 500)
            for number in range(60):
                where = "x" if number % 20 == 0 else "elsewhere"
                await server.emit_event("pushed", Push(commits=number), repository=where)
            await asyncio.to_thread(receiver.wait_for_events, 3)
            assert [event.data["commits"] for event in receiver.events] == [0, 20, 40]


@pytest.mark.anyio
async def test_a_webhook_that_waits_ends_when_its_type_asks_for_rights_that_its_caller_has_not():
    server = make_server(settings=LOOPBACK)
    with WebhookReceiver() as receiver:
        async with raw(server):
            events = find_events(server)
            (id,) = await write_webhooks(events, receiver, [{"repository": "x"}])
            start_deliveries(server)
            await server.emit_event("pushed", Push(commits=1), repository="x")
            await asyncio.to_thread(receiver.wait_for_events, 1)
            events.registry.remove("pushed")

            def pushed(repository: str, branch: str | None = None) -> Push:
                """Somebody pushed commits."""
                ...  # noqa: PIE790

            server.event(scopes=["secret"])(pushed)
            await server.emit_event("pushed", Push(commits=2), repository="x")
            await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.control))
            assert receiver.control[0]["type"] == "terminated"
            assert [event.data["commits"] for event in receiver.events] == [1]
            assert id


def start_deliveries(server: Any) -> None:
    """Deliver, though nobody has subscribed in this process."""
    events = find_events(server)
    hub = events._hubs[asyncio.get_running_loop()]  # pyright: ignore[reportPrivateUsage]
    hub.tasks.start(events._resume_deliveries(hub))  # pyright: ignore[reportPrivateUsage]


def test_an_event_costs_nothing_for_those_whom_it_passes():
    store = make_server_store(MemoryStore(), ServerIdentity("name", "git"))
    count = 5_000

    async def run_source(event: Any, wanted: Params) -> None:
        raise AssertionError("there is no source")

    with asyncio.Runner() as runner:
        log = EventLog(store, EventSettings(), on_added=lambda name: hub.wake(name))
        hub, readers = EventHub(log, store, run_source), list[Reader]()
        listening = ExitStack()

        async def begin() -> None:
            follower, start = listening.enter_context(hub.listen("pushed")), await log.ensure_end_cursor("pushed")
            readers.extend(Reader(hub, follower, {"to": number}, start, keeps=True) for number in range(count))
            await emit()

        async def emit() -> None:
            await log.append("pushed", {"to": 7}, {})
            seen = len(readers[7].got)
            await until(lambda: len(readers[7].got) > seen)

        async def end() -> None:
            for reader in readers:
                reader.task.cancel()
            await asyncio.gather(*(reader.task for reader in readers), return_exceptions=True)
            listening.close()
            await hub.close()

        runner.run(begin())
        assert cpu_within(0.02, lambda: runner.run(emit()))
        # Beside the one that it is for, only those look whose turn it is to write their position down.
        assert sum(reader.looks for reader in readers) - readers[7].looks <= 2 * len(readers[7].got) * count / 10_000
        assert len(readers[7].got) >= 2
        runner.run(end())
