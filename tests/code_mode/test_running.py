"""Code that calls tools: what it gets, what it gives, how it fails, and what it may use."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import Context, Image, Limits, Server, ToolError, UsageError
from defserve.code_mode import CodeMode
from defserve.code_mode.extension import CodeModeExtension
from defserve.sandbox import monty
from tests.code_mode.peers import failure, run, value
from tests.protocols.mgp.callers import ALICE, BOB, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, VERSIONS, Json, Raw, raw
from tests.rows import for_each_row
from tests.waiting import slow_tool, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version"),
]


class Place(BaseModel):
    name: str
    people: int = 0


def shop(code_mode: bool | CodeMode = True, **options: Any) -> Server:
    server = Server("shop", "1", code_mode=code_mode, **options)

    @server.tool
    async def add(a: int, b: int = 10) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def find(name: str) -> Place:
        if name == "atlantis":
            raise ToolError("it has sunk")
        return Place(name=name, people=7)

    @server.tool
    def say(text: str) -> str:
        return text

    @server.tool(name="files.read")
    def read(path: str) -> list[str]:
        return [path]

    return server


@asynccontextmanager
async def shopping(version: str = STATELESS, **options: Any) -> AsyncGenerator[Raw]:
    async with raw(shop(**options), version) as peer:
        yield peer


PROGRAMS: list[tuple[str, Any]] = [
    ("add(a=1, b=2)", 3),
    ("add(1, 2)", 3),
    ("add(1)", 11),
    ("await add(a=1, b=2)", 3),
    ("await call_tool('add', {'a': 1, 'b': 2})", 3),
    ("await call_tool(name='add', arguments={'a': 1})", 11),
    ("await call_tool('files.read', {'path': 'x'})", ["x"]),
    ("find('rome')['people'] + 1", 8),
    ("say('3')", "3"),
    ("result = add(1)\nprint('done')", 11),
    ("plus = add\nplus(2, 3)", 5),
    ("[add(n) for n in range(3)]", [10, 11, 12]),
    ("import asyncio\nawait asyncio.gather(call_tool('add', {'a': 1}), call_tool('say', {'text': 'x'}))", [11, "x"]),
    ("import asyncio\nawait asyncio.gather(add(1), add(2))", [11, 12]),
    ("import asyncio\nawait asyncio.gather(*[add(n) for n in range(20)])", list(range(10, 30))),
    (
        "import asyncio\nasync def one(n):\n    return await add(n)\nawait asyncio.gather(*[one(n) for n in (1, 2)])",
        [11, 12],
    ),
    ("import asyncio\nasync def main():\n    return await add(1) + add(2)\nasyncio.run(main())", 23),
    ("def twice(n):\n    return add(n, n)\ntwice(4)", 8),
    ("add = lambda a: 'mine'\nadd(1)", "mine"),
    ("import json\nreturn json.dumps({'a': add(1)})", '{"a": 11}'),
    ("x = 1", None),
]


@for_each_row(("code", "expected"), PROGRAMS)
@for_each_row("version", ERAS)
async def test_code_calls_tools_as_functions_and_gives_its_last_value(version: str, code: str, expected: Any):
    async with shopping(version) as peer:
        assert value(await run(peer, code)) == expected


@pytest.mark.parametrize("version", VERSIONS)
async def test_values_do_not_depend_on_what_the_clients_version_can_be_sent(version: str):
    async with raw(shop(), version) as peer:
        reply = await peer.call(
            "run_code", {"code": "[find('rome'), add(1), await call_tool('files.read', {'path': 'x'})]"}
        )
    assert '[{"name":"rome","people":7},11,["x"]]' in reply["content"][0]["text"].replace(" ", "").replace("\n", "")


async def test_what_is_printed_comes_back_beside_the_value():
    async with shopping() as peer:
        result = await run(peer, "print('one')\nprint('two')\n3")
    assert result["structuredContent"] == {"result": 3, "printed": "one\ntwo\n"}


async def test_content_that_is_no_data_comes_as_blocks():
    server = shop()

    @server.tool
    def picture() -> Image:
        return Image(b"\x89PNG", mime_type="image/png")

    async with raw(server) as peer:
        assert value(await run(peer, "[block['type'] for block in picture()]")) == ["image"]


# -- failures -------------------------------------------------------------------------------------------


FAILURES: list[tuple[str, str]] = [
    ("x = 1\nfind('atlantis')", "line 2\nRuntimeError: it has sunk"),
    ("add(a='x')", 'ValueError: a: expected integer, got "x"'),
    ("add(1, 2, 3)", "TypeError: add takes 2 arguments, and 3 were given"),
    ("add(1, a=2)", "TypeError: add got two values for a"),
    ("nothing(1)", "NameError: no tool is called 'nothing'"),
    ("f = nothing", "NameError: name 'nothing' is not defined"),
    ("await call_tool('nothing')", "NameError: no tool is called 'nothing'"),
    ("await call_tool(1)", "TypeError: call_tool takes a name and a dict of arguments"),
    ("await call_tool('add', [1])", "TypeError: call_tool takes a name and a dict of arguments"),
    ("await call_tool('add', {'a': 1}, 2)", "TypeError: call_tool takes a name and a dict of arguments"),
    ("await call_tool('add', argument={'a': 1})", "TypeError: call_tool takes a name and a dict of arguments"),
    ("say({1, 2})", "TypeError: an argument of say is of type set"),
    ("say({1: 2})", "TypeError: an argument of say is a dict with the key 1"),
    ("say(1e999)", "ValueError: the arguments of say are not JSON"),
    ("class A:\n    pass\nsay(A())", "TypeError: an argument of say is of type"),
    ("x = []\nfor _ in range(100): x = [x]\nsay(x)", "nested"),
    ("say({str(n): n for n in range(20000)})", "more than 10000 members"),
    ("1 / 0", "line 1\nZeroDivisionError"),
    ("def f(:", "SyntaxError"),
    ("10**5000", "the value has no text: ValueError: Exceeds the limit (4300 digits)"),
    ("import os\nos.system('id')", "line 2"),
    ("open('/etc/passwd')", "PermissionError"),
    ("import socket", "ModuleNotFoundError"),
    ("run_code('1')", "RuntimeError: code cannot run code"),
    ("await call_tool('run_code', {'code': '1'})", "RuntimeError: code cannot run code"),
]


@for_each_row(("code", "expected"), FAILURES)
async def test_code_that_fails_says_where_and_why(code: str, expected: str):
    async with shopping() as peer:
        assert expected in failure(await run(peer, code))


@pytest.mark.parametrize("version", ERAS)
async def test_code_can_catch_the_failure_of_a_call(version: str):
    code = "try:\n    find('atlantis')\nexcept Exception as error:\n    text = str(error)\ntext"
    async with shopping(version) as peer:
        assert value(await run(peer, code)) == "it has sunk"


async def test_a_failure_names_the_tools_that_were_called_and_what_was_printed():
    async with shopping() as peer:
        text = failure(await run(peer, "add(1)\nprint('so far')\nfind('atlantis')"))
    assert "These tools had been called: add, find." in text
    assert "It had printed:\nso far" in text


async def test_an_unexpected_error_of_a_tool_does_not_show_its_text():
    server = shop()

    @server.tool
    def leak() -> str:
        raise RuntimeError("password=hunter2")

    async with raw(server) as peer:
        assert "hunter2" not in failure(await run(peer, "leak()"))


async def test_a_call_that_is_never_awaited_is_not_made_and_the_model_is_told():
    async with shopping() as peer:
        result = await run(peer, "x = 1\ncall_tool('add', {'a': 1})\n2")
    assert value(result) == 2
    assert result["structuredContent"]["printed"] == "(a call on line 2 was not awaited, so it was not made)\n"


# -- limits ---------------------------------------------------------------------------------------------


LIMITS: list[tuple[CodeMode, str, str]] = [
    (CodeMode(compute_seconds=1), "while True: pass", "ran out of time"),
    (
        CodeMode(compute_seconds=1),
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "ran out of time",
    ),
    (CodeMode(memory_bytes=5_000_000), "x = 'a' * 50_000_000", "ran out of memory"),
    (CodeMode(memory_bytes=5_000_000), "x = []\nwhile True: x.append(say('a' * 100000))", "memory"),
    (CodeMode(output_bytes=1000), "print('a' * 5000)", "printed or returned more than it may"),
    (CodeMode(output_bytes=1000), "while True: print('abc')", "printed or returned more than it may"),
    (CodeMode(output_bytes=1000), "'a' * 5000", "printed or returned more than it may"),
    (CodeMode(source_bytes=100), "x = 1\n" * 50, "the code is longer than 100 bytes"),
    (CodeMode(calls=5), "for n in range(9): add(n)", "the code has called more than 5 tools"),
    (CodeMode(calls=5), "import asyncio\nawait asyncio.gather(*[add(n) for n in range(9)])", "more than 5 tools"),
    (CodeMode(calls=5), "while True:\n    try: add(1)\n    except BaseException: pass", "more than 5 tools"),
    (CodeMode(calls=5), "while True:\n    try: nothing()\n    except NameError: pass", "more than 5 tools"),
    (CodeMode(calls=5), "x = []\nwhile True: x.append(call_tool('add', {'a': 1}))", "more than 5 tools"),
    (
        CodeMode(argument_bytes=1000),
        "x = []\nwhile True: x.append(call_tool('say', {'text': 'a' * 300}))",
        "more than 1000 bytes",
    ),
    (
        CodeMode(output_bytes=1000),
        "x = ['a']\nfor _ in range(40): x = [x, x]\nx",
        "printed or returned more than it may",
    ),
]


@pytest.mark.slow
@for_each_row(("options", "code", "expected"), LIMITS)
async def test_code_beyond_a_limit_ends(options: CodeMode, code: str, expected: str):
    async with shopping(code_mode=options) as peer:
        assert expected in failure(await run(peer, code))
        assert value(await run(peer, "add(1, 1)")) == 2  # the next run finds everything as it was


async def test_arguments_that_are_longer_than_a_message_only_as_a_text_are_refused_before_they_are_written():
    limits, shared = Limits(message=100_000), "x = ['a']\nfor _ in range(14): x = [x, x]\n"
    async with shopping(limits=limits) as peer:
        code = f"{shared}try:\n    say(x)\nexcept ValueError as error:\n    y = str(error)\ny"
        assert value(await run(peer, code)) == "the arguments of say are longer than 100000 bytes"


@pytest.mark.slow
async def test_a_run_has_so_much_time_for_itself_and_its_calls():
    server = shop(CodeMode(seconds=1.5))
    ended: list[str] = []

    @server.tool
    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")
        return ""

    async with raw(server) as peer:
        text = failure(await run(peer, "add(1)\nslow()"))
    assert "a run, with the calls it makes, has 1.5 s" in text
    assert "These tools had been called: add, slow." in text
    assert ended == ["slow"]


async def test_code_that_computes_does_not_hold_up_the_server():
    async with shopping(code_mode=CodeMode(compute_seconds=2)) as peer:
        computing = await peer.begin("tools/call", {"name": "run_code", "arguments": {"code": "while True: pass"}})
        for n in range(20):
            assert (await peer.call("add", {"a": n}))["content"][0]["text"] == str(n + 10)
        assert not any(message.get("id") == computing for message in peer.heard)
        await peer.tell("notifications/cancelled", {"requestId": computing})


@pytest.mark.slow
async def test_large_arguments_are_read_beside_the_loop():
    code = "x = [[] for _ in range(100000)]\nfor _ in range(3):\n    try: say(x)\n    except ValueError: pass\n1"
    async with shopping() as peer:
        began = time.thread_time()
        assert value(await run(peer, code)) == 1
        assert time.thread_time() - began < 0.3  # processor time of the loop; reading them takes three times as much


async def test_more_runs_than_workers_wait_for_their_turn():
    async with shopping(code_mode=CodeMode(workers=2)) as peer:
        ids = [
            await peer.begin("tools/call", {"name": "run_code", "arguments": {"code": f"add({n})"}}) for n in range(9)
        ]
        assert [value((await peer.reply_to(id))["result"]) for id in ids] == list(range(10, 19))


async def test_one_caller_cannot_keep_the_others_from_running_code():
    server, held = shop(CodeMode(workers=2, seconds=20)), asyncio.Event()

    @server.tool
    async def hold() -> str:
        await held.wait()
        return ""

    code: Json = {"name": "run_code", "arguments": {"code": "hold()"}}
    async with speaking(server, STATELESS, who=ALICE) as alice, speaking(server, STATELESS, who=BOB) as bob:
        ids = [await alice.begin("tools/call", code) for _ in range(5)]
        assert value(await run(bob, "add(1)")) == 11
        held.set()
        for id in ids:
            assert value((await alice.reply_to(id))["result"]) == ""


async def test_code_that_finds_no_worker_in_its_time_is_not_run():
    server = shop(CodeMode(workers=1, seconds=0.2))
    (mode,) = [extension for extension in server.extensions if isinstance(extension, CodeModeExtension)]
    async with raw(server) as peer:
        await mode.get_shared_state().slots.acquire_slot("somebody else", None)
        text = failure(await run(peer, "add(1)"))
    assert "within 0.2 s no worker was free" in text and "No tool had been called" in text


async def test_a_run_that_waits_for_a_person_leaves_its_worker_to_others():
    server = shop(CodeMode(workers=1))

    @server.tool
    async def ask(ctx: Context) -> str:
        return await ctx.ask("Who?", str)

    async with raw(server, HANDSHAKE[-1], {"elicitation": {}}) as peer:
        code = "kept = list(range(9))\nprint('before')\nname = ask()\nprint('after')\n[name, sum(kept)]"
        waiting = [await peer.begin("tools/call", {"name": "run_code", "arguments": {"code": code}}) for _ in range(3)]
        questions: list[Json] = []
        while len(questions) < 3:
            questions.append(await peer.hear())
        assert value(await peer.call("run_code", {"code": "add(1)"})) == 11
        for question in questions:
            answer = {"action": "accept", "content": {"value": "Ada"}}
            await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        for id in waiting:
            result = (await peer.reply_to(id))["result"]["structuredContent"]
            assert result == {"result": ["Ada", 36], "printed": "before\nafter\n"}


async def test_only_so_many_calls_run_at_the_same_time():
    server, running, most = shop(CodeMode(at_once=3)), 0, 0

    @server.tool
    async def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 1

    async with raw(server) as peer:
        assert value(await run(peer, "import asyncio\nsum(await asyncio.gather(*[work() for _ in range(12)]))")) == 12
    assert most == 3


async def test_a_cancelled_run_stops_its_code_its_calls_and_its_worker():
    server, ended = shop(), list[str]()
    began = slow_tool(server, ended)
    async with raw(server) as peer:
        id = await peer.begin("tools/call", {"name": "run_code", "arguments": {"code": "slow()\nadd(1)"}})
        await began.wait()
        await peer.tell("notifications/cancelled", {"requestId": id})
        await until(lambda: ended == ["slow"])
        assert value(await run(peer, "add(1)")) == 11


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="reads /proc")
async def test_no_worker_process_is_left_when_the_server_ends(own_workers: None):
    before = _children()
    async with shopping() as peer:
        assert value(await run(peer, "1 + 1")) == 2
        await until(lambda: bool(_children() - before))
    # What a test before has started may end meanwhile.
    await until(lambda: _children() <= before)


def _children() -> set[str]:
    found: set[str] = set()
    for task in os.listdir(f"/proc/{os.getpid()}/task"):
        # A thread may end meanwhile.
        with suppress(FileNotFoundError), open(f"/proc/{os.getpid()}/task/{task}/children", encoding="ascii") as file:
            found.update(file.read().split())
    return found


async def test_threads_that_wait_for_code_are_not_taken_from_its_tools():
    server, names = shop(limits=Limits(threads=1)), list[str]()

    @server.tool
    def blocking(n: int) -> int:
        names.append(threading.current_thread().name)
        return n

    async with raw(server) as peer:
        assert value(await run(peer, "x = [blocking(n) for n in range(5)]\nsum(x)")) == 10
    assert len(names) == 5


async def test_progress_counts_the_calls():
    server = shop()

    @server.tool
    async def half(ctx: Context) -> str:
        ctx.progress(1, 2)
        return ""

    params: Json = {"name": "run_code", "arguments": {"code": "add(1)\nhalf()"}, "_meta": {"progressToken": 7}}
    async with raw(server) as peer:
        await peer.ask("tools/call", params)
        told = [m["params"]["progress"] for m in peer.heard if m["method"] == "notifications/progress"]
    assert told == [1, 1.5, 2]


# -- declaring ------------------------------------------------------------------------------------------


@for_each_row("options", [{"seconds": 0}, {"calls": -1}, {"memory_bytes": 0}, {"workers": 0}])
def test_a_limit_that_is_not_positive_is_refused(options: Any):
    with pytest.raises(UsageError, match="must be positive"):
        CodeMode(**options)


def test_a_run_longer_than_a_tool_may_take_is_refused():
    with pytest.raises(UsageError, match="longer than the 20 s allowed"):
        Server("s", code_mode=CodeMode(seconds=30), limits=Limits(tool_max=20))


def test_without_monty_code_mode_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monty, "is_installed", lambda: False)
    with pytest.raises(UsageError, match=r"defserve\[sandbox\]"):
        Server("s", code_mode=True)


def test_a_mounted_server_has_no_code_mode_of_its_own():
    parent = Server("parent", "1")
    parent.mount(shop())
    with pytest.raises(UsageError, match="code_mode"):
        _ = parent.composition


async def test_tools_of_mounted_servers_can_be_called():
    parent, child = Server("parent", "1", code_mode=True), Server("child", "1")

    @child.tool
    def name() -> str:
        return "child"

    parent.mount(child, prefix="sub")
    async with raw(parent) as peer:
        assert value(await run(peer, "sub_name()")) == "child"
