"""What `Server.mount` makes of a server elsewhere: its names, its options, and the rules of the server it is in."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import Command, Remote, Server, ToolError, UsageError
from defserve.auth import StaticTokens
from defserve.errors import BadArguments
from defserve.extending import Call, Next
from defserve.proxying.items import UncheckedArguments
from tests.at_address import at_address
from tests.kernel.governance.governing import SERVER, tool
from tests.protocols.mgp.callers import speaking
from tests.proxying.backends import ERA_PAIRS, child, until_fact, until_listed
from tests.proxying.everything import everything
from tests.raw import HANDSHAKE

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.parametrize(("front", "back"), ERA_PAIRS)
async def test_without_a_prefix_a_client_gets_what_the_server_itself_would_send(front: str, back: str) -> None:
    server = Server("front")
    server.mount(child(version=back))
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "links", "arguments": {}}),
        ("tools/call", {"name": "record", "arguments": {"city": "Oslo"}}),
        ("resources/read", {"uri": "note://fixed"}),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Ann"}}),
    ]
    async with server.connect(front) as mounted, everything().connect(front) as direct:
        await until_listed(mounted, "add")
        for lists in ("tools", "resources", "templates", "prompts"):
            found, wanted = await getattr(mounted, lists)(), await getattr(direct, lists)()
            for item in (*found, *wanted):  # what a mounted server promises of itself is not passed on
                item.pop("annotations", None)
            assert found == wanted
        for method, params in requests:
            found, wanted = await mounted.request(method, params), await direct.request(method, params)
            for result in (found, wanted):
                result.get("_meta", {}).pop("io.modelcontextprotocol/serverInfo", None)
                result.pop("_meta", None) if not result.get("_meta") else None
            assert found == wanted


@pytest.mark.slow
async def test_tools_are_chosen_and_renamed() -> None:
    server = Server("front")
    server.mount(child(), prefix="e", tools={"allow": ["add", "p*"], "deny": ["pid"], "rename": {"add": "plus"}})
    async with server.connect() as client:
        assert [tool["name"] for tool in await client.tools()] == ["e_plus"]
        assert await client.call("e_plus", a=1, b=2) == 3


@pytest.mark.slow
async def test_a_long_name_is_shortened_and_works(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("front")
    server.mount(child(), prefix="p" * 62)
    async with server.connect() as client:
        names = [tool["name"] for tool in await client.tools()]
        assert max(map(len, names)) <= 64
        [add] = [name for name in names if name.endswith("_add")]
        assert await client.call(add, a=1, b=2) == 3
    assert "longer than 64 characters" in caplog.text


@pytest.mark.slow
async def test_instructions_are_joined_under_the_name_of_their_server() -> None:
    server = Server("front", instructions="Ask first.")
    server.mount(child(), prefix="e")
    async with server.connect("stateless") as client:
        await until_listed(client, "e_add")
        assert (await client.request("server/discover"))["instructions"] == "Ask first.\n\n## e\n\n  | Use it well."


@pytest.mark.slow
async def test_what_is_around_calls_is_around_mounted_ones() -> None:
    server, seen = Server("front"), list[str]()
    server.mount(child(), prefix="e")

    @server.around("tools/call")
    async def noted(call: Call, params: dict[str, Any], next: Next) -> Any:
        seen.append(params["name"])
        if params["name"] == "e_fail":
            raise ToolError("not here")
        return await next(call, params)

    async with server.connect() as client:
        assert await client.call("e_add", a=1, b=2) == 3
        with pytest.raises(ToolError, match="not here"):
            await client.call("e_fail")
    assert seen == ["e_add", "e_fail"]


@pytest.mark.slow
async def test_a_call_that_takes_too_long_ends_here_and_there() -> None:
    server = Server("front")
    server.mount(child(), prefix="e")
    server.mount(child(per="shared"), prefix="f", timeout=1)
    async with server.connect() as client:
        with pytest.raises(ToolError, match="1 s"):
            await client.call("f_wait")
        async with asyncio.timeout(30):
            while not await client.call("f_fact", name="stopped"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_question_to_a_mounted_tool_asked_by_an_inner_client_over_http_needs_no_session() -> None:
    server = Server("front", auth=StaticTokens({"a" * 40: "ann"}))
    server.mount(child(version="handshake"), prefix="e")
    capabilities: dict[str, Any] = {"elicitation": {"form": {}}}
    async with (
        at_address(server) as url,
        Remote(url, token="a" * 40).connect("stateless", capabilities=capabilities) as client,
    ):
        asking = await client.request("tools/call", {"name": "e_order", "arguments": {}}, follow=False)
        assert asking["resultType"] == "input_required"
        assert [one["params"]["message"] for one in asking["inputRequests"].values()] == [
            "Server 'e' asks: Which size?"
        ]
        await until_fact(client, "runs")


def test_mistakes_are_named() -> None:
    server = Server("front")
    with pytest.raises(UsageError, match="no option 'prefxi'"):
        server.mount("some-server", prefxi="e")  # pyright: ignore
    with pytest.raises(UsageError, match=r"no option 'per'(?s:.*)Command\(…, per=…\)"):
        server.mount("some-server", timeout=1, per="shared")  # pyright: ignore
    with pytest.raises(UsageError, match="per='everyone'"):
        Remote("http://localhost/mcp", per="everyone")  # pyright: ignore
    with pytest.raises(UsageError, match="not an address"):
        Remote("localhost")
    with pytest.raises(UsageError, match="empty"):
        server.mount("  ")
    with pytest.raises(UsageError, match="cannot be read"):
        server.mount("npx 'unclosed")
    with pytest.raises(UsageError, match="prefix"):
        server.mount("some-server", prefix="a b")
    _ = server.composition
    with pytest.raises(UsageError, match="after the server has started"):
        server.mount("some-server")


def test_a_server_with_remote_mounts_cannot_lose_them_by_being_mounted() -> None:
    inner, outer = Server("inner"), Server("outer")
    inner.mount("some-server", prefix="e")
    outer.mount(inner, prefix="i")
    with pytest.raises(UsageError, match="proxying"):
        _ = outer.composition


def test_a_server_that_mounts_nothing_elsewhere_does_not_import_the_room() -> None:
    code = (
        "import sys; from defserve import Server; a = Server('a'); a.mount(Server('b'), prefix='b'); a.composition;"
        "sys.exit('defserve.proxying.mounts' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_security_that_a_server_lists_is_passed_on_to_peers_that_speak_mgp(tmp_path: Path) -> None:
    listed = tmp_path / "tools.json"
    block: dict[str, Any] = {"risk_level": "dangerous", "permissions_required": []}
    listed.write_text(json.dumps([tool("act", security=block), tool("inner", _meta={"dev.defserve/security": block})]))
    server = Server("front")
    server.mount(Command(sys.executable, "-I", "-S", str(SERVER), str(listed)), prefix="e")
    async with speaking(server, HANDSHAKE[-1], ["tool_security"]) as peer:
        found = (await peer.ask("tools/list"))["result"]["tools"]
        assert found[0]["security"] == found[1]["security"] == found[1]["_meta"]["dev.defserve/security"]
        assert found[0]["security"].items() >= block.items()


def test_a_number_that_is_too_large_is_not_sent_on_as_null() -> None:
    with pytest.raises(BadArguments, match=r"place\.x: the number is too large"):
        UncheckedArguments({}).validate({"place": {"x": float("inf")}})
