"""`defserve top`: figures of a server or kernel that runs."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.cli.commands.top import (
    ToolFigures,
    TopSnapshot,
    iter_snapshot_lines,
    parse_samples,
    read_metrics,
    read_workers,
)
from defserve.cli.screen_blocks import Table
from defserve.server.metrics import Metrics
from tests.at_address import at_address
from tests.cli.running import Run
from tests.listening import listening

INFINITE = float("inf")


@pytest.mark.anyio
async def test_our_metrics_are_read_back():
    metrics = Metrics()
    server = Server("s", "1", extensions=[metrics])
    odd = 'a "b\\'

    @server.tool(name="add")
    def add(a: int) -> int:
        return a

    async with server.connect() as client:
        for a in (1, 2, "x"):
            await client.call_raw("add", {"a": a})
        metrics.calls[odd, "ok"] = 3
        tools, gauges = read_metrics(metrics.text(server.composition))
    assert (tools["add"].outcomes, tools[odd].outcomes) == ({"ok": 2, "error": 1}, {"ok": 3})
    assert tools["add"].buckets[-1] == (INFINITE, 3)
    assert gauges["in_flight"] == 0 and gauges["sessions"] >= 0


@given(st.text())
def test_any_text_is_read_without_an_error(text: str):
    read_metrics(text)
    assert all(value == value for _, _, value in parse_samples(text))


@given(st.text(alphabet='defserve_tool_calls_total{}"=,\\ 1nNaIf+\n'))
def test_nearly_metrics_are_read_without_an_error(text: str):
    read_metrics(text)


def test_latencies_are_read_from_buckets():
    figures = ToolFigures({"ok": 100}, [(0.001, 50), (0.01, 90), (0.1, 99), (INFINITE, 100)])
    assert figures.quantile(0.5) == 0.001
    assert figures.quantile(0.7) == pytest.approx(0.0055)
    assert figures.quantile(1.0) == 0.1  # more is not known
    assert ToolFigures().quantile(0.5) is None


def test_only_what_is_new_counts_and_a_new_start_counts_from_its_begin():
    old = ToolFigures({"ok": 5, "error": 1}, [(0.1, 6), (INFINITE, 6)])
    new = ToolFigures({"ok": 7, "error": 1}, [(0.1, 7), (INFINITE, 8)])
    assert new.since(old) == ToolFigures({"ok": 2, "error": 0}, [(0.1, 1), (INFINITE, 2)])
    assert old.since(new) == old
    before, now = TopSnapshot(1.0, "s", tools={"a": old}), TopSnapshot(3.0, "s", tools={"a": new, "b": old})
    assert now.rates(before) == {"a": 1.0}
    assert TopSnapshot(5.0, "s", tools={"a": old}).rates(now) == {"a": 3.0}
    assert now.rates(None) == {}


def test_a_snapshot_is_json():
    rows = [{"id": "a", "state": "connected", "calls_total": 4}]
    before = TopSnapshot(1.0, "k", servers=[{"id": "a", "state": "connected", "calls_total": 2}])
    said = TopSnapshot(2.0, "k", {"pid": 1}, servers=rows, note="n").to_wire(before)
    assert said == {"name": "k", "pid": 1, "servers": [{**rows[0], "calls_per_second": 2.0}], "note": "n"}
    assert json.loads(json.dumps(said)) == said


@contextmanager
def serving(server: Server, *, metrics: bool = False, scheme: str = "http") -> Generator[str]:
    with start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(at_address(server, scheme, key="k" * 40, metrics=metrics)) as address:
            yield address


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server with metrics."""
    server = Server("shop", "1")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    with serving(server, metrics=True) as address:
        yield address


def test_a_server_is_looked_at_by_its_address(defserve: Run, served: str):
    assert defserve("call", served, "add", "a=1", "b=2").out == "3\n"
    code, out, err = defserve("top", served)
    assert (code, err) == (0, "")
    assert out.startswith("shop  healthy  up ") and "add   -        1      0" in out
    lines = defserve("top", served, "--json", "--count", "2", "--every", "0.1").out.splitlines()
    first, second = map(json.loads, lines)
    assert first["tools"]["add"]["calls"] == {"ok": 1} and first["tools"]["add"]["calls_per_second"] is None
    assert second["tools"]["add"]["calls_per_second"] == 0


