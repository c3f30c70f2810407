"""`events/subscribe` and `events/unsubscribe`: who wants which events sent to which address.

A subscription is known by its caller, address, event and arguments; its id is derived from them, so it is the same
after a restart, and subscribing again refreshes it. Before the first event an address has to prove that it wants them:
it repeats a number that was sent to it. Below: `Deliveries` sends what the log holds.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from defserve.auth.api_keys import find_ended_credentials
from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal, encode_principal
from defserve.auth.rates import Rate, RateBuckets
from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.errors import DefserveError, InvalidParams, LimitExceeded, Refused
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import read_object_param
from defserve.protocols.mcp.events.draft import (
    GAP_TYPE,
    SUBSCRIPTION_ID_HEADER,
    TERMINATED_TYPE,
    VERIFICATION_TYPE,
    EventError,
    get_event_dialect,
    make_event_error,
)
from defserve.protocols.mcp.events.event_log import Cursor, CursorCodec, Occurrence
from defserve.protocols.mcp.events.event_types import (
    EventType,
    encode_canonical_json,
    matches_filter,
    read_non_negative_param,
)
from defserve.protocols.mcp.events.sending import DeliveryFailed, WebhookSender, parse_webhook_secret, sign_webhook
from defserve.protocols.mcp.events.webhook_records import (
    DeliveryProgress,
    Subscription,
    UnreadableWebhook,
    WebhookRecords,
    format_webhook_time,
    make_caller_webhook_space,
    record_delivery_failure,
    record_delivery_success,
)
from defserve.stores.store import Lease, Space, StoreBusy, is_in_memory, make_lease_token

if TYPE_CHECKING:
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mcp.events.streams import EventHub, LogFollower


MIN_TTL_MS: Final = 60_000
COUNT_SECONDS: Final = 1.0
"""For so long the number of all subscriptions is not counted again: it means reading what all callers have."""
CHALLENGE_RATE: Final = Rate(per_second=0.5, burst=20)
"""Addresses that one caller may have asked."""


class Webhooks:
    """The webhooks of a server."""

    def __init__(self, events: Events, codec: CursorCodec) -> None:
        self._events, self._codec = events, codec
        self.records = WebhookRecords(events.store, events.get_lasting_secret())
        self._challenges = RateBuckets(CHALLENGE_RATE)
        self._deliveries: dict[EventHub, Deliveries] = {}
        self._watches: dict[tuple[EventHub, Space, str], object] = {}
        """The watch over each credential that somebody has subscribed with."""

    # -- what clients ask for ----------------------------------------------------------------------------

    async def subscribe(self, call: Call, params: Params, hub: EventHub) -> Params:
        """`events/subscribe`: make or refresh a subscription."""
        caller = _require_caller(call)
        event, arguments = await self._events.find_requested_event_type(call, params, "webhook")
        deliveries = self.start_deliveries(hub)
        url, secret = _read_delivery(call, params, deliveries.sender)
        id, space = self._derive_id(caller, url, event.name, arguments), make_caller_webhook_space(caller)
        expires = self._grant_ttl(params)
        await event.check_subscriber(call, self._events, arguments)
        start, is_truncated = await self._find_start(event, params)
        await self._check_room(call, space, id)
        if not await self.records.is_caller_url_verified(space, url):
            await self._challenge(call, deliveries.sender, id, url, secret)
        wanted = Subscription(
            id, event.name, url, arguments, encode_principal(caller), get_event_dialect(call), [], expires
        )
        try:
            most = self._events.settings.webhooks
            progress = await self.records.store_subscription(space, wanted, secret, start, most=most)
        except LimitExceeded as error:
            raise make_event_error(call, "resource_exhausted", error.message, **error.data) from None
        self._watch_credential(call, caller, space, hub)
        deliveries.reload_soon(id)
        return {
            "id": id,
            "refreshBefore": format_webhook_time(expires),
            "cursor": self._codec.encode_cursor(event.name, progress.cursor),
            "truncated": is_truncated and progress.cursor == start,
            "deliveryStatus": progress.to_wire(self.records.now()),
        }

    async def unsubscribe(self, call: Call, params: Params, hub: EventHub) -> Params:
        """`events/unsubscribe`: only the caller's own. In the sketch, one that does not exist is as good as removed."""
        caller, deliveries = _require_caller(call), self.start_deliveries(hub)
        name, delivery = params.get("name"), read_object_param(params, "delivery")
        arguments: Any = params.get("arguments") or {}
        if not isinstance(name, str) or not is_object(arguments):
            raise InvalidParams("Invalid params: name must be a text, and arguments an object")
        try:
            url = deliveries.sender.check_url(delivery.get("url"))
        except ValueError as error:
            raise InvalidParams(f"Invalid params: {error}") from None
        if self._events.registry.get(name) is not None:
            arguments = (await self._events.find_requested_event_type(call, params, "webhook"))[1]
        id = self._derive_id(caller, url, name, arguments)
        is_removed = await self.records.remove_subscription(make_caller_webhook_space(caller), id)
        if not is_removed and get_event_dialect(call) == "sep":
            raise make_event_error(call, "not_found", "there is no such subscription", kind="subscription")
        deliveries.reload_soon(id)
        return {}

    def _derive_id(self, caller: Principal, url: str, name: str, arguments: Params) -> str:
        parts = [self._events.store.identity.label, caller.id, url, name, arguments]
        return f"sub_{sha256(encode_canonical_json(parts)).hexdigest()[:32]}"

    def _grant_ttl(self, params: Params) -> int | None:
        """When the subscription ends. It is never longer than wanted, except that there is a least time."""
        settings, now = self._events.settings, self.records.now()
        longest = round(settings.webhook_ttl_max * 1000)
        if "ttlMs" in params and params["ttlMs"] is None:
            # What is kept in memory would not outlive this process, so it has to be refreshed.
            return now + longest if is_in_memory(self._events.store) else None
        wanted = read_non_negative_param(params, "ttlMs")
        wanted = round(settings.webhook_ttl * 1000) if wanted is None else wanted
        return now + min(max(wanted, MIN_TTL_MS), longest)

    async def _find_start(self, event: EventType, params: Params) -> tuple[Cursor, bool]:
        """Where a new subscription begins, and whether events before that are gone."""
        events, max_age = self._events.log, read_non_negative_param(params, "maxAgeMs")
        if params.get("cursor") is None:
            return await events.ensure_end_cursor(event.name), False
        cursor = self._codec.decode_cursor(event.name, params["cursor"])
        page = await events.read_page(event.name, cursor, max_age_ms=max_age, limit=1)
        if not page.is_truncated:
            return cursor, False
        return Cursor(page.cursor.epoch, page.events[0].number if page.events else page.cursor.number), True

    async def _check_room(self, call: Call, space: Space, id: str) -> None:
        """Raises EventError if the caller, or all together, have too many subscriptions."""
        settings, ids = self._events.settings, (await self.records.read_caller_subscriptions(space)).ids
        if id in ids:
            return
        most = settings.webhooks
        if len(ids) >= most or await self.records.count_all_subscriptions(COUNT_SECONDS) >= (
            most := settings.webhooks_total
        ):
            raise make_event_error(
                call, "resource_exhausted", f"too many webhooks: {most} is the most", limit="webhooks", max=most
            )

    async def _challenge(self, call: Call, sender: WebhookSender, id: str, url: str, secret: str) -> None:
        """Have an address repeat a number. Raises EventError if it does not."""
        if wait := self._challenges.take_token(call.principal):
            raise make_event_error(
                call,
                "resource_exhausted",
                "too many new addresses: try again later",
                limit="challenges",
                retry_after_ms=int(wait * 1000) + 1,
            )
        nonce = secrets.token_urlsafe(32)
        body = to_json({"type": VERIFICATION_TYPE, "challenge": nonce})
        message_id = f"msg_{VERIFICATION_TYPE}_{secrets.token_hex(12)}"
        signed = sign_webhook([parse_webhook_secret(secret)], message_id, int(self.records.clock()), body)
        try:
            headers = {**signed, SUBSCRIPTION_ID_HEADER: id}
            answer = await sender.post(url, headers, body, caller=call.principal, reads_answer=True)
            _check_challenge(answer, nonce)
        except DeliveryFailed as failed:
            message = f"the address did not prove that it wants events: {failed.reason}"
            raise make_event_error(call, "callback_endpoint_error", message, reason=failed.reason) from None

    # -- running -----------------------------------------------------------------------------------------

    def start_deliveries(self, hub: EventHub) -> Deliveries:
        """Deliver on this loop, if no other process does. Calling it again makes no difference."""
        if hub not in self._deliveries:
            events = self._events
            sender = WebhookSender(events.settings, is_loopback_allowed=events.is_loopback_allowed)
            made = self._deliveries[hub] = Deliveries(events, self.records, self._codec, hub, sender)
            hub.tasks.start(made.run())
        return self._deliveries[hub]

    async def stop_deliveries(self, hub: EventHub) -> None:
        """The loop ends."""
        self._watches = {key: watch for key, watch in self._watches.items() if key[0] is not hub}
        if (deliveries := self._deliveries.pop(hub, None)) is not None:
            await deliveries.sender.aclose()

    def _watch_credential(self, call: Call, caller: Principal, space: Space, hub: EventHub) -> None:
        """End what was subscribed to with a key or token if that is revoked. If it only expires, it goes on."""
        key, watch = (hub, space, caller.credential), object()

        def is_kept() -> bool:
            # Subscriptions are refreshed again and again. One watch is enough: the first that is asked.
            return hub in self._deliveries and self._watches.setdefault(key, watch) is watch

        def on_ended() -> None:
            self._watches.pop(key, None)
            expires = caller.claims.get("exp")
            if not (isinstance(expires, int | float) and self.records.clock() >= expires - 1):
                hub.tasks.start(self._end_revoked(space, caller.credential, hub))

        call.keep_credential(is_kept, on_ended)

    async def _end_revoked(self, space: Space, credential: str, hub: EventHub) -> None:
        while True:
            try:
                return await self.start_deliveries(hub).end_revoked(space, credential)
            except Refused as error:
                log.warning("webhooks of a credential that was revoked wait for the store: %s", error)
                await asyncio.sleep(LOOK_SECONDS)


