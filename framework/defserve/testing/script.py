"""The answers that a test prepares for the questions of its server, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from defserve.errors import ProtocolError, UsageError
from defserve.host.answers import Answers, Cancel, Decision, Root, of_one_field

KINDS: Final = ("ask", "sample", "roots", "apps")
REJECTED: Final = -1


class Unanswered(AssertionError):
    """The server asked something that the test has no answer for."""


class Unused(AssertionError):
    """The test prepared an answer that the server did not ask for."""


class AnswerScript:
    """Gives each question the next prepared answer, and remembers the questions without one."""

    def __init__(self) -> None:
        self.offered: set[str] = set(KINDS)
        self.prepared: deque[Any] = deque()
        self.samples: deque[Any] = deque()
        self.roots: list[Root] | None = None
        self._unanswered: list[str] = []

    def answers(self) -> Answers:
        """What the client offers to answer: the kinds in `offered`."""
        asks = "ask" in self.offered
        return Answers(
            ask=self._ask if asks else None,
            ask_url=self._ask_url if asks else None,
            sample=self._sample if "sample" in self.offered else None,
            roots=self._list_roots if "roots" in self.offered else None,
        )

    def complaint(self) -> Unanswered | None:
        """The error for the questions without an answer since the last complaint; None if there are none."""
        text, self._unanswered = "\n".join(self._unanswered), []
        return Unanswered(text) if text else None

    def check_used(self) -> None:
        """Raises Unused for answers that are left over."""
        left = {"will_answer": list(self.prepared), "will_sample": list(self.samples)}
        self.prepared.clear()
        self.samples.clear()
        lines = [
            f"client.{verb}({', '.join(map(repr, values))}) was never used" for verb, values in left.items() if values
        ]
        if lines:
            raise Unused("\n".join([*lines, "  fix: remove it, or find out why the tool did not ask"]))

    def _ask(self, message: str, schema: dict[str, Any]) -> Any:
        if not self.prepared:
            fields = ", ".join(f"{name!r}: …" for name in schema.get("properties", {}))
            self._miss(f"the server asked {message!r}", f"client.will_answer({{{fields}}})")
            return Cancel
        try:
            return of_one_field(_given(self.prepared.popleft(), message, schema), schema)
        except UsageError as error:
            self._unanswered.append(f"the server asked {message!r}: {error.problem}\n  fix: {error.fix}")
            return Cancel

    def _ask_url(self, message: str, url: str) -> Decision:
        if not self.prepared:
            self._miss(f"the server asked {message!r} and wants {url} opened", "client.will_answer(Accept)")
            return Cancel
        return _given(self.prepared.popleft(), message, url)

    def _sample(self, params: dict[str, Any]) -> Any:
        if not self.samples:
            said = params.get("messages") or ["nothing"]
            self._miss(f"the server asked a model about {said[-1]!r}", 'client.will_sample("…")')
            raise ProtocolError("the test has no sample", code=REJECTED)
        return _given(self.samples.popleft(), params)

    def _list_roots(self) -> list[Root]:
        if self.roots is None:
            self._miss("the server asked for the client's roots", 'client.has_roots("file:///…")')
        return self.roots or []

    def _miss(self, question: str, fix: str) -> None:
        self._unanswered.append(f"{question}, and the test has no answer for it\n  fix: {fix} before the call")


def _given(answer: Any, *question: Any) -> Any:
    if callable(answer) and not isinstance(answer, type):
        asked: Callable[..., Any] = answer
        return asked(*question)
    return answer
