"""Our own requests to the peer, until they are answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.extension import AddressedMessage, OutgoingMessage
from defserve.core.profile import INTERNAL_ERROR, Profile
from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.wire.codec import encode, notification
from defserve.wire.messages import Id, Params, Reply

if TYPE_CHECKING:
    from defserve.core.engine import Engine, PendingAnswer
    from defserve.core.identity import PeerIdentity


class OutgoingRequests:
    """Requests of ours that the peer has not answered yet. A session makes it for its first request.

    With a `prefix`, their ids are texts that begin with it.
    """

    __slots__ = ("_pending", "_askers", "_last", "_prefix")

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._pending: dict[Id, PendingAnswer] = {}
        self._askers: dict[Id, PeerIdentity] = {}
        self._last = 0

    async def ask(
        self,
        engine: Engine,
        outlet: Callable[[OutgoingMessage], None],
        profile: Profile,
        question: OutgoingRequest,
    ) -> Any:
        """Send a request and wait for its answer. A request that is given up is withdrawn."""
        self._last += 1
        id: Id = f"{self._prefix}{self._last}" if self._prefix else self._last
        pending = engine.pending()
        self._pending[id] = pending
        if question.asker is not None:
            self._askers[id] = question.asker
        if question.numbered is not None:
            question.numbered(id)
        body = {"jsonrpc": "2.0", "id": id, "method": question.method, "params": question.params}
        asking = question.message(encode(body), asks=id)
        outlet(asking)
        try:
            return await engine.wait(pending, question.timeout)
        except TimeoutError:
            raise PeerTimeout(f"{question.method}: no answer within {question.timeout:g} s") from None
        finally:
            self._askers.pop(id, None)
            if asking.release is not None:
                asking.release()
            if self._pending.pop(id, None) is not None and (taken_back := profile.withdrawal(id)) is not None:
                outlet(question.message(notification(*taken_back)))

    def asker(self, reply: Reply) -> PeerIdentity | None:
        """For whom the question was asked that this answers, if that is known."""
        return self._askers.get(reply.id) if reply.id is not None else None

    def answer(self, reply: Reply) -> None:
        """Take the peer's answer. An answer to an unknown request is ignored."""
        pending = self._pending.pop(reply.id, None) if reply.id is not None else None
        if pending is None or pending.done():
            return
        if reply.error is None:
            pending.set_result(reply.result)
            return
        code, message = reply.error.get("code"), reply.error.get("message")
        number = code if isinstance(code, int) else INTERNAL_ERROR
        pending.set_exception(
            PeerError(str(message or "the peer gave no reason"), code=number, data=reply.error.get("data"))
        )

    def close(self) -> None:
        """The peer has left: fail every open request."""
        asked, self._pending = self._pending, {}
        for pending in asked.values():
            if not pending.done():
                pending.set_exception(PeerGone("the peer has left"))


class OutgoingRequest:
    """One request to the peer, and the call that it belongs to, if any.

    `numbered` is called with the request's id before it is sent, for peers that refer to it before they answer.
    `asker` is for whom it is asked.
    """

    __slots__ = ("method", "params", "relates_to", "timeout", "numbered", "asker")

    def __init__(
        self,
        method: str,
        params: Params,
        relates_to: Call | None,
        timeout: float,
        numbered: Callable[[Id], None] | None = None,
    ) -> None:
        self.method, self.params, self.relates_to, self.timeout = method, params, relates_to, timeout
        self.numbered = numbered
        self.asker: PeerIdentity | None = None

    def message(self, data: bytes, *, asks: Id | bool = False) -> OutgoingMessage:
        """A message that goes where the answer comes from."""
        if self.relates_to is not None or self.asker is None:
            return OutgoingMessage(data, self.relates_to, asks=asks)
        return AddressedMessage(data, (self.asker,), asks=asks)
