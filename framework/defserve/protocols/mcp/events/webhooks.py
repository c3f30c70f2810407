"""`events/subscribe` and `events/unsubscribe`: who wants which events sent to which address.

A subscription is known by its caller, address, event and arguments; its id is derived from them, so it is the same
after a restart, and subscribing again refreshes it. Before the first event an address has to prove that it wants them:
it repeats a number that was sent to it. `deliveries` sends what the log holds.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal, encode_principal
from defserve.auth.rates import Rate, TokenBuckets
from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.errors import InvalidParams, LimitExceeded
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import read_object_param
from defserve.protocols.mcp.events.deliveries import Deliveries
from defserve.protocols.mcp.events.draft import (
    SUBSCRIPTION_ID_HEADER,
    VERIFICATION_TYPE,
    EventError,
    get_event_dialect,
    make_event_error,
)
from defserve.protocols.mcp.events.event_log import Cursor, CursorCodec
from defserve.protocols.mcp.events.event_types import EventType, encode_canonical_json, read_count
from defserve.protocols.mcp.events.sending import DeliveryFailed, WebhookSender, parse_webhook_secret, sign_webhook
from defserve.protocols.mcp.events.webhook_records import (
    Subscription,
    WebhookRecords,
    format_time,
    make_caller_space,
)
from defserve.stores.store import Space, is_in_memory

if TYPE_CHECKING:
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mcp.events.streams import EventHub


MIN_TTL_MS: Final = 60_000
COUNT_SECONDS: Final = 1.0
"""For so long the number of all subscriptions is not counted again: it means reading what all callers have."""
CHALLENGE_RATE: Final = Rate(per_second=0.5, burst=20)
"""Addresses that one caller may have asked."""


class Webhooks:
    """The webhooks of a server. `clock` gives seconds since the epoch."""

    def __init__(self, events: Events, codec: CursorCodec, clock: Callable[[], float] = time.time) -> None:
        self._events, self._codec, self._clock = events, codec, clock
        self.records = WebhookRecords(events.store, events.get_lasting_secret(), clock)
        self._challenges = TokenBuckets(CHALLENGE_RATE)
        self._deliveries: dict[EventHub, Deliveries] = {}

    # -- what clients ask for ----------------------------------------------------------------------------

    async def subscribe(self, call: Call, params: Params, hub: EventHub) -> Params:
        """`events/subscribe`: make or refresh a subscription."""
        caller = _require_caller(call)
        event, arguments = await self._events.find_requested(call, params, "webhook")
        deliveries = self.start_deliveries(hub)
        url, secret = _read_delivery(call, params, deliveries.sender)
        id, space = self._derive_id(caller, url, event.name, arguments), make_caller_space(caller)
        expires = self._grant_ttl(params)
        await event.check_subscriber(call, self._events, arguments)
        start, is_truncated = await self._find_start(event, params)
        await self._check_room(call, space, id)
        if not await self.records.is_verified(space, url):
            await self._challenge(call, deliveries.sender, id, url, secret)
        wanted = Subscription(
            id, event.name, url, arguments, encode_principal(caller), get_event_dialect(call), [], expires
        )
        try:
            most = self._events.settings.webhooks
            progress = await self.records.store_subscription(space, wanted, secret, start, most=most)
        except LimitExceeded as error:
            raise make_event_error(call, "resource_exhausted", error.message, **error.data) from None
        self._watch_credential(call, caller, space, wanted, hub)
        deliveries.reload_soon(id)
        return {
            "id": id,
            "refreshBefore": format_time(expires),
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
            arguments = (await self._events.find_requested(call, params, "webhook"))[1]
        id = self._derive_id(caller, url, name, arguments)
        is_removed = await self.records.remove_subscription(make_caller_space(caller), id)
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
        wanted = read_count(params, "ttlMs")
        wanted = round(settings.webhook_ttl * 1000) if wanted is None else wanted
        return now + min(max(wanted, MIN_TTL_MS), longest)

    async def _find_start(self, event: EventType, params: Params) -> tuple[Cursor, bool]:
        """Where a new subscription begins, and whether events before that are gone."""
        events, max_age = self._events.log, read_count(params, "maxAgeMs")
        if params.get("cursor") is None:
            return await events.find_end(event.name), False
        cursor = self._codec.decode_cursor(event.name, params["cursor"])
        page = await events.read_page(event.name, cursor, max_age_ms=max_age, limit=1)
        if not page.is_truncated:
            return cursor, False
        return Cursor(page.cursor.epoch, page.events[0].number if page.events else page.cursor.number), True

    async def _check_room(self, call: Call, space: Space, id: str) -> None:
        """Raises EventError if the caller, or all together, have too many subscriptions."""
        settings, ids = self._events.settings, (await self.records.read_ledger(space)).ids
        if id in ids:
            return
        most = settings.webhooks
        if len(ids) >= most or await self.records.count_all(COUNT_SECONDS) >= (most := settings.webhooks_total):
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
        signed = sign_webhook([parse_webhook_secret(secret)], message_id, int(self._clock()), body)
        try:
            answer = await sender.post(url, {**signed, SUBSCRIPTION_ID_HEADER: id}, body, reads_answer=True)
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
            made = self._deliveries[hub] = Deliveries(
                self.records, self._codec, events.registry, hub, sender, has_backends=events.has_backends
            )
            hub.tasks.start(made.run())
        return self._deliveries[hub]

    async def stop_deliveries(self, hub: EventHub) -> None:
        """The loop ends."""
        if (deliveries := self._deliveries.pop(hub, None)) is not None:
            await deliveries.sender.aclose()

    def _watch_credential(
        self, call: Call, caller: Principal, space: Space, subscription: Subscription, hub: EventHub
    ) -> None:
        """End the subscription if the key or token that it was made with is revoked. If it only expires, it goes on."""
        is_ended = False

        def on_ended() -> None:
            nonlocal is_ended
            is_ended = True
            expires = caller.claims.get("exp")
            if not (isinstance(expires, int | float) and self._clock() >= expires - 1):
                hub.tasks.start(self._end_revoked(space, subscription, hub))

        call.keep_credential(lambda: not is_ended and hub in self._deliveries, on_ended)

    async def _end_revoked(self, space: Space, subscription: Subscription, hub: EventHub) -> None:
        loaded = await self.records.load_subscription(space, subscription.id)
        # Somebody may have refreshed it with another key since.
        if loaded is not None and loaded[0].principal.credential == subscription.principal.credential:
            error = EventError("forbidden", subscription.dialect, "the credential of this subscription was revoked")
            await self.start_deliveries(hub).terminate(space, loaded[0], error)


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
