from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field

from defserve import Context, Server
from defserve.errors import NoBackChannel, UsageError
from defserve.protocols.mcp.asking.client_features import ElicitationForm
from defserve.protocols.mcp.lifecycle import Dialect
from tests.raw import Raw, raw, text_of
from tests.rows import for_each_row

LABELLED = {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}
MODES = {"form": {}, "url": {}}

server = Server("elicitation", secret="0123456789abcdef")


class Colour(Enum):
    """What it looks like."""

    RED = "red"
    GREEN = "green"


class Size(IntEnum):
    SMALL = 1


class Order(BaseModel):
    item: str = Field(min_length=2, max_length=9, description="What you want", title="Item")
    count: int = Field(ge=1, le=5)
    price: float | None = None
    note: str | None
    colour: Colour = Colour.RED
    pace: Literal["slow", "fast"] = "slow"
    only: Literal["one"]
    extras: list[Literal["milk", "sugar"]] = Field(default=["milk"], max_length=2)
    paints: list[Colour] = []
    day: date = Field(default=date(2026, 1, 2))
    mail: str = Field("a@b.c", json_schema_extra={"format": "email"})
    code: str = Field("x", json_schema_extra={"format": "hostname"}, pattern="x+")
    gift: bool = True


@server.tool
async def ask(ctx: Context) -> str:
    return str(await ctx.ask("Order?", Order))


@server.tool
async def pick(ctx: Context) -> str:
    return await ctx.choose("Size?", {"s": "Small", "l": "Large"})


@server.tool
async def simple(ctx: Context) -> str:
    class Simple(BaseModel):
        count: int = 3
        gift: bool = True
        pace: Literal["slow", "fast"] = "slow"

    return str(await ctx.ask("Order?", Simple))


@server.tool
async def visit(ctx: Context) -> str:
    await ctx.ask_url("Go there", "https://example.com/")
    return "going"


@server.tool
async def broken(ctx: Context) -> str:
    class Nested(BaseModel):
        order: Order

    return str(await ctx.ask("Order?", Nested))


@server.tool
async def can(ctx: Context) -> list[str]:
    return [feature for feature in ("ask", "ask_url", "confirm", "choose") if ctx.can(feature)]


def dialect(version: str) -> Dialect:
    return server.mcp.lifecycle.dialects[version]


# -- forms from types -----------------------------------------------------------------------------------


@pytest.mark.req("MCP-5.6")
@for_each_row("version", ["2025-11-25", "2026-07-28"])
def test_a_model_becomes_a_flat_form(version: str):
    assert ElicitationForm.from_type(Order).build_schema(dialect(version)) == {
        "type": "object",
        "properties": {
            "item": {
                "type": "string", "title": "Item", "description": "What you want", "minLength": 2, "maxLength": 9,
            },
            "count": {"type": "integer", "minimum": 1, "maximum": 5},
            "price": {"type": "number"},
            "note": {"type": "string"},
            "colour": {
                "type": "string", "enum": ["red", "green"], "default": "red", "description": "What it looks like.",
            },
            "pace": {"type": "string", "enum": ["slow", "fast"], "default": "slow"},
            "only": {"type": "string", "enum": ["one"]},
            "extras": {
                "type": "array", "items": {"type": "string", "enum": ["milk", "sugar"]},
                "default": ["milk"], "maxItems": 2,
            },
            "paints": {
                "type": "array", "items": {"type": "string", "enum": ["red", "green"]}, "default": [],
            },
            "day": {"type": "string", "format": "date", "default": "2026-01-02"},
            "mail": {"type": "string", "format": "email", "default": "a@b.c"},
            "code": {"type": "string", "default": "x"},
            "gift": {"type": "boolean", "default": True},
        },
        "required": ["item", "count", "only"],
    }  # fmt: skip


def test_the_answer_becomes_the_model_whatever_was_left_blank_or_added():
    content = {"item": "tea", "count": "2", "only": "one", "price": None, "paints": ["green"], "stranger": 1}
    order = ElicitationForm.from_type(Order).parse_answer(content)
    assert (order.item, order.count, order.price, order.note, order.colour) == ("tea", 2, None, None, Colour.RED)
    assert (order.paints, order.day) == ([Colour.GREEN], date(2026, 1, 2))


