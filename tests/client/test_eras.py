from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from defserve.client import Answers, Client, eras
from defserve.client.eras import MCP_KEY_PREFIX
from defserve.client.links.stdio import ProcessLink
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS
from defserve.serve.address import CredentialsRequired, HttpRefusal
from tests.client.pretend import SILENCE, STATELESS, Fail, PretendServer
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@for_each_row("version", HANDSHAKE_VERSIONS)
async def test_a_pinned_handshake_version_is_asked_for_and_confirmed(version: str):
    server = PretendServer()
    async with Client(server, version=version) as client:
        assert (client.version, client.stateless) == (version, False)
        assert client.server_info["name"] == "pretend"
        assert client.instructions == "Pretend."
    methods = [message["method"] for message in server.sent]
    assert methods == ["initialize", "notifications/initialized"]
    assert server.sent[0]["params"]["protocolVersion"] == version


async def test_a_server_that_counters_a_pinned_version_is_refused():
    server = PretendServer({"initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}})
    with pytest.raises(PeerError, match="'2025-06-18', not 2025-11-25"):
        async with Client(server, version="2025-11-25"):
            pass
    assert server.closed


async def test_opening_takes_no_longer_than_the_client_was_told():
    class Stalled(PretendServer):
        async def send(self, message: bytes) -> None:
            if b"notifications/initialized" in message:
                await asyncio.Event().wait()
            await super().send(message)

    with pytest.raises(PeerTimeout, match="did not take notifications/initialized within 0.01 s"):
        async with Client(Stalled(), version="2025-11-25", timeout=0.01):
            pass


async def test_an_unknown_pinned_version_is_the_callers_mistake():
    with pytest.raises(UsageError, match="there is no protocol version '1999-01-01'"):
        async with Client(PretendServer(), version="1999-01-01"):
            pass


async def test_a_server_that_knows_discover_is_spoken_to_statelessly():
    server = PretendServer({**STATELESS, "tools/list": {"tools": []}})
    async with Client(server) as client:
        assert (client.version, client.stateless) == ("2026-07-28", True)
        assert client.server_info == {"name": "pretend", "version": "2"}
        await client.tools()
    assert [message["method"] for message in server.sent] == ["server/discover", "tools/list"]
    for message in server.sent:
        meta = message["params"]["_meta"]
        assert meta[MCP_KEY_PREFIX + "protocolVersion"] == "2026-07-28"
        assert meta[MCP_KEY_PREFIX + "clientCapabilities"] == {}
        assert meta[MCP_KEY_PREFIX + "clientInfo"]["name"] == "defserve"


@for_each_row("version", [None, "2026-07-28"])
async def test_a_server_that_refuses_a_version_and_names_one_of_ours_is_asked_again(version: str | None):
    server = PretendServer()

    def refuse_once(request: Any) -> None:
        server.replies.update(STATELESS)
        raise Fail(-32022, data={"supported": ["2026-07-28", "2099-01-01"], "requested": "2026-07-28"})

    server.replies["server/discover"] = refuse_once
    async with Client(server, version=version) as client:
        assert client.version == "2026-07-28"
    assert [message["method"] for message in server.sent] == ["server/discover", "server/discover"]


@for_each_row("supported", [["2026-07-28"], ["2099-01-01"], [], None, "2026-07-28", 7])
async def test_a_server_that_keeps_refusing_every_version_is_given_up(supported: Any):
    server = PretendServer({"server/discover": Fail(-32022, data={"supported": supported})})
    with pytest.raises(PeerError):
        async with Client(server):
            pass
    assert len(server.sent) <= 2


@for_each_row("supported", [7, None, {}, [None], "2026-07-28"])
async def test_versions_that_are_no_list_of_texts_are_no_versions(supported: Any):
    server = PretendServer({"server/discover": {"supportedVersions": supported, "capabilities": {}}})
    with pytest.raises(PeerError, match="it names no version"):
        async with Client(server, version="2026-07-28"):
            pass


@for_each_row("code", [-32601, -32600, -32602, 0])
async def test_a_server_that_does_not_know_discover_is_initialized(code: int):
    server = PretendServer({"server/discover": Fail(code)})
    async with Client(server) as client:
        assert client.version == "2025-11-25"


async def test_a_server_that_answers_the_probe_too_late_is_spoken_to_statelessly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(eras, "PROBE_SECONDS", 0.01)
    server = PretendServer({"server/discover": SILENCE})
    server.replies["initialize"] = lambda request: server.replies.update(STATELESS) or refuse()
    async with Client(server, timeout=30) as client:
        assert client.version == "2026-07-28"
    assert [message["method"] for message in server.sent] == ["server/discover", "initialize", "server/discover"]


def refuse() -> None:
    raise Fail(-32600, "the initialize handshake is not accepted")


async def test_a_server_that_is_silent_about_discover_is_initialized():
    server = PretendServer({"server/discover": SILENCE})
    async with Client(server, timeout=0.3) as client:
        assert client.version == "2025-11-25"
    assert server.asked("notifications/cancelled") == []


async def test_an_older_handshake_version_is_accepted_when_negotiating():
    server = PretendServer(
        {"server/discover": Fail(-32601), "initialize": {"protocolVersion": "2024-11-05", "capabilities": {}}}
    )
    async with Client(server) as client:
        assert client.version == "2024-11-05"


async def test_a_version_nobody_knows_is_refused():
    server = PretendServer(
        {"server/discover": Fail(-32601), "initialize": {"protocolVersion": "2031-01-01", "capabilities": {}}}
    )
    with pytest.raises(PeerError, match="2031-01-01"):
        async with Client(server):
            pass


async def test_a_stateless_server_of_other_versions_is_not_initialized():
    refusal = Fail(-32022, "unsupported", {"supported": ["2027-01-01"], "requested": "2026-07-28"})
    server = PretendServer({"server/discover": refusal})
    with pytest.raises(PeerError, match="unsupported"):
        async with Client(server):
            pass
    assert server.asked("initialize") == []


async def test_a_version_refusal_that_names_a_handshake_version_is_an_invitation():
    refusal = Fail(-32022, "unsupported", {"supported": ["2025-06-18", "2025-11-25"], "requested": "2026-07-28"})
    async with Client(PretendServer({"server/discover": refusal})) as client:
        assert client.version == "2025-11-25"


@for_each_row(
    ("answers", "version", "offered"),
    [
        (Answers(), "2025-11-25", {}),
        (Answers(ask=lambda m, s: {}), "2025-06-18", {"elicitation": {}}),
        (Answers(ask=lambda m, s: {}), "2025-11-25", {"elicitation": {"form": {}}}),
        (Answers(ask_url=lambda m, u: None), "2025-06-18", {}),  # type: ignore[arg-type, return-value]
        (Answers(sample=lambda p: "", roots=[]), "2024-11-05", {"sampling": {}, "roots": {}}),
    ],
)
async def test_what_is_offered_follows_the_answers_and_the_version(
    answers: Answers, version: str, offered: dict[str, Any]
):
    server = PretendServer()
    async with Client(server, version=version, answers=answers):
        pass
    assert server.sent[0]["params"]["capabilities"] == offered


async def test_capabilities_of_extensions_are_offered_beside_the_answers():
    server = PretendServer()
    more = {"sampling": {"tools": {}}, "experimental": {"mcpl": {"version": "1"}}}
    async with Client(server, version="2025-11-25", answers=Answers(sample=lambda p: ""), capabilities=more):
        pass
    assert server.sent[0]["params"]["capabilities"] == more


@for_each_row(
    "exits",
    ["at the probe", "after an error to the probe", "after an unreadable line"],
)
async def test_a_server_that_exits_at_the_probe_is_started_again_and_initialized(exits: str):
    line = {
        "at the probe": "",
        "after an error to the probe": """print(json.dumps({"jsonrpc": "2.0", "id": asked["id"],
                "error": {"code": -32600, "message": "expected initialize"}}), flush=True)""",
        "after an unreadable line": "print('expected initialize', flush=True)",
    }[exits]
    program = f"""
import json, sys
for text in sys.stdin:
    asked = json.loads(text)
    if asked["method"] == "server/discover":
        {line or "pass"}
        sys.exit("expected initialize")
    if asked["method"] == "initialize":
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"],
            "result": {{"protocolVersion": "2024-11-05", "capabilities": {{}}, "serverInfo": {{"name": "old"}}}}}}),
            flush=True)
    if asked["method"] == "ping":
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": {{}}}}), flush=True)
"""
    async with Client(await ProcessLink.spawn(sys.executable, ["-c", program])) as client:
        assert (client.version, client.server_info["name"]) == ("2024-11-05", "old")
        await client.ping()


async def test_a_server_that_always_exits_is_started_twice_and_its_last_words_are_told():
    link = await ProcessLink.spawn(sys.executable, ["-c", "import sys; sys.exit('no licence')"])
    with pytest.raises(PeerGone, match="no licence"):
        async with Client(link):
            pass


async def test_the_handshake_era_accepts_any_version_of_it():
    server = PretendServer({"initialize": {"protocolVersion": "2024-11-05", "capabilities": {}}})
    async with Client(server, version="handshake") as client:
        assert client.version == "2024-11-05"
    assert [message["method"] for message in server.sent] == ["initialize", "notifications/initialized"]


@for_each_row("status", [400, 404, 405, 500])
async def test_a_refusal_of_the_probe_by_status_alone_leads_to_initialize(status: int):
    server = PretendServer({"server/discover": SILENCE})
    refusal = HttpRefusal(f"answered HTTP {status}", data={"status": status})

    async def refuse() -> None:
        await server.told(lambda message: message.get("method") == "server/discover")
        server.lose(server.sent[0]["id"], refusal)

    task = asyncio.create_task(refuse())
    async with Client(server) as client:
        assert client.version == "2025-11-25"
    await task


async def test_a_challenge_to_the_probe_is_told_at_once():
    server = PretendServer({"server/discover": SILENCE})

    async def refuse() -> None:
        await server.told(lambda message: message.get("method") == "server/discover")
        server.lose(server.sent[0]["id"], CredentialsRequired("here", 401, "Bearer"))

    task = asyncio.create_task(refuse())
    with pytest.raises(CredentialsRequired):
        async with Client(server):
            pass
    await task
    assert server.asked("initialize") == []
