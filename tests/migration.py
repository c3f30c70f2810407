"""The programs of other frameworks in docs/migration.md, run for real: `python -m tests.migration fastmcp`.

Imports neither pytest nor defserve, for it has to run where only the other framework is installed.
"""

from __future__ import annotations

import asyncio
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

PAGE: Final = Path(__file__).parents[1] / "docs" / "migration.md"
PACKAGES: Final = ("fastmcp", "mcp")

# Section -> (verb, its name or URI, arguments, the text that comes back). The same for every framework.
STEPS: Final[dict[str, tuple[str, str, dict[str, Any], str]]] = {
    "A tool": ("call", "price", {"item": "tea", "qty": 2}, "5.0"),
    "Low-level server": ("call", "price", {"item": "tea"}, "tea: 2.5"),
    "Logging and progress": ("call", "restock", {"items": ["tea", "cake"]}, "2 ordered"),
    "Elicitation": ("call", "check_in", {}, "Welcome, Ada"),
    "Sampling": ("call", "summarize", {"text": "A long text"}, "Tea."),
    "Resources": ("read", "library://books/emma", {}, "Emma Woodhouse"),
    "Prompts": ("prompt", "review", {"code": "x = 1"}, "Review this: x = 1"),
    "Structured results": ("structured", "weather", {"city": "Oslo"}, "{'city': 'Oslo', 'degrees': 4}"),
    "Errors": ("call", "cancel", {"number": 9}, "There is no order 9."),
    "Lifespan": ("call", "left", {"item": "tea"}, "3 left"),
    "Dependencies": ("call", "left", {"item": "tea"}, "3 left"),
    "Authentication": ("call", "read", {}, "buy milk"),
    "Middleware": ("call", "delete", {"name": "a"}, "Nothing is deleted here."),
    "Mounting": ("call", "billing_invoice", {"amount": 5}, "5 due"),
    "Testing": ("call", "add", {"a": 1, "b": 2}, "3"),
}
# What makes an app: running it is enough.
MADE: Final = ("Deployment",)


class Snippet(NamedTuple):
    """A program of another framework, and the section it stands in."""

    package: str
    section: str
    code: str


def snippets() -> list[Snippet]:
    found: list[Snippet] = []
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        for package, code in re.findall(r"^```py\n# (\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
            found.append(Snippet(package, section.partition("\n")[0], code))
    return found


def run(snippet: Snippet) -> str:
    """Load the program, and do with its server what its section is about; the text that came back."""
    # A module that can be found: annotations are looked up there.
    module = sys.modules["snippet"] = ModuleType("snippet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(snippet.code, f"{PAGE.name}: {snippet.section}", "exec"), vars(module))
        if snippet.section in MADE:
            return "made" if callable(vars(module)["app"]) else "no app"
        return asyncio.run(asyncio.wait_for(_step(snippet, vars(module)["mcp"]), 20))


def expected(snippet: Snippet) -> str:
    """The end of what `run` gives: the SDK says before an error's text which tool has failed."""
    return "made" if snippet.section in MADE else STEPS[snippet.section][3]


async def _step(snippet: Snippet, server: Any) -> str:
    verb, name, arguments, _ = STEPS[snippet.section]
    async with _client(snippet.package, server) as client:
        if verb == "read":
            answer = await client.read_resource(name)
            return getattr(answer, "contents", answer)[0].text
        if verb == "prompt":
            return (await client.get_prompt(name, arguments)).messages[0].content.text
        lenient = {"raise_on_error": False} if snippet.package == "fastmcp" else {}
        result = await client.call_tool(name, arguments, **lenient)
        return str(result.structured_content) if verb == "structured" else result.content[0].text


def _client(package: str, server: Any) -> Any:
    """A client with a session, who answers questions."""
    if package == "fastmcp":

        async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
            return {"name": "Ada"}

        return import_module("fastmcp").Client(server, mode="legacy", elicitation_handler=answer)
    from mcp.client import Client
    from mcp_types import CreateMessageResult, ElicitResult, TextContent

    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Tea."), model="none")

    return Client(server, mode="legacy", elicitation_callback=elicit, sampling_callback=sample)


if __name__ == "__main__":
    for each in snippets():
        if each.package in (sys.argv[1:] or PACKAGES):
            said = run(each)
            print("ok  " if said.endswith(expected(each)) else "FAIL", each.package, "|", each.section, "|", said)