def test_strict_models_that_forbid_extras_still_read_json():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid")
        day: date
        colour: Colour

    found = ElicitationForm.from_type(Strict).parse_answer({"day": "2026-01-02", "colour": "green", "stranger": 1})
    assert (found.day, found.colour) == (date(2026, 1, 2), Colour.GREEN)


@dataclass
class Point:
    x: int
    y: int = 2


class Typed(TypedDict):
    x: int


@for_each_row(
    ("kind", "content", "value"),
    [
        (int, {"value": 3}, 3),
        (str | None, {}, None),
        (bool, {"value": False}, False),
        (Colour, {"value": "green"}, Colour.GREEN),
        (Literal["a", "b"], {"value": "b"}, "b"),
        (list[Literal["a", "b"]], {"value": ["b"]}, ["b"]),
        (Annotated[int, Field(ge=1)], {"value": 1}, 1),
        (date, {"value": "2026-01-02"}, date(2026, 1, 2)),
        (Point, {"x": 1}, Point(1, 2)),
        (Typed, {"x": 1}, {"x": 1}),
    ],
    ids=str,
)
def test_other_types_are_asked_for_too(kind: Any, content: dict[str, Any], value: Any):
    form = ElicitationForm.from_type(kind)
    assert set(form.required) <= set(content) <= set(form.properties)
    assert form.parse_answer(content) == value


@for_each_row("kind", [dict[str, int], list[str], list[int], int | str, Size, Literal[1, 2], bytes | int])
def test_what_no_form_can_hold_is_the_authors_mistake(kind: Any):
    with pytest.raises(UsageError, match="cannot be asked of a person: a form holds text, numbers"):
        ElicitationForm.from_type(kind)


def test_the_mistake_names_the_field():
    class Outer(BaseModel):
        inner: Order

    with pytest.raises(UsageError, match=r"Outer\.inner cannot be asked of a person"):
        ElicitationForm.from_type(Outer)


# -- forms in older versions ----------------------------------------------------------------------------


async def question(version: str, tool: str, offer: Mapping[str, Any] = MODES) -> dict[str, Any]:
    """The params of what the server asks first."""
    async with raw(server, version, {"elicitation": dict(offer)}) as peer:
        id = await peer.begin("tools/call", {"name": tool, "arguments": {}})
        asked = await _first(peer, id)
        return asked["params"]


async def _first(peer: Raw, id: int) -> dict[str, Any]:
    import json

    message = json.loads(await peer.link.receive())
    if "method" in message:
        return message
    (request,) = message["result"]["inputRequests"].values()
    return request


@pytest.mark.anyio
async def test_2025_06_18_has_defaults_for_booleans_only():
    params = await question("2025-06-18", "simple", {})
    assert params["requestedSchema"]["properties"] == {
        "count": {"type": "integer"},
        "gift": {"type": "boolean", "default": True},
        "pace": {"type": "string", "enum": ["slow", "fast"]},
    }
    assert "mode" not in params


@pytest.mark.anyio
@for_each_row(
    ("version", "field"),
    [
        ("2025-06-18", {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]}),
        ("2025-11-25", LABELLED),
        ("2026-07-28", LABELLED),
    ],
)
async def test_labelled_choices_are_written_as_the_version_has_them(version: str, field: dict[str, Any]):
    params = await question(version, "pick", {})
    assert params["requestedSchema"]["properties"] == {"value": field}


def test_2025_06_18_cannot_ask_for_several_choices():
    with pytest.raises(NoBackChannel, match=r"cannot be asked for several choices \(extras\)"):
        ElicitationForm.from_type(Order).build_schema(dialect("2025-06-18"))


# -- modes and capabilities -----------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.req("MCP-5.6u")
async def test_a_page_has_an_id_with_a_handshake_and_none_without():
    first, second = await question("2025-11-25", "visit"), await question("2025-11-25", "visit")
    assert first.keys() == {"mode", "message", "url", "elicitationId"}
    assert first["elicitationId"] != second["elicitationId"]
    assert await question("2026-07-28", "visit") == {
        "mode": "url", "message": "Go there", "url": "https://example.com/",
    }  # fmt: skip


