"""The whole way: `defserve run --workers`, its signals, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import Server
from defserve.auth import OIDC, Auth, DPoP
from defserve.auth.local_token import read_key
from defserve.errors import UsageError
from defserve.serve.address import Address
from defserve.server.decorators import WebFields
from defserve.server.workers import running
from defserve.server.workers.running import check_sharing, supervise
from tests.auth.proxied import proxy
from tests.auth.vendor import FakeVendor
from tests.certificate import self_signed
from tests.rows import for_each_row
from tests.server.workers.group import QUICK, call_request, write_server
from tests.waiting import is_running, wait_until


class OverUnix(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


def call(at: Path, tool: str, /, **arguments: Any) -> str:
    connection = OverUnix(at)
    try:
        return json.loads(post_over(connection, tool, arguments)[1])["result"]["content"][0]["text"]
    finally:
        connection.close()


def post_over(connection: HTTPConnection, tool: str, arguments: dict[str, Any], **headers: str) -> tuple[int, bytes]:
    head, _, body = call_request(tool, arguments).partition(b"\r\n\r\n")
    usual = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n")[1:])
    connection.request("POST", "/mcp", body, usual | headers)
    response = connection.getresponse()
    return response.status, response.read()


def serves(path: Path) -> bool:
    try:
        return bool(call(path, "who"))
    except OSError:
        return False


def command(file: Path, path: Path, *more: str) -> list[str]:
    on = ["--on", f"unix:{path}", "--stateless", "--workers", "1"]
    return [sys.executable, "-m", "defserve", "run", str(file), *on, *more]


def in_a_thread(work: Callable[[], None]) -> list[BaseException]:
    """Runs it; what went wrong, at the end. Then the process gets a signal, so that the supervisor ends."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)
            if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # otherwise it would end the tests
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=run).start()
    return problems


@pytest.mark.slow
def test_signals_reload_drain_and_interrupt(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    file, path = write_server(tmp_path), tmp_path / "s"
    mark = tmp_path / "mark"
    said = ""

    def has_said(words: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return words in said

    def work() -> None:
        wait_until(lambda: has_said(f"serving on unix:{path} with 1 worker\n"))
        first = call(path, "who")
        os.kill(os.getpid(), signal.SIGHUP)
        # New workers answer before it is said, and those of before for a while after it.
        wait_until(lambda: has_said("reloaded: 1 worker started; those of before finish their calls\n"))
        wait_until(lambda: call(path, "who") != first)
        threading.Thread(target=lambda: call(path, "slow", path=str(mark))).start()
        wait_until(mark.exists)
        os.kill(os.getpid(), signal.SIGINT)
        mark.unlink()  # the running call has time to end

    problems = in_a_thread(work)
    address = Address.parse(f"unix:{path}")
    code = supervise(address, 1, command=command(file, path, "--log-level", "info"), timing=QUICK)
    assert (code, problems) == (130, [])
    assert not path.exists()
    has_said("")
    assert re.search(r"INFO worker 1 defserve\.requests: tools/call slow ok", said), said


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_https_and_the_local_token_are_those_of_the_group(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file, mark, certificate = write_server(tmp_path), tmp_path / "mark", self_signed(tmp_path, "127.0.0.1")
    lines: list[dict[str, Any]] = []
    gone: list[BaseException] = []

    def is_serving() -> bool:
        said = capfd.readouterr().err.splitlines()
        lines.extend(json.loads(line) for line in said if line.startswith("{"))
        return bool(lines)

    def post(tool: str, key: str, **arguments: Any) -> tuple[int, bytes]:
        port = int(re.findall(r":(\d+)/mcp", lines[0]["message"])[0])
        trusting = ssl.create_default_context(cafile=certificate)
        connection = HTTPSConnection("127.0.0.1", port, timeout=30, context=trusting)
        try:
            return post_over(connection, tool, arguments, authorization=f"Bearer {key}")
        finally:
            connection.close()

    def hold(key: str) -> None:
        try:
            post("slow", key, path=str(mark))
        except (OSError, HTTPException) as error:
            gone.append(error)

    def work() -> None:
        wait_until(is_serving)
        port = int(re.findall(r":(\d+)/mcp", lines[0]["message"])[0])
        key = read_key(("127.0.0.1", port))
        assert key is not None
        assert (post("who", key)[0], post("who", "x" * 43)[0]) == (200, 401)
        threading.Thread(target=hold, args=(key,)).start()
        wait_until(mark.exists)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: "draining" in str(post("who", key)))  # two signals in a row may be one
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: bool(gone))

    problems = in_a_thread(work)
    on = ("--on", "https://127.0.0.1:0/mcp", "--certfile", str(certificate), "--local-token", "--stateless")
    code = supervise(
        Address.parse("https://127.0.0.1:0/mcp"),
        1,
        command=(sys.executable, "-m", "defserve", "run", str(file), *on, "--workers", "1"),
        timing=QUICK,
        local_token=True,
        log_json=True,
    )
    assert (code, problems) == (0, [])
    assert lines[0]["logger"] == "defserve.workers" and lines[0]["message"].endswith(" with 1 worker")


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path):
    file, path = write_server(tmp_path), tmp_path / "s"
    # As a script, so that the file itself calls `run(workers=…)`; its workers are started as it was.
    started = [sys.executable, str(file), *command(file, path)[5:]]
    with subprocess.Popen(started, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: serves(path) or process.poll() is not None)
        worker = int(call(path, "who"))
        assert worker != process.pid
        process.kill()
        process.wait()
        wait_until(lambda: not is_running(worker))


