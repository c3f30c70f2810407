"""Backends that die, hang, clash or never answer: their clients keep their sessions, and others notice nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from defserve import Command, Remote, Server, ToolError, UsageError
from defserve.client import Answers
from defserve.errors import PeerError
from defserve.proxying import channel, mounts
from defserve.proxying.backend import Backend
from defserve.proxying.mounted import STATE_DESCRIPTIONS, BackendTransition, RestartPolicy
from tests.at_address import at_address
from tests.proxying.backends import ERAS, child, hearing, until_fact
from tests.waiting import until

pytestmark = pytest.mark.anyio

SOON = RestartPolicy("on_failure", 5, 300, 0.01, 0.02)
SILENT = Command(sys.executable, "-c", "import sys; sys.stdin.read()")
ERROR = "dev.defserve/error"


def front(*mounts: tuple[Any, str | None], **options: Any) -> Server:
    server = Server("front")

    @server.tool
    def local() -> str:
        return "here"

    for target, prefix in mounts:
        server.mount(target, prefix=prefix, **options)
    return server


def backend(server: Server, id: str = "e") -> Backend:
    return server.mounts.backends[id]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_kill_9_during_a_call_costs_that_call_and_nothing_else(era: str) -> None:
    server = front((child(per="shared"), "e"), restarts=SOON)
    async with server.connect(era) as client:
        pid = await client.call("e_pid")
        waiting = asyncio.create_task(client.call_raw("e_wait"))
        await until_fact(client, "waiting")
        os.kill(pid, signal.SIGKILL)
        result = await waiting
        assert result["isError"]
        detail = result["_meta"][ERROR]
        assert (detail["server_id"], detail["error_type"]) == ("e", "upstream_unavailable")
        assert detail["retryable"] is True
        assert detail["may_have_had_effects"] is True
        assert "'e'" in result["content"][0]["text"]
        assert await client.call("local") == "here"
        assert await client.call("e_pid") != pid
        assert (backend(server).state, backend(server).restarts) == ("connected", 1)


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_dead_child_of_one_client_is_replaced_with_its_subscriptions(era: str) -> None:
    heard: list[str] = []
    server = front((child(), "e"), restarts=SOON)
    async with server.connect(era, on_notification=hearing(heard)) as client:
        await client.subscribe("note://e/live")
        pid = await client.call("e_pid")
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while True:
                try:
                    if await client.call("e_pid") != pid:
                        break
                except ToolError:
                    await asyncio.sleep(0.01)
        await client.call("e_change", text="again")
        await until(lambda: "notifications/resources/updated" in heard)


@pytest.mark.slow
async def test_states_are_told_in_order() -> None:
    server = front((child(per="shared"), "e"), restarts=SOON)
    seen: list[str] = []
    backend(server).watch(lambda change: seen.append(change.new))
    async with server.connect() as client:
        pid = await client.call("e_pid")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: seen.count("connected") == 2)
    assert seen == ["connecting", "connected", "error", "restarting", "connected", "draining", "disconnected"]


async def test_a_program_that_does_not_exist_is_not_started_again() -> None:
    server = front((Command("no-such-program"), "e"), restarts=SOON)
    changes: list[str] = []
    backend(server).watch(lambda change: changes.append(change.new))
    async with server.connect():
        await until(lambda: backend(server).state == "error")
        assert changes == ["connecting", "error"]
        assert "cannot start 'no-such-program'" in backend(server).note
        refusal = backend(server).refusal
        assert refusal is not None
        assert refusal.reason == "cannot_start"


async def test_a_server_at_an_address_that_is_down_is_not_said_to_be_restarted() -> None:
    server = front((Remote("http://127.0.0.1:9/mcp"), "e"), restarts=RestartPolicy("always", None, 300, 60, 60))
    async with server.connect() as client:
        await until(lambda: backend(server).state == "restarting")
        # It is tried again in a minute, so waiting for it would be of no use.
        async with asyncio.timeout(5):
            with pytest.raises(ToolError, match="server 'e' cannot be reached at the moment; try again"):
                await client.call("e_add", a=1, b=2)
        listed = await client.request("tools/list")
        assert listed["_meta"]["dev.defserve/servers"]["e"]["note"].startswith("it cannot be reached now")


async def test_a_server_that_dies_at_once_meets_its_limit_and_says_its_last_words() -> None:
    broken = Command(sys.executable, "-c", "import sys; sys.exit('KeyError: TEAM')")
    server = front((broken, "e"), restarts=RestartPolicy("on_failure", 2, 300, 0.01, 0.02))
    ends: list[BackendTransition] = []
    backend(server).watch(ends.append)
    async with server.connect() as client:
        await until(lambda: bool(ends) and "restart_limit_exceeded" in ends[-1].reason)
        assert backend(server).state == "error"
        assert "KeyError: TEAM" in backend(server).note
        assert await client.call("local") == "here"
        listed = await client.request("tools/list")
        assert listed["_meta"]["dev.defserve/servers"]["e"]["state"] == "error"
        assert listed["_meta"]["dev.defserve/servers"]["e"]["note"] == STATE_DESCRIPTIONS["error"]
        assert [tool["name"] for tool in listed["tools"]] == ["local"]


DYING = """
import json, sys

