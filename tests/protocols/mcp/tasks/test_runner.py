"""Several servers on one store, each with connections of its own, as processes have them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from defserve import Context, Limits, Server
from defserve.auth.principals import make_anonymous_principal
from defserve.protocols.mcp.tasks import run
from defserve.protocols.mcp.tasks.records import TaskRecord, TaskStorage, new_task_id
from defserve.stores.identity import ServerIdentity, make_server_store
from defserve.stores.store import TASK_SPACES, MemoryStore, Store, StoreChange
from tests.protocols.mcp.tasks.peers import ASKABLE, TAKES, YES, asks, becomes, ended, get, shop
from tests.raw import raw, text_of, turns, until
from tests.rows import for_each_row
from tests.stores.redis_server import RedisServer

pytestmark = pytest.mark.anyio

SOON = Limits(task_heartbeat=0.4)


def says(value: Any) -> dict[str, Any]:
    """A person's answer."""
    return {"action": "accept", "content": {"value": value}}


async def lost(where: str | Store, tool: str, **more: Any) -> str:
    """The id of a task of a process that is not there."""
    store = make_server_store(where, ServerIdentity("name", "shop"))
    storage = TaskStorage(store)
    made: dict[str, Any] = {"owner": "local", "rights": ["local", []], "retries": 0, "arguments": None, **more}
    id, now = new_task_id(), storage.now()
    await storage.create(TaskRecord(id, tool, now, now, 60_000, 100, runner="0" * 16, **made))
    await store.close()
    return id


# -- told by another process


async def test_a_task_in_another_form_keeps_nobody_from_hearing_of_the_others(tmp_path: Path):
    address = f"sqlite:///{tmp_path / 'tasks.db'}"
    (one, job), (other, _) = shop(address), shop(address)
    async with raw(one, capabilities=TAKES) as peer, raw(other, capabilities=TAKES) as elsewhere:
        odd, plain = [(await peer.call("wait", {"name": name}))["taskId"] for name in ("odd", "plain")]
        store, space = make_server_store(address, ServerIdentity("name", "shop")), TASK_SPACES.make_space(odd)
        kept = (await store.get(space, ["record"]))["record"]
        invented = kept.replace(b"{", b'{"invented":1,', 1)
        assert await store.change(StoreChange(space, put={"record": invented}, ttl=60))
        error = (await elsewhere.ask("tasks/get", {"taskId": odd}))["error"]
        assert error["data"]["error_type"] == "store_corrupt"
        await elsewhere.ask("tasks/cancel", {"taskId": plain})
        await until(lambda: job.undone == ["plain"])
        assert await store.change(StoreChange(space, put={"record": kept}, ttl=60))
        await store.close()


@pytest.mark.req("MCP-8")
async def test_another_process_tells_of_a_task_from_its_creation_to_its_end(address: str):
    (one, job), (other, _) = shop(address), shop(address)
    async with raw(one, capabilities=TAKES) as peer, raw(other, capabilities=TAKES) as elsewhere:
        id = (await peer.call("wait"))["taskId"]
        assert (await get(elsewhere, id))["status"] == "working"
        job.go_on.set()
        task = await ended(elsewhere, id)
        assert text_of(task["result"]) == "x done"
        assert task == await get(peer, id)


async def test_an_answer_given_elsewhere_arrives_within_a_second(address: str):
    (one, _), (other, _) = shop(address), shop(address)
    async with raw(one, capabilities=ASKABLE) as peer, raw(other, capabilities=ASKABLE) as elsewhere:
        id = (await peer.call("sure"))["taskId"]
        await asks(elsewhere, id, "a", "b")
        await elsewhere.ask("tasks/update", {"taskId": id, "inputResponses": {"a": YES}})
        assert set((await get(peer, id))["inputRequests"]) == {"b"}
        await elsewhere.ask("tasks/update", {"taskId": id, "inputResponses": {"b": YES}})
        assert text_of((await ended(elsewhere, id))["result"]) == "True True"
    # It is looked for this often.
    assert run.LOOK_SECONDS <= 0.5


