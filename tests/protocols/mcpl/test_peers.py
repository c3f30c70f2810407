"""Whom a verb speaks to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from defserve import Context, Server, UsageError
from defserve.errors import NoBackChannel, PeerGone
from defserve.protocols.mcpl.peers import everyone, run_on_session_loop
from defserve.protocols.mcpl.vocabulary import AmbiguousPeer, FeatureDisabled, UnknownFeatureSet
from tests.protocols.mcpl.hosts import MCPL, Host, hosting, session_of
from tests.raw import STATELESS, text_of, turns

pytestmark = pytest.mark.anyio

SET = "memory.proactive"


@pytest.fixture
def server() -> Server:
    return Server("memory", "1")


@pytest.fixture
def reminders(server: Server) -> Any:
    return server.feature_set(SET, "Surface reminders", uses=["pushEvents", "inferenceRequest"])


def texts(host: Host) -> list[str]:
    return [params["payload"]["content"][0]["text"] for params in host.list_requested_uris("push/event")]


@pytest.mark.parametrize("begun", [True, False])
async def test_a_caller_that_gives_up_on_another_loop_leaves_no_error_behind(begun: bool):
    loop, waiting = asyncio.get_running_loop(), asyncio.Event()

    class OtherLoop:
        tasks: list[asyncio.Task[None]] = []

        def is_on_loop(self) -> bool:
            return False

        def post_to_loop(self, action: Callable[[], None]) -> bool:
            loop.call_soon(action)
            return True

        def spawn(self, work: Any) -> None:
            self.tasks.append(loop.create_task(work))

    session: Any = SimpleNamespace(engine=OtherLoop())
    caller = asyncio.create_task(run_on_session_loop(session, waiting.wait()))
    await (turns() if begun else asyncio.sleep(0))
    caller.cancel()
    await asyncio.wait((caller,))
    waiting.set()
    await turns()
    assert [task.exception() for task in session.engine.tasks] == [None]


async def test_the_only_session_is_meant_without_to(server: Server, reminders: Any):
    async with hosting(server) as host:
        receipt = await reminders.push("Call Alice")
        assert receipt.accepted and receipt.session is session_of(server)
        assert texts(host) == ["Call Alice"]


async def test_of_two_sessions_one_has_to_be_named(server: Server, reminders: Any):
    async with hosting(server) as first, hosting(server) as second:
        with pytest.raises(AmbiguousPeer, match="2 sessions"):
            await reminders.push("Call Alice")
        with pytest.raises(AmbiguousPeer):
            await reminders.push("Call Alice", to="local")
        for session in server.composition.sessions:
            await reminders.push("for you", to=session)
        assert texts(first) == texts(second) == ["for you"]


async def test_everyone_gets_one_receipt_a_session(server: Server, reminders: Any):
    async with hosting(server), hosting(server, answers={"push/event": {"accepted": False, "reason": "busy"}}):
        receipts = await reminders.push("Lunch", id="evt_lunch", to=everyone)
        assert sorted((r.event_id, r.accepted, r.reason) for r in receipts) == [
            ("evt_lunch", False, "busy"),
            ("evt_lunch", True, None),
        ]
        assert {r.session for r in receipts} == server.composition.sessions


async def test_everyone_may_be_nobody(reminders: Any):
    assert await reminders.push("Lunch", to=everyone) == []


async def test_sessions_that_cannot_be_spoken_to_do_not_count(server: Server, reminders: Any):
    without_push = {**MCPL, "pushEvents": False}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        host = await enter(hosting(server))
        plain, deaf = await enter(hosting(server, mcpl=None)), await enter(hosting(server, mcpl=without_push))
        unready, off = await enter(hosting(server, opened=False)), await enter(hosting(server))
        await off.update(disabled=["memory.*"])
        assert (await reminders.push("Call Alice")).accepted
        assert texts(host) == ["Call Alice"]
        assert not any(other.asked for other in (plain, deaf, unready, off))


async def test_a_call_speaks_to_its_own_session(server: Server, reminders: Any):
    @server.tool
    async def remind() -> str:
        return (await reminders.push("from the call")).event_id

    @server.tool
    def remind_in_thread(ctx: Context) -> str:
        return ctx.wait(reminders.push("from a thread")).event_id

    async with hosting(server) as first, hosting(server) as second:
        await first.call("remind")
        await first.call("remind_in_thread")
        assert texts(first) == ["from the call", "from a thread"]
        assert second.asked == []


async def test_what_a_call_has_begun_goes_on_speaking_to_its_session(server: Server, reminders: Any):
    done = asyncio.Event()
    later: list[Any] = []

    @server.tool
    async def remind_later() -> str:
        async def wait() -> None:
            await done.wait()
            await reminders.push("at last")

        later.append(asyncio.create_task(wait()))
        return "soon"

    async with hosting(server) as first, hosting(server) as second:
        await first.call("remind_later")
        done.set()
        await later[0]
        assert texts(first) == ["at last"] and second.asked == []


@pytest.mark.req("MCPL-5.2")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mcpl": None}, "does not speak MCPL"),
        ({"mcpl": {**MCPL, "pushEvents": False}}, "does not offer pushEvents"),
        ({"opened": False}, "does not speak MCPL"),
    ],
)
async def test_nobody_to_speak_to_says_why(server: Server, reminders: Any, options: Any, why: str):
    async with hosting(server, **options) as host:
        with pytest.raises(NoBackChannel, match=why):
            await reminders.push("Call Alice")
        assert host.asked == []


async def test_nobody_connected_says_so(server: Server, reminders: Any):
    with pytest.raises(NoBackChannel, match="nobody is connected"):
        await reminders.push("Call Alice")
    with pytest.raises(NoBackChannel, match="alice has no session here"):
        await reminders.push("Call Alice", to="alice")


async def test_a_session_that_is_meant_tells_its_own_reason(server: Server, reminders: Any):
    async with hosting(server) as host:
        session = session_of(server)
        await host.update(disabled=[SET])
        with pytest.raises(FeatureDisabled):
            await reminders.push("Call Alice", to=session)
        with pytest.raises(NoBackChannel, match="not enabled|memory.proactive"):
            await reminders.push("Call Alice")
        assert host.asked == []
    await turns()
    with pytest.raises(PeerGone):
        await reminders.push("Call Alice", to=session)


async def test_a_set_that_was_removed_speaks_to_nobody(server: Server, reminders: Any):
    async with hosting(server) as host:
        server.mcpl.remove(SET)
        with pytest.raises(UnknownFeatureSet):
            await reminders.push("Call Alice", to=session_of(server))
        assert host.asked == []


@pytest.mark.req("MCPL-6.2")
async def test_a_set_does_not_do_what_it_did_not_tell_hosts_of(server: Server):
    tools = server.feature_set("files.edit", "Edit files", uses=["tools"])
    async with hosting(server) as host:
        with pytest.raises(UsageError, match="uses pushEvents"):
            await tools.push("Saved")
        with pytest.raises(UsageError, match="uses inferenceRequest"):
            await tools.infer("Summarise")
        assert host.asked == []


async def test_a_session_of_another_event_loop_is_spoken_to_there(server: Server, reminders: Any):
    opened, over = threading.Event(), threading.Event()
    heard: list[str] = []

    async def serve() -> None:
        async with hosting(server) as host:
            opened.set()
            await asyncio.to_thread(over.wait, 10)
            heard.extend(texts(host))

    other = threading.Thread(target=lambda: asyncio.run(serve()))
    other.start()
    try:
        await asyncio.to_thread(opened.wait, 10)
        assert (await reminders.push("from afar")).accepted
        with pytest.raises(UsageError, match="id"):
            await reminders.push("from afar", id="")
    finally:
        over.set()
        await asyncio.to_thread(other.join)
    assert heard == ["from afar"]


async def test_to_nonsense_is_refused(server: Server, reminders: Any):
    async with hosting(server):
        with pytest.raises(UsageError, match="names nobody"):
            await reminders.push("Call Alice", to=7)


@pytest.mark.req("MCPL-3.2")
async def test_a_plain_host_sees_nothing_and_its_tools_work(server: Server, reminders: Any):
    @reminders.events
    async def due() -> Any:
        yield "never"

    @reminders.tool
    async def note(text: str, ctx: Context) -> str:
        return f"{text} {ctx.can('push')} {ctx.can('infer')} {ctx.can('model_info')}"

    async with hosting(server, mcpl=None) as host:
        assert "experimental" not in host.opening["capabilities"]
        assert text_of(await host.call("note", {"text": "milk"})) == "milk False False False"
        assert host.asked == host.heard == []


async def test_a_call_without_a_session_cannot_push(server: Server, reminders: Any):
    @server.tool
    async def remind(ctx: Context) -> str:
        assert not ctx.can("push")
        await reminders.push("Call Alice")
        return "unreachable"

    async with hosting(server, STATELESS) as host:
        result = await host.call("remind")
        assert result["isError"] and "no requests" in text_of(result)
