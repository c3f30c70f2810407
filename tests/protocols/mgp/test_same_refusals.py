"""The same calls are refused whoever asks: a client without MGP loses the wire fields, never the protection.

Each case names a tool, arguments that are refused and arguments that are not, and the shape of the refusal without
and with MGP. A guard's refusal is always a result that a model can act on;
a missing permission or access is an error where MGP was negotiated.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest
from pydantic import BaseModel

from defserve import Code, Context, PublicUrl, Server, Shell, ShellCommand, Url, Within, dangerous, moderate, validator
from defserve.guard import network as egress
from defserve.server import AccessPolicy, Entry
from tests import asgi
from tests.protocols.mgp.callers import offer
from tests.raw import HANDSHAKE, STATELESS, Json, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
STRANGER = "203.0.113.7"
GRANTED = ["shell.execute", "network.outbound", "filesystem.read", "code_execution", "memory.write"]
SPOKEN = ("security", "code_safety")

# Peer: protocol version, extensions offered, whether it comes over HTTP from somewhere else, unauthenticated.
PEERS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "plain": (SESSION, (), False),
    "MGP": (SESSION, SPOKEN, False),
    "stateless": (STATELESS, (), False),
    "stateless MGP": (STATELESS, SPOKEN, False),
    "anonymous HTTP": (SESSION, (), True),
    "anonymous HTTP, MGP": (SESSION, SPOKEN, True),
    "anonymous HTTP, stateless": (STATELESS, (), True),
    "anonymous HTTP, stateless MGP": (STATELESS, SPOKEN, True),
}


class Shape(NamedTuple):
    """How a refusal looks: its symbol in a result, and the number it has with MGP; `as_error` replaces the result."""

    symbol: str
    number: int | None
    as_error: bool = False


BLOCKED, UNSAFE = Shape("validation_blocked", 1010, True), Shape("code_safety_violation", 1011)
FORBIDDEN, SHUT_OUT = Shape("permission_denied", 1000, True), Shape("access_denied", 1001, True)
UNCONFIRMED = Shape("confirmation_required", None)


class Case(NamedTuple):
    tool: str
    refused: Json
    allowed: Json | None
    shape: Shape
    options: Json = {}


class Task(BaseModel):
    command: ShellCommand


@validator
def short(text: str) -> str | None:
    return "too long" if len(text) > 5 else None


def made(root: Path, ran: list[str], options: Json) -> Server:
    """A server with a tool for every guard; each tells that it ran."""
    given: Json = {"granted": GRANTED, "confirm": "never"} | options
    server = Server("guarded", "1", **given)

    @server.tool
    @dangerous("shell.execute")
    def run(command: Annotated[ShellCommand, Shell(allowed={"git": ["status"], "echo": None})]) -> None:
        ran.append(command.text)

    @server.tool
    @moderate("filesystem.read")
    def look(command: Annotated[ShellCommand, Shell(mode="readonly")]) -> None:
        ran.append(command.text)

    @server.tool
    @dangerous("shell.execute")
    def run_all(commands: list[ShellCommand], more: dict[str, Task] | None = None) -> None:
        ran.append("all")

    @server.tool
    @dangerous("shell.execute", validator="sandbox")
    def run_text(command: str) -> None:
        ran.append(command)

    @server.tool
    @moderate("network.outbound")
    def fetch(url: PublicUrl) -> None:
        ran.append(url)

    @server.tool
    @moderate("network.outbound")
    def fetch_api(url: Annotated[PublicUrl, Url(hosts=("api.example.com",), schemes=("https",))]) -> None:
        ran.append(url)

    @server.tool
    @moderate("network.outbound", validator="none")
    async def fetch_text(url: str, ctx: Context) -> None:
        await ctx.http.get(url)
        ran.append(url)

    @server.tool
    @moderate("filesystem.read")
    def read(path: Annotated[Path, Within(root)]) -> None:
        ran.append(str(path))

    @server.tool
    @dangerous("code_execution")
    def evaluate(code: Annotated[str, Code(max_bytes=100)]) -> None:
        ran.append(code)

    @server.tool
    @dangerous("code_execution")
    def evaluate_strictly(code: Annotated[str, Code(level="strict", allow=["math"])]) -> None:
        ran.append(code)

    @server.tool
    @moderate("memory.write", validator=[short])
    def note(text: str) -> None:
        ran.append(text)

    return server


def denying(*agents: str) -> AccessPolicy:
    return AccessPolicy("opt-out", [Entry("tool_grant", agent, "note", "deny") for agent in agents])


NOTE: Json = {"text": "short"}
CASES: dict[str, Case] = {
    # -- guards
    "shell: operator": Case("run", {"command": "git status; id"}, {"command": "git status"}, BLOCKED),
    "shell: expansion": Case("run", {"command": "echo $(id)"}, {"command": "echo hi"}, BLOCKED),
    "shell: not listed": Case("run", {"command": "git push"}, {"command": "git status"}, BLOCKED),
    "shell: by path": Case("run", {"command": "/tmp/git status"}, None, BLOCKED),
    "shell: readonly": Case("look", {"command": "touch x"}, {"command": "ls"}, BLOCKED),
    "shell: in a list": Case("run_all", {"commands": ["ls", "id; id"]}, {"commands": ["ls"]}, BLOCKED),
    "shell: in a model": Case("run_all", {"commands": [], "more": {"a": {"command": "id; id"}}}, None, BLOCKED),
    "shell: as JSON text": Case("run_all", {"commands": '["id; id"]'}, {"commands": '["ls"]'}, BLOCKED),
    "shell: by name": Case("run_text", {"command": "id | sh"}, {"command": "ls"}, BLOCKED),
    "url: private": Case("fetch", {"url": "http://10.0.0.1/"}, {"url": "https://api.example.com/"}, BLOCKED),
    "url: as a number": Case("fetch", {"url": "http://2130706433/"}, None, BLOCKED),
    "url: metadata": Case("fetch", {"url": "http://169.254.169.254/latest"}, None, BLOCKED),
    "url: scheme": Case("fetch", {"url": "file:///etc/passwd"}, None, BLOCKED),
    "url: resolves inside": Case("fetch", {"url": "https://inside.example.com/"}, None, BLOCKED),
    "url: other host": Case(
        "fetch_api", {"url": "https://other.example.com/"}, {"url": "https://api.example.com/"}, BLOCKED
    ),
    "url: by ctx.http": Case("fetch_text", {"url": "http://127.0.0.1/"}, None, BLOCKED),
    "path: traversal": Case("read", {"path": "../secret"}, {"path": "a.txt"}, BLOCKED),
    "path: absolute": Case("read", {"path": "/etc/passwd"}, None, BLOCKED),
    "code: import": Case("evaluate", {"code": "import os"}, {"code": "1 + 1"}, UNSAFE),
    "code: dunder": Case("evaluate", {"code": "().__class__.__base__"}, None, UNSAFE),
    "code: size": Case("evaluate", {"code": "1 + " * 30 + "1"}, None, UNSAFE),
    "code: strict": Case("evaluate_strictly", {"code": "import json"}, {"code": "import math"}, UNSAFE),
    "author's own": Case("note", {"text": "too long"}, NOTE, BLOCKED),
    # -- permissions
    "permission: deny_all": Case("note", NOTE, None, FORBIDDEN, {"permissions": "deny_all"}),
    "permission: config_only": Case("note", NOTE, None, FORBIDDEN, {"permissions": "config_only", "granted": []}),
    "permission: another granted": Case(
        "run", {"command": "git status"}, None, FORBIDDEN, {"permissions": "config_only", "granted": ["memory.write"]}
    ),
    "permission before guard": Case("run", {"command": "id; id"}, None, FORBIDDEN, {"permissions": "deny_all"}),
    # -- access
    "access: opt-in": Case("note", NOTE, None, SHUT_OUT, {"access": lambda: AccessPolicy("opt-in")}),
    "access: denied": Case("note", NOTE, None, SHUT_OUT, {"access": lambda: denying("local", f"anonymous:{STRANGER}")}),
    "access before permission": Case(
        "note", NOTE, None, SHUT_OUT, {"access": lambda: AccessPolicy("opt-in"), "permissions": "deny_all"}
    ),
    # -- confirmation
    "confirmation": Case("run", {"command": "git status"}, None, UNCONFIRMED, {"confirm": "always"}),
    "guard before confirmation": Case("run", {"command": "id; id"}, None, BLOCKED, {"confirm": "always"}),
}


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def system(host: str, port: int) -> list[str]:
        return ["10.0.0.1"] if host == "inside.example.com" else ["93.184.216.34"]

    monkeypatch.setattr(egress, "resolve_with_system", system)


@asynccontextmanager
async def connected(server: Server, peer: str) -> AsyncGenerator[Raw | asgi.Peer]:
    version, extensions, is_stranger = PEERS[peer]
    capabilities = offer(version, *extensions) if extensions else {}
    if not is_stranger:
        async with raw(server, version, capabilities) as local:
            yield local
        return
    async with asgi.living(server.asgi()) as app:
        stranger = asgi.Peer(app, version, capabilities)
        stranger.address = STRANGER
        yield await stranger.open()


def check_shape(reply: Json, shape: Shape, *, speaks: bool) -> None:
    if shape.as_error and speaks:
        error = reply["error"]
        assert (error["code"], error["data"]["error_type"]) == (shape.number, shape.symbol)
        assert error["data"]["_mgp"]["code"] == shape.number
        assert error["data"]["trace_id"]
        return
    result = reply["result"]
    assert result["isError"] is True
    told = result["_meta"]["dev.defserve/error"]
    assert (told["error_type"], bool(told["trace_id"])) == (shape.symbol, True)
    assert ("_mgp" in result) is (speaks and shape.number is not None)
    if shape in (BLOCKED, UNSAFE):
        assert told["status"] == "rejected"
        assert told["violations"]
        assert told["code"] == (shape.number if speaks else shape.symbol.upper())
        assert result["content"][0]["text"].startswith(f"{told['reason']}: {told['violations'][0]}")


@pytest.mark.slow
@pytest.mark.req("MGP-1.1", "MGP-4.5", "MGP-7.4", "MGP-8.1", "MGP-14.4")
@for_each_row("peer", PEERS)
@for_each_row("case", CASES)
async def test_the_same_call_is_refused_for_everyone(case: str, peer: str, tmp_path: Path):
    tool, refused, allowed, shape, given = CASES[case]
    options = {name: value() if callable(value) else value for name, value in given.items()}
    ran: list[str] = []
    async with connected(made(tmp_path, ran, options), peer) as client:
        reply = await client.ask("tools/call", {"name": tool, "arguments": refused})
        check_shape(reply, shape, speaks=bool(PEERS[peer][1]))
        assert ran == []
        if allowed is not None:
            reply = await client.ask("tools/call", {"name": tool, "arguments": allowed})
            assert not reply["result"].get("isError"), reply
            assert len(ran) == 1


@pytest.mark.slow
@pytest.mark.req("MGP-16.2")
@for_each_row(("case", "peer"), itertools.product(CASES, PEERS), every=5)
async def test_a_tool_that_calls_others_is_no_way_around_a_refusal(case: str, peer: str, tmp_path: Path):
    tool, refused, allowed, shape, given = CASES[case]
    options = {name: value() if callable(value) else value for name, value in given.items()}
    ran: list[str] = []
    async with connected(made(tmp_path, ran, {**options, "search": "always"}), peer) as client:

        async def call(arguments: Json) -> Json:
            inner = {"name": tool, "arguments": arguments}
            return await client.ask("tools/call", {"name": "mgp_tools_call", "arguments": inner})

        check_shape(await call(refused), shape, speaks=bool(PEERS[peer][1]))
        assert ran == []
        if allowed is not None:
            reply = await call(allowed)
            assert not reply["result"].get("isError"), reply
            assert len(ran) == 1


@for_each_row("peer", PEERS)
async def test_what_is_shut_out_is_not_listed_either(peer: str, tmp_path: Path):
    for policy, seen in [(AccessPolicy("opt-in"), False), (denying("local", f"anonymous:{STRANGER}"), True)]:
        async with connected(made(tmp_path, [], {"access": policy}), peer) as client:
            names = {tool["name"] for tool in (await client.ask("tools/list"))["result"]["tools"]}
        assert "note" not in names
        assert ("run" in names) is seen