def _require_caller(call: Call) -> Principal:
    caller = identify_caller(call)
    if is_stranger(caller):
        raise make_event_error(call, "forbidden", "webhooks need an authenticated caller: poll, or open a stream")
    return caller


def _read_delivery(call: Call, params: Params, sender: WebhookSender) -> tuple[str, str]:
    """The address and the secret that a request names. The secret is in no error."""
    delivery = read_object_param(params, "delivery")
    mode, secret = delivery.get("mode"), delivery.get("secret")
    if mode != "webhook":
        value = mode if isinstance(mode, str) else None
        raise make_event_error(
            call, "unsupported", "the mode of delivery must be webhook", feature="delivery", value=value
        )
    try:
        url = sender.check_url(delivery.get("url"))
        parse_webhook_secret(secret)
    except ValueError as error:
        raise InvalidParams(f"Invalid params: {error}") from None
    return url, str(secret)


def _check_challenge(body: bytes, nonce: str) -> None:
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    given = answer.get("challenge") if is_object(answer) else None
    if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), nonce.encode()):
        raise DeliveryFailed("challenge_failed")


# -- Sends events to the addresses of webhooks: in order, again if it fails, by one process at a time.


LOOK_SECONDS: Final = 2.0
"""How often the subscriptions are looked at, for what other processes have done to them."""
LOOK_SHARE: Final = 4
"""For how many times as long as a look took there is no other."""
IDLE_LOOK_SECONDS: Final = 5.0
UNREADABLE_LOOK_SECONDS: Final = 60.0
MAX_WAIT_SECONDS: Final = 3_600.0
MAX_STORE_CALLS: Final = 32
"""Subscriptions that read or write their records at the same time: thousands at once would time out together."""
MAX_UNWRITTEN: Final = 20
"""Events that were acknowledged, before that is written down. If the process is killed, they are sent again."""
LEASE_NAME: Final = "event webhooks"
FAREWELL_SECONDS: Final = 5.0
"""How long a delivery that ends waits for the store to have its progress."""
LEASE_SECONDS: Final = 0.5
MISSING_SECONDS: Final = 60.0
"""How long after the start an event may be declared that somebody has subscribed to before."""

