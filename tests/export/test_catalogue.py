from __future__ import annotations

import datetime
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from defserve import Server
from defserve.tooling.listing import catalogue, collect_tool_schemas, server_listing
from tests.export import shop


@pytest.fixture
def made() -> dict[str, Any]:
    found = server_listing(shop.server.composition)
    assert found is not None
    return catalogue(found.info, found.tools)


@pytest.mark.req("GGEN-EXP-1")
def test_a_catalogue_has_every_tool_its_version_and_when_it_was_made(made: dict[str, Any]):
    assert (made["name"], made["version"]) == ("shop", "1.2.0")
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(made["generated_at"])
    assert datetime.timedelta(-1) < age < datetime.timedelta(minutes=1)
    assert [tool["name"] for tool in made["tools"]] == [
        "order", "price", "depth", "stock", "greet", "refuse", "restock",
    ]  # fmt: skip
    assert made["tools"][1]["description"] == "The price of something in the last days."
    assert made["tools"][0]["tags"] == ["orders", "write"]


@pytest.mark.req("GGEN-EXP-2")
def test_every_tool_has_examples_that_its_schema_and_the_tool_itself_take(made: dict[str, Any]):
    for tool in made["tools"]:
        assert tool["examples"], tool["name"]
        function = shop.server.mcp.tools.registry.get(tool["name"]).function
        for example in tool["examples"]:
            Draft202012Validator(tool["inputSchema"]).validate(example)
            function.arguments.validate(example)


@pytest.mark.req("GGEN-EXP-2")
def test_metadata_is_what_the_author_said_and_otherwise_follows_from_the_rest(made: dict[str, Any]):
    order, price, depth = (tool["metadata"] for tool in made["tools"][:3])
    assert order == {"category": "orders", "version": "1.2.0", "deprecated": True, "author": "Ada"}
    assert price == {"category": "prices", "version": "1.2.0", "deprecated": False, "author": "shop"}
    assert depth["category"] == "general"


@pytest.mark.req("GGEN-SCH-2", "GGEN-SCH-3")
def test_constraints_and_what_is_required_reach_the_exported_schema(made: dict[str, Any]):
    assert made["tools"][1]["inputSchema"] == {
        "type": "object",
        "properties": {
            "ticker": {"type": "string", "pattern": "^[A-Z]{1,5}$"},
            "days": {"type": "integer", "minimum": 1, "maximum": 365, "default": 90},
        },
        "required": ["ticker"],
        "additionalProperties": False,
    }


def test_a_build_can_be_made_the_same_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert catalogue({"name": "x"}, [])["generated_at"] == "1970-01-01T00:00:00Z"


def test_the_schemas_of_a_tool_can_be_had_alone():
    found = server_listing(shop.server.composition)
    assert found is not None
    made = collect_tool_schemas(found.tools)
    assert made["order"].keys() == {"input", "output"}
    assert made["greet"].keys() == {"input"}
    for sides in made.values():
        for schema in sides.values():
            Draft202012Validator.check_schema(schema)
            assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.req("GGEN-REG-1")
@pytest.mark.anyio
async def test_the_registry_is_used_in_process_register_get_list_invoke():
    server = Server("registry", "1")
    server.add_tool(shop.greet)
    assert server.mcp.tools.registry.get("greet").name == "greet"
    assert [tool.name for tool in server.mcp.tools.registry] == ["greet"]
    async with server.connect() as client:
        assert await client.call("greet", name="Ada") == "hello Ada"
    server.remove_tool("greet")
    assert server.mcp.tools.registry.get("greet") is None


def test_listing_does_not_start_the_server():
    def lifespan(server: Server) -> Any:
        raise AssertionError("it was started")

    server = Server("idle", "1", lifespan=lifespan)
    server.tool(shop.greet)
    found = server_listing(server.composition)
    assert found is not None
    assert [tool["name"] for tool in found.tools] == ["greet"]


def test_a_list_that_the_author_has_wrapped_needs_the_loop():
    server = Server("wrapped", "1")

    @server.around("tools/list")
    async def around(call: Any, params: Any, following: Any) -> Any:
        return await following(call, params)

    assert server_listing(server.composition) is None


def test_pages_are_read_to_the_end():
    from defserve import Limits

    server = Server("long", "1", limits=Limits(page=2))
    for number in range(5):
        server.add_tool(shop.greet, name=f"tool_{number}")
    found = server_listing(server.composition)
    assert found is not None
    assert len(found.tools) == 5
