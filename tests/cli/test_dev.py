"""`defserve dev` as a client sees it: a real process, edited while somebody is connected."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from tests.raw import PREFIX, STATELESS

FRAMEWORK = str(Path(__file__).parents[2] / "framework")
ENVIRONMENT = {**os.environ, "PYTHONPATH": FRAMEWORK}
BROKEN = "def (\n"
SERVER = """
import os, time
from pathlib import Path
from defserve import Context, Server

server = Server("edited")

@server.tool
def version() -> int:
    return 1

@server.tool
def linger(name: str) -> int:
    Path(name + ".begun").touch()
    while not Path(name).exists():
        time.sleep(0.005)
    return 1

@server.tool
async def greet(ctx: Context) -> str:
    return "hello " + (await ctx.ask("Who?", str))

@server.tool
def crash() -> None:
    os._exit(3)

@server.tool
def touch(ctx: Context) -> None:
    ctx.log.debug("touched")
    server.resource_updated("note://a")

@server.resource("note://a")
def note() -> str:
    return "a"
"""

Json = dict[str, Any]


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(25):
            await test

    asyncio.run(limited())


def edit(folder: Path, number: int) -> None:
    (folder / "server.py").write_text(SERVER.replace("return 1", f"return {number}"))


class Peer:
    """A raw client of `defserve dev`, and whoever reads its stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.heard: list[Json] = []
        self._last = 0

    async def send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self.process.stdin.drain()

    async def begin(self, method: str, params: Json | None = None) -> int:
        self._last += 1
        await self.send({"id": self._last, "method": method, "params": params or {}})
        return self._last

    async def until(self, wanted: Any) -> Json:
        """The first message that is wanted, heard already or not."""
        assert self.process.stdout is not None
        for message in self.heard:
            if wanted(message):
                self.heard.remove(message)
                return message
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if wanted(message):
                return message
            self.heard.append(message)
        raise AssertionError("it has gone")

    async def reply(self, id: int) -> Json:
        return await self.until(lambda message: message.get("id") == id and "method" not in message)

    async def ask(self, method: str, params: Json | None = None) -> Json:
        return await self.reply(await self.begin(method, params))

    async def news(self, method: str) -> Json:
        return await self.until(lambda message: message.get("method") == method)

    async def call(self, tool: str, arguments: Json | None = None, **more: Any) -> str:
        reply = await self.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})
        return reply["result"]["content"][0]["text"]

    async def open(self, capabilities: Json | None = None) -> None:
        about = {"name": "raw", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}, "clientInfo": about}
        assert "result" in await self.ask("initialize", params)
        await self.send({"method": "notifications/initialized"})

    async def said(self, text: str) -> str:
        """What was printed up to the line that has this in it."""
        assert self.process.stderr is not None
        printed = ""
        while text not in printed:
            line = await self.process.stderr.readline()
            assert line, printed
            printed += line.decode()
        return printed


@asynccontextmanager
async def dev(folder: Path, *options: str) -> AsyncIterator[Peer]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "defserve", "dev", "server.py", *options, cwd=folder, env=ENVIRONMENT, **pipes
    )
    peer = Peer(process)
    try:
        yield peer
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def created(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.005)


@pytest.mark.slow
def test_the_official_client_stays_connected_through_four_edits(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        reading, writing = os.pipe()
        errors = asyncio.StreamReader()
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(errors), os.fdopen(reading, "rb"))

        async def hear(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                changed.set()

        process = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "defserve", "dev", "server.py"], env=ENVIRONMENT, cwd=tmp_path
        )
        with os.fdopen(writing, "w") as log:
            async with mcp.stdio_client(process, errlog=log) as (read, write):
                async with mcp.ClientSession(read, write, message_handler=hear) as session:
                    await session.initialize()
                    served = 1
                    for number in range(2, 6):
                        if number in (4, 8):
                            (tmp_path / "server.py").write_text(BROKEN)
                            printed = b""
                            while b"still serving" not in printed:
                                printed += await errors.readline()
                            assert b'server.py", line 1' in printed and b"SyntaxError: invalid syntax" in printed
                        else:
                            edit(tmp_path, served := number)
                            await changed.wait()
                            changed.clear()
                        (content,) = (await session.call_tool("version", {})).content
                        assert content.text == str(served)  # type: ignore[union-attr]

    run(main())


