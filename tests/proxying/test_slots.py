"""The room of a backend: nobody takes all of it, and callers take turns."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Remote, Server
from defserve.auth import StaticTokens
from defserve.errors import DefserveError, ToolError
from defserve.proxying.calls import BackendCallSlots
from tests.at_address import at_address
from tests.proxying.backends import child, until_fact

KEYS = {"a" * 40: "ann", "b" * 40: "bo"}


@pytest.mark.slow
@pytest.mark.anyio
async def test_calls_that_never_end_leave_room_for_those_of_others() -> None:
    server = Server("desk", auth=StaticTokens(KEYS))
    server.mount(child(), prefix="e", in_flight=4)
    async with at_address(server) as url:
        one, other = (Remote(url, token=key).connect("stateless") for key in KEYS)
        async with one as ann, other as bo:
            endless = [asyncio.create_task(ann.call("e_wait"))]
            await until_fact(ann, "waiting")
            endless += [asyncio.create_task(ann.call("e_wait")) for _ in range(5)]
            assert await bo.call("e_add", a=1, b=2) == 3
            for call in endless:
                call.cancel()
            await asyncio.gather(*endless, return_exceptions=True)
            assert await ann.call("e_add", a=1, b=2) == 3


@pytest.mark.anyio
async def test_every_call_is_timed_and_what_fails_is_counted() -> None:
    server, behind = Server("desk"), Server("shop")

    @behind.tool
    def sell(what: str) -> str:
        if what == "air":
            raise ToolError("air is not for sale")
        return what

    async with at_address(behind) as url:
        server.mount(Remote(url), prefix="e")
        async with server.connect() as client:
            await client.call("e_sell", what="bread")
            with pytest.raises(ToolError):
                await client.call("e_sell", what="air")
            (backend,) = server.mounts.backends.values()
            room = backend.room
            assert (room.total, room.errors) == (2, 1)
            assert [failed for _, _, failed in room.times] == [False, True]
            assert all(began <= ended for began, ended, _ in room.times)


@pytest.mark.anyio
async def test_all_who_wait_until_no_call_runs_are_told() -> None:
    room = BackendCallSlots("e", 4)
    room.begin_call("a")
    waiting = [asyncio.create_task(room.wait_until_idle(60)) for _ in range(2)]
    await asyncio.sleep(0)
    room.end_call("a")
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "cancel", "rest"])), max_size=60),
)
def test_whatever_callers_do_the_room_is_kept_and_empties(limit: int, steps: list[tuple[str, str]]) -> None:
    asyncio.run(_try(limit, steps))


async def _try(limit: int, steps: list[tuple[str, str]]) -> None:
    room, ends, calls = (
        BackendCallSlots("e", limit),
        dict[asyncio.Task[None], asyncio.Event](),
        list[asyncio.Task[None]](),
    )
    running: dict[str, int] = dict.fromkeys("abc", 0)

    async def one(caller: str, end: asyncio.Event) -> None:
        try:
            if (turn := room.begin_call(caller)) is not None:
                await room.wait_for_turn(caller, turn)
        except DefserveError:
            return
        running[caller] += 1
        assert sum(running.values()) <= limit
        assert limit < 4 or running[caller] < limit
        try:
            await end.wait()
        finally:
            running[caller] -= 1
            room.end_call(caller)

    for caller, step in steps:
        if step == "enter":
            end = asyncio.Event()
            calls.append(task := asyncio.create_task(one(caller, end)))
            ends[task] = end
        elif step == "rest":
            await asyncio.sleep(0)
        elif calls:
            task = calls.pop(0 if step == "leave" else -1)
            ends[task].set() if step == "leave" else task.cancel()
    for end in ends.values():
        end.set()
    await asyncio.gather(*ends, return_exceptions=True)
    assert not [task for task in ends if not task.cancelled() and task.exception()]
    assert room.running == 0
    assert room.begin_call("a") is None
