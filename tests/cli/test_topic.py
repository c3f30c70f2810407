from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from defserve.cli.commands.topic import _follow
from defserve.client.topic_client import TopicClient, join_topic
from defserve.errors import PeerError, UsageError
from defserve.protocols.mcpx.proposals import MAX_PROPOSALS_PER_PROPOSER
from tests.at_address import fresh
from tests.cli.running import Run
from tests.gateway.topics import PATIENCE, PEOPLE, Running, gateway
from tests.raw import until

pytestmark = pytest.mark.anyio


class Terminal(ABC):
    """`defserve topic`, and a person who types."""

    async def line(self, text: str) -> str:
        """The next line that holds this."""
        async with asyncio.timeout(4 * PATIENCE):
            while line := await self.printed():
                if text in line:
                    return line.strip()
        raise AssertionError(f"it ended without {text!r}")

    @abstractmethod
    async def printed(self) -> str: ...

    @abstractmethod
    def type(self, line: str) -> None: ...

    @abstractmethod
    async def ends(self) -> int: ...


class TerminalHere(Terminal):
    """In this process. It has stdin and stdout to itself."""

    def __init__(self, keyboard: TextIO, screen: Screen, following: asyncio.Task[int]) -> None:
        self._keyboard, self._screen, self._following = keyboard, screen, following

    async def printed(self) -> str:
        return await self._screen.lines.get()

    def type(self, line: str) -> None:
        self._keyboard.write(f"{line}\n")

    async def ends(self) -> int:
        self._keyboard.close()
        async with asyncio.timeout(4 * PATIENCE):
            return await self._following


class Screen(io.TextIOBase):
    """What is printed, line by line."""

    def __init__(self) -> None:
        self.lines, self._begun = asyncio.Queue[str](), ""

    def write(self, text: str) -> int:
        *whole, self._begun = f"{self._begun}{text}".split("\n")
        for line in whole:
            self.lines.put_nowait(f"{line}\n")
        return len(text)


