"""What of the fast path fits which uvicorn, and what happens where it does not."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from defserve import Limits
from defserve.cli.commands.doctor import DoctorFinding, findings
from defserve.serve.address import Address
from defserve.serve.fastpath.h11 import BoundedH11Protocol
from defserve.serve.fastpath.httptools import BoundedHttptoolsProtocol
from defserve.serve.fastpath.install import UvicornCompatReport, check_uvicorn_compat, install_fast_path
from defserve.serve.fastpath.protocol import FastHttptoolsProtocol
from defserve.serve.fastpath.websockets import BoundedWebSocket
from defserve.serve.network import NetworkOptions, make_listener

ROOT = Path(__file__).parents[3]
ALL_FITS = UvicornCompatReport("")

# Run with another uvicorn in front of the path: what `fits` says of it.
ASK = """
import json, uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from defserve.serve.fastpath.httptools import BoundedHttptoolsProtocol
from defserve.serve.fastpath.install import check_uvicorn_compat
fast, slow = check_uvicorn_compat(HttpToolsProtocol, WebSocketsSansIOProtocol), check_uvicorn_compat(H11Protocol)
print(json.dumps([uvicorn.__version__, fast, slow.deadlines]))
"""


def oldest() -> str:
    """The requirement for the oldest uvicorn that this project allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (requirement,) = [each for each in extras["http"] if each.startswith("uvicorn")]
    return re.sub(r"^uvicorn>=([\d.]+)$", r"uvicorn==\1.*", requirement)


def installed(requirement: str, cache: Path) -> Path:
    """A folder with this uvicorn and nothing else. Skips the test where pip finds none."""
    # What is newest today may not be so tomorrow.
    folder = cache / re.sub(r"\W+", "-", requirement if "==" in requirement else f"{requirement} {date.today()}")
    if not (folder / "uvicorn").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "0", "--timeout", "10"]
        done = subprocess.run([*command, "--target", folder, requirement], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"pip finds no {requirement} here: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.mark.e2e
@pytest.mark.parametrize("requirement", [oldest(), "uvicorn"])
def test_the_oldest_and_the_newest_uvicorn_have_the_fast_path(requirement: str, pytestconfig: pytest.Config):
    assert pytestconfig.cache is not None
    folder = installed(requirement, pytestconfig.cache.mkdir("uvicorn"))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    asked = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    version, fit, deadlines = json.loads(asked.stdout)
    assert (fit, deadlines) == (["", "", ""], ""), f"uvicorn {version}"


def test_the_installed_uvicorn_fits():
    assert check_uvicorn_compat(HttpToolsProtocol, WebSocketsSansIOProtocol) == ALL_FITS


def test_h11_has_the_deadlines_and_no_fast_path():
    assert check_uvicorn_compat(H11Protocol) == UvicornCompatReport("it needs httptools, and the parser is H11Protocol")


def test_a_request_that_holds_more_than_is_known_goes_the_usual_way(monkeypatch: pytest.MonkeyPatch):
    begins = httptools_impl.RequestResponseCycle.__init__
    code = begins.__code__
    monkeypatch.setattr(begins, "__code__", code.replace(co_names=(*code.co_names, "priority")))
    assert check_uvicorn_compat(HttpToolsProtocol).fast_path == "uvicorn's requests hold more than is known: priority"


def test_without_an_internal_method_there_is_no_fast_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task")
    assert check_uvicorn_compat(HttpToolsProtocol) == UvicornCompatReport("uvicorn has no _start_asgi_task")


def test_without_what_the_deadlines_need_there_are_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(HttpToolsProtocol, "handle_websocket_upgrade")
    fit = check_uvicorn_compat(HttpToolsProtocol)
    assert fit.fast_path and fit.deadlines == "uvicorn has no handle_websocket_upgrade"


def test_sockets_that_do_not_say_how_far_they_are_stay_as_they_are():
    class OtherSockets(WebSocketsSansIOProtocol):
        def __init__(self, transport: Any) -> None:
            self.transport = transport

    fit = check_uvicorn_compat(HttpToolsProtocol, OtherSockets)
    missing = "handshake_complete, close_sent, read_paused, writable, conn, queue, client, connections"
    assert (fit.fast_path, fit.websockets) == ("", f"uvicorn has no {missing}")


@pytest.mark.parametrize(
    ("lost", "http", "websocket"),
    [
        ((), (FastHttptoolsProtocol, HttpToolsProtocol), BoundedWebSocket),
        (("_start_asgi_task",), (BoundedHttptoolsProtocol, HttpToolsProtocol), BoundedWebSocket),
        (("shutdown",), (BoundedH11Protocol, H11Protocol), BoundedWebSocket),
    ],
)
def test_what_fits_is_installed_and_httptools_never_without_bounds(
    monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...], http: tuple[type, ...], websocket: type
):
    for name in lost:
        monkeypatch.delattr(HttpToolsProtocol, name)
    config = SimpleNamespace(http_protocol_class=HttpToolsProtocol, ws_protocol_class=WebSocketsSansIOProtocol)
    install_fast_path(config, Limits())
    assert config.http_protocol_class.__bases__ == http
    assert issubclass(config.ws_protocol_class, websocket)


def listener(parser: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    address = Address("http", "127.0.0.1", 0, "/")
    make_listener(app, address, NetworkOptions(parser), Limits(), lambda: None)


def test_that_the_fast_path_is_off_is_said_in_one_line_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    listener("httptools")
    assert caplog.messages == []
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task")
    with caplog.at_level(logging.WARNING, "defserve"):
        listener("httptools")
    assert caplog.messages == ["serving without the fast path: uvicorn has no _start_asgi_task"]


def test_whoever_chose_a_parser_is_not_told(caplog: pytest.LogCaptureFixture):
    listener("h11")
    assert caplog.messages == []


def test_the_doctor_says_what_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    def row() -> DoctorFinding:
        return next(each for each in findings(0) if (each.group, each.name) == ("HTTP", "fast path"))

    assert row().state == "ok"
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task")
    assert (row().state, row().about) == ("missing", "uvicorn has no _start_asgi_task")
