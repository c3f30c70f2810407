"""Every exception defserve raises on purpose, named after who erred.

    DefserveError
    ├── UsageError              the author: a wrong declaration, raised when it is made
    ├── PeerError               the other side answered with an error, or not at all
    │   ├── PeerGone            it left before it answered
    │   ├── PeerTimeout         it did not answer in time
    │   └── NoBackChannel       it cannot be asked, or did not offer the capability
    ├── ProtocolError           a message broke the rules on the wire; has a JSON-RPC code
    │   ├── ParseError          -32700
    │   ├── InvalidRequest      -32600
    │   ├── MethodNotFound      -32601
    │   ├── InvalidParams       -32602
    │   └── NotOpen             -32602, a request before the conversation was opened
    ├── Refused                 policy said no
    │   ├── Rejected            a guard found something in the arguments
    │   ├── LimitExceeded       a size, time or concurrency limit
    │   │   └── TooManyCalls    there is no room, and the queue is full: it did not begin
    │   └── Draining            the server is shutting down and takes no new calls
    └── ToolError               text for the model: what went wrong and what to do
        ├── BadArguments        the call's arguments do not fit
        ├── TimedOut            the function took longer than its timeout
        ├── Declined            a person said no
        └── Dismissed           a person closed the question

`Suspended` stands apart: it is a BaseException, so that `except Exception` in an author's
function cannot swallow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

from defserve.base.frozen import FrozenDataclass
from defserve.base.peer_bounds import (
    MAX_PEER_TEXT_LENGTH,
    MAX_VIOLATION_LENGTH,
    MAX_VIOLATIONS,
    truncate_error_data,
    truncate_text,
)


class DefserveError(Exception):
    """The root of everything defserve raises on purpose."""


class UsageError(DefserveError):
    """The author declared something that cannot work.

    Says where (`file:line`), what, why and how to fix it.
    """

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        self.problem, self.where, self.fix = problem, where, fix
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text}\n  fix: {fix}" if fix else text)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The fix for a misspelt word: the known one that is nearest, or else `otherwise`; by default, all of them."""
    names = list(known)
    close = find_nearest_names(word, names)
    if not close:  # `TOOLS`, `Json`: nothing but the case differs
        close = [name for name in names if name.lower() == word.lower()][:1]
    return f"did you mean {close[0]!r}?" if close else otherwise or f"use one of {', '.join(names)}"


MAX_REFUSAL_LENGTH = 600
"""Characters of the text of a refusal. A model pays for each, and a person stops reading."""
MAX_NAMES_IN_REFUSAL = 5
_MAX_COMPARED_NAMES = 500


def find_nearest_names(asked: str, known: Iterable[str], *, min_likeness: float = 0.6) -> list[str]:
    """The few known names that are most like the one that was asked for, the likest first."""
    from difflib import get_close_matches

    # Comparing costs microseconds for each name and character, and a peer chooses what is asked.
    return get_close_matches(asked[:100], islice(known, _MAX_COMPARED_NAMES), MAX_NAMES_IN_REFUSAL, min_likeness)


