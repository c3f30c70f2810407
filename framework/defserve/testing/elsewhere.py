"""Habits from clients of other frameworks: their names of verbs, and arguments in a dictionary. Errors say ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar, cast

from defserve.errors import UsageError

# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True

F = TypeVar("F", bound=Callable[..., Any])

CLIENT: Final = {
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
"""A verb of their client → what to write."""


def named_arguments(verb: F) -> F:
    """A verb whose arguments have names. A dictionary in their place is a UsageError that says so."""

    @wraps(verb)
    def checked(self: Any, item: str, /, *loose: Any, **arguments: Any) -> Any:
        if loose:
            call = f"client.{verb.__name__}({item!r}"
            raise UsageError(
                f"{call}, {loose[0]!r:.80}): arguments have names",
                fix=f"{call}, key=value), or {call}, **arguments)",
            )
        return verb(self, item, **arguments)

    return cast("F", checked)
