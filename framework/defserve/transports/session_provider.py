"""What the transports of the network ask of the runner: sessions, and when to begin and to end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from defserve.auth.principals import Principal
from defserve.limits import Limits
from defserve.wire.messages import Id, Message, Request

BegunCall: TypeAlias = Coroutine[Any, Any, None] | tuple[bytes, int | None]
"""What is left to run of a call; or its reply, and the reply's code if it is an error."""


class RequestOffer(Protocol):
    """What a request says of its sender. `stateless`: it belongs to no session."""

    @property
    def version(self) -> str: ...
    @property
    def stateless(self) -> bool: ...


class TransportSession(Protocol):
    """A session of the runner's, as far as a transport needs to know it."""

    @property
    def in_flight(self) -> Mapping[Id, object]: ...
    @property
    def version(self) -> str: ...
    @property
    def takes_batches(self) -> bool: ...
    def receive(self, data: bytes | None, envelope: object | None = None) -> bool: ...
    def take(self, message: Message | list[Message], envelope: object | None = None) -> bool: ...
    def begin(self, request: Request, envelope: object | None = None, offer: Any = ...) -> BegunCall: ...
    def cancel(self, id: Id) -> None: ...
    def close(self) -> None: ...


class SessionProvider(Protocol):
    """What a network transport asks of the runner."""

    limits: Limits

    @property
    def offer_in(self) -> Callable[[Request], RequestOffer | None]:
        """Reads the offer that a request carries, if it carries one. Raises for one that cannot be read."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it was started on the running loop."""
        ...

    async def start(self, ended: Callable[[], None]) -> None:
        """Be ready to serve; a second call does nothing. `ended` is called when sessions have to end."""

    def drain(self) -> None:
        """Begin nothing new; calls that would never end are told to."""

    async def stop(self) -> None:
        """Serve no more."""

    def open(self, outlet: Callable[[Any], None], *, principal: Principal, counted: bool) -> TransportSession:
        """A new session; one that is not `counted` serves a single request. Raises LimitExceeded past the limit."""
        ...

    def open_shaped(self, outlet: Callable[[Any], None], *, principal: Principal, shape: Any) -> TransportSession:
        """A session for a single request, whose reply `shape` writes."""
        ...

    def end(self, conversation: Any) -> None:
        """A session that is not counted is over."""
