"""More calls than can run: on a pipe they wait, and none is refused; over HTTP they wait a moment, then comes a 429."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from defserve import Context, Limits, Server
from tests.at_address import at_address
from tests.raw import HANDSHAKE, STATELESS, Json, Raw, raw, text_of, until
from tests.serve.processes import ServerProcess

pytestmark = pytest.mark.anyio

MANY = 10_000

SLOW_AND_QUICK = """
    server = Server("many")

    @server.tool
    def blocking(n: int) -> int: return n

    @server.tool
    async def waiting(n: int) -> int:
        await asyncio.sleep(0.001)
        return n

    @server.tool(inline=True)
    def memory() -> int:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""


def call(id: Any, tool: str, **arguments: Any) -> Json:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def written_behind(served: ServerProcess, data: bytes, then: Callable[[], None] = lambda: None) -> threading.Thread:
    """Write everything at once, beside the reader: a pipe holds less."""

    def write() -> None:
        served.write(data)
        then()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["blocking", "waiting"])
def test_ten_thousand_calls_written_at_once_are_all_answered_and_memory_stays_bounded(tmp_path: Path, tool: str):
    with ServerProcess(tmp_path, SLOW_AND_QUICK) as served:
        served.open()
        served.call("before", "memory")
        before = int(served.text("before"))
        padding = "x" * 1_000
        lines = (json.dumps(call(n, tool, n=n) | {"padding": padding}).encode() + b"\n" for n in range(MANY))
        writer = written_behind(served, b"".join(lines))
        answers = {(reply := served.read())["id"]: reply["result"]["content"][0]["text"] for _ in range(MANY)}
        writer.join()
        assert answers == {n: str(n) for n in range(MANY)}
        served.call("after", "memory")
        assert int(served.text("after")) - before < 20_000  # KiB; the requests alone are 11 MB


def test_calls_that_wait_at_the_end_of_input_are_answered_before_the_server_ends(tmp_path: Path):
    with ServerProcess(tmp_path, SLOW_AND_QUICK) as served:
        served.open()
        lines = b"".join(json.dumps(call(n, "waiting", n=n)).encode() + b"\n" for n in range(2_000))
        written_behind(served, lines, served.end)
        replies = [json.loads(line) for line in served.rest()]
        assert sorted(reply["id"] for reply in replies) == list(range(2_000))
        assert all("result" in reply and not reply["result"].get("isError") for reply in replies)
        assert served.exit_code() == 0


