"""The shop, served in every way a peer may come: as a command, over HTTP, with a token, and through a bad network."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from joserfc.jwk import ECKey

from tests.auth.identity_provider import CLIENT_ID, CLIENT_SECRET, provider_at_address
from tests.conformance.suite_install import ROOT, node
from tests.peers import tours
from tests.peers.behind import SERVERS, command, configured
from tests.peers.cutting import cutting
from tests.peers.packages import Package
from tests.waiting import until

SIGNING_IN = ROOT / "tests" / "auth" / "real_issuer"
COMMAND = [sys.executable, str(SERVERS / "shop.py")]


@asynccontextmanager
async def places(
    behind: Mapping[str, Package], callers: Sequence[str], issuer: Package | None = None
) -> AsyncGenerator[dict[str, Any]]:
    """What a plan says of where the shop is. The processes end with the block.

    `kernel` is what a plan says instead if the shop is met through a kernel, which has other servers `behind` it. There
    each caller has a token: without one, every call of the stateless era would meet processes of its own.
    With an `issuer`, there are servers to sign in to.
    """
    token = secrets.token_urlsafe(24)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_served(COMMAND, {}))
        keyed = await stack.enter_async_context(_served(COMMAND, {"SHOP_TOKEN": token}))
        cut = await stack.enter_async_context(cutting(url))
        sse = url.removesuffix("/mcp") + "/sse"
        shop = {"command": COMMAND, "url": url, "sse": sse, "keyed": keyed, "cut": cut, "token": token}
        shop |= {"tokens": {}, "root": tours.ROOT, "tour": tours.by_feature({"shop": tours.shop(tours.ROOT)})}
        shop |= await stack.enter_async_context(_members(issuer)) if issuer else {}
        yield {**shop, "kernel": await stack.enter_async_context(_kernel(behind, callers)) if behind else {}}


@asynccontextmanager
async def _members(provider: Package) -> AsyncGenerator[dict[str, Any]]:
    """A server behind an issuer, one in front of it, one for a company's people and for programs; the browser, and the
    scripts of clients that print addresses."""
    command = [str(node()), str(SIGNING_IN / "provider.mjs"), str(provider.folder)]
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert running.stdout is not None
    try:
        variables = {"MEMBERS_ISSUER": (await running.stdout.readline()).decode().strip()}
        program = [sys.executable, str(SERVERS / "members.py")]
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(_served(program, variables))
            proxy = await stack.enter_async_context(_served(program, {**variables, "MEMBERS_PROXY": "1"}))
            company, key, secret = stack.enter_context(provider_at_address()), ECKey.generate_key("P-256"), "s" * 40
            known = {"MEMBERS_COMPANY": company.issuer, "MEMBERS_SECRET": secret}
            known["MEMBERS_KEY"] = key.as_pem(private=False).decode()
            without_browser = _by_name(await stack.enter_async_context(_served(program, known)))
            credentials = {"url": without_browser, "issuer": without_browser.removesuffix("/mcp"), "secret": secret}
            credentials |= {"key": key.as_pem(private=True).decode(), "company": company.issuer}
            found: dict[str, Any] = {"issuer": _by_name(url), "proxy": _by_name(proxy), "clients": str(SIGNING_IN)}
            found["credentials"] = {**credentials, "at_company": [CLIENT_ID, CLIENT_SECRET]}
            yield {**found, "browser": ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.peers.browser"]}
    finally:
        running.kill()
        await running.wait()


def _by_name(address: str) -> str:
    """The address that the issuer knows as one of a program on this machine."""
    return address.replace("127.0.0.1", "localhost")


@asynccontextmanager
async def _kernel(behind: Mapping[str, Package], callers: Sequence[str]) -> AsyncGenerator[dict[str, Any]]:
    tokens = {caller: secrets.token_urlsafe(24) for caller in callers}
    with TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True) as folder:
        config, plan = configured(dict(behind), Path(folder))
        known = json.dumps({token: caller for caller, token in tokens.items()})
        async with _served(command(config), {"DESK_TOKENS": known}) as url:
            yield {"command": command(config), "url": url, "tokens": tokens, **plan}


@asynccontextmanager
async def _served(program: list[str], variables: Mapping[str, str]) -> AsyncGenerator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}/mcp"
    command = [*program, "--on", address, "--legacy-sse"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "framework"), **variables}
    environment["MEMBERS_URL"] = _by_name(address)
    server = await asyncio.create_subprocess_exec(*command, env=environment, stdin=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: _listens(port), 120)
        yield address
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


def free_port() -> int:
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return trying.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
