"""Peers sign in, each as its users let it: to a server behind an issuer, and to one behind `OAuthProxy`. Those that
have grants without a browser use them too.

The browser is a program (`browser.py`): the one that peers open, or one that gets the address from the peer's output.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

from commands import MODULES, node, output
from telling import PLAN, attempt

from defserve.client import Client, ProcessLink

HERE = Path(__file__).parent
SECONDS = 60
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"


def provide_browser() -> None:
    """Whatever opens a browser here starts ours, and does not wait for it: some listen only after that."""
    folder = Path.home() / "bin"
    folder.mkdir()
    opener = folder / "xdg-open"
    opener.write_text(f'#!/bin/sh\n{" ".join(PLAN["browser"])} --visit "$1" >"$HOME/browsed" 2>&1 </dev/null &\n')
    opener.chmod(0o700)
    os.environ |= {"PATH": f"{folder}:{os.environ['PATH']}", "BROWSER": str(opener), "MCP_AUTO_OPEN_ENABLED": "true"}


def with_pipes(command: list[str]) -> str:
    """A client that prints which address to open, and reads the one to which the browser was sent."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as client:
        assert client.stdin is not None and client.stdout is not None
        said = ""
        for line in client.stdout:
            if line.startswith("OPEN "):
                client.stdin.write(output([*PLAN["browser"], line.split()[1]]))
                client.stdin.flush()
            elif line.startswith("CALLED "):
                said = line.split()[1]
            else:
                said += line
        return said


def official(url: str) -> str:
    scripts = PLAN["clients"]
    if MODULES.exists():
        return with_pipes([PLAN["node"], f"{scripts}/typescript_client.cjs", PLAN["package"], url])
    return with_pipes([f"{PLAN['package']}/bin/python", f"{scripts}/python_client.py", url])


def fastmcp(url: str) -> str:
    return output([f"{PLAN['package']}/bin/python", str(HERE / "fastmcp_signing_in.py"), url], SECONDS).strip()


def inspector(url: str) -> str:
    said = output(node(INSPECTOR, "--cli", url, "--method", "tools/call", "--tool-name", "who"), SECONDS)
    return json.loads(said[said.index("{") :])["content"][0]["text"]


async def through_bridge(url: str) -> str:
    command = node("mcp-remote/dist/proxy.js", url, "--allow-http", "--transport", "http-only")
    async with Client(await ProcessLink.spawn(command[0], command[1:]), timeout=SECONDS) as client:
        return (await client.call_raw("who", {}))["content"][0]["text"]


def claude_code(url: str) -> str:
    """It does not call tools without an account, so that it connects has to do."""
    claude = str(next(MODULES.glob("@anthropic-ai/claude-code-*/claude")))
    output([claude, "mcp", "add", "--transport", "http", "members", url])
    said = at_terminal([claude, "mcp", "login", "members"])
    health = output([claude, "mcp", "get", "members"])
    output([claude, "mcp", "remove", "members"])
    return "alice" if "Connected" in health else said + health


def at_terminal(command: list[str]) -> str:
    """What a command says at a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the other end was closed
            while piece := os.read(ours, 4096):
                said += piece
        process.wait(SECONDS)
    os.close(ours)
    return said.decode(errors="replace")


def by_grant(grant: str) -> str:
    """Whom the server takes the peer for that comes in without a browser."""
    needed = json.dumps(PLAN["credentials"])
    if MODULES.exists():
        return output([PLAN["node"], str(HERE / "credentials.cjs"), PLAN["package"], grant, needed], SECONDS).strip()
    program = [f"{PLAN['package']}/bin/python", str(HERE / "credentials.py")]
    return output([*program, PLAN["client"], grant, needed], SECONDS).strip()


WAYS = {"official": official, "fastmcp": fastmcp, "inspector": inspector, "claude": claude_code}


async def main() -> None:
    provide_browser()

    async def signed_in(place: str) -> str:
        if PLAN["client"] == "mcp-remote":
            return await through_bridge(PLAN[place])
        return await asyncio.to_thread(WAYS[PLAN["client"]], PLAN[place])

    await attempt("sign in, issuer", lambda: signed_in("issuer"), SECONDS)
    await attempt("sign in, proxy", lambda: signed_in("proxy"), SECONDS)
    for grant in ("client secret", "client signature", "identity assertion"):
        await attempt(grant, lambda grant=grant: asyncio.to_thread(by_grant, grant), SECONDS)


asyncio.run(main())
