"""Sends events to the addresses of webhooks: in order, again if it fails, by one process at a time.

How it works: the log is the outbox. One process of the server holds a lease and delivers; if it dies, another one gets
the lease and goes on where the progress of each subscription stands in the store. Every subscription has a task of its
own, which sends the next event, keeps that it was acknowledged, and goes on. So events of a subscription never overtake
each other, and what was sent but not yet kept is sent again, under the same id.

    emit → log ─ read at the progress ─→ matches? → sign → POST → 2xx: progress moves on
                                                           else: wait, try again; given up after MAX_ATTEMPTS
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from defserve.base.backoff import compute_backoff
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import DefserveError, LimitExceeded, Refused
from defserve.protocols.mcp.events.draft import GAP_TYPE, SUBSCRIPTION_ID_HEADER, TERMINATED_TYPE, EventError
from defserve.protocols.mcp.events.event_log import Cursor, CursorCodec, Occurrence
from defserve.protocols.mcp.events.event_types import EventType, matches_filter
from defserve.protocols.mcp.events.sending import DeliveryFailed, WebhookSender, sign_webhook
from defserve.protocols.mcp.events.webhook_records import DeliveryProgress, Subscription, WebhookRecords
from defserve.stores.store import Lease, Space, StoreBusy, make_lease_token

if TYPE_CHECKING:
    from defserve.protocols.mcp.events.streams import EventHub


MAX_ATTEMPTS: Final = 6
FIRST_RETRY_SECONDS: Final = 30.0
MAX_RETRY_SECONDS: Final = 300.0
"""An event is tried again after 30, 60, 120, 240 and 300 seconds: 12½ minutes in all."""
SUSPEND_AFTER: Final = 100
"""Failures in a row after which a subscription is suspended."""
MIN_SUSPEND_FAILURES: Final = 10
SUSPEND_SECONDS: Final = 3_600.0
"""A subscription is also suspended if so few fail in a row, and nothing got through for so long."""

LOOK_SECONDS: Final = 2.0
"""How often the subscriptions are looked at, for what other processes have done to them."""
LOOK_SHARE: Final = 4
"""For how many times as long as a look took there is no other."""
IDLE_LOOK_SECONDS: Final = 5.0
NEWS_LOOK_SECONDS: Final = 60.0
"""How often the log is looked at without news: those of another process may have been lost on their way."""
MAX_STORE_CALLS: Final = 32
"""Subscriptions that read or write their records at the same time: thousands at once would time out together."""
MAX_UNSTORED: Final = 100
"""Events that are not for a subscription, and that it may have passed without writing down that it did."""
LEASE_NAME: Final = "event webhooks"
LEASE_SECONDS: Final = 0.5
MISSING_SECONDS: Final = 60.0
"""How long after the start an event may be declared that somebody has subscribed to before."""

log = logging.getLogger("defserve")


class Deliveries:
    """Delivers on one loop, while this process holds the lease. `has_backends`: see `Events`."""

    def __init__(
        self,
        records: WebhookRecords,
        codec: CursorCodec,
        registry: Registry[EventType],
        hub: EventHub,
        sender: WebhookSender,
        *,
        has_backends: bool = False,
    ) -> None:
        self._records, self._codec, self._registry, self._hub, self.sender = records, codec, registry, hub, sender
        self._has_backends = has_backends
        self._changed = asyncio.Event()
        self._running: dict[str, SubscriptionDelivery] = {}
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
                if await self._records.count_all():
                    await self._run_with_lease()
                    await _wait(self._changed, LOOK_SECONDS)
                else:
                    await _wait(self._changed, IDLE_LOOK_SECONDS)
            except Refused as error:
                log.warning("webhooks wait for the store: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    async def _run_with_lease(self) -> None:
        lease = Lease(self._records.store, LEASE_NAME, self._token)
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
        async for space in self._records.iter_spaces():
            for id, changed_at in (await self._records.read_ledger(space)).ids.items():
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

    # -- for the task of a subscription ------------------------------------------------------------------

    @property
    def records(self) -> WebhookRecords:
        return self._records

    @property
    def hub(self) -> EventHub:
        return self._hub

    def find_event(self, subscription: Subscription, known: EventType | None) -> EventType | None:
        """The type of a subscription. None if it may still be declared. Raises EventError if it has ended for it."""
        event = self._registry.get(subscription.name)
        if event is None:
            waited = asyncio.get_running_loop().time() - self._started
            if known.may_come_back if known is not None else self._has_backends or waited < MISSING_SECONDS:
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
        if await self._records.remove_subscription(space, subscription.id):
            # Not in the task of the subscription, which ends as soon as it is removed.
            self._hub.tasks.start(self._send_end(subscription, error))

    async def _send_end(self, subscription: Subscription, error: EventError) -> None:
        body = {"type": TERMINATED_TYPE, "error": error.to_wire()}
        with suppress(DeliveryFailed):
            await self._send(subscription, f"msg_{TERMINATED_TYPE}_{secrets.token_hex(12)}", body)

    async def _send(self, subscription: Subscription, message_id: str, body: Params) -> None:
        keys, data = await self._records.list_keys(subscription), to_json(body)
        if not keys:
            # The server's own secret was replaced. A refresh brings the secret again.
            raise DeliveryFailed("connection_refused")
        signed = sign_webhook(keys, message_id, int(self._records.clock()), data)
        await self.sender.post(subscription.url, {**signed, SUBSCRIPTION_ID_HEADER: subscription.id}, data)


class _ProgressLost(Exception):
    """Somebody else has written the progress of a subscription: another process delivers it, or it was refreshed."""


class SubscriptionDelivery:
    """Delivers the events of one subscription, one after another, in a `task` of its own.

    `changed_at` is when it was made or refreshed last.

    Thousands wait at the same time. So it has one task and one event to wait for, it keeps what it has read of the
    store until that changes, and does not write down each event that it only passes.
    """

    __slots__ = (
        *("task", "changed_at", "_deliveries", "_records", "_hub", "_space", "_id", "_waker", "_is_changed"),
        *("_event", "_subscription", "_progress", "_stored", "_position"),
    )

    def __init__(self, deliveries: Deliveries, space: Space, id: str, changed_at: int) -> None:
        self.changed_at = changed_at
        self._deliveries, self._records, self._hub = deliveries, deliveries.records, deliveries.hub
        self._space, self._id = space, id
        self._waker, self._is_changed = asyncio.Event(), True
        self._event: EventType | None = None
        self._subscription: Subscription
        self._progress: DeliveryProgress
        self._stored = b""
        self._position: Cursor
        """What was looked at: up to here nothing has to be sent."""
        self.task = asyncio.create_task(self._run())

    def mark_changed(self) -> None:
        """It may be another one in the store."""
        self._is_changed = True
        self._waker.set()

    async def _run(self) -> None:
        """Until the subscription ends, or somebody else has it."""
        async with AsyncExitStack() as listening:
            while True:
                self._waker.clear()
                try:
                    if not await self._is_alive():
                        return
                    event = self._deliveries.find_event(self._subscription, self._event)
                    if event is not None and self._event is None:
                        wanted = self._subscription.arguments
                        with suppress(LimitExceeded):
                            listening.enter_context(self._hub.listen(event, wanted, self._waker.set))
                    self._event = event or self._event
                    await self._go_on()
                except EventError as error:
                    await self._deliveries.terminate(self._space, self._subscription, error)
                    return
                except _ProgressLost:
                    return
                except DefserveError as error:
                    log.warning("a webhook waits for the store: %s", error)
                    self._is_changed = True
                    await asyncio.sleep(LOOK_SECONDS)

    async def _is_alive(self) -> bool:
        """Whether the subscription has not ended. If it may have changed, it is read again."""
        if self._is_changed:
            async with self._deliveries.store_room:
                loaded = await self._records.load_subscription(self._space, self._id)
            if loaded is None:
                return False
            self._is_changed = False
            before = self._stored
            self._subscription, self._progress, self._stored = loaded
            if before != self._stored:
                self._position = self._progress.cursor
        expires = self._subscription.expires
        if expires is not None and expires <= self._records.now():
            await self._records.remove_subscription(self._space, self._id)
            return False
        return True

    async def _go_on(self) -> None:
        """Deliver the next events, or wait for some."""
        now, subscription, progress = self._records.now(), self._subscription, self._progress
        if self._event is None or not progress.is_active:
            await self._wait(LOOK_SECONDS)
            return
        if progress.retry_at > now:
            while (left := (progress.retry_at - self._records.now()) / 1000) > 0 and not self._is_changed:
                await self._wait(left)
            return
        page = await self._hub.read_page(subscription.name, self._position)
        if page.is_truncated:
            start = Cursor(page.cursor.epoch, page.events[0].number if page.events else page.cursor.number)
            if await self._try(progress, self._deliveries.send_gap(subscription, start)):
                await self._store_progress(start)
            return
        for event in page.events:
            if self._is_changed:
                return  # it may have been removed, or have another secret
            if matches_filter(subscription.arguments, event.arguments, is_exact=event.is_exact):
                sending = self._deliveries.send_event(subscription, self._event, event, page.cursor.epoch)
                if not await self._try(progress, sending):
                    return
                await self._store_progress(Cursor(page.cursor.epoch, event.number + 1))
        self._position = page.cursor
        if page.cursor.number - progress.number >= MAX_UNSTORED:
            await self._store_progress(page.cursor)
        if not page.has_more:
            await self._wait(NEWS_LOOK_SECONDS)

    async def _wait(self, seconds: float) -> None:
        """Until there is news, something has changed, the time has passed, or the subscription ends."""
        expires = self._subscription.expires
        if expires is not None:
            seconds = min(seconds, max(0.0, (expires - self._records.now()) / 1000))
        await _wait(self._waker, seconds)

    async def _try(self, progress: DeliveryProgress, sending: Any) -> bool:
        """Send something. Whether to go on behind it: it was acknowledged, or is given up."""
        try:
            await sending
        except DeliveryFailed as failed:
            is_given_up = note_failure(progress, failed, self._records.now())
            if not is_given_up:
                await self._store_progress(progress.cursor)
            return is_given_up
        note_success(progress, self._records.now())
        return True

    async def _store_progress(self, cursor: Cursor) -> None:
        self._progress.epoch, self._progress.number = cursor
        self._position = cursor
        async with self._deliveries.store_room:
            stored = await self._records.store_progress(self._space, self._id, self._progress, self._stored)
        if stored is None:
            raise _ProgressLost
        self._stored = stored


def note_success(progress: DeliveryProgress, now: int) -> None:
    """Something was acknowledged."""
    progress.attempts = progress.retry_at = progress.failures = 0
    progress.failed_since, progress.last_error, progress.is_throttled = None, None, False
    progress.last_delivery_at = now


def note_failure(progress: DeliveryProgress, failed: DeliveryFailed, now: int) -> bool:
    """Something was not acknowledged: when it is tried again. True if it is given up."""
    progress.failures, progress.last_error = progress.failures + 1, failed.reason
    progress.failed_since = progress.failed_since or now
    is_long = progress.failures >= MIN_SUSPEND_FAILURES and now - progress.failed_since >= SUSPEND_SECONDS * 1000
    if is_long or progress.failures >= SUSPEND_AFTER:
        # It is not given up: a refresh goes on with it, unless the log has let go of it.
        progress.is_active, progress.attempts, progress.retry_at = False, 0, 0
        return False
    progress.attempts += 1
    if failed.is_final or progress.attempts >= MAX_ATTEMPTS:
        progress.attempts = progress.retry_at = 0
        progress.is_throttled = False
        return True
    wait = compute_backoff(progress.attempts - 1, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
    progress.is_throttled = failed.retry_after > 0
    progress.retry_at = now + round(max(wait, min(failed.retry_after, MAX_RETRY_SECONDS)) * 1000)
    return False


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or the time has passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