@pytest.mark.slow
def test_a_terminal_that_was_closed_ends_the_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file, path, terminals = write_server(tmp_path), tmp_path / "s", [True, False]
    monkeypatch.setattr(running, "_has_terminal", lambda: terminals.pop(0))

    def work() -> None:
        wait_until(lambda: serves(path))
        os.kill(os.getpid(), signal.SIGHUP)

    problems = in_a_thread(work)
    assert supervise(Address.parse(f"unix:{path}"), 1, command=command(file, path), timing=QUICK) == 0
    assert problems == []


def test_what_started_this_process_must_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for arguments in (["python"], ["python", "-"]):
        monkeypatch.setattr(sys, "orig_argv", arguments)
        with pytest.raises(UsageError, match="isn't in one"):
            supervise(Address.parse(f"unix:{tmp_path / 's'}"), 2)


def with_task() -> Server:
    server = Server("s")

    @server.tool(task="optional")
    async def long() -> None: ...

    return server


def with_state(**options: Any) -> Server:
    server = Server("s", **options)
    server.feature_set("notes.all", "Notes").state(Notes)
    return server


class Notes(BaseModel):
    lines: list[str] = []


def bound(store: str | None = None) -> Auth:
    return Auth(OIDC("https://login.example", audience="https://tools.example/mcp"), dpop=DPoP(store))


@for_each_row(
    "server options problem",
    [
        (Server("s"), {}, "cannot share the sessions"),
        (Server("s"), {"legacy_sse": True, "stateless": True}, "--legacy-sse needs one process"),
        (with_task(), {"stateless": True}, "cannot share tasks"),
        (with_state(), {"stateless": True}, "cannot share state"),
        (with_state(store="sqlite:///notes.db"), {"stateless": True}, ""),
        (Server("s", audit="audit.jsonl"), {"stateless": True}, "cannot share the audit log audit.jsonl"),
        (Server("s", audit=["sqlite:///audit.db", Path("a")]), {"stateless": True}, "cannot share the audit log a"),
        (Server("s", audit="sqlite:///audit.db"), {"stateless": True}, ""),
        (Server("s"), {"stateless": True}, ""),
        (Server("s", auth=proxy(FakeVendor())), {"stateless": True}, "cannot share sign-ins"),
        (Server("s", auth=bound()), {"stateless": True}, "cannot share used DPoP proofs"),
        (Server("s", auth=bound("sqlite:///proofs.db")), {"stateless": True}, ""),
    ],
)
def test_what_several_workers_cannot_share(server: Server, options: WebFields, problem: str):
    if "audit" not in problem:
        check_sharing(server, 1, options)
    if not problem:
        check_sharing(server, 2, options)
        return
    with pytest.raises(UsageError, match=problem):
        check_sharing(server, 2, options)
