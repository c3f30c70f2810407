"""MGP §13.4: callbacks. A question to the peer as a notification; the answer comes as a request of its own.

Only the session that was asked can answer, only with the rights of the call that asks, only once, and only while that
call waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping, Sequence
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Listener, OutgoingMessage
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params, encode_notification
from defserve.core.peer import CURRENT_SENDER, PeerIdentity, can_act_for
from defserve.core.session import Session
from defserve.errors import Declined, Dismissed, InvalidParams, PeerGone, TimedOut, ToolError
from defserve.protocols.mcp.errors import read_text_param
from defserve.stores.store import MemoryNonceStore

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.protocols.mcp.asking.client_features import ElicitationForm


CALLBACK_REQUEST_METHOD = "notifications/mgp.callback.request"
ANSWERED = "notifications/dev.defserve.callback_answered"
"""How one process gives an answer to another."""
REMEMBERED_ANSWERS = 4_096
NO_OPEN_CALLBACK: tuple[Call | None, Future[Any] | None] = (None, None)


class OpenCallbacks:
    """The open questions of one session, by caller and callback, with the call that asks, and the answers it has given.

    Each session has its own, so no session can crowd out the remembered answers of another.
    """

    __slots__ = ("waiting", "answered")

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, str], tuple[Call, Future[Any]]] = {}
        self.answered = MemoryNonceStore(REMEMBERED_ANSWERS)


class CallbackSection(Extension):
    """The asking side of callbacks: has a person fill in a form without elicitation. Keeps nothing: sessions do."""

    def methods(self) -> Mapping[str, Handler]:
        return {"mgp/callback/respond": self.respond}

    def notifications(self) -> Mapping[str, Listener]:
        return {ANSWERED: self.on_shared_answer}

    # -- asking ------------------------------------------------------------------------------------------

    async def ask_form(self, call: Call, message: str, form: ElicitationForm) -> Params:
        """Ask for the fields of a form one after another; None is one left blank. The call's timeout stands still.

        Stops at the first that is refused: raises Declined or Dismissed. Raises TimedOut for a question that is not
        answered in time, PeerGone if the peer leaves, ToolError for an answer that is none of the options.
        """
        return {
            name: question.read_response(await self._answer(call, question))
            for name, question in callback_questions(message, form)
        }

    def notify_person(self, call: Call, message: str) -> None:
        """Tell a person something that needs no answer. From any thread."""
        call.notify(CALLBACK_REQUEST_METHOD, _request(call, token_urlsafe(24), "notification", message, ()))

    async def _answer(self, call: Call, question: CallbackQuestion) -> Any:
        if call.settled or call.session.closed:
            raise PeerGone(f"the peer has left, so nobody can answer: {question.message}")
        seconds = call.session.composition.limits.callback
        sharer, waiting = call.session.sharer, call.session.local(OpenCallbacks).waiting
        id = f"{sharer.numbering if sharer is not None else ''}{token_urlsafe(24)}"  # names the process that asks
        place, answer = (call.principal, id), call.engine.create_future()
        waiting[place] = call, answer
        params = _request(call, id, question.type, question.message, question.options)
        params["timeout_ms"] = int(seconds * 1000)
        # Not call.notify: a notification may be left out for a slow reader, a question may not.
        asking = OutgoingMessage(encode_notification(CALLBACK_REQUEST_METHOD, params), call, asks=id)
        try:
            call.session.outlet(asking)
            return await call.engine.wait_for(answer, seconds)
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
        id = read_text_param(params, "callback_id")
        if "response" not in params or is_object(params["response"]):
            raise InvalidParams("Invalid params: response must be a text, a number, true, false, null, or a list")
        sharer = call.session.sharer
        if sharer is not None and call.identity is not None and sharer.is_asked_elsewhere(id):
            return _await_acceptance(sharer.answer_elsewhere(id, ANSWERED, params, call.identity))
        return _make_acceptance(self._deliver_answer(call.session, call.principal, call.identity, params))

    def on_shared_answer(self, session: Session, params: Params) -> None:
        """Another process was given an answer. One that no call waits for changes nothing."""
        sender = CURRENT_SENDER.get()
        if sender is not None and isinstance(params.get("callback_id"), str) and "response" in params:
            self._deliver_answer(session, sender.id, sender, params)

    def _deliver_answer(self, session: Session, principal: str, identity: PeerIdentity | None, params: Params) -> bool:
        """Give an answer to the call that waits for it. False: none does, or it is not this sender's to answer."""
        id, asked = params["callback_id"], session.peek(OpenCallbacks)
        asker, answer = asked.waiting.get((principal, id), NO_OPEN_CALLBACK) if asked is not None else NO_OPEN_CALLBACK
        if asker is not None and not can_act_for(identity, asker.identity):
            answer = None
        seconds = session.composition.limits.callback
        if asked is None or answer is None or not asked.answered.spend_now(id, ttl=seconds) or answer.done():
            return False
        answer.set_result(params["response"])
        return True

    def session_closed(self, session: Session) -> None:
        """Nobody will answer any more."""
        asked = session.peek(OpenCallbacks)
        for _, answer in list(asked.waiting.values()) if asked is not None else ():
            if not answer.done():
                answer.set_exception(PeerGone("the peer has left"))


