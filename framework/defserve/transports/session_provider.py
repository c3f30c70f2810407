"""What the transports of the network ask of the runner: conversations, and when to begin and to end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from defserve.auth.principals import Principal
from defserve.limits import Limits
from defserve.wire.messages import Id, Message, Request

BegunCall: TypeAlias = Coroutine[Any, Any, None] | tuple[bytes, int | None]
"""What is left to run of a call, or its reply and the code of it, if it is an error."""


class TransportSession(Protocol):
    """A session of the runner's, as far as a transport needs to know it."""

    @property
    def in_flight(self) -> Mapping[Id, object]: ...
    def receive(self, data: bytes | None, envelope: object | None = None) -> bool: ...
    def take(self, message: Message | list[Message], envelope: object | None = None) -> bool: ...
    def begin(self, request: Request, envelope: object | None = None) -> BegunCall: ...
    def cancel(self, id: Id) -> None: ...
    def close(self) -> None: ...


class SessionProvider(Protocol):
    """What a network transport asks of the runner."""

    limits: Limits

    @property
    def ready(self) -> bool:
        """Whether it was started on the running loop."""
        ...

    async def start(self, ended: Callable[[], None]) -> None:
        """Be ready to serve; a second call does nothing. `ended` is called when conversations have to end."""
        ...

    def drain(self) -> None:
        """Begin nothing new; calls that would never end are told to."""
        ...

    async def stop(self) -> None:
        """Serve no more."""
        ...

    def open(self, outlet: Callable[[Any], None], *, principal: Principal, counted: bool) -> TransportSession:
        """A new conversation. Raises LimitExceeded when there are too many; one that is not `counted` is short."""
        ...

    def end(self, conversation: Any) -> None:
        """A short conversation is over."""
        ...
