from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from defserve import Context, Server, UsageError, resource
from tests.raw import ERAS, Json, raw, text_of
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


def hello() -> str:
    return "hello"


# -- registration errors


class Opaque:
    """Nothing pydantic knows how to describe."""


class Holder:
    def method(self, a: int) -> int:
        return a


def positional(a: int, /, b: int) -> int: ...  # type: ignore[empty-body]
def starred(*numbers: int) -> int: ...  # type: ignore[empty-body]
def double_starred(**numbers: int) -> int: ...  # type: ignore[empty-body]
def untyped(a, b: int) -> int: ...  # type: ignore[no-untyped-def]
def told(ctx) -> int: ...  # type: ignore[no-untyped-def]
def opaque(a: Opaque) -> int: ...  # type: ignore[empty-body]
def unserialisable() -> Opaque: ...  # type: ignore[empty-body]
def bare_bytes() -> bytes: ...  # type: ignore[empty-body]
def missing(a: NoSuchType) -> int: ...  # type: ignore[name-defined]  # noqa: F821
def two(name: str, other: str) -> str: ...  # type: ignore[empty-body]
async def quick() -> int: ...  # type: ignore[empty-body]


def tool(function: Any, **options: Any) -> Callable[[Server], None]:
    return lambda server: server.add_tool(function, **options)


# What is declared: the line named (of this function), and what the message says besides.
ERRORS: dict[str, tuple[Callable[[Server], Any], Any, list[str]]] = {
    "positional-only": (
        tool(positional),
        positional,
        ["positional: parameter 'a' is positional-only", "remove the `/`"],
    ),
    "*args": (tool(starred), starred, ["starred: parameter '*numbers'", "name each parameter"]),
    "**kwargs": (
        tool(double_starred),
        double_starred,
        ["double_starred: parameter '**numbers'", "name each parameter"],
    ),
    "untyped": (tool(untyped), untyped, ["untyped: parameter 'a' has no type", "annotate it"]),
    "an unknown type": (tool(opaque), opaque, ["opaque: parameter 'a'", "Opaque", "use scalars"]),
    "an undefined type": (tool(missing), missing, ["missing: an annotation names 'NoSuchType'", "import or define"]),
    "an unserialisable return type": (tool(unserialisable), unserialisable, ["unserialisable: return", "Opaque"]),
    "bytes": (tool(bare_bytes), bare_bytes, ["bare_bytes: return", "File("]),
    "an unbound method": (tool(Holder.method), Holder.method, ["method: it is a method that is not bound", "'self'"]),
    "a lambda": (tool(lambda: 1), None, ["a lambda has no name", "write a def"]),
    "a clash": (
        lambda server: (server.add_tool(hello), server.add_tool(hello)),
        hello,
        ["tool 'hello' is already registered at", "replace=True"],
    ),
    "a clash of prompts": (
        lambda server: (server.add_prompt(hello), server.add_prompt(hello)),
        hello,
        ["prompt 'hello' is already registered at"],
    ),
    "a clash of resources": (
        lambda server: (server.add_resource(hello, "x://a"), server.add_resource(hello, "x://a")),
        hello,
        ["resource 'x://a' is already registered at"],
    ),
    "an empty name": (tool(hello, name=""), hello, ["tool name ''", "1 to 128"]),
    "a name with a space": (tool(hello, name="a b"), hello, ["tool name 'a b'", 'name="…"']),
    "a name with an umlaut": (tool(hello, name="größe"), hello, ["tool name 'größe'"]),
    "a name too long": (tool(hello, name="x" * 129), hello, ["1 to 128 characters"]),
    "a prompt's name": (lambda server: server.add_prompt(hello, name="a/b"), hello, ["prompt name 'a/b'"]),
    "a variable that is no parameter": (
        lambda server: server.add_resource(hello, "x://{name}"),
        hello,
        ["'x://{name}' does not match function 'hello'", "the function has no parameter 'name'", "same names"],
    ),
    "a parameter that is no variable": (
        lambda server: server.add_resource(two, "x://{name}"),
        two,
        ["the URI has no variable 'other'", "same names"],
    ),
    "a broken template": (lambda server: server.add_resource(two, "x://{name"), two, ["x://{name", "RFC 6570"]),
    "no URI": (lambda server: server.add_resource(hello, "hello"), hello, ["'hello' is not a URI", "scheme"]),
    "a forgotten URI": (lambda server: server.resource(hello), hello, ["needs a URI", "server.resource("]),
    "an option without its name": (lambda server: server.tool("add"), None, ["options have names", 'name="add"']),
    "inline and async": (tool(quick, inline=True), quick, ["'quick' is async and inline=True", "drop inline=True"]),
    "a misspelt option": (tool(hello, nam="x"), hello, ["hello: tool has no option 'nam'", "did you mean 'name'?"]),
    "an option that is nothing like one": (tool(hello, zzz=1), hello, ["no option 'zzz'", "use some of annotations,"]),
    "a misspelt option of a prompt": (
        lambda server: server.prompt(titel="x")(hello),
        hello,
        ["hello: prompt has no option 'titel'", "did you mean 'title'?"],
    ),
    "a misspelt option of the server": (
        lambda _: Server("s", intructions="x"),  # type: ignore[call-arg]
        None,
        ["tests/server/test_declaring.py:", "Server has no option 'intructions'", "did you mean 'instructions'?"],
    ),
    "a context without a type": (tool(told), told, ["told: parameter 'ctx' has no type", "`ctx: Context`"]),
    "no time at all": (tool(hello, timeout=0), hello, ["timeout must be positive"]),
    "a time in words": (tool(hello, timeout="5"), hello, ["timeout must be positive seconds, not '5'"]),
    "a completion without value": (
        lambda server: server.completion("a", "b")(two),
        two,
        ["completion function 'two' does not take `value`", "(value: str)"],
    ),
    "an explicit schema that is none": (
        tool(two, schema={"type": "array"}),
        two,
        ["two: input schema", '"type": "object"'],
    ),
    "an explicit schema with a remote reference": (
        tool(hello, schema={"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}),
        hello,
        ["$ref 'https://example.com/a.json' is not in this schema", "$defs"],
    ),
    "an explicit schema with more than the function": (
        tool(hello, schema={"type": "object", "properties": {"a": {}}}),
        hello,
        ["hello: the schema has 'a', but the function does not", "**rest"],
    ),
    "an explicit schema with less than the function": (
        tool(two, schema={"type": "object", "properties": {"name": {}}, "required": ["name"]}),
        two,
        ["two: parameter 'other' has no default, but the schema does not require it", '"required"'],
    ),
}


@pytest.mark.req("MCP-5.1n")
@for_each_row("case", ERRORS)
def test_a_wrong_declaration_says_where_what_why_and_how_to_fix_it(case: str):
    declare, function, said = ERRORS[case]
    with pytest.raises(UsageError) as refusal:
        declare(Server("s", "1"))
    message = str(refusal.value)
    if function is not None:
        assert message.startswith(f"tests/server/test_declaring.py:{function.__code__.co_firstlineno}: "), message
    assert "\n  fix: " in message
    for words in said:
        assert words in message, message


def test_a_class_that_has_no_json_form_is_named_with_its_line():
    with pytest.raises(
        UsageError, match=r"^tests/server/test_declaring.py:\d+: Opaque: return: Opaque has no JSON form"
    ):
        Server("s", "1").tool(Opaque)


def test_a_marked_resource_without_a_uri_is_refused_at_its_mark():
    with pytest.raises(UsageError, match="@resource needs a URI"):
        resource(hello)  # type: ignore[arg-type]


async def broken_promise() -> str:
    return hello  # type: ignore[return-value]


async def test_the_log_says_which_function_broke_its_promise(caplog: pytest.LogCaptureFixture):
    server = Server("s", "1")
    server.add_tool(broken_promise)
    async with raw(server) as peer:
        await peer.call("broken_promise")
    line = broken_promise.__code__.co_firstlineno
    assert f"broken_promise is at tests/server/test_declaring.py:{line}" in caplog.text


@for_each_row("name", ["a", "A", "snake_case", "kebab-case", "dotted.name", "0", "x" * 128])
async def test_every_allowed_name_is_served_as_it_is(name: str):
    server = Server("s", "1")
    server.add_tool(hello, name=name)
    async with raw(server) as peer:
        assert text_of(await peer.call(name)) == "hello"


async def test_names_differ_by_case():
    server = Server("s", "1")
    server.add_tool(hello, name="Same")
    server.add_tool(lambda_free, name="same")
    async with raw(server) as peer:
        assert [text_of(await peer.call(name)) for name in ("Same", "same")] == ["hello", "free"]


def lambda_free() -> str:
    return "free"


# -- explicit schemas

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0}, "label": {"$ref": "#/$defs/label"}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"label": {"type": "string", "maxLength": 3}},
}
OPEN = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def explicit() -> Server:
    server = Server("s", "1")

    @server.tool(schema=POINT)
    def named(x, label="none"):  # type: ignore[no-untyped-def]
        return f"{x} {label}"

    @server.tool(schema=POINT)
    def rest(ctx: Context, **point: Any) -> str:
        return f"{sorted(point.items())} {ctx.principal}"

    @server.tool(schema=OPEN)
    async def closed(x) -> str:  # type: ignore[no-untyped-def]
        return str(x)

    @server.tool(schema=OPEN)
    async def open(x, **more) -> str:  # type: ignore[no-untyped-def]
        return f"{x} {more}"

    return server


