"""What servers, and our own checks, ask the person at the page, and a model made of rules that answers sampling.

Questions wait in one queue until they are answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from defserve.base.peer_bounds import estimate_value_bytes
from defserve.client.answers import Accept, Answers, Cancel, Decline
from defserve.client.mgp.peer import ANSWER_DEADLINE
from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array
from defserve.errors import ProtocolError
from defserve.inspector.protocol import BadMessage, Json

MAX_OPEN_QUESTIONS: Final = 100
MAX_OPEN_BYTES: Final = 32 * 1024 * 1024
MAX_PAST_QUESTIONS: Final = 100
MAX_PAST_QUESTION_BYTES: Final = 32_768
"""Bytes of a question and its answer that are kept once it is over. Of longer ones the timeline has the messages."""
REJECTED: Final = -1
"""The code for a person who does not let a model be sampled, as MCP has it."""
DECISIONS: Final = {"accept": Accept, "decline": Decline, "cancel": Cancel}


class Questions:
    """The open questions. `push` tells the pages: topic `question` with a new one, `question.over` with its end.

    A question is `{"id", "kind", "era", "since", "until"?, …}`. Kinds and the `answer` that each takes:

    | kind | further fields | answer |
    |---|---|---|
    | form | message, schema | `{"action": "accept", "content": {…}}`, `{"action": "decline"}` or `"cancel"` |
    | url | message, url | `{"action": …}` |
    | sampling | params | `{"text": …}`, `{"result": …}` with the whole result, or `{"refuse": true}` |
    | confirmation | tool, arguments, security | `{"yes": true}`; anything else is a no |
    | view | tool, uri, method; calls and arguments; url, reads, saves | `{"yes": true}`, with `"always"`; else a no |
    | permission | permission, risk, server; tool, arguments | `{"decision": "approved" or "denied"}`; else open |

    A question inside of a task also has `task`, the number that the inspector gave it.

    Roots are not asked for each time: a server gets what `roots` holds, URIs or root objects. Sampling is answered by
    `model` where the person has switched that on and one of its rules fits.

    `past` are the newest questions that are over: `{"id", "kind", "era", "since", "over", "outcome", "by", "question",
    "answer"}`. The outcome is `answered`, or `taken back` if who asked no longer waits. `by` is `person` or `script`.
    """

    def __init__(self, push: Callable[[str, Any], object]) -> None:
        self._push = push
        self.roots: list[str | Json] = []
        self.model = ScriptedAnswers()
        self.past: deque[Json] = deque(maxlen=MAX_PAST_QUESTIONS)
        self._numbers = count(1)
        self._open: dict[int, tuple[Json, asyncio.Future[Json]]] = {}
        self._bytes = 0

    @property
    def waiting(self) -> list[Json]:
        """The questions that wait, oldest first."""
        return [question for question, _ in self._open.values()]

    async def ask_person(self, kind: str, era: str, **about: Any) -> Json:
        """Put a question to the person and wait for the answer. Cancelling it takes the question back."""
        if len(self._open) >= MAX_OPEN_QUESTIONS:
            raise BadMessage(f"{MAX_OPEN_QUESTIONS} questions wait already", fix="answer some of them")
        size = estimate_value_bytes(about)
        if self._open and self._bytes + size > MAX_OPEN_BYTES:
            raise BadMessage(f"questions of {self._bytes} bytes wait already", fix="answer some of them")
        id = next(self._numbers)
        question: Json = {"id": id, "kind": kind, "era": era, "since": time.time(), **about}
        if (until := ANSWER_DEADLINE.get()) is not None:
            question["until"] = until
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._open[id] = question, answer
        self._bytes += size
        self._push("question", question)
        given: Json | None = None
        try:
            given = await answer
            return given
        finally:
            del self._open[id]
            self._bytes -= size
            self._end(question, given, "person")

    def _end(self, question: Json, answer: Json | None, by: str) -> None:
        over: Json = {name: question[name] for name in ("id", "kind", "era", "since")}
        over |= {"over": time.time(), "outcome": "taken back" if answer is None else "answered", "by": by}
        if len(to_json((question, answer), inf_nan_mode="null")) <= MAX_PAST_QUESTION_BYTES:
            over |= {"question": question, "answer": answer}
        self.past.append(over)
        self._push("question.over", over)

    def answer_question(self, id: int, answer: Json) -> bool:
        """Answer a question. False if it waits no longer."""
        _, waiting = self._open.get(id, (None, None))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(answer)
        return True

    # -- who asks ----------------------------------------------------------------------------------------

    def make_client_answers(self, era: Callable[[], str], **about: Any) -> Answers:
        """The person, as a client's answers. `era` says which era the client speaks, once it is open.

        `about` are further fields of the questions.
        """

        async def ask(message: str, schema: dict[str, Any]) -> Any:
            answer = await self.ask_person("form", era(), message=message, schema=schema, **about)
            decision = DECISIONS.get(str(answer.get("action")), Cancel)
            return answer.get("content") or decision if decision is Accept else decision

        async def ask_url(message: str, url: str) -> Any:
            answer = await self.ask_person("url", era(), message=message, url=url, **about)
            return DECISIONS.get(str(answer.get("action")), Cancel)

        return Answers(ask, self.make_sampler(era, **about), lambda: self.roots, ask_url=ask_url)

    def make_sampler(self, era: Callable[[], str], **about: Any) -> Callable[[Json], Awaitable[Any]]:
        """What answers requests to sample a model: the script, or the person. Raises ProtocolError if they refuse."""

        async def sample(params: dict[str, Any]) -> Any:
            if (said := self.model.find_answer(params)) is not None:
                asked: Json = {"id": next(self._numbers), "kind": "sampling", "era": era(), "since": time.time()}
                self._end({**asked, "params": params}, {"text": said}, "script")
                return said
            answer = await self.ask_person("sampling", era(), params=params, **about)
            if answer.get("refuse") is True:
                raise ProtocolError("the person at the inspector did not let the model answer", code=REJECTED)
            return answer.get("result") or str(answer.get("text", ""))

        return sample

    async def confirm(self, era: str, tool: str, arguments: Json, security: Json) -> bool:
        """Whether the person says yes to a call."""
        answer = await self.ask_person("confirmation", era, tool=tool, arguments=arguments, security=security)
        return answer.get("yes") is True

    async def permit(self, era: str, permission: str, risk: str, server: str, **call: Any) -> bool | None:
        """What the person decides about a permission; None leaves it open. `call` needs it, if it is known."""
        answer = await self.ask_person("permission", era, permission=permission, risk=risk, server=server, **call)
        return {"approved": True, "denied": False}.get(str(answer.get("decision")))


# -- A model made of rules, which answers sampling while nobody wants to type.


MAX_RULES: Final = 50
MAX_TEXT_LENGTH: Final = 20_000


class Rule(NamedTuple):
    """What is said if the newest message has the text `when`, in any case of letters. An empty `when` always fits."""

    when: str
    say: str


class ScriptedAnswers:
    """Rules that the person has written. Nothing is answered while it is not switched on."""

    def __init__(self) -> None:
        self.on = False
        self.rules: list[Rule] = []

    def set_rules(self, on: bool, rules: Sequence[Any]) -> None:
        """Take new rules, objects with `when` and `say`. Raises BadMessage if one is something else, or too long."""
        read = [object_or_empty(rule) for rule in rules]
        texts = [text for rule in read for text in (rule.get("when", ""), rule.get("say"))]
        if len(rules) > MAX_RULES or not all(isinstance(text, str) and len(text) <= MAX_TEXT_LENGTH for text in texts):
            raise BadMessage(
                "these are not rules for a model",
                fix=f"give at most {MAX_RULES} rules with the texts `when` and `say`, "
                f"each below {MAX_TEXT_LENGTH} characters",
            )
        self.on, self.rules = on, [Rule(rule.get("when", ""), rule["say"]) for rule in read]

    def find_answer(self, params: Json) -> str | None:
        """What the first rule that fits says; None if none does, or the model is switched off."""
        if not self.on:
            return None
        asked = newest_text(params).casefold()
        return next((rule.say for rule in self.rules if rule.when.casefold() in asked), None)

    def to_wire(self) -> Json:
        return {"on": self.on, "rules": [rule._asdict() for rule in self.rules]}


def newest_text(params: Json) -> str:
    """The texts of the last message of a sampling request."""
    messages = params.get("messages")
    last = object_or_empty(messages[-1]) if is_array(messages) and messages else {}
    content = last.get("content")
    blocks = content if is_array(content) else [content]
    return "\n".join(str(object_or_empty(block).get("text", "")) for block in blocks)
