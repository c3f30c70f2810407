"""Whatever goes wrong with a backend, the error says which one it was: in its text, and in its data."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from defserve import Command, Limits, Remote, Server
from defserve.client import Client
from defserve.client.links import child_process
from defserve.errors import PeerError
from defserve.proxying.mounted import RestartPolicy
from tests.waiting import until

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
ERROR = "dev.defserve/error"
SOON = RestartPolicy("on_failure", 50, 300, 0.01, 0.02)

# Does with each request what the request itself says.
OBEDIENT = """
import json, os, sys, time

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def word(params):
    return params.get("uri") or params.get("argument", {}).get("value") or params["arguments"].get("does")

LISTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}, "completions": {}},
        "serverInfo": {"name": "obedient", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]},
    "prompts/list": {"prompts": [{"name": "do", "arguments": [{"name": "does"}]}]},
    "resources/list": {"resources": [{"uri": f"do://{do}", "name": do} for do in ("nothing", "leave", "text")]},
    "resources/templates/list": {"resourceTemplates": []},
    "ping": {},
}
for line in sys.stdin:
    said = json.loads(line)
    id, method, params = said.get("id"), said.get("method"), said.get("params", {})
    if method in LISTS:
        say(id=id, result=LISTS[method])
        continue
    if id is None or method is None:
        continue
    if "/" not in method or method.startswith("server/"):
        say(id=id, error={"code": -32601, "message": "no"})
        continue
    does, long = word(params).removeprefix("do://"), "x" * 200_000
    if does == "leave":
        os._exit(3)
    elif does == "close":
        os.close(1)
        time.sleep(30)
    elif does == "text":
        say(id=id, result="text")
    elif does == "no result":
        say(id=id)
    elif does == "half an error":
        say(id=id, error={"code": "x"})
    elif does == "no error":
        say(id=id, error="no")
    elif does == "other error":
        say(id=id, error={"code": -32000, "message": "no", "data": {"server_id": "bank", "trace_id": "t", "why": 1}})
    elif does == "no json":
        print('{"jsonrpc":"2.0","id":%d,"result":{{{' % id, flush=True)
    elif does == "long":
        say(id=id, result={"text": long})
    elif does == "long, id last":
        print('{"result":{"text":"%s"},"jsonrpc":"2.0","id":%d}' % (long, id), flush=True)
    elif does == "large":
        say(id=id, result={"content": [{"type": "text", "text": "x" * 20_000}]})
    elif does == "no list":
        say(id=id, result={"content": 5})
    elif does == "answer":
        say(id=id, result={"structuredContent": {"a": 1}})
