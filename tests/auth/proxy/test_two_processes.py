"""Each request of a sign-in reaches another process than the one before. They share a store and a secret only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.auth.browsing import Visit, answer_of
from tests.auth.vendor import vendor_at_address
from tests.auth.web import stateless
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.anyio

PUBLIC = "http://localhost:8080"
ROOT = Path(__file__).parents[3]


class InTurns(httpx2.AsyncBaseTransport):
    """What stands in front of the processes: each request goes to the next one."""

    def __init__(self, ports: list[int]) -> None:
        self._ports, self.turns = ports, 0
        self._to = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.turns += 1
        url = request.url.copy_with(host="127.0.0.1", port=self._ports[self.turns % len(self._ports)])
        sent = httpx2.Request(request.method, url, headers=request.headers, stream=request.stream)
        return await self._to.handle_async_request(sent)

    async def aclose(self) -> None:
        await self._to.aclose()


@contextmanager
def processes(folder: Path, count: int, **env: str) -> Iterator[list[int]]:
    """The ports of processes that serve."""
    logs = [folder / f"log-{number}" for number in range(count)]
    command = [sys.executable, "-m", "defserve", "run", "tests/auth/proxy/two_processes.py"]
    running: list[subprocess.Popen[bytes]] = []
    for log in logs:
        with log.open("wb") as output:
            running.append(
                subprocess.Popen(
                    [*command, "--on", "http://127.0.0.1:0/mcp"],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(ROOT),
                        "DEFSERVE_SECRET": "one secret for all of them" * 2,
                        **env,
                    },
                )
            )

    def ports() -> list[int]:
        assert not any(one.poll() is not None for one in running), [log.read_text() for log in logs]
        found = (re.search(r"serving on http://127\.0\.0\.1:(\d+)", log.read_text()) for log in logs)
        return [int(one[1]) for one in found if one is not None]

    try:
        wait_until(lambda: len(ports()) == count)
        yield ports()
    finally:
        for one in running:
            one.kill()
            one.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
async def test_a_sign_in_may_reach_another_process_at_every_step(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        vendor = stack.enter_context(vendor_at_address())
        store = f"sqlite:///{tmp_path}/grants.db"
        if kind == "redis":
            redis = RedisServer()
            stack.callback(redis.remove)
            store = redis.start().address
        if kind == "postgres":
            postgres = PostgresServer().start()
            stack.callback(postgres.remove)
            store = postgres.url
        env = {"VENDOR": vendor.issuer, "PUBLIC_URL": f"{PUBLIC}/mcp", "STORE": store}
        balancer = InTurns(stack.enter_context(processes(tmp_path, 2, **env)))
        async with httpx2.AsyncClient(transport=balancer, base_url=PUBLIC) as http:
            visit = Visit(http, vendor)
            await visit.register()
            for _ in range(2):
                left = await visit.decide(await visit.authorize())
                tokens = (await visit.exchange(answer_of(await visit.come_back(left))["code"])).json()
                balancer.turns += 1  # every step, in the other process than last time
            again = (await visit.refresh(tokens["refresh_token"])).json()
            body, headers = stateless("tools/call", name="who", arguments={})
            for _ in range(2):
                called = await http.post(
                    "/mcp", json=body, headers={**headers, "authorization": f"Bearer {again['access_token']}"}
                )
                assert called.json()["result"]["content"][0]["text"] == "u-1"
            assert (await visit.refresh(tokens["refresh_token"])).status_code == 400
            assert (await visit.refresh(again["refresh_token"])).status_code == 400, "reuse ends it everywhere"
