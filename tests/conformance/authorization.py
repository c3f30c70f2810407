"""The official suite's scenarios for authorization servers, against `OAuthProxy` in front of a vendor of ours."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx2

from defserve.auth import OAuthProxy
from tests.auth.browsing import browse
from tests.auth.served import served
from tests.auth.vendor import CLIENT_ID, CLIENT_SECRET, vendor_at_address
from tests.conformance.suite_results import Scenario, scenarios

SCENARIOS = (
    "authorization-server-authorization-server-metadata-endpoint",
    "authorization-server-authorization-code-grant",
)
SECONDS = 60


def run(command: Sequence[str], results: Path) -> list[Scenario]:
    """Run the scenarios. The browser that the suite asks for is `browse`."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    with vendor_at_address() as vendor:

        def make(url: str) -> OAuthProxy:
            made = {"issuer": vendor.issuer, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
            return OAuthProxy("oidc", url=url, allow="*", **made)

        with served(make) as url:
            _run([*command, "authorization"], url, results)
    return list(scenarios(results))


def _run(command: list[str], url: str, results: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        port = any_port.getsockname()[1]
    issuer = url.removesuffix("/mcp")
    about = {"redirect_uris": [f"http://127.0.0.1:{port}/callback"], "token_endpoint_auth_method": "none"}
    client = httpx2.post(f"{issuer}/register", json=about, trust_env=False).json()["client_id"]
    given = ["--url", issuer, "--client-id", client, "--resource", url, "-p", str(port), "-o", str(results)]
    with (results / "run.log").open("ab") as log:
        suite = subprocess.Popen([*command, *given], stdout=subprocess.PIPE, stderr=log, text=True)
        assert suite.stdout is not None
        try:
            for line in suite.stdout:
                log.write(line.encode())
                if found := re.search(rf"{issuer}/authorize\?\S+", line):
                    httpx2.get(asyncio.run(browse(found[0], about["redirect_uris"][0])), trust_env=False)
            suite.wait(SECONDS)
        finally:
            suite.kill()
            suite.wait()
