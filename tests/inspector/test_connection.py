from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.client import ClientLink, HttpLink, ProcessLink, RemoteServer, SignIn, StoredSignIn, connect_url
from defserve.client.signin.credentials import MemoryCredentialStore
from defserve.errors import PeerError, PeerGone
from defserve.inspector import era_connection
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import BadMessage
from defserve.limits import Limits
from defserve.serve.lifespans import connect_in_memory
from defserve.serve.session_opener import serve_on_loopback
from tests.client.signin.company import company
from tests.inspector.conftest import Inspect, Run
from tests.waiting import until

pytestmark = pytest.mark.anyio

# A server of the handshake era alone, that ends when it is asked to.
OLD = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if said.get("method") == "initialize":
        about = {"name": "old", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif said.get("method") == "tools/list":
        result = {"tools": [{"name": "stop", "inputSchema": {"type": "object"}}]}
    elif said.get("method") == "tools/call":
        sys.exit("stopped by hand")
    elif "id" in said:
        unknown = {"code": -32601, "message": "unknown"}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "error": unknown}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}), flush=True)
"""


def old_server(folder: Path) -> InspectionTarget:
    (folder / "old.py").write_text(OLD)

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        yield await ProcessLink.spawn(sys.executable, [str(folder / "old.py")])

    return InspectionTarget("old.py", ("--", "python", "old.py"), link)


def pushes(inspection: Inspection) -> list[tuple[str, Any]]:
    heard = list[tuple[str, Any]]()
    inspection.pages.append(lambda topic, data: heard.append((topic, data)))
    return heard


async def test_the_newest_era_is_agreed_on_and_the_other_opened_when_it_is_used(inspect: Inspect, do: Run):
    async with inspect() as inspection:
        assert (await do(inspection, "era.open"))["era"] == "stateless"
        assert list(inspection.connections) == ["stateless"]
        assert (await do(inspection, "era.open", era="handshake"))["server"]["name"] == "greenhouse"
        assert {entry.era for entry in inspection.recorder.get_messages(0, 99)} >= {"stateless", "handshake"}
        with pytest.raises(BadMessage, match="unknown era"):
            await do(inspection, "era.open", era="bronze")


async def test_the_first_era_can_be_chosen(inspect: Inspect, do: Run):
    async with inspect(era="handshake") as inspection:
        assert (await do(inspection, "era.open"))["era"] == "handshake"


async def test_a_server_of_one_era_refuses_the_other_and_goes_on_in_its_own(tmp_path: Path, do: Run):
    async with Inspection(old_server(tmp_path)) as inspection:
        assert (await do(inspection, "era.open"))["era"] == "handshake"
        with pytest.raises(PeerError):
            await do(inspection, "era.open", era="stateless")
        assert inspection.connections["stateless"].state == "refused"
        assert [tool["definition"]["name"] for tool in (await do(inspection, "tools.list"))["tools"]] == ["stop"]


async def test_a_server_that_goes_away_is_told_and_opened_again(
    tmp_path: Path, do: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(era_connection, "MIN_PAUSE_SECONDS", 0.01)
    async with Inspection(old_server(tmp_path)) as inspection:
        await do(inspection, "era.open")
        heard = pushes(inspection)
        with pytest.raises(PeerGone):
            await do(inspection, "tools.call", tool="stop", arguments={})
        await until(lambda: any(topic == "connection" and data["state"] == "lost" for topic, data in heard))
        lost = next(data for topic, data in heard if topic == "connection" and data["state"] == "lost")
        assert "stopped by hand" in lost["message"] and lost["next"] == 0.01
        await until(lambda: heard[-1][1].get("state") == "open")
        assert (await do(inspection, "tools.list"))["tools"]


async def test_while_nobody_is_there_the_reason_is_told_and_a_retry_is_at_once(
    do: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(era_connection, "MIN_PAUSE_SECONDS", 3600.0)
    address = "http://127.0.0.1:9/mcp"

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        yield HttpLink(address)

    server = Server("late", "1")
    async with Inspection(InspectionTarget("late", ("late",), link)) as inspection:
        with pytest.raises(PeerGone, match="cannot be reached"):
            await do(inspection, "tools.list")
        assert inspection.hello()["connections"][0]["next"] == 3600.0
        async with serve_on_loopback(server.asgi(), Limits()) as address:
            await do(inspection, "connection.retry")
            await until(lambda: inspection.connection().state == "open")
            assert (await do(inspection, "tools.list"))["tools"] == []


async def test_a_server_that_wants_a_sign_in_is_said_how_and_tried_again(do: Run):
    store = MemoryCredentialStore()
    async with company() as there:

        @asynccontextmanager
        async def link() -> AsyncGenerator[ClientLink]:
            yield await connect_url(there.url, auth=StoredSignIn(store))

        async with Inspection(InspectionTarget(there.url, (there.url,), link)) as inspection:
            with pytest.raises(PeerError, match=f"defserve login {there.url}"):
                await do(inspection, "tools.list")
            async with RemoteServer(there.url, auth=SignIn(redirect=there, store=store)).connect():
                await do(inspection, "connection.retry")
                await until(lambda: inspection.connection().state == "open")
                assert len((await do(inspection, "tools.list"))["tools"]) == 1
            shown = [
                inspection.recorder.describe_message(entry.seq) for entry in inspection.recorder.get_messages(0, 99)
            ]
            assert "authorization" in str(shown) and "access-1" not in str(shown)


async def test_a_server_at_an_address_that_goes_away_is_noticed_by_the_next_request(
    do: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(era_connection, "MIN_PAUSE_SECONDS", 3600.0)
    server = Server("gone", "1")

    @server.tool
    def one() -> int:
        return 1

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        yield HttpLink(address)

    async with serve_on_loopback(server.asgi(), Limits()) as address:
        inspection = await Inspection(InspectionTarget("gone", ("gone",), link)).__aenter__()
        await do(inspection, "tools.list")
    with pytest.raises(PeerError):
        await do(inspection, "tools.list")
    await until(lambda: inspection.connection().state == "lost")
    await inspection.__aexit__()


async def test_changed_lists_are_told(inspect: Inspect, do: Run):
    server = Server("growing", "1")

    @server.tool
    def one() -> int:
        return 1

    async with inspect(server) as inspection:
        await do(inspection, "tools.list", era="stateless")
        await do(inspection, "tools.list", era="handshake")
        heard = pushes(inspection)

        @server.tool
        def two() -> int:
            return 2

        for era in ("stateless", "handshake"):
            await until(lambda era=era: ("changed", {"era": era, "kind": "tools"}) in heard)


async def test_the_status_is_told_while_a_page_looks(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    from defserve.inspector import inspection as room

    monkeypatch.setattr(room, "STATUS_SECONDS", 0.01)
    async with inspect() as inspection:
        heard = pushes(inspection)
        await do(inspection, "tools.call", tool="help", arguments={})
        await until(lambda: any(topic == "status" and data["messages"] >= 4 for topic, data in heard))


async def test_a_version_that_does_not_start_is_told_until_one_serves(inspect: Inspect):
    async with inspect() as inspection:
        heard, build = pushes(inspection), inspection.build
        lines = [f"line {number} token=abcdefghijklmnopqrstuvwxyz0123456789" for number in range(100)]
        build.report_problem("calc.py:3", "SyntaxError: invalid syntax", lines, is_serving=True)
        told = inspection.hello()["build"]
        assert (told["where"], told["text"], told["serving"]) == ("calc.py:3", "SyntaxError: invalid syntax", True)
        assert len(told["lines"]) == 40 and "abcdefghij" not in str(told)
        build.clear_problem()
        build.clear_problem()
        assert inspection.hello()["build"] is None
        assert [data and data["where"] for topic, data in heard if topic == "build"] == ["calc.py:3", None]


async def test_our_own_audit_trail_is_kept(inspect: Inspect, do: Run):
    async with inspect() as inspection:
        await do(inspection, "tools.call", tool="help", arguments={})
        assert any(event.get("event_type") == "TOOL_EXECUTED" for event in inspection.audit.events)


async def test_a_conversation_that_ended_badly_when_it_was_reopened_is_not_reopened_twice():
    server, problems, told = Server("reopened", "1"), [PeerGone("it did not end well")], list[Any]()

    @asynccontextmanager
    async def link() -> AsyncGenerator[Any]:
        async with connect_in_memory(server.composition) as peer:
            yield peer
        if problems:
            raise problems.pop()

    async with Inspection(InspectionTarget("it", ("it.py",), link)) as inspection:
        inspection.pages.append(lambda topic, data: told.append(data) if topic == "connection" else None)
        await inspection.client()
        connection = inspection.connection()
        connection.reopen()
        await until(lambda: not problems and connection.state == "lost")
        connection.retry()
        await inspection.client()
        connection.on_server_gone(PeerGone("it has left"))
        await until(lambda: connection.state in ("lost", "opening"))
        assert told[-1].get("message") == "it has left"
