"""A host renders the views of servers that it does not trust, and answers their messages."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server, UsageError
from defserve.client import Client, Mgp, RenderedApp
from defserve.errors import PeerError
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY
from tests.client.pretend import PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

MIME = "text/html;profile=mcp-app"
VIEW = {"uri": "ui://v", "mimeType": MIME, "text": "<p>hello"}
TOOLS = [
    {"name": "show", "inputSchema": {}, "_meta": {"ui": {"resourceUri": "ui://v"}}},
    {"name": "press", "inputSchema": {}, "_meta": {"ui": {"visibility": ["app"]}}},
    {"name": "think", "inputSchema": {}, "_meta": {"ui": {"visibility": ["model"]}}},
    {"name": "nobody", "inputSchema": {}, "_meta": {"ui": {"visibility": []}}},
    {"name": "plain", "inputSchema": {}},
]
SAID: Any = {"content": [{"type": "text", "text": "said"}], "structuredContent": {"a": 1}}


def pretend(*contents: Any, tools: Any = TOOLS, result: Any = SAID) -> PretendServer:
    return PretendServer(
        {"tools/list": {"tools": tools}, "resources/read": {"contents": list(contents)}, "tools/call": result}
    )


async def rendered(server: PretendServer, tool: str = "show", **arguments: Any) -> RenderedApp:
    async with Client(server, version="2025-11-25", apps=True) as client:
        return await client.render(tool, **arguments)


async def test_a_view_is_what_the_content_item_says():
    ui = {"csp": {"connectDomains": ["https://a.example", "x; y"]}, "permissions": {"camera": {}}, "domain": "d"}
    server = pretend({**VIEW, "_meta": {"ui": ui}})
    app = await rendered(server, x=1)
    assert (app.uri, app.html, app.text, app.arguments) == ("ui://v", "<p>hello", "said", {"x": 1})
    assert "connect-src https://a.example;" in app.policy and "x; y" not in app.policy
    assert (app.permissions, app.border, app.domain) == (["camera"], None, "d")
    offered = server.asked("initialize")[0]["capabilities"]["extensions"]
    assert offered == {"io.modelcontextprotocol/ui": {"mimeTypes": [MIME]}}


@for_each_row("meta", [{"ui": 7}, {"ui": {"csp": 7, "permissions": 7, "prefersBorder": "yes", "domain": 7}}, 7])
async def test_what_has_another_shape_counts_as_left_out(meta: Any):
    app = await rendered(pretend({**VIEW, "_meta": meta}))
    assert "connect-src 'none'" in app.policy
    assert (app.permissions, app.border, app.domain) == ([], None, None)


async def test_a_view_may_come_as_a_blob_and_by_the_older_link():
    blob = {"uri": "ui://v", "mimeType": MIME, "blob": base64.b64encode("<p>ü".encode()).decode()}
    tools = [{"name": "show", "inputSchema": {}, "_meta": {"ui/resourceUri": "ui://v"}}]
    assert (await rendered(pretend(blob, tools=tools))).html == "<p>ü"


@for_each_row(
    ("contents", "problem"),
    [
        ([], "is nothing"),
        ([VIEW, VIEW], "has to be one"),
        ([7], "no list of objects"),
        ([{**VIEW, "mimeType": "text/html"}], "is text/html; it has to be"),
        ([{**VIEW, "mimeType": "text/html;profile=MCP-APP"}], "has to be one"),
        ([{"uri": "ui://v", "mimeType": MIME}], "has no HTML"),
        ([{"uri": "ui://v", "mimeType": MIME, "blob": "/w=="}], "not UTF-8"),
        ([{"uri": "ui://v", "mimeType": MIME, "blob": "<p>"}], "not UTF-8 in base64"),
        ([{"uri": "ui://v", "mimeType": MIME, "blob": "é"}], "not UTF-8 in base64"),
    ],
)
async def test_a_view_that_no_host_may_show_is_refused_before_the_tool_is_called(contents: Any, problem: str):
    server = pretend(*contents)
    with pytest.raises(PeerError, match=problem):
        await rendered(server)
    assert server.asked("tools/call") == []


async def test_a_view_of_another_scheme_is_refused():
    tools = [{"name": "show", "inputSchema": {}, "_meta": {"ui": {"resourceUri": "https://v"}}}]
    with pytest.raises(PeerError, match="does not begin with ui://"):
        await rendered(pretend(VIEW, tools=tools))


@for_each_row(
    ("tool", "problem"),
    [("plain", "has no view"), ("missing", "lists no tool"), ("press", "has no view"), ("think", "has no view")],
)
async def test_only_a_tool_with_a_view_is_rendered(tool: str, problem: str):
    with pytest.raises(UsageError, match=problem):
        await rendered(pretend(VIEW), tool)


async def test_a_tool_for_views_alone_is_not_rendered():
    tools = [{"name": "show", "inputSchema": {}, "_meta": {"ui": {"resourceUri": "ui://v", "visibility": ["app"]}}}]
    with pytest.raises(UsageError, match="for views alone"):
        await rendered(pretend(VIEW, tools=tools))


@for_each_row(
    "content", [[], [{"type": "image", "data": "", "mimeType": "image/png"}], [{"type": "text", "text": " "}]]
)
async def test_a_result_without_a_text_is_refused(content: Any):
    with pytest.raises(PeerError, match="has no text"):
        await rendered(pretend(VIEW, result={"content": content}))


# -- messages of the view ------------------------------------------------------------------------------------


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}


async def test_a_view_begins_hears_of_the_call_and_calls_back():
    server = pretend(VIEW)
    async with Client(server, version="2025-11-25", apps=True) as client:
        app = await client.render("show", x=1)
        (begun,) = await app.answer(
            request("ui/initialize", appInfo={}, appCapabilities={}, protocolVersion="2026-01-26")
        )
        assert begun["result"]["protocolVersion"] == "2026-01-26"
        assert begun["result"]["hostContext"]["toolInfo"]["tool"]["name"] == "show"
        heard = await app.answer({"jsonrpc": "2.0", "method": "ui/notifications/initialized"})
        assert [note["method"] for note in heard] == ["ui/notifications/tool-input", "ui/notifications/tool-result"]
        assert heard[0]["params"] == {"arguments": {"x": 1}} and heard[1]["params"] == SAID
        (called,) = await app.answer(request("tools/call", name="press", arguments={"y": 2}))
        assert called == {"jsonrpc": "2.0", "id": 5, "result": SAID}
        assert server.asked("tools/call")[-1]["name"] == "press"
        assert await app.call("press", y=2) == {"a": 1}
        (read,) = await app.answer(request("resources/read", uri="ui://v"))
        assert read["result"]["contents"] == [VIEW]
        for method in ("ping", "ui/open-link", "ui/message", "ui/update-model-context", "ui/request-display-mode"):
            assert "result" in (await app.answer(request(method)))[0]
        assert ("ui/open-link", {}) in app.view_messages


async def test_a_host_decides_about_what_has_an_effect_and_offers_its_display_modes():
    asked = list[tuple[str, Any]]()

    async def permit(method: str, params: dict[str, Any]) -> bool:
        asked.append((method, params.get("name")))
        return method == "ui/message"

    app = await rendered(pretend(VIEW))
    app.permit, app.modes = permit, ("inline", "fullscreen")
    for method, outcome in (("tools/call", "error"), ("ui/open-link", "error"), ("ui/message", "result")):
        assert outcome in (await app.answer(request(method, name="press")))[0]
    await app.answer(request("tools/call", name="think"))
    await app.answer(request("ping"))
    # What is refused anyway, or has no effect, is not asked for.
    assert asked == [("tools/call", "press"), ("ui/open-link", "press"), ("ui/message", "press")]
    for wanted, got in (("fullscreen", "fullscreen"), ("pip", "fullscreen"), ("inline", "inline")):
        (answer,) = await app.answer(request("ui/request-display-mode", mode=wanted))
        assert answer["result"] == {"mode": got} == {"mode": app.context["displayMode"]}


async def test_a_view_that_never_stops_talking_fills_no_memory():
    app = await rendered(pretend(VIEW))
    for _ in range(1_500):
        await app.answer({"jsonrpc": "2.0", "method": "ui/notifications/size-changed", "params": {"height": 1}})
    assert len(app.view_messages) == 1_000


@for_each_row("name", ["think", "nobody", "missing", "", None, 7, ["press"]])
async def test_a_view_calls_nothing_that_is_not_visible_to_it(name: Any):
    server = pretend(VIEW)
    async with Client(server, version="2025-11-25", apps=True) as client:
        app = await client.render("show")
        (refused,) = await app.answer(request("tools/call", name=name))
        assert refused["error"]["code"] == -32602
        if isinstance(name, str):
            with pytest.raises(UsageError, match="may not call"):
                await app.call(name)
        assert [call["name"] for call in server.asked("tools/call")] == ["show"]


async def test_errors_of_the_server_reach_the_view_as_errors():
    server = Server("s", "1")

    @server.app("ui://s/v")
    def view() -> str:
        return "<p>"

    @server.tool(app=view)
    def show() -> str:
        return "shown"

    async with server.connect(apps=True) as client:
        app = await client.render("show")
        (refused,) = await app.answer(request("resources/read", uri="ui://missing"))
        assert refused["error"]["code"] in (-32002, -32602)
        (refused,) = await app.answer(request("resources/read", uri=7))
        assert refused["error"]["code"] == -32602
        (refused,) = await app.answer(request("sampling/createMessage"))
        assert refused["error"]["code"] == -32601


async def test_what_a_view_saves_is_given_back_to_it_up_to_a_size():
    app = await rendered(pretend(VIEW))
    (offered,) = await app.answer(request("ui/initialize"))
    assert "dev.defserve/view-state" in offered["result"]["hostCapabilities"]["experimental"]
    (empty,) = await app.answer(request("dev.defserve/view-state/load"))
    assert empty["result"] == {"state": None}
    await app.answer(request("dev.defserve/view-state/save", state={"page": 7}))
    (refused,) = await app.answer(request("dev.defserve/view-state/save", state="x" * 300_000))
    assert refused["error"]["code"] == -32602
    (loaded,) = await app.answer(request("dev.defserve/view-state/load"))
    assert loaded["result"] == {"state": {"page": 7}} == {"state": app.state}


async def test_a_view_is_fetched_again_and_its_tool_is_not_called_again():
    content = dict[str, Any](VIEW)
    server = pretend(content)
    async with Client(server, version="2025-11-25", apps=True) as client:
        app = await client.render("show")
        app.state = 7
        assert not await app.reload()
        content["text"], content["_meta"] = "<p>new", {"ui": {"csp": {"connectDomains": ["https://a.example"]}}}
        assert await app.reload(client)
        assert (app.html, app.state) == ("<p>new", 7) and "connect-src https://a.example" in app.policy
        content["mimeType"] = "text/html"
        with pytest.raises(PeerError, match="is text/html"):
            await app.reload()
        assert app.html == "<p>new" and len(server.asked("tools/call")) == 1


async def test_a_view_lists_the_resources_of_its_own_server_page_by_page():
    listed = [{"uri": "notes://a"}, {"uri": "notes://b", "_meta": {SERVER_ID_META_KEY: "other"}}, 7]
    server = pretend(VIEW)
    server.replies["resources/list"] = {"resources": listed, "nextCursor": "2"}
    async with Client(server, version="2025-11-25", apps=True) as client:
        app = await client.render("show")
        (answer,) = await app.answer(request("resources/list", cursor="1"))
        assert answer["result"] == {"resources": [{"uri": "notes://a"}], "nextCursor": "2"}
        await app.answer(request("resources/list", cursor=7))
        assert [asked.get("cursor") for asked in server.asked("resources/list")] == ["1", None]


KEYS = st.sampled_from(["jsonrpc", "id", "method", "params", "name", "arguments", "uri"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=6,
)
METHODS = st.sampled_from(
    [
        "tools/call",
        "ui/initialize",
        "ui/notifications/initialized",
        "ui/download-file",
        "resources/read",
        "resources/list",
        "dev.defserve/view-state/save",
        "x",
    ]
)
MESSAGES = st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "method": METHODS, "id": JSON, "params": JSON})


@given(message=JSON | MESSAGES)
async def test_no_message_of_a_view_breaks_its_host(message: Any):
    server = pretend(VIEW)
    async with Client(server, version="2025-11-25", apps=True) as client:
        app = await client.render("show")
        assert all(answer["jsonrpc"] == "2.0" for answer in await app.answer(message))


async def test_a_view_is_told_that_a_person_did_not_confirm_its_call():
    press = {**TOOLS[1], "annotations": {"destructiveHint": True}}
    server = pretend(VIEW, tools=[TOOLS[0], press])
    mgp = Mgp(audit=[], confirm=lambda tool, *_: tool == "show")
    async with Client(server, version="2025-11-25", apps=True, mgp=mgp) as client:
        app = await client.render("show")
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "press"}}
        (reply,) = await app.answer(message)
    assert reply["error"]["message"] == "press was not confirmed"
