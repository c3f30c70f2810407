"""A request stays where it belongs, whatever a caller, a document or the API says."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server, UsageError
from defserve.errors import BadArguments, ToolError
from defserve.openapi.documents import DocumentReferences
from defserve.openapi.operations import list_operations
from defserve.openapi.request_building import RequestPlan, build_request
from defserve.openapi.schemas import SchemaConverter
from tests.openapi.apis import Json, RecordingApi, document, operation, parameter
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BASE = "https://api.example.com/v1"

ESCAPES = [
    "..",
    ".",
    "../admin",
    "a/b",
    "/etc",
    "a\\b",
    "..\\admin",
    "%2e%2e",
    "%2E%2E%2fadmin",
    "%252e%252e%252fadmin",
    "a%2fb",
    "a%5cb",
    "..;/admin",
    "..;x=1",
    " .. ",
    "",
    "\n",
    "a\x00b",
    "%00",
    "%0d%0aHost: evil",
    "//evil.example/",
    "@evil.example/",
]


@for_each_row("value", ESCAPES)
async def test_a_value_that_could_leave_its_part_of_the_path_is_refused(value: str) -> None:
    api = RecordingApi()
    async with api.server(
        {"/users/{id}": {"get": operation(parameter("id", "path"), operationId="get")}}
    ).connect() as c:
        result = await c.call_raw("get", {"id": value})
        assert result["isError"] and api.asked == [], result


@for_each_row("value", ["..", "../x", "a//b", "/a", "a\\b", "a/%2e%2e/b", "a/./b"])
async def test_a_path_with_slashes_stays_below_its_place(value: str) -> None:
    api = RecordingApi()
    paths = {"/files/{path}": {"get": operation(parameter("path", "path"), operationId="get")}}
    async with api.server(paths, slashes=["path"]).connect() as client:
        assert (await client.call_raw("get", {"path": value}))["isError"] and api.asked == []
        await client.call("get", path="docs/read me.md")
        assert api.target == "/v1/files/docs%2Fread%20me.md"


async def test_two_values_in_one_part_of_the_path_are_no_dots() -> None:
    api = RecordingApi()
    server = api.server({"/x/{a}{b}/y": {"get": operation(operationId="get")}})
    async with server.connect() as client:
        assert (await client.call_raw("get", {"a": ".", "b": "."}))["isError"] and api.asked == []
        await client.call("get", a="1", b="2")
        assert api.target == "/v1/x/12/y"


@for_each_row(
    "key",
    ["limit", "LIMIT", " limit", "limit[]", "limit.x", "limit\0x", "api_key", "api key", "api.key", "action"],
)
def test_the_keys_of_an_object_name_no_other_parameter(key: str) -> None:
    for place in ("query", "cookie"):
        spread = {**parameter("more", place), "schema": {"type": "object"}, "style": "form", "explode": True}
        paths = {"/users?action=list": {"get": operation(parameter("limit", place), spread)}}
        references = DocumentReferences(document(paths))
        (one,) = list_operations(references)
        plan = RequestPlan(one, SchemaConverter(references), ((place, "api_key"),))
        build_request(one, plan, BASE, {"more": {"more": 1, "other": 2}}, ())
        if (place, key) != ("cookie", "action"):
            with pytest.raises(BadArguments, match="another parameter has it"):
                build_request(one, plan, BASE, {"more": {key: "x"}}, ())


def test_a_refused_key_is_repeated_only_in_part() -> None:
    spread = {**parameter("more"), "schema": {"type": "object"}}
    references = DocumentReferences(document({"/a": {"get": operation(parameter("limit"), spread)}}))
    (one,) = list_operations(references)
    plan = RequestPlan(one, SchemaConverter(references), ())
    with pytest.raises(BadArguments) as refused:
        build_request(one, plan, BASE, {"more": {"limit[" + "x" * 100_000: 1}}, ())
    assert len(str(refused.value)) < 2_000


async def test_a_variable_in_the_query_of_a_path_is_filled_in() -> None:
    api = RecordingApi()
    async with api.server({"/a/{id}?q={q}&fixed=1": {"get": operation(operationId="a")}}).connect() as client:
        await client.call("a", id="x?y", q="b&fixed=2?#")
        assert api.target == "/v1/a/x%3Fy?q=b%26fixed%3D2%3F%23&fixed=1"


async def test_a_media_type_that_is_no_header_is_refused() -> None:
    api = RecordingApi()
    paths = {"/a": {"post": operation(operationId="a", body={"image/*": {}})}}
    async with api.server(paths).connect() as client:
        result = await client.call_raw("a", {"body": {"text": "x", "content_type": "image/é"}})
        assert "content_type must be ASCII" in result["content"][0]["text"] and api.asked == []


@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_no_text_changes_anything_but_its_own_part(name: str, query: str) -> None:
    paths = {"/users/{id}": {"get": operation(parameter("id", "path"), parameter("q"))}}
    references = DocumentReferences(document(paths))
    (one,) = list_operations(references)
    try:
        request = build_request(
            one, RequestPlan(one, SchemaConverter(references), ()), BASE, {"id": name, "q": query}, ()
        )
    except (BadArguments, ToolError):
        return
    parts = urlsplit(request.address)
    assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "api.example.com", "")
    assert parts.path.split("/")[:3] == ["", "v1", "users"] and len(parts.path.split("/")) == 4
    assert unquote(parts.path.split("/")[3]) == name.encode("utf-8", "replace").decode()
    assert (
        len(parts.query.split("&")) == 1
        and unquote(parts.query.partition("=")[2]) == query.encode("utf-8", "replace").decode()
    )


async def test_headers_that_say_where_a_request_goes_are_no_arguments() -> None:
    names = [
        "Host",
        "X-Forwarded-Host",
        "Authorization",
        "Cookie",
        "X-HTTP-Method-Override",
        "Content-Length",
        "X-Fine",
    ]
    api = RecordingApi()
    paths = {"/a": {"get": operation(*(parameter(name, "header") for name in names), operationId="a")}}
    async with api.server(paths).connect() as client:
        assert list((await client.tools())[0]["inputSchema"]["properties"]) == ["X-Fine"]
        assert (await client.call_raw("a", {"X-Fine": "a\r\nHost: evil.example"}))["isError"]
        assert (await client.call_raw("a", {"Host": "evil.example"}))["isError"]
        assert api.asked == []


def test_an_operation_at_another_origin_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    paths = {
        "/a": {"get": operation(operationId="a")},
        "/b": {"get": operation(operationId="b", servers=[{"url": "https://evil.example"}])},
        "/c": {"get": operation(operationId="c", servers=[{"url": "https://api.example.com/v2"}])},
        "/d": {"get": operation(operationId="d", servers=[{"url": "https://API.example.com:443/v2"}])},
        "/e": {"get": operation(operationId="e", servers=[{"url": "https://api.example.com:8443/v2"}])},
        "/f": {"get": operation(operationId="f", servers=[{"url": "http://api.example.com:443/v2"}])},
    }
    server = RecordingApi().server(paths)
    assert [tool.name for tool in server.mcp.tools.registry] == ["a", "c", "d"]
    assert "GET /b is left out: it is at another origin" in caplog.text


def test_the_address_of_the_api_is_whole_and_plain() -> None:
    for url in (
        "ftp://a.example",
        "https://u:p@a.example",
        "https://:p@a.example",
        "https://a.example/?x=1",
        "a.example",
        "https://a.example/#f",
        "https://[a.example",
        "https://a.example:99999",
        "https://a.example:x",
    ):
        with pytest.raises(UsageError, match="not the address of an API"):
            Server.from_openapi(document({"/a": {"get": operation()}}), base_url=url)
        with pytest.raises(UsageError, match="address"):
            Server.from_openapi({**document({"/a": {"get": operation()}}), "servers": [{"url": url}]})
    with pytest.raises(UsageError, match="not a whole address"):
        Server.from_openapi({**document({"/a": {"get": operation()}}), "servers": [{"url": "/v1"}]})


@for_each_row(
    "variables url",
    [({}, "https://eu.example.com/v1"), ({"region": "us"}, "https://us.example.com/v1"), ({"region": "mars"}, None)],
)
async def test_variables_of_the_server_are_filled_in(variables: Json, url: str | None) -> None:
    known = {"region": {"default": "eu", "enum": ["eu", "us"]}}
    doc = {**document({"/a": {"get": operation(operationId="a")}})}
    doc["servers"] = [{"url": "https://{region}.example.com/v1", "variables": known}]
    api = RecordingApi()
    if url is None:
        with pytest.raises(UsageError, match="cannot be 'mars'"):
            Server.from_openapi(doc, client=api.client, variables=variables)
        return
    async with Server.from_openapi(doc, client=api.client, variables=variables).connect() as client:
        await client.call("a")
        assert str(api.last.url) == f"{url}/a"


# ------------------------------------------------------------------------------------------------- on a real socket


@asynccontextmanager
async def listening(answers: dict[str, str], text: str = '{"here": true}') -> AsyncIterator[tuple[int, list[str]]]:
    """An HTTP server on loopback: path → the head of its answer. Gives its port, and the request lines it got."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head)
        path = head.split(" ")[1]
        status = answers.get(path, "200 OK")
        body = text.encode()
        writer.write(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n".encode())
        writer.write(b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


def one(path: str) -> Json:
    return {path: {"get": operation(operationId="a")}}


async def test_a_private_address_is_reached_only_if_the_author_wrote_it() -> None:
    async with listening({}) as (port, asked):
        base = f"http://127.0.0.1:{port}"
        async with Server.from_openapi(document(one("/a")), base_url=base).connect() as client:
            assert await client.call("a") == {"here": True}
        doc = {**document(one("/a")), "servers": [{"url": f"{base}/v1/"}]}
        with pytest.raises(UsageError, match="on a private network: 127.0.0.1") as raised:
            Server.from_openapi(doc)
        assert raised.value.fix == f'if you trust it, write it yourself: base_url="{base}/v1"'
        assert len(asked) == 1


async def test_a_document_from_a_private_address_needs_a_base_url_too() -> None:
    text = json.dumps({**document(one("/a")), "servers": [{"url": "/v2"}]})
    async with listening({}, text) as (port, asked):
        base = f"http://127.0.0.1:{port}"
        with pytest.raises(UsageError, match="on a private network") as raised:
            await asyncio.to_thread(Server.from_openapi, f"{base}/openapi.json")
        assert f'base_url="{base}/v2"' in raised.value.fix
        server = await asyncio.to_thread(Server.from_openapi, f"{base}/openapi.json", base_url=f"{base}/v2")
        async with server.connect() as client:
            assert not (await client.call_raw("a")).get("isError")
        assert len(asked) == 3


@pytest.mark.parametrize("host", ["localhost:8000", "10.0.0.1", "[::1]", "api.internal", "intranet"])
def test_a_document_that_names_a_private_host_is_refused_when_the_server_is_made(host: str) -> None:
    doc = {**document(one("/a")), "servers": [{"url": f"http://{host}/v1"}]}
    with pytest.raises(UsageError, match="on a private network"):
        Server.from_openapi(doc)
    assert Server.from_openapi(doc, client=httpx2.AsyncClient())


async def test_a_public_name_that_leads_to_a_private_address_is_refused_by_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    doc = {**document(one("/a")), "servers": [{"url": "http://api.example.com"}]}
    async with Server.from_openapi(doc, retries=0).connect() as client:
        result = await client.call_raw("a")
        assert result["isError"] and "Blocked" in str(result)


async def test_a_redirect_to_another_place_is_not_followed() -> None:
    async with listening({}) as (other, elsewhere):
        answers = {
            "/port": f"302 Found\r\nlocation: http://127.0.0.1:{other}/x",
            "/name": f"302 Found\r\nlocation: http://localhost:{other}/x",
            "/meta": "302 Found\r\nlocation: http://169.254.169.254/latest",
            "/file": "302 Found\r\nlocation: file:///etc/passwd",
        }
        async with listening(answers) as (port, asked):
            for path in answers:
                server = Server.from_openapi(document(one(path)), base_url=f"http://127.0.0.1:{port}", retries=0)
                async with server.connect() as client:
                    assert (await client.call_raw("a"))["isError"]
            assert len(asked) == len(answers) and elsewhere == []


async def test_a_document_is_read_from_an_address() -> None:
    async with listening({}) as (port, asked):
        with pytest.raises(UsageError, match="not an OpenAPI 3 document"):
            await asyncio.to_thread(Server.from_openapi, f"http://127.0.0.1:{port}/openapi.json")
        with pytest.raises(UsageError, match="not an OpenAPI 3 document"):
            Server.from_openapi(await _text())  # a text, not an address
        assert len(asked) == 1
        assert "Host: " in asked[0] or "host: " in asked[0]


async def _text() -> Any:
    return '{"swagger": "2.0"}'
