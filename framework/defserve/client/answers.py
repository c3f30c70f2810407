"""Who answers when the server asks: a person, a model, the list of roots. The same in both eras.

Also the yes-or-no questions that the host itself asks the person.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from defserve.client.exchange import RequestHandler
from defserve.client.extension import ClientExtension
from defserve.client.replies import Json, object_or_empty
from defserve.core.messages import Request
from defserve.errors import MethodNotFound, PeerError, UsageError

MAX_INPUT_ROUNDS = 16
MAX_INPUT_REQUESTS: Final = 100
"""Questions of one result. Each may be put to a person."""
MAX_INPUT_KEY_LENGTH: Final = 1_024


class Decision(Enum):
    """What a person may do with a question instead of filling it in."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


Accept: Final = Decision.ACCEPT
Decline: Final = Decision.DECLINE
Cancel: Final = Decision.CANCEL

Answer: TypeAlias = Any
"""A dict or a pydantic model accepts with that content. Accept, Decline and Cancel mean what they say.

Any other value is that of the only field, if the form has one: `True` for a yes or no.
"""

Ask: TypeAlias = Callable[[str, dict[str, Any]], Answer | Awaitable[Answer]]
AskUrl: TypeAlias = Callable[[str, str], Decision | Awaitable[Decision]]
Sample: TypeAlias = Callable[[dict[str, Any]], str | dict[str, Any] | Awaitable[str | dict[str, Any]]]
Root: TypeAlias = str | dict[str, Any]
Roots: TypeAlias = Sequence[Root] | Callable[[], Sequence[Root] | Awaitable[Sequence[Root]]]