log = get_logger()


class Deliveries:
    """Delivers on one loop, while this process holds the lease."""

    def __init__(
        self, events: Events, records: WebhookRecords, codec: CursorCodec, hub: EventHub, sender: WebhookSender
    ) -> None:
        self.records, self._codec, self._registry, self.hub, self.sender = records, codec, events.registry, hub, sender
        self._has_backends = events.has_backends
        self._keys = events.auth.find_api_keys() if events.auth is not None else None
        self._changed = asyncio.Event()
        self._running: dict[str, SubscriptionDelivery] = {}
        self._unreadable: set[Space] = set()
        self.store_room = asyncio.Semaphore(MAX_STORE_CALLS)
        self._token = make_lease_token()
        self._started = asyncio.get_running_loop().time()

    def reload_soon(self, id: str) -> None:
        """A subscription was made, refreshed or removed."""
        self._changed.set()
        if (running := self._running.get(id)) is not None:
            running.mark_changed()

    async def run(self) -> None:
        """Deliver for as long as the loop runs."""
        while True:
            try:
                if await self.records.count_all_subscriptions():
                    await self._run_with_lease()
                    await _wait(self._changed, LOOK_SECONDS)
                else:
                    await _wait(self._changed, IDLE_LOOK_SECONDS)
            except Exception as error:  # nothing that is raised may end it: nobody would get an event again
                log.warning("webhooks wait for the store: %s", error, exc_info=not isinstance(error, Refused))
                await asyncio.sleep(LOOK_SECONDS)

    async def _run_with_lease(self) -> None:
        lease = Lease(self.records.store, LEASE_NAME, self._token)
        try:
            await lease.acquire(LEASE_SECONDS)
        except StoreBusy:
            return
        try:
            clock = asyncio.get_running_loop().time
            while await lease.is_held():
                began = clock()
                if not await self._update_tasks():
                    break
                await self._end_those_with_ended_keys()
                # While many subscribe, most of the time is theirs.
                await asyncio.sleep(LOOK_SHARE * (clock() - began))
                await _wait(self._changed, LOOK_SECONDS)
        finally:
            for running in self._running.values():
                running.task.cancel()
            await asyncio.gather(*(running.task for running in self._running.values()), return_exceptions=True)
            self._running.clear()
            await lease.release()

    async def _update_tasks(self) -> bool:
        """Have a task for each subscription. False if there is none."""
        wanted: dict[str, tuple[Space, int]] = {}
        async for space in self.records.iter_spaces():
            try:
                ledger = await self.records.read_caller_subscriptions(space)
            except UnreadableWebhook as error:
                if space not in self._unreadable:
                    self._unreadable.add(space)
                    log.error("the webhooks of one caller get no events: %s", error)
                continue
            self._unreadable.discard(space)
            for id, changed_at in ledger.ids.items():
                wanted[id] = space, changed_at
        for id in [id for id, running in self._running.items() if id not in wanted or running.task.done()]:
            self._running.pop(id).task.cancel()
        for id, (space, changed_at) in wanted.items():
            if id not in self._running:
                self._running[id] = SubscriptionDelivery(self, space, id, changed_at)
            elif self._running[id].changed_at != changed_at:
                self._running[id].changed_at = changed_at
                self._running[id].mark_changed()
        return bool(wanted)

    async def _end_those_with_ended_keys(self) -> None:
        """End what was subscribed to with an API key that has ended, also if that was before this process began."""
        if self._keys is None:
            return
        shown = {running.credential: running.space for running in self._running.values()}
        try:
            ended = await find_ended_credentials(self._keys, shown)
        except Exception as error:
            log.warning("the keys of webhooks cannot be looked up: %s", error)
            return
        for credential in ended:
            await self.end_revoked(shown[credential], credential)

    async def end_revoked(self, space: Space, credential: str) -> None:
        """End what a caller has subscribed to with a credential. One that cannot be read gets no events anyway."""
        with suppress(UnreadableWebhook):
            for id in (await self.records.read_caller_subscriptions(space)).ids:
                with suppress(UnreadableWebhook):
                    loaded = await self.records.load_subscription(space, id)
                    # Somebody may have refreshed it with another key since.
                    if loaded is not None and loaded[0].principal.credential == credential:
                        text = "the credential of this subscription was revoked"
                        await self.terminate(space, loaded[0], EventError("forbidden", loaded[0].dialect, text))

    # -- for the task of a subscription ------------------------------------------------------------------

    def find_event(self, subscription: Subscription, known: EventType | None) -> EventType | None:
        """The type of a subscription. None if it may still be declared. Raises EventError if it has ended for it."""
        event = self._registry.get(subscription.name)
        if event is None:
            waited = asyncio.get_running_loop().time() - self._started
            if known.is_missing_temporarily if known is not None else self._has_backends or waited < MISSING_SECONDS:
                return None
            raise EventError(
                "not_found", subscription.dialect, f"{subscription.name} is no longer an event", kind="event"
            )
        if known is not None and known is not event and not event.is_compatible(known):
            message = f"{subscription.name} has changed: subscribe again"
            raise EventError("unsupported", subscription.dialect, message, reason="schema_changed")
        if "webhook" not in event.delivery:
            message = f"{subscription.name} is no longer delivered by webhook"
            raise EventError("unsupported", subscription.dialect, message, feature="delivery", value="webhook")
        if not event.is_open_to(subscription.principal):
            raise EventError("forbidden", subscription.dialect, f"you may no longer have {subscription.name}")
        return event

    async def send_event(self, subscription: Subscription, type: EventType, event: Occurrence, epoch: str) -> None:
        """Raises DeliveryFailed."""
        after = Cursor(epoch, event.number + 1)
        if event.is_gap:
            await self.send_gap(subscription, after)
        else:
            cursor = self._codec.encode_cursor(subscription.name, after)
            await self._send(subscription, event.id, type.to_wire(event, cursor))

    async def send_gap(self, subscription: Subscription, cursor: Cursor) -> None:
        """Say that events before a cursor are gone. Raises DeliveryFailed."""
        body = {"type": GAP_TYPE, "cursor": self._codec.encode_cursor(subscription.name, cursor)}
        await self._send(subscription, f"msg_{GAP_TYPE}_{secrets.token_hex(12)}", body)

    async def terminate(self, space: Space, subscription: Subscription, error: EventError) -> None:
        """End a subscription, and tell its address once."""
        if await self.records.remove_subscription(space, subscription.id):
            self.reload_soon(subscription.id)
            # Not in the task of the subscription, which ends as soon as it is removed.
            self.hub.tasks.start(self._send_end(subscription, error))

    async def _send_end(self, subscription: Subscription, error: EventError) -> None:
        body = {"type": TERMINATED_TYPE, "error": error.to_wire()}
        with suppress(DeliveryFailed):
            await self._send(subscription, f"msg_{TERMINATED_TYPE}_{secrets.token_hex(12)}", body)

    async def _send(self, subscription: Subscription, message_id: str, body: Params) -> None:
        keys, data = await self.records.list_keys(subscription), to_json(body)
        if not keys:
            # The server's own secret was replaced. A refresh brings the secret again.
            raise DeliveryFailed("connection_refused")
        signed = sign_webhook(keys, message_id, int(self.records.clock()), data)
        headers = {**signed, SUBSCRIPTION_ID_HEADER: subscription.id}
        await self.sender.post(subscription.url, headers, data, caller=subscription.principal.id)


