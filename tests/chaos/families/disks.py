"""Disks that are full, files that cannot be written, output that nobody takes."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from defserve.client import Client, ProcessLink
from defserve.errors import DefserveError
from tests.attack.trial import Trial
from tests.chaos.fault import SERVERS, Faults
from tests.faults.process import Broken
from tests.faults.trouble import fill_the_disk, forbid_writing

DISKS = Faults("disks")
FAMILIES = (DISKS,)

AUDIT_KEY = "0123456789abcdef0123456789abcdef"


@DISKS.row("the disk of the store is full", "the call fails and says so; what was kept is read; with room all is well")
def full_disk(trial: Trial) -> None:
    try:
        trial.notes.append(fill_the_disk())
    except Broken as broken:
        trial.expect(False, str(broken))
    else:
        trial.expect(True, "")


@DISKS.row("the store's file is read-only", "the call fails and says so; what was kept is read; then all is well")
def read_only(trial: Trial) -> None:
    try:
        forbid_writing()
    except Broken as broken:
        trial.expect(False, str(broken))
    else:
        trial.expect(True, "")


@DISKS.row(
    "the audit log cannot grow",
    "a dangerous call is refused and says why, others are answered; with room all is well, and the log is intact",
)
def full_audit(trial: Trial) -> None:
    folder = trial.arena.folder / "audit"
    folder.mkdir()
    log = folder / "audit.jsonl"

    async def run() -> None:
        env = {**trial.arena.environment, "CHAOS_AUDIT": str(log), "DEFSERVE_AUDIT_KEY": AUDIT_KEY}
        link = await ProcessLink.spawn(sys.executable, [f"{SERVERS}/keeping.py"], env=env)
        async with Client(link, timeout=20) as client:
            trial.expect(await client.call("wipe") == "wiped", "a call failed before")
            _bound(link.pid, log.stat().st_size)
            trial.expect(await client.call("echo", text="while") == "while", "a safe call failed")
            said = await _said(client, "wipe")
            trial.expect("audit" in said.lower(), f"with no room for the log, a dangerous call said {said!r}")
            trial.notes.append(said)
            _bound(link.pid, resource.RLIM_INFINITY)
            said = await _said(client, "wipe")
            trial.expect(said == "wiped", f"with room again, the answer is {said!r}")

    asyncio.run(run())
    done = trial.arena.command("audit", "verify", str(log), DEFSERVE_AUDIT_KEY=AUDIT_KEY)
    trial.expect(done.returncode == 0, f"the log is broken: {done.stdout} {done.stderr}")
    trial.expect('"while"' in log.read_text() or "echo" in log.read_text(), "the call in between was not written down")


async def _said(client: Client, tool: str) -> str:
    try:
        return await client.call(tool)
    except DefserveError as error:
        return str(error)


def _bound(pid: int, size: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@DISKS.row("standard error goes to a full disk", "calls are answered; the log is lost")
def full_log(trial: Trial) -> None:
    with open("/dev/full", "wb") as full:
        _converse(trial, full.fileno(), 50)


@DISKS.row("nobody reads standard error", "calls are answered; what the pipe cannot take is lost")
def unread_log(trial: Trial) -> None:
    reader, writer = os.pipe()
    try:
        _converse(trial, writer, 3000)
    finally:
        os.close(reader)
        os.close(writer)


def _converse(trial: Trial, stderr: int, calls: int) -> None:
    """A server of pipes that logs every call to this file."""
    env = {**trial.arena.environment, "ATTACK_MARKS": str(trial.arena.folder / "log-marks")}
    command = [sys.executable, f"{SERVERS}/marking.py", "--log-level", "debug"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env)
    assert server.stdin is not None and server.stdout is not None
    try:
        os.set_blocking(server.stdout.fileno(), False)
        about = {"capabilities": {}, "clientInfo": {"name": "chaos", "version": "1"}}
        _send(server, 0, "initialize", {"protocolVersion": "2025-11-25", **about})
        got = _lines(server, 1)
        for n in range(1, calls + 1):
            _send(server, n, "tools/call", {"name": "mark", "arguments": {"word": "w"}})
            got = _lines(server, 1)
            if not trial.expect(got, f"call {n} was not answered within 10 s"):
                break
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()


def _send(server: subprocess.Popen[bytes], id: int, method: str, params: object) -> None:
    assert server.stdin is not None
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    server.stdin.write(json.dumps(message).encode() + b"\n")
    server.stdin.flush()


def _lines(server: subprocess.Popen[bytes], many: int) -> int:
    """How many lines came, at most so many, within 10 s."""
    assert server.stdout is not None
    got, end = b"", time.monotonic() + 10
    while got.count(b"\n") < many and time.monotonic() < end and server.poll() is None:
        got += server.stdout.read() or b""
        if got.count(b"\n") < many:
            time.sleep(0.0005)
    return got.count(b"\n")


@DISKS.row("standard output goes to a full disk", "the server ends, with a reason and an exit code that is not 0")
def full_output(trial: Trial) -> None:
    env = {**trial.arena.environment, "ATTACK_MARKS": str(trial.arena.folder / "out-marks")}
    hello = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 3
    with open("/dev/full", "wb") as full:
        try:
            done = subprocess.run(
                [sys.executable, f"{SERVERS}/marking.py"],
                input=hello,
                stdout=full,
                stderr=subprocess.PIPE,
                env=env,
                timeout=20,
            )
        except subprocess.TimeoutExpired:
            trial.expect(False, "the server hangs")
            return
    said = done.stderr.decode()
    trial.expect("Traceback" not in said, f"a traceback: {said[-300:]}")
    trial.expect(done.returncode != 0 and said.strip(), f"it ended with {done.returncode} and said {said!r}")
    trial.notes.append(said.strip()[:200])


@DISKS.row("a command prints to a full disk", "it ends with a reason and an exit code that is not 0")
def full_command(trial: Trial) -> None:
    for arguments in (["list", str(SERVERS / "marking.py")], ["--version"], ["--help"], ["doctor"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "defserve", *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                env={**trial.arena.environment, "ATTACK_MARKS": "/dev/null"},
                timeout=60,
            )
        said = done.stderr.decode()
        trial.expect("Traceback" not in said and "Exception ignored" not in said, f"{arguments}: {said[-300:]}")
        trial.expect(done.returncode != 0 and said.strip(), f"{arguments} ended with {done.returncode}: {said!r}")
        trial.notes.append(said.strip()[:100])


@DISKS.row("the folder for temporary files is gone", "a server starts and answers")
def no_temporary_folder(trial: Trial) -> None:
    async def run() -> None:
        gone = Path("/nonexistent-temporary-folder")
        env = {**trial.arena.environment, "ATTACK_MARKS": str(trial.arena.folder / "tmp-marks"), "TMPDIR": str(gone)}
        link = await ProcessLink.spawn(sys.executable, [f"{SERVERS}/marking.py"], env=env)
        async with Client(link, timeout=10) as client:
            trial.expect(await client.call("mark", word="a") == "marked a", "the answer was another")

    asyncio.run(run())
