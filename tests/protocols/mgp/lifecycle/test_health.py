"""MGP §11.3: pings that nothing holds up, the status that follows from checks, and the probes of a web server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from defserve import Context, Limits, Server
from defserve.auth.principals import Principal
from defserve.errors import UsageError
from defserve.protocols.mgp import lifecycle
from defserve.protocols.mgp.lifecycle import CheckResult, status_from
from defserve.server import AccessPolicy
from tests.asgi import Exchange, Web, living
from tests.protocols.mgp.callers import ALICE, BOB, LOOPBACK, STRANGER, offer, speaking
from tests.raw import ERAS, HANDSHAKE, Json, Raw, raw, text_of, until
from tests.rows import for_each_row
from tests.serve.processes import ServerProcess

pytestmark = pytest.mark.anyio

HANDSHAKEN = HANDSHAKE[-1]


@asynccontextmanager
async def kernel(server: Server, version: str = HANDSHAKEN, **more: Any) -> AsyncGenerator[Raw]:
    async with speaking(server, version, ["lifecycle"], **more) as peer:
        yield peer


async def ping(peer: Raw) -> Json:
    return (await peer.ask("mgp/health/ping", {"timestamp": "2026-02-27T12:00:00.000Z"}))["result"]


async def status(peer: Raw) -> Json:
    return (await peer.ask("mgp/health/status"))["result"]


# -- ping ------------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-11.3p")
@for_each_row("version", ERAS)
async def test_a_ping_says_how_it_is_since_when_and_who(version: str):
    async with kernel(Server("s", "1", server_id="mind.cerebras"), version) as peer:
        found = await ping(peer)
        assert (found["status"], found["server_id"]) == ("healthy", "mind.cerebras")
        assert isinstance(found["uptime_secs"], int) and found["uptime_secs"] >= 0
        assert found["timestamp"].endswith("Z") and len(found["timestamp"]) == len("2026-02-27T12:00:00.000Z")


@for_each_row("method", ["mgp/health/ping", "mgp/health/status"])
@for_each_row("version", ERAS)
async def test_a_plain_client_finds_no_such_method(method: str, version: str):
    async with raw(Server("s", "1"), version) as peer:
        assert (await peer.ask(method))["error"]["code"] == -32601


@pytest.mark.req("MGP-11.3p")
async def test_a_ping_is_answered_while_sleeping_tools_hold_every_thread_and_every_place():
    go, limits = threading.Event(), Limits(threads=8, in_flight=64)
    server = Server("s", "1", limits=limits)

    @server.tool
    def block() -> str:
        go.wait(20)
        return "done"

    async with kernel(server) as peer:
        running = [await peer.begin("tools/call", {"name": "block"}) for _ in range(limits.in_flight)]
        try:
            async with asyncio.timeout(20):
                for _ in range(20):
                    assert (await ping(peer))["status"] == "healthy"
            running.append(await peer.begin("tools/call", {"name": "block"}))
            assert (await ping(peer))["status"] == "healthy"
        finally:
            go.set()
        assert {text_of((await peer.reply_to(id))["result"]) for id in running} == {"done"}


SPINNING = """
server = Server("spinning", "1")

@server.tool
def spin() -> None:
    while True:
        sum(range(1_000))