async def test_a_task_cancelled_elsewhere_stops(address: str):
    (one, job), (other, _) = shop(address), shop(address)
    async with raw(one, capabilities=TAKES) as peer, raw(other, capabilities=TAKES) as elsewhere:
        id = (await peer.call("wait"))["taskId"]
        await elsewhere.ask("tasks/cancel", {"taskId": id})
        assert (await get(peer, id))["status"] == "cancelled"
        await until(lambda: job.undone == ["x"])
        assert (await get(peer, id))["status"] == "cancelled"


@pytest.mark.slow
async def test_a_process_that_is_asked_in_vain_leaves_a_running_task_alone(address: str):
    (one, job), (other, _) = shop(address, limits=SOON), shop(address, limits=SOON)
    async with raw(one, capabilities=TAKES) as peer, raw(other, capabilities=TAKES) as elsewhere:
        id = (await peer.call("wait"))["taskId"]
        deadline = time.monotonic() + 3 * SOON.task_heartbeat
        while time.monotonic() < deadline:
            assert (await get(elsewhere, id))["status"] == "working"
            await asyncio.sleep(0.02)
        job.go_on.set()
        assert (await ended(elsewhere, id))["status"] == "completed"


# -- a process that died


@pytest.mark.req("MCP-8")
async def test_a_task_whose_process_died_has_failed_and_says_so(address: str):
    server, job = shop(address, limits=SOON)
    id = await lost(address, "wait")
    async with raw(server, capabilities=TAKES) as peer:
        task = await ended(peer, id)
        assert task["status"] == "failed" and task["error"]["code"] == -32603
        assert task["error"]["message"] == task["statusMessage"]
        assert "the process that ran the task has died" in task["statusMessage"]
        assert "result" not in task and job.began == []


async def test_a_task_is_run_again_as_often_as_its_author_allows(address: str):
    server, job = shop(address, limits=SOON, retry=1)
    again = await lost(address, "wait", retries=1, arguments={"name": "again"})
    never = await lost(address, "wait", retries=0, arguments={"name": "never"})
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        assert text_of((await ended(peer, again))["result"]) == "again done"
        assert (await ended(peer, never))["status"] == "failed"
    assert job.began == ["again"]


async def test_of_several_processes_one_runs_a_lost_task_again(address: str):
    servers = [shop(address, limits=Limits(task_heartbeat=5), retry=1) for _ in range(3)]
    id = await lost(address, "wait", retries=1, arguments={"name": "x"})
    async with (
        raw(servers[0][0], capabilities=TAKES) as one,
        raw(servers[1][0], capabilities=TAKES) as two,
        raw(servers[2][0], capabilities=TAKES) as three,
    ):
        peers = (one, two, three)
        async with asyncio.timeout(30):
            while not any(job.began for _, job in servers):
                await asyncio.gather(*(get(peer, id) for peer in peers))
                await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.gather(*(get(peer, id) for peer in peers))
        assert sum(len(job.began) for _, job in servers) == 1
        for _, job in servers:
            job.go_on.set()
        for peer in peers:
            assert (await ended(peer, id))["status"] == "completed"
    assert sum(len(job.ended) for _, job in servers) == 1


async def test_a_further_run_finds_answers_and_effects_and_asks_only_what_is_open(address: str):
    drawn: list[int] = []

    def office() -> Server:
        server = Server("s", "1", store=address, limits=SOON)

        @server.tool(task="required", retry=3)
        async def bill(ctx: Context) -> str:
            number = await ctx.once("number", lambda: drawn.append(1) or len(drawn))
            name = await ctx.ask("Name?", str, key="name")
            return f"{number}: {name}, {await ctx.ask('Age?', int, key='age')}"

        return server

    async with raw(office(), capabilities=ASKABLE) as peer:
        id = (await peer.call("bill"))["taskId"]
        await asks(peer, id, "name")
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"name": says("Ada")}})
        await asks(peer, id, "age")
    async with raw(office(), capabilities=ASKABLE) as peer:
        task = await becomes(peer, id, lambda task: set(task.get("inputRequests", ())) == {"age"})
        assert task["status"] == "input_required"
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"age": says(36)}})
        assert text_of((await ended(peer, id))["result"]) == "1: Ada, 36"
    assert drawn == [1]