def test_a_server_on_a_websocket_is_looked_at_by_its_address(defserve: Run):
    with serving(Server("shop", "1"), metrics=True, scheme="ws") as address:
        told = json.loads(defserve("top", address, "--json").out)
    assert address.startswith("ws:") and told["name"] == "shop" and told["in_flight"] == 0


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Unix sockets")
def test_a_server_on_a_unix_socket_is_looked_at_by_its_path(defserve: Run):
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="t") as folder, start_blocking_portal("asyncio") as portal:
        address = f"unix:{folder}/s"
        with portal.wrap_async_context_manager(
            listening(Server("shop", "1", extensions=[Metrics()]), address, metrics=True)
        ):
            told = json.loads(defserve("top", address, "--json", "--token", "t").out)
        assert (told["name"], told["status"], told["in_flight"]) == (address, "ready", 0)
        with portal.wrap_async_context_manager(listening(Server("shop", "1"), address)):
            assert "start it with --metrics" in defserve("top", address).out
        outcome = defserve("top", address)
    assert outcome.code == 4 and f"nobody answers at {address}: No such file" in outcome.err


def test_a_server_without_metrics_says_what_to_do(defserve: Run):
    with serving(Server("shop", "1")) as address:
        out = defserve("top", address).out
    assert out.startswith("shop  healthy") and "start it with --metrics" in out


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["ftp://x"], 1, "top cannot monitor 'ftp://x'"),
        (["http://127.0.0.1:1/mcp"], 4, "127.0.0.1:1"),
        (["none.toml"], 1, "there is no file 'none.toml'\n  fix: name the address of a server"),
        (["http://127.0.0.1:1/mcp", "--every", "0"], 1, "'0' is not a number of seconds"),
    ],
)
def test_what_cannot_be_looked_at_is_said(defserve: Run, folder: Path, argv: list[str], code: int, said: str):
    outcome = defserve("top", *argv)
    assert (outcome.code, outcome.out) == (code, "") and said in outcome.err


def test_a_kernel_is_looked_at_by_its_file(defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    answers: dict[str, list[Any]] = {
        "status": [{"pid": os.getpid(), "name": "house", "servers": 1, "connected": 1, "tools": 2}],
        "ps": [{"id": "wiki", "state": "connected", "calls_total": 5, "tools": 2}],
    }
    (folder / "mgp.toml").write_text("")

    def ask(config: Path, request: dict[str, Any], pid: int | None) -> Iterator[Any]:
        return iter(answers[request["verb"]])

    monkeypatch.setattr("defserve.cli.commands.top.ask_kernel", ask)
    out = defserve("top", "mgp.toml").out
    assert out.startswith("kernel house  1 of 1 servers, 2 tools\n") and "wiki  connected" in out


def test_one_tool_is_no_tools():
    shown = "".join(
        str(block) for block in iter_snapshot_lines(TopSnapshot(0.0, "shop", {"tools": 1, "sessions": 1}), None)
    )
    assert "1 tool, 1 session" in shown and "1 tools" not in shown


OF_TWO_WORKERS = """
defserve_worker_up{worker="1"} 1
defserve_worker_up{worker="2"} 0
defserve_worker_restarts_total{worker="1"} 0
defserve_worker_restarts_total{worker="2"} 4
defserve_worker_info{worker="1",pid="71"} 1
process_cpu_seconds_total{worker="1"} %s
process_resident_memory_bytes{worker="1"} 52428800
defserve_tool_calls_total{worker="1",tool="add",outcome="ok"} %s
defserve_tool_calls_total{worker="1",tool="sub",outcome="ok"} 1
defserve_tool_calls_total{worker="10",tool="add",outcome="ok"} 5
defserve_tool_call_duration_seconds_bucket{worker="1",tool="add",le="0.1"} 1
defserve_tool_call_duration_seconds_bucket{worker="10",tool="add",le="0.1"} 2
defserve_tool_calls_in_flight{worker="1"} 2
defserve_tool_calls_in_flight{worker="10"} 3
"""


def test_workers_are_added_up_and_shown_one_by_one():
    then, now = OF_TWO_WORKERS % ("1.0", 10), OF_TWO_WORKERS % ("2.0", 30)
    tools, gauges = read_metrics(now)
    assert tools["add"].outcomes == {"ok": 35} and tools["add"].buckets == [(0.1, 3)]
    assert gauges == {"in_flight": 5}
    before = TopSnapshot(1.0, "s", tools=tools, workers=read_workers(then))
    after = TopSnapshot(5.0, "s", tools=tools, workers=read_workers(now))
    assert list(after.workers) == ["1", "2", "10"]
    assert after.worker_rates(before) == {"1": (5.0, 0.25)}
    assert after.worker_rates(None) == {}
    table = next(
        block for block in iter_snapshot_lines(after, before) if isinstance(block, Table) and block.head[0] == "WORKER"
    )
    assert [[part if isinstance(part, str) else part[0] for part in row] for row in table.rows][:2] == [
        ["1", "71", "5.0", "31", "2", "25%", "50 MiB", "0"],
        ["2", "does not answer", "-", "-", "-", "-", "-", "4"],
    ]
    said = after.to_wire(before)["workers"]["1"]
    assert (said["pid"], said["calls_per_second"], said["cpu_share"]) == (71, 5.0, 0.25)
