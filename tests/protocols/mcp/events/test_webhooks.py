"""Webhooks, from `events/subscribe` to the address that gets the events."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.auth import ApiKeys, Principal, live_credentials
from defserve.protocols.mcp.events import webhook_records
from defserve.protocols.mcp.events import webhooks as deliveries
from defserve.protocols.mcp.events.extension import Events
from defserve.protocols.mcp.events.sending import make_webhook_secret
from defserve.protocols.mcp.events.webhook_records import DeliveryProgress, WebhookRecords
from defserve.server import EventSettings
from defserve.stores import store as leases
from defserve.stores.store import MemoryStore, StoreChange, StoreUnavailable
from defserve.testing import WebhookReceiver
from tests.forking.spawning import quick_arguments
from tests.listening import Listening, listening
from tests.protocols.mcp.events.repositories import SEP, Push, ask_result, make_server
from tests.raw import PREFIX, STATELESS, Json, Raw, raw, until
from tests.rows import for_each_row
from tests.stores.redis_server import RedisServer

pytestmark = pytest.mark.anyio

LOOPBACK = EventSettings(allow_loopback=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (deliveries, "LOOK_SECONDS"),
        (deliveries, "IDLE_LOOK_SECONDS"),
        (webhook_records, "FIRST_RETRY_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(live_credentials.LiveCredentials.__init__, "__defaults__", (0.02,))


@pytest.fixture
def receiver() -> Generator[WebhookReceiver]:
    with WebhookReceiver() as opened:
        yield opened


def about(receiver: WebhookReceiver, **params: Any) -> Json:
    delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
    return {"name": "pushed", "arguments": {"repository": "x"}, "delivery": delivery, **params}


async def subscribe(peer: Raw, receiver: WebhookReceiver, **params: Any) -> Json:
    return await ask_result(peer, "events/subscribe", **about(receiver, **params))


async def load_progress(server: Server) -> DeliveryProgress:
    """How far the only subscription of a server has come."""
    (events,) = [extension for extension in server.extensions if isinstance(extension, Events)]
    records = WebhookRecords(events.store, None)
    (space,) = [space async for space in records.iter_spaces()]
    (id,) = (await records.read_caller_subscriptions(space)).ids
    loaded = await records.load_subscription(space, id)
    assert loaded is not None
    return loaded[1]


async def received(receiver: WebhookReceiver, count: int) -> list[int]:
    events = await asyncio.to_thread(receiver.wait_for_events, count)
    return [event.data["commits"] for event in events]


# -- the plain way


async def test_events_are_posted_to_the_address_in_their_order(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        made = await subscribe(peer, receiver)
        assert receiver.challenges == 1
        assert set(made) == {"id", "refreshBefore", "cursor", "truncated", "deliveryStatus"}
        assert made["deliveryStatus"] == {"active": True, "lastDeliveryAt": None, "lastError": None}
        for number in range(5):
            await peer.call("push", {"repository": "x" if number % 2 == 0 else "y", "commits": number})
        assert await received(receiver, 3) == [0, 2, 4]
        assert receiver.refused == []
        first = receiver.events[0]
        assert set(first.body) == {"eventId", "name", "timestamp", "data", "cursor"}
        assert first.subscription == made["id"]
        # Its cursor is one to poll with.
        page = await ask_result(peer, "events/poll", name="pushed", arguments={"repository": "x"}, cursor=first.cursor)
        assert [event["data"]["commits"] for event in page["events"]] == [2, 4]


async def test_subscribing_again_refreshes_and_keeps_the_id(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        first = await subscribe(peer, receiver, ttlMs=100_000)
        second = await subscribe(peer, receiver, ttlMs=200_000)
        assert first["id"] == second["id"]
        assert first["refreshBefore"] < second["refreshBefore"]
        assert receiver.challenges == 1
        other = await subscribe(peer, receiver, arguments={"repository": "x", "branch": "main"})
        assert other["id"] != first["id"]
        same = await subscribe(peer, receiver, arguments={"branch": None, "repository": "x"})
        assert same["id"] == first["id"]


async def test_who_unsubscribes_gets_nothing_more(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x", "commits": 1})
        await received(receiver, 1)
        given = about(receiver)
        assert await ask_result(peer, "events/unsubscribe", **{**given, "delivery": {"url": receiver.url}}) == {}
        await peer.call("push", {"repository": "x", "commits": 2})
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x", "commits": 3})
        assert await received(receiver, 2) == [1, 3]


async def test_a_subscription_begins_at_the_cursor_it_is_given(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        start = await ask_result(peer, "events/poll", name="pushed", arguments={"repository": "x"}, cursor=None)
        await peer.call("push", {"repository": "x", "commits": 7})
        made = await subscribe(peer, receiver, cursor=start["cursor"])
        assert made["truncated"] is False
        assert await received(receiver, 1) == [7]


# -- time


@for_each_row(
    "given, expected",
    [
        ({}, 86_400),
        ({"ttlMs": 120_000}, 120),
        ({"ttlMs": 0}, 60),
        ({"ttlMs": 10**12}, 604_800),
        ({"ttlMs": None}, 604_800),
    ],
)
async def test_a_subscription_is_granted_no_longer_than_wanted_but_for_a_least_time(given: Json, expected: int):
    from datetime import UTC, datetime

    with WebhookReceiver() as receiver:
        async with raw(make_server(settings=LOOPBACK)) as peer:
            made = await subscribe(peer, receiver, **given)
            left = datetime.fromisoformat(made["refreshBefore"]) - datetime.now(UTC)
            assert expected - 30 < left.total_seconds() <= expected


async def test_a_store_that_lasts_grants_a_subscription_without_an_end(receiver: WebhookReceiver, address: str):
    async with raw(make_server(address, LOOPBACK)) as peer:
        assert (await subscribe(peer, receiver, ttlMs=None))["refreshBefore"] is None
    server = make_server(address, LOOPBACK)
    async with raw(server):
        await server.emit_event("pushed", Push(commits=9), repository="x")
        assert await received(receiver, 1) == [9]


# -- errors


ERRORS: list[tuple[Json, Json, Json]] = [
    ({"name": "nope"}, {"sep": -32023, "sketch": -32011}, {"kind": "event"}),
    ({"name": "polled"}, {"sep": -32026, "sketch": -32014}, {"feature": "delivery", "value": "webhook"}),
    ({"delivery": {"mode": "mail"}}, {"sep": -32026, "sketch": -32014}, {"feature": "delivery", "value": "mail"}),
    ({"arguments": {}}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery": None}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.url": "http://example.com/"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.url": "https://example.com:8443/"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.url": "https://user@example.com/"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.url": "https://example.com/#x"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.url": "https://10.0.0.1/"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.url": 7}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.secret": "whsec_short"}, {"sep": -32602, "sketch": -32602}, {}),
    ({"delivery.secret": None}, {"sep": -32602, "sketch": -32602}, {}),
    ({"ttlMs": -1}, {"sep": -32602, "sketch": -32602}, {}),
    ({"cursor": "x"}, {"sep": -32602, "sketch": -32602}, {}),
    (
        {"delivery.url": "http://127.0.0.1:9/"},
        {"sep": -32027, "sketch": -32015},
        {"reason": "connection_refused"},
    ),
    ({"delivery.secret": make_webhook_secret()}, {"sep": -32027, "sketch": -32015}, {"reason": "http_4xx"}),
]


def _polled() -> Push: ...


@pytest.mark.parametrize("dialect", ["sep", "sketch"])
@for_each_row("params, codes, data", ERRORS)
async def test_errors_have_the_number_of_the_dialect(params: Json, codes: Json, data: Json, dialect: str):
    server = make_server(settings=LOOPBACK)
    server.add_event(_polled, name="polled", delivery=["poll"])
    with WebhookReceiver() as receiver:
        asked = about(receiver)
        for name, value in params.items():
            where, _, member = name.partition(".")
            asked[where] = {**asked[where], member: value} if member else value
        async with raw(server, capabilities=SEP if dialect == "sep" else {}) as peer:
            error = (await peer.ask("events/subscribe", asked))["error"]
            assert error["code"] == codes[dialect], error
            assert {name: error["data"].get(name) for name in data} == data


async def test_unsubscribing_what_is_not_there_is_an_error_in_one_dialect(receiver: WebhookReceiver):
    asked = {**about(receiver), "delivery": {"mode": "webhook", "url": receiver.url}}
    server = make_server(settings=LOOPBACK)
    async with raw(server, capabilities=SEP) as peer:
        error = (await peer.ask("events/unsubscribe", asked))["error"]
        assert (error["code"], error["data"]["kind"]) == (-32023, "subscription")
    async with raw(make_server(settings=LOOPBACK)) as peer:
        assert await ask_result(peer, "events/unsubscribe", **asked) == {}


async def test_a_caller_has_so_many_webhooks(receiver: WebhookReceiver):
    settings = EventSettings(allow_loopback=True, webhooks=2)
    async with raw(make_server(settings=settings), capabilities=SEP) as peer:
        for repository in ("a", "b"):
            await subscribe(peer, receiver, arguments={"repository": repository})
        error = (await peer.ask("events/subscribe", about(receiver)))["error"]
        assert (error["code"], error["data"]["limit"], error["data"]["max"]) == (-32025, "webhooks", 2)
        await subscribe(peer, receiver, arguments={"repository": "a"})


# -- failing


async def test_what_fails_is_sent_again_under_its_id_and_keeps_its_place(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        await subscribe(peer, receiver)
        receiver.answer_with(500, 503, 404)
        for number in range(3):
            await peer.call("push", {"repository": "x", "commits": number})
        assert await received(receiver, 3) == [0, 1, 2]
        status = (await subscribe(peer, receiver))["deliveryStatus"]
        assert (status["active"], status["lastError"]) == (True, None)
        assert "failedSince" not in status


@for_each_row("status", [410, 413])
async def test_what_is_not_wanted_is_not_sent_again_and_the_next_one_is(status: int):
    with WebhookReceiver() as receiver:
        async with raw(make_server(settings=LOOPBACK)) as peer:
            await subscribe(peer, receiver)
            receiver.answer_with(status)
            for number in range(2):
                await peer.call("push", {"repository": "x", "commits": number})
            assert await received(receiver, 1) == [1]


async def test_an_event_is_given_up_after_so_many_tries(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        await subscribe(peer, receiver)
        receiver.answer_with(*[500] * webhook_records.MAX_ATTEMPTS)
        for number in range(2):
            await peer.call("push", {"repository": "x", "commits": number})
        assert await received(receiver, 1) == [1]


async def test_a_webhook_that_only_fails_is_suspended_and_a_refresh_wakes_it(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(webhook_records, "SUSPEND_AFTER", 3)
    server = make_server(settings=LOOPBACK)
    async with raw(server) as peer:
        await subscribe(peer, receiver)
        receiver.answer_with(500, 500, 500)
        await peer.call("push", {"repository": "x", "commits": 1})
        async with asyncio.timeout(30):
            while (await load_progress(server)).is_active:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert receiver.events == []
        status = (await subscribe(peer, receiver))["deliveryStatus"]
        assert (status["active"], status["lastError"]) == (True, "http_5xx")
        assert await received(receiver, 1) == [1]


async def test_a_gap_is_told_before_what_is_left(receiver: WebhookReceiver):
    settings = EventSettings(allow_loopback=True, max_events=2)
    async with raw(make_server(settings=settings)) as peer:
        start = await ask_result(peer, "events/poll", name="pushed", arguments={"repository": "x"}, cursor=None)
        await subscribe(peer, receiver, cursor=start["cursor"])
        receiver.answer_with(500)
        for number in range(6):
            await peer.call("push", {"repository": "x", "commits": number})
        await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.control))
        assert receiver.control[0]["type"] == "gap"
        await asyncio.to_thread(
            receiver.wait_until, lambda: bool(receiver.events) and receiver.events[-1].data["commits"] == 5
        )
        page = await ask_result(
            peer, "events/poll", name="pushed", arguments={"repository": "x"}, cursor=receiver.control[-1]["cursor"]
        )
        assert [event["data"]["commits"] for event in page["events"]] == [4, 5]


@pytest.mark.parametrize(("capabilities", "code"), [(SEP, -32023), ({}, -32011)])
async def test_an_event_that_is_removed_ends_its_webhooks(receiver: WebhookReceiver, capabilities: Json, code: int):
    server = make_server(settings=LOOPBACK)
    async with raw(server, capabilities=capabilities) as peer:
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x"})
        await received(receiver, 1)
        server.remove_event("pushed")
        await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.control))
        assert receiver.control[0]["type"] == "terminated"
        assert receiver.control[0]["error"]["code"] == code


# -- secrets


async def test_a_new_secret_signs_beside_the_old_one_for_a_while(receiver: WebhookReceiver):
    async with raw(make_server(settings=LOOPBACK)) as peer:
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x", "commits": 1})
        await received(receiver, 1)
        old = receiver.secret
        receiver.rotate_secret()
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x", "commits": 2})
        await received(receiver, 2)
        receiver.secrets = [old]
        await peer.call("push", {"repository": "x", "commits": 3})
        assert await received(receiver, 3) == [1, 2, 3]
        assert receiver.refused == []


@pytest.mark.parametrize("secret", [None, "s" * 32])
async def test_secrets_are_sealed_in_the_store_if_the_server_has_a_secret(
    receiver: WebhookReceiver, tmp_path: Path, secret: str | None, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "git.db"
    async with raw(make_server(f"sqlite:///{path}", LOOPBACK, secret=secret)) as peer:
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x"})
        await received(receiver, 1)
    held = path.read_bytes()
    assert (receiver.secret.encode() in held) == (secret is None)
    assert receiver.secret not in caplog.text
    assert receiver.url not in caplog.text


# -- callers


def body(method: str, params: Json) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": SEP}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}).encode()


async def ask_http(where: Listening, method: str, params: Json, token: str = "") -> Json:
    lines = [
        f"mcp-protocol-version: {STATELESS}",
        f"mcp-method: {method}",
        "accept: application/json, text/event-stream",
    ]
    if token:
        lines.append(f"authorization: Bearer {token}")
    answer = await where.ask(*lines, body=body(method, params))
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_stranger_can_poll_but_not_subscribe(receiver: WebhookReceiver):
    async with listening(make_server(settings=LOOPBACK)) as where:
        error = (await ask_http(where, "events/subscribe", about(receiver)))["error"]
        assert error["code"] == -32024
        asked = {"name": "pushed", "arguments": {"repository": "x"}}
        assert "result" in await ask_http(where, "events/poll", asked)
        assert receiver.challenges == 0


@asynccontextmanager
async def keyed(**options: Any) -> AsyncGenerator[tuple[Server, Listening, ApiKeys]]:
    keys = ApiKeys("memory:")
    server = make_server(settings=LOOPBACK, auth=keys, **options)
    async with listening(server) as where:
        yield server, where, keys


async def test_nobody_can_unsubscribe_what_another_has_subscribed_to(receiver: WebhookReceiver):
    async with keyed() as (server, where, keys):
        alice, mallory = [await keys.create(name, permissions=["ToolsListAll"]) for name in ("alice", "mallory")]
        made = (await ask_http(where, "events/subscribe", about(receiver), alice.token))["result"]
        gone = await ask_http(where, "events/unsubscribe", about(receiver), mallory.token)
        assert gone["error"]["data"]["kind"] == "subscription"
        await server.emit_event("pushed", Push(commits=4), repository="x")
        assert await received(receiver, 1) == [4]
        other = (await ask_http(where, "events/subscribe", about(receiver), mallory.token))["result"]
        assert other["id"] != made["id"]
        # What one caller has verified is not verified for another.
        assert receiver.challenges == 2


async def test_a_revoked_key_ends_its_webhooks(receiver: WebhookReceiver):
    async with keyed() as (server, where, keys):
        made, other = [await keys.create(name, permissions=["ToolsListAll"]) for name in ("alice", "bob")]
        await ask_http(where, "events/subscribe", about(receiver), made.token)
        still = (await ask_http(where, "events/subscribe", about(receiver), other.token))["result"]
        await keys.revoke(made.key.id)
        await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.control))
        assert (receiver.control[0]["type"], receiver.control[0]["error"]["code"]) == ("terminated", -32024)
        await server.emit_event("pushed", Push(commits=1), repository="x")
        await received(receiver, 1)
        assert [event.subscription for event in receiver.events] == [still["id"]]


@pytest.mark.parametrize("how", ["revoked", "revoked while no process served", "expired"])
async def test_a_key_that_ends_after_a_restart_ends_its_webhooks(receiver: WebhookReceiver, tmp_path: Path, how: str):
    address, now = f"sqlite:///{tmp_path / 'git.db'}", 1_000.0
    keys = ApiKeys("memory:", clock=lambda: now)
    alice, bob = [
        await keys.create(name, permissions=["ToolsListAll"], expires_in=seconds)
        for name, seconds in (("alice", 60), ("bob", None))
    ]
    async with listening(make_server(address, LOOPBACK, auth=keys)) as where:
        await ask_http(where, "events/subscribe", about(receiver, ttlMs=None), alice.token)
        still = (await ask_http(where, "events/subscribe", about(receiver, ttlMs=None), bob.token))["result"]
    if how == "revoked while no process served":
        await keys.revoke(alice.key.id)
    again = make_server(address, LOOPBACK, auth=keys)
    async with raw(again):
        if how == "revoked":
            await again.emit_event("pushed", Push(commits=1), repository="x")
            # Both have it: the second time, it is a duplicate.
            await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.duplicates))
            await keys.revoke(alice.key.id)
        now += 60 if how == "expired" else 0
        await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.control))
        assert (receiver.control[0]["type"], receiver.control[0]["error"]["code"]) == ("terminated", -32024)
        before = len(receiver.events)
        await again.emit_event("pushed", Push(commits=2), repository="x")
        await received(receiver, before + 1)
        assert [event.subscription for event in receiver.events[before:]] == [still["id"]]


async def test_webhooks_go_on_while_their_keys_cannot_be_looked_up(
    receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    address, keys = f"sqlite:///{tmp_path / 'git.db'}", ApiKeys("memory:")
    alice = await keys.create("alice", permissions=["ToolsListAll"])
    async with listening(make_server(address, LOOPBACK, auth=keys)) as where:
        await ask_http(where, "events/subscribe", about(receiver), alice.token)
    again = make_server(address, LOOPBACK, auth=keys)

    async def fail(keys: ApiKeys, credentials: Any) -> Any:
        raise StoreUnavailable("The keys are away")

    monkeypatch.setattr(deliveries, "find_ended_credentials", fail)
    async with raw(again):
        await until(lambda: caplog.text.count("The keys are away") > 2)
        await again.emit_event("pushed", Push(commits=1), repository="x")
        assert await received(receiver, 1) == [1]
        assert receiver.control == []


async def test_a_token_that_is_revoked_while_the_store_is_away_ends_its_webhooks_when_it_is_back(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
):
    load, tries, good = WebhookRecords.load_subscription, list[str](), {"token-of-alice"}

    async def fail_first(records: WebhookRecords, space: Any, id: str) -> Any:
        tries.append(id)
        if len(tries) == 1:
            raise StoreUnavailable("The store is away")
        return await load(records, space, id)

    class Tokens:
        async def verify(self, token: str) -> Principal | None:
            return Principal("alice") if token in good else None

    server = make_server(settings=LOOPBACK, auth=Tokens())
    async with listening(server) as where:
        await ask_http(where, "events/subscribe", about(receiver), "token-of-alice")
        await server.emit_event("pushed", Push(commits=1), repository="x")
        assert await received(receiver, 1) == [1]
        monkeypatch.setattr(WebhookRecords, "load_subscription", fail_first)
        good.clear()
        await asyncio.to_thread(receiver.wait_until, lambda: bool(receiver.control))
        assert receiver.control[0]["type"] == "terminated"


async def test_refreshes_leave_one_watch_over_their_key_which_ends_all_that_was_subscribed_to_with_it(
    receiver: WebhookReceiver,
):
    async with keyed() as (_, where, keys):
        alice = await keys.create("alice", permissions=["ToolsListAll"])
        for _ in range(4):
            for repository in ("x", "y"):
                asked = about(receiver, arguments={"repository": repository})
                assert "result" in await ask_http(where, "events/subscribe", asked, alice.token)
        holders: set[Any] = where.app.live._holders  # pyright: ignore
        await until(lambda: len(holders) == 1)
        await keys.revoke(alice.key.id)
        await asyncio.to_thread(receiver.wait_until, lambda: len(receiver.control) == 2)
        assert {each["type"] for each in receiver.control} == {"terminated"}
        await until(lambda: not holders)


async def test_a_server_that_others_reach_sends_nothing_to_its_own_machine(caplog: pytest.LogCaptureFixture):
    from defserve.serve.address import Address
    from defserve.serve.session_opener import SessionOpener
    from defserve.server import web

    server = make_server(settings=LOOPBACK)
    address = Address.parse("http://0.0.0.0:8000/mcp")
    web.make_http_app(SessionOpener(server.composition), server.mcp, None, {"allowed_hosts": ["git.example"]}, address)
    assert "allow_loopback" in caplog.text
    with WebhookReceiver() as receiver:
        async with raw(server) as peer:
            error = (await peer.ask("events/subscribe", about(receiver)))["error"]
            assert error["code"] == -32602
            assert receiver.challenges == 0


async def test_webhooks_go_on_whatever_the_store_raises(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    look, failures = deliveries.Deliveries._update_tasks, list[str]()  # pyright: ignore[reportPrivateUsage]

    async def fail_once(self: deliveries.Deliveries) -> bool:
        if not failures:
            failures.append("no thread can be started")
            raise RuntimeError(failures[0])
        return await look(self)

    monkeypatch.setattr(deliveries.Deliveries, "_update_tasks", fail_once)
    monkeypatch.setattr(deliveries, "LOOK_SECONDS", 0.01)
    async with raw(make_server(None, LOOPBACK)) as peer:
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x", "commits": 1})
        assert await received(receiver, 1) == [1]
    assert "no thread can be started" in caplog.text


# -- what another version kept


def get_records(server: Server) -> WebhookRecords:
    (events,) = [extension for extension in server.extensions if isinstance(extension, Events)]
    return WebhookRecords(events.store, None)


async def rewrite(server: Server, name: str, change: Callable[[Json], Json]) -> None:
    """Put a record of the only caller in another form. `*` is its only subscription."""
    records = get_records(server)
    (space,) = [space async for space in records.iter_spaces()]
    (id,) = (await records.read_caller_subscriptions(space)).ids
    name = name.replace("*", id)
    held = json.loads((await records.store.get(space, [name]))[name])
    assert await records.store.change(StoreChange(space, put={name: json.dumps(change(held)).encode()}))


def list_ids(ledger: Json) -> Json:
    return {**ledger, "ids": list(ledger["ids"])}


async def test_the_ledger_of_the_first_form_is_read_and_written_on(receiver: WebhookReceiver, tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'git.db'}"
    server = make_server(address, LOOPBACK)
    async with raw(server) as peer:
        first = await subscribe(peer, receiver)
        await rewrite(server, "ledger", list_ids)
    again = make_server(address, LOOPBACK)
    async with raw(again) as peer:
        await peer.call("push", {"repository": "x", "commits": 1})
        assert await received(receiver, 1) == [1]
        assert (await subscribe(peer, receiver))["id"] == first["id"]
        (space,) = [space async for space in get_records(again).iter_spaces()]
        assert (await get_records(again).read_caller_subscriptions(space)).ids[first["id"]] > 0


async def test_after_the_clock_was_set_back_an_event_does_not_wait_until_it_is_as_late_again(
    receiver: WebhookReceiver, tmp_path: Path
):
    address = f"sqlite:///{tmp_path / 'git.db'}"
    server = make_server(address, LOOPBACK)
    async with raw(server) as peer:
        await subscribe(peer, receiver)
        tomorrow = get_records(server).now() + 86_400_000
        await rewrite(server, "progress *", lambda record: {**record, "attempts": 1, "retry_at": tomorrow})
    async with raw(make_server(address, LOOPBACK)) as peer:
        await peer.call("push", {"repository": "x", "commits": 1})
        assert await received(receiver, 1) == [1]


def add_member(record: Json) -> Json:
    return {**record, "invented": 1}


@pytest.mark.parametrize("name", ["ledger", "*", "progress *"])
async def test_what_a_later_version_kept_is_left_alone_and_named_and_others_get_their_events(
    receiver: WebhookReceiver, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    address = f"sqlite:///{tmp_path / 'git.db'}"
    keys = ApiKeys("memory:")
    alice, bob = [await keys.create(name, permissions=["ToolsListAll"]) for name in ("alice", "bob")]
    server = make_server(address, LOOPBACK, auth=keys)
    async with listening(server) as where:
        await ask_http(where, "events/subscribe", about(receiver), alice.token)
        await rewrite(server, name, add_member)
        before = await dump_webhooks(server)
    again = make_server(address, LOOPBACK, auth=keys)
    async with listening(again) as where:
        error = (await ask_http(where, "events/subscribe", about(receiver), alice.token))["error"]
        assert "another version of defserve" in error["message"]
        made = (await ask_http(where, "events/subscribe", about(receiver), bob.token))["result"]
        await again.emit_event("pushed", Push(commits=1), repository="x")
        await received(receiver, 1)
        assert [event.subscription for event in receiver.events] == [made["id"]]
        await until(lambda: "another version of defserve" in caplog.text)
        after = await dump_webhooks(again)
    assert before.items() <= after.items()


async def test_a_caller_in_another_form_is_told_once_and_others_get_their_events(
    receiver: WebhookReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    address = f"sqlite:///{tmp_path / 'git.db'}"
    keys = ApiKeys("memory:")
    alice, bob = [await keys.create(name, permissions=["ToolsListAll"]) for name in ("alice", "bob")]
    server = make_server(address, LOOPBACK, auth=keys)
    async with listening(server) as where:
        await ask_http(where, "events/subscribe", about(receiver), alice.token)
        await rewrite(server, "*", lambda record: {**record, "caller": [1, 2]})
        await ask_http(where, "events/subscribe", about(receiver), bob.token)
    again = make_server(address, LOOPBACK, auth=keys)
    async with listening(again) as where:
        await ask_http(where, "events/list", {}, bob.token)
        await again.emit_event("pushed", Push(commits=1), repository="x")
        await received(receiver, 1)
        await until(lambda: "another version of defserve" in caplog.text)
        assert "never retrieved" not in caplog.text


async def dump_webhooks(server: Server) -> dict[tuple[str, str], bytes]:
    """All that is kept of webhooks."""
    records = get_records(server)
    return {
        (space, name): data async for space in records.iter_spaces() async for name, data in records.store.scan(space)
    }


# -- processes


PROCESS = """
import asyncio, sys
from defserve.protocols.mcp.events import webhook_records
from defserve.protocols.mcp.events import webhooks as deliveries
from defserve.protocols.mcp.events.extension import Events
from defserve.protocols.mcp.events.webhook_records import DeliveryProgress, WebhookRecords
from defserve.server import EventSettings
from defserve.stores import store as leases
from tests.protocols.mcp.events.repositories import Push, make_server
from tests.raw import raw