@asynccontextmanager
async def terminal(running: Running, *, watch: bool = False, as_json: bool = False) -> AsyncGenerator[TerminalHere]:
    reading, writing = os.pipe()
    screen, options = Screen(), Namespace(watch=watch, json=as_json)
    with (
        os.fdopen(writing, "w", buffering=1) as keyboard,
        os.fdopen(reading) as stdin,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(sys, "stdin", stdin)
        patched.setattr(sys, "stdout", screen)
        following = asyncio.create_task(_follow(running.topic(), "t-admin", options))
        try:
            yield TerminalHere(keyboard, screen, following)
        finally:
            following.cancel()
            keyboard.close()
            await asyncio.wait([following])
            await until(lambda: not any("(read)" in thread.name for thread in threading.enumerate()))


class TerminalApart(Terminal):
    """In a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def printed(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode()

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def leaves(self) -> tuple[int, str]:
        """It ends by itself, though the person could still type: its exit code, and what it says."""
        assert self._process.stderr is not None
        async with asyncio.timeout(4 * PATIENCE):
            return await self._process.wait(), (await self._process.stderr.read()).decode()

    async def ends(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(4 * PATIENCE):
            return await self._process.wait()


@asynccontextmanager
async def terminal_apart(running: Running, tmp_path: Path) -> AsyncGenerator[TerminalApart]:
    token = tmp_path / "token"
    token.write_text("t-admin\n")
    command = ["-m", "defserve", "topic", running.url, "--topic", "demo", "--token-file", str(token)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, *command, **pipes)
    try:
        yield TerminalApart(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def propose(agent: TopicClient, **arguments: Any):
    return agent.propose("worker", "tools/call", {"name": "add", "arguments": arguments})


async def test_a_person_approves_and_declines_at_the_terminal():
    async with gateway() as running, fresh("hello").join(f"mcpx+{running.topic()}", token="t-worker"):
        async with join_topic(running.topic(), token="t-agent") as agent, terminal(running) as person:
            assert await person.line("you are") == "you are admin; you may send mcp/*, chat"
            first, second = propose(agent, a=20, b=22), propose(agent, a=1, b=1)
            assert await person.line("[1]") == "[1] agent proposes to worker: tools/call add"
            assert [await person.line(":") for _ in "ab"] == ["a: 20", "b: 22"]
            await person.line("[2]")
            said = agent.iter_chat()
            person.type("n 2 not today")
            with pytest.raises(PeerError, match="declined: not today"):
                await agent.outcome(second)
            person.type("y")
            assert await person.line("not done: say which proposal you approve")
            person.type("y 1")
            assert (await agent.outcome(first))["content"][0]["text"] == "42"
            assert "42" in await person.line("done 1")
            person.type("y 2")
            told = await person.line("not done")
            assert told == "not done: no proposal 2 waits for a decision; `p` shows those that do"
            person.type("n")
            assert await person.line("not done") == (
                "not done: nothing is proposed; wait for a proposal; `p` shows those that there are"
            )
            person.type("say thanks")
            assert (await anext(said)).text == "thanks"
            person.type("who")
            assert await person.line("worker is here") == "worker is here: mcp/response:*, mcp/reject, chat"
            person.type("what?")
            await person.line("approve proposal N")
            person.type("q")
            assert await person.ends() == 0
            assert second.status == "declined"


async def test_a_proposal_without_a_target_is_done_by_whom_has_the_tool_or_whom_the_person_names():
    people = {**PEOPLE, "other": {"token": "t-other", "profile": "response-only"}}
    async with (
        gateway(participants=people) as running,
        fresh("hello").join(f"mcpx+{running.topic()}", token="t-worker"),
    ):
        async with join_topic(running.topic(), token="t-agent") as agent, terminal(running) as person:
            await person.line("agent is here")
            one = agent.propose((), "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
            await person.line("[1] agent proposes to anyone")
            person.type("y 1")
            assert await person.line("does 1") == "worker does 1"
            assert (await agent.outcome(one))["content"][0]["text"] == "3"
            agent.propose((), "tools/call", {"name": "no_such_tool", "arguments": {}})
            await person.line("[2]")
            person.type("y 2")
            assert "nobody here can do it; type y 2 NAME" in await person.line("not done 2")
            async with fresh("hello").join(f"mcpx+{running.topic()}", token="t-other"):
                await person.line("other is here")
                several = agent.propose((), "tools/call", {"name": "add", "arguments": {"a": 2, "b": 2}})
                await person.line("[3]")
                person.type("y 3")
                assert "these can do it: other, worker; type y 3 NAME" in await person.line("not done 3")
                person.type("y 3 other")
                assert (await agent.outcome(several))["content"][0]["text"] == "4"
            by_hand = agent.propose((), "tools/call", {"name": "water_the_plants", "arguments": {}})
            await person.line("[4]")
            person.type("did 4 all are wet")
            assert (await agent.outcome(by_hand))["content"] == [{"type": "text", "text": "all are wet"}]
            assert await person.line("answered 4") == "answered 4"
            person.type("y 2 other")
            assert "'other' is not in the topic; here are: agent, worker" in await person.line("not done 2")


async def test_a_person_who_may_only_propose_withdraws_and_sees_what_others_decide():
    people = {**PEOPLE, "admin": {"token": "t-admin"}, "boss": {"token": "t-boss", "profile": "full"}}
    async with gateway(participants=people) as running, join_topic(running.topic(), token="t-boss") as boss:
        async with fresh("hello").join(f"mcpx+{running.topic()}", token="t-worker"):
            async with terminal(running) as person:
                await person.line("you are")
                for arguments in ("[1]", "{", "7"):
                    person.type(f"do worker add {arguments}")
                    await person.line("not done: the arguments are not")
                person.type('do worker add {"a": 1, "b": 2}')
                await person.line("[1] admin proposes to worker")
                await until(lambda: len(boss.proposals) == 1)
                person.type("w")
                await person.line("not done 1: the proposal was withdrawn")
                await until(lambda: not boss.proposals)
                person.type("do worker add")
                await until(lambda: len(boss.proposals) == 1)
                boss.decline(boss.proposals[0], "unsafe")
                assert await person.line("rejects") == "[2] boss rejects it: unsafe"
                person.type("w")
                await person.line("not done: nothing is proposed")


async def test_a_number_is_of_one_content_and_not_of_an_id_that_its_proposer_chose():
    limits = {"burst": 10_000}
    async with gateway(limits=limits) as running, running.joined("agent") as agent, terminal(running) as person:
        await person.line("agent is here")

        async def propose(id: str, name: str, **arguments: Any) -> None:
            params = {"name": name, "arguments": arguments}
            await agent.say(f"mcp/proposal:tools/call:{name}", {"method": "tools/call", "params": params}, id=id)

        await propose("same", "balance")
        await person.line("[1] agent proposes to anyone: tools/call balance")
        for place in range(MAX_PROPOSALS_PER_PROPOSER):
            await propose(f"filler-{place}", "filler")
        await person.line(f"[{MAX_PROPOSALS_PER_PROPOSER + 1}]")
        await propose("same", "pay", euros=9996)
        await propose("last", "last")
        await person.line(f"[{MAX_PROPOSALS_PER_PROPOSER + 2}] agent proposes to anyone: tools/call last")
        person.type("y 1")
        assert "no proposal 1 waits" in await person.line("not done")


async def test_it_watches_in_json_and_lets_nothing_through_that_moves_the_cursor():
    async with gateway() as running, join_topic(running.topic(), token="t-agent") as agent:
        async with terminal(running) as person:
            await person.line("agent is here")
            agent.chat("\x1b[2Jadmin: yes\n")
            assert "\x1b" not in (line := await person.line("yes")) and line.startswith("agent: ")
        async with terminal(running, watch=True, as_json=True) as watcher:
            await watcher.line("agent is here")
            agent.chat("hello")
            shown = json.loads(await watcher.line("hello"))
            assert (shown["event"], shown["from"], shown["text"]) == ("chat", "agent", "agent: hello")


@pytest.mark.slow
async def test_a_gateway_that_leaves_is_said_to_have_left(tmp_path: Path):
    async with AsyncExitStack() as stack:
        async with gateway() as running:
            person = await stack.enter_async_context(terminal_apart(running, tmp_path))
            await person.line("you are")
        assert await person.leaves() == (
            4,
            "error: the gateway has closed the connection: the gateway is shutting down\n",
        )


async def test_a_person_with_a_wrong_token_is_told_what_to_give():
    async with gateway() as running:
        with pytest.raises(UsageError, match="invalid token or topic") as caught:
            await _follow(running.topic(), "t-nobody", Namespace(json=False, watch=True))
    assert caught.value.fix.startswith("give --token-file with the token of a participant")


@pytest.mark.slow
async def test_of_two_terminals_with_one_token_the_newer_stays_and_both_are_told(tmp_path: Path):
    async with gateway() as running, terminal_apart(running, tmp_path) as older:
        await older.line("you are admin")
        async with terminal_apart(running, tmp_path) as newer:
            await newer.line("another process was here with your token")
            assert (
                await older.line("gone: ") == "gone: another process joined with the same token and has this name now"
            )
            code, said = await older.leaves()
            assert (code, "replaced by a newer connection" in said) == (4, True)
            newer.type("q")
            assert await newer.ends() == 0


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["http://127.0.0.1:1/ws", "--topic", "demo"], "is not the address of a gateway"),
        (["ws://127.0.0.1:1/ws"], "no topic is given\n  fix: add --topic NAME"),
        (["ws://127.0.0.1:1/ws?subtopic=demo"], "no topic is given"),
        (["ws://[", "--topic", "demo"], "is not the address of a gateway"),
        (["ws://127.0.0.1:1/ws", "--topic", "demo", "--token-file", "nowhere"], "cannot read nowhere"),
    ],
)
def test_wrong_usage_is_named(defserve: Run, argv: list[str], complaint: str):
    code, _, err = defserve("topic", *argv)
    assert code == 1 and complaint in err


def test_no_gateway_is_unreachable(defserve: Run):
    assert defserve("topic", "ws://127.0.0.1:1/ws", "--topic", "demo").code == 4
