"""Documents of public APIs, trimmed or written from their published shape: all load, and their tools keep the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from tests.effort import calls_of
from tests.openapi.apis import RecordingApi, document, operation, parameter
from tests.openapi.rules import broken
from tests.openapi.written import WRITTEN, ref
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PUBLIC = Path(__file__).parent / "documents" / "public"
TRIMMED = {path.stem: path for path in sorted(PUBLIC.glob("*.json"))}
ALL: dict[str, Any] = {**TRIMMED, **WRITTEN}

SOME_NAMES = {
    "github": {"gists_list", "gists_create", "repos_delete_file", "markdown_render"},
    "figma": {"get_comments", "delete_comment"},
    "petstore": {"add_pet", "find_pets_by_status", "upload_file", "get_user_by_name"},
    "uspto": {"list_data_sets", "perform_search"},
    "galaxy": {"get_all_data", "create_planet"},
    "stripe": {"get_customers", "post_customers_customer", "delete_customers_customer"},
    "kubernetes": {"read_apiextensions_v1_custom_resource_definition"},
    "openai": {"create_chat_completion", "create_file"},
    "slack": {"conversations_list", "chat_post_message", "chat_delete"},
}


def test_there_are_enough_of_them() -> None:
    assert len(ALL) >= 12


@pytest.mark.slow
@for_each_row("name", ALL)
def test_the_tools_of_a_public_api_keep_the_rules(name: str) -> None:
    server = Server.from_openapi(ALL[name], base_url="https://api.example.com")
    assert broken(server) == []
    assert set(SOME_NAMES.get(name, ())) <= {tool.name for tool in server.mcp.tools.registry}


async def test_a_form_and_a_file_are_sent_as_the_api_wants_them() -> None:
    api = RecordingApi()
    async with Server.from_openapi(WRITTEN["stripe"], client=api.client).connect() as client:
        await client.call("post_customers", email="a@b.example", address={"city": "Oslo"}, expand=["x", "y"])
        assert api.last.headers["content-type"] == "application/x-www-form-urlencoded"
        assert api.last.content == b"email=a%40b.example&address[city]=Oslo&expand=x&expand=y"
        await client.call("get_customers", created={"gte": 5}, expand=["data.source"])
        assert api.target == "/v1/customers?created[gte]=5&expand=data.source"
    async with Server.from_openapi(WRITTEN["openai"], client=api.client).connect() as client:
        await client.call("create_file", file={"base64": "AAE=", "filename": "a.bin"}, purpose="batch")
        assert api.last.headers["content-type"].startswith("multipart/form-data; boundary=")
        assert b'name="file"; filename="a.bin"' in api.last.content and b"\x00\x01" in api.last.content
        wrong = await client.call_raw("create_file", {"file": {"base64": "%%"}, "purpose": "x"})
        assert wrong["isError"] and "base64 cannot be decoded" in wrong["content"][0]["text"]
        await client.call("create_chat_completion", model="m", messages=[{"role": "user", "content": "hi"}])
        assert json.loads(api.last.content) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_schema_of_schemas_stays_what_it_is() -> None:
    api = RecordingApi()
    async with Server.from_openapi(WRITTEN["kubernetes"], client=api.client).connect() as client:
        tools = {tool["name"]: tool for tool in await client.tools()}
        schema = tools["replace_apiextensions_v1_custom_resource_definition"]["inputSchema"]
        assert sorted(schema["properties"]) == ["name", "pretty", "spec"] and schema["required"] == ["name", "spec"]
        inner = schema["$defs"]["JSONSchemaProps"]["properties"]
        assert sorted(inner) == ["$ref", "allOf", "exclusiveMinimum", "not", "properties"]
        assert inner["$ref"] == {"type": "string"} and inner["not"] == {"$ref": "#/$defs/JSONSchemaProps"}


def big(count: int) -> dict[str, Any]:
    """An API with many operations, whose schemas all refer to each other."""
    schemas = {
        f"Thing{n}": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                **{f"to_{m}": ref(f"Thing{(n * 7 + m) % count}") for m in range(6)},
            },
        }
        for n in range(count)
    }
    body = {"application/json": {"schema": ref("Thing0")}}
    paths = {
        f"/v1/things{n}/{{id}}": {
            "get": operation(parameter("id", "path"), operationId=f"getThing{n}"),
            "put": operation(
                parameter("id", "path"),
                operationId=f"putThing{n}",
                body={"application/json": {"schema": ref(f"Thing{n}")}},
                responses={"200": {"description": "ok", "content": body}},
            ),
        }
        for n in range(count)
    }
    return document(paths, components={"schemas": schemas})


@pytest.mark.slow
async def test_a_thousand_operations_load_without_making_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("defserve.openapi.schemas.SchemaConverter.convert", None)
        server = Server.from_openapi(big(500))
    tools = [tool for tool in server.mcp.tools.registry if tool.name.startswith("put_thing")]
    assert len(tools) == 500
    for tool in tools[::50]:
        assert len(json.dumps(tool.function.arguments.schema)) < 40_000
    async with server.connect() as client:
        assert len(await client.tools()) < 30


def test_loading_takes_as_long_as_the_document_is_long() -> None:
    few, many = big(50), big(200)
    Server.from_openapi(few)  # whatever is done once
    assert calls_of(lambda: Server.from_openapi(many)) < 8 * calls_of(lambda: Server.from_openapi(few))