# The next process waits for the lease of one that was killed.
leases.TTL, leases.RENEWED_EVERY = 1.0, 0.25
deliveries.LOOK_SECONDS = deliveries.IDLE_LOOK_SECONDS = webhook_records.FIRST_RETRY_SECONDS = 0.05

async def main():
    server = make_server(sys.argv[1], EventSettings(allow_loopback=True))
    async with raw(server):
        for number in map(int, sys.argv[2:]):
            await server.emit_event("pushed", Push(commits=number), repository="x")
            print(number, flush=True)
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def process(folder: Path, address: str, *numbers: int) -> Generator[subprocess.Popen[str]]:
    """A server that emits, and delivers until it is killed. It is up, and all was acknowledged."""
    (folder / "emits.py").write_text(PROCESS)
    command = [sys.executable, *quick_arguments(folder / "emits.py", [address, *map(str, numbers)])]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        try:
            while running.stdout.readline() != "up\n":
                assert running.poll() is None
            yield running
        finally:
            running.kill()


async def test_what_was_acknowledged_survives_a_kill_and_another_process_delivers_it(
    receiver: WebhookReceiver, address: str, tmp_path: Path
):
    async with raw(make_server(address, LOOPBACK)) as peer:
        await subscribe(peer, receiver)
    receiver.answer_with(*[500] * 4)
    with process(tmp_path, address, 1, 2, 3):
        await until(lambda: len(receiver.planned) < 4)
    with process(tmp_path, address, 4):
        assert await received(receiver, 4) == [1, 2, 3, 4]
    assert len({event.id for event in receiver.events}) == 4


