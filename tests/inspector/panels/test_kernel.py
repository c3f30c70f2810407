"""The verbs of the Kernel panel, over the control socket and over MGP."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Server
from defserve.errors import PeerGone, UsageError
from defserve.inspector.inspection import Inspection
from defserve.inspector.kernels.control import KernelControl
from defserve.inspector.panels.kernel import VERBS
from defserve.inspector.protocol import BadMessage, Request
from defserve.inspector.target import Target
from defserve.runner.memory import serving
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
async def inspecting(server: Server, era: str = "", control: KernelControl | None = None) -> AsyncGenerator[Inspection]:
    target = Target("it", ("mgp.toml",), lambda: serving(server.composition), era, kernel=control)
    async with Inspection(target) as inspection:
        yield inspection


@asynccontextmanager
async def following(inspection: Inspection, verb: str, **arguments: Any) -> AsyncGenerator[list[Any]]:
    """The parts of a verb, as they come."""
    parts: list[Any] = []

    async def take(part: Any) -> None:
        parts.append(part)

    async def work() -> None:
        await VERBS[verb](inspection, Request(arguments, take))

    task = asyncio.create_task(work())
    try:
        yield parts
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def asked(inspection: Inspection, name: str, **arguments: Any) -> Any:
    async def take(part: Any) -> None:
        raise AssertionError(part)

    return await VERBS[name](inspection, Request(arguments, take))


def control_of(here: Running) -> KernelControl:
    return KernelControl(here.path, os.getpid())


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


async def test_an_operator_stops_starts_and_restarts_a_server_and_reads_what_it_wrote(tmp_path: Path):
    async with (
        running(tmp_path, entry("a")) as here,
        inspecting(here.kernel.server, control=control_of(here)) as inspection,
        following(inspection, "kernel.logs", server="a") as lines,
    ):
        await until(lambda: any(line["kind"] == "stderr" for line in lines))
        await asked(inspection, "kernel.do", verb="stop", server="a")
        assert here.state("a") != "connected"
        await until(lambda: any("operator_request" in line["text"] for line in lines))
        await asked(inspection, "kernel.do", verb="start", server="a")
        await here.connected("a")
        before = await here.call("a_pid")
        await asked(inspection, "kernel.do", verb="restart now", server="a")
        await here.connected("a")
        assert await here.call("a_pid") != before
        assert (await asked(inspection, "kernel.do", verb="reload"))[0]["unchanged"] == ["a"]
        with pytest.raises(UsageError, match="there is no server 'b'"):
            await asked(inspection, "kernel.do", verb="stop", server="b")
        with pytest.raises(BadMessage, match="cannot 'access grant'"):
            await asked(inspection, "kernel.do", verb="access grant", server="a")


async def test_held_definitions_are_shown_with_their_difference_and_accepted(tmp_path: Path):
    async with (
        governed(tmp_path, tool("send", "Send a letter."), kernel='on_change = "hold"') as here,
        inspecting(here.here.kernel.server, control=control_of(here.here)) as inspection,
    ):
        await until(lambda: here.here.kernel.members["s"].backend is not None)
        here.offers(tool("send", "Send a letter, and a copy to me."))
        await until(lambda: bool(here.here.kernel.governance.pins.held("s")))
        (held,) = await asked(inspection, "kernel.held", server="s")
        assert (held["tool"], held["change"]) == ("send", "changed")
        assert any("copy to me" in line for line in held["difference"])
        await asked(inspection, "kernel.do", verb="accept", server="s", tool="send")
        assert await asked(inspection, "kernel.held", server="s") == []


async def test_a_kernel_that_is_gone_is_told_with_the_command_that_starts_it(tmp_path: Path):
    path = tmp_path / "mgp.toml"
    path.write_text("")
    server = Server("it")
    async with inspecting(server, control=KernelControl(path)) as inspection:
        with pytest.raises(PeerGone, match="fix: start one: defserve kernel"):
            await asked(inspection, "kernel.follow")


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
        await asked(inspection, "kernel.do", verb="restart", server="a", era=era)
        assert await here.call("a_pid") != before
        with pytest.raises(BadMessage, match="cannot be told to reload"):
            await asked(inspection, "kernel.do", verb="reload", era=era)
        assert await asked(inspection, "kernel.held", server="a", era=era) == []
        async with following(inspection, "kernel.logs", server="a", era=era) as lines:
            await until(lambda: bool(lines))
            assert "control socket" in lines[0]["text"]


@ERAS
async def test_a_server_that_is_no_kernel_is_told_as_none(era: str):
    server = Server("it")
    async with inspecting(server, era) as inspection:
        async with following(inspection, "kernel.follow", era=era) as parts:
            await until(lambda: bool(parts))
            assert parts == [{"way": None}]
        with pytest.raises(UsageError, match="this server is no kernel"):
            await asked(inspection, "kernel.held", server="a", era=era)