"""

# What the tool does → a part of the text, and what is said of effects.
ROWS: dict[str, tuple[str, bool | None]] = {
    "nothing": ("server 'office' timed out after 0.2 s", True),
    "text": ("server 'office' gave a result that is not an object", True),
    "no result": ("server 'office' gave an answer that cannot be read", True),
    "half an error": ("server 'office' gave an error without a message", None),
    "no error": ("server 'office' gave an answer that cannot be read", True),
    "other error": ("no", None),
    "no json": ("server 'office' gave an answer that cannot be read: Parse error", True),
    "long": ("server 'office' gave an answer that cannot be read: longer than 100000 bytes", True),
    "long, id last": ("server 'office' gave an answer that cannot be read: longer than 100000 bytes", True),
    "large": ("the result of server 'office' is larger than 10000 bytes", None),
    "no list": ("server 'office' gave a result without a list as its 'content'", True),
    "leave": ("server 'office' crashed before it answered", True),
}


@asynccontextmanager
async def office(**options: Any) -> AsyncGenerator[tuple[Server, Client]]:
    server = Server("front", limits=Limits(response=10_000))
    command = Command(sys.executable, "-I", "-S", "-c", OBEDIENT, per="shared", version="handshake")
    server.mount(command, prefix="office", restarts=SOON, **options)
    [backend] = server.mounts.backends.values()
    async with server.connect("handshake") as client:
        await until(lambda: backend.state == "connected")
        yield server, client


async def told(client: Client, method: str, params: Json) -> tuple[str, Json]:
    """The text and the data of an error, in whichever form it comes."""
    try:
        result = await client.request(method, params)
    except PeerError as error:
        return error.message, error.data
    assert result.get("isError"), result
    return result["content"][0]["text"], result["_meta"][ERROR]


def doing(does: str) -> Json:
    return {"name": "office_do", "arguments": {"does": does}}


async def test_every_failure_of_a_tool_names_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "MAX_MESSAGE_BYTES", 100_000)
    async with office(timeout=0.2) as (_, client):
        found = {"nothing": await told(client, "tools/call", doing("nothing"))}
    async with office() as (_, client):
        found |= {does: await told(client, "tools/call", doing(does)) for does in ROWS if does != "nothing"}
    assert {does: data["server_id"] for does, (_, data) in found.items()} == dict.fromkeys(ROWS, "office")
    wrong = {does: text for does, (text, _) in found.items() if not text.startswith(ROWS[does][0])}
    assert wrong == {}
    effects = {does: data.get("may_have_had_effects") for does, (_, data) in found.items()}
    assert effects == {does: row[1] for does, row in ROWS.items()}
    # Whose error it is, and under which trace, is not for the server to say.
    other = found["other error"][1]
    assert (other["inner_server_id"], other["inner_trace_id"], other["why"]) == ("bank", "t", 1)
    assert other["trace_id"] != "t"


async def test_so_does_every_other_kind_of_request() -> None:
    requests: list[tuple[str, str, Json]] = [
        (does, method, params)
        for does in ("nothing", "text", "leave")
        for method, params in (
            ("prompts/get", doing(does)),
            ("resources/read", {"uri": f"do://office/{does}"}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "office_do"}, "argument": {"name": "does", "value": does}},
            ),
        )
    ]
    async with office(timeout=0.2) as (_, hasty), office() as (_, patient):
        for does, method, params in requests:
            text, data = await told(hasty if does == "nothing" else patient, method, params)
            assert (data["server_id"], text.startswith(ROWS[does][0])) == ("office", True), text


async def test_a_result_without_content_is_complete_for_every_client() -> None:
    async with office() as (_, client):
        result = await client.request("tools/call", doing("answer"))
        assert result == {"structuredContent": {"a": 1}, "content": []}


async def test_a_call_that_found_no_room_in_time_says_so_and_had_no_effects() -> None:
    async with office(timeout=0.3, in_flight=1) as (_, client):
        calls = [asyncio.create_task(told(client, "tools/call", doing("nothing"))) for _ in range(2)]
        (_, sent), (text, data) = await asyncio.gather(*calls)
        assert text == "server 'office' timed out after 0.3 s before the call was sent; try again"
        assert (data["server_id"], data["error_type"]) == ("office", "upstream_timeout")
        assert "may_have_had_effects" in sent
        assert "may_have_had_effects" not in data


async def test_a_server_that_does_not_run_is_named_though_nobody_knows_its_tools() -> None:
    async with office() as (server, client):
        [backend] = server.mounts.backends.values()
        await client.tools()
        await backend.stop("operator_request", 1)
        text, data = await told(client, "tools/call", doing("answer"))
        assert text == "server 'office' is not connected (disconnected): it is stopped"
        assert (data["server_id"], data["state"]) == ("office", "disconnected")
        for method, params in (("prompts/get", doing("text")), ("resources/read", {"uri": "do://office/text"})):
            assert (await told(client, method, params))[1]["server_id"] == "office"
        assert "Unknown tool" in (await told(client, "tools/call", {"name": "other"}))[0]
        backend.open_to = lambda session, identity: False
        assert "Unknown tool" in (await told(client, "tools/call", doing("answer")))[0]
        backend.open_to = None
        await backend.start()
        await until(lambda: backend.state == "connected")
        assert "Unknown tool" in (await told(client, "tools/call", {"name": "office_other"}))[0]


def page(status: int) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\n/srv/" % status


# What a web server answers → a part of the text.
WEB: dict[str, tuple[bytes, str]] = {
    "500": (page(500), "server 'office' refused the call (HTTP 500)"),
    "404": (page(404), "server 'office' refused the call (HTTP 404)"),
    "429": (page(429), "server 'office' refused the call (HTTP 429); try again later"),
    "page": (page(200), "server 'office' gave no usable answer"),
    "cut": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "server 'office'"),
    "other": (b"\x00\xff no HTTP\r\n\r\n", "server 'office'"),
}


async def test_a_server_at_an_address_is_named_and_its_address_is_not_told() -> None:
    wanted = [""]

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                size = int(head.partition(b"content-length:")[2].split(b"\r")[0] or 0)
                said = json.loads(await reader.readexactly(size) or b"{}")
                if said.get("method") == "tools/call":
                    writer.write(WEB[wanted[0]][0])
                    break
                found = {"result": LISTS[said["method"]]} if said.get("method") in LISTS else {"error": NO}
                body = json.dumps({"jsonrpc": "2.0", "id": said.get("id"), **found}).encode()
                kind = b"200 OK\r\ncontent-type: application/json" if "id" in said else b"202 OK" if said else b"405 No"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    web = await asyncio.start_server(answered, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    server = Server("front")
    server.mount(
        Remote(f"http://127.0.0.1:{port}/mcp", version="2025-11-25", per="shared"), prefix="office", restarts=SOON
    )
    async with web, server.connect("handshake") as client:
        for wanted[0], (_, says) in WEB.items():
            await until(lambda: server.mounts.backends["office"].state == "connected")
            text, data = await told(client, "tools/call", doing("answer"))
            assert (data["server_id"], text.startswith(says)) == ("office", True), text
            assert [word for word in (str(port), "/srv/", "127.0.0.1") if word in json.dumps([text, data])] == []


NO = {"code": -32601, "message": "no"}
LISTS: Json = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "w"}},
    "tools/list": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]},
    "ping": {},
}