async def test_two_processes_deliver_each_event_once(receiver: WebhookReceiver, address: str):
    one, other = make_server(address, LOOPBACK), make_server(address, LOOPBACK)
    async with raw(one) as here, raw(other) as elsewhere:
        await subscribe(here, receiver)
        for number in range(10):
            await (here if number % 2 else elsewhere).call("push", {"repository": "x", "commits": number})
        assert await received(receiver, 10) == list(range(10))
        assert receiver.duplicates == []


async def test_a_server_starts_while_its_store_is_away(receiver: WebhookReceiver):
    redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    try:
        async with raw(make_server(redis.address, LOOPBACK)) as peer:
            await subscribe(peer, receiver)
        redis.kill()
        server = make_server(redis.address, LOOPBACK)
        async with raw(server):
            redis.start()
            await server.emit_event("pushed", Push(commits=2), repository="x")
            assert await received(receiver, 1) == [2]
    finally:
        redis.remove()


async def test_a_store_that_never_answers_again_does_not_hold_up_the_end_of_a_delivery(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deliveries, "FAREWELL_SECONDS", 0.05)
    store = MemoryStore()
    server = make_server(store, settings=LOOPBACK)
    async with asyncio.timeout(20), raw(server) as peer:
        await subscribe(peer, receiver)
        await peer.call("push", {"repository": "x", "commits": 1})
        await received(receiver, 1)
        while (await load_progress(server)).last_delivery_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        change = store.change

        async def change_logs_only(wanted: StoreChange) -> bool:
            return await (change(wanted) if "head" in wanted.put else asyncio.Event().wait())

        monkeypatch.setattr(store, "change", change_logs_only)
        await peer.call("push", {"repository": "x", "commits": 2})
        await received(receiver, 2)
        monkeypatch.setattr(leases, "TTL", 0.05)  # how long a release waits
