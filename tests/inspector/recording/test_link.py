from __future__ import annotations

import sys

import pytest

from defserve import Server
from defserve.client import Client, ClientLink, HttpLink, ProcessLink
from defserve.errors import PeerError, PeerGone
from defserve.inspector.era_connection import observe_link
from defserve.inspector.recording.recorder import Recorder
from defserve.limits import Limits
from defserve.serve.lifespans import connect_in_memory
from defserve.serve.session_opener import serve_on_loopback
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


def small() -> Server:
    server = Server("small", "1")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    return server


async def talk(link: ClientLink, version: str) -> Recorder:
    recorder = Recorder()
    async with Client(observe_link(link, recorder, version), version=version) as client:
        assert await client.call("add", a=1, b=2) == 3
        with pytest.raises(PeerError):
            await client.request("no/such", {})
    return recorder


def check(recorder: Recorder) -> None:
    entries = recorder.get_messages(0, recorder.count)
    called = [entry for entry in entries if entry.method == "tools/call"]
    assert [(entry.direction, entry.kind, entry.about) for entry in called] == [
        ("sent", "request", "add"),
        ("received", "answer", "add"),
    ]
    assert recorder.describe_message(called[0].seq)["body"]["params"]["arguments"] == {"a": 1, "b": 2}
    assert recorder.describe_message(called[1].seq)["body"]["result"]["content"][0]["text"] == "3"
    refused = [entry for entry in entries if entry.method == "no/such"]
    assert [entry.error for entry in refused] == [-32601, -32601]


@for_each_row("version", ["handshake", "stateless"])
async def test_in_memory(version: str):
    async with connect_in_memory(small().composition) as link:
        check(await talk(link, version))


@for_each_row("version", ["handshake", "stateless"])
async def test_over_http_with_headers(version: str):
    async with serve_on_loopback(small().asgi(), Limits()) as address:
        recorder = await talk(HttpLink(address), version)
    check(recorder)
    asked = next(entry for entry in recorder.get_messages(0, recorder.count) if entry.method == "tools/call")
    exchange = recorder.describe_message(asked.seq)["exchange"]
    assert (exchange["method"], exchange["status"]) == ("POST", 200)
    assert exchange["headers"]["content-type"] == exchange["answered"]["content-type"] == "application/json"


SERVER = """
from defserve import Server

server = Server("s", "1")


@server.tool
def add(a: int, b: int) -> int:
    return a + b


server.main()
"""


@pytest.mark.slow
async def test_a_child_process(tmp_path):
    (tmp_path / "s.py").write_text(SERVER)
    check(await talk(await ProcessLink.spawn(sys.executable, [str(tmp_path / "s.py")]), "handshake"))


async def test_an_answer_that_is_lost_is_told():
    recorder = Recorder()
    link = observe_link(HttpLink("http://127.0.0.1:9/mcp"), recorder, "stateless")
    with pytest.raises(PeerError):
        async with Client(link, version="stateless"):
            pass
    asked, lost = recorder.get_messages(0, 2)
    assert (asked.method, lost.of, lost.direction) == ("server/discover", asked.seq, "received")
    assert "cannot be reached" in recorder.describe_message(lost.seq)["body"]["error"]["message"]


class LeavingLink:
    """The link to a server that leaves before it answers anything."""

    async def send(self, message: bytes) -> None:
        pass

    async def receive(self) -> bytes | None:
        raise PeerGone("server.py exited with 3")

    async def aclose(self) -> None:
        pass


async def test_calls_that_a_server_leaves_unanswered_fail_and_do_not_run_for_ever():
    recorder = Recorder()
    link = observe_link(LeavingLink(), recorder, "stateless")
    await link.send(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "crash"}}')
    await link.send(b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}')
    with pytest.raises(PeerGone):
        await link.receive()
    called, listed, lost = recorder.get_messages(0, recorder.count)
    assert (called.of, called.error) == (lost.seq, -32603) and called.ms is not None
    assert recorder.describe_message(lost.seq)["body"]["error"]["message"] == "server.py exited with 3"
    assert listed.of is None and recorder.errors == 1
