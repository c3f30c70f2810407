"""The verbs of the Kernel panel, over the control socket and over MGP."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from defserve import Server
from defserve.client.link import ClientLink
from defserve.client.targets import connect_url
from defserve.errors import DefserveError, PeerGone, UsageError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.kernels import KernelOverSocket
from defserve.inspector.protocol import BadMessage
from defserve.serve.lifespans import connect_in_memory
from tests.at_address import at_address
from tests.inspector.asking import do, following
from tests.kernel.governance.governing import governed, tool
from tests.kernel.running import Running, entry, running
from tests.waiting import until

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("era", ["handshake", "stateless"])


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where control sockets are. It is short, because the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@asynccontextmanager
async def inspecting(
    server: Server, era: str = "", control: KernelOverSocket | None = None
) -> AsyncGenerator[Inspection]:
    target = InspectionTarget("it", ("mgp.toml",), lambda: connect_in_memory(server.composition), era, kernel=control)
    async with Inspection(target) as inspection:
        yield inspection


def control_of(here: Running) -> KernelOverSocket:
    return KernelOverSocket(here.path, os.getpid())


@pytest.mark.slow
async def test_the_servers_come_with_their_figures_and_change_as_calls_end(tmp_path: Path):
    async with (
        running(tmp_path, entry("a"), entry("b")) as here,
        inspecting(here.kernel.server, control=control_of(here)) as inspection,
        following(inspection, "kernel.follow") as parts,
    ):
        await until(lambda: bool(parts))
        first = parts[0]
        assert (first["way"], [row["id"] for row in first["servers"]]) == ("control", ["a", "b"])
        assert first["servers"][0]["median_ms"] is None
        assert first["status"]["servers"] == 2
        await here.call("a_add", a=1, b=2)
        await until(lambda: parts[-1]["servers"][0]["median_ms"] is not None)
        row = parts[-1]["servers"][0]
        assert (row["calls_total"], row["errors_total"]) == (1, 0)
        assert sum(step[0] for step in row["history"]["steps"]) == 1
        assert row["restart"] == {"strategy": "on_failure", "window_secs": 300, "backoff_secs": [0.01, 30]}


@pytest.mark.slow
async def test_an_operator_stops_starts_and_restarts_a_server_and_reads_what_it_wrote(tmp_path: Path):
    async with (
        running(tmp_path, entry("a")) as here,
        inspecting(here.kernel.server, control=control_of(here)) as inspection,
        following(inspection, "kernel.logs", server="a") as lines,
    ):
        await until(lambda: any(line["kind"] == "stderr" for line in lines))
        await do(inspection, "kernel.do", verb="stop", server="a")
        assert here.state("a") != "connected"
        await until(lambda: any("operator_request" in line["text"] for line in lines))
        await do(inspection, "kernel.do", verb="start", server="a")
        await here.connected("a")
        before = await here.call("a_pid")
        await do(inspection, "kernel.do", verb="restart", server="a", now=True)
        await here.connected("a")
        assert await here.call("a_pid") != before
        assert (await do(inspection, "kernel.do", verb="reload"))[0]["unchanged"] == ["a"]
        with pytest.raises(UsageError, match="there is no server 'b'"):
            await do(inspection, "kernel.do", verb="stop", server="b")
        with pytest.raises(UsageError, match="stop needs id"):
            await do(inspection, "kernel.do", verb="stop")
        with pytest.raises(BadMessage, match="cannot 'access grant'"):
            await do(inspection, "kernel.do", verb="access grant", server="a")


async def test_held_definitions_are_shown_with_their_difference_and_accepted(tmp_path: Path):
    async with (
        governed(tmp_path, tool("send", "Send a letter."), kernel='on_change = "hold"') as here,
        inspecting(here.here.kernel.server, control=control_of(here.here)) as inspection,
    ):
        await until(lambda: here.here.kernel.members["s"].backend is not None)
        here.offers(tool("send", "Send a letter, and a copy to me."))
        await until(lambda: bool(here.here.kernel.governance.pins.list_held_names("s")))
        (held,) = await do(inspection, "kernel.held", server="s")
        assert (held["tool"], held["change"]) == ("send", "changed")
        assert any("copy to me" in line for line in held["difference"])
        with pytest.raises(UsageError, match="it has changed again"):
            await do(inspection, "kernel.do", verb="pins accept", server="s", tool="send", digest="0" * 64)
        await do(inspection, "kernel.do", verb="pins accept", server="s", tool="send", digest=held["now"])
        assert await do(inspection, "kernel.held", server="s") == []


async def test_a_kernel_that_is_gone_is_told_with_the_command_that_starts_it(tmp_path: Path):
    path = tmp_path / "mgp.toml"
    path.write_text("")
    server = Server("it")
    async with inspecting(server, control=KernelOverSocket(path)) as inspection:
        with pytest.raises(PeerGone, match="fix: start one: defserve kernel"):
            await do(inspection, "kernel.follow")


@pytest.mark.slow
@ERAS
async def test_a_kernel_at_an_address_is_shown_and_restarted_over_mgp(tmp_path: Path, era: str):
    async with (
        running(tmp_path, entry("a"), entry("b")) as here,
        inspecting(here.kernel.server, era) as inspection,
        following(inspection, "kernel.follow", era=era) as parts,
    ):
        await until(lambda: bool(parts))
        first = parts[0]
        assert (first["way"], set(first["verbs"])) == ("mgp", {"restart", "stop"})
        assert [(row["id"], row["state"], row["health"]) for row in first["servers"]] == [
            ("a", "connected", "healthy"),
            ("b", "connected", "healthy"),
        ]
        before = await here.call("a_pid")
        await do(inspection, "kernel.do", verb="restart", server="a", era=era)
        assert await here.call("a_pid") != before
        with pytest.raises(BadMessage, match="cannot be told to reload"):
            await do(inspection, "kernel.do", verb="reload", era=era)
        assert await do(inspection, "kernel.held", server="a", era=era) == []
        async with following(inspection, "kernel.logs", server="a", era=era) as lines:
            await until(lambda: bool(lines))
            assert "control socket" in lines[0]["text"]


@ERAS
async def test_a_stranger_at_an_address_sees_the_servers_and_is_told_why_no_more(tmp_path: Path, era: str):
    async with running(tmp_path, entry("a")) as here, at_address(here.kernel.server) as url:

        @asynccontextmanager
        async def link() -> AsyncGenerator[ClientLink]:
            yield await connect_url(url)

        async with Inspection(InspectionTarget(url, (url,), link, era)) as inspection:
            async with following(inspection, "kernel.follow", era=era) as parts:
                await until(lambda: bool(parts))
            assert [(row["id"], row["state"], row["tools"]) for row in parts[0]["servers"]] == [("a", "connected", 7)]
            assert (parts[0]["verbs"], "not one of its operators" in parts[0]["note"]) == ([], True)
            with pytest.raises(DefserveError, match="may not operate"):
                await do(inspection, "kernel.do", verb="restart", server="a", era=era)


@ERAS
async def test_a_server_that_is_no_kernel_is_told_as_none(era: str):
    server = Server("it")
    async with inspecting(server, era) as inspection:
        async with following(inspection, "kernel.follow", era=era) as parts:
            await until(lambda: bool(parts))
            assert parts == [{"way": None}]
        with pytest.raises(UsageError, match="this server is no kernel"):
            await do(inspection, "kernel.held", server="a", era=era)
