from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import PeerError
from defserve.host.mcpx.participant import TopicClient, join_topic
from tests.at_address import fresh
from tests.cli.running import Run
from tests.gateway.topics import PATIENCE, PEOPLE, Running, gateway
from tests.raw import until

pytestmark = pytest.mark.anyio


class Terminal:
    """`defserve topic` in a process, and a person who types."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self, text: str) -> str:
        """The next line that holds this."""
        assert self._process.stdout is not None
        async with asyncio.timeout(4 * PATIENCE):
            while line := (await self._process.stdout.readline()).decode():
                if text in line:
                    return line.strip()
        raise AssertionError(f"it ended without {text!r}")

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
async def terminal(running: Running, tmp_path: Path, *more: str) -> AsyncGenerator[Terminal]:
    token = tmp_path / "token"
    token.write_text("t-admin\n")
    command = ["-m", "defserve", "topic", running.url, "--topic", "demo", "--token-file", str(token), *more]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, *command, **pipes)
    try:
        yield Terminal(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def propose(agent: TopicClient, **arguments: Any):
    return agent.propose("worker", "tools/call", {"name": "add", "arguments": arguments})


async def test_a_person_approves_and_declines_at_the_terminal(tmp_path: Path):
    async with gateway() as running, fresh("hello").join(f"mcpx+{running.topic()}", token="t-worker"):
        async with join_topic(running.topic(), token="t-agent") as agent, terminal(running, tmp_path) as person:
            assert await person.line("you are") == "you are admin; you may send mcp/*, chat"
            first, second = propose(agent, a=20, b=22), propose(agent, a=1, b=1)
            assert '[1] agent proposes to worker: {"method": "tools/call"' in await person.line("[1]")
            await person.line("[2]")
            said = agent.said()
            person.type("n 2 not today")
            with pytest.raises(PeerError, match="declined: not today"):
                await agent.outcome(second)
            person.type("y")
            assert (await agent.outcome(first))["content"][0]["text"] == "42"
            assert "42" in await person.line("done 1")
            person.type("y 2")
            assert "no proposal 2" in await person.line("not done")
            person.type("say thanks")
            assert (await anext(said)).text == "thanks"
            person.type("who")
            assert await person.line("worker is here") == "worker is here: mcp/response:*, mcp/reject, chat"
            person.type("what?")
            await person.line("approve proposal N")
            person.type("q")
            assert await person.ends() == 0
            assert second.status == "declined"


async def test_a_proposal_without_a_target_is_done_by_whom_has_the_tool_or_whom_the_person_names(tmp_path: Path):
    people = {**PEOPLE, "other": {"token": "t-other", "profile": "response-only"}}
    async with (
        gateway(participants=people) as running,
        fresh("hello").join(f"mcpx+{running.topic()}", token="t-worker"),
    ):
        async with join_topic(running.topic(), token="t-agent") as agent, terminal(running, tmp_path) as person:
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


async def test_a_person_who_may_only_propose_withdraws_and_sees_what_others_decide(tmp_path: Path):
    people = {**PEOPLE, "admin": {"token": "t-admin"}, "boss": {"token": "t-boss", "profile": "full"}}
    async with gateway(participants=people) as running, join_topic(running.topic(), token="t-boss") as boss:
        async with fresh("hello").join(f"mcpx+{running.topic()}", token="t-worker"):
            async with terminal(running, tmp_path) as person:
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


async def test_it_watches_in_json_and_lets_nothing_through_that_moves_the_cursor(tmp_path: Path):
    async with gateway() as running, join_topic(running.topic(), token="t-agent") as agent:
        async with terminal(running, tmp_path) as person:
            await person.line("agent is here")
            agent.chat("\x1b[2Jadmin: yes\n")
            assert "\x1b" not in (line := await person.line("yes")) and line.startswith("agent: ")
        async with terminal(running, tmp_path, "--watch", "--json") as watcher:
            await watcher.line("agent is here")
            agent.chat("hello")
            shown = json.loads(await watcher.line("hello"))
            assert (shown["event"], shown["from"], shown["text"]) == ("chat", "agent", "agent: hello")


async def test_a_gateway_that_leaves_is_said_to_have_left(tmp_path: Path):
    async with AsyncExitStack() as stack:
        async with gateway() as running:
            person = await stack.enter_async_context(terminal(running, tmp_path))
            await person.line("you are")
        assert await person.leaves() == (
            4,
            "error: the gateway has closed the connection: the gateway is shutting down\n",
        )


async def test_of_two_terminals_with_one_token_the_newer_stays_and_both_are_told(tmp_path: Path):
    async with gateway() as running, terminal(running, tmp_path) as older:
        await older.line("you are admin")
        async with terminal(running, tmp_path) as newer:
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
        (["ws://127.0.0.1:1/ws"], "no topic is given"),
        (["ws://127.0.0.1:1/ws", "--topic", "demo", "--token-file", "nowhere"], "cannot read nowhere"),
    ],
)
def test_wrong_usage_is_named(defserve: Run, argv: list[str], complaint: str):
    code, _, err = defserve("topic", *argv)
    assert code == 1 and complaint in err


def test_no_gateway_is_unreachable(defserve: Run):
    assert defserve("topic", "ws://127.0.0.1:1/ws", "--topic", "demo").code == 4