async def test_a_further_run_that_asks_something_else_uses_another_key(address: str):
    runs: list[int] = []

    def office() -> Server:
        server = Server("s", "1", store=address, limits=SOON)

        @server.tool(task="required", retry=3)
        async def guess(ctx: Context) -> str:
            runs.append(1)
            first = await ctx.ask(f"First in run {len(runs)}?", str, key="first")
            return f"{first}, {await ctx.ask(f'Second in run {len(runs)}?', str, key='second')}"

        return server

    async with raw(office(), capabilities=ASKABLE) as peer:
        id = (await peer.call("guess"))["taskId"]
        await asks(peer, id, "first")
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"first": says("one")}})
        await asks(peer, id, "second")
    async with raw(office(), capabilities=ASKABLE) as peer:
        task = await becomes(peer, id, lambda task: "first~2" in task.get("inputRequests", ()))
        assert task["inputRequests"]["first~2"]["params"]["message"] == "First in run 2?"
        # An answer to the question of the first run is not taken for one to the second run's.
        await peer.ask(
            "tasks/update", {"taskId": id, "inputResponses": {"second": says("old"), "first~2": says("two")}}
        )
        await becomes(peer, id, lambda task: "second~2" in task.get("inputRequests", ()))
        await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"second~2": says("new")}})
        assert text_of((await ended(peer, id))["result"]) == "two, new"


async def test_a_lost_task_whose_tool_is_gone_has_failed(address: str):
    server, _ = shop(address, limits=SOON)
    id = await lost(address, "no_such_tool", retries=5, arguments={})
    async with raw(server, capabilities=TAKES) as peer:
        assert (await ended(peer, id))["status"] == "failed"


# -- a server that ends


async def test_a_task_that_is_cut_off_by_the_end_of_its_server_has_failed(address: str):
    server, job = shop(address)
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
    assert job.undone == ["x"]
    async with raw(shop(address)[0], capabilities=TAKES) as peer:
        task = await get(peer, id)
        assert (task["status"], task["statusMessage"]) == ("failed", "the server was shut down before the task ended")


async def test_a_task_that_is_cut_off_cleans_up_before_the_lifespan_is_left():
    happened: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncGenerator[None]:
        yield
        happened.append("lifespan left")

    server = Server("s", "1", lifespan=lifespan, limits=Limits(farewell=30))

    @server.tool(task="optional")
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            happened.append("cleaned up")
        return ""

    async with raw(server, capabilities=TAKES) as peer:
        await peer.call("work")
    assert happened == ["cleaned up", "lifespan left"]


async def test_a_task_that_may_run_again_is_left_to_the_next_server(address: str):
    server, job = shop(address, retry=1)
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait", {"name": "y"}))["taskId"]
    assert job.undone == ["y"]
    server, job = shop(address, retry=1)
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        assert text_of((await ended(peer, id))["result"]) == "y done"


async def test_tasks_are_told_of_while_the_server_drains_and_may_finish():
    server, job = shop()
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        server.composition.service.drain()
        assert (await peer.call("wait"))["isError"] is True
        assert (await get(peer, id))["status"] == "working"
        job.go_on.set()
        assert (await ended(peer, id))["status"] == "completed"
        assert "result" in await peer.ask("tasks/cancel", {"taskId": id})


# -- in this process


class LateStore(MemoryStore):
    """Others see a change before the one who made it hears that it is done."""

    async def change(self, change: StoreChange) -> bool:
        is_made = await super().change(change)
        await asyncio.sleep(0.02)
        return is_made