class Gated:
    """A server with a tool that runs until it is let go, and notes the order in which its calls began."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server("gated", "1", limits=Limits(**limits))
        self.free = asyncio.Event()
        self.begun: list[int] = []

        @self.server.tool
        async def hold(n: int) -> int:
            self.begun.append(n)
            await self.free.wait()
            return n

        @self.server.tool
        async def ask(ctx: Context, n: int) -> str:
            self.begun.append(n)
            return await ctx.ask(f"number {n}?", str)


async def test_calls_begin_and_are_answered_in_the_order_they_were_sent():
    gated = Gated(in_flight=3)
    async with raw(gated.server) as peer:
        ids = [await peer.begin("tools/call", {"name": "hold", "arguments": {"n": n}}) for n in range(50)]
        await until(lambda: gated.begun == [0, 1, 2])
        assert "result" in await peer.ask("server/discover")
        gated.free.set()
        assert [text_of((await peer.reply_to(id))["result"]) for id in ids] == [str(n) for n in range(50)]
    assert gated.begun == list(range(50))


async def test_a_sender_waits_while_the_queue_is_full_and_goes_on_when_there_is_room():
    gated = Gated(in_flight=2, queued=4)
    async with raw(gated.server) as peer:
        sent: list[int] = []

        async def flood() -> None:
            for n in range(40):
                id = await peer.begin("tools/call", {"name": "hold", "arguments": {"n": n}})
                sent.append(id)

        flooding = asyncio.create_task(flood())
        await until(lambda: len(sent) == 6)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(sent) == 6 and not flooding.done()
        gated.free.set()
        await flooding
        assert [text_of((await peer.reply_to(id))["result"]) for id in sent] == [str(n) for n in range(40)]


async def test_of_a_batch_what_does_not_fit_into_the_queue_is_refused():
    gated = Gated(in_flight=2, queued=3)
    async with raw(gated.server, "2025-03-26") as peer:
        await peer.link.send(json.dumps([call(n, "hold", n=n) for n in range(100, 200)]).encode())
        await until(lambda: gated.server.composition.queued == 3)
        gated.free.set()
        replies = json.loads(await peer.link.receive())
    assert [reply["id"] for reply in replies if "result" in reply] == list(range(100, 105))
    refused = {reply["error"]["code"]: reply["id"] for reply in replies if "error" in reply}
    assert len(replies) == 100 and refused == {-32603: 199}


async def test_cancelling_a_call_that_waits_ends_it_without_a_reply():
    gated = Gated(in_flight=1)
    async with raw(gated.server) as peer:
        ids = [await peer.begin("tools/call", {"name": "hold", "arguments": {"n": n}}) for n in range(3)]
        await peer.tell("notifications/cancelled", {"requestId": ids[1]})
        gated.free.set()
        assert text_of((await peer.reply_to(ids[2]))["result"]) == "2"
        assert [message["id"] for message in peer.heard] == [ids[0]]
    assert gated.begun == [0, 2]


@pytest.mark.parametrize("count", [64, 300])
async def test_calls_that_wait_for_the_peers_answer_do_not_hold_up_the_answer(count: int):
    gated = Gated(in_flight=4, queued=8, in_flight_total=1_000)
    async with raw(gated.server, HANDSHAKE[-1], {"elicitation": {}}) as peer:
        ids = [await peer.begin("tools/call", {"name": "ask", "arguments": {"n": n}}) for n in range(count)]
        answered = 0
        while answered < count:
            message = json.loads(await peer.link.receive())
            if "method" in message:
                result = {"action": "accept", "content": {"value": "yes"}}
                await peer.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
            else:
                assert not message["result"].get("isError"), message
                answered += 1
    assert len(ids) == count


async def test_where_every_call_waits_for_the_peer_the_excess_is_refused_and_its_answers_are_read():
    gated = Gated(in_flight=2, queued=4, in_flight_total=8)
    async with raw(gated.server, HANDSHAKE[-1], {"elicitation": {}}) as peer:
        async with asyncio.timeout(30):  # nothing may wait for a reader that never comes
            ids = [await peer.begin("tools/call", {"name": "ask", "arguments": {"n": n}}) for n in range(100)]
            refused = await peer.reply_to(ids[-1])
        assert refused["error"]["code"] == -32603 and refused["error"]["data"]["limit"] == "in_flight_total"
        questions = [message for message in peer.heard if message.get("method") == "elicitation/create"]
        assert len(questions) == 8
        result = {"action": "accept", "content": {"value": "yes"}}
        await peer.send({"jsonrpc": "2.0", "id": questions[0]["id"], "result": result})
        assert text_of((await peer.reply_to(ids[0]))["result"]) == "yes"


async def test_subscriptions_that_stay_open_take_no_room():
    gated = Gated(in_flight=2)
    gated.free.set()
    async with raw(gated.server) as peer:
        for _ in range(5):
            await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert text_of(await peer.call("hold", {"n": 1})) == "1"


async def test_however_many_subscriptions_one_client_keeps_open_another_finds_room():
    gated = Gated(in_flight=2, in_flight_total=4, queued=2, sessions=6)
    gated.free.set()
    listening = {"notifications": {"toolsListChanged": True}}
    async with raw(gated.server) as greedy, raw(gated.server) as second, raw(gated.server) as third:
        ids = [await greedy.begin("subscriptions/listen", listening) for _ in range(20)]
        refused = await greedy.reply_to(ids[-1])
        assert refused["error"]["code"] == -32603 and refused["error"]["data"]["limit"] == "in_flight_total"
        assert gated.server.composition.idle == 4
        assert text_of(await second.call("hold", {"n": 1})) == "1"
        for _ in range(2):
            await second.begin("subscriptions/listen", listening)
        await until(lambda: gated.server.composition.idle == 6)
        refused = await third.reply_to(await third.begin("subscriptions/listen", listening))
        assert refused["error"]["code"] == -32603 and refused["error"]["data"]["limit"] == "sessions"
        assert text_of(await third.call("hold", {"n": 2})) == "2"
    assert gated.server.composition.idle == gated.server.composition.running == 0


async def test_a_call_that_waits_for_its_peer_leaves_its_place_to_others():
    gated = Gated(in_flight_total=1)
    gated.free.set()
    async with raw(gated.server, HANDSHAKE[-1], {"elicitation": {}}) as peer, raw(gated.server) as other:
        asking = await peer.begin("tools/call", {"name": "ask", "arguments": {"n": 1}})
        await until(lambda: gated.server.composition.idle == 1)
        assert text_of(await other.call("hold", {"n": 2})) == "2"
        question = json.loads(await peer.link.receive())
        result = {"action": "accept", "content": {"value": "yes"}}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": result})
        assert text_of((await peer.reply_to(asking))["result"]) == "yes"


@pytest.mark.slow
async def test_a_websocket_stops_reading_and_refuses_nothing():
    gated = Gated(in_flight=4, queued=8)
    gated.free.set()
    async with at_address(gated.server, "ws") as url, connect(url, subprotocols=["mcp"]) as socket:  # pyright: ignore
        meta = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
        }

        async def flood() -> None:
            for n in range(2_000):
                message = call(n, "hold", n=n)
                message["params"]["_meta"] = meta
                await socket.send(json.dumps(message))

        flooding = asyncio.create_task(flood())
        replies = [json.loads(await socket.recv()) for _ in range(2_000)]
        await flooding
    assert sorted(reply["id"] for reply in replies) == list(range(2_000))
    assert all("result" in reply for reply in replies)
    assert gated.begun == list(range(2_000))


# -- over HTTP ----------------------------------------------------------------------------------------------


async def post(url: str, message: Json, **headers: str) -> tuple[int, dict[str, str], Json]:
    """The status, the headers and the JSON of the response to one request, on a connection of its own."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(message).encode()
    fields = {
        "Host": host,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(data)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    try:
        writer.write(f"POST / HTTP/1.1\r\n{head}\r\n".encode() + data)
        answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    first, *lines = answer.decode("latin-1").split("\r\n")
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), found, json.loads(body) if body else {}


