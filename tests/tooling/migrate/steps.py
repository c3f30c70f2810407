"""The programs of other frameworks, what they are asked, and what they answer: before and after they are migrated.

`python -m tests.tooling.migrate.steps fastmcp` runs them as they are, where their framework is installed. Imports
neither pytest nor defserve.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

PROGRAMS: Final = Path(__file__).parent / "programs"


class Step(NamedTuple):
    """`verb` is call, read or prompt; `said` is the text that comes back, of all parts together."""

    verb: str
    name: str
    arguments: dict[str, Any]
    said: str


# Program -> (its package and version, its steps)
STEPS: Final[dict[str, tuple[str, list[Step]]]] = {
    "calculator": (
        "fastmcp",
        [
            Step("call", "add", {"a": 1, "b": 2}, "3"),
            Step("call", "scale", {"value": 1.5}, "3.0"),
            Step("call", "join_words", {"words": ["a", "b"], "separator": "-"}, "a-b"),
        ],
    ),
    "notes": (
        "fastmcp",
        [
            Step("read", "notes://all", {}, "tea, cake"),
            Step("read", "notes://tea", {}, "Buy tea."),
            Step("prompt", "summarize", {"name": "tea", "words": "5"}, "user: Summarize tea in 5 words."),
            Step(
                "prompt",
                "dialogue",
                {"topic": "tea"},
                "user: Tell me about tea.\nassistant: What do you know already?",
            ),
        ],
    ),
    "importer": (
        "fastmcp",
        [
            Step("call", "load", {"rows": ["a", "", "b"]}, "2 loaded"),
            Step("call", "peek", {"rows": ["a", "b"], "limit": 1}, '["a"]'),
        ],
    ),
    "shop": (
        "fastmcp",
        [
            Step("call", "checkout", {"items": [{"name": "tea", "price": 2.5}]}, '{"total":2.5,"lines":1}'),
            Step("call", "stock", {"name": "tea"}, '{"tea":3}'),
        ],
    ),
    "failing": (
        "fastmcp",
        [
            Step("call", "divide", {"a": 1, "b": 2}, "0.5"),
            Step("call", "divide", {"a": 1, "b": 0}, "Division by zero: give another b."),
            Step("call", "age", {"years": -1}, "-1 is not an age."),
            Step("read", "logs://today", {}, "log of today"),
        ],
    ),
    "pictures": (
        "fastmcp",
        [
            Step("call", "dot", {}, "[image/png]"),
            Step("call", "captioned", {"text": "a dot"}, "a dot[image/png]"),
        ],
    ),
    "warehouse": (
        "fastmcp",
        [Step("call", "left", {"item": "tea"}, "3"), Step("call", "take", {"item": "tea", "count": 2}, "1 left")],
    ),
    "office": (
        "fastmcp",
        [
            Step("call", "billing_invoice", {"amount": 5}, "5 due"),
            Step("call", "send", {"to": "Ann"}, "sent to Ann"),
            Step("read", "mail://inbox", {}, "empty"),
        ],
    ),
    "wired": (
        "fastmcp",
        [
            Step("call", "convert", {"amount": 10, "currency": "USD"}, "11.0"),
            Step("call", "noted", {"text": "tea"}, "TEA"),
        ],
    ),
    "registered": (
        "fastmcp",
        [
            Step("call", "increase", {"by": 2}, "2"),
            Step("call", "increase", {}, "3"),
            Step("call", "welcome", {"name": "Ann"}, "Hello, Ann!"),
        ],
    ),
    "sdk_one": (
        "mcp1",
        [
            Step("call", "forecast", {"city": "Oslo"}, "sun in Oslo"),
            Step("call", "degrees", {"city": "Oslo"}, '{"celsius":4}'),
            Step("read", "weather://Oslo/now", {}, "rain in Oslo"),
            Step("prompt", "dress", {"city": "Oslo"}, "user: I am going to Oslo.\nassistant: What do you own?"),
        ],
    ),
    "sdk_two": (
        "mcp2",
        [
            Step("call", "author", {"title": "emma"}, "Jane Austen"),
            Step("call", "author", {"title": "it"}, "There is no it."),
            Step("read", "library://emma", {}, "emma by Jane Austen"),
            Step("prompt", "review", {"title": "emma"}, "user: Review emma."),
        ],
    ),
    "low_level": (
        "mcp1",
        [
            Step("call", "price", {"item": "tea"}, "tea: 2.5"),
            Step("call", "currency", {}, "EUR"),
        ],
    ),
}


def source(program: str) -> str:
    return (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")


def loaded(program: str, text: str) -> Any:
    """The server of a program."""
    module = sys.modules[program] = ModuleType(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, f"{program}.py", "exec"), vars(module))
    return vars(module).get("mcp") or vars(module)["server"]


def together(parts: list[Any]) -> str:
    """The text of content: of their objects, and of ours."""
    plain = [part if isinstance(part, dict) else part.model_dump(by_alias=True) for part in parts]
    return "".join(part["text"] if part["type"] == "text" else f"[{part['mimeType']}]" for part in plain)


def spaceless(text: str) -> str:
    """JSON is written with and without blanks."""
    return "".join(text.split()) if text[:1] in "{[" else text


async def _as_it_is(program: str) -> list[str]:
    package, steps = STEPS[program]
    server, said = loaded(program, source(program)), list[str]()
    async with _client(package, server) as client:
        for step in steps:
            if step.verb == "read":
                answer = await client.read_resource(step.name)
                said.append(getattr(answer, "contents", answer)[0].text)
            elif step.verb == "prompt":
                found = (await client.get_prompt(step.name, step.arguments)).messages
                said.append("\n".join(f"{one.role}: {one.content.text}" for one in found))
            else:
                lenient = {"raise_on_error": False} if package == "fastmcp" else {}
                said.append(together((await client.call_tool(step.name, step.arguments, **lenient)).content))
    return said


def _client(package: str, server: Any) -> Any:
    if package == "fastmcp":
        return import_module("fastmcp").Client(server)
    if package == "mcp2":
        return import_module("mcp.client").Client(server)
    inner = getattr(server, "_mcp_server", server)
    return import_module("mcp.shared.memory").create_connected_server_and_client_session(inner)


def as_it_is(program: str) -> list[str]:
    """What a program answers in its own framework."""
    return asyncio.run(asyncio.wait_for(_as_it_is(program), 30))


def agrees(said: str, wanted: str) -> bool:
    """The SDK says before an error's text which tool has failed."""
    return spaceless(said).endswith(spaceless(wanted))


if __name__ == "__main__":
    for name, (needs, wanted) in STEPS.items():
        if needs in sys.argv[1:]:
            for answer, each in zip(as_it_is(name), wanted, strict=True):
                print("ok  " if agrees(answer, each.said) else "FAIL", name, each.name, repr(answer))
