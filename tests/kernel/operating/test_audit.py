"""The audit log of a kernel: read by operators over MGP, as a tool, and from the command line."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from defserve.auth import StaticTokens
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.cli.commands.kernel import main
from defserve.errors import UsageError
from defserve.kernel.control import ask_kernel
from tests.kernel.running import Running, entry, running
from tests.listening import listening
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, STRANGER, Trail, code_of, speaking
from tests.raw import ERAS, HANDSHAKE

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


PLACES = {"file": "audit.jsonl", "sqlite": "sqlite:///audit.db"}


@asynccontextmanager
async def audited(folder: Path, where: str = "audit.jsonl", **options: Any) -> AsyncGenerator[Running]:
    head = f'[kernel]\nadmins = ["alice"]\naudit = "{where}"\n'
    async with running(folder, head, entry("a"), **options) as here:
        yield here
        here.kernel.server.mgp.audit.close()


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("version", ERAS)
async def test_operators_replay_the_log(tmp_path: Path, where: str, version: str) -> None:
    async with audited(tmp_path, PLACES[where]) as here:
        await here.call("a_pid")
        for who in (ALICE, LOCAL_PRINCIPAL):
            async with speaking(here.kernel.server, version, ["audit"], who=who) as peer:
                page = (await peer.ask("mgp/audit/replay"))["result"]
                assert "TOOL_EXECUTED" in [event["event_type"] for event in page["events"]]
                assert [event["seq"] for event in page["events"]] == list(range(1, page["next_seq"]))
                assert page["has_more"] is False
                first = (await peer.ask("mgp/audit/replay", {"limit": 1}))["result"]
                assert (len(first["events"]), first["has_more"], first["next_seq"]) == (1, True, 2)
                rest = (await peer.ask("mgp/audit/replay", {"since_seq": 2}))["result"]
                assert rest["events"] == page["events"][1:]
                late = (await peer.ask("mgp/audit/replay", {"since_timestamp": "2999-01-01T00:00:00Z"}))["result"]
                assert late["events"] == []
    assert (tmp_path / PLACES[where].removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize(
    "who",
    [BOB, LOOPBACK, STRANGER, Principal("local", kind="anonymous"), Principal("alice", kind="anonymous")],
    ids=lambda who: f"{who.kind} {who.id}",
)
async def test_nobody_else_reads_it(tmp_path: Path, who: Principal) -> None:
    async with audited(tmp_path) as here:
        await here.call("a_pid")
        async with speaking(here.kernel.server, HANDSHAKE[-1], ["audit"], who=who) as peer:
            reply = await peer.ask("mgp/audit/replay", {"agent_id": "alice"})
            assert code_of(reply) == 1000
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=who) as peer:
            reply = await peer.ask("tools/call", {"name": "mgp_audit", "arguments": {}})
            assert code_of(reply) == "permission_denied"
            assert "TOOL_EXECUTED" not in json.dumps(reply)


BAD: tuple[dict[str, Any], ...] = (
    {"since_seq": -1},
    {"since_seq": "1"},
    {"since_seq": True},
    {"since_seq": 10**30},
    {"limit": 0},
    {"limit": 10**6},
    {"limit": 1.5},
    {"since_timestamp": "yesterday"},
    {"since_timestamp": 5},
    {"since_seq": 1, "since_timestamp": "2026-01-01T00:00:00Z"},
)


async def test_bad_params_are_refused(tmp_path: Path) -> None:
    async with audited(tmp_path) as here, speaking(here.kernel.server, HANDSHAKE[-1], ["audit"]) as peer:
        for params in BAD:
            assert code_of(await peer.ask("mgp/audit/replay", params)) == -32602


async def test_without_audit_or_a_log_there_is_no_such_method(tmp_path: Path) -> None:
    async with audited(tmp_path) as here, speaking(here.kernel.server, HANDSHAKE[-1], ["lifecycle"]) as peer:
        assert code_of(await peer.ask("mgp/audit/replay")) == -32601
    async with (
        running(tmp_path, entry("a"), audit=Trail()) as here,
        speaking(here.kernel.server, HANDSHAKE[-1], ["audit"]) as peer,
    ):
        assert code_of(await peer.ask("mgp/audit/replay")) == -32601
        with pytest.raises(UsageError, match="no audit log"):
            await asyncio.to_thread(lambda: list(ask_kernel(here.path, {"verb": "audit"})))


async def test_the_log_is_shown_and_checked_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with audited(tmp_path) as here:

        async def typed(*words: str, exit: int = 0) -> list[str]:
            assert await asyncio.to_thread(main, ["audit", *words, "--config", str(here.path)]) == exit
            return capsys.readouterr().out.splitlines()

        for _ in range(3):
            await here.call("a_pid")
        last = await typed("-n", "2")
        assert len(last) == 2
        assert last[1].split()[2:] == ["TOOL_EXECUTED", "SUCCESS", "local", "a", "a_pid"]
        assert json.loads((await typed("-n", "1", "--json"))[0])["target"] == {"server_id": "a", "tool_name": "a_pid"}
        assert "intact: 4 events" in (await typed("--verify"))[0]
        log = tmp_path / "audit.jsonl"
        log.write_bytes(log.read_bytes().replace(b"a_pid", b"b_pid", 1))
        assert "broken" in (await typed("--verify", exit=1))[0]
        with pytest.raises(UsageError, match="cannot be read"):
            await asyncio.to_thread(lambda: list(ask_kernel(here.path, {"verb": "audit"})))


async def test_the_log_is_followed(tmp_path: Path) -> None:
    async with audited(tmp_path) as here:
        events = here.kernel.audit(last=1, follow=True)
        assert (await anext(events))["event_type"] == "SERVER_CONNECTED"
        await here.call("a_pid")
        assert (await anext(events))["event_type"] == "TOOL_EXECUTED"
        await events.aclose()


@pytest.mark.slow
async def test_operators_without_mgp_have_tools_for_it(tmp_path: Path) -> None:
    names = {"mgp_audit", "mgp_health", "mgp_server_restart"} | {
        f"mgp_access_{it}" for it in ("query", "grant", "revoke")
    }
    async with audited(tmp_path) as here:
        async with speaking(here.kernel.server, HANDSHAKE[-1], who=ALICE) as peer:

            async def use(name: str, **arguments: Any) -> Any:
                reply = await peer.ask("tools/call", {"name": name, "arguments": arguments})
                assert code_of(reply) is None, reply
                return reply["result"]["structuredContent"]

            assert names <= {one["name"] for one in (await peer.ask("tools/list"))["result"]["tools"]}
            (one,) = (await use("mgp_health"))["servers"]
            assert (one["id"], one["status"]) == ("a", "healthy")
            assert (await use("mgp_health", server_id="a"))["servers"][0]["id"] == "a"
            assert await use("mgp_server_restart", server_id="a") == {"id": "a", "status": "connected"}
            about = {"entry_type": "server_grant", "agent_id": "bob", "server_id": "a"}
            assert (await use("mgp_access_grant", **about, permission="deny"))["granted_by"] == "alice"
            assert (await use("mgp_access_query", agent_id="bob", server_id="a"))["permission"] == "deny"
            assert (await use("mgp_access_revoke", **about))["revoked"] is True
            assert (await use("mgp_audit"))["events"]
            reply = await peer.ask("tools/call", {"name": "mgp_health", "arguments": {"server_id": "x"}})
            assert code_of(reply) == "server_not_found"
        for who in (BOB, STRANGER, LOOPBACK):
            async with speaking(here.kernel.server, HANDSHAKE[-1], who=who) as peer:
                assert not names & {one["name"] for one in (await peer.ask("tools/list"))["result"]["tools"]}
                about = {"entry_type": "server_grant", "agent_id": who.id, "server_id": "a", "permission": "allow"}
                for name, arguments in (
                    ("mgp_access_grant", about),
                    ("mgp_access_query", {"agent_id": "alice", "server_id": "a"}),
                    ("mgp_server_restart", {"server_id": "a"}),
                    ("mgp_health", {}),
                    ("mgp_tools_call", {"name": "mgp_server_restart", "arguments": {"server_id": "a"}}),
                ):
                    reply = await peer.ask("tools/call", {"name": name, "arguments": arguments})
                    assert code_of(reply) in ("permission_denied", "access_denied"), (name, reply)
                # Who may not call a tool does not learn what it takes.
                for name in sorted({*names, "mgp_servers", "mgp_server_register", "mgp_server_deregister"}):
                    for method, code in (("tools/call", "permission_denied"), ("tools/validate", -32602)):
                        reply = await peer.ask(method, {"name": name, "arguments": {"nonsense": 1}})
                        assert code_of(reply) == code, reply
                        assert not re.search(r"server_id|agent_id|command|since_seq|nonsense", str(reply)), reply
        assert here.kernel.ps()[0]["restarts"] == 1


@pytest.mark.slow
async def test_over_rest_a_server_that_nobody_knows_is_a_404(tmp_path: Path) -> None:
    auth = StaticTokens({"key": "alice", "other": "bob"})
    async with (
        audited(tmp_path, auth=auth) as here,
        listening(here.kernel.server, rest=True) as where,
        httpx2.AsyncClient(base_url=f"http://{where.authority}") as web,
    ):

        async def post(tool: str, key: str = "key", **arguments: Any) -> tuple[int, str]:
            answer = await web.post(f"/tools/{tool}", json=arguments, headers={"authorization": f"Bearer {key}"})
            return answer.status_code, answer.json()["error"]["type"]

        about = {"entry_type": "server_grant", "agent_id": "bob", "server_id": "x", "permission": "allow"}
        assert await post("mgp_access_grant", **about) == (404, "server_not_found")
        assert await post("mgp_server_deregister", id="x") == (404, "server_not_found")
        assert await post("mgp_audit", "other") == (403, "permission_denied")
