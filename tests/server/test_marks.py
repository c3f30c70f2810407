from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from defserve import Context, Server, UsageError, completion, prompt, resource, tool
from tests.raw import ERAS, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@tool
def plain() -> str:
    return "plain"


@tool(name="renamed", title="A title", timeout=5, annotations={"readOnlyHint": True})
async def with_options(n: int = 1) -> int:
    """Say a number."""
    return n


@resource("notes://{name}", mime_type="text/markdown")
def note(name: str) -> str:
    return f"# {name}"


@prompt(title="Greet")
def greet(name: str) -> str:
    return f"hello {name}"


@completion("greet", "name")
def names(value: str) -> list[str]:
    return [value + "a"]


def unmarked() -> str:
    return "never served"


class Counter:
    """State in an object, verbs as marked methods."""

    step = 2

    def __init__(self) -> None:
        self.count = 0

    @property
    def trap(self) -> int:
        raise AssertionError("including must not run properties")

    @tool
    def increase(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @tool(name="whoami")
    async def who(self, ctx: Context) -> str:
        return ctx.principal

    @staticmethod
    @tool
    def fixed() -> str:
        return "static"

    @classmethod
    @tool
    def of_class(cls) -> int:
        return cls.step

    def helper(self) -> str:
        return "never served"


class BiggerCounter(Counter):
    step = 5

    @tool
    def reset(self) -> int:
        self.count = 0
        return 0


def module() -> ModuleType:
    made = ModuleType("made")
    for function in (plain, with_options, note, greet, names, unmarked):
        setattr(made, function.__name__, function)
    return made


INCLUDED: dict[str, tuple[Any, dict[str, list[str]]]] = {
    "a module": (
        module(),
        {"tools": ["plain", "renamed"], "prompts": ["greet"], "templates": ["notes://{name}"]},
    ),
    "a function": (plain, {"tools": ["plain"], "prompts": [], "templates": []}),
    "an object": (Counter(), {"tools": ["increase", "whoami", "fixed", "of_class"], "prompts": [], "templates": []}),
    "an heir": (
        BiggerCounter(),
        {"tools": ["increase", "whoami", "fixed", "of_class", "reset"], "prompts": [], "templates": []},
    ),
}


@for_each_row("version", ERAS)
@for_each_row("case", INCLUDED)
async def test_everything_marked_is_served_and_nothing_else(version: str, case: str):
    target, expected = INCLUDED[case]
    server = Server("s", "1")
    server.include(target)
    async with raw(server, version) as peer:
        templates = (await peer.ask("resources/templates/list"))["result"]["resourceTemplates"]
        assert {
            "tools": [item["name"] for item in (await peer.ask("tools/list"))["result"]["tools"]],
            "prompts": [item["name"] for item in (await peer.ask("prompts/list"))["result"]["prompts"]],
            "templates": [item["uriTemplate"] for item in templates],
        } == expected


class Turned:
    """The marks are above @staticmethod and @classmethod."""

    step = 3

    @tool
    @staticmethod
    def fixed() -> str:
        return "static"

    @tool
    @classmethod
    def of_class(cls) -> int:
        return cls.step


@for_each_row("target", [Turned, Turned()])
async def test_static_and_class_methods_are_served_in_either_order(target: Any):
    server = Server("s", "1")
    server.include(target)
    async with raw(server) as peer:
        assert text_of(await peer.call("fixed")) == "static"
        assert text_of(await peer.call("of_class")) == "3"
    assert Turned.fixed() == "static"


def test_a_class_gives_its_static_and_class_methods():
    class Made:
        @staticmethod
        @tool
        def fixed() -> str:
            return "static"

        @classmethod
        @tool
        def of_class(cls) -> str:
            return cls.__name__

    server = Server("s", "1")
    server.include(Made)
    assert [tool.name for tool in server.mcp.tools.registry] == ["fixed", "of_class"]


def test_a_mark_above_something_else_is_refused_with_its_line():
    with pytest.raises(UsageError, match=r"tests/server/test_marks\.py:\d+: @tool marks functions, not 3"):
        tool()(3)  # type: ignore[arg-type]


async def test_options_are_kept():
    server = Server("s", "1")
    server.include(module())
    async with raw(server) as peer:
        tools = {item["name"]: item for item in (await peer.ask("tools/list"))["result"]["tools"]}
        renamed = tools["renamed"]
        assert (renamed["title"], renamed["description"]) == ("A title", "Say a number.")
        assert renamed["annotations"] == {"readOnlyHint": True}
        assert text_of(await peer.call("renamed", {"n": 3})) == "3"
        (contents,) = (await peer.ask("resources/read", {"uri": "notes://a"}))["result"]["contents"]
        assert (contents["mimeType"], contents["text"]) == ("text/markdown", "# a")
        assert (await peer.ask("prompts/list"))["result"]["prompts"][0]["title"] == "Greet"
        ref = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "An"}}
        assert (await peer.ask("completion/complete", ref))["result"]["completion"]["values"] == ["Ana"]


async def test_methods_share_the_state_of_their_object_and_two_objects_have_two():
    one, other = BiggerCounter(), Counter()
    server, second = Server("s", "1"), Server("second", "1")
    server.include(one)
    second.include(other)
    server.mount(second, prefix="b")
    async with raw(server) as peer:
        for by in (1, 2):
            await peer.call("increase", {"by": by})
        assert text_of(await peer.call("b_increase", {"by": 10})) == "10"
        assert (one.count, other.count) == (3, 10)
        assert [text_of(await peer.call(name)) for name in ("whoami", "fixed", "of_class", "b_of_class")] == [
            "local", "static", "5", "2",
        ]  # fmt: skip
        await peer.call("reset")
        assert one.count == 0


def test_several_targets_at_once_and_functions_stay_callable():
    server = Server("s", "1")
    server.include(plain, Counter())
    assert [tool.name for tool in server.mcp.tools.registry][:2] == ["plain", "increase"]
    assert plain() == "plain"


REFUSED: dict[str, tuple[Any, str]] = {
    "a module without marks": (ModuleType("empty"), "nothing in 'empty' is marked"),
    "a function without marks": (unmarked, "nothing in 'unmarked' is marked"),
    "an object without marks": (object(), "is marked"),
    "a class instead of an object": (Counter, "increase: it is a method that is not bound"),
}


@for_each_row("case", REFUSED)
def test_what_cannot_be_included_is_refused(case: str):
    target, message = REFUSED[case]
    with pytest.raises(UsageError, match=message) as refusal:
        Server("s", "1").include(target)
    assert refusal.value.fix


def test_a_name_in_two_modules_is_a_clash():
    server = Server("s", "1")
    server.include(plain)
    with pytest.raises(UsageError, match=r"test_marks.py:\d+: tool 'plain' is already registered at .*test_marks"):
        server.include(module())