class _ProgressLost(Exception):
    """Somebody else has written the progress of a subscription: another process delivers it, or it was refreshed."""


class SubscriptionDelivery:
    """Delivers the events of one subscription, one after another, in a `task` of its own.

    `changed_at` is when it was made or refreshed last, and `credential` what with: empty until that is read.

    Thousands wait at the same time, in a `LogFollower`, which wakes it for an event that it has to send. So it has one
    task and one event to wait for, and keeps what it has read of the store until that changes. What it only passes is
    written down now and then: after a restart those events are looked at again, and nothing is lost.

    While it writes down that an event was acknowledged, it sends the next one. So it is a few events ahead of what the
    store knows, and whoever goes on there sends these again, in the same order.
    """

    __slots__ = (
        *("task", "changed_at", "position", "space", "credential", "_deliveries", "_records", "_hub", "_id", "_waker"),
        *("_is_changed", "_has_news", "_is_due", "_event", "_follower", "_subscription", "_progress"),
        *("_stored", "_tried", "_unwritten", "_writer"),
    )

    def __init__(self, deliveries: Deliveries, space: Space, id: str, changed_at: int) -> None:
        self.changed_at, self.space, self.credential = changed_at, space, ""
        self._deliveries, self._records, self._hub = deliveries, deliveries.records, deliveries.hub
        self._id = id
        self._waker, self._is_changed, self._has_news, self._is_due = asyncio.Event(), True, False, False
        self._event: EventType | None = None
        self._follower: LogFollower
        self._subscription: Subscription
        self._progress: DeliveryProgress
        self._stored: bytes = b""
        self._tried: bytes = b""
        """The progress as the store has it, and as it was written last: the store may have that as well."""
        self._unwritten: int = 0
        self._writer: asyncio.Task[None] | None = None
        self.position: Cursor
        self.task = asyncio.create_task(self._run())

    def mark_changed(self) -> None:
        """It may be another one in the store."""
        self._is_changed = True
        self._waker.set()

    @property
    def wanted_arguments(self) -> Params:
        return self._subscription.arguments

    @property
    def kept_number(self) -> int:
        return self._progress.number

    def read_soon(self, is_due: bool = False) -> None:
        """See `LogReader`."""
        self._has_news, self._is_due = True, is_due
        self._waker.set()

    def report_failure(self, error: Exception) -> None:
        """See `LogReader`."""

    async def _run(self) -> None:
        """Until the subscription ends, or somebody else has it."""
        try:
            async with AsyncExitStack() as listening:
                await self._run_while_listening(listening)
        finally:
            # What is not written down in time is sent again, under the same id.
            with suppress(DefserveError, _ProgressLost, TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._finish_writing()
            if self._writer is not None:
                self._writer.cancel()

    async def _run_while_listening(self, listening: AsyncExitStack) -> None:
        while True:
            self._waker.clear()
            try:
                if not await self._is_alive():
                    return
                event = self._deliveries.find_event(self._subscription, self._event)
                if event is not None and self._event is None:
                    with suppress(LimitExceeded):
                        listening.enter_context(self._hub.hold_source_running(event, self.wanted_arguments))
                    self._follower = listening.enter_context(self._hub.listen(event.name))
                self._event = event or self._event
                await self._go_on()
            except EventError as error:
                await self._deliveries.terminate(self.space, self._subscription, error)
                return
            except _ProgressLost:
                return
            except UnreadableWebhook as error:
                log.error("the webhook %s gets no events: %s", self._id, error)
                self._is_changed = True
                await _wait(self._waker, UNREADABLE_LOOK_SECONDS)
            except DefserveError as error:
                log.warning("a webhook waits for the store: %s", error)
                self._is_changed = True
                await asyncio.sleep(LOOK_SECONDS)

    async def _is_alive(self) -> bool:
        """Whether the subscription has not ended. If it may have changed, it is read again."""
        if self._is_changed:
            await self._finish_writing()
            self._is_changed = False
            async with self._deliveries.store_room:
                loaded = await self._records.load_subscription(self.space, self._id)
            if loaded is None:
                return False
            self._subscription, progress, stored = loaded
            self.credential = self._subscription.principal.credential
            if stored not in (self._stored, self._tried):
                # It is new here, or somebody else has changed it.
                self._progress, self.position = progress, progress.cursor
                self._unwritten, self._has_news = 0, False
            self._stored = self._tried = stored
            if self._unwritten:
                self._start_writing()
        expires = self._subscription.expires
        if expires is not None and expires <= self._records.now():
            await self._records.remove_subscription(self.space, self._id)
            return False
        return True

    async def _go_on(self) -> None:
        """Deliver the next events, or wait for some."""
        subscription, progress = self._subscription, self._progress
        if self._event is None or not progress.is_active:
            await self._wait(LOOK_SECONDS)
            return
        if progress.count_seconds_to_retry(self._records.now()):
            while (left := progress.count_seconds_to_retry(self._records.now())) and not self._is_changed:
                await self._wait(left)
            return
        if not self._has_news:
            await self._wait_for_news()
            return
        page, is_found = await self._hub.read_page(subscription.name, self.position), False
        if page.is_truncated:
            start = Cursor(page.cursor.epoch, page.events[0].number if page.events else page.cursor.number)
            if await self._try(self.position, self._deliveries.send_gap(subscription, start)):
                await self._store_progress(start)
            return
        for event in page.events:
            if self._is_changed:
                return  # it may have been removed, or have another secret
            if matches_filter(self.wanted_arguments, event.arguments, is_exact=event.is_exact):
                is_found = True
                sending = self._deliveries.send_event(subscription, self._event, event, page.cursor.epoch)
                if not await self._try(Cursor(page.cursor.epoch, event.number), sending):
                    return
                await self._store_progress_soon(Cursor(page.cursor.epoch, event.number + 1))
        self.position = page.cursor
        if self._is_due and page.cursor != progress.cursor:
            await self._store_progress(page.cursor)
        self._is_due = False
        if not is_found or not page.has_more:
            await self._finish_writing()
            self._has_news = False

    async def _wait_for_news(self) -> None:
        """Until there is something to read, or something has changed."""
        self._follower.add(self)
        try:
            await self._wait(MAX_WAIT_SECONDS)
        finally:
            self._follower.remove(self)

    async def _wait(self, seconds: float) -> None:
        """Until there is news, something has changed, the time has passed, or the subscription ends."""
        expires = self._subscription.expires
        if expires is not None:
            seconds = min(seconds, max(0.0, (expires - self._records.now()) / 1000))
        await _wait(self._waker, seconds)

    async def _try(self, before: Cursor, sending: Any) -> bool:
        """Send what comes at a cursor. Whether to go on behind it: it was acknowledged, or is given up."""
        progress = self._progress
        try:
            await sending
        except DeliveryFailed as failed:
            is_given_up = record_delivery_failure(progress, failed, self._records.now())
            if not is_given_up:
                await self._store_progress(before)
            return is_given_up
        record_delivery_success(progress, self._records.now())
        return True

    async def _store_progress(self, cursor: Cursor) -> None:
        """Write down that it has come so far, and wait for that."""
        self._advance(cursor)
        await self._finish_writing()

    async def _store_progress_soon(self, cursor: Cursor) -> None:
        """Write down that it has come so far, while the next event is sent."""
        self._advance(cursor)
        if self._unwritten >= MAX_UNWRITTEN or (self._writer is not None and self._writer.done()):
            await self._finish_writing()

    def _advance(self, cursor: Cursor) -> None:
        self._progress.epoch, self._progress.number = self.position = cursor
        self._unwritten += 1
        self._start_writing()

    def _start_writing(self) -> None:
        writer = self._writer
        # One that has failed stays: `_finish_writing` raises why.
        if writer is None or (writer.done() and not writer.cancelled() and writer.exception() is None):
            self._writer = asyncio.create_task(self._write_progress())

    async def _write_progress(self) -> None:
        """Write the progress down, until there is nothing new."""
        while self._unwritten:
            async with self._deliveries.store_room:
                count, self._tried = self._unwritten, self._progress.to_bytes()
                if not await self._records.store_progress(self.space, self._id, self._tried, self._stored):
                    raise _ProgressLost
            self._stored = self._tried
            self._unwritten -= count

    async def _finish_writing(self) -> None:
        """Wait until the progress is written down. Raises what kept it from that."""
        if self._writer is not None:
            await asyncio.wait((self._writer,))  # it goes on if this task is cancelled
            writer, self._writer = self._writer, None
            writer.result()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or the time has passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
