"""What is refused to a client is refused to its code: each road on which a call can end, in both eras.

Every tool that may be refused says that it ran, so a refusal that comes too late is found.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

from defserve import ApiKeys, Auth, Context, Limits, Refused, Server, Shell, ShellCommand, Within, dangerous, moderate
from defserve.auth import StaticTokens
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.code_mode import CodeMode
from defserve.sandbox import monty
from defserve.server import AccessPolicy, Entry
from tests.code_mode.peers import ASKS, NO, YES, failure, run, value
from tests.protocols.mgp.callers import ALICE, STRANGER, Trail, speaking
from tests.raw import ERAS, STATELESS, Json, raw
from tests.rows import for_each_row

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"),
]


def made(ran: list[str], **more: Any) -> Server:
    options: Json = {"code_mode": True, **more}
    server = Server("guarded", "1", **options)

    @server.tool
    def look(name: str = "") -> str:
        ran.append(f"look {name}")
        return "seen"

    @server.tool
    @moderate("network.outbound", confirm=False)
    def fetch(name: str) -> str:
        ran.append("fetch")
        return "fetched"

    @server.tool
    @dangerous("filesystem.write")
    def wipe(disk: str) -> str:
        ran.append(f"wipe {disk}")
        return f"wiped {disk}"

    @server.tool
    @moderate("shell.execute", confirm=False)
    def shell(command: Annotated[ShellCommand, Shell(allowed={"git": ["status"]})]) -> str:
        ran.append(command.text)
        return "done"

    @server.tool(scopes=["tools:admin"])
    def admin() -> str:
        ran.append("admin")
        return "done"

    return server


class Road(NamedTuple):
    """A call that is refused: to whom, by which server, and what its code sees."""

    code: str
    sees: str
    options: Json = {}
    who: Principal = LOCAL_PRINCIPAL
    offers: Json = {}
    answer: Json | None = None


TOKENS = StaticTokens({"a-token-of-some-length": "alice"})
DENY: Json = {"permissions": "deny_all"}
GRANTED: Json = {"granted": ["filesystem.write", "network.outbound", "shell.execute"]}
NOBODY = AccessPolicy("opt-out", [Entry("tool_grant", "alice", "look", "deny")])

ROADS = {
    "permission": Road("fetch('x')", "PermissionError: fetch needs a permission", DENY),
    "permission of a stranger": Road("fetch('x')", "PermissionError: fetch needs a permission", {}, STRANGER),
    "guard": Road("shell('rm -rf /')", "PermissionError", GRANTED),
    "confirmation declined": Road(
        "wipe('a')", "PermissionError: wipe was not confirmed", GRANTED, LOCAL_PRINCIPAL, ASKS, NO
    ),
    "confirmation: the answer is no": Road(
        "wipe('a')",
        "was not confirmed",
        GRANTED,
        LOCAL_PRINCIPAL,
        ASKS,
        {"action": "accept", "content": {"value": False}},
    ),
    "confirmation of a client that cannot be asked": Road("wipe('a')", "this client cannot be asked", GRANTED),
    "confirmation of a stranger": Road("wipe('a')", "unauthenticated caller", GRANTED, STRANGER, ASKS, YES),
    "scope": Road("admin()", "NameError: no tool is called 'admin'", {"auth": TOKENS}, Principal("bob")),
    "scope, by name": Road("x = admin", "NameError: name 'admin'", {"auth": TOKENS}, Principal("bob")),
    "access": Road("look()", "PermissionError: alice has no access to look", {"access": NOBODY}, ALICE),
    "rate": Road(
        "for n in range(9): look()",
        "too many calls of look",
        {"auth": TOKENS, "limits": Limits(rate=0.001, burst=3)},
        ALICE,
    ),
}


@pytest.mark.slow
@for_each_row("mgp", [(), ("security", "permissions")], ids=["plain", "MGP"])
@for_each_row("version", ERAS)
@for_each_row("road", ROADS.values(), ids=ROADS)
async def test_what_is_refused_to_a_client_is_refused_to_its_code(road: Road, version: str, mgp: tuple[str, ...]):
    ran: list[str] = []
    server = made(ran, **road.options)

    def answer(message: str) -> Json:
        assert road.answer is not None
        return road.answer

    answering = answer if road.answer is not None else None
    async with speaking(server, version, mgp, who=road.who, capabilities=road.offers) as peer:
        text = failure(await run(peer, road.code, answering))
    assert road.sees in text
    assert ran in ([], ["look "] * 3)


@pytest.mark.parametrize("version", ERAS)
async def test_an_mgp_client_is_asked_although_it_confirms_calls_of_its_own(version: str):
    ran: list[str] = []
    asked: list[str] = []

    def answering(message: str) -> Json:
        asked.append(message)
        return YES

    async with speaking(made(ran, **GRANTED), version, ("security",), capabilities=ASKS) as peer:
        assert value(await run(peer, "wipe('sda')", answering)) == "wiped sda"
    assert asked == ["Run wipe?\n  disk: sda"]
    assert ran == ["wipe sda"]


@pytest.mark.parametrize("version", ERAS)
async def test_every_call_is_confirmed_on_its_own_and_made_once(version: str):
    ran: list[str] = []
    asked: list[str] = []

    def answering(message: str) -> Json:
        asked.append(message.splitlines()[-1].strip())
        return YES if "sdb" not in message else NO

    code = (
        "look('before')\ndone = []\nfor disk in ['sda', 'sdb', 'sdc']:\n    try:\n        done.append(wipe(disk))\n"
        "    except PermissionError as error:\n        done.append('no')\nlook('after')\ndone"
    )
    async with raw(made(ran, **GRANTED), version, ASKS) as peer:
        assert value(await run(peer, code, answering)) == ["wiped sda", "no", "wiped sdc"]
    assert asked == ["disk: sda", "disk: sdb", "disk: sdc"]
    assert ran == ["look before", "wipe sda", "wipe sdc", "look after"]


@pytest.mark.parametrize("version", ERAS)
async def test_every_call_is_audited_under_its_own_name_with_the_trace_of_the_run(version: str):
    trail, ran = Trail(), list[str]()
    server = made(ran, audit=trail, **DENY)
    async with raw(server, version) as peer:
        params = {"name": "run_code", "arguments": {"code": "look('a')\nfetch('x')"}, "trace_id": "run-7"}
        await peer.ask("tools/call", params)
    told = [(e["event_type"], e["target"].get("tool_name"), e["details"].get("called_by")) for e in trail.events]
    assert told[0] == ("TOOL_EXECUTED", "look", "run_code")
    assert ("PERMISSION_DENIED", "fetch", "run_code") in told or ("TOOL_BLOCKED", "fetch", "run_code") in told
    assert told[-1][1:] == ("run_code", None)
    assert {event["trace_id"] for event in trail.events} == {"run-7"}


@pytest.mark.parametrize("version", ERAS)
async def test_a_wrapper_of_the_author_judges_the_calls_of_code(version: str):
    ran: list[str] = []
    server = made(ran)

    @server.around("tools/call")
    async def closed(call: Any, params: Json, next: Any) -> Any:
        if params["name"] == "look":
            raise Refused("closed on Sundays")
        return await next(call, params)

    async with raw(server, version) as peer:
        assert "PermissionError: closed on Sundays" in failure(await run(peer, "look()"))
    assert ran == []


@pytest.mark.parametrize("version", ERAS)
async def test_grants_that_a_client_sends_count_for_its_code(version: str):
    ran: list[str] = []
    async with speaking(made(ran, **DENY), version, ("security", "permissions")) as peer:
        meta = {"dev.cloto/mgp/grants": {"network.outbound": "approved"}}
        if version != STATELESS:
            await peer.ask("mgp/permission/grant", {"grants": {"network.outbound": "approved"}})
            meta = {}
        reply = await peer.ask(
            "tools/call", {"name": "run_code", "arguments": {"code": "fetch('x')"}, **({"_meta": meta} if meta else {})}
        )
    assert value(reply["result"]) == "fetched", reply


async def test_a_file_outside_is_refused_to_code(tmp_path: Path):
    server = Server("files", "1", code_mode=True)

    @server.tool
    @moderate("filesystem.read", confirm=False)
    def read(path: Annotated[Path, Within(tmp_path)]) -> str:
        return path.read_text()

    (tmp_path / "a.txt").write_text("inside")
    async with raw(server) as peer:
        assert value(await run(peer, "read('a.txt')")) == "inside"
        assert "PermissionError" in failure(await run(peer, "read('../../etc/passwd')"))


@pytest.mark.parametrize("version", ERAS)
async def test_a_timeout_of_a_tool_is_an_exception_and_the_run_goes_on(version: str):
    server = Server("slow", "1", code_mode=CodeMode(seconds=20))

    @server.tool(timeout=0.05)
    async def slow() -> str:
        await asyncio.sleep(60)
        return ""

    code = "try:\n    slow()\nexcept TimeoutError as error:\n    text = str(error)\ntext"
    async with raw(server, version) as peer:
        assert value(await run(peer, code)) == "timed out after 0.05 s"


async def test_code_mode_itself_can_be_refused():
    ran: list[str] = []
    policy = AccessPolicy("opt-out", [Entry("tool_grant", "alice", "run_code", "deny")])
    async with speaking(made(ran, access=policy), STATELESS, who=ALICE) as peer:
        reply = await peer.ask("tools/call", {"name": "run_code", "arguments": {"code": "look()"}})
    assert "alice has no access to run_code" in failure(reply["result"])
    assert ran == []


@pytest.mark.parametrize("name", ["run_code", "look", "wipe"])
async def test_code_cannot_call_by_way_of_a_meta_tool(name: str):
    ran: list[str] = []
    async with raw(made(ran, search="always"), STATELESS, ASKS) as peer:
        through = f"await call_tool('mgp_tools_call', {{'name': {name!r}, 'arguments': {{'code': 'look()'}}}})"
        for code in (through, through.replace("_", ".").replace("call.tool", "call_tool"), f"mgp_tools_call({name!r})"):
            assert "RuntimeError" in (text := failure(await run(peer, code))) or "NameError" in text
    assert ran == []


async def test_a_tool_for_views_alone_is_not_for_the_code_of_a_model():
    server, ran = Server("s", "1", code_mode=True), list[str]()

    @server.tool(visible_to="app")
    def press() -> str:
        ran.append("pressed")
        return ""

    views: Json = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}
    async with raw(server, STATELESS, views) as peer:
        assert "press" in [tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]]
        assert "no tool is called 'press'" in failure(await run(peer, "press()"))
        assert "no tool is called 'press'" in failure(await run(peer, "await call_tool('press')"))
        assert "press" not in (await peer.call("describe_tools"))["content"][0]["text"]
    assert ran == []


async def test_a_question_of_a_tool_that_nobody_can_answer_is_an_exception():
    server = Server("s", "1", code_mode=True)

    @server.tool
    async def greet(ctx: Context) -> str:
        return await ctx.ask("Who?", str)

    async with raw(server) as peer:
        code = "try:\n    greet()\nexcept RuntimeError as error:\n    text = str(error)\ntext"
        assert "a client that offers elicitation" in value(await run(peer, code))


@pytest.mark.parametrize("version", ERAS)
async def test_keys_that_come_in_messages_name_what_code_may_call(version: str, tmp_path: Path):
    keys, ran = ApiKeys(f"sqlite:///{tmp_path / 'keys.db'}", pepper="p" * 32), list[str]()
    server = made(ran, auth=Auth(keys, in_messages=True))
    token, _ = await keys.create("alice", permissions=["ToolInvoke(run_code)", "ToolInvoke(look)"], per_minute=3)
    async with raw(server, version) as peer:

        async def tried(code: str) -> Json:
            params = peer.with_meta({"name": "run_code", "arguments": {"code": code}})
            message = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params}
            await peer.send(message | {"auth": {"type": "bearer", "token": token}})
            return (await peer.reply_to(99))["result"]

        assert value(await tried("look()")) == "seen"
        assert "admin" in failure(await tried("admin()"))
        assert "too many calls with this key" in str(await tried("look()\nlook()\nlook()"))
    assert set(ran) <= {"look "} and len(ran) < 3
    await keys.close()


@pytest.mark.parametrize("takes_tasks", [True, False])
@pytest.mark.parametrize("task", ["optional", "required"])
async def test_code_waits_for_a_tool_that_runs_as_a_task(task: Any, takes_tasks: bool):
    server = Server("s", "1", code_mode=True)

    @server.tool(task=task)
    async def build(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    offers: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}} if takes_tasks else {}
    async with raw(server, STATELESS, offers) as peer:
        assert value(await run(peer, "build(1) + build(2)")) == 6
