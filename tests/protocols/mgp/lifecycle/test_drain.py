"""MGP §11.4 in real processes: a signal and a shutdown request take the same road, whatever is under way."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.listening import request
from tests.protocols.mgp.callers import offer
from tests.raw import HANDSHAKE, PREFIX, STATELESS, Json
from tests.serve.processes import ServerProcess

CHANGED = "notifications/mgp.lifecycle"
CALLS = 100
LONGEST = 0.6

SERVED = """
server = Server("served", "1", limits=Limits(in_flight=200, threads=THREADS))

@server.tool
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"

@server.tool
def doze(seconds: float) -> str:
    time.sleep(seconds)
    return "done"
"""
ENDINGS = ("a signal", "a request")
ENDINGS_OF_A_PIPE = (*ENDINGS, "a notification")


def states(said: list[Any]) -> list[str]:
    return [message["params"]["new_state"] for message in said if message.get("method") == CHANGED]


def source(on: str = "", threads: int = 64) -> str:
    """A script that serves on an address; without one, on standard input and output."""
    return SERVED.replace("THREADS", str(threads)) + (
        f"server.run({on!r}, trust_same_user=True)\nsys.exit()\n" if on else ""
    )


def naps() -> list[tuple[str, float]]:
    chance = random.Random(7)
    return [(chance.choice(("nap", "doze")), round(chance.uniform(0, LONGEST), 3)) for _ in range(CALLS)]


def outcome(reply: Json) -> str | int:
    """`done`, or the code of a refusal."""
    return reply["error"]["code"] if "error" in reply else reply["result"]["content"][0]["text"]


def open_with_lifecycle(server: ServerProcess) -> None:
    about = {"protocolVersion": HANDSHAKE[-1], "clientInfo": {"name": "t", "version": "1"}}
    server.ask("open", "initialize", capabilities=offer(HANDSHAKE[-1], "lifecycle"), **about)
    assert server.read()["id"] == "open"
    server.say({"method": "notifications/initialized"})
    assert states([server.read()]) == ["connected"]


def end_by(ending: str, server: ServerProcess) -> None:
    if ending == "a signal":
        server.signal(signal.SIGTERM)
    elif ending == "a notification":
        server.say({"method": CHANGED, "params": {"server_id": "served", "new_state": "draining"}})
    else:
        server.ask("end", "mgp/lifecycle/shutdown", reason="operator_request", timeout_ms=30_000)


@pytest.mark.slow
@pytest.mark.req("MGP-11.4d", "MGP-11.4n")
@pytest.mark.parametrize("ending", ENDINGS_OF_A_PIPE)
def test_on_a_pipe_every_call_in_flight_finishes_or_is_refused_and_the_exit_is_clean(ending: str, tmp_path: Path):
    with ServerProcess(tmp_path, source()) as server:
        open_with_lifecycle(server)
        for number, (tool, seconds) in enumerate(naps()):
            server.call(number, tool, seconds=seconds)
        first = server.read()  # from here on they run
        end_by(ending, server)
        for number in range(CALLS, CALLS + 20):
            server.call(number, "nap", seconds=LONGEST)
        said = [first, *(json.loads(line) for line in server.rest())]
        assert server.exit_code() == 0
    replies = {message["id"]: message for message in said if "id" in message}
    assert set(range(CALLS)) <= set(replies)
    outcomes = {number: outcome(reply) for number, reply in replies.items() if number != "end"}
    assert set(outcomes.values()) <= {"done", 2001}
    # What comes before the request was begun before it; a signal may overtake calls that nobody has read yet.
    assert all(outcomes[number] == "done" for number in range(1 if ending == "a signal" else CALLS))
    assert states(said) == ["draining", "disconnected"]
    kinds = [m.get("method") or m.get("error", {}).get("code") for m in said]
    if 2001 in kinds:
        assert kinds.index(CHANGED) < kinds.index(2001)
    assert ending != "a request" or replies["end"]["result"]["pending_requests"] > 0


@pytest.mark.req("MGP-11.4d", "MGP-11.4n")
@pytest.mark.parametrize("ending", ENDINGS_OF_A_PIPE)
def test_before_its_first_call_a_process_takes_the_same_road(ending: str, tmp_path: Path):
    # Until then it has no event loop.
    with ServerProcess(tmp_path, source()) as server:
        open_with_lifecycle(server)
        server.ask("ping", "mgp/health/ping")
        assert server.read()["result"]["status"] == "healthy"
        end_by(ending, server)
        said = [json.loads(line) for line in server.rest()]
        assert server.exit_code() == 0
    assert states(said) == ["draining", "disconnected"]
    assert [m["id"] for m in said if "id" in m] == (["end"] if ending == "a request" else [])


@pytest.mark.req("MGP-11.4d")
@pytest.mark.parametrize("patience", [0, 0.005, 0.02, 0.06, 0.1])
def test_whenever_a_signal_comes_a_first_call_is_answered(patience: float, tmp_path: Path):
    with ServerProcess(tmp_path, source()) as server:
        open_with_lifecycle(server)
        server.call(1, "nap", seconds=0.05)
        time.sleep(patience)
        server.signal(signal.SIGTERM)
        said = [json.loads(line) for line in server.rest()]
        assert server.exit_code() == 0
    # One that has not been read yet is not in flight.
    assert [outcome(m) for m in said if m.get("id") == 1] in (["done"], [2001], [])
    assert states(said) == ["draining", "disconnected"]


@pytest.mark.req("MGP-11.4d")
def test_a_shutdown_is_bounded_by_its_own_timeout(tmp_path: Path):
    with ServerProcess(tmp_path, source()) as server:
        open_with_lifecycle(server)
        server.call(1, "doze", seconds=60)
        server.ask("end", "mgp/lifecycle/shutdown", timeout_ms=300)
        said = [json.loads(line) for line in server.rest()]
        assert server.exit_code(5) == 0
    assert [outcome(message) for message in said if message.get("id") == 1] == [2001]


def test_a_signal_after_a_request_does_not_cut_calls_short_but_a_second_one_does(tmp_path: Path):
    with ServerProcess(tmp_path, source()) as server:
        open_with_lifecycle(server)
        server.call(1, "nap", seconds=1)
        server.call(2, "nap", seconds=60)
        server.ask("end", "mgp/lifecycle/shutdown", timeout_ms=30_000)
        while server.read().get("id") != "end":
            pass
        server.signal(signal.SIGTERM)
        while (reply := server.read()).get("id") != 1:
            pass
        assert outcome(reply) == "done"
        server.signal(signal.SIGTERM)
        assert server.seconds_to_exit() < 5 and server.exit_code() == 0


# -- over HTTP -------------------------------------------------------------------------------------------

Connect = Callable[[], Any]


def post(method: str, id: Any, **params: Any) -> bytes:
    """A request that stands alone, of a client that speaks MGP."""
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": offer(STATELESS, "lifecycle")}
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}
    about = ["accept: application/json, text/event-stream", f"mcp-protocol-version: {STATELESS}"]
    about += [f"mcp-method: {method}", *([f"mcp-name: {params['name']}"] if "name" in params else [])]
    return request(*about, "connection: close", body=json.dumps(body).encode())


async def ask(connect: Connect, data: bytes) -> Json | None:
    """The reply; None where nobody listens any more."""
    try:
        reader, writer = await connect()
    except OSError:
        return None
    try:
        writer.write(data)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    except ConnectionResetError:  # it was in the backlog of a socket that closed
        return None
    finally:
        writer.close()
    return json.loads(body) if head else None


def call(tool: str, seconds: float) -> bytes:
    return post("tools/call", 1, name=tool, arguments={"seconds": seconds})


async def crowd(connect: Connect, end: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """The outcomes of the calls in flight when the end begins, and of those that come after."""
    async with asyncio.timeout(30):
        begun = [asyncio.ensure_future(ask(connect, call(tool, seconds))) for tool, seconds in naps()]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        status: Any = {"result": {"pending_requests": 0}}
        while status["result"]["pending_requests"] + sum(one.done() for one in begun) < CALLS - 1:
            status = await ask(connect, post("mgp/health/status", 2))
        await end()
        later: list[Any] = []
        while (reply := await ask(connect, call("nap", 0))) is not None:
            later.append(outcome(reply))
            await asyncio.sleep(0.02)
        return [reply and outcome(reply) for reply in await asyncio.gather(*begun)], later


@pytest.mark.req("MGP-11.4d")
@pytest.mark.parametrize("ending", ENDINGS)
def test_over_http_every_call_in_flight_finishes_new_ones_are_refused_and_the_exit_is_clean(
    ending: str, tmp_path: Path
):
    path = tmp_path / "s"
    with ServerProcess(tmp_path, source(f"unix:{path}")) as server:
        assert server.line(2) == f"serving on unix:{path}".encode()

        async def end() -> None:
            if ending == "a signal":
                server.signal(signal.SIGTERM)
            else:
                reply = await ask(lambda: asyncio.open_unix_connection(path), post("mgp/lifecycle/shutdown", 3))
                assert reply is not None and reply["result"]["accepted"]

        begun, later = asyncio.run(crowd(lambda: asyncio.open_unix_connection(path), end))
        assert server.exit_code() == 0
    assert Counter(begun) == {"done": CALLS}
    # A signal takes its time to arrive; from then on all are refused, and told so.
    refused = later[later.index(2001) :]
    assert set(refused) == {2001}


@pytest.mark.req("MGP-11.4d")
def test_over_http_a_shutdown_is_bounded_by_its_own_timeout(tmp_path: Path):
    path = tmp_path / "s"

    def connect() -> Any:
        return asyncio.open_unix_connection(path)

    async def converse() -> Json | None:
        stuck = asyncio.ensure_future(ask(connect, call("nap", 60)))
        status: Any = {"result": {"pending_requests": 0}}
        while not status["result"]["pending_requests"]:
            status = await ask(connect, post("mgp/health/status", 2))
        await ask(connect, post("mgp/lifecycle/shutdown", 3, timeout_ms=300))
        return await stuck

    with ServerProcess(tmp_path, source(f"unix:{path}")) as server:
        assert server.line(2) == f"serving on unix:{path}".encode()
        stuck = asyncio.run(asyncio.wait_for(converse(), 20))
        assert stuck is not None and outcome(stuck) == 2001
        assert server.exit_code(10) == 0
