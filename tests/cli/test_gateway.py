from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from defserve.cli.commands.gateway import _serve, _tls
from defserve.gateway.policy import load_gateway_config
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets
from tests.certificate import self_signed
from tests.cli.running import Run
from tests.waiting import until

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


def test_a_check_is_told_as_json(defserve: Run, file: str, tmp_path: Path):
    code, out, err = defserve("gateway", "--config", file, "--check", "--json")
    assert (code, err) == (0, "") and json.loads(out)["valid"] is True and json.loads(out)["file"] == file
    (tmp_path / "wrong.toml").write_text("tokns = 1\n")
    code, out, err = defserve("gateway", "--config", str(tmp_path / "wrong.toml"), "--check", "--json")
    told = json.loads(out)
    assert (code, err, told["valid"]) == (1, "", False) and "tokns" in told["problem"]
    assert "--json goes with --check" in defserve("gateway", "--config", file, "--json").err


def test_a_file_can_be_checked_alone(defserve: Run, file: str):
    assert defserve("gateway", "--config", file, "--check") == (0, f"{file} is valid\n", "")


def test_what_is_wrong_with_a_file_is_said(defserve: Run, file: str):
    Path(file).write_text("topic = 1")
    code, _, err = defserve("gateway", "--config", file)
    assert code == 1 and "'topic', which is not a setting" in err and "did you mean 'topics'?" in err


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


@pytest.mark.slow
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


@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_participants_join_at_the_address_it_tells(
    scheme: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """In this process."""
    address, told, client = Address.parse(f"{scheme}://127.0.0.1:0/ws"), "", None
    tls = None
    if scheme == "wss":
        certificate = self_signed(tmp_path, "127.0.0.1")
        tls = _tls(address, Namespace(certfile=certificate, keyfile=None))
        client = ssl.create_default_context(cafile=certificate)

    def is_told() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return told.endswith("\n")

    with bind_sockets(address) as sockets:
        serving = asyncio.create_task(_serve(address, load_gateway_config(file), tls, sockets))
        await until(is_told)
        url = told.removeprefix("gateway on ").strip()
        headers = {"Authorization": "Bearer t-alice"}
        async with connect(f"{url}?topic=demo", additional_headers=headers, ssl=client) as socket:
            await socket.recv()
            assert json.loads(await socket.recv())["payload"]["you"]["id"] == "alice"
            signal.raise_signal(signal.SIGTERM)
            await socket.wait_closed()
        assert await serving == 0


def test_a_certificate_that_cannot_be_read_is_named(defserve: Run, file: str):
    code, _, err = defserve("gateway", "--on", "wss://127.0.0.1:0/ws", "--config", file, "--certfile", file)
    assert code == 1 and f"cannot use the certificate {file}" in err and "fix: give the PEM files" in err