async def alone(url: str, id: int, tool: str, **arguments: Any) -> tuple[int, dict[str, str], Json]:
    message = call(id, tool, **arguments)
    message["params"]["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return await post(url, message, **headers)


async def in_session(url: str) -> str:
    about = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    _, headers, _ = await post(url, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
    return headers["mcp-session-id"]


async def test_over_http_calls_wait_for_a_moment_and_then_there_is_a_429():
    gated = Gated(in_flight_total=2, queue=0.05)
    async with at_address(gated.server) as url:
        running = [asyncio.create_task(alone(url, n, "hold", n=n)) for n in range(2)]
        await until(lambda: len(gated.begun) == 2)
        status, headers, body = await alone(url, 7, "hold", n=7)
        assert (status, headers["retry-after"]) == (429, "1")
        assert (body["id"], body["error"]["code"]) == (7, -32603)
        assert body["error"]["data"]["limit"] == "in_flight_total"
        gated.free.set()
        assert [(await one)[0] for one in running] == [200, 200]
        assert (await alone(url, 8, "hold", n=8))[0] == 200
    assert gated.begun[2:] == [8]


async def test_over_http_a_call_that_waited_is_answered_when_there_is_room():
    gated = Gated(in_flight_total=2, queue=30)
    async with at_address(gated.server) as url:
        calls = [asyncio.create_task(alone(url, n, "hold", n=n)) for n in range(10)]
        await until(lambda: gated.server.composition.queued == 8)
        gated.free.set()
        answers = [await one for one in calls]
    assert [(status, text_of(body["result"])) for status, _, body in answers] == [(200, str(n)) for n in range(10)]


async def test_over_http_the_queue_of_a_session_is_bounded_in_number():
    gated = Gated(in_flight=2, queued=3, queue=30)
    async with at_address(gated.server) as url:
        session = {"Mcp-Session-Id": await in_session(url)}
        calls = [asyncio.create_task(post(url, call(n, "hold", n=n), **session)) for n in range(5)]
        await until(lambda: gated.server.composition.queued == 3)
        status, headers, body = await post(url, call(9, "hold", n=9), **session)
        assert (status, headers["retry-after"], body["error"]["code"]) == (429, "1", -32603)
        gated.free.set()
        assert [(await one)[0] for one in calls] == [200] * 5


async def test_a_client_that_leaves_while_its_call_waits_takes_the_call_with_it():
    gated = Gated(in_flight_total=1, queue=30)
    async with at_address(gated.server) as url:
        running = asyncio.create_task(alone(url, 1, "hold", n=1))
        await until(lambda: len(gated.begun) == 1)
        leaving = asyncio.create_task(alone(url, 2, "hold", n=2))
        await until(lambda: gated.server.composition.queued == 1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        third = asyncio.create_task(alone(url, 3, "hold", n=3))
        gated.free.set()
        assert (await running)[0] == 200 and (await third)[0] == 200
        await until(lambda: gated.server.composition.queued == 0 and gated.server.composition.running == 0)


async def test_a_client_that_leaves_as_soon_as_its_call_runs_takes_the_call_with_it():
    gated = Gated()
    async with at_address(gated.server) as url:
        leaving = asyncio.create_task(alone(url, 1, "hold", n=1))
        await until(lambda: len(gated.begun) == 1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await until(lambda: gated.server.composition.running == 0)


async def test_a_client_is_read_again_after_its_queue_has_ended_while_those_of_others_were_full(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("defserve.core.call.FULL_QUEUES", 1)
    server, gates = Server("x", limits=Limits(in_flight=1, queued=1)), {"ada": asyncio.Event(), "bob": asyncio.Event()}

    @server.tool
    async def wait(who: str) -> str:
        await gates[who].wait()
        return who

    async def begin(peer: Raw, who: str) -> int:
        return await peer.begin("tools/call", {"name": "wait", "arguments": {"who": who}})

    async with raw(server, HANDSHAKE[-1]) as ada, raw(server, HANDSHAKE[-1]) as bob:
        of_bob = [await begin(bob, "bob") for _ in range(2)]
        await until(lambda: server.composition.queued == 1)
        of_ada = [await begin(ada, "ada") for _ in range(2)]
        await until(lambda: server.composition.queued == 2)
        gates["ada"].set()
        for id in (*of_ada, await begin(ada, "ada")):
            assert text_of((await ada.reply_to(id))["result"]) == "ada"
        gates["bob"].set()
        for id in of_bob:
            assert text_of((await bob.reply_to(id))["result"]) == "bob"