class Answers(ClientExtension):
    """The client's answers. Only those that are given are offered to the server. Every callable may be sync or async.

    ask      (message, schema) -> dict, model, Accept, Decline or Cancel; fields left out take the schema's defaults;
             a form with one field also takes its value alone
    ask_url  (message, url) -> Accept, Decline or Cancel
    sample   (params of sampling/createMessage) -> text, or the whole result
    roots    URIs or root objects, or a function that returns them
    """

    name = "answers"
    can_reopen = True

    def __init__(
        self,
        ask: Ask | None = None,
        sample: Sample | None = None,
        roots: Roots | None = None,
        *,
        ask_url: AskUrl | None = None,
    ) -> None:
        self.ask, self.ask_url, self.sample, self.roots = ask, ask_url, sample, roots

    def offer(self, era: str) -> dict[str, Any]:
        offer: dict[str, Any] = {}
        modes = {"form": self.ask, "url": self.ask_url}
        if self.ask or self.ask_url:
            offer["elicitation"] = {mode: {} for mode, given in modes.items() if given}
        if self.sample:
            offer["sampling"] = {}
        if self.roots is not None:
            offer["roots"] = {}
        return offer

    def requests(self) -> dict[str, RequestHandler]:
        return {**dict.fromkeys(ANSWERERS, self._answer_peer), "ping": _answer_ping}

    async def _answer_peer(self, request: Request) -> dict[str, Any]:
        return await self.answer_request(request.method, request.params)

    async def answer_request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of one question of the server. Raises MethodNotFound for one that was not offered."""
        answerer = ANSWERERS.get(method)
        if answerer is None:
            raise MethodNotFound(f"this client does not answer {method}")
        return await answerer(self, params)

    async def _elicitation(self, params: dict[str, Any]) -> dict[str, Any]:
        message = str(params.get("message", ""))
        if params.get("mode") == "url":
            if self.ask_url is None:
                raise MethodNotFound("this client does not open URLs for the server")
            return _to_elicit_result(await maybe_await(self.ask_url(message, str(params.get("url", "")))))
        if self.ask is None:
            raise MethodNotFound("this client does not answer questions")
        schema = object_or_empty(params.get("requestedSchema"))
        return _to_elicit_result(
            wrap_single_field_answer(await maybe_await(self.ask(message, schema)), schema), _defaults(schema)
        )

    async def _sampling(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.sample is None:
            raise MethodNotFound("this client has no model to sample")
        sampled = await maybe_await(self.sample(params))
        if isinstance(sampled, str):
            content = {"type": "text", "text": sampled}
            return {"role": "assistant", "content": content, "model": "unknown", "stopReason": "endTurn"}
        return sampled

    async def _roots(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.roots is None:
            raise MethodNotFound("this client has no roots")
        roots: Sequence[Root] = await maybe_await(self.roots()) if callable(self.roots) else self.roots
        return {"roots": [{"uri": root} if isinstance(root, str) else root for root in roots]}


async def _answer_ping(request: Request) -> dict[str, Any]:
    return {}


ANSWERERS: Final[Mapping[str, Callable[[Answers, dict[str, Any]], Awaitable[dict[str, Any]]]]] = {
    "elicitation/create": Answers._elicitation,  # pyright: ignore[reportPrivateUsage]
    "sampling/createMessage": Answers._sampling,  # pyright: ignore[reportPrivateUsage]
    "roots/list": Answers._roots,  # pyright: ignore[reportPrivateUsage]
}
"""What a server may ask for: with a request of its own in a session, in the `inputRequests` of a result without one."""
_QUESTIONS: Final = ", ".join(ANSWERERS)


async def send_with_input_rounds(
    ask: Callable[[Mapping[str, Any]], Awaitable[Any]], params: Mapping[str, Any], answers: Answers
) -> Any:
    """Repeat a request with answers until its result no longer says `input_required`.

    Raises PeerError if the server asks for something that was not offered, or never stops asking.
    """
    result = await ask(params)
    for _ in range(MAX_INPUT_ROUNDS):
        wanting = object_or_empty(result)
        if wanting.get("resultType") != "input_required":
            return result
        if not wanting.get("inputRequests") and not isinstance(wanting.get("requestState"), str):
            raise PeerError("the server asks for input without inputRequests or requestState")
        again: dict[str, Any] = {**params, "inputResponses": await answer_input_requests(wanting, answers)}
        if "requestState" in wanting:
            again["requestState"] = wanting["requestState"]
        result = await ask(again)
    raise PeerError(f"the server still asks for input after {MAX_INPUT_ROUNDS} rounds")


async def answer_input_requests(result: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """The answers to the `inputRequests` of a result, by key. Raises PeerError for one that was not offered, and for
    more than anybody should be asked."""
    requests = object_or_empty(result.get("inputRequests"))
    if len(requests) > MAX_INPUT_REQUESTS:
        raise PeerError(
            f"the server asks {len(requests):,} questions at once; at most {MAX_INPUT_REQUESTS} are answered"
        )
    # One after the other: most answers come from one person.
    responses: dict[str, Any] = {}
    for key, asked in requests.items():
        if len(key) > MAX_INPUT_KEY_LENGTH:
            raise PeerError(f"the server asks under a key of more than {MAX_INPUT_KEY_LENGTH:,} characters")
        request = object_or_empty(asked)
        method = str(request.get("method"))
        if method not in ANSWERERS:
            raise PeerError(f"the server asks for {method[:80]}, and inputRequests may ask for {_QUESTIONS} only")
        try:
            responses[key] = await answers.answer_request(method, object_or_empty(request.get("params")))
        except MethodNotFound as unoffered:
            raise PeerError(f"the server asks for {method}, which this client did not offer: {unoffered}") from None
    return responses


def _to_elicit_result(answer: Any, defaults: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    if answer is Accept and defaults:
        return {"action": "accept", "content": dict(defaults)}
    if isinstance(answer, Decision):
        return {"action": answer.value}
    content = to_json_value(answer)
    if not isinstance(content, dict):
        raise UsageError(
            f"an answer must be a dict, a model, Accept, Decline or Cancel, not {type(answer).__name__}",
            fix="answer with one of them; a value alone only answers a form with one field",
        )
    return {"action": "accept", "content": {**defaults, **content}}


def wrap_single_field_answer(answer: Any, schema: dict[str, Any]) -> Any:
    """A value alone as the only field of its form. Raises UsageError if the form has more."""
    if isinstance(answer, Decision) or answer is None or isinstance(to_json_value(answer), dict):
        return answer
    fields = list(object_or_empty(schema.get("properties")))
    if len(fields) == 1:
        return {fields[0]: answer}
    if not fields:
        return answer
    raise UsageError(
        f"the question has the fields {', '.join(fields)}, and the answer is {answer!r} alone",
        fix=f"answer with {{{', '.join(f'{name!r}: …' for name in fields)}}}",
    )


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """What a form is filled in with before a person has touched it (SEP-1034)."""
    fields = object_or_empty(schema.get("properties"))
    return {name: field["default"] for name, field in fields.items() if "default" in object_or_empty(field)}


def to_json_value(answer: Any) -> Any:
    """An answer as JSON: a pydantic model as its fields, anything else as it is."""
    dump = getattr(answer, "model_dump", None)
    return dump(mode="json") if dump else answer


async def maybe_await(value: Any) -> Any:
    """What a handler returned, awaited if it is asynchronous."""
    return await value if inspect.isawaitable(value) else value


# -- Yes-or-no questions that the host itself asks the person behind a client, through the client's `answers`.


def make_one_field_form(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """A form with one field."""
    return {"type": "object", "properties": {name: dict(field)}, "required": [name]}


def extract_field_value(answer: Any, name: str) -> Any:
    """The answer: the field of that name, or else the only field, whatever its name; None if there is none."""
    given = object_or_empty(to_json_value(answer))
    return given[name] if name in given else next(iter(given.values())) if len(given) == 1 else None


async def ask_yes_or_no(answers: Answers, message: str, name: str) -> bool | None:
    """Whether the person says yes. None if nobody can be asked, or the person cancelled the question."""
    if answers.ask is None:
        return None
    answer = await maybe_await(answers.ask(message, make_one_field_form(name, {"type": "boolean"})))
    if answer is Accept or answer is Decline:
        return answer is Accept
    return None if answer is Cancel else extract_field_value(answer, name) is True


# -- How the features of MGP and MCPL send something to the server.


SendRequest: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Json]]
SendNotification: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]
