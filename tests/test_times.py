"""Running a tool, checking arguments, making a list, waiting for a lock: each has a time limit, and is told by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator

from defserve import Limits, Server, State
from defserve.core.extension import Stages
from defserve.extending import Extension
from tests.raw import ERAS, Json, raw, text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.req("GGEN-TMO-1")]
eras = pytest.mark.parametrize("version", ERAS)

SHORT = 0.05


class Waiting(Extension):
    """Waits for ever, in the step of a call that it is told."""

    name = "waiting"

    def __init__(self, step: str) -> None:
        self.step, self.cancelled = step, False

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def _judge(self, call: Any, item: Any, arguments: Any) -> None:
        await self._wait()

    def stages(self) -> Stages | None:
        return Stages(judge=self._judge) if self.step == "judge" else None

    def negotiate(self, offer: Any) -> object:
        return self

    def around(self) -> Mapping[str, Any]:
        async def around(call: Any, params: Any, next: Callable[..., Any]) -> Any:
            await self._wait()

        return {"tools/list": around} if self.step == "list" else {}


def said_by(reply: Json) -> Json:
    """The text and the details of a failure, whether a result or an error."""
    if "error" in reply:
        return {"text": reply["error"]["message"], **reply["error"]["data"]}
    return {"text": text_of(reply["result"]), **reply["result"]["_meta"]["dev.defserve/error"]}


@eras
async def test_a_tool_that_takes_too_long(version: str):
    server = Server("s", "1", limits=Limits(tool=SHORT))

    @server.tool
    async def slow() -> None:
        await asyncio.Event().wait()

    async with raw(server, version) as peer:
        said = said_by(await peer.ask("tools/call", {"name": "slow"}))
    assert (said["text"], said["error_type"], said["timeout_ms"]) == ("timed out after 0.05 s", "timeout", 50)


@eras
async def test_a_check_of_arguments_that_waits_too_long_is_cancelled(version: str):
    waiting = Waiting("judge")
    server = Server("s", "1", limits=Limits(validation=SHORT), extensions=[waiting])
    ran = False

    @server.tool
    async def work() -> None:
        nonlocal ran
        ran = True

    async with raw(server, version) as peer:
        said = said_by(await peer.ask("tools/call", {"name": "work"}))
    assert said["text"] == "checking the arguments took longer than 0.05 s"
    assert (said["error_type"], said["limit"], said["timeout_ms"]) == ("timeout", "validation", 50)
    assert waiting.cancelled and not ran


def slowly(value: Any) -> Any:
    time.sleep(2 * SHORT)
    return value


@eras
@pytest.mark.parametrize("staged", [False, True])
async def test_a_check_of_arguments_that_blocks_too_long_is_refused_afterwards(version: str, staged: bool):
    extensions = [Waiting("judge")] if staged else []
    server = Server("s", "1", limits=Limits(validation=SHORT), extensions=extensions)
    ran = False

    @server.tool
    async def work(value: Annotated[int, BeforeValidator(slowly)]) -> None:
        nonlocal ran
        ran = True

    async with raw(server, version) as peer:
        said = said_by(await peer.ask("tools/call", {"name": "work", "arguments": {"value": 1}}))
    assert (said["limit"], ran) == ("validation", False)


@eras
async def test_a_list_that_waits_too_long_is_cancelled(version: str):
    waiting = Waiting("list")
    async with raw(Server("s", "1", limits=Limits(discovery=SHORT), extensions=[waiting]), version) as peer:
        said = said_by(await peer.ask("tools/list"))
    assert said["text"] == "tools/list took longer than 0.05 s"
    assert (said["error_type"], said["limit"], waiting.cancelled) == ("timeout", "discovery", True)


async def test_a_list_that_blocks_too_long_is_refused_afterwards_and_there_the_next_time():
    class Slow(Extension):
        name = "slow"

        def describe(self, item: Any, view: object) -> Mapping[str, Any]:
            time.sleep(2 * SHORT)
            return {}

    server = Server("s", "1", limits=Limits(discovery=SHORT), extensions=[Slow()])

    @server.tool
    async def work() -> None: ...

    async with raw(server) as peer:
        said = said_by(await peer.ask("tools/list"))
        assert (said["limit"], said["text"]) == (
            "discovery",
            "listing the tools took longer than 0.05 s",
        )
        assert [tool["name"] for tool in (await peer.ask("tools/list"))["result"]["tools"]] == ["work"]


class Notes(BaseModel):
    lines: list[str] = []


@eras
async def test_a_lock_that_is_held_too_long(version: str):
    server = Server("s", "1", limits=Limits(lock=SHORT))
    notes = server.feature_set("notes", "Keeps notes")
    notes.state(Notes)
    go, holding = asyncio.Event(), asyncio.Event()

    @notes.tool
    async def write(notes: State[Notes]) -> str:
        holding.set()
        await go.wait()
        return "written"

    async with raw(server, version) as peer:
        first = await peer.begin("tools/call", {"name": "write"})
        await until(holding.is_set)
        said = said_by(await peer.ask("tools/call", {"name": "write"}))
        go.set()
        assert text_of((await peer.reply_to(first))["result"]) == "written"
    assert (said["error_type"], said["limit"]) == ("state_busy", "lock")
    assert said["text"] == "Another call works on this state; try again later"
