"""The REST mount: HTTP's words for what every call goes through."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from defserve import Limits, Server, ToolError, dangerous
from defserve.auth import Principal, StaticTokens
from defserve.binding.explicit_schema import find_instance_errors
from defserve.protocols.mgp import errors
from defserve.serve.http.other_endpoints import RestFailure
from defserve.server import rest
from defserve.server.openapi_document import build_openapi_document
from tests.asgi import Web
from tests.export import shop
from tests.proxying.talkers import talker
from tests.rows import for_each_row
from tests.waiting import until

BASE = "http://localhost"


def client_of(server: Server, **options: Any) -> TestClient:
    return TestClient(server.asgi(rest=True, **options), base_url=BASE)


@pytest.fixture
def client() -> TestClient:
    return client_of(shop.server)


@pytest.mark.req("GGEN-EXP-3")
@pytest.mark.parametrize(
    ("name", "arguments", "status", "result"),
    [
        ("price", {"ticker": "ABC", "days": 2}, 200, 3.0),
        ("greet", {}, 200, "hello you"),
        ("order", {"order": {"items": [{"name": "pen"}]}}, 200, {"lines": 1, "first": "pen", "paid": False}),
        ("stock", {"kinds": ["pen"]}, 200, {"pen": 3}),
        ("price", {"ticker": "abc"}, 400, "invalid_arguments"),
        ("price", {"tickr": "ABC"}, 400, "invalid_arguments"),
        ("nothing", {}, 404, "unknown_tool"),
        ("refuse", {"reason": "no"}, 422, "tool_error"),
        ("restock", {}, 403, "permission_denied"),
    ],
)
def test_a_call_is_answered_with_the_value_or_the_reason(
    client: TestClient, name: str, arguments: dict[str, Any], status: int, result: Any
):
    answer = client.post(f"/tools/{name}", json=arguments)
    assert answer.status_code == status
    told = answer.json()
    assert (told["result"] if status == 200 else told["error"]["type"]) == result


@for_each_row("code", errors.ERROR_KINDS_BY_CODE)
def test_every_error_of_mgp_has_a_status_that_says_who_erred(code: int):
    kind = errors.ERROR_KINDS_BY_CODE[code]
    if kind.name in ("AUTH_REQUIRED", "AUTH_EXPIRED", "TOOL_NOT_FOUND", "INVALID_TOOL_ARGS", "SERVER_DRAINING"):
        return  # they have other symbols, or never come from a call
    status = RestFailure(kind.error_type, "").status
    allowed = {"security": {403}, "lifecycle": {503}, "resource": {429, 503, 504}, "external": {502, 503, 504}}
    assert status in allowed.get(kind.category, {403, 404, 409})


def test_what_does_not_fit_is_told_field_by_field(client: TestClient):
    error = client.post("/tools/price", json={"ticker": "ABC", "days": 0}).json()["error"]
    assert error["problems"] == [{"field": "days", "reason": "must be at least 1, got 0"}]
    assert error["trace_id"].startswith("req-")


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", None, 200),
        (b"", "application/json", 200),
        (b"{}", "application/json; charset=utf-8", 200),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 100 + b"]" * 100, "application/json", 400),
        (b'{"name": 1e999}', "application/json", 400),
        (b"name=x", "application/x-www-form-urlencoded", 415),
        (b"{}", None, 415),
    ],
)
def test_a_body_is_an_object_of_arguments(client: TestClient, body: bytes, kind: str | None, status: int):
    headers = {"content-type": kind} if kind else {}
    assert client.post("/tools/greet", content=body, headers=headers).status_code == status


def test_a_body_that_is_too_large_is_refused():
    server = Server("small", "1", limits=Limits(message=100))
    server.tool(shop.greet)
    answer = client_of(server).post("/tools/greet", json={"name": "x" * 200})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "limit_exceeded")


def test_only_calls_are_posted(client: TestClient):
    answer = client.get("/tools/greet")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert client.post("/openapi.json").status_code == 405


def test_head_says_of_the_document_what_get_would(client: TestClient):
    full, head = client.get("/openapi.json"), client.head("/openapi.json")
    assert (head.status_code, head.headers) == (200, full.headers)


def test_without_being_asked_for_it_is_not_there():
    client = TestClient(shop.server.asgi(), base_url=BASE)
    assert client.post("/tools/greet", json={}).status_code == 404
    assert client.get("/openapi.json").status_code == 404


@pytest.mark.req("GGEN-EXP-3")
def test_the_document_says_where_the_mount_is():
    app = Starlette(routes=[Mount("/shop", shop.server.asgi(rest=True))])
    client = TestClient(app, base_url=BASE)
    document = client.get("/shop/openapi.json").json()
    validate(document)
    assert document["servers"] == [{"url": "/shop"}]
    assert client.post("/shop/tools/greet", json={}).json() == {"result": "hello you"}


def test_a_page_of_another_site_may_not_call(client: TestClient):
    assert client.post("/tools/greet", headers={"origin": "https://evil.example"}).status_code == 403
    assert client.post("/tools/greet", headers={"host": "evil.example"}).status_code == 421


def test_callers_are_authenticated_and_see_what_they_may_use():
    server = Server(
        "guarded", "1", auth=StaticTokens({"full": Principal("ada", scopes={"admin"}), "less": Principal("bob")})
    )
    server.add_tool(shop.greet, scopes=["admin"])
    server.add_tool(shop.price)
    client = client_of(server)
    full, less = ({"authorization": f"Bearer {token}"} for token in ("full", "less"))
    assert client.post("/tools/greet").status_code == 401
    assert client.get("/openapi.json").status_code == 401
    assert client.post("/tools/greet", headers=full).status_code == 200
    refused = client.post("/tools/greet", headers=less)
    assert refused.status_code == 403
    assert 'scope="admin"' in refused.headers["www-authenticate"]
    seen = client.get("/openapi.json", headers=less).json()
    assert set(seen["paths"]) == {"/tools/price", "/tools/{tool_name}"}
    assert seen["security"] == [{"bearer": []}]


def test_a_refusal_has_the_form_that_the_document_gives_an_error():
    tokens = {"full": Principal("ada", scopes={"admin"}), "less": Principal("bob")}
    server = Server("guarded", "1", auth=StaticTokens(tokens))
    server.add_tool(shop.greet, scopes=["admin"])
    client = client_of(server)
    full, less, bad = ({"authorization": f"Bearer {token}"} for token in ("full", "less", "bad"))
    document = client.get("/openapi.json", headers=full).json()
    schema = document["components"]["schemas"]["Error"]
    for method, path, headers, status, kind in [
        ("POST", "/tools/greet", {}, 401, "unauthenticated"),
        ("POST", "/tools/greet", bad, 401, "unauthenticated"),
        ("GET", "/openapi.json", {}, 401, "unauthenticated"),
        ("POST", "/tools/greet", less, 403, "permission_denied"),
        ("PUT", "/tools/greet", full, 405, "method_not_allowed"),
        ("POST", "/tools/greet", {**full, "origin": "https://evil.example"}, 403, "permission_denied"),
        ("POST", "/tools/greet", {**full, "host": "evil.example"}, 421, "refused"),
        ("GET", "/openapi.json", {**full, "accept": "application/json", "host": "evil.example"}, 421, "refused"),
        ("POST", "/tools/%67reet", full, 400, "invalid_arguments"),
    ]:
        answer = client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert find_instance_errors(answer.json(), schema, 1) == []
    for path in document["paths"].values():
        told = path["post"]["responses"]["401"]["content"]["application/json"]
        assert told == {"schema": {"$ref": "#/components/schemas/Error"}}


def test_guards_and_confirmation_stand_before_a_call():
    ran: list[str] = []
    server = Server("guarded", "1", granted=["shell.execute"])

    @server.tool
    @dangerous("shell.execute")
    def wipe() -> None:
        ran.append("wipe")

    answer = client_of(server).post("/tools/wipe")
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "confirmation_required")
    assert ran == []


def test_a_crash_is_masked_and_a_timeout_says_so():
    server = Server("bad", "1")

    @server.tool
    def crash() -> None:
        raise RuntimeError("secret")

    @server.tool(timeout=0.01)
    async def hang() -> None:
        await asyncio.sleep(5)

    client = client_of(server)
    crashed = client.post("/tools/crash")
    assert crashed.status_code == 500
    assert "secret" not in crashed.text
    assert client.post("/tools/hang").status_code == 504


@pytest.mark.anyio
async def test_a_caller_who_leaves_cancels_the_call():
    server, begun, over = Server("slow", "1"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            over.set()

    async with asyncio.timeout(20):
        exchange = Web(server.asgi(rest=True), "/tools/wait").begin("POST")
        await begun.wait()
        exchange.leave()
        await over.wait()
        await exchange.ended()


def test_what_a_tool_shows_comes_as_content():
    server = Server("pictures", "1")

    @server.tool
    def nothing() -> None:
        """Give nothing back."""

    @server.tool
    def several() -> list[Any]:
        from defserve import Image

        return ["one", Image(b"x", mime_type="image/png")]

    @server.tool
    def fail() -> str:
        raise ToolError("try again")

    client = client_of(server)
    assert client.post("/tools/nothing").json() == {"result": None}
    assert [block["type"] for block in client.post("/tools/several").json()["result"]] == ["text", "image"]
    assert client.post("/tools/fail").json()["error"]["message"] == "try again"


def test_a_tool_that_asks_is_no_tool_for_callers_who_cannot_be_asked():
    from defserve import Context

    server = Server("asking", "1")

    @server.tool
    async def ask(ctx: Context) -> bool:
        return await ctx.confirm("Really?")

    answer = client_of(server).post("/tools/ask")
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "missing_capability")


def test_the_command_line_can_ask_for_it():
    from defserve.server.command_line import parse_server_arguments

    options = parse_server_arguments(["--on", "http://127.0.0.1:0/mcp", "--rest"], "shop", lambda: "1")
    assert options["rest"] is True


def test_a_result_past_the_limit_is_an_error():
    server = Server("large", "1", limits=Limits(response=1000))

    @server.tool
    def long() -> str:
        return "x" * 2000

    answer = client_of(server).post("/tools/long", json={})
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "limit_exceeded")


def test_the_document_follows_what_the_server_offers():
    server = Server("growing", "1")
    server.tool(shop.greet)
    client = client_of(server)
    assert "/tools/price" not in client.get("/openapi.json").json()["paths"]
    server.add_tool(shop.price)
    assert "/tools/price" in client.get("/openapi.json").json()["paths"]


@pytest.mark.anyio
async def test_while_a_document_is_made_others_are_answered_and_whoever_wants_it_too_waits_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    may_end, made = threading.Event(), list[str]()

    def slow(*given: Any, **options: Any) -> dict[str, Any]:
        made.append(threading.current_thread().name)
        assert may_end.wait(30)
        return build_openapi_document(*given, **options)

    monkeypatch.setattr(rest, "build_openapi_document", slow)
    server = Server("front", "1")
    server.tool(shop.greet)
    app = server.asgi(rest=True)
    first, second = (Web(app, "/openapi.json").begin("GET") for _ in range(2))
    await until(lambda: bool(made))
    other = Web(app, "/tools/greet").begin("POST")
    await other.ended()
    assert other.status == 200 and not first.complete and not second.complete
    may_end.set()
    for one in (first, second):
        await one.ended()
        assert "/tools/greet" in json.loads(one.body)["paths"]
    assert len(made) == 1 and made[0] != threading.current_thread().name


def test_a_document_longer_than_a_response_is_refused():
    server = Server("large", "1", limits=Limits(response=1000))
    server.tool(shop.greet)
    answer = client_of(server).get("/openapi.json")
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "limit_exceeded")
    assert "the document is larger than 1000 bytes" in answer.json()["error"]["message"]


def test_a_document_that_cannot_be_made_is_an_error_with_a_body(monkeypatch: pytest.MonkeyPatch):
    def fail(*given: Any, **options: Any) -> dict[str, Any]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(rest, "build_openapi_document", fail)
    answer = client_of(Server("s", "1")).get("/openapi.json")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal_error")
    assert "secret" not in answer.text


@for_each_row(
    ("content", "result"),
    [
        ([5], [5]),
        ([{"type": "text"}], [{"type": "text"}]),
        ([{"type": "text", "text": "ok"}], "ok"),
        ([], None),
    ],
)
def test_the_odd_content_of_a_mounted_server_is_passed_on(content: list[Any], result: Any):
    front = Server("front", "1")
    front.mount(talker(f"for call in told(): say(id=call['id'], result={{'content': {content!r}}})"), prefix="b")
    with client_of(front) as client:
        answer = client.post("/tools/b_talk", json={})
        assert (answer.status_code, answer.json()) == (200, {"result": result})
