"""How a verb of an async object becomes one that a test can call, and habits from clients of other frameworks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from operator import methodcaller
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from defserve.errors import UsageError

# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True

T = TypeVar("T")
P = ParamSpec("P")


def make_blocking_method(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], about: str = ""
) -> Callable[Concatenate[Any, P], T]:
    """A method that runs the async `verb` of another class, and waits for it: `tools = blocking(Client.tools)`.

    It has the parameters and the result of the verb, for type checkers too, and its docstring unless `about` has
    another. Its object says with `_run_verb` on which target and loop.
    """

    @wraps(verb)
    def run_and_wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By its name, because the target may be of a subclass.
        return self._run_verb(methodcaller(verb.__name__, *args, **kwargs))

    run_and_wait.__doc__ = about or verb.__doc__
    return run_and_wait


# -- Habits from clients of other frameworks: their names of verbs, and arguments in a dictionary. Errors say ours.


F = TypeVar("F", bound=Callable[..., Any])


def require_named_arguments(verb: F) -> F:
    """A verb whose arguments have names. A dictionary in their place is a UsageError that says so."""

    @wraps(verb)
    def check_and_call(self: Any, item: str, /, *loose: Any, **arguments: Any) -> Any:
        if loose:
            call = f"client.{verb.__name__}({item!r}"
            raise UsageError(
                f"{call}, {loose[0]!r:.80}): arguments have names",
                fix=f"{call}, key=value), or {call}, **arguments)",
            )
        return verb(self, item, **arguments)

    return cast("F", check_and_call)


FOREIGN_CLIENT_METHOD_HINTS: Final = {
    "call_tool": 'client.call("tool", key=value)',
    "call_tool_mcp": 'client.call_raw("tool", {"key": value})',
    "list_tools": "client.tools()",
    "list_resources": "client.resources()",
    "list_resource_templates": "client.templates()",
    "list_prompts": "client.prompts()",
    "get_prompt": 'client.prompt("name", key=value)',
    "read_resource": "client.read(uri), or client.read_text(uri)",
    "initialize": "nothing: the client connects with its first verb",
    "send_ping": "client.ping()",
}
"""A verb of another framework's client → what to write."""
