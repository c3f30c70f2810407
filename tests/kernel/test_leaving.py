"""The id of a server is taken until that server has really gone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from defserve.kernel import kernel_extension
from tests.kernel.running import BACKEND, Running, entry, running
from tests.protocols.mgp.callers import ALICE, code_of, speaking
from tests.raw import HANDSHAKE, Json, Raw, turns
from tests.waiting import until

pytestmark = pytest.mark.anyio

COMMANDS = f'commands = ["{sys.executable} -I -S {BACKEND}"]'
HEAD = '[kernel]\nadmins = ["alice"]\n'
RULES = f"[kernel.register]\nenabled = true\n{COMMANDS}\n"
WANTED: Json = {"id": "r", "command": sys.executable, "args": ["-I", "-S", str(BACKEND)], "keep": True}
OFF = f"{HEAD}watch = false\n{RULES}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Leaving(NamedTuple):
    """A registered server that does not end before `gate` is open."""

    here: Running
    peer: Raw
    gate: asyncio.Event
    gone: asyncio.Task[Json]

    async def register(self) -> Json:
        return await self.peer.ask("mgp/discovery/register", WANTED)


@asynccontextmanager
async def leaving(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = OFF) -> AsyncGenerator[Leaving]:
    async with running(folder, text) as here:
        async with (
            speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as peer,
            speaking(here.kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as other,
        ):
            assert (await peer.ask("mgp/discovery/register", WANTED))["result"]["status"] == "connected"
            backend, gate = here.kernel.members["r"].backend, asyncio.Event()
            assert backend is not None
            stop = backend.stop

            async def drained(reason: str, timeout: float) -> None:
                await gate.wait()
                await stop(reason, timeout)

            monkeypatch.setattr(backend, "stop", drained)
            gone = asyncio.create_task(other.ask("mgp/discovery/deregister", {"id": "r"}))
            await until(lambda: "r" not in here.kernel.members)
            try:
                yield Leaving(here, peer, gate, gone)
            finally:
                gate.set()


@pytest.mark.req("MGP-15.4")
async def test_a_server_is_not_registered_while_its_predecessor_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leaving(tmp_path, monkeypatch) as one:
        kernel = one.here.kernel
        refused = await one.register()
        assert code_of(refused) == 4101
        assert "still ending: try again" in refused["error"]["message"]
        assert "r" not in kernel.members
        one.gate.set()
        assert (await one.gone)["result"]["status"] == "deregistered"
        assert (await one.register())["result"]["status"] == "connected"
        await kernel.access.set_entry("deny", "eve", "r")
        assert "r_add" in kernel.server.mcp.tools.registry
        assert len(await kernel.access.list_entries("r")) == 2
        assert kernel.journal.list_lines("r")


async def test_a_reload_does_not_take_an_id_whose_server_is_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leaving(tmp_path, monkeypatch) as one:
        one.here.write(OFF, entry("r"))
        done = await one.here.kernel.reload()
        assert "still ending" in done["failed"]["r"]
        assert done["added"] == []
        assert "r" not in one.here.kernel.members
        one.gate.set()
        await one.gone
        assert (await one.here.kernel.reload())["added"] == ["r"]
        await one.here.connected("r")


async def test_a_server_of_the_file_that_had_to_wait_for_an_id_comes_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_extension, "WATCH_SECONDS", 0.01)
    text = f"{HEAD}{RULES}"
    async with leaving(tmp_path, monkeypatch, text) as one:
        one.here.write(text, entry("r"))
        assert "r" in (await one.here.kernel.reload())["failed"]
        one.gate.set()
        await until(lambda: "r" in one.here.kernel.members)
        await one.here.connected("r")


async def test_a_broken_file_is_not_told_again_and_again_while_a_server_of_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_extension, "WATCH_SECONDS", 0.01)
    text, looks = f"{HEAD}{RULES}", list[int]()
    async with leaving(tmp_path, monkeypatch, text) as one:
        kernel = one.here.kernel

        async def refresh() -> None:
            looks.append(1)

        one.here.write(text, entry("r"))
        await kernel.reload()
        monkeypatch.setattr(kernel, "refresh", refresh)
        one.here.write("not toml")
        await until(lambda: "nothing is changed" in caplog.text)
        one.gate.set()
        await until(lambda: kernel.is_behind)
        seen = len(looks)
        await until(lambda: len(looks) > seen + 10)
        assert caplog.text.count("nothing is changed") <= 2
        assert code_of(await one.register()) == 4101
        one.here.write(text, entry("r"))
        await one.gone
        await until(lambda: "r" in kernel.members)


async def test_of_two_that_end_a_server_one_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leaving(tmp_path, monkeypatch) as one:
        await one.here.kernel.remove("r", "its creator has left")
        one.gate.set()
        assert (await one.gone)["result"]["status"] == "deregistered"


async def test_a_server_ends_and_its_id_is_free_though_nobody_waits_for_that(tmp_path: Path) -> None:
    async with running(tmp_path, OFF) as here:
        kernel = here.kernel
        async with speaking(kernel.server, HANDSHAKE[-1], ["discovery"], who=ALICE) as peer:
            await peer.ask("mgp/discovery/register", WANTED)
            member = kernel.members["r"]
            async with member.changing:
                given_up = asyncio.create_task(kernel.remove("r", "deregistered"))
                await until(lambda: "r" not in kernel.members)
                given_up.cancel()
                await asyncio.gather(given_up, return_exceptions=True)
                assert code_of(await peer.ask("mgp/discovery/register", WANTED)) == 4101
            await until(lambda: member.state == "disconnected")
            await until(lambda: not kernel.leaving)
            assert (await peer.ask("mgp/discovery/register", WANTED))["result"]["status"] == "connected"


async def test_a_kernel_ends_after_its_servers_though_nobody_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()
    async with running(tmp_path, entry("a")) as here:
        backend = here.kernel.members["a"].backend
        assert backend is not None
        stop = backend.stop

        async def drained(reason: str, timeout: float) -> None:
            await turns()
            await stop(reason, timeout)
            ended.append("a")

        monkeypatch.setattr(backend, "stop", drained)
        given_up = asyncio.create_task(here.kernel.remove("a", "configuration_change"))
        await until(lambda: "a" not in here.kernel.members)
        given_up.cancel()
    assert ended == ["a"]
