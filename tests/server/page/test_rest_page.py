"""The page of a REST API at `/docs`: each tool, what it takes, and a line that calls it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from defserve.auth import StaticTokens
from defserve.server.rest import MAX_API_PAGE_BYTES, render_api_page
from tests.asgi import Web, living

from .reading import BROWSER, Page, greenhouse
from .test_document import HOSTILE

pytestmark = pytest.mark.anyio


async def opened(app: Any, path: str = "/docs", **headers: str) -> Any:
    return await Web(app, path, "").begin("GET", b"", {"accept": BROWSER, **headers}).ended()


async def test_with_an_api_docs_is_its_page_and_without_it_the_page_of_the_server():
    async with living(greenhouse().asgi(rest=True)) as app:
        found = Page((await opened(app)).body.decode())
        assert found.texts["title"] == ["greenhouse API"]
        assert [text for text in found.texts["code"] if text.startswith("/tools/")] == [
            "/tools/list_sensors",
            "/tools/set_target",
            "/tools/clear_bed",
            "/tools/water",
        ]
        assert "<a href=docs>the API</a>" in (await opened(app, "/")).body.decode()
    async with living(greenhouse().asgi()) as app:
        assert Page((await opened(app)).body.decode()).texts["title"] == ["greenhouse, an MCP server"]


async def test_the_line_that_it_shows_calls_the_tool():
    async with living(greenhouse().asgi(rest=True)) as app:
        (line,) = [text for text in Page((await opened(app)).body.decode()).texts["pre"] if "water" in text]
        _, url, _, kind, _, body = shlex.split(line)
        assert (url, kind) == ("http://localhost/tools/water", "content-type: application/json")
        answer = (
            await Web(app, "/tools/water", "")
            .begin("POST", body.encode(), {"content-type": "application/json"})
            .ended()
        )
    assert (answer.status, answer.json) == (200, {"result": "text"})


async def test_a_protected_server_tells_no_operation_to_who_shows_no_token():
    async with living(greenhouse(auth=StaticTokens({"good": "ada"})).asgi(rest=True, page=True)) as app:
        body = (await opened(app)).body.decode()
    assert "set_target" not in body and "protected" in body


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_the_document_says_is_text(text: str):
    schema = {"type": "object", "properties": {text: {"type": text, "description": text}}}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/a"}, "examples": {"b": {"value": text}}}}
    document = {
        "info": {"title": text, "version": text},
        "paths": {f"/tools/{text.replace('{', '')}": {"post": {"summary": text, "requestBody": {"content": content}}}},
        "components": {"schemas": {"a": schema}},
    }
    found = Page(render_api_page(document, "http://localhost").decode("utf-8", "replace"))
    assert found.html.count("<script") == found.html.count("</script") == 1
    assert not found.tags & {"img", "iframe"} and not {name for _, name, _ in found.attributes if name.startswith("on")}


def test_a_long_document_is_cut_and_says_so():
    paths = {f"/tools/t{number}": {"post": {"summary": "x" * 400}} for number in range(2_000)}
    made = render_api_page({"paths": paths}, "http://localhost")
    assert len(made) < MAX_API_PAGE_BYTES + 20_000 and b" more are in the document." in made


@pytest.mark.parametrize(
    "document", [{}, {"paths": 3}, {"paths": {"/tools/a": {"post": {"requestBody": 1}, "get": 2}}}]
)
def test_a_document_that_is_none_has_a_page_all_the_same(document: Any):
    assert b"<h1>" in render_api_page(document, "http://localhost")


def test_the_path_of_the_longest_name_is_shown_whole():
    path = f"/tools/{'n' * 128}"
    found = Page(render_api_page({"paths": {path: {"post": {}}}}, "http://localhost").decode())
    assert path in found.texts["code"]
