"""MGP §13.4: callbacks. A question to the peer as a notification; the answer comes as a request of its own.

Only the session that was asked can answer, only with the rights of the call that asks, only once, and only while that
call waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.engine import PendingAnswer
from defserve.core.extension import OutgoingMessage
from defserve.core.identity import SENDER, PeerIdentity, may_act_for
from defserve.core.session import Session
from defserve.errors import InvalidParams, PeerGone, TimedOut
from defserve.protocols.mcp.params import text
from defserve.protocols.mgp.callbacks.questions import CallbackQuestion, questions
from defserve.stores.nonces import MemoryNonces
from defserve.wire.codec import notification
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.elicitation import Form

REQUEST = "notifications/mgp.callback.request"
ANSWERED = "notifications/dev.defserve.callback_answered"
"""How one process gives an answer to another."""
REMEMBERED_ANSWERS = 4_096
NOBODY: tuple[Call | None, PendingAnswer | None] = (None, None)


class OpenCallbacks:
    """The open questions of one session, by caller and callback, with the call that asks, and the answers it has given.

    Each session has its own, so no session can crowd out the remembered answers of another.
    """

    __slots__ = ("waiting", "answered")

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, str], tuple[Call, PendingAnswer]] = {}
        self.answered = MemoryNonces(REMEMBERED_ANSWERS)


class CallbackSection:
    """The asking side of callbacks: an `Asker` of `mcp.asking.client_requests`. Keeps nothing: sessions do."""

    # -- asking ------------------------------------------------------------------------------------------

    async def form(self, call: Call, message: str, form: Form) -> Params:
        """Ask for the fields of a form one after another.

        Stops at the first that is refused: raises Declined or Dismissed. Raises TimedOut for a question that is not
        answered in time, PeerGone if the peer leaves, ToolError for an answer that is none of the options.
        """
        return {name: question.read(await self._answer(call, question)) for name, question in questions(message, form)}

    def notify(self, call: Call, message: str) -> None:
        """Tell a person something that needs no answer. From any thread."""
        call.notify(REQUEST, _request(call, token_urlsafe(24), "notification", message, []))

    async def _answer(self, call: Call, question: CallbackQuestion) -> Any:
        if call.settled or call.session.closed:
            raise PeerGone(f"the peer has left, so nobody can answer: {question.message}")
        seconds = call.session.composition.limits.callback
        sharer, waiting = call.session.sharer, call.session.local(OpenCallbacks).waiting
        id = f"{sharer.numbering if sharer is not None else ''}{token_urlsafe(24)}"  # names the process that asks
        place, answer = (call.principal, id), call.engine.pending()
        waiting[place] = call, answer
        params = _request(call, id, question.type, question.message, question.options)
        params["timeout_ms"] = int(seconds * 1000)
        # Not call.notify: a notification may be left out for a slow reader, a question may not.
        asking = OutgoingMessage(notification(REQUEST, params), call, asks=id)
        try:
            call.session.outlet(asking)
            return await call.engine.wait(answer, seconds)
        except TimeoutError:
            raise TimedOut(
                f"nobody answered within {seconds:g} s: {question.message}", data={"timeout_ms": params["timeout_ms"]}
            ) from None
        finally:
            del waiting[place]
            if asking.release is not None:
                asking.release()

    # -- answers -----------------------------------------------------------------------------------------

    def respond(self, call: Call, params: Params) -> Params | Coroutine[Any, Any, Params]:
        """`mgp/callback/respond`. Raises InvalidParams for an answer that no call waits for; it changes nothing.

        Runs at once, without a turn of the event loop, unless another process asked. It must be served while the server
        drains, and while the calls that wait for answers take up every slot.
        """
        id = text(params, "callback_id")
        if "response" not in params or is_object(params["response"]):
            raise InvalidParams("Invalid params: response must be a text, a number, true, false, null, or a list")
        sharer = call.session.sharer
        if sharer is not None and call.identity is not None and sharer.is_elsewhere(id):
            return _accepted_elsewhere(sharer.tell_elsewhere(id, ANSWERED, params, call.identity))
        return _accepted(self._take(call.session, call.principal, call.identity, params))

    def answered(self, session: Session, params: Params) -> None:
        """Another process was given an answer. One that no call waits for changes nothing."""
        sender = SENDER.get()
        if sender is not None and isinstance(params.get("callback_id"), str) and "response" in params:
            self._take(session, sender.id, sender, params)

    def _take(self, session: Session, principal: str, identity: PeerIdentity | None, params: Params) -> bool:
        """Give an answer to the call that waits for it. False: none does, or it is not this sender's to answer."""
        id, asked = params["callback_id"], session.peek(OpenCallbacks)
        asker, answer = asked.waiting.get((principal, id), NOBODY) if asked is not None else NOBODY
        if asker is not None and not may_act_for(identity, asker.identity):
            answer = None
        seconds = session.composition.limits.callback
        if asked is None or answer is None or not asked.answered.spend_now(id, ttl=seconds) or answer.done():
            return False
        answer.set_result(params["response"])
        return True

    def closed(self, session: Session) -> None:
        """Nobody will answer any more."""
        asked = session.peek(OpenCallbacks)
        for _, answer in list(asked.waiting.values()) if asked is not None else ():
            if not answer.done():
                answer.set_exception(PeerGone("the peer has left"))


async def _accepted_elsewhere(telling: Awaitable[bool]) -> Params:
    return _accepted(await telling)  # it is judged where the question was asked


def _accepted(is_accepted: bool) -> Params:
    if not is_accepted:
        # The message does not say whether such a callback ever existed, here or in another session.
        raise InvalidParams(
            "Invalid params: no callback waits for this answer; it is unknown, answered, or over",
            data={"error_type": "callback_not_pending"},
        )
    return {"accepted": True}


def _request(call: Call, id: str, type: str, message: str, options: list[str]) -> Params:
    return {"callback_id": id, "request_id": call.id, "type": type, "message": message, "options": options}
