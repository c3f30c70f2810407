from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.cli.running import Run

FILE = """
[participants.alice]
token = "t-alice"
profile = "full"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "gateway.toml"
    path.write_text(FILE)
    return str(path)


def test_a_file_can_be_checked_alone(defserve: Run, file: str):
    assert defserve("gateway", "--config", file, "--check") == (0, f"{file} is valid\n", "")


def test_what_is_wrong_with_a_file_is_said(defserve: Run, file: str):
    Path(file).write_text("topic = 1")
    code, _, err = defserve("gateway", "--config", file)
    assert code == 1 and "'topic', which is not a setting" in err and "fix: use" in err


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("http://127.0.0.1:0/ws", "a gateway cannot listen on"),
        ("stdio:", "a gateway cannot listen on"),
        ("wss://127.0.0.1:0/ws", "needs a certificate"),
        ("ws://0.0.0.0:0/ws", "without knowing by which names"),
    ],
)
def test_an_address_that_cannot_be_is_refused(defserve: Run, file: str, address: str, complaint: str):
    code, _, err = defserve("gateway", "--on", address, "--config", file)
    assert code == 1 and complaint in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_until_it_is_told_to_end(file: str, number: signal.Signals, code: int):
    async def talk(url: str, process: subprocess.Popen[str]) -> tuple[str, int]:
        headers = {"Authorization": "Bearer t-alice"}
        async with connect(f"{url}?topic=demo", additional_headers=headers) as socket:
            await socket.recv()
            welcome = json.loads(await socket.recv())
            process.send_signal(number)
            await socket.wait_closed()
            return welcome["payload"]["you"]["id"], socket.close_code or 0

    with started(file) as (url, process):
        assert asyncio.run(talk(url, process)) == ("alice", 1012)
        assert process.wait(10) == code
        lines = [json.loads(line) for line in process.stderr or ()]
    assert [line["event"] for line in lines] == ["join", "leave"]


@contextmanager
def started(file: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "defserve", "gateway", "--on", "ws://127.0.0.1:0/ws", "--config", file, "--log"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            assert first.startswith("gateway on ws://127.0.0.1:"), first
            yield first.removeprefix("gateway on ").strip(), process
        finally:
            process.kill()
