"""Every name and number of the draft (SEP-3415, October 2026) that may still change, and the settings of a server.

There are two dialects of it: the SEP's, and an older sketch that ChatGPT speaks. Methods and bodies are the same, the
numbers of errors are not. A request speaks the SEP's if its client declares the extension, and the sketch's otherwise.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from defserve.base.frozen import FrozenDataclass
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.errors import ProtocolError, UsageError
from defserve.limits import is_positive_number
from defserve.protocols.mcp.lifecycle import MCP_NAMESPACE

if TYPE_CHECKING:
    from defserve.core.call import Call


EVENTS_EXTENSION_ID: Final = MCP_NAMESPACE + "events"
LIST_METHOD, POLL_METHOD, STREAM_METHOD = "events/list", "events/poll", "events/stream"
SUBSCRIBE_METHOD, UNSUBSCRIBE_METHOD = "events/subscribe", "events/unsubscribe"
EVENTS_LIST_CHANGED_FILTER: Final = "eventsListChanged"

ACTIVE_NOTIFICATION: Final = "notifications/events/active"
EVENT_NOTIFICATION: Final = "notifications/events/event"
ERROR_NOTIFICATION: Final = "notifications/events/error"
HEARTBEAT_NOTIFICATION: Final = "notifications/events/heartbeat"
TERMINATED_NOTIFICATION: Final = "notifications/events/terminated"
EVENTS_LIST_CHANGED_NOTIFICATION: Final = "notifications/events/list_changed"

DeliveryMode: TypeAlias = Literal["poll", "push", "webhook"]
DELIVERY_MODES: Final[tuple[DeliveryMode, ...]] = get_args(DeliveryMode)

EventDialectName: TypeAlias = Literal["sep", "sketch"]
ErrorName: TypeAlias = Literal["not_found", "forbidden", "resource_exhausted", "unsupported", "callback_endpoint_error"]

EVENT_ERROR_CODES: Final[dict[ErrorName, dict[EventDialectName, int]]] = {
    "not_found": {"sep": -32023, "sketch": -32011},
    "forbidden": {"sep": -32024, "sketch": -32012},
    "resource_exhausted": {"sep": -32025, "sketch": -32013},
    "unsupported": {"sep": -32026, "sketch": -32014},
    "callback_endpoint_error": {"sep": -32027, "sketch": -32015},
}

HEARTBEAT_SECONDS: Final = 30.0
MIN_POLL_MS: Final = 1_000
MAX_EVENT_BYTES: Final = 256 * 1024
"""Of an event on the wire. Its data may have `MAX_EVENT_DATA_BYTES`, so that there is room for the rest."""
MAX_EVENT_DATA_BYTES: Final = MAX_EVENT_BYTES - 4 * 1024

# Webhooks: the headers of a request, and the types of bodies that are not events.
SUBSCRIPTION_ID_HEADER: Final = "x-mcp-subscription-id"
VERIFICATION_TYPE, GAP_TYPE, TERMINATED_TYPE = "verification", "gap", "terminated"


def speaks_sep(call: Call) -> bool:
    """Whether a request speaks the SEP's dialect: its client declares the extension."""
    offer = call.terms.offer
    extensions = offer.capabilities.get("extensions") if offer is not None else None
    return is_object(extensions) and is_object(extensions.get(EVENTS_EXTENSION_ID))


def get_event_dialect(call: Call) -> EventDialectName:
    """The dialect in which a request is answered."""
    return "sep" if speaks_sep(call) else "sketch"


class EventError(ProtocolError):
    """An error of `events/*`. Its number depends on the dialect of the request."""

    def __init__(self, name: ErrorName, dialect: EventDialectName, message: str, **data: Any) -> None:
        super().__init__(message, code=EVENT_ERROR_CODES[name][dialect], data=data)
        self.error_type = name

    def to_wire(self) -> Params:
        """The error inside a notification, or inside the body of a webhook."""
        return {"code": self.code, "message": self.message, "data": self.data}


def make_event_error(call: Call, name: ErrorName, message: str, **data: Any) -> EventError:
    """An error in the dialect of a request."""
    return EventError(name, get_event_dialect(call), message, **data)


# -- What the operator of a server may change.


class EventSettings(FrozenDataclass):
    """How many events are kept, and what subscribers may have: `Server(…, experimental=[EventSettings(max_age=3600)])`.

    The log of each type keeps at most `max_events` events, of at most `max_bytes` bytes, for at most `max_age` seconds.
    A caller has at most `streams` open streams, everybody together `streams_total`. A caller has at most `webhooks`
    subscriptions, everybody together `webhooks_total`. They are kept for `webhook_ttl` seconds if the client names no
    time, and for `webhook_ttl_max` at most. Webhooks go to port 443, and to those in `webhook_ports`. `webhook_tls`
    replaces the default trust in certificates.

    `allow_loopback` is for tests and development: it also lets webhooks go to this machine, over http too. A server
    that is reached from other machines ignores it.
    """

    max_events: int = 10_000
    max_bytes: int = 16 * 1024 * 1024
    max_age: float = 24 * 3_600.0
    streams: int = 16
    streams_total: int = 1_000
    webhooks: int = 100
    webhooks_total: int = 10_000
    webhook_ttl: float = 24 * 3_600.0
    webhook_ttl_max: float = 7 * 24 * 3_600.0
    webhook_ports: Sequence[int] = ()
    webhook_tls: ssl.SSLContext | None = None
    allow_loopback: bool = False

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not is_positive_number(value := getattr(self, name)):
                raise UsageError(
                    f"EventSettings({name}={value!r}) must be positive and finite", fix="leave it out for the default"
                )


_POSITIVE: Final = (
    *("max_events", "max_bytes", "max_age", "streams", "streams_total"),
    *("webhooks", "webhooks_total", "webhook_ttl", "webhook_ttl_max"),
)
