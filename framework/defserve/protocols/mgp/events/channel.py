"""MGP §13.5: one event channel, as an author declares it, and what is emitted on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pydantic_core import to_jsonable_python

from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal, checked_scopes
from defserve.auth.remembered import written
from defserve.core.session import Session
from defserve.errors import UsageError
from defserve.protocols.mcp.lifecycle import LOG_LEVELS
from defserve.protocols.mgp import instants
from defserve.wire.codec import encode
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LONGEST_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

Audience: TypeAlias = "str | Principal | Session | None"
"""Whom an event is for: everybody who subscribed, one principal, or one session.

A principal that has authenticated stands for those with at least its rights, not for its weaker keys."""


class EventPublisher(Protocol):
    def publish(self, event: MgpEvent) -> None: ...


class MgpEvent:
    """What happened, on which channel, when, and for whom. `severity` is a rank among MCP's log levels."""

    __slots__ = ("channel", "id", "at", "data", "severity", "size", "_to")

    def __init__(self, channel: EventChannel, at: datetime, data: Any, severity: int, to: Audience) -> None:
        self.channel, self.id, self.at, self.data, self.severity = channel, token_urlsafe(12), at, data, severity
        self.size = len(encode(data))
        # A principal that nothing has authenticated stands for its id.
        self._to = to.id if isinstance(to, Principal) and not to.credential else to

    @property
    def is_kept(self) -> bool:
        """Whether it can be read later. The framework's own events and those for one session cannot."""
        return not (self.channel.standard or isinstance(self._to, Session))

    def concerns(self, session: Session, caller: Principal) -> bool:
        """Whether this caller may be told, in this session."""
        if not self.channel.is_open_to(caller):
            return False
        if self._to is None or self._to is session:
            return True
        # Strangers at one address share an identity. An event for one of them must not reach the others.
        if is_stranger(caller):
            return False
        return caller.covers(self._to) if isinstance(self._to, Principal) else self._to == caller.id

    def written(self) -> list[Any]:
        """The event as JSON, for another process; without whom it is for."""
        return [self.channel.name, self.id, self.at.isoformat(), self.data, self.severity]

    def audience_written(self) -> dict[str, Any] | None:
        """Whom it is for, as JSON. None: for a session that only this process knows."""
        if isinstance(self._to, Session):
            return {"session": self._to.sharer.id} if self._to.sharer is not None else None
        if isinstance(self._to, Principal):
            return {"principal": written(self._to)}
        return {"name": self._to}

    @classmethod
    def remembered(cls, channel: EventChannel, value: list[Any], to: Audience) -> MgpEvent:
        """The event that was `written`."""
        _, id, at, data, severity = value
        event = cls(channel, datetime.fromisoformat(at), data, severity, to)
        event.id = id
        return event

    def wire(self) -> Params:
        return {
            "channel": self.channel.name,
            "timestamp": instants.wire(self.at),
            "data": self.data,
            "severity": LOG_LEVELS[self.severity],
        }


class EventChannel:
    """`usage = server.event_channel("model.token_usage", Usage)`, then `await usage.emit(tokens_used=12)`.

    Emitting never waits for listeners, and does the same whether or not there are any.
    """

    def __init__(
        self, name: str, kind: Any = None, *, scopes: str | Iterable[str] = (), standard: bool = False
    ) -> None:
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            raise UsageError(
                f"{name!r} cannot be an event channel",
                fix='use words with dots between them: "model.token_usage", "com.example.order_shipped"',
            )
        self.name, self.standard, self._kind = name, standard, kind
        self.scopes, self.patterns = frozenset(checked_scopes(scopes)), frozenset(_patterns(name))
        self.audiences: list[EventPublisher] = []
        self._adapter: TypeAdapter[Any] | None = None

    async def emit(self, value: Any = ..., /, *, severity: str = "info", to: Audience = None, **fields: Any) -> None:
        """Tell subscribers something: a value of the channel's type, or its fields. See `emit_now`."""
        self.emit_now(value, severity=severity, to=to, **fields)

    def emit_now(self, value: Any = ..., /, *, severity: str = "info", to: Audience = None, **fields: Any) -> None:
        """The same without `await`, from any thread.

        `to` says whom it is for: a session (`ctx.session`) or a principal. Anonymous callers on this machine share one
        identity: use the session for them. Raises ValueError for a value that does not fit the type or has no JSON
        form, and for a severity that is none of MCP's log levels.
        """
        if severity not in LOG_LEVELS:
            raise ValueError(f"severity {severity!r} is none of {', '.join(LOG_LEVELS)}")
        if fields and value is not ...:
            raise ValueError(f"{self.name}: give a value or its fields, not both")
        data = self._data(fields if value is ... else value)
        event = MgpEvent(self, instants.now(), data, LOG_LEVELS.index(severity), to)
        for audience in self.audiences:
            audience.publish(event)

    def is_open_to(self, caller: Principal) -> bool:
        """Whether this caller has the scopes the channel asks for."""
        return not (self.scopes and caller.missing(self.scopes))

    def _data(self, value: Any) -> Any:
        if self._kind is None:
            return to_jsonable_python(value)
        if self._adapter is None:
            from pydantic import TypeAdapter

            self._adapter = TypeAdapter[Any](self._kind)
        return self._adapter.dump_python(self._adapter.validate_python(value), mode="json", by_alias=True)


def _patterns(name: str) -> Iterable[str]:
    """Everything a peer may write for this channel: its name, `*`, and `prefix.*` for each of its prefixes."""
    yield name
    yield "*"
    parts = name.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count]) + ".*"
