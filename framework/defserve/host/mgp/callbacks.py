"""MGP §13.4: a callback of the server becomes a form with one field. The client's `answers` fill it in.

The answer is sent as another request, if there is still time. A person who declines gives `decline`. The answer is
null if the question was dismissed, or if this client can ask nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from defserve.errors import PeerError
from defserve.host.answers import Accept, Answers, Decision, Decline, settled
from defserve.host.fields import texts_of
from defserve.host.person import field_value, form
from defserve.protocols.mcp.asking.elicitation import VALUE

REQUEST: Final = "notifications/mgp.callback.request"
RESPOND: Final = "mgp/callback/respond"

ANSWER_BY: Final[ContextVar[float | None]] = ContextVar("answer_by", default=None)
"""Until when (seconds since 1970) the server waits for the answer that is being asked for; None if it does not say."""

log = logging.getLogger("defserve.host")

# Callback type → the field of its form. A notification wants no answer.
FIELDS: Final[Mapping[str, Callable[[list[str]], dict[str, Any]]]] = {
    "confirmation": lambda options: {"type": "boolean"},
    "input": lambda options: {"type": "string"},
    "selection": lambda options: {"type": "string", "enum": options},
}


async def respond(params: Mapping[str, Any], answers: Answers, send: Callable[..., Awaitable[Any]]) -> None:
    """Ask the question and send the answer. Never raises: nobody waits for this."""
    patience = params.get("timeout_ms")
    seconds = patience / 1000 if isinstance(patience, int | float) else None
    if seconds is not None:
        ANSWER_BY.set(time.time() + seconds)  # this task is of this one answer
    try:
        async with asyncio.timeout(seconds):
            response = await _response(params, answers)
            await send(RESPOND, {"callback_id": params.get("callback_id"), "response": response})
    except TimeoutError:
        log.info("nobody answered a callback within %s ms", patience)
    except PeerError as error:
        log.info("the server did not take the answer to a callback: %s", error)
    except Exception:
        log.exception("answering a callback failed")


def wants_answer(params: Mapping[str, Any]) -> bool:
    return isinstance(params.get("callback_id"), str) and params.get("type") != "notification"


async def _response(params: Mapping[str, Any], answers: Answers) -> Any:
    kind = str(params.get("type"))
    if answers.ask is None or kind not in FIELDS:
        return None
    field = FIELDS[kind](texts_of(params.get("options")))
    answer = await settled(answers.ask(str(params.get("message", "")), form(VALUE, field)))
    if isinstance(answer, Decision):
        return "confirm" if answer is Accept and kind == "confirmation" else "decline" if answer is Decline else None
    value = field_value(answer, VALUE)
    if kind == "confirmation":
        return "confirm" if value is True else "cancel"
    return value