def make_attribute_error(owner: str, name: str, elsewhere: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """The error about an attribute that does not exist, with what to write instead."""
    public = [each for each in known if not each.startswith("_")]
    fix = elsewhere.get(name) or did_you_mean(name, public, " ") if not name.startswith("_") else ""
    told = f"\n  fix: {fix}" if fix.strip() else ""
    return AttributeError(f"{owner} has no attribute {name!r}{told}")


class PeerError(DefserveError):
    """The other side answered a request of ours with an error."""

    def __init__(self, message: str, *, code: int = -32603, data: Any = None) -> None:
        self.message, self.code, self.data = truncate_text(str(message), MAX_PEER_TEXT_LENGTH), code, data
        super().__init__(self.message)


class PeerGone(PeerError):
    """The other side left before it answered."""


class PeerTimeout(PeerError):
    """The other side did not answer in time."""


class NoBackChannel(PeerError):
    """The other side cannot be asked this: there is no way to reach it, or it did not offer to answer.

    `needs` is what it would have to offer, as its capabilities object.
    """

    def __init__(self, message: str, *, needs: Mapping[str, Any] | None = None) -> None:
        self.needs = dict(needs or {})
        super().__init__(message)


class ProtocolError(DefserveError):
    """A message that breaks the rules. Carries the JSON-RPC code and data of its reply.

    What it repeats of the message is cut, as the peer may have sent megabytes.
    """

    code = -32603

    def __init__(self, message: str, *, code: int | None = None, data: Any = None) -> None:
        self.message, self.data = truncate_text(str(message)), truncate_error_data(data)
        if code is not None:
            self.code = code
        super().__init__(self.message)


class ParseError(ProtocolError):
    """Not JSON."""

    code = -32700


class InvalidRequest(ProtocolError):
    """JSON, but not a message."""

    code = -32600


class MethodNotFound(ProtocolError):
    """A method nobody serves, or one that was not negotiated."""

    code = -32601


class InvalidParams(ProtocolError):
    """A known method with parameters that do not fit it."""

    code = -32602


class NotOpen(InvalidParams):
    """A request that must wait until the conversation is open."""


class Refused(DefserveError):
    """Policy said no. `error_type` is the symbolic name that travels in the error's data."""

    error_type = "refused"

    def __init__(self, message: str, *, data: Mapping[str, Any] | None = None) -> None:
        self.message, self.data = truncate_text(str(message), MAX_PEER_TEXT_LENGTH), dict(data or {})
        super().__init__(self.message)


class Rejected(Refused):
    """A guard found something in the arguments.

    `message` is for models and people: a sentence on what was found, and what to write instead. It is the same on the
    wire, in a terminal and on the page. `data` is the body of MGP §7.4, with every detail. `guard` is the validator's
    name on the wire.
    """

    error_type = "validation_blocked"

    def __init__(
        self, reason: str, violations: Iterable[object], hints: Mapping[str, Any] | None = None, *, guard: str
    ) -> None:
        self.guard, self.reason = guard, reason
        # A violation names what was found, in the caller's own text.
        self.violations = tuple(
            truncate_text(str(one), MAX_VIOLATION_LENGTH) for one in islice(violations, MAX_VIOLATIONS)
        )
        if guard == "code_safety":
            self.error_type = "code_safety_violation"
        body = {"status": "rejected", "reason": reason, "violations": [*self.violations], "hints": dict(hints or {})}
        found = f"{truncate_text(reason, 100)}: {_join_violations(self.violations)}"
        self.advice = _describe_alternatives(hints or {}, MAX_REFUSAL_LENGTH - len(found) - 2)
        """What to write instead, in a sentence; empty if the guard does not know."""
        stop = "" if found.endswith(("?", ".")) else "."
        super().__init__(f"{found}{stop} {self.advice}" if self.advice else found, data=body)


def _join_violations(violations: tuple[str, ...]) -> str:
    shown = truncate_text("; ".join(violations[:MAX_NAMES_IN_REFUSAL]), MAX_VIOLATION_LENGTH)
    more = len(violations) - MAX_NAMES_IN_REFUSAL
    return f"{shown}; and {more} more" if more > 0 else shown


def _describe_alternatives(hints: Mapping[str, Any], room: int) -> str:
    """The hints that a text repeats: the nearest names as far as there is room, or else the form."""
    nearest, form = hints.get("nearest"), hints.get("form")
    # Another server may have sent them.
    names = list(map(str, cast("list[object]", nearest)))[:MAX_NAMES_IN_REFUSAL] if isinstance(nearest, list) else []
    while names:
        advice = f"Try {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}."
        if len(advice) <= room:
            return advice
        names.pop()
    advice = f"Write {form}."
    return advice if isinstance(form, str) and len(advice) <= room else ""


class LimitExceeded(Refused):
    """A size, time or concurrency limit. `data` names the limit and when to try again."""

    error_type = "limit_exceeded"


class TooManyCalls(LimitExceeded):
    """There is no room for this call, and the queue is full. It did not begin, so it is safe to send it again."""


class Draining(Refused):
    """The server finishes what it has begun and takes no new calls."""

    error_type = "draining"


class CredentialEnded(Refused):
    """The key or token that a call was made with was revoked, or has expired, while the call was running."""

    error_type = "credential_ended"

    def __init__(self) -> None:
        super().__init__("the call was stopped: the credential it was made with was revoked or has expired")


class StepUpRequired(Refused):
    """An issuer wants the person to do something before it gives a token in their name: to sign in again, or to agree.

    `error` and `claims` are what the issuer says. Over HTTP a client is told both, and can sign the person in again.
    """

    error_type = "interaction_required"

    def __init__(self, message: str, *, error: str = "interaction_required", claims: str = "") -> None:
        self.error, self.claims = error, claims
        super().__init__(message, data={"error": error, **({"claims": claims} if claims else {})})


class ToolError(DefserveError):
    """An error the model reads: say what happened and what to do about it."""

    error_type = "tool_error"

    def __init__(self, message: str, *, data: Mapping[str, Any] | None = None) -> None:
        self.message, self.data = str(message), dict(data or {})
        super().__init__(self.message)


class Problem(FrozenDataclass):
    """One argument that does not fit: its path (`items[0].qty`), and what is wrong with it."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


class BadArguments(ToolError):
    """The arguments of a call do not fit its schema. The text has a line for each of the first problems."""

    error_type = "invalid_arguments"

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        lines = [str(problem) for problem in problems[:MAX_NAMES_IN_REFUSAL]]
        text = truncate_text("\n".join(lines), MAX_REFUSAL_LENGTH - 50)
        super().__init__(f"{text}\nand more problems" if len(problems) > len(lines) else text)


class TimedOut(ToolError):
    """Something did not finish in time. `data` has `timeout_ms`, and the name of the `limit` if it is not `tool`."""

    error_type = "timeout"

    @classmethod
    def of(cls, limit: str, what: str, seconds: float) -> TimedOut:
        """`what` took longer than the seconds of a limit. The log names the limit: its author can raise it."""
        from defserve.base.redaction import get_logger

        get_logger().warning("%s took longer than %g s (Limits.%s)", what, seconds, limit)
        data = {"limit": limit, "timeout_ms": int(seconds * 1000)}
        return cls(f"{what} took longer than {seconds:g} s", data=data)


class Declined(ToolError):
    """A person was asked and said no."""

    error_type = "declined"


class Dismissed(ToolError):
    """A person was asked and closed the question without an answer."""

    error_type = "dismissed"


class Suspended(BaseException):
    """Leaves synchronous code that asked a question. The answer comes with a later request."""


# -- Arguments that a constructor or a method of ours does not take: the author's line, and the name that was meant.


C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])


def explain_arguments(kind: C) -> C:
    """Class decorator for what authors create: with wrong arguments its constructor raises UsageError."""
    kind.__init__ = _explain(kind.__init__, kind.__name__, lambda: kind)
    return kind


def explain_call_arguments(subject: str) -> Callable[[F], F]:
    """The same for a method that authors call by the name `subject`."""
    return lambda function: _explain(function, subject, lambda: function)


def _explain(function: F, subject: str, find_signature: Callable[[], Any]) -> F:
    from functools import wraps

    @wraps(function)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        try:
            return function(self, *args, **named)
        except TypeError:
            explained = find_signature()
            given = args if isinstance(explained, type) else (self, *args)
            if (error := _find_argument_error(subject, explained, given, named)) is None:
                raise  # another one, from inside
        raise error

    return cast("F", call)


def _find_argument_error(subject: str, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What is wrong with the arguments; None if they fit."""
    from inspect import Parameter, signature

    called = signature(function)
    try:
        called.bind(*args, **named)
    except TypeError:
        pass
    else:
        return None
    where = _find_author_line()
    places = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    open_ended = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = {name: one for name, one in called.parameters.items() if one.kind not in open_ended}
    by_place = [name for name, one in parameters.items() if one.kind in places]
    names = [name for name, one in parameters.items() if one.kind is not Parameter.POSITIONAL_ONLY]
    if unknown := [name for name in named if name not in names]:
        return UsageError(f"{subject} has no option {unknown[0]!r}", where=where, fix=did_you_mean(unknown[0], names))
    if len(args) > len(by_place):
        options = ", ".join(f"{name}=…" for name in names if name not in by_place) or "fewer"
        return UsageError(f"{subject} got {len(args)} arguments without a name", where=where, fix=f"write {options}")
    given = {*by_place[: len(args)], *named}
    missing = [name for name, one in parameters.items() if one.default is Parameter.empty and name not in given]
    words = ", ".join(f"{name}=…" for name in missing)
    return UsageError(f"{subject} needs {', '.join(missing)}", where=where, fix=f"write {subject}({words})")


def _find_author_line() -> str:
    """`file.py:12` of the nearest line that is not ours."""
    import os
    import sys

    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "defserve":
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}"