async def _await_acceptance(telling: Awaitable[bool]) -> Params:
    return _make_acceptance(await telling)  # it is judged where the question was asked


def _make_acceptance(is_accepted: bool) -> Params:
    if not is_accepted:
        # The message does not say whether such a callback ever existed, here or in another session.
        raise InvalidParams(
            "Invalid params: no callback waits for this answer; it is unknown, answered, or over",
            data={"error_type": "callback_not_pending"},
        )
    return {"accepted": True}


def _request(call: Call, id: str, type: str, message: str, options: Sequence[str]) -> Params:
    return {"callback_id": id, "request_id": call.id, "type": type, "message": message, "options": list(options)}


# -- MGP §13.4: each field of a form as one callback, and reading the answer. No I/O.
#
# | field | callback | answers |
# |---|---|---|
# | yes or no | `confirmation` | `YES`, or true; `decline` declines; anything else is no |
# | a choice | `selection` | an option as shown, or its value; several as a list; `cancel` and `decline` decline |
# | text, a number | `input` | the text, or a number; `cancel` and `decline` decline |
#
# Null dismisses the question. Null or an empty text leaves an optional field blank.


CONFIRM, CANCEL, DECLINE = "confirm", "cancel", "decline"
YES = frozenset({CONFIRM, "confirmed", "yes", "true", "approve", "approved", "accept", "accepted"})
"""The words that confirm, in any case. Everything else does not: consent is never guessed."""


class CallbackQuestion:
    """One field. `type`, `message` and `options` are sent as they are."""

    type = "input"
    options: Sequence[str] = ()

    def __init__(self, message: str, field: Params, *, required: bool) -> None:
        self.message, self.field, self.required = message, field, required

    def read_response(self, response: Any) -> Any:
        """The field's value; None for one left blank. Raises Declined, Dismissed, or ToolError if it does not fit."""
        if response is None or response == "":
            if not self.required:
                return None
            if response is None:
                raise Dismissed(f"the user dismissed the question: {self.message}")
        return self._value(response)

    def _value(self, response: Any) -> Any:
        self._raise_if_declined(response, CANCEL, DECLINE)
        if self.field.get("type") in ("number", "integer") and isinstance(response, str):
            return _number(response)
        return response

    def _raise_if_declined(self, response: Any, *words: str) -> None:
        if _word(response) in words:
            raise Declined(f"the user declined: {self.message}")


def _word(response: Any) -> str:
    return response.strip().lower() if isinstance(response, str) else ""


def _number(text: str) -> Any:
    """The number in a text. Any other text is returned as it is, for the form to complain about."""
    from pydantic_core import from_json

    try:
        value = from_json(text.strip(), allow_inf_nan=False)
    except ValueError:
        return text
    return value if type(value) in (int, float) else text


class CallbackConfirmation(CallbackQuestion):
    """Yes or no. `cancel` is the offered no, so it answers the question."""

    type = "confirmation"
    options = (CONFIRM, CANCEL)

    def _value(self, response: Any) -> Any:
        self._raise_if_declined(response, DECLINE)
        return response is True or _word(response) in YES


class CallbackSelection(CallbackQuestion):
    """One of several texts, or some of them. Shown by their labels, if no two are the same."""

    type = "selection"

    def __init__(self, message: str, field: Params, *, required: bool) -> None:
        super().__init__(message, field, required=required)
        self._labels = _labels(field)
        self._values = set(self._labels.values())
        self.options = tuple(self._labels)

    def _value(self, response: Any) -> Any:
        if self.field.get("type") == "array":
            return [self._choice(each) for each in (response if is_array(response) else [response])]
        return self._choice(response)

    def _choice(self, response: Any) -> str:
        if isinstance(response, str):
            if response in self._labels:
                return self._labels[response]
            if response in self._values:
                return response
            self._raise_if_declined(response, CANCEL, DECLINE)
        raise ToolError(f"the answer to {self.message!r} is none of {', '.join(self.options)}")


def callback_questions(message: str, form: ElicitationForm) -> Iterator[tuple[str, CallbackQuestion]]:
    """The fields of a form in their order, each with a text that says which it is."""
    alone = len(form.properties) == 1
    for name, field in form.properties.items():
        required = name in form.required
        told = [] if alone else [f"{field.get('title') or name}{'' if required else ' (optional)'}"]
        if field.get("description"):
            told.append(field["description"])
        yield name, _kind(field)(f"{message}\n{': '.join(told)}" if told else message, field, required=required)


def _kind(field: Params) -> type[CallbackQuestion]:
    if field.get("type") == "boolean":
        return CallbackConfirmation
    return (
        CallbackSelection if field.get("type") == "array" or "enum" in field or "oneOf" in field else CallbackQuestion
    )


def _labels(field: Params) -> dict[str, str]:
    """Label → value."""
    if field.get("type") == "array":
        field = field["items"]
    titled: Iterable[Params] | None = field.get("oneOf") or field.get("anyOf")
    if titled is not None:
        values = [choice["const"] for choice in titled]
        labels = [choice.get("title", choice["const"]) for choice in titled]
    else:
        values = list(field["enum"])
        labels = list(field.get("enumNames") or values)
    if len(set(labels)) != len(values):
        labels = values
    return dict(zip(labels, values, strict=True))
