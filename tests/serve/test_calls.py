"""An author's function in a real process: its time, its threads, its exceptions, and the order of what it says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.rows import for_each_row
from tests.serve.processes import ServerProcess

SOURCE = """
import logging
server = Server("calls", limits=Limits(in_flight=1000, threads=32))
which = contextvars.ContextVar("which", default="nobody")
gate, over = threading.Event(), threading.Event()

# -- time

@server.tool(timeout=0.2)
def sync_slow(ctx: Context) -> str:
    while not ctx.cancelled:
        time.sleep(0.01)
    tell("sync saw the timeout")
    return "late"

@server.tool(timeout=0.2)
async def async_slow() -> str:
    await asyncio.sleep(30)
    return "late"

@server.tool(timeout=0.2)
async def swallowing() -> str:
    for _ in range(100):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            pass
    return "late"

@server.tool(timeout=0.2)
async def giving_in() -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "partial"

@server.tool(timeout=0.2)
async def failing_at_the_end() -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise ValueError("while unwinding") from None

@server.tool(timeout=0.2)
async def borrowing() -> str:
    await asyncio.to_thread(over.wait, 50)
    return "late"

@server.tool(timeout=0.2)
async def suppressed() -> str:
    import anyio
    with anyio.CancelScope(shield=True):
        await asyncio.to_thread(over.wait, 50)
    return "late"

@server.tool(timeout=30)
def sync_until_cancelled(ctx: Context) -> str:
    tell("running")
    while not ctx.cancelled:
        time.sleep(0.01)
    tell("sync saw the cancellation")
    return "late"

# -- exceptions

KINDS = {
    "ValueError": ValueError("secret"), "SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(), "StopIteration": StopIteration("secret"),
    "BaseException": BaseException("secret"),
    "CancelledError": asyncio.CancelledError(), "StopAsyncIteration": StopAsyncIteration(),
    "BaseExceptionGroup": BaseExceptionGroup("secret", [SystemExit(1)]), "RecursionError": RecursionError(),
}

def raising(kind):
    raise KINDS[kind]

@server.tool
def sync_raises(kind: str) -> str:
    raising(kind)

@server.tool
async def async_raises(kind: str) -> str:
    raising(kind)

@server.tool
async def awaiting_raises(kind: str) -> str:
    await asyncio.sleep(0)
    raising(kind)

@server.tool(inline=True)
def inline_raises(kind: str) -> str:
    raising(kind)

@server.tool
async def generator_raises(kind: str):
    yield "a"
    raising(kind)

@server.tool
def told() -> str:
    raise ToolError("do it otherwise")

# -- threads

@server.tool
def blocks() -> str:
    tell("blocked")
    gate.wait(20)
    return "free"

@server.tool(inline=True)
def finish() -> str:
    over.set()
    return "over"

@server.tool(inline=True)
def open_gate() -> str:
    gate.set()
    return "open"

@server.tool
def naps() -> str:
    time.sleep(0.005)
    return threading.current_thread().name

@server.tool(timeout=0.05)
def hangs() -> str:
    time.sleep(12)
    return "late"

@server.tool
def quick() -> str:
    return which.get()

@server.around("tools/call")
async def mark(call, params, next):
    which.set(str(call.id))
    return await next(call, params)

# -- order

@server.tool
def reports(count: int, ctx: Context) -> str:
    for step in range(count):
        ctx.progress(step + 1, count)
        ctx.log.info(f"step {step}")
    return "done"

@server.tool
def says_nonsense(ctx: Context) -> str:
    ctx.call.notify("x", {"value": object()})
    return "unreached"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("calls"), SOURCE) as process:
        yield process.open()
        process.call("over", "finish")
        assert process.text("over") == "over"
        process.end()
        assert process.exit_code() == 0


# -- time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tool",
    ["sync_slow", "async_slow", "swallowing", "giving_in", "failing_at_the_end", "borrowing", "suppressed"],
)
def test_a_timeout_answers_on_time_whatever_the_function_does(tool: str, server: ServerProcess):
    began = time.monotonic()
    server.call(1, tool)
    reply = server.read()
    assert time.monotonic() - began < 40  # the functions take longer
    assert reply["id"] == 1 and reply["result"]["isError"]
    assert reply["result"]["content"] == [{"type": "text", "text": "timed out after 0.2 s"}]
    assert reply["result"]["_meta"]["dev.defserve/error"]["error_type"] == "timeout"
    server.ask(2, "ping")
    assert server.read()["id"] == 2


def test_synchronous_code_sees_its_timeout(server: ServerProcess):
    server.call(1, "sync_slow")
    assert server.read()["result"]["isError"]
    server.wait_for("sync saw the timeout")


