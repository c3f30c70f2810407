"""MGP §4.5: validators: the standard ones, and authors' functions that look at the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

from defserve.errors import Rejected, UsageError
from defserve.guard.argument_types import Code, Shell, Url
from defserve.guard.verdict import Verdict, checked

TextJudge: TypeAlias = Callable[[str], object]
"""Raises Rejected for a text that is refused."""

_COMMANDS = frozenset({"command", "cmd", "shell", "script", "commandline"})

# Name → who judges a text, and the names of the parameters that are judged.
STANDARD: Mapping[str, tuple[TextJudge, frozenset[str]]] = {
    "sandbox": (Shell().command, _COMMANDS),
    "readonly": (Shell(mode="readonly").command, _COMMANDS),
    "network_restricted": (Url().url, frozenset({"url", "uri", "endpoint", "href", "link", "address"})),
    "code_safety": (Code().source, frozenset({"code", "source", "script", "program", "snippet"})),
}


@dataclass(frozen=True, slots=True)
class Validator:
    """An author's function that judges the arguments of a call; see `@validator`."""

    function: Callable[..., Any]
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def judge(self, arguments: dict[str, Any]) -> None:
        """Run the function on the arguments. Raises Rejected if it refuses them."""
        wanted = inspect.signature(self.function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
        given = arguments if takes_all else {name: arguments[name] for name in wanted if name in arguments}
        found = self.function(**given)
        if inspect.isawaitable(found):
            found = await found
        reason = f"{self.name} refused the call"
        if isinstance(found, Verdict):
            checked(found, reason, self.name)
        elif isinstance(found, str) or found is False:
            raise Rejected(reason, ["not allowed" if found is False else found], guard=self.name)


@overload
def validator(function: Callable[..., Any], /) -> Validator: ...
@overload
def validator(*, name: str) -> Callable[[Callable[..., Any]], Validator]: ...
def validator(function: Any = None, /, *, name: str | None = None) -> Any:
    """Make a function a validator for `@dangerous(…, validator=[…])`.

    The function takes those arguments of the tool that it names, or all with `**arguments`. To refuse the call it
    returns a text, False or a `Verdict` that does not allow. None, True or an allowing verdict lets the call pass. It
    may be async.
    """

    def make(function: Callable[..., Any]) -> Validator:
        if not callable(function):
            raise UsageError(f"@validator marks functions, not {function!r}", fix='give the name: @validator(name="…")')
        return Validator(function, name or function.__name__)

    return make(function) if function is not None else make