for line in sys.stdin:
    said = json.loads(line)
    result = {
        "initialize": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "d", "version": "1"}
        },
        "tools/list": {"tools": [{"name": "die", "inputSchema": {"type": "object"}}]},
        "ping": {},
    }.get(said.get("method"))
    if said.get("method") == "tools/call":
        sys.exit("KeyError: TEAM in /srv/secret/place.py")
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}), flush=True)
    elif "id" in said:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
"""


@pytest.mark.parametrize("per", ["shared", "client"])
async def test_clients_are_told_no_words_paths_or_commands_of_a_backend_that_failed(
    per: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dying = Command(sys.executable, "-c", DYING, per=per, version="handshake")
    server = front((dying, "e"), restarts=RestartPolicy("on_failure", 1, 300, 0.01, 0.02))
    async with server.connect() as client:
        heard = [await client.call_raw("e_die")]
        for _ in range(3):
            with suppress(PeerError):
                heard.append(await client.call_raw("e_die"))
            heard.append(await client.request("tools/list"))
    told = json.dumps(heard)
    assert "crashed before it answered" in told
    assert [word for word in ("TEAM", "place.py", sys.executable, "last words", "code 1") if word in told] == []
    assert "TEAM" in caplog.text


@pytest.mark.slow
async def test_a_backend_that_never_answers_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server = front((SILENT, "silent"), (child(), "e"))
    monkeypatch.setattr(mounts, "LIST_WAIT_SECONDS", 600.0)  # whoever waited for a list would wait for ever
    async with server.connect() as client:
        assert (await client.call_raw("local"))["content"][0]["text"] == "here"
        monkeypatch.setattr(mounts, "LIST_WAIT_SECONDS", 0.2)
        assert await client.call("e_add", a=1, b=2) == 3
        names = [tool["name"] for tool in await client.tools()]
        assert "local" in names
        assert "e_add" in names
        states = (await client.request("tools/list"))["_meta"]["dev.defserve/servers"]
        assert states["silent"]["state"] == "connecting"


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("version", ["handshake", "stateless"])
@pytest.mark.parametrize("per", ["shared", "client"])
async def test_a_call_that_finds_nobody_at_an_address_had_no_effects_and_changes_the_state(
    version: Any, per: Any
) -> None:
    async with AsyncExitStack() as stack:
        behind = Server("behind")
        behind.tool(add)
        url = await stack.enter_async_context(at_address(behind))
        server = front((Remote(url, version=version, per=per), "e"))
        async with server.connect() as client:
            assert await client.call("e_add", a=1, b=2) == 3
            await stack.aclose()
            said = await client.call_raw("e_add", {"a": 1, "b": 2})
            assert backend(server).state != "connected"
            assert "not reachable, so the call was not sent" in said["content"][0]["text"]
            assert "may_have_had_effects" not in json.dumps(said)


async def test_a_server_without_sessions_that_is_gone_is_noticed_without_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "REOPEN_UPDATES_SECONDS", 0.0)
    async with AsyncExitStack() as stack:
        behind = Server("behind")
        behind.tool(add)
        url = await stack.enter_async_context(at_address(behind))
        server = front((Remote(url, version="stateless"), "e"))
        async with server.connect() as client:
            assert await client.call("e_add", a=1, b=2) == 3
            await stack.aclose()
            await until(lambda: backend(server).state != "connected")


async def test_a_call_to_a_backend_that_does_not_open_is_refused_in_time() -> None:
    server = front((Remote("http://127.0.0.1:9/mcp"), "e"))
    async with server.connect() as client:
        with pytest.raises(ToolError, match="server 'e' (is|cannot)"):
            await client.call("e_add", a=1, b=2)
        await until(lambda: "127.0.0.1:9" in backend(server).note)


@pytest.mark.slow
async def test_a_slow_call_of_one_backend_holds_up_no_other_call() -> None:
    server = front((child(), "e"), (child(), "f"), in_flight=1)
    async with server.connect() as client:
        waiting = asyncio.create_task(client.call("e_wait"))
        assert await client.call("f_add", a=1, b=2) == 3
        queued = asyncio.create_task(client.call("e_add", a=1, b=2))
        assert await client.call("f_add", a=3, b=2) == 5
        waiting.cancel()
        assert await queued == 3


@pytest.mark.slow
async def test_too_many_waiting_calls_are_refused() -> None:
    server = front((child(), "e"), in_flight=1)
    async with server.connect() as client:
        calls = [asyncio.create_task(client.call_raw("e_wait")) for _ in range(7)]
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        detail = done.pop().result()["_meta"][ERROR]
        assert (detail["error_type"], detail["server_id"]) == ("resource_exhausted", "e")
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await client.call("e_add", a=1, b=2) == 3


@pytest.mark.slow
async def test_two_servers_with_a_tool_of_one_name_are_named() -> None:
    server = front((child(), None))

    @server.tool
    def add(a: int, b: int) -> int:
        return 0

    [clashing] = server.mounts.backends.values()
    changes: list[str] = []
    clashing.watch(lambda change: changes.append(change.reason))
    async with server.connect() as client:
        await until(lambda: clashing.state == "error")
        assert changes[-1] == clashing.note
        assert "tool 'add'" in clashing.note
        assert "prefix" in clashing.note
        assert [tool["name"] for tool in await client.tools()] == ["local", "add"]
        assert await client.call("add", a=1, b=2) == 0


def test_two_mounts_of_one_prefix_are_refused() -> None:
    with pytest.raises(UsageError, match="two mounted servers called 'e'"):
        front((child(), "e"), (child(), "e"))


@pytest.mark.slow
async def test_stopping_takes_the_tools_away_and_starting_brings_them_back() -> None:
    server = front((child(), "e"))
    async with server.connect() as client:
        assert await client.call("e_add", a=1, b=2) == 3
        await backend(server).stop("operator_request", 1)
        assert [tool["name"] for tool in await client.tools()] == ["local"]
        await backend(server).start()
        await backend(server).ready(30)
        assert await client.call("e_add", a=1, b=2) == 3


@pytest.mark.slow
async def test_draining_lets_calls_finish_and_refuses_new_ones() -> None:
    server = front((child(per="shared"), "e"))
    async with server.connect() as client:
        counting = asyncio.create_task(client.call("e_count", n=20))
        await until(lambda: backend(server).calls == 1)
        stopping = asyncio.create_task(backend(server).stop("operator_request", 30))
        await until(lambda: backend(server).state == "draining")
        refused = await client.call_raw("e_add", {"a": 1, "b": 2})
        assert refused["_meta"][ERROR]["error_type"] == "draining"
        assert await counting == "counted to 20"
        await stopping


@pytest.mark.slow
async def test_a_restart_keeps_the_tools_and_the_clients() -> None:
    server = front((child(per="shared"), "e"))
    async with server.connect("handshake") as client:
        pid = await client.call("e_pid")
        await backend(server).restart("configuration_change", 1)
        assert "e_add" in [tool["name"] for tool in await client.tools()]
        assert await client.call("e_pid") != pid


@pytest.mark.slow
async def test_a_parked_call_whose_child_died_is_not_run_again() -> None:
    server = front((child(version="handshake"), "e"), restarts=SOON)
    [backend] = server.mounts.backends.values()

    async def ask(message: str, schema: Any) -> Any:
        [channel] = backend.conversations.pool.list_channels()
        os.kill(children[0], signal.SIGKILL)
        await until(lambda: channel.gone is not None)
        return {"value": 5}

    async with server.connect("stateless", answers=Answers(ask=ask)) as client:
        children = [await client.call("e_pid")]
        result = await client.call_raw("e_order")
        assert result["isError"]
        assert "may have had effects" in result["content"][0]["text"]
        assert await client.call("e_fact", name="runs") == 0


@asynccontextmanager
async def asked_over_http(server: Server) -> AsyncGenerator[tuple[Any, Any]]:
    """A client that was asked, and the result that asks."""
    async with (
        at_address(server) as url,
        Remote(url).connect("stateless", capabilities={"elicitation": {"form": {}}}) as client,
    ):
        yield client, await client.request("tools/call", {"name": "e_order", "arguments": {}}, follow=False)


@pytest.mark.slow
@pytest.mark.parametrize("back", ERAS)
async def test_a_stranger_without_a_session_is_asked_and_its_answers_reach_the_same_child(back: str) -> None:
    server = front((child(version=back), "e"))
    answers = Answers(ask=lambda message, schema: {"value": 5} if "size" in message else {"value": "red"})
    async with at_address(server) as url, Remote(url).connect("stateless", answers=answers) as client:
        assert await client.call("e_order") == "5 red"
        await until(lambda: len(backend(server).conversations.pool) == 0)  # and the child has ended


@pytest.mark.slow
async def test_a_state_is_worth_nothing_to_another_server_or_twice() -> None:
    async with asked_over_http(front((child(version="handshake"), "e"))) as (client, asking):
        [key] = asking["inputRequests"]
        answer = {"inputResponses": {key: {"action": "accept", "content": {"value": 5}}}}
        again = {"name": "e_order", "arguments": {}, "requestState": asking["requestState"], **answer}
        following = await client.request("tools/call", again, follow=False)
        messages = [one["params"]["message"] for one in following["inputRequests"].values()]
        assert messages == ["Server 'e' asks: Which colour?"]
        with pytest.raises(PeerError, match="Invalid or expired requestState"):
            await client.request("tools/call", again, follow=False)
        async with asked_over_http(front((child(version="handshake"), "e"))) as (other, _):
            with pytest.raises(PeerError, match="Invalid or expired requestState"):
                await other.request("tools/call", {**again, "requestState": following["requestState"]}, follow=False)


FLOOD = """
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