EXPLICIT: list[tuple[str, Json, str, bool]] = [
    ("named", {"x": 1}, "1 none", False),
    ("named", {"x": 1, "label": "abc"}, "1 abc", False),
    ("named", {"x": -1}, "x: must be at least 0, got -1", True),
    ("named", {"x": "1"}, 'x: expected integer, got "1"', True),
    ("named", {}, "x: missing", True),
    ("named", {"x": 1, "label": "abcd"}, 'label: must have at most 3 characters, got "abcd"', True),
    ("named", {"x": 1, "y": 2}, 'unknown argument "y"; known: x, label', True),
    ("rest", {"x": 1, "label": "a"}, "[('label', 'a'), ('x', 1)] local", False),
    ("rest", {"x": 1, "ctx": "forged"}, 'unknown argument "ctx"', True),
    ("closed", {"x": 1}, "1", False),
    ("closed", {"x": 1, "y": 2}, 'unknown argument "y"', True),
    ("open", {"x": 1, "y": 2}, "1 {'y': 2}", False),
]


@eras
@for_each_row(("tool", "arguments", "text", "failed"), EXPLICIT)
async def test_an_explicit_schema_is_what_arguments_are_held_to(
    version: str, tool: str, arguments: Json, text: str, failed: bool
):
    async with raw(explicit(), version) as peer:
        result = await peer.call(tool, arguments)
        assert result.get("isError", False) is failed, result
        assert text_of(result).startswith(text)


async def test_an_explicit_schema_is_listed_word_for_word():
    async with raw(explicit()) as peer:
        tools = {tool["name"]: tool for tool in (await peer.ask("tools/list"))["result"]["tools"]}
        assert tools["named"]["inputSchema"] == tools["rest"]["inputSchema"] == POINT
