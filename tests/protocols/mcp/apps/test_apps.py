"""Views on the wire (apps, 2026-01-26): what a client that can show them is told, and what every other client is."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from defserve import Context, Image, Server, UsageError, app, tool
from defserve.client import Client
from defserve.errors import PeerError, ToolError
from defserve.extending import ToolOptions
from defserve.protocols.mcp.app_policy import APPS_CAPABILITY
from defserve.protocols.mcp.tools import Tool
from tests.raw import ERAS
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

MIME = "text/html;profile=mcp-app"
PAGE = "<!doctype html><html><head></head><body>hello</body></html>"


class Count(BaseModel):
    count: int


def counting() -> Server:
    server = Server("counting", "1")

    @server.app("ui://counting/view", csp={"connect": ["https://api.example.com"]}, permissions=["camera"], border=True)
    def view() -> str:
        """The count."""
        return PAGE

    @server.tool(app=view)
    def count(to: int) -> Count:
        """Count."""
        return Count(count=to)

    @server.tool(app="ui://counting/view", visible_to="app")
    def more() -> int:
        """One more."""
        return 1

    @server.tool(visible_to="model")
    def secret() -> int:
        """For the model."""
        return 2

    @server.tool
    def plain() -> int:
        """Nothing to see."""
        return 3

    return server


def ui(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {tool["name"]: tool.get("_meta", {}).get("ui") for tool in tools}


@for_each_row("version", ERAS)
async def test_a_client_that_can_show_views_is_told_of_them(version: str):
    async with counting().connect(version, apps=True) as client:
        assert ui(await client.tools()) == {
            "count": {"resourceUri": "ui://counting/view"},
            "more": {"resourceUri": "ui://counting/view", "visibility": ["app"]},
            "secret": {"visibility": ["model"]},
            "plain": None,
        }
        (listed,) = await client.resources()
        assert (listed["uri"], listed["mimeType"]) == ("ui://counting/view", MIME)
        (read,) = await client.read("ui://counting/view")
        assert (read["uri"], read["mimeType"]) == ("ui://counting/view", MIME)
        assert read["_meta"]["ui"] == {
            "csp": {"connectDomains": ["https://api.example.com"]}, "permissions": {"camera": {}}, "prefersBorder": True
        }  # fmt: skip
        assert read["text"].endswith("</head><body>hello</body></html>") and "window.host" in read["text"]
        assert await client.call("more") == 1


@for_each_row("version", ERAS)
@for_each_row(
    "offered",
    [
        None,
        {},
        [MIME],
        {"mimeTypes": MIME},
        {"mimeTypes": None},
        {"mimeTypes": ["text/html"]},
        {"mimeTypes": ["text/html; profile=mcp-app"]},
        {"mimeTypes": {MIME: 1}},
        {"mimeTypes": [{"a": []}]},
    ],
)
async def test_every_other_client_sees_plain_mcp(version: str, offered: Any):
    extensions = {} if offered is None else {"io.modelcontextprotocol/ui": offered}
    async with counting().connect(version, capabilities={"extensions": extensions}) as client:
        assert ui(await client.tools()) == {"count": None, "secret": None, "plain": None}
        assert await client.resources() == []
        assert await client.call("count", to=3) == {"count": 3}
        with pytest.raises(PeerError, match="Unknown tool"):
            await client.call("more")
        with pytest.raises(PeerError):
            await client.read("ui://counting/view")


async def test_lists_for_both_kinds_of_client_are_kept_apart():
    server = counting()
    async with server.connect("2026-07-28", apps=True) as shows, server.connect("2026-07-28") as other:
        for _ in range(2):
            assert len(await shows.tools()) == 4 and len(await other.tools()) == 3
            assert len(await shows.resources()) == 1 and await other.resources() == []


async def test_a_client_of_the_first_version_is_told_too():
    async with counting().connect("2024-11-05", apps=True) as client:
        assert ui(await client.tools())["count"] == {"resourceUri": "ui://counting/view"}
        assert (await client.read("ui://counting/view"))[0]["_meta"]["ui"]["prefersBorder"] is True


async def test_a_view_that_is_removed_takes_its_links_along():
    server = counting()
    async with server.connect(apps=True) as client:
        assert ui(await client.tools())["count"]
        server.remove_resource("ui://counting/view")
        assert ui(await client.tools())["count"] is None
        assert await client.call("count", to=1) == {"count": 1}


async def test_a_result_with_a_view_always_has_a_text():
    server = counting()

    @server.tool(app="ui://counting/view")
    def nothing() -> None: ...

    @server.tool(app="ui://counting/view", title="A picture")
    def picture() -> Image:
        return Image(b"\x89PNG", format="png")

    @server.tool(app="ui://counting/view")
    def blank() -> str:
        return " "

    @server.tool(app="ui://counting/view")
    def fails() -> None:
        raise ToolError("no")

    async with server.connect() as client:  # without views, the text is all there is
        for name, kinds in {"nothing": ["text"], "picture": ["image", "text"], "blank": ["text", "text"]}.items():
            content = (await client.call_raw(name))["content"]
            assert [block["type"] for block in content] == kinds
            assert content[-1]["text"].endswith("has run. Its result has no text.")
        assert content and (await client.call_raw("fails"))["content"] == [{"type": "text", "text": "no"}]
        assert (await client.call_raw("count", {"to": 1}))["content"] == [{"type": "text", "text": '{"count":1}'}]


@for_each_row("version", ERAS)
async def test_each_result_with_a_view_names_a_view_of_its_own(version: str):
    server = counting()
    async with server.connect(version, apps=True) as client:
        results = [await client.call_raw("count", {"to": 1}) for _ in "ab"]
        assert len({UUID(result["_meta"]["viewUUID"]) for result in results}) == 2
        assert "viewUUID" not in (await client.call_raw("more")).get("_meta", {})
    async with server.connect(version) as client:
        assert "viewUUID" not in (await client.call_raw("count", {"to": 1})).get("_meta", {})


async def test_html_comes_from_a_file_and_is_read_again_when_it_changes(tmp_path: Path):
    server, file = Server("files", "1"), tmp_path / "view.html"

    @server.app("ui://files/view")
    def view() -> Path:
        return file

    @server.app("ui://files/bytes", bridge=False)
    def as_bytes() -> bytes:
        return PAGE.encode()

    async with server.connect(apps=True) as client:
        with pytest.raises(PeerError, match="nternal error"):
            await client.read("ui://files/view")
        file.write_text("<p>first", encoding="utf-8")
        assert (await client.read_text("ui://files/view")).endswith("<p>first")
        file.write_text("<p>second, with ü", encoding="utf-8")
        os.utime(file, ns=(1, 1))
        assert (await client.read_text("ui://files/view")).endswith("<p>second, with ü")
        assert await client.read_text("ui://files/bytes") == PAGE


async def test_a_relative_path_starts_beside_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "view.html").write_text("<p>beside", encoding="utf-8")
    source = "from pathlib import Path\ndef view():\n    return Path('view.html')\n"
    space: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "server.py"), "exec"), space)
    server = Server("files", "1")
    server.add_app(space["view"], "ui://files/view")
    monkeypatch.chdir("/")
    async with server.connect(apps=True) as client:
        assert (await client.read_text("ui://files/view")).endswith("<p>beside")


@for_each_row("value", ["view.html", "", 7, None, b"\xff"])
async def test_a_view_that_is_not_html_is_an_error_of_the_author_and_not_shown(value: Any):
    server = Server("bad", "1")

    @server.app("ui://bad/view")
    def view() -> Any:
        return value

    async with server.connect(apps=True) as client:
        with pytest.raises(PeerError, match="nternal error") as refused:
            await client.read("ui://bad/view")
        assert "view.html" not in str(refused.value)


async def test_a_view_may_depend_on_the_caller():
    server = Server("context", "1")

    @server.app("ui://context/view")
    async def view(ctx: Context) -> str:
        await asyncio.sleep(0)
        return f"<p>{ctx.principal is None}"

    async with server.connect(apps=True) as client:
        assert (await client.read_text("ui://context/view")).endswith(("<p>True", "<p>False"))


# -- declaring ------------------------------------------------------------------------------------------------


def a_view() -> str:
    return PAGE


def a_tool() -> str:
    return "done"


def templated(name: str) -> str:
    return name


@for_each_row(
    ("uri", "options", "problem"),
    [
        ("http://view", {}, "does not begin with ui://"),
        ("view", {}, "does not begin with ui://"),
        ("ui://view", {"csp": ["https://a.com"]}, "say what for: csp="),
        ("ui://a/{name}", {}, "is a template|not match"),
        ("ui://view", {"mime_type": "text/html"}, "MIME type is always"),
        ("ui://view", {"csp": {"connect": ["*"]}}, "not an origin"),
        ("ui://view", {"permissions": ["usb"]}, "permissions has no 'usb'"),
        ("ui://view", {"display_modes": ["wide"]}, "display_modes has no 'wide'"),
        ("ui://view", {"display_modes": "inline"}, "display_modes='inline'"),
        ("ui://view", {"boarder": True}, "did you mean 'border'"),
    ],
)
def test_a_view_that_no_host_could_show_is_refused_when_it_is_declared(uri: str, options: Any, problem: str):
    with pytest.raises(UsageError, match=problem) as refused:
        Server("s", "1").app(uri, **options)(templated if "{" in uri else a_view)
    assert "test_apps.py:" in str(refused.value)


def test_an_app_needs_a_uri():
    with pytest.raises(UsageError, match="ui://name/view"):
        Server("s", "1").app(a_view)  # pyright: ignore[reportArgumentType]


@for_each_row(
    ("options", "problem"),
    [
        ({"app": a_view}, "'a_view' is not a view of this server"),
        ({"app": "https://view"}, "does not begin with ui://"),
        ({"app": 7}, "is not a view"),
        ({"visible_to": "nobody"}, "visible_to='nobody'"),
        ({"visible_to": "app", "meta": {"ui": {}}}, r"meta\[.ui.\]"),
    ],
)
def test_a_link_that_cannot_be_is_refused_when_it_is_declared(options: Any, problem: str):
    server = Server("s", "1")
    with pytest.raises(UsageError, match=problem) as refused:
        server.tool(**options)(a_tool)
    assert "test_apps.py:" in str(refused.value)


def test_a_tool_that_names_a_missing_view_stops_the_server_from_starting():
    server = Server("s", "1")
    server.resource("ui://page")(a_view)  # a resource is not yet a view
    server.tool(app="ui://page")(a_tool)
    with pytest.raises(UsageError, match=r"'a_tool' names the view 'ui://page', which does not exist"):
        _ = server.composition


async def test_what_is_declared_while_serving_is_checked_as_well():
    server = counting()
    async with server.connect(apps=True) as client:
        with pytest.raises(UsageError, match="does not exist"):
            server.add_tool(a_tool, app="ui://missing")
        server.add_app(a_view, "ui://late")
        server.add_tool(a_tool, app=a_view)
        assert ui(await client.tools())["a_tool"] == {"resourceUri": "ui://late"}
    plain = Server("plain", "1")
    _ = plain.composition
    for declare in (lambda: plain.add_app(a_view, "ui://late"), lambda: plain.add_tool(a_tool, visible_to="app")):
        with pytest.raises(UsageError, match="comes after the server has started"):
            declare()


async def test_marks_and_explicit_objects_declare_views_too():
    class Module:
        @app("ui://marked/view")
        def view(self) -> str:
            return PAGE

        @tool(app="ui://marked/view")
        def show(self) -> str:
            return "shown"

    server = Server("marked", "1")
    server.include(Module())
    server.add_tool(Tool.of(a_tool, ToolOptions(app="ui://marked/view", visible_to="app")))
    server.feature_set("set", "A set").tool(app="ui://marked/view")(templated)
    async with server.connect(apps=True) as client:
        assert ui(await client.tools()) == {
            "show": {"resourceUri": "ui://marked/view"},
            "a_tool": {"resourceUri": "ui://marked/view", "visibility": ["app"]},
            "templated": {"resourceUri": "ui://marked/view"},
        }


@for_each_row(("prefixes", "names", "uri"), [
    ((None,), ("count", "more"), "ui://counting/view"),
    (("a",), ("a_count", "a_more"), "ui://a/counting/view"),
    (("a", "b"), ("b_a_count", "b_a_more"), "ui://b/a/counting/view"),
])  # fmt: skip
async def test_a_mounted_server_brings_its_views(prefixes: tuple[str | None, ...], names: tuple[str, str], uri: str):
    server = counting()
    for prefix in prefixes:
        parent = Server("parent", "1")
        parent.mount(server, prefix=prefix)
        server = parent
    async with server.connect(apps=True) as client:
        listed = ui(await client.tools())
        assert listed[names[0]] == {"resourceUri": uri}
        assert listed[names[1]] == {"resourceUri": uri, "visibility": ["app"]}
        tools = names[0].removesuffix("count")
        uris = uri.removeprefix("ui://").removesuffix("counting/view")
        assert f'TOOLS = "{tools}", URIS = "{uris}"' in await client.read_text(uri)
        app = await client.render(names[0], to=4)
        assert await app.value() == {"count": 4}
    async with server.connect() as plain:
        assert names[1] not in ui(await plain.tools())


async def test_two_mounts_of_one_server_have_a_view_each():
    parent, child = Server("parent", "1"), counting()
    parent.mount(child, prefix="a")
    parent.mount(child, prefix="b")
    async with parent.connect(apps=True) as client:
        listed = ui(await client.tools())
        assert [listed[f"{name}_count"]["resourceUri"] for name in "ab"] == [
            "ui://a/counting/view",
            "ui://b/counting/view",
        ]


async def test_a_server_that_was_served_alone_can_be_mounted():
    parent, child = Server("parent", "1"), counting()
    child.add_tool(a_tool, task="optional")
    _ = child.composition
    parent.mount(child, prefix="a")
    async with parent.connect(apps=True) as client:
        tools = await client.tools()
        assert ui(tools)["a_count"] == {"resourceUri": "ui://a/counting/view"}
        flat = {tool["name"]: tool.get("_meta", {}).get("ui/resourceUri") for tool in tools}
        assert (flat["a_count"], flat["a_plain"]) == ("ui://a/counting/view", None), "hosts of the drafts read this one"


def test_a_server_without_views_does_not_import_the_room():
    code = (
        "import sys\nfrom defserve import Server\ns = Server('s', '1')\n@s.tool\ndef f() -> int: return 1\n"
        "s.composition\nprint([m for m in sys.modules if m.startswith('defserve.protocols.mcp.apps')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_client_offers_views_only_if_it_says_so():
    assert APPS_CAPABILITY == {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": [MIME]}}}
    assert inspect.signature(Client).parameters["apps"].default is False
