from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from defserve import Limits, Server
from defserve.errors import UsageError
from defserve.extending import Prompt, PromptOptions, Resource, ResourceOptions, Tool, ToolOptions
from tests.rows import for_each_row


def hello() -> str:
    return "hello"


async def later() -> str:
    return "later"


OFFERS: dict[str, Callable[..., None]] = {
    "tool": lambda server, function, **options: server.add_tool(function, **options),
    "resource": lambda server, function, **options: server.add_resource(function, "x://hello", **options),
    "prompt": lambda server, function, **options: server.add_prompt(function, **options),
}
WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "no time": (hello, {"timeout": 0}, "timeout must be positive seconds, not 0"),
    "time in words": (hello, {"timeout": "5"}, "timeout must be positive seconds, not '5'"),
    "inline coroutine": (later, {"inline": True}, "is async and inline=True"),
    "too long a time": (hello, {"timeout": 11}, "timeout=11 is longer than the 10 s allowed"),
    "too long a text": (hello, {"description": "x" * 21}, "its description is longer than 20 characters"),
}


@for_each_row("kind", OFFERS)
@for_each_row("case", WRONG)
def test_an_item_that_could_not_be_served_is_refused_at_registration(kind: str, case: str):
    function, options, problem = WRONG[case]
    with pytest.raises(UsageError, match=rf"test_items\.py:\d+: {kind} .*{problem}"):
        OFFERS[kind](Server("s", limits=Limits(tool_max=10, description=20)), function, **options)


def test_an_item_made_by_hand_belongs_to_the_server_it_is_added_to():
    server = Server("s")
    tool, prompt = Tool.of(hello, ToolOptions(timeout=3)), Prompt.of(hello, PromptOptions(timeout=3))
    resource = Resource.of(hello, "x://hello", ResourceOptions(timeout=3))
    server.add_tool(tool)
    server.add_resource(resource)
    server.add_prompt(prompt)
    assert [item.owner for item in (tool, resource, prompt)] == [server] * 3
