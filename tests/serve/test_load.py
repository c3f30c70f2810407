"""Many clients at once on a real socket: each has its answer, none more than is allowed, and all is audited."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from defserve import Limits, Server
from defserve.client import Client, RemoteServer
from defserve.errors import PeerError
from defserve.server import AuditLog
from defserve.stores.audit.log_file import verify_audit_log
from tests.listening import listening

pytestmark = pytest.mark.anyio

CLIENTS, CALLS = 20, 15
KEY = "k" * 32


@pytest.mark.slow
@pytest.mark.req("GGEN-P4-3")
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_hundreds_of_calls_are_answered_each_with_its_own_and_written_down_once(tmp_path: Path, era: str):
    server = Server("busy", "1", audit=[AuditLog(tmp_path / "audit.log", key=KEY)])

    @server.tool
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def client(first: int, url: str) -> list[int]:
        async with RemoteServer(url).connect(era) as it:
            return [await it.call("double", n=n) for n in range(first, first + CALLS)]

    async with listening(server) as where:
        url = f"http://{where.authority}/mcp"
        answers = await asyncio.gather(*(client(CALLS * number, url) for number in range(CLIENTS)))
    assert [answer for each in answers for answer in each] == [2 * n for n in range(CLIENTS * CALLS)]
    server.mgp.audit.close()
    assert verify_audit_log(tmp_path / "audit.log", key=KEY)
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    executed = [line for line in lines if "TOOL_EXECUTED" in json.dumps(line)]
    assert len(executed) == CLIENTS * CALLS


@pytest.mark.req("GGEN-P4-3")
async def test_whoever_asks_for_too_much_at_once_is_refused_and_the_others_are_not():
    most, running, gate = 4, 0, asyncio.Event()
    server = Server("busy", "1", limits=Limits(in_flight=most, queued=most))

    @server.tool
    async def wait() -> str:
        nonlocal running
        running += 1
        if running == 2 * most:
            gate.set()
        await gate.wait()
        return "done"

    async def outcome(it: Client) -> str:
        try:
            return await it.call("wait")
        except PeerError as error:
            assert error.code == -32603
            return "refused"

    async with listening(server) as where:
        url = f"http://{where.authority}/mcp"
        async with RemoteServer(url).connect("2025-11-25") as greedy, RemoteServer(url).connect("2025-11-25") as modest:
            asked = await asyncio.gather(
                *(outcome(greedy) for _ in range(3 * most)), *(outcome(modest) for _ in range(most))
            )
    assert (asked[: 3 * most].count("refused"), asked[3 * most :].count("done")) == (most, most)
