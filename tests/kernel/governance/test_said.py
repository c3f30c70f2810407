"""Servers that speak MGP behind a kernel: what they say of themselves, beside what the file says of them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, dangerous, moderate
from defserve.client.mgp.server_claims import MgpClaims
from defserve.kernel.config.entries import MgpEntry, ServerEntry, ServerLaunch
from defserve.kernel.governance.marks_and_pins import (
    build_governing_entry,
    find_contradictions,
    get_trust_level,
    list_actual_extensions,
)
from defserve.tooling.listing import format_mgp_entry
from tests.kernel.running import Running, entry, running, url_entry
from tests.listening import listening
from tests.protocols.mgp.callers import BOB, STRANGER, code_of, offer, speaking
from tests.raw import ERAS, HANDSHAKE, Json, raw
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio

ALL = ("security", "audit", "code_safety", "lifecycle", "streaming", "bidirectional")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def wiki(**options: Any) -> Server:
    """A server that speaks MGP."""
    server = Server("wiki", "1", **options)

    @server.tool
    @moderate("network.outbound")
    def fetch() -> str:
        return "fetched"

    @server.tool
    @dangerous
    def wipe() -> str:
        return "wiped"

    @server.tool
    def plain() -> str:
        return "plain"

    return server


@asynccontextmanager
async def behind(folder: Path, server: Server, more: str = "", kernel: str = "") -> AsyncGenerator[Running]:
    async with listening(server) as where:
        text = f"[kernel]\n{kernel}\n{url_entry('wiki', f'http://{where.authority}/mcp', more)}"
        async with running(folder, text) as here:
            yield here


async def initialized(server: Server, version: str, *extensions: str) -> Json:
    """What the server itself answers a client that offers these extensions."""
    async with raw(server, version, offer(version, *extensions)) as peer:
        found = peer.opening["capabilities"]
    return found["mgp"] if version in HANDSHAKE else found["extensions"]["dev.cloto/mgp"]


async def listed(here: Running) -> Json:
    async with speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"]) as peer:
        (one,) = (await peer.ask("mgp/discovery/list"))["result"]["servers"]
    return one


@pytest.mark.req("MGP-15.3")
@pytest.mark.parametrize("version", ERAS)
async def test_what_is_told_before_connecting_is_what_initialize_tells(tmp_path: Path, version: str) -> None:
    server = wiki(trust_level="sandboxed")
    said = await initialized(server, version, *ALL)
    async with listening(server) as where:
        # The entry as `defserve export` writes it.
        text = format_mgp_entry({"name": "wiki"}, said, url=f"http://{where.authority}/mcp")
        head, _, rest = text.partition("\n")
        found = list[Json]()
        for more in (f'version = "{version}"\nenabled = false', f'version = "{version}"'):
            async with running(tmp_path, f"{head}\n{more}\n{rest}", wait="false" not in more) as here:
                found.append(await listed(here))
                assert not [line for line in here.kernel.journal.list_lines("wiki") if line.kind == "problem"]
    before, after = found
    assert (before["status"], after["status"]) == ("registered", "connected")
    for told in (before, after):
        assert told["mgp_version"] == said["version"]
        assert told["extensions"] == said["extensions"]
        assert told["permissions_required"] == said["permissions_required"]
        assert told["trust_level"] == said["trust_level"]
        assert told["id"] == said["server_id"]


@pytest.mark.parametrize("version", ERAS)
async def test_a_server_that_differs_from_the_file_is_told_as_it_is(tmp_path: Path, version: str) -> None:
    claims = '[servers.mgp]\nextensions = ["security", "lifecycle"]\npermissions_required = ["camera"]'
    async with behind(tmp_path, wiki(), f'version = "{version}"\n{claims}') as here:
        told = await listed(here)
        assert told["permissions_required"] == ["camera", "network.outbound"]
        texts = [line.text for line in here.kernel.journal.list_lines("wiki") if line.kind == "problem"]
        assert texts == ["it needs network.outbound, which the file does not say"]
    async with running(tmp_path, entry("a", mgp=claims.partition("\n")[2])) as here:
        told = await listed(here)
        assert (told["mgp_version"], told["extensions"]) == (None, [])
        texts = [line.text for line in here.kernel.journal.list_lines("a") if line.kind == "problem"]
        assert len(texts) == 2 and "'security', and it does not" in texts[0]


@pytest.mark.parametrize("version", ERAS)
async def test_the_marks_of_a_server_hold_and_fronts_notice_nothing_else(tmp_path: Path, version: str) -> None:
    # To the server the kernel itself is a stranger.
    server = wiki(granted=["network.outbound"])
    async with behind(tmp_path, server, f'version = "{version}"') as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=STRANGER) as peer:

            async def use(name: str) -> Any:
                return code_of(await peer.ask("tools/call", {"name": name, "arguments": {}}))

            assert await use("wiki_fetch") == "permission_denied"
            assert await use("wiki_wipe") == "confirmation_required"
            assert await use("wiki_plain") is None
            tools = {one["name"]: one for one in (await peer.ask("tools/list"))["result"]["tools"]}
            assert all("security" not in tool for tool in tools.values())
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=BOB) as peer:
            assert code_of(await peer.ask("tools/call", {"name": "wiki_fetch", "arguments": {}})) is None


async def test_a_tool_that_is_only_called_moderate_costs_its_calls_no_stage(tmp_path: Path) -> None:
    async with behind(tmp_path, wiki()) as here:
        tools = here.kernel.server.mcp.tools.registry
        table = here.kernel.server.composition.unopened.table
        assert {name: table.pipeline(tools.get(f"wiki_{name}")).empty for name in ("fetch", "wipe", "plain")} == {
            "fetch": False,
            "wipe": False,
            "plain": True,
        }


async def test_the_health_that_a_server_speaks_of_is_shown_and_ends_nothing(tmp_path: Path) -> None:
    server, well = wiki(), list[bool]()

    @server.health_check
    def disk() -> bool:
        return bool(well)

    probes = "health = { interval_secs = 0.05, failures = 1 }"
    async with behind(tmp_path, server, probes) as here:
        await until(lambda: here.kernel.ps()[0]["health"] in ("degraded", "unhealthy"))
        assert (await here.kernel.health("wiki"))[0]["status"] in ("degraded", "unhealthy")
        assert here.kernel.ps()[0]["restarts"] == 0
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"]) as peer:
            ping = (await peer.ask("mgp/health/ping", {"server_id": "wiki"}))["result"]
            assert ping["status"] in ("degraded", "unhealthy")


async def test_what_a_server_says_of_its_own_state_is_in_the_log(tmp_path: Path) -> None:
    async with behind(tmp_path, wiki(), f'version = "{HANDSHAKE[-1]}"') as here:
        await until(lambda: any("it says: " in line.text for line in here.kernel.journal.list_lines("wiki")))


LISTENER = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    method, mgp = said["method"], {"version": "0.3.0", "extensions": ["lifecycle"]}
    if method.startswith("mgp/lifecycle"):
        open(sys.argv[1], "a").write(json.dumps(said["params"]) + chr(10))
    opening = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "mgp": mgp}, "serverInfo": {"name": "l"}}
    results = {"initialize": opening, "tools/list": {"tools": []}, "mgp/lifecycle/shutdown": {"accepted": True}}
    if "id" in said:
        answer = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **answer}), flush=True)
"""


