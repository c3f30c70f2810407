"""Views of mounted servers (MCP apps): hosts see and use them as if the server were their own; others see nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from defserve import Command, Remote, Server
from defserve.errors import PeerError, UsageError
from defserve.protocols.mcp.errors import SERVER_ID_META_KEY
from tests.at_address import at_address, fresh
from tests.proxying.backends import ERAS, child
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


async def check(front: Server, era: str, prefix: str) -> None:
    names = [f"{prefix}{name}" for name in ("forecast", "convert")]
    async with front.connect(era, apps=True) as client, front.connect(era) as plain:
        assert [tool["name"] for tool in await client.tools()] == names
        app = await client.render(names[0], city="Oslo")
        assert app.uri == f"ui://{prefix.replace('_', '/')}weather-app/forecast"
        assert f'TOOLS = "{prefix}", URIS = "{prefix.replace("_", "/")}"' in app.html
        assert (await app.value())["city"] == "Oslo"
        assert (await app.call(names[1], city="Oslo", unit="F"))["unit"] == "F"
        assert [tool["name"] for tool in await plain.tools()] == names[:1]
        assert await plain.resources() == []
        assert (await plain.call(names[0], city="Oslo"))["city"] == "Oslo"
        with pytest.raises(PeerError):
            await plain.call(names[1], city="Oslo", unit="F")
        with pytest.raises(PeerError):
            await plain.read(app.uri)


@pytest.mark.slow
@for_each_row(("back", "era", "prefix"), itertools.product(ERAS, ERAS, [None, "w"]), every=3)
async def test_a_host_behind_a_proxy_shows_the_views_of_a_program(era: str, back: str, prefix: str | None):
    front = Server("front", "1")
    program: Command = child("../../examples/weather_app.py", version=back)
    front.mount(program, prefix=prefix)
    await check(front, era, f"{prefix}_" if prefix else "")


@for_each_row("back", ERAS)
async def test_and_those_of_a_server_at_an_address(back: str):
    async with at_address(fresh("weather_app")) as url:
        front = Server("front", "1")
        front.mount(Remote(url, version=back), prefix="w")
        await check(front, "stateless", "w_")


STRANGE: list[Any] = [[], ["app", "x"], "app", None, {"model": 1}, ["model"], 7]


@for_each_row("visibility", STRANGE)
async def test_a_strange_visibility_of_a_mounted_tool_breaks_no_list(visibility: Any):
    back = Server("back", "1")

    @back.tool(meta={"ui": {"visibility": visibility}})
    def tool() -> int:
        return 1

    async with at_address(back) as url:
        front = Server("front", "1")
        front.mount(Remote(url))
        async with front.connect(apps=True) as client, front.connect() as plain:
            (listed,) = await client.tools()
            assert listed["_meta"]["ui"] == {"visibility": visibility}
            assert len(await plain.tools()) == (0 if visibility in ([], ["app", "x"]) else 1)


def with_view(name: str) -> Server:
    server = Server(name, "1")

    @server.app(f"ui://{name}/view")
    def view() -> str:
        return "<p>"

    @server.tool(app=view)
    def show() -> str:
        return "shown"

    @server.tool
    def press() -> str:
        return f"{name} pressed"

    @server.resource(f"note://{name}/1")
    def note() -> str:
        return f"the note of {name}"

    return server


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@for_each_row("era", ERAS)
async def test_a_view_reaches_its_own_server_and_asks_for_what_is_of_others(era: str):
    async with at_address(with_view("evil")) as evil, at_address(with_view("bank")) as bank:
        front = with_view("front")
        front.mount(Remote(evil), prefix="e")
        front.mount(Remote(bank), prefix="b")
        async with front.connect(era, apps=True) as client:
            app = await client.render("e_show")
            own = [message("resources/read", uri="note://e/evil/1"), message("tools/call", name="e_press")]
            others = [
                message("resources/read", uri="note://b/bank/1"), message("tools/call", name="b_press"),
                message("resources/read", uri="note://front/1"), message("tools/call", name="press"),
            ]  # fmt: skip
            for one in own:
                assert "result" in (await app.answer(one))[0], one
            for one in others:
                (refused,) = await app.answer(one)
                assert "error" in refused and "bank" not in str(refused), one
            with pytest.raises(UsageError, match="another server"):
                await app.call("b_press")
            asked: list[tuple[str, Any]] = []

            async def permit(method: str, params: dict[str, Any]) -> bool:
                asked.append((method, params.get("uri") or params.get("name")))
                return True

            app.permit = permit
            for one in (*own, *others):
                assert "result" in (await app.answer(one))[0], one
            assert ("resources/read", "note://e/evil/1") not in asked
            assert asked[1:3] == [("resources/read", "note://b/bank/1"), ("tools/call", "b_press")]


async def test_a_server_cannot_say_that_its_items_are_of_another():
    back = Server("back", "1")

    @back.app("ui://back/view")
    def view() -> str:
        return "<p>"

    @back.tool(app=view, meta={SERVER_ID_META_KEY: "bank"})
    def show() -> str:
        return "shown"

    async with at_address(back) as url:
        front = Server("front", "1")
        front.mount(Remote(url), prefix="e")
        async with front.connect(apps=True) as client:
            assert {tool["_meta"][SERVER_ID_META_KEY] for tool in await client.tools()} == {"e"}
