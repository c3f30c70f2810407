"""What is kept of webhooks: subscriptions, how far each has come, and which addresses have proved themselves.

The subscriptions of one caller lie in one space of the store: `ledger` lists them and the addresses that have proved
themselves, each subscription lies under its id, and how far it has come under `progress` and its id. Secrets are sealed
if the server has a secret of its own to seal with.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

from pydantic_core import from_json, to_json

from defserve.auth.principals import Principal, decode_principal
from defserve.base.backoff import compute_backoff
from defserve.core import json_values
from defserve.core.messages import Params
from defserve.errors import InvalidParams, LimitExceeded
from defserve.protocols.mcp.asking.round_trips import Sealer
from defserve.protocols.mcp.events.draft import EventDialectName
from defserve.protocols.mcp.events.event_log import Cursor
from defserve.protocols.mcp.events.sending import SECRET_PREFIX, DeliveryFailed, parse_webhook_secret
from defserve.stores.identity import ServerStore
from defserve.stores.store import WEBHOOK_SPACES, Space, StoreBusy, StoreChange, StoreCorrupt

VERIFIED_MS: Final = 24 * 3_600_000
MAX_VERIFIED: Final = 100
"""Addresses of one caller that are known to want events. The oldest are forgotten first."""
ROTATION_MS: Final = 24 * 3_600_000
"""How long a request is signed with the secret before the newest as well."""
MAX_SECRETS: Final = 3
MAX_TRIES: Final = 50

MAX_ATTEMPTS: Final = 6
FIRST_RETRY_SECONDS: Final = 30.0
MAX_RETRY_SECONDS: Final = 300.0
"""An event is tried again after 30, 60, 120, 240 and 300 seconds: 12½ minutes in all."""
SUSPEND_AFTER: Final = 100
"""Failures in a row after which a subscription is suspended."""
MIN_SUSPEND_FAILURES: Final = 10
SUSPEND_SECONDS: Final = 3_600.0
"""A subscription is also suspended if so few fail in a row, and nothing got through for so long."""

LEDGER: Final = "ledger"
PROGRESS: Final = "progress "

T = TypeVar("T")


class UnreadableWebhook(StoreCorrupt):
    """What is kept of a webhook has a form that this version does not know. It is left as it is."""

    def __init__(self) -> None:
        super().__init__(
            "A webhook was kept in the store by another version of defserve, and this one cannot read it: "
            "serve with the newer of the two versions"
        )


@dataclass(slots=True)
class Subscription:
    """What was asked for. Times are milliseconds since the epoch; `expires` is None if it does not end by itself.

    `secrets` are the sealed secrets, the newest first, each with the time until which it signs.
    """

    id: str
    name: str
    url: str
    arguments: Params
    caller: list[Any]
    dialect: EventDialectName
    secrets: list[tuple[str, int | None]]
    expires: int | None

    @classmethod
    def from_bytes(cls, data: bytes) -> Subscription:
        return _parse_record(cls, data)

    def to_bytes(self) -> bytes:
        return to_json(asdict(self))

    @property
    def principal(self) -> Principal:
        """Who subscribed, with the rights that it had. Raises UnreadableWebhook."""
        try:
            return decode_principal(self.caller)
        except (TypeError, ValueError):
            raise UnreadableWebhook from None


@dataclass(slots=True)
class DeliveryProgress:
    """How far a subscription has come: everything before the cursor was acknowledged, or given up.

    `attempts` of the next event have failed; `failures` in a row since `failed_since`.
    """

    epoch: str
    number: int
    is_active: bool = True
    attempts: int = 0
    retry_at: int = 0
    failures: int = 0
    failed_since: int | None = None
    last_delivery_at: int | None = None
    last_error: str | None = None
    is_throttled: bool = False

    @classmethod
    def from_bytes(cls, data: bytes) -> DeliveryProgress:
        return _parse_record(cls, data)

    def to_bytes(self) -> bytes:
        return to_json(asdict(self))

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.epoch, self.number)

    def count_seconds_to_retry(self, now: int) -> float:
        """How long the next event waits. If it would be longer than ever, the clock was set back: then not at all."""
        left = (self.retry_at - now) / 1000
        return left if 0 < left <= MAX_RETRY_SECONDS else 0.0

    def to_wire(self, now: int) -> Params:
        """`deliveryStatus`: nothing in it was written by the endpoint."""
        wire: Params = {
            "active": self.is_active,
            "lastDeliveryAt": format_webhook_time(self.last_delivery_at),
            "lastError": self.last_error,
        }
        if self.failed_since is not None:
            wire["failedSince"] = format_webhook_time(self.failed_since)
        if self.is_throttled:
            wire |= {"throttled": True, "retryAfterMs": round(self.count_seconds_to_retry(now) * 1000)}
        return wire


def record_delivery_success(progress: DeliveryProgress, now: int) -> None:
    """Something was acknowledged."""
    progress.attempts = progress.retry_at = progress.failures = 0
    progress.failed_since, progress.last_error, progress.is_throttled = None, None, False
    progress.last_delivery_at = now


def record_delivery_failure(progress: DeliveryProgress, failed: DeliveryFailed, now: int) -> bool:
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


@dataclass(slots=True)
class CallerSubscriptions:
    """The `ledger` of a caller: its subscriptions, and until when each address (by its hash) counts as verified.

    `ids` has for each when it was made or refreshed, so that another process sees which of them have changed.
    """

    ids: dict[str, int] = field(default_factory=dict[str, int])
    verified: dict[str, int] = field(default_factory=dict[str, int])


class WebhookRecords:
    """The subscriptions in a server's store. `secret` seals; `clock` gives seconds since the epoch."""

    def __init__(self, store: ServerStore, secret: bytes | None, clock: Callable[[], float] = time.time) -> None:
        self.store, self.clock = store, clock
        self._counted = 0, float("-inf")
        key = store.identity.derive_key(secret, "webhook secret") if secret is not None else None
        self._sealer = Sealer(key, ttl=float("inf"), nonces=_AnyNumberOfTimes()) if key is not None else None

    def now(self) -> int:
        return round(self.clock() * 1000)

    async def is_caller_url_verified(self, space: Space, url: str) -> bool:
        """Whether an address has proved lately that it wants events of this caller."""
        return (await self.read_caller_subscriptions(space)).verified.get(hash_text(url), 0) > self.now()

    async def count_all_subscriptions(self, max_age: float = 0.0) -> int:
        """How many subscriptions there are, of all callers; or how many there were at most `max_age` seconds ago."""
        count, at = self._counted
        if self.clock() > at + max_age or self.clock() < at:
            count = 0
            async for space in self.iter_spaces():
                with suppress(UnreadableWebhook):
                    count += len((await self.read_caller_subscriptions(space)).ids)
            self._counted = count, self.clock()
        return count

    async def store_subscription(
        self, space: Space, wanted: Subscription, secret: str, start: Cursor, *, most: int
    ) -> DeliveryProgress:
        """Keep a subscription, new or refreshed, and that its address is verified. One that was suspended goes on.

        A new one begins at `start`. Raises LimitExceeded if its caller has the `most` already.
        """
        now, names = self.now(), (LEDGER, wanted.id, PROGRESS + wanted.id)
        for _ in range(MAX_TRIES):
            found = await self.store.get(space, names)
            ledger = _parse_caller_subscriptions(found.get(LEDGER))
            known = Subscription.from_bytes(found[wanted.id]) if wanted.id in found else None
            if wanted.id not in ledger.ids and len(ledger.ids) >= most:
                raise LimitExceeded("too many webhooks", data={"limit": "webhooks", "max": most})
            ledger.ids[wanted.id] = max(now, ledger.ids.get(wanted.id, 0) + 1)
            alive = {
                each: until for each, until in ledger.verified.items() if until > now and each != hash_text(wanted.url)
            }
            kept = sorted(alive.items(), key=lambda item: item[1])[-(MAX_VERIFIED - 1) :]
            ledger.verified = {
                **dict(kept),
                hash_text(wanted.url): max(now + VERIFIED_MS, ledger.verified.get(hash_text(wanted.url), 0)),
            }
            wanted.secrets = await self._rotate(wanted.id, known, secret)
            progress = DeliveryProgress(start.epoch, start.number)
            is_over = known is not None and known.expires is not None and known.expires <= now
            if known is not None and not is_over and PROGRESS + wanted.id in found:
                progress = DeliveryProgress.from_bytes(found[PROGRESS + wanted.id])
            before = progress.to_bytes()
            if not progress.is_active:
                progress = DeliveryProgress(
                    progress.epoch,
                    progress.number,
                    last_delivery_at=progress.last_delivery_at,
                    last_error=progress.last_error,
                )
            put = {LEDGER: to_json(asdict(ledger)), wanted.id: wanted.to_bytes()}
            expect: dict[str, bytes | None] = {LEDGER: found.get(LEDGER), wanted.id: found.get(wanted.id)}
            if progress.to_bytes() != before or found.get(PROGRESS + wanted.id) != before:
                put[PROGRESS + wanted.id] = progress.to_bytes()
                expect[PROGRESS + wanted.id] = found.get(PROGRESS + wanted.id)
            if await self.store.change(StoreChange(space, put=put, expect=expect)):
                return progress
        raise StoreBusy("The webhooks are changed by too many at once", data={"retry_after_ms": 1000})

    async def _rotate(self, id: str, known: Subscription | None, secret: str) -> list[tuple[str, int | None]]:
        """The secrets of a subscription with a new one in front. Those before it sign for a while."""
        now = self.now()
        older = [(text, until) for text, until in (known.secrets if known else ()) if until is None or until > now]
        opened = [(await self._open_secret(id, text), text, until) for text, until in older]
        kept = [(text, until or now + ROTATION_MS) for plain, text, until in opened if plain not in (None, secret)]
        return [(self._seal_secret(id, secret), None), *kept[: MAX_SECRETS - 1]]

    def _seal_secret(self, id: str, secret: str) -> str:
        """A secret as it is kept: sealed, if the server has a secret of its own to seal with."""
        return secret if self._sealer is None else self._sealer.seal(secret, binding=id.encode())

    async def _open_secret(self, id: str, text: str) -> str | None:
        if text.startswith(SECRET_PREFIX):
            return text  # it was kept before the server had a secret
        if self._sealer is None:
            return None
        try:
            return await self._sealer.open(text, binding=id.encode())
        except InvalidParams:
            return None

    async def list_keys(self, subscription: Subscription) -> list[bytes]:
        """The keys that sign what is sent now. None are left if the server's secret was replaced."""
        now = self.now()
        texts = [text for text, until in subscription.secrets if until is None or until > now]
        opened = [await self._open_secret(subscription.id, text) for text in texts]
        return [parse_webhook_secret(secret) for secret in opened if secret is not None]

    async def iter_spaces(self) -> AsyncIterator[Space]:
        """The spaces of all callers."""
        async for name in self.store.spaces(WEBHOOK_SPACES):
            yield WEBHOOK_SPACES.make_space(name.removeprefix(WEBHOOK_SPACES))

    async def load_subscription(self, space: Space, id: str) -> tuple[Subscription, DeliveryProgress, bytes] | None:
        """A subscription, how far it has come, and that as it is in the store."""
        found = await self.store.get(space, [id, PROGRESS + id])
        if id not in found or PROGRESS + id not in found:
            return None
        data = found[PROGRESS + id]
        return Subscription.from_bytes(found[id]), DeliveryProgress.from_bytes(data), data

    async def store_progress(self, space: Space, id: str, data: bytes, before: bytes) -> bool:
        """Keep how far a subscription has come. False: somebody else has changed it."""
        name = PROGRESS + id
        if await self.store.change(StoreChange(space, put={name: data}, expect={name: before})):
            return True
        # It was written, and the answer got lost: clients of Redis then send a change again.
        return (await self.store.get(space, [name])).get(name) == data

    async def remove_subscription(self, space: Space, id: str) -> bool:
        """Forget a subscription. False if there was none."""
        for _ in range(MAX_TRIES):
            before = (await self.store.get(space, [LEDGER])).get(LEDGER)
            ledger = _parse_caller_subscriptions(before)
            if id not in ledger.ids:
                return False
            del ledger.ids[id]
            ledger.verified = {each: until for each, until in ledger.verified.items() if until > self.now()}
            is_empty = not ledger.ids and not ledger.verified
            put = {} if is_empty else {LEDGER: to_json(asdict(ledger))}
            drop = [id, PROGRESS + id, *([LEDGER] if is_empty else ())]
            if await self.store.change(StoreChange(space, put=put, drop=drop, expect={LEDGER: before})):
                return True
        raise StoreBusy("The webhooks are changed by too many at once", data={"retry_after_ms": 1000})

    async def read_caller_subscriptions(self, space: Space) -> CallerSubscriptions:
        return _parse_caller_subscriptions((await self.store.get(space, [LEDGER])).get(LEDGER))