async def test_many_who_ask_at_once_for_a_lost_task_make_it_run_once():
    store = LateStore()
    server, job = shop(store, limits=SOON, retry=5)
    id = await lost(store, "wait", retries=5, arguments={"name": "x"})
    async with raw(server, capabilities=TAKES) as peer:
        asked: list[int] = []
        async with asyncio.timeout(30):
            while not job.began:
                asked.append(await peer.begin("tasks/get", {"taskId": id}))
                await asyncio.sleep(0.002)
        for each in asked:
            assert "result" in await peer.reply_to(each)
        job.go_on.set()
        assert (await ended(peer, id))["status"] == "completed"
    assert job.began == ["x"]


class ClaimStore(MemoryStore):
    """Counts renewals of leases. The claim of a lost task waits for `go`, and may be `repeated`: made, then refused."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming, self.go, self.renewed = asyncio.Event(), asyncio.Event(), 0
        self.repeated = False

    async def change(self, change: StoreChange) -> bool:
        self.renewed += "holder" in change.put
        is_creation = change.expect.get("record") is None
        if "record" not in change.put or is_creation or self.claiming.is_set():
            return await super().change(change)
        self.claiming.set()
        await self.go.wait()
        return await super().change(change) and not self.repeated


async def test_a_process_is_alive_while_it_claims_a_task_from_a_slow_store():
    store = ClaimStore()
    server, job = shop(store, limits=SOON, retry=1)
    id = await lost(store, "wait", retries=1, arguments={"name": "x"})
    async with raw(server, capabilities=TAKES) as peer:
        asked = await peer.begin("tasks/get", {"taskId": id})
        await until(store.claiming.is_set)
        before = store.renewed
        await until(lambda: store.renewed >= before + 3)
        store.go.set()
        assert "result" in await peer.reply_to(asked)
        job.go_on.set()
        assert (await ended(peer, id))["status"] == "completed"


async def test_a_task_whose_claim_the_store_repeats_is_run():
    store = ClaimStore()
    store.repeated = True
    store.go.set()
    server, job = shop(store, limits=SOON, retry=1)
    id = await lost(store, "wait", retries=1, arguments={"name": "x"})
    job.go_on.set()
    async with raw(server, capabilities=TAKES) as peer:
        assert text_of((await ended(peer, id))["result"]) == "x done"
    assert store.claiming.is_set() and job.began == ["x"]


async def test_what_was_read_of_a_task_before_it_was_claimed_does_not_stop_it():
    store = MemoryStore()
    server, job = shop(store, limits=SOON, retry=1)
    id = await lost(store, "wait", retries=1, arguments={"name": "x"})
    read_before = await TaskStorage(make_server_store(store, ServerIdentity("name", "shop"))).find(id)
    async with raw(server, capabilities=TAKES) as peer:
        await get(peer, id)
        await until(lambda: job.began == ["x"])
        (tasks,) = [extension for extension in server.extensions if extension.name == "tasks"]
        (here,) = tasks._runners.values()  # pyright: ignore
        here.notify_listeners(id, read_before)
        await turns()
        assert job.undone == []
        job.go_on.set()
        assert (await ended(peer, id))["status"] == "completed"


async def test_an_outcome_waits_for_a_store_that_is_away():
    redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    try:
        server, job = shop(redis.address)
        async with raw(server, capabilities=TAKES) as peer:
            id = (await peer.call("wait"))["taskId"]
            redis.kill()
            job.go_on.set()
            await until(lambda: job.ended == ["x"])
            reply = await peer.ask("tasks/get", {"taskId": id})
            assert reply["error"]["message"] == "The store cannot be reached"
            refused = await peer.call("wait")
            assert text_of(refused) == "The store cannot be reached" and job.began == ["x"]
            redis.start()
            assert (await ended(peer, id))["status"] == "completed"
    finally:
        redis.remove()


async def test_an_outcome_is_kept_whatever_the_store_raised_before(caplog: pytest.LogCaptureFixture):
    class OddStore(MemoryStore):
        failures: list[Exception] = []

        async def change(self, change: StoreChange) -> bool:
            if self.failures:
                raise self.failures.pop()
            return await super().change(change)

    store = OddStore()
    server, job = shop(store)
    async with raw(server, capabilities=TAKES) as peer:
        id = (await peer.call("wait"))["taskId"]
        store.failures = [RuntimeError("the handler is closed"), AttributeError("write")]
        job.go_on.set()
        assert (await ended(peer, id))["status"] == "completed"
    assert "the outcome of a task could not be kept yet" in caplog.messages


async def test_nothing_is_left_in_memory_of_tasks_that_are_over():
    server, job = shop()
    composition = server.composition
    async with raw(server, capabilities=ASKABLE) as peer:
        for end in ("finish", "cancel", "answer"):
            id = (await peer.call("sure" if end == "answer" else "wait"))["taskId"]
            if end == "finish":
                job.go_on.set()
            elif end == "cancel":
                await peer.ask("tasks/cancel", {"taskId": id})
            else:
                await asks(peer, id, "a", "b")
                await peer.ask("tasks/update", {"taskId": id, "inputResponses": {"a": YES, "b": YES}})
            await ended(peer, id)
        await until(lambda: not composition.short_sessions and composition.running == 0)
        (tasks,) = [extension for extension in server.extensions if extension.name == "tasks"]
        (here,) = tasks._runners.values()  # pyright: ignore
        await until(lambda: not here.running and not here.runs and not here._finishing)  # pyright: ignore


async def test_tasks_in_threads_leave_threads_to_plain_calls():
    server = Server("s", "1", limits=Limits(threads=4))
    go_on = threading.Event()

    @server.tool(task="optional")
    def block() -> str:
        go_on.wait(30)
        return "done"

    @server.tool
    def plain() -> str:
        return "plain"

    async with raw(server, capabilities=TAKES) as peer:
        ids = [(await peer.call("block"))["taskId"] for _ in range(2)]
        reply = await peer.ask("tools/call", {"name": "block"})
        assert reply["error"]["data"]["limit"] == "threads"
        assert text_of(await peer.call("plain")) == "plain"
        go_on.set()
        for id in ids:
            assert (await ended(peer, id))["status"] == "completed"


# -- as whom a task runs again


@for_each_row(
    ("made", "principal"),
    [
        ({"owner": None, "stranger": "203.0.113.7"}, "anonymous:203.0.113.7"),
        ({"owner": None}, "anonymous:unknown"),
        ({"owner": "local"}, "local"),
    ],
    ids=["stranger", "stranger of an older version", "owner"],
)
async def test_a_task_runs_again_as_who_made_it_whoever_looks_at_it(made: dict[str, Any], principal: str):
    store = MemoryStore()
    server, _ = shop(store, limits=SOON)

    @server.tool(task="required", retry=3)
    async def who(ctx: Context) -> str:
        return f"{ctx.principal} {ctx.can('confirm')}"

    id = await lost(store, "who", retries=1, arguments={}, **made)
    async with raw(server, capabilities=ASKABLE) as peer:
        assert text_of((await ended(peer, id))["result"]) == f"{principal} {principal == 'local'}"


async def test_the_task_of_a_stranger_runs_again_at_its_address():
    store = MemoryStore()

    gate = asyncio.Event()

    def served() -> tuple[Server, asyncio.Event]:
        server, began = Server("shop", "1", store=store), asyncio.Event()

        @server.tool(task="required", retry=3)
        async def who(ctx: Context) -> str:
            began.set()
            await gate.wait()
            return str(ctx.principal)

        return server, began

    server, began = served()
    async with raw(server, capabilities=TAKES) as peer:
        (session,) = server.composition.sessions
        session.identity = make_anonymous_principal("203.0.113.7")
        id = (await peer.call("who"))["taskId"]
        await until(began.is_set)
    gate.set()
    async with raw(served()[0], capabilities=TAKES) as peer:
        assert text_of((await ended(peer, id))["result"]) == "anonymous:203.0.113.7"