@pytest.mark.req("MCP-4.4x")
def test_synchronous_code_sees_its_cancellation_and_is_not_answered(server: ServerProcess):
    server.call(1, "sync_until_cancelled")
    server.wait_for("running")
    server.say({"method": "notifications/cancelled", "params": {"requestId": 1}})
    server.wait_for("sync saw the cancellation")
    server.call(1, "quick")  # the id is free again, and what follows is the answer to this
    assert server.text(1) == "1"


@pytest.mark.req("MCP-4.4x")
@pytest.mark.parametrize("tool", ["sync_until_cancelled", "async_slow", "quick"])
def test_a_call_cancelled_in_the_same_breath_is_not_answered(tool: str, server: ServerProcess):
    call = {"id": "gone", "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "gone"}}
    # Behind a call of its own, so that nothing of the first is settled when it is cancelled.
    server.say(call, cancel, {"id": "next", "method": "tools/call", "params": {"name": "naps", "arguments": {}}})
    assert server.text("next").startswith("defserve-worker")
    server.call("gone", "quick")
    assert server.text("gone") == "gone"


def test_a_storm_of_cancellations_leaves_nothing_behind(server: ServerProcess):
    for start in range(0, 1000, 100):
        calls = [
            {"id": id, "method": "tools/call", "params": {"name": "async_slow", "arguments": {}}}
            for id in range(start, start + 100)
        ]
        server.say(*calls)
        for _ in range(2):
            server.say(*[{"method": "notifications/cancelled", "params": {"requestId": call["id"]}} for call in calls])
    began = time.monotonic()
    server.ask("ping", "ping")
    assert server.read()["id"] == "ping"
    assert time.monotonic() - began < 10
    server.call(5, "quick")
    assert server.text(5) == "5"


# -- exceptions --------------------------------------------------------------------------------------------

KINDS = ["ValueError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "BaseException"]
KINDS += ["CancelledError", "StopAsyncIteration", "BaseExceptionGroup", "RecursionError"]


@for_each_row("kind", KINDS)
@for_each_row("flow", ["sync", "async", "awaiting", "inline", "generator"])
def test_whatever_a_function_raises_is_masked_and_logged_under_its_id(flow: str, kind: str, server: ServerProcess):
    server.call(1, f"{flow}_raises", kind=kind)
    reply = server.read()
    assert reply["id"] == 1 and reply["result"]["isError"]
    text = reply["result"]["content"][0]["text"]
    found = re.fullmatch(r"internal error \(id ([0-9a-f]{12})\)", text)
    assert found, text
    server.wait_for(f"internal error {found[1]} in tools/call {flow}_raises")
    server.wait_for("in raising")
    server.wait_for(kind)
    server.ask(2, "ping")
    assert server.read()["id"] == 2


def test_a_tool_error_is_told_in_its_own_words(server: ServerProcess):
    server.call(1, "told")
    assert server.text(1) == "do it otherwise"


# -- threads -----------------------------------------------------------------------------------------------


@pytest.mark.req("MCP-4.4p")
def test_a_ping_is_answered_while_every_thread_is_blocked(server: ServerProcess):
    for id in range(40):
        server.call(id, "blocks")
    for _ in range(32):
        server.wait_for("blocked")
    server.ask("ping", "ping")
    assert server.read(10)["id"] == "ping"
    server.call("gate", "open_gate")
    assert {server.read()["id"] for _ in range(41)} == {"gate", *range(40)}


def test_two_hundred_blocking_calls_at_once_all_finish_in_thirty_two_threads(server: ServerProcess):
    for id in range(200):
        server.call(id, "naps")
    replies = [server.read() for _ in range(200)]
    assert {reply["id"] for reply in replies} == set(range(200))


def test_threads_that_hang_do_not_use_up_the_pool(server: ServerProcess):
    for id in range(80):
        server.call(id, "hangs")
    replies = [server.read() for _ in range(80)]
    assert all("timed out" in reply["result"]["content"][0]["text"] for reply in replies)
    server.call("after", "quick")
    assert server.text("after", patience=10) == "after"


def test_context_variables_reach_the_thread(server: ServerProcess):
    for id in ("a", "b", "c"):
        server.call(id, "quick")
    replies = [server.read() for _ in range(3)]
    assert all(reply["result"]["content"][0]["text"] == reply["id"] for reply in replies)


# -- order -------------------------------------------------------------------------------------------------


def test_what_a_thread_reports_comes_in_order_and_before_its_result(server: ServerProcess):
    params = {"name": "reports", "arguments": {"count": 20}}
    for id in range(100):
        server.ask(id, "tools/call", **params, _meta={"progressToken": id})
        told = [server.read() for _ in range(41)]
        assert told[-1]["id"] == id
        assert [message["params"]["progress"] for message in told[:-1:2]] == list(range(1, 21))
        assert [message["params"]["data"] for message in told[1:-1:2]] == [f"step {step}" for step in range(20)]


def test_what_has_no_json_form_fails_where_it_is_said(server: ServerProcess):
    server.call(1, "says_nonsense")
    assert "internal error" in server.text(1)
    server.wait_for("in says_nonsense")