"""


@pytest.mark.req("MGP-11.3p")
def test_a_ping_is_answered_within_five_seconds_while_tools_hog_the_interpreter(tmp_path: Path):
    with ServerProcess(tmp_path, SPINNING) as server:
        about = {"protocolVersion": HANDSHAKEN, "clientInfo": {"name": "t", "version": "1"}}
        server.ask("open", "initialize", capabilities=offer(HANDSHAKEN, "lifecycle"), **about)
        assert server.read()["id"] == "open"
        for number in range(Limits().threads):
            server.call(number, "spin")
        for number in range(3):
            server.ask(f"ping {number}", "mgp/health/ping")
            assert server.read(patience=5)["id"] == f"ping {number}"


async def test_a_ping_tells_what_is_known_and_looks_again_when_that_is_old(monkeypatch: pytest.MonkeyPatch):
    server, asked = Server("s", "1"), list[str]()

    @server.health_check
    async def database() -> bool:
        asked.append("asked")
        return False

    async with kernel(server) as peer:
        # Before the checks have run, nobody knows that all is well.
        assert (await ping(peer))["status"] == "degraded"
        await until(lambda: server.mgp.health.results != {})
        assert (await ping(peer))["status"] == "degraded"
        assert len(asked) == 1
        monkeypatch.setattr(lifecycle, "STALE", 0)
        await ping(peer)
        await until(lambda: len(asked) == 2)


# -- status ----------------------------------------------------------------------------------------------

BAD, GOOD = CheckResult("broken", False), CheckResult(None, False)
FATAL, FINE = CheckResult("broken", True), CheckResult(None, True)


@pytest.mark.req("MGP-11.3v")
@for_each_row(
    ("findings", "expected"),
    [
        ([], "healthy"),
        ([GOOD], "healthy"),
        ([GOOD, FINE], "healthy"),
        ([BAD], "degraded"),
        ([BAD, GOOD], "degraded"),
        ([BAD, BAD, GOOD], "degraded"),
        ([BAD, BAD], "unhealthy"),
        ([FATAL], "unhealthy"),
        ([FATAL, GOOD, GOOD], "unhealthy"),
        ([BAD, FINE], "degraded"),
    ],
)
def test_the_status_follows_from_what_the_checks_found(findings: list[CheckResult], expected: str):
    assert status_from(findings) == expected


def checked() -> Server:
    server = Server("s", "1")

    @server.tool
    async def one() -> str:
        return "1"

    @server.tool
    def two() -> str:
        return "2"

    @server.health_check
    def on_a_thread() -> bool:
        return threading.current_thread() is not threading.main_thread()

    @server.health_check
    async def on_the_loop() -> None:
        assert threading.current_thread() is threading.main_thread()

    @server.health_check(name="says no")
    def no() -> bool:
        return False

    @server.health_check
    def complains() -> str:
        return "the disk is full"

    @server.health_check
    def breaks() -> None:
        raise ConnectionError("password=hunter2")

    @server.health_check
    def stops() -> None:
        raise SystemExit

    @server.health_check(timeout=0.02)
    async def hangs() -> None:
        await asyncio.sleep(60)

    async def answers(word: bool) -> bool:
        return word

    server.health_check(name="a partial")(partial(answers, True))
    return server


@pytest.mark.req("MGP-11.3s", "MGP-11.3v")
@for_each_row("version", ERAS)
async def test_the_status_has_tools_pending_requests_resources_and_checks(version: str):
    async with kernel(checked(), version) as peer:
        found = await status(peer)
        assert (found["status"], found["pending_requests"]) == ("degraded", 0)
        assert (found["tools_available"], found["tools_total"]) == (2, 2)
        assert found["resources"]["memory_bytes"] > 1_000_000 and found["resources"]["open_connections"] == 1
        assert found["checks"] == {
            "on_a_thread": True,
            "on_the_loop": True,
            "says no": False,
            "complains": False,
            "breaks": False,
            "stops": False,
            "hangs": False,
            "a partial": True,
        }
        assert found["problems"] == {
            "says no": "it returned False",
            "complains": "the disk is full",
            "breaks": "ConnectionError",
            "stops": "RuntimeError",
            "hangs": "no answer within 0.02 s",
        }


@pytest.mark.req("MGP-11.3s")
async def test_calls_under_way_are_pending():
    server, go = Server("s", "1"), asyncio.Event()

    @server.tool
    async def wait() -> None:
        await go.wait()

    async with kernel(server) as peer:
        running = [await peer.begin("tools/call", {"name": "wait"}) for _ in range(3)]
        assert (await status(peer))["pending_requests"] == 3
        go.set()
        for id in running:
            await peer.reply_to(id)
        assert (await status(peer))["pending_requests"] == 0


@pytest.mark.req("MGP-11.3v", "MGP-11.3s")
async def test_a_server_that_drains_is_unhealthy_and_says_so_to_the_end():
    server, go = Server("s", "1"), asyncio.Event()

    @server.tool
    async def wait() -> None:
        await go.wait()

    async with kernel(server) as peer:
        await peer.begin("tools/call", {"name": "wait"})
        await peer.ask("mgp/lifecycle/shutdown")
        assert (await ping(peer))["status"] == "unhealthy"
        found = await status(peer)
        assert (found["status"], found["tools_available"], found["tools_total"]) == ("unhealthy", 0, 1)
        go.set()


@pytest.mark.req("MGP-11.3s")
@for_each_row(("who", "sees"), [(LOOPBACK, False), (STRANGER, False), (BOB, True), (ALICE, True)])
async def test_strangers_learn_no_details(who: Principal, sees: bool):
    async with kernel(checked(), who=who) as peer:
        found = await status(peer)
        assert found["status"] == "degraded"
        assert {"resources", "checks", "problems"} & set(found) == (
            {"resources", "checks", "problems"} if sees else set()
        )


async def test_tools_a_caller_may_not_use_are_not_available_to_it():
    server = Server("s", "1", access=AccessPolicy("opt-in"))

    @server.tool
    def hidden() -> str:
        return "x"

    async with kernel(server, who=BOB) as peer:
        found = await status(peer)
        assert (found["tools_available"], found["tools_total"]) == (0, 1)
    async with kernel(server, who=STRANGER) as peer:
        assert (await status(peer))["tools_total"] == 0


async def test_a_check_that_hangs_is_not_begun_again_and_costs_one_thread():
    server, go, begun = Server("s", "1"), threading.Event(), list[str]()

    @server.health_check(timeout=0.02)
    def hangs() -> None:
        begun.append("begun")
        go.wait(20)

    async with kernel(server) as peer:
        problems = [(await status(peer))["problems"]["hangs"] for _ in range(3)]
        assert problems == ["no answer within 0.02 s", *["the previous check is still running"] * 2]
        assert len(begun) == 1
        go.set()
        await until(lambda: "defserve-health-hangs" not in {thread.name for thread in threading.enumerate()})
        assert (await status(peer))["status"] == "healthy"


async def test_checks_run_while_tools_hold_every_worker_thread():
    server, go = Server("s", "1", limits=Limits(threads=1)), threading.Event()

    @server.tool
    def block() -> None:
        go.wait(20)

    @server.health_check
    def database() -> bool:
        return True

    async with kernel(server) as peer:
        running = [await peer.begin("tools/call", {"name": "block"}) for _ in range(3)]
        assert (await status(peer))["checks"] == {"database": True}
        go.set()
        for id in running:
            await peer.reply_to(id)


async def test_checks_of_a_mounted_server_count_under_its_prefix():
    parent, child = Server("parent", "1"), Server("child", "1")

    @child.health_check(critical=True)
    def model() -> bool:
        return False

    parent.mount(child, prefix="ai")
    async with kernel(parent) as peer:
        found = await status(peer)
        assert (found["status"], found["checks"]) == ("unhealthy", {"ai_model": False})


def test_a_check_is_refused_when_it_cannot_be_run():
    server = Server("s", "1")

    @server.health_check
    def same() -> bool:
        return True

    assert same() is True
    with pytest.raises(UsageError, match="two health checks called 'same'"):
        server.health_check(name="same")(lambda: True)
    with pytest.raises(UsageError, match="without parameters"):

        @server.health_check
        def wants(ctx: Context) -> bool:
            return True

    with pytest.raises(UsageError, match="timeout=0"):
        server.health_check(name="it", timeout=0)(lambda: True)
    with pytest.raises(UsageError, match="needs a name"):
        server.health_check(lambda: True)
    with pytest.raises(UsageError, match="options have names"):
        server.health_check("database")  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownMemberType]


# -- probes ----------------------------------------------------------------------------------------------


class Probing(Web):
    """Asks the probes of an app."""

    async def at(self, path: str, verb: str = "GET", **headers: str) -> Exchange:
        return await self.begin(verb, headers=headers, path=path).ended()

    async def word(self, path: str) -> tuple[int, str]:
        response = await self.at(path)
        return response.status, response.body.decode()


@asynccontextmanager
async def probing(server: Server) -> AsyncGenerator[Probing]:
    async with living(server.asgi()) as app:
        yield Probing(app)


@for_each_row(
    ("fails", "critical", "ready"),
    [(False, False, (200, "healthy")), (True, False, (200, "degraded")), (True, True, (503, "unhealthy"))],
)
async def test_liveness_and_readiness(fails: bool, critical: bool, ready: tuple[int, str]):
    server = Server("s", "1")
    server.health_check(name="it", critical=critical)(lambda: not fails)
    async with probing(server) as web:
        assert await web.word("/healthz") == (200, "ok")
        assert await web.word("/readyz") == ready


async def test_a_password_in_the_error_of_a_check_is_not_in_the_log(caplog: pytest.LogCaptureFixture):
    server = Server("s", "1")

    @server.health_check
    def database() -> None:
        raise OSError("no answer from postgres://app:s3cret@db/books")

    async with probing(server) as web:
        assert await web.word("/readyz") == (200, "degraded")
    assert "health check database failed" in caplog.text and "@db/books" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_server_that_drains_is_alive_and_not_ready():
    server, go = Server("s", "1"), asyncio.Event()

    @server.tool
    async def wait() -> None:
        await go.wait()

    async with probing(server) as web:
        assert await web.word("/readyz") == (200, "healthy")
        server.composition.service.stop(5)
        assert await web.word("/healthz") == (200, "ok")
        assert await web.word("/readyz") == (503, "draining")


async def test_probes_ask_the_checks_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch):
    server, asked = Server("s", "1"), list[float]()
    server.health_check(name="it")(lambda: asked.append(time.monotonic()))
    async with probing(server) as web:
        for _ in range(20):
            assert await web.word("/readyz") == (200, "healthy")
        assert len(asked) == 1
        monkeypatch.setattr(lifecycle, "FRESH", 0)
        await web.word("/readyz")
        assert len(asked) == 2


async def test_probes_are_for_get_and_pass_the_gate():
    async with probing(Server("s", "1")) as web:
        response = await web.at("/healthz", "POST")
        assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
        assert (await web.at("/healthz", host="evil.example")).status == 421
        assert (await web.at("/readyz", origin="https://evil.example")).status == 403
        assert (await web.at("/healthz")).headers["cache-control"] == "no-store"
        assert (await web.at("/nowhere")).status == 404


async def test_probes_need_no_token_and_tell_no_details():
    from defserve.auth import StaticTokens

    server = Server("s", "1", auth=StaticTokens({"t" * 32: "alice"}))
    server.health_check(name="secret_name", critical=True)(lambda: "secret detail")
    async with probing(server) as web:
        assert await web.word("/readyz") == (503, "unhealthy")
        assert (await web.at("/")).status == 401


async def test_a_mounted_app_has_its_probes_below_the_mount():
    async with living(Server("s", "1").asgi()) as app:
        web = Probing(app, root_path="/tools")
        assert await web.word("/tools/healthz") == (200, "ok")
        assert (await web.at("/healthz/healthz")).status == 404