class _AnyNumberOfTimes:
    """Nonces for what is opened again and again: a secret that is kept."""

    async def spend(self, nonce: str, *, ttl: float) -> bool:
        return True


def make_caller_webhook_space(caller: Principal) -> Space:
    """Where the subscriptions of a caller lie."""
    return WEBHOOK_SPACES.make_space(hash_text(caller.id))


def hash_text(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _parse_caller_subscriptions(data: bytes | None) -> CallerSubscriptions:
    if data is None:
        return CallerSubscriptions()
    ledger = _parse_record(CallerSubscriptions, data)
    ids: Any = ledger.ids
    if isinstance(ids, list):
        # Before 18 November 2026 it was a list of ids. Nobody knows when they were refreshed, and nobody needs to.
        ledger.ids = dict.fromkeys(cast(list[str], ids), 0)
    elif not isinstance(ids, dict):
        raise UnreadableWebhook
    return ledger


def _parse_record(cls: type[T], data: bytes) -> T:
    """Raises UnreadableWebhook."""
    try:
        return cls(**from_json(data))
    except (TypeError, ValueError):
        raise UnreadableWebhook from None


def format_webhook_time(milliseconds: int | None) -> str | None:
    """A time of a record as clients see it."""
    return None if milliseconds is None else json_values.format_unix_timestamp(milliseconds / 1000, "milliseconds")