@pytest.mark.slow
def test_a_call_under_way_is_finished_by_the_server_that_began_it(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        async with dev(tmp_path) as peer:
            await peer.open()
            slow = await peer.begin("tools/call", {"name": "linger", "arguments": {"name": "go"}})
            await created(tmp_path / "go.begun")
            edit(tmp_path, 2)
            await peer.news("notifications/tools/list_changed")
            assert await peer.call("version") == "2"
            (tmp_path / "go").touch()
            assert (await peer.reply(slow))["result"]["content"][0]["text"] == "1"

    run(main())


@pytest.mark.slow
def test_a_call_that_outlasts_the_grace_is_answered_with_the_reason(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        async with dev(tmp_path, "--grace", "0.1") as peer:
            await peer.open()
            slow = await peer.begin("tools/call", {"name": "linger", "arguments": {"name": "go"}})
            await created(tmp_path / "go.begun")
            edit(tmp_path, 2)
            assert (await peer.reply(slow))["error"]["message"].startswith("the server was reloaded")
            assert await peer.call("version") == "2"
            (tmp_path / "go").touch()

    run(main())


@pytest.mark.slow
def test_log_level_and_subscriptions_are_said_again_to_the_new_server(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        async with dev(tmp_path) as peer:
            await peer.open()
            await peer.ask("logging/setLevel", {"level": "debug"})
            await peer.ask("resources/subscribe", {"uri": "note://a"})
            edit(tmp_path, 2)
            await peer.news("notifications/resources/list_changed")
            await peer.begin("tools/call", {"name": "touch", "arguments": {}})
            assert (await peer.news("notifications/message"))["params"]["level"] == "debug"
            assert (await peer.news("notifications/resources/updated"))["params"] == {"uri": "note://a"}
            assert not [message for message in peer.heard if str(message.get("id")).startswith("defserve")]

    run(main())


@pytest.mark.slow
def test_stateless_requests_are_relayed_and_a_listener_goes_on_listening(tmp_path: Path):
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}

    async def main() -> None:
        edit(tmp_path, 1)
        async with dev(tmp_path) as peer:
            assert await peer.call("version", _meta=meta) == "1"
            wanted = {"toolsListChanged": True}
            listening = await peer.begin("subscriptions/listen", {"notifications": wanted, "_meta": meta})
            await peer.news("notifications/subscriptions/acknowledged")
            for number in (2, 3):
                edit(tmp_path, number)
                news = await peer.news("notifications/tools/list_changed")
                assert news["params"]["_meta"][PREFIX + "subscriptionId"] == listening
                assert await peer.call("version", _meta=meta) == str(number)
            assert [message.get("method") for message in peer.heard] == []

    run(main())


@pytest.mark.slow
def test_a_server_that_does_not_start_at_first_keeps_the_client_waiting(tmp_path: Path):
    async def main() -> None:
        (tmp_path / "server.py").write_text("import json\n" + BROKEN)
        async with dev(tmp_path) as peer:
            opening = asyncio.create_task(peer.open())
            assert 'server.py", line 2' in await peer.said("waiting for a change")
            edit(tmp_path, 5)
            await opening
            assert await peer.call("version") == "5"

    run(main())


@pytest.mark.slow
def test_a_crash_is_an_error_to_the_caller_and_the_next_edit_serves_again(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        async with dev(tmp_path) as peer:
            await peer.open()
            crashed = await peer.ask("tools/call", {"name": "crash", "arguments": {}})
            assert "ended before it answered" in crashed["error"]["message"]
            edit(tmp_path, 2)
            while "result" not in (reply := await peer.ask("tools/call", {"name": "version", "arguments": {}})):
                assert "ended" in reply["error"]["message"]
                await asyncio.sleep(0.01)
            assert reply["result"]["content"][0]["text"] == "2"

    run(main())


@pytest.mark.slow
def test_the_servers_own_questions_come_back_to_the_server_that_asked(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        async with dev(tmp_path) as peer:
            await peer.open({"elicitation": {}})
            first = await peer.begin("tools/call", {"name": "greet", "arguments": {}})
            old = await peer.news("elicitation/create")
            edit(tmp_path, 2)
            await peer.news("notifications/tools/list_changed")
            second = await peer.begin("tools/call", {"name": "greet", "arguments": {}})
            new = await peer.news("elicitation/create")
            assert old["id"] != new["id"]
            for question, name in ((new, "new"), (old, "old")):
                (member,) = question["params"]["requestedSchema"]["properties"]
                await peer.send({"id": question["id"], "result": {"action": "accept", "content": {member: name}}})
            assert (await peer.reply(first))["result"]["content"][0]["text"] == "hello old"
            assert (await peer.reply(second))["result"]["content"][0]["text"] == "hello new"

    run(main())


@pytest.mark.slow
def test_a_module_beside_the_server_is_watched_and_so_is_what_is_named(tmp_path: Path):
    (tmp_path / "words.py").write_text("WORD = 'one'\n")
    (tmp_path / "more.txt").write_text("a")
    source = "from pathlib import Path\nfrom defserve import Server\nfrom words import WORD\nserver = Server('w')\n"
    source += "MORE = Path('more.txt').read_text()\n@server.tool\ndef word() -> str:\n    return WORD + MORE\n"

    async def main() -> None:
        (tmp_path / "server.py").write_text(source)
        async with dev(tmp_path, "--watch", "more.txt") as peer:
            await peer.open()
            assert await peer.call("word") == "onea"
            (tmp_path / "words.py").write_text("WORD = 'two'\n")
            await peer.news("notifications/tools/list_changed")
            assert await peer.call("word") == "twoa"
            peer.heard.clear()
            (tmp_path / "more.txt").write_text("b")
            await peer.news("notifications/tools/list_changed")
            assert await peer.call("word") == "twob"

    run(main())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="children inherit sockets")
def test_an_http_session_goes_on_with_the_next_server(tmp_path: Path):
    async def main() -> None:
        edit(tmp_path, 1)
        changed = asyncio.Event()

        async def hear(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                changed.set()

        async with dev(tmp_path, "--on", "http://127.0.0.1:0/mcp") as peer:
            printed = await peer.said("serving on ")
            url = printed.split("serving on ")[1].strip()
            async with streamable_http_client(url) as (read, write, *_):
                async with mcp.ClientSession(read, write, message_handler=hear) as session:
                    await session.initialize()
                    assert (await session.call_tool("version", {})).content[0].text == "1"  # type: ignore[union-attr]
                    slow = asyncio.create_task(session.call_tool("linger", {"name": "go"}))
                    await created(tmp_path / "go.begun")
                    edit(tmp_path, 2)
                    await peer.said("server.py → ~version ~linger")
                    while (await session.call_tool("version", {})).content[0].text == "1":  # type: ignore[union-attr]
                        pass  # for a moment both are there
                    await changed.wait()
                    (tmp_path / "go").touch()
                    assert (await slow).content[0].text == "1"  # type: ignore[union-attr]
                    (tmp_path / "server.py").write_text(BROKEN)
                    assert "SyntaxError" in await peer.said("still serving")
                    assert (await session.call_tool("version", {})).content[0].text == "2"  # type: ignore[union-attr]
            peer.process.terminate()

    run(main())


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path, defserve: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert f"there is no file '{tmp_path / 'server.py'}'" in defserve("dev", "server.py").err
    assert "only code can be served" in defserve("dev", "http://127.0.0.1:1/mcp").err
    (tmp_path / "server.py").touch()
    assert "there is no 'x' to watch" in defserve("dev", "server.py", "--watch", "x").err
    assert "cannot serve on 'ftp:'" in defserve("dev", "server.py", "--on", "ftp:").err


SKILLED = """
from defserve import Server

server = Server("skilled")
server.skills("skills")
"""
SKILL = "---\nname: refunds\ndescription: {}\n---\n"


def skilled(folder: Path, description: str = "First.") -> Path:
    """A server with one skill, older than any process; returns the folder of the skill."""
    skill = folder / "skills" / "refunds"
    skill.mkdir(parents=True)
    (folder / "server.py").write_text(SKILLED)
    put(skill / "SKILL.md", SKILL.format(description))
    for file in (folder / "server.py", skill / "SKILL.md"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    return skill


def put(path: Path, text: str) -> None:
    """Write a file in one step, so that nobody sees half of it."""
    path.with_name(".new").write_text(text)
    path.with_name(".new").replace(path)


async def listed(peer: Peer) -> tuple[str, list[str]]:
    """The description of the only skill, and the ends of the URIs of its files."""
    (entry,) = (await peer.ask("skills/list"))["result"]["skills"]
    return entry["frontmatter"]["description"], [file["uri"][16:] for file in entry["resources"]]


@pytest.mark.slow
def test_a_skill_that_changes_is_read_again(tmp_path: Path):
    async def main() -> None:
        skill = skilled(tmp_path)
        async with dev(tmp_path) as peer:
            await peer.open()
            assert await listed(peer) == ("First.", ["SKILL.md"])
            put(skill / "SKILL.md", SKILL.format("Second."))
            assert "SKILL.md → " in await peer.said(" → ")
            await peer.news("notifications/resources/list_changed")
            assert await listed(peer) == ("Second.", ["SKILL.md"])
            (skill / "docs").mkdir()
            put(skill / "docs" / "new.md", "new")
            await peer.news("notifications/resources/list_changed")
            assert await listed(peer) == ("Second.", ["SKILL.md", "docs/new.md"])
            (skill / "docs" / "new.md").unlink()
            await peer.news("notifications/resources/list_changed")
            assert await listed(peer) == ("Second.", ["SKILL.md"])

    run(main())


@pytest.mark.slow
def test_a_broken_skill_is_told_of_and_the_old_one_is_served_until_it_is_mended(tmp_path: Path):
    async def main() -> None:
        skill = skilled(tmp_path)
        async with dev(tmp_path) as peer:
            await peer.open()
            put(skill / "SKILL.md", "# No frontmatter\n")
            printed = await peer.said("still serving")
            assert "refunds/SKILL.md: it does not begin with frontmatter" in printed
            assert await listed(peer) == ("First.", ["SKILL.md"])
            put(skill / "SKILL.md", SKILL.format("Mended."))
            await peer.news("notifications/resources/list_changed")
            assert await listed(peer) == ("Mended.", ["SKILL.md"])

    run(main())


@pytest.mark.slow
def test_a_skill_that_is_broken_from_the_start_is_watched_until_it_is_mended(tmp_path: Path):
    async def main() -> None:
        skill = skilled(tmp_path, "[]")
        async with dev(tmp_path) as peer:
            await peer.said("waiting for a change")
            put(skill / "SKILL.md", SKILL.format("Mended."))
            await peer.open()
            assert await listed(peer) == ("Mended.", ["SKILL.md"])

    run(main())
