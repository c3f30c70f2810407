"""`mgp/audit/replay`: the events that were kept, for a peer that was away or cannot be told of them.

Params: `since_seq`, the number of the first record that is wanted, or `since_timestamp`; `limit`. The answer has
`events`, each with its `seq`, and `next_seq`, from which the next page goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

from defserve.core.call import Call
from defserve.errors import InvalidParams
from defserve.protocols.mgp import instants
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.stores.audit.chain import AuditReport
    from defserve.stores.audit.reading import AuditPage

LIMIT: Final = 100
LARGEST_LIMIT: Final = 1_000
LARGEST_SEQ: Final = 10**17


class ReadableAuditLog(Protocol):
    """A sink that can be read again. All of it may wait for a disk or network, and raise AuditUnavailable."""

    @property
    def last_seq(self) -> int: ...
    def replay(self, since_seq: int = 0, since: datetime | None = None, limit: int = LIMIT) -> AuditPage: ...
    def verify(self) -> AuditReport: ...


def readable(sinks: Iterable[object]) -> ReadableAuditLog | None:
    """The first sink that can be read again."""
    return next(filter(_is_readable, sinks), None)


def _is_readable(sink: object) -> TypeGuard[ReadableAuditLog]:
    return callable(getattr(sink, "replay", None)) and callable(getattr(sink, "verify", None))


async def replay(call: Call, log: ReadableAuditLog, params: Params) -> Params:
    """A page of the log. Who may read it is up to the caller. Raises InvalidParams."""
    since_seq = _number(params, "since_seq", 0, 0, LARGEST_SEQ)
    limit = _number(params, "limit", LIMIT, 1, LARGEST_LIMIT)
    since = instants.read(params.get("since_timestamp"), "since_timestamp")
    if since is not None and "since_seq" in params:
        raise InvalidParams("Invalid params: give since_seq or since_timestamp, and not both")
    page = await call.in_thread(log.replay, since_seq, since, limit)
    return page._asdict()


def _number(params: Params, name: str, default: int, least: int, most: int) -> int:
    found: Any = params.get(name, default)
    if type(found) is not int or not least <= found <= most:
        raise InvalidParams(f"Invalid params: {name} must be a whole number from {least} to {most}")
    return found
