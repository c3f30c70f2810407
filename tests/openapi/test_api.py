"""Documents served as tools: requests as the document says, results, errors, credentials, pages."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import httpx2
import pytest

from defserve import Security, Server, UsageError
from defserve.auth import Principal
from defserve.extending import Argument, Transform
from defserve.openapi import ApiKey, Basic, Bearer, PerCaller, pages
from tests.asgi import Peer, living, with_tokens
from tests.openapi.apis import Json, RecordingApi, document, operation, parameter
from tests.raw import STATELESS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

PETS: Json = {
    "/pets": {
        "get": operation(
            parameter("limit", kind="integer"), operationId="listPets", tags=["pets"], summary="List pets"
        ),
        "post": operation(
            operationId="createPet",
            tags=["pets"],
            body={
                "application/json": {
                    "schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
                }
            },
        ),
    },
    "/pets/{id}": {
        "get": operation(parameter("id", "path", "integer"), operationId="getPet", tags=["pets"]),
        "delete": operation(parameter("id", "path", "integer"), operationId="deletePet", tags=["admin"]),
    },
}


def test_without_the_http_client_a_server_says_so_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(UsageError, match="need httpx2, which is not installed") as caught:
        Server.from_openapi(document(PETS), base_url="https://api.example.com")
    assert caught.value.fix == 'pip install "defserve[client]"'


async def test_operations_become_tools_that_send_requests() -> None:
    api = RecordingApi(lambda request: httpx2.Response(200, json={"id": 1, "name": "Rex"}))
    async with api.server(PETS).connect() as client:
        assert [tool["name"] for tool in await client.tools()] == ["list_pets", "create_pet", "get_pet", "delete_pet"]
        assert await client.call("create_pet", name="Rex") == {"id": 1, "name": "Rex"}
        assert (api.last.method, str(api.last.url)) == ("POST", "https://api.example.com/v1/pets")
        assert json.loads(api.last.content) == {"name": "Rex"}
        await client.call("list_pets", limit=3)
        assert api.target == "/v1/pets?limit=3"


async def test_the_mark_follows_from_the_method_unless_it_is_given() -> None:
    api = RecordingApi()
    server = api.server(PETS, marks={"tag:admin": "moderate", "POST /pets": Security("dangerous", effects=["network"])})
    async with api.server(PETS).connect() as client:
        hints = {tool["name"]: tool["annotations"] for tool in await client.tools()}
        assert hints["list_pets"]["readOnlyHint"] is True
        assert hints["create_pet"]["readOnlyHint"] is False and hints["create_pet"]["destructiveHint"] is False
        assert hints["delete_pet"]["destructiveHint"] is True and hints["delete_pet"]["idempotentHint"] is True
    async with server.connect() as client:
        hints = {tool["name"]: tool["annotations"] for tool in await client.tools()}
        assert hints["delete_pet"]["destructiveHint"] is False and hints["create_pet"]["destructiveHint"] is True


@for_each_row(
    "options names",
    [
        ({"include": ["GET"]}, ["list_pets", "get_pet"]),
        ({"include": "tag:admin"}, ["delete_pet"]),
        ({"include": ["/pets/*"]}, ["get_pet", "delete_pet"]),
        ({"include": ["GET /pets/*", "createPet"]}, ["create_pet", "get_pet"]),
        ({"include": ["*_pet"], "exclude": ["DELETE"]}, ["create_pet", "get_pet"]),
        ({"exclude": [lambda operation: operation.method != "get"]}, ["list_pets", "get_pet"]),
    ],
)
def test_operations_are_chosen(options: Json, names: list[str]) -> None:
    server = RecordingApi().server(PETS, **options)
    assert [tool.name for tool in server.mcp.tools.registry] == names


def test_choosing_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="none of its 4 operations is served"):
        RecordingApi().server(PETS, include=["tag:nothing"])
    with pytest.raises(UsageError, match="has no option 'includ'"):
        RecordingApi().server(PETS, includ=["GET"])
    with pytest.raises(UsageError, match="not possible"):
        RecordingApi().server(PETS, marks={"GET": "harmless"})


async def test_above_thirty_operations_the_server_is_searched() -> None:
    def many(count: int) -> Json:
        return {f"/things/{n}": {"get": operation(operationId=f"getThing{n}")} for n in range(count)}

    assert RecordingApi().server(many(30)).search is None
    assert RecordingApi().server(many(31), search=None).search is None
    server = RecordingApi().server(many(31))
    async with server.connect() as client:
        names = [tool["name"] for tool in await client.tools()]
        assert "mgp_tools_discover" in names and "get_thing7" not in names
        assert await client.call("get_thing7") == {"ok": True}


async def test_one_server_may_have_several_apis_and_tools_of_its_own() -> None:
    api = RecordingApi()
    server = Server("desk", lifespan=None)

    @server.tool
    def own() -> str:
        return "own"

    server.add_openapi(document(PETS), client=api.client, include=["GET"])
    parent = Server("parent")
    parent.mount(server, prefix="desk")
    async with parent.connect() as client:
        assert [tool["name"] for tool in await client.tools()] == ["desk_own", "desk_list_pets", "desk_get_pet"]
        assert await client.call("desk_get_pet", id=4) == {"ok": True}
        assert api.target == "/v1/pets/4"
    with pytest.raises(UsageError, match="comes after the server has started"):
        parent.add_openapi(document(PETS))


# ------------------------------------------------------------------------------------------------------ credentials


@for_each_row(
    "auth header value",
    [
        (Bearer("s3cret-token"), "authorization", "Bearer s3cret-token"),
        (Basic("ann", "s3cret-token"), "authorization", "Basic YW5uOnMzY3JldC10b2tlbg=="),
        (ApiKey("s3cret-token", header="X-Key"), "x-key", "s3cret-token"),
        (ApiKey("s3cret-token", cookie="sid"), "cookie", "sid=s3cret-token"),
    ],
)
async def test_credentials_are_sent_and_shown_to_nobody(auth: Any, header: str, value: str) -> None:
    def echo(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(400, text=f"bad: {request.headers[header]}")

    paths = {"/me": {"get": operation(parameter("X-Key", "header"), parameter("sid", "cookie"), operationId="me")}}
    api = RecordingApi(echo)
    async with api.server(paths, auth=auth).connect() as client:
        listed = json.dumps(await client.tools())
        assert "s3cret" not in listed and "s3cret" not in repr(auth)
        result = await client.call_raw("me")
        assert api.last.headers[header] == value
        assert result["isError"] and "s3cret-token" not in json.dumps(result) and "YW5u" not in json.dumps(result)
        if isinstance(auth, ApiKey):
            assert f'"{auth.fills[0][1]}": {{"type"' not in listed.lower()


@for_each_row(
    "body",
    [
        r'{"sent": "Bearer a\/b+\"c\\d=="}',
        r'{"sent": "Bearer \u0061/b\u002B\"\u0063\\d\u003d="}',
    ],
)
@pytest.mark.parametrize("status", [200, 400])
async def test_a_credential_that_json_writes_with_escapes_is_shown_to_nobody(body: str, status: int) -> None:
    token = 'a/b+"c\\d=='
    assert json.loads(body) == {"sent": f"Bearer {token}"}
    headers = {"content-type": "application/json"}
    api = RecordingApi(lambda request: httpx2.Response(status, text=body, headers=headers))
    paths = {"/me": {"get": operation(operationId="me")}}
    async with api.server(paths, auth=Bearer(token)).connect() as client:
        result = await client.call_raw("me")
        assert '{"sent": "Bearer [redacted]"}' in result["content"][0]["text"]
        assert result.get("structuredContent") == ({"sent": "Bearer [redacted]"} if status == 200 else None)


async def test_a_text_that_is_no_number_of_json_is_not_sent_as_one() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number"}, "list": {"type": "array"}}}
    api = RecordingApi()
    paths = {"/a": {"post": operation(operationId="a", body={"application/json": {"schema": schema}})}}
    async with api.server(paths).connect() as client:
        for given in ({"n": "NaN"}, {"n": "-Infinity"}, {"n": "1e999"}, {"list": "[1e999]"}):
            assert (await client.call_raw("a", given))["isError"], given
        assert not api.asked
        await client.call("a", n="1.5", list="[1, 2e3]")
        assert json.loads(api.last.content) == {"n": 1.5, "list": [1, 2000]}


async def test_a_key_in_the_query_is_no_argument(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "defserve")
    paths = {"/me": {"get": operation(parameter("api_key"), parameter("q"), operationId="me")}}
    api = RecordingApi()
    async with api.server(paths, auth=ApiKey("k&y", query="api_key")).connect() as client:
        assert list((await client.tools())[0]["inputSchema"]["properties"]) == ["q"]
        await client.call("me", q="a")
        assert api.target == "/v1/me?q=a&api_key=k%26y"
        assert (await client.call_raw("me", {"api_key": "mine"}))["isError"]
    assert "k&y" not in caplog.text and "k%26y" not in caplog.text


async def test_an_operation_that_needs_no_credentials_gets_none() -> None:
    paths = {"/open": {"get": operation(operationId="open", security=[])}}
    api = RecordingApi()
    async with api.server(paths, auth=Bearer("token")).connect() as client:
        await client.call("open")
        assert "authorization" not in api.last.headers


async def test_each_caller_has_credentials_of_its_own() -> None:
    async def find(principal: Principal) -> Bearer | None:
        return {"ann": Bearer("token-of-ann")}.get(principal.id)

    api = RecordingApi()
    server = Server("s")
    server.add_openapi(document({"/me": {"get": operation(operationId="me")}}), client=api.client, auth=PerCaller(find))
    async with living(with_tokens(server.asgi(), "ann", "bob")) as app:

        async def call(token: str | None) -> Json:
            peer = Peer(app, STATELESS)
            peer.token = token
            return (await peer.ask("tools/call", {"name": "me", "arguments": {}}))["result"]

        assert "isError" not in await call("ann")
        assert api.last.headers["authorization"] == "Bearer token-of-ann"
        for token in ("bob", None):
            refused = await call(token)
            assert refused["isError"] and "no account" in refused["content"][0]["text"]
        assert len(api.asked) == 1


@for_each_row("name", ["X-Tenant", "x-tenant"])
async def test_a_header_that_the_author_sets_is_no_argument(name: str) -> None:
    parameters = (parameter(name, "header", required=True), parameter("Sid", "cookie"), parameter("q"))
    api = RecordingApi()
    pinned = {"X-Tenant": "acme", "Accept": "application/xml", "Cookie": "sid=1; theme=dark"}
    paths = {"/me": {"get": operation(*parameters, parameter("lang", "cookie"), operationId="me")}}
    async with api.server(paths, headers=pinned, auth=ApiKey("key", header="x-TENANT-key")).connect() as client:
        assert list((await client.tools())[0]["inputSchema"]["properties"]) == ["q", "lang"]
        assert (await client.call_raw("me", {name: "evil"}))["isError"] and api.asked == []
        await client.call("me", q="a", lang="en")
    sent = [pair for pair in api.last.headers.multi_items() if pair[0] in ("x-tenant", "accept", "cookie")]
    assert sorted(sent) == [
        ("accept", "application/xml"),
        ("cookie", "sid=1; theme=dark; lang=en"),
        ("x-tenant", "acme"),
    ]


@for_each_row("name", ["Authorization", "authorization"])
async def test_credentials_come_after_the_headers_of_the_author(name: str) -> None:
    api = RecordingApi()
    async with api.server(PETS, headers={name: "old"}, auth=Bearer("token")).connect() as client:
        await client.call("list_pets")
    assert api.last.headers.get_list("authorization") == ["Bearer token"]


async def test_a_form_keeps_its_content_type_whatever_the_author_sets() -> None:
    api = RecordingApi()
    schema = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
    paths = {"/f": {"post": operation(operationId="f", body={"multipart/form-data": {"schema": schema}})}}
    async with api.server(paths, headers={"Content-Type": "application/json"}).connect() as client:
        await client.call("f", file={"text": "a"})
    assert api.last.headers["content-type"].startswith("multipart/form-data; boundary=")


def test_bad_credentials_are_refused_at_once() -> None:
    for wrong in (lambda: Bearer("with\nbreak"), lambda: ApiKey("k"), lambda: Basic("a:b", "c"), lambda: Bearer("")):
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(UsageError, match="who calls the API"):
        RecordingApi().server(PETS, auth="token")


# ---------------------------------------------------------------------------------------------------------- results


async def test_what_comes_back_is_a_result_of_its_kind() -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"0" * 8
    answers = {
        "/json": httpx2.Response(200, json={"a": 1}),
        "/marked": httpx2.Response(200, content=b'\xef\xbb\xbf{"a": 1}', headers={"content-type": "application/json"}),
        "/list": httpx2.Response(200, json=[1, 2]),
        "/text": httpx2.Response(200, text="plain"),
        "/none": httpx2.Response(204),
        "/picture": httpx2.Response(200, content=png, headers={"content-type": "image/png"}),
        "/bytes": httpx2.Response(200, content=b"\x00\x01", headers={"content-type": "application/zip"}),
        "/broken": httpx2.Response(200, content=b"{", headers={"content-type": "application/json"}),
    }
    api = RecordingApi(lambda request: answers[request.url.path.removeprefix("/v1")])
    paths = {path: {"get": operation(operationId=path[1:])} for path in answers}
    async with api.server(paths).connect() as client:
        assert (await client.call_raw("json"))["structuredContent"] == {"a": 1}
        assert (await client.call_raw("marked"))["structuredContent"] == {"a": 1}
        assert (await client.call_raw("list"))["content"][0]["text"] == "[1,2]"
        assert await client.call("text") == "plain"
        assert await client.call("none") == "Done (204)."
        assert (await client.call_raw("picture"))["content"][0]["mimeType"] == "image/png"
        block = (await client.call_raw("bytes"))["content"][0]
        assert block["resource"]["blob"] == "AAE=" and block["resource"]["mimeType"] == "application/zip"
        assert await client.call("broken") == "{"


async def test_an_answer_with_what_json_cannot_write_is_a_text_alone() -> None:
    schema = {"type": "object", "properties": {"mean": {"type": "number"}}, "required": ["mean"]}
    responses = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    for text in ('{"mean": NaN}', '{"mean": 1, "all": [-Infinity]}', '{"mean": 1e999}'):
        content, head = text.encode(), {"content-type": "application/json"}
        api = RecordingApi(lambda _, content=content, head=head: httpx2.Response(200, content=content, headers=head))
        async with api.server({"/a": {"get": operation(operationId="a", responses=responses)}}).connect() as client:
            result = await client.call_raw("a")
            assert result["content"][0]["text"] == text and "structuredContent" not in result


async def test_a_short_schema_of_the_response_is_published_until_the_api_breaks_it() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id", "gone"]}
    answer = {"id": 1}
    api = RecordingApi(lambda request: httpx2.Response(200, json=answer))
    responses = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    async with api.server({"/a": {"get": operation(operationId="a", responses=responses)}}).connect() as client:
        assert (await client.tools())[0]["outputSchema"]["properties"] == {"id": {"type": ["number", "null"]}}
        assert await client.call("a") == {"id": 1}
        answer["id"] = "text"  # type: ignore[assignment]
        assert (await client.call_raw("a"))["structuredContent"] == {"id": "text"}
        assert "outputSchema" not in (await client.tools())[0]


async def test_a_list_that_is_stated_is_structured_content_too() -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}}
    api = RecordingApi(lambda request: httpx2.Response(200, json=[{"id": 1}]))
    responses = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    async with api.server({"/a": {"get": operation(operationId="a", responses=responses)}}).connect() as client:
        assert (await client.tools())[0]["outputSchema"]["properties"]["result"]["type"] == "array"
        assert (await client.call_raw("a"))["structuredContent"] == {"result": [{"id": 1}]}
        assert await client.call("a") == [{"id": 1}]


async def test_an_error_of_the_api_has_its_status_and_the_beginning_of_its_body() -> None:
    api = RecordingApi(lambda request: httpx2.Response(422, json={"detail": "x" * 9000}, headers={"retry-after": "7"}))
    async with api.server(PETS).connect() as client:
        result = await client.call_raw("create_pet", {"name": "a"})
        text = result["content"][0]["text"]
        assert result["isError"] and text.startswith("The API answers 422 Unprocessable") and "after 7 s" in text
        assert len(text) < 2_200
        assert result["_meta"]["dev.defserve/error"]["status"] == 422


async def test_only_what_can_be_repeated_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("defserve.openapi.sending.FIRST_PAUSE", 0.0)
    answers = [httpx2.Response(503), httpx2.ConnectError("no"), httpx2.Response(200, json={"ok": 1})]

    def answer(request: httpx2.Request) -> httpx2.Response:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    api = RecordingApi(answer)
    async with api.server(PETS).connect() as client:
        assert await client.call("get_pet", id=1) == {"ok": 1}
        assert len(api.asked) == 3
        answers[:] = [httpx2.Response(503)]
        assert (await client.call_raw("create_pet", {"name": "a"}))["isError"]
        answers[:] = [httpx2.ConnectError("https://secret")] * 3  # type: ignore[list-item]
        text = (await client.call_raw("get_pet", {"id": 1}))["content"][0]["text"]
        assert text == "The API cannot be reached (ConnectError)."


# ------------------------------------------------------------------------------------------------------------ pages


@for_each_row(
    "headers body parameters more",
    [
        (
            {"link": '<https://x/p?page=2&per=5>; rel="next", <https://x/p?page=9>; rel="last"'},
            [],
            "page per",
            {"page": 2},
        ),
        ({"link": "</p?cursor=abc>; rel=next"}, [], "cursor", {"cursor": "abc"}),
        ({}, {"next": "https://x/p?offset=20"}, "offset", {"offset": 20}),
        ({}, {"links": {"next": {"href": "/p?page=3"}}}, "page", {"page": 3}),
        ({}, {"items": [], "nextPageToken": "t"}, "pageToken", {"pageToken": "t"}),
        ({}, {"response_metadata": {"next_cursor": "dXNlcg=="}}, "cursor", {"cursor": "dXNlcg=="}),
        ({}, {"has_more": True, "data": [{"id": "a"}, {"id": "b"}]}, "starting_after", {"starting_after": "b"}),
        ({}, {"next_cursor": None}, "cursor", None),
        ({}, {"next_cursor": ""}, "cursor", None),
        ({}, {"next_cursor": "c", "has_more": True}, "cursor", {"cursor": "c"}),
        ({}, {"next_cursor": "c", "has_more": False}, "cursor", None),
        ({}, {"pageInfo": {"endCursor": "c", "hasNextPage": False}}, "after", None),
        ({"link": '<https://x/p?page=2>; rel="prev"'}, [], "page", None),
        ({"link": "<<<<" * 1000}, [], "page", None),
    ],
)
async def test_the_next_page_is_said(headers: Json, body: Any, parameters: str, more: Json | None) -> None:
    api = RecordingApi(lambda request: httpx2.Response(200, json=body, headers=headers))
    kinds = {"page": "integer", "per": "integer", "offset": "integer"}
    given = [parameter(name, kind=kinds.get(name, "string")) for name in parameters.split()]
    async with api.server({"/p": {"get": operation(*given, operationId="p")}}).connect() as client:
        result = await client.call_raw("p", {"per": 5} if "per" in parameters else {})
        assert result["_meta"].get("dev.defserve/next") == more
        assert ("There is more" in json.dumps(result)) == (more is not None)


async def test_a_key_in_the_address_of_the_next_page_is_shown_to_nobody() -> None:
    link = {"link": '<https://x/p?api_key=s3cret%2Dtoken&page=2>; rel="next"'}
    api = RecordingApi(lambda request: httpx2.Response(200, json={"next": str(request.url) + "&page=2"}, headers=link))
    paths = {"/p": {"get": operation(parameter("api_key"), parameter("page", kind="integer"), operationId="p")}}
    auth = PerCaller(lambda principal: ApiKey("s3cret-token", query="api_key"))
    async with api.server(paths, auth=auth).connect() as client:
        result = await client.call_raw("p")
        assert result["_meta"]["dev.defserve/next"] == {"page": 2}
        assert "s3cret" not in json.dumps(result)


async def test_pages_follows_them_all() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        page = int(request.url.params.get("page", "1"))
        link = {"link": f'<https://elsewhere.example/p?page={page + 1}>; rel="next"'} if page < 3 else {}
        return httpx2.Response(200, json={"page": page}, headers=link)

    api = RecordingApi(answer)
    async with api.server(
        {"/p": {"get": operation(parameter("page", kind="integer"), operationId="p")}}
    ).connect() as c:
        assert [page["structuredContent"]["page"] async for page in pages(c, "p")] == [1, 2, 3]
        assert {request.url.host for request in api.asked} == {"api.example.com"}
        assert len([page async for page in pages(c, "p", most=2)]) == 2


@for_each_row(
    "changes pages_seen",
    [
        ({"page": Argument(name="seite"), "q": Argument(fixed="x")}, [1, 2, 3]),
        ({"page": Argument(name="q"), "q": Argument(name="page")}, [1, 2, 3]),
        ({"page": Argument(default=2)}, [2, 3]),
        ({"page": Argument(fixed=1)}, [1]),
    ],
)
async def test_the_next_page_is_said_in_the_words_of_a_transform(
    changes: dict[str, Argument], pages_seen: list[int]
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        page = int(request.url.params["page"]) if "page" in request.url.params else 1
        link = {"link": f'</p?page={page + 1}&q=x>; rel="next"'} if page < 3 else {}
        return httpx2.Response(200, json={"page": page}, headers=link)

    parameters = (parameter("page", kind="integer"), parameter("q"))
    paths = {"/p": {"get": operation(*parameters, operationId="p")}}
    own = RecordingApi(answer).server(paths, transform=Transform(arguments={"p": changes}))
    outer = Server("outer")
    outer.mount(RecordingApi(answer).server(paths), prefix="api", transform=Transform(arguments={"p": changes}))
    for server, name in ((own, "p"), (outer, "api_p")):
        async with server.connect() as client:
            results = [result async for result in pages(client, name)]
        assert [result["structuredContent"]["page"] for result in results] == pages_seen
        assert "There is more" not in json.dumps(results[-1])


def test_a_plain_server_loads_none_of_it() -> None:
    program = (
        "import sys; from defserve import Server; s = Server('s')\n"
        "@s.tool\ndef f(a: int) -> int: return a\n"
        "s.composition; child = Server('c'); child.mount(s); child.composition\n"
        "print([m for m in sys.modules if 'openapi' in m or 'migrate' in m or 'libcst' in m])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "[]"
