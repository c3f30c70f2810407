"""A server that goes to its peers: as a process, with signals, token and exit codes; and how long it waits."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from defserve import Server
from defserve.errors import PeerTimeout
from defserve.serve import outbound
from defserve.serve.lifespans import enter_lifespans
from defserve.serve.outbound import FIGHT_SECONDS, MAX_BACKOFF_SECONDS, OutboundRunner, ReplacedBackoff
from tests.protocols.mcpx.gateways import FULL, TinyGateway, gateway, stranger
from tests.serve.processes import FRAMEWORK
from tests.waiting import until

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio
from defserve import Server
server = Server("s", "1")

@server.tool
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"
"""


@asynccontextmanager
async def process(folder: Path, there: TinyGateway, token: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    (folder / "served.py").write_text(SOURCE)
    (folder / "token").write_text(token + "\n")
    command = ["-m", "defserve", "run", "served.py", "--on", f"mcpx+{there.url}", "--token-file", "token"]
    found = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(FRAMEWORK)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield found
    finally:
        if found.returncode is None:
            found.kill()
            await found.wait()


@pytest.mark.slow
async def test_a_signal_to_terminate_lets_calls_finish(tmp_path: Path):
    async with gateway(worker=FULL, ann=FULL) as there, stranger(there, "ann") as ann:
        async with process(tmp_path, there, "worker") as server:
            await ann.until(lambda envelope: envelope["payload"].get("participant", {}).get("id") == "worker")
            id = await ann.ask("worker", "tools/call", {"name": "wait", "arguments": {"seconds": 0.3}})
            await ann.answer(await ann.ask("worker", "ping", id=2))
            server.send_signal(signal.SIGTERM)
            assert "result" in (await ann.answer(id))["payload"]
            assert await asyncio.wait_for(server.wait(), 10) == 0


@pytest.mark.slow
async def test_an_interrupt_ends_at_once(tmp_path: Path):
    async with gateway(worker=FULL, ann=FULL) as there, stranger(there, "ann") as ann:
        async with process(tmp_path, there, "worker") as server:
            await ann.until(lambda envelope: envelope["payload"].get("participant", {}).get("id") == "worker")
            await ann.ask("worker", "tools/call", {"name": "wait", "arguments": {"seconds": 30}})
            await ann.answer(await ann.ask("worker", "ping", id=2))
            server.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(server.wait(), 10) == 130


@pytest.mark.slow
async def test_a_token_that_is_refused_ends_the_process_and_says_why(tmp_path: Path):
    async with gateway(worker=FULL) as there, process(tmp_path, there, "wrong") as server:
        assert server.stderr is not None
        assert b"bad token" in await server.stderr.read()
        assert await asyncio.wait_for(server.wait(), 10) == 1


async def test_a_place_that_does_not_let_us_in_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbound, "ADMISSION_SECONDS", 0.05)
    async with gateway(worker=FULL) as there:
        there.silent = True
        with pytest.raises(PeerTimeout, match="not let in"):
            async with Server("calculator", "1").join(f"mcpx+{there.url}", token="worker"):
                pass


async def test_a_token_in_the_address_of_a_place_is_in_no_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "defserve")
    async with (
        gateway(worker=FULL) as there,
        Server("calculator", "1").join(f"mcpx+{there.url}&token=s3cret", token="worker"),
    ):
        pass
    assert "connected to ws://127.0.0.1:" in caplog.text and "s3cret" not in caplog.text


async def test_who_is_told_to_stop_does_not_wait_for_a_place_that_says_nothing():
    came, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        writer.close()
        left.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{silent.sockets[0].getsockname()[1]}/ws?topic=demo"
    server = Server("calculator", "1")
    async with enter_lifespans(server.composition) as engine:
        place = OutboundRunner(server.composition, server.mcpx.new_carrier(), url)
        staying = asyncio.create_task(place.stay_connected(engine))
        await came.wait()
        place.stop(0)
        await asyncio.wait_for(staying, 10)
        await left.wait()
    silent.close()


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_twice_leaves_its_place_and_no_connection(turns: int):
    async with gateway(worker=FULL) as there:
        server = Server("calculator", "1")
        async with enter_lifespans(server.composition) as engine:
            guest = server.mcpx.new_carrier()
            place = OutboundRunner(server.composition, guest, there.url, token="worker")
            staying = asyncio.create_task(place.stay_connected(engine))
            await guest.admitted.wait()
            staying.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            staying.cancel()
            await asyncio.wait((staying,))
            assert not guest.admitted.is_set()
            await until(lambda: not there.members)


def test_waits_grow_to_a_bound_and_begin_anew():
    backoff = ReplacedBackoff(1, 8)
    for bound in (1, 2, 4, 8, 8):
        assert bound / 2 <= backoff.next_wait() <= bound
    backoff.reset()
    assert backoff.next_wait() <= 1


def test_who_is_replaced_again_and_again_stays_out_for_longer_each_time():
    now = 0.0
    backoff = ReplacedBackoff(1, 8, clock=lambda: now)
    for bound in (8, 16, 32):
        backoff.reset()
        now += FIGHT_SECONDS  # this one was out for an hour, then the other
        backoff.on_replaced()
        assert bound / 2 <= backoff.next_wait() <= bound
    for _ in range(20):
        backoff.on_replaced()
    assert MAX_BACKOFF_SECONDS / 2 <= backoff.next_wait() <= MAX_BACKOFF_SECONDS


def test_an_outage_after_replacements_is_waited_out_like_any_other():
    backoff = ReplacedBackoff(1, 8)
    for _ in range(5):
        backoff.on_replaced()
    backoff.next_wait()
    for _ in range(3):  # it comes back, and finds nobody there
        assert backoff.next_wait() <= 8
    backoff.reset()
    for bound in (1, 2, 4, 8, 8, 8):
        assert bound / 2 <= backoff.next_wait() <= bound


def test_replacements_are_forgotten_when_the_place_was_kept_for_longer_than_anybody_stays_out():
    now = 0.0
    backoff = ReplacedBackoff(1, 8, clock=lambda: now)
    for _ in range(5):
        backoff.on_replaced()
    backoff.reset()
    now += FIGHT_SECONDS + 1
    backoff.on_replaced()
    assert backoff.next_wait() <= 8
    backoff.on_replaced()
    assert 8 <= backoff.next_wait() <= 16