@pytest.mark.anyio
@pytest.mark.req("MCP-5.6", "MCP-5.6u")
@for_each_row(
    ("version", "offer", "able"),
    [
        ("2025-03-26", {"elicitation": {}}, []),
        ("2025-06-18", {"elicitation": {}}, ["ask", "confirm", "choose"]),
        ("2025-06-18", {"elicitation": MODES}, ["ask", "confirm", "choose"]),
        ("2025-11-25", {}, []),
        ("2025-11-25", {"elicitation": {}}, ["ask", "confirm", "choose"]),
        ("2025-11-25", {"elicitation": {"form": {}}}, ["ask", "confirm", "choose"]),
        ("2025-11-25", {"elicitation": {"url": {}}}, ["ask_url"]),
        ("2025-11-25", {"elicitation": None}, []),
        ("2026-07-28", {}, []),
        ("2026-07-28", {"elicitation": {}}, ["ask", "confirm", "choose"]),
        ("2026-07-28", {"elicitation": {"url": {}}}, ["ask_url"]),
        ("2026-07-28", {"elicitation": MODES}, ["ask", "ask_url", "confirm", "choose"]),
    ],
    ids=str,
)
async def test_only_the_modes_a_client_offers_are_used(version: str, offer: dict[str, Any], able: list[str]):
    import json

    async with raw(server, version, offer) as peer:
        assert json.loads(text_of(await peer.call("can"))) == able
        for feature, tool, needs in (("ask", "simple", "form"), ("ask_url", "visit", "url")):
            if feature in able:
                continue
            reply = await peer.ask("tools/call", {"name": tool, "arguments": {}})
            assert peer.heard == []
            if version == "2026-07-28":
                assert reply["error"]["code"] == -32021
                required = reply["error"]["data"]["requiredCapabilities"]["elicitation"]
                assert required == ({} if needs == "form" and not offer.get("elicitation") else {needs: {}})
            else:
                assert reply["result"]["isError"]
                assert text_of(reply["result"]).startswith("this needs a client that offers elicitation")


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_form_that_cannot_be_is_named_in_the_log_and_masked_to_the_peer(
    version: str, caplog: pytest.LogCaptureFixture
):
    async with raw(server, version, {"elicitation": {}}) as peer:
        said = text_of(await peer.call("broken"))
    assert said.startswith("internal error (id ") and "Nested" not in said
    assert "Nested.order cannot be asked of a person" in caplog.text


@pytest.mark.anyio
async def test_a_reply_of_the_wrong_shape_is_an_error_the_model_reads():
    async with raw(server, "2025-11-25", {"elicitation": {}}) as peer:
        for wrong in (7, None, {"action": "maybe"}, {"action": "accept", "content": [1]}):
            id = await peer.begin("tools/call", {"name": "simple", "arguments": {}})
            request = await _first(peer, id)
            await peer.send({"jsonrpc": "2.0", "id": request["id"], "result": wrong})
            result = (await peer.reply_to(id))["result"]
            assert result["isError"]
            assert text_of(result) == "the client's answer to elicitation/create has the wrong shape"


def test_an_answer_is_checked_against_a_schema_written_by_hand():
    form = ElicitationForm.from_type({"properties": {"age": {"type": "integer", "minimum": 18}}, "required": ["age"]})
    assert form.parse_answer({"age": 20}) == {"age": 20}
    with pytest.raises(ValueError, match="age: must be at least 18, got 7"):
        form.parse_answer({"age": 7})
    with pytest.raises(ValueError, match="age: missing"):
        form.parse_answer({})


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_person_is_sent_to_web_pages_only(version: str, caplog: pytest.LogCaptureFixture):
    sender = Server("sender")

    @sender.tool
    async def send(ctx: Context) -> None:
        await ctx.ask_url("Look", "javascript:alert(1)")

    async with raw(sender, version, {"elicitation": {"url": {}}}) as peer:
        assert text_of(await peer.call("send")).startswith("internal error (id ")
    assert "ask_url cannot send a person to 'javascript:alert(1)'" in caplog.text


class Noted(BaseModel):
    note: Annotated[str, Field(pattern="[ab]*a[ab]{900}c")]


def test_an_answer_that_is_too_long_for_a_pattern_is_refused_unmatched():
    with pytest.raises(ValueError, match="at most"):
        ElicitationForm.from_type(Noted).parse_answer({"note": "ab" * 50_000})
