"""The answers of `defserve call`: given on the command line, or typed by the person at the terminal."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from defserve.cli.answers.forms import form_problem
from defserve.cli.answers.terminal import is_yes_or_no, terminal_answers
from defserve.errors import ToolError, UsageError
from defserve.host.answers import Answers, Cancel, settled
from defserve.host.fields import object_of, texts_of
from defserve.host.mgp.security.tool_security import ListedSecurity
from defserve.host.person import agrees
from defserve.protocols.mgp.confirmation import question
from defserve.wire.jsonvalue import is_object

EXAMPLE: Final = """--answer true, --answer '"Ada"' or --answer '{"value": true}'"""


def answer_of(text: str) -> Any:
    """The value of an `--answer`: an object, or the value of a question with one field."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if answer is None:
        raise ArgumentTypeError(f"{text!r} is not an answer in JSON; write {EXAMPLE}")
    return answer


class PreparedAnswers:
    """Gives the prepared answers in their order, then asks at the terminal. `yes` agrees to every yes-or-no question.

    A question at the terminal is asked within `around()`. `unanswered` is the error about the first question that
    nobody could answer.
    """

    def __init__(
        self,
        answers: Sequence[Any],
        *,
        yes: bool,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._left, self._yes, self._around = list(answers), yes, around
        self._terminal = terminal_answers() if sys.stdin.isatty() and sys.stderr.isatty() else Answers()
        self._confirmed: str | None = None
        self.unanswered: UsageError | None = None

    @property
    def can_answer(self) -> bool:
        return self._yes or bool(self._left) or self._terminal.ask is not None

    def answers(self) -> Answers:
        """What we offer the server: no answers if nobody can be asked."""
        url = self._terminal.ask_url

        async def ask_url(message: str, address: str) -> Any:
            assert url is not None
            with self._around():
                return await settled(url(message, address))

        return Answers(ask=self._ask if self.can_answer else None, ask_url=ask_url if url is not None else None)

    async def confirm(self, tool: ListedSecurity, arguments: dict[str, Any]) -> None:
        """Ask about a tool that needs confirmation, because its server may assume that we did. Its title is not shown:
        a server could word its own confirmation.

        Raises UsageError if nobody can be asked, ToolError for a no.
        """
        if not tool.confirmation_required and tool.is_listed:
            return
        if not self.can_answer:
            raise UsageError(f"{tool.name} {_reason(tool)}", fix="run it at a terminal, or add --yes")
        asked = question(tool.name, arguments, tool.schema)
        shown = asked if tool.is_listed else f"{asked}\n  ({tool.name} {_reason(tool)})"
        if not await agrees(Answers(ask=self._ask), shown, "value"):
            raise ToolError(f"{tool.name} was not run, because you did not say yes")
        self._confirmed = asked

    async def _ask(self, message: str, schema: dict[str, Any]) -> Any:
        if self._confirmed is not None and _is_about(self._confirmed, message):
            # The server asks about what was just agreed to, in every line.
            self._confirmed = None
            return dict.fromkeys(object_of(schema.get("properties")), True)
        if (problem := form_problem(schema)) is not None:
            self.unanswered = self.unanswered or UsageError(
                f"the server asks with a form that cannot be shown: {problem}", fix="correct the schema of its question"
            )
            return Cancel
        if self._yes and is_yes_or_no(schema):
            return dict.fromkeys(object_of(schema.get("properties")), True)
        if self._left:
            return self._prepared(self._left.pop(0), message, schema)
        if self._terminal.ask is not None:
            with self._around():
                return await settled(self._terminal.ask(message, schema))
        self.unanswered = UsageError(
            f"nobody can answer {message!r}", fix=f"run it at a terminal, or add {_option(schema)}"
        )
        raise self.unanswered

    def _prepared(self, answer: Any, message: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Raises UsageError for fields that the question does not have, or needs: they would count as no answer."""
        fields = list(object_of(schema.get("properties")))
        if not is_object(answer) and len(fields) == 1:
            return {fields[0]: answer}
        if not is_object(answer):
            problem = f"the question {message!r} has {len(fields)} fields, and {json.dumps(answer)} is one value"
        elif fields and (unknown := [name for name in answer if name not in fields]):
            problem = f"the question {message!r} has no field {unknown[0]!r}"
        elif lacking := [name for name in _needed_fields(schema) if name not in answer]:
            problem = f"the question {message!r} needs the field {lacking[0]!r}"
        else:
            return answer
        self.unanswered = UsageError(problem, fix=f"write {_option(schema)}")
        raise self.unanswered


def _needed_fields(schema: dict[str, Any]) -> list[str]:
    """The required fields of a form that have no default."""
    properties = object_of(schema.get("properties"))
    return [name for name in texts_of(schema.get("required")) if "default" not in object_of(properties.get(name))]


def _is_about(confirmed: str, asked: str) -> bool:
    """Whether a server asks for the same again, with the same arguments. One in front of others says whose tool it is.

    A server that reads an argument otherwise than it was written asks for something else, and is answered anew.
    """
    (agreed, *shown), (first, *lines) = confirmed.split("\n"), asked.split("\n")
    agreed = agreed.removesuffix("?")
    if not first.startswith(agreed) or lines != shown:
        return False
    rest, before, after = first.removeprefix(agreed), " of server '", "'?"
    is_named = rest.startswith(before) and rest.endswith(after) and len(rest) >= len(before + after)
    return rest == "?" or (is_named and "'" not in rest[len(before) : -len(after)])


def _reason(tool: ListedSecurity) -> str:
    if not tool.is_listed:
        return "is not in the server's list, which would say what it does: it needs your yes"
    return f"is {tool.risk} and needs your yes" if tool.risk == "dangerous" else "needs your yes"


def _option(schema: dict[str, Any]) -> str:
    """The `--answer` that a form takes."""
    fields = ", ".join(f"{json.dumps(name)}: …" for name in object_of(schema.get("properties")))
    return f"--answer '{{{fields}}}'"