refused = 0
for line in sys.stdin:
    said = json.loads(line)
    if said.get("method") == "initialize":
        info = {"name": "flood", "version": "1"}
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        say(id=said["id"], result=about)
    elif said.get("method") == "tools/list":
        say(id=said["id"], result={"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]})
    elif said.get("method") == "tools/call":
        calling = said["id"]
        for number in range(200):
            say(id=f"q{number}", method="elicitation/create", params={"message": "?", "requestedSchema": {}})
    elif "error" in said:
        refused += 1
        if refused == 200 - 32:
            say(id=calling, result={"content": [{"type": "text", "text": f"{refused} refused"}]})
    elif "method" in said and "id" in said:
        say(id=said["id"], error={"code": -32601, "message": "no"})
"""


async def test_a_backend_that_floods_its_client_with_questions_is_bounded() -> None:
    asked: list[str] = []

    async def ask(message: str, schema: Any) -> Any:
        asked.append(message)
        await asyncio.sleep(600)

    server = front((Command(sys.executable, "-c", FLOOD, version="handshake"), "e"))
    async with server.connect("handshake", answers=Answers(ask=ask)) as client:
        assert (await client.call_raw("e_flood"))["content"][0]["text"] == "168 refused"
        assert len(asked) == 32


@pytest.mark.slow
def test_a_server_can_be_served_again_on_another_loop() -> None:
    server = front((child(), "e"))

    async def serve(era: str) -> Any:
        async with server.connect(era) as client:
            return await client.call("e_add", a=1, b=2)

    assert [asyncio.run(serve(era)) for era in ERAS] == [3, 3]