@pytest.mark.req("MGP-11.4r")
async def test_a_child_that_speaks_mgp_is_told_why_it_ends(tmp_path: Path) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    heard = tmp_path / "heard.jsonl"
    words = ", ".join(f'"{word}"' for word in ("-I", "-S", tmp_path / "listener.py", heard))
    entry = f'[[servers]]\nid = "l"\ncommand = "{sys.executable}"\nargs = [{words}]\nversion = "{HANDSHAKE[-1]}"\n'

    def reasons() -> list[str]:
        return [json.loads(line)["reason"] for line in heard.read_text().splitlines()] if heard.exists() else []

    async with running(tmp_path, entry) as here:
        await here.kernel.restart("l")
        assert reasons() == ["operator_request"]
        await until(lambda: here.kernel.ps()[0]["state"] == "connected")
    assert reasons() == ["operator_request", "kernel_shutdown"]


async def test_a_server_at_an_address_is_not_told_to_end(tmp_path: Path) -> None:
    async with listening(wiki()) as where:
        entry = url_entry("wiki", f"http://{where.authority}/mcp", f'version = "{HANDSHAKE[-1]}"')
        for _ in range(2):
            async with running(tmp_path, entry) as here:
                assert here.kernel.members["wiki"].said is not None
                assert here.kernel.ps()[0]["state"] == "connected"


async def test_a_session_that_clients_share_is_plain(tmp_path: Path) -> None:
    shared = f'version = "{HANDSHAKE[-1]}"\nper = "shared"'
    async with behind(tmp_path, wiki(), shared) as here:
        assert here.kernel.members["wiki"].said is None
        assert (await here.kernel.health("wiki"))[0]["status"] == "healthy"
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=STRANGER) as peer:
            reply = await peer.ask("tools/call", {"name": "wiki_wipe", "arguments": {}})
            assert code_of(reply) == "confirmation_required"


def server_entry(mgp: MgpEntry | None = None) -> ServerEntry:
    return ServerEntry("s", ServerLaunch("x"), mgp=mgp)


@for_each_row(
    ("file", "said", "level"),
    [
        (None, "trusted", "standard"),
        (None, "core", "standard"),
        (None, "sandboxed", "sandboxed"),
        (None, "untrusted", "untrusted"),
        (None, "king", "standard"),
        ("trusted", "standard", "trusted"),
        ("sandboxed", "trusted", "sandboxed"),
        ("standard", "sandboxed", "standard"),
    ],
)
def test_a_server_may_claim_less_trust_and_never_more(file: str | None, said: str, level: str) -> None:
    told = MgpClaims("0.3.0", trust_level=said)
    assert get_trust_level(build_governing_entry(server_entry(MgpEntry(trust_level=file)), told)) == level
    assert get_trust_level(build_governing_entry(server_entry(), MgpClaims(trust_level=said))) == "standard"


def test_permissions_of_a_whole_server_hold_for_tools_that_say_nothing() -> None:
    said = MgpClaims("0.3.0", permissions=("camera", "not a permission"))
    one = build_governing_entry(server_entry(MgpEntry(permissions_required=("memory.read",))), said)
    assert one.mgp is not None and one.mgp.permissions_required == ("memory.read", "camera")
    each = build_governing_entry(server_entry(), said._replace(sections=frozenset({"tool_security"})))
    assert each.mgp is None


def test_extensions_that_the_kernel_does_not_use_are_those_of_the_file() -> None:
    has = server_entry(MgpEntry(extensions=("streaming", "security", "lifecycle")))
    said = MgpClaims("0.3.0", ("security",), frozenset({"permissions", "tool_security"}))
    assert list_actual_extensions(has, said) == ("streaming", "security")
    assert list(find_contradictions(has, said)) == [
        "the file says that it has the extension 'lifecycle', and it does not"
    ]
    assert list_actual_extensions(server_entry(), said) == ("security",)
    assert list(find_contradictions(server_entry(), said)) == list(find_contradictions(has, None)) == []
