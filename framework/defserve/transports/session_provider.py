"""What network transports need from the runner: sessions, a start and an end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from defserve.auth.principals import Principal
from defserve.limits import Limits
from defserve.wire.messages import Id, Message, Reply, Request

FinalReply: TypeAlias = tuple[bytes, int | None]
"""The reply of a call, and its code if it is an error."""


class WaitingCall(Protocol):
    """A call that is not over. Await its `rest`; then `reply` is there. Or have it sent instead, by `send_reply`."""

    @property
    def rest(self) -> Coroutine[Any, Any, None] | None: ...
    @property
    def reply(self) -> FinalReply | None: ...
    def send_reply(self) -> None: ...


BegunCall: TypeAlias = WaitingCall | FinalReply
"""A call that waits; or its reply, if it does not."""


class RequestOffer(Protocol):
    """What a request says about its sender. `stateless`: it belongs to no session."""

    @property
    def version(self) -> str: ...
    @property
    def stateless(self) -> bool: ...


class TransportSession(Protocol):
    """The part of a session that a transport uses. `holder` knows whether it is idle, and can end it.

    A transport that can stop reading sets `on_room`, and reads nothing while the session is `full`.
    """

    holder: Any
    on_room: Callable[[], None] | None

    @property
    def in_flight(self) -> Mapping[Id, object]: ...
    @property
    def version(self) -> str: ...
    @property
    def full(self) -> bool: ...
    @property
    def takes_batches(self) -> bool: ...
    def receive(self, data: bytes | None, envelope: object | None = None) -> bool: ...
    def take(
        self, message: Message | list[Message], envelope: object | None = None, identity: Principal | None = None
    ) -> bool: ...
    def begin(
        self, request: Request, envelope: object | None = None, offer: Any = ..., identity: Principal | None = None
    ) -> BegunCall: ...
    def takes_answer(self, reply: Reply, identity: Principal | None) -> bool: ...
    def waits_for_room(self, envelope: object) -> bool: ...
    def cancel(self, id: Id, identity: Principal | None = None) -> None: ...
    def end_credential(self, credential: str) -> None: ...
    def record(self) -> dict[str, Any]: ...
    def restore(self, record: Mapping[str, Any]) -> None: ...
    def answered(self, reply: Reply, identity: Principal | None) -> None: ...
    def close(self) -> None: ...


class SessionProvider(Protocol):
    """The part of the runner that a network transport uses."""

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
        """Get ready to serve; a second call does nothing. `ended` is called when sessions must end."""

    def drain(self) -> None:
        """Take no new calls, and stop calls that would never end by themselves."""

    async def stop(self) -> None:
        """Serve no more."""

    def open(self, outlet: Callable[[Any], None], *, principal: Principal, counted: bool) -> TransportSession:
        """A new session; one that is not `counted` serves a single request. Raises LimitExceeded past the limit."""
        ...

    def open_shaped(self, outlet: Callable[[Any], None], *, principal: Principal, shape: Any) -> TransportSession:
        """A session for a single request; `shape` encodes its reply."""
        ...

    def end(self, conversation: Any) -> None:
        """A session that is not counted is over."""
