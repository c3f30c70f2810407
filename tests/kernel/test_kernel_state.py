"""Kernels side by side: one file, one store, one process for each server, whichever kernel is asked."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from defserve.auth.api_keys import ApiKeys
from defserve.client import Client
from defserve.client.targets import connect_url
from defserve.errors import DefserveError, PeerGone, UsageError
from defserve.kernel import kernel_state
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.control import ask_kernel_async
from defserve.kernel.kernel import Kernel
from defserve.kernel.kernel_state import KernelState, SharedState
from defserve.kernel.shared_processes import ProcessSeatServer
from defserve.stores.identity import ServerStore, identify_server
from defserve.stores.store import StoreChange
from tests.at_address import at_address
from tests.kernel.running import BACKEND, Running, entry
from tests.rows import for_each_row
from tests.stores.postgres_server import PostgresServer, start_shared_postgres
from tests.stores.redis_server import RedisServer, start_shared_redis
from tests.waiting import is_running, until, wait_until

pytestmark = pytest.mark.anyio

SHARED = entry("files", more='per = "shared"')


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def redis() -> RedisServer:
    return start_shared_redis()


@pytest.fixture(scope="module")
def postgres() -> PostgresServer:
    return start_shared_postgres()


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    addresses: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path / 'store.db'}",
        "redis": lambda: f"{request.getfixturevalue('redis').address}?prefix={tmp_path.name}:",
        "postgres": lambda: request.getfixturevalue("postgres").make_address(),
    }
    return addresses[request.param]()


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def write_file(folder: Path, store: str, *entries: str, settings: str = "") -> Path:
    path = folder / "mgp.toml"
    group = f'[kernel]\nname = "desk"\ndrain_secs = 5\n{settings}\n[kernel.group]\nstore = "{store}"\n'
    path.write_text("\n".join((group, *entries)))
    return path


@asynccontextmanager
async def serving(path: Path, **options: Any) -> AsyncGenerator[Running]:
    """One more kernel of the file, in this process."""
    kernel = Kernel(load_kernel_config(path), **options)
    async with kernel.server.connect() as client:
        here = Running(kernel, client, path)
        await here.connected(*kernel.members)
        yield here


async def test_calls_at_either_kernel_are_answered_by_one_process(tmp_path: Path, store: str) -> None:
    path = write_file(tmp_path, store, SHARED)
    async with serving(path) as one, serving(path) as other:
        process = await one.call("files_pid")
        assert await other.call("files_pid") == process
        assert await asyncio.gather(*(here.call("files_add", a=n, b=n) for n in range(20) for here in (one, other)))
        assert one.kernel.ps()[0]["kernel"] == other.kernel.ps()[0]["kernel"] != ""


async def test_a_server_moves_when_its_kernel_ends_and_no_call_fails(tmp_path: Path, sqlite: str) -> None:
    path = write_file(tmp_path, sqlite, SHARED)
    async with AsyncExitStack() as owner:
        first = await (await owner.enter_async_context(serving(path))).call("files_pid")
        async with serving(path) as other:
            under_way = asyncio.create_task(other.call("files_slow", seconds=1))
            await until(lambda: other.kernel.ps()[0]["calls"] == 1)
            leaving = asyncio.create_task(owner.aclose())
            await until_called(other, None, unlike=first)
            assert await under_way == first
            await leaving
            assert runs_here(other)
            assert await other.call("files_add", a=1, b=2) == "3"


async def test_what_operators_decide_at_one_kernel_holds_at_the_other(tmp_path: Path, store: str) -> None:
    path = write_file(tmp_path, store, SHARED, settings='admins = ["boss"]')
    async with serving(path) as one, serving(path) as other:
        await one.kernel.access.set_entry("deny", "ann", "files", reason="left")
        await other.kernel.refresh()
        rows = await other.kernel.access.list_entries("files")
        assert [(row.get("agent_id"), row.get("permission")) for row in rows] == [(None, None), ("ann", "deny")]
        process = await one.call("files_pid")
        await other.kernel.restart("files")
        await until(lambda: one.kernel.members["files"].restarted == 1)
        assert await other.call("files_pid") != process
        await until_called(one, await other.call("files_pid"))
        await until(lambda: not is_running(int(process)))
        await other.kernel.stop("files")
        await until(lambda: one.state("files") == "disconnected")
        await one.kernel.start("files")
        await other.connected("files")


async def test_a_tool_that_was_approved_at_one_kernel_can_be_used_at_the_other(tmp_path: Path, store: str) -> None:
    held = entry("files", more='per = "shared"', mgp='on_change = "hold"')
    path = write_file(tmp_path, store, held)
    async with serving(path):
        pass
    changed = tmp_path / "changed.py"
    changed.write_text(BACKEND.read_text().replace("Add two numbers.", "Add two numbers, and keep them."))
    path.write_text(path.read_text().replace(str(BACKEND), str(changed)))
    async with serving(path) as one, serving(path) as other:
        for here in (one, other):
            with pytest.raises(DefserveError, match="has changed"):
                await here.call("files_add", a=1, b=2)
        (row,) = await one.kernel.list_held_tools()
        await one.kernel.approve("files", "add", row["now"])
        assert await one.call("files_add", a=1, b=2) == "3"
        await other.kernel.refresh()
        assert await other.call("files_add", a=1, b=2) == "3"


async def test_a_caller_with_a_key_has_one_process_at_all_kernels_and_nobody_elses(
    tmp_path: Path, sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFSERVE_KEYS_PEPPER", "a pepper that is long enough")
    keys = ApiKeys(tmp_path / "keys.json")
    ann, bob, cy = [
        (await keys.create(who, permissions=["ToolInvoke(*)", "ToolsListAll"])).token for who in ("ann", "bob", "cy")
    ]
    await keys.close()
    # Without overlap too: that is about restarts, and not about other callers.
    path = write_file(tmp_path, sqlite, entry("files", more="overlap = false"), settings='keys = "keys.json"')
    one, other = (Kernel(load_kernel_config(path)) for _ in range(2))
    async with at_address(one.server) as here, at_address(other.server) as there:

        async def find_process(url: str, token: str) -> str:
            async with Client(await connect_url(url, token=token)) as client:
                return await client.call("files_pid")

        process = await find_process(here, ann)
        assert await find_process(there, ann) == process
        assert await find_process(there, bob) == await find_process(here, bob) != process
        # The server's own process, Ann's and Bob's are all there may be, wherever a fourth is asked for.
        monkeypatch.setattr(kernel_state, "MAX_CHANNELS", 2)
        for url in (here, there):
            with pytest.raises(DefserveError, match="files"):
                await find_process(url, cy)
        assert await find_process(there, ann) == process


async def test_kernels_that_were_given_other_commands_share_no_process(tmp_path: Path, sqlite: str) -> None:
    path = write_file(tmp_path, sqlite, SHARED)
    async with serving(path) as one:
        write_file(tmp_path, sqlite, entry("files", "another", more='per = "shared"'))
        async with serving(path) as other:
            assert await one.call("files_pid") != await other.call("files_pid")


async def test_a_kernel_whose_lease_was_taken_uses_the_process_of_the_new_owner(tmp_path: Path, sqlite: str) -> None:
    path = write_file(tmp_path, sqlite, SHARED)
    async with serving(path) as one, serving(path) as other:
        group, process = one.kernel.group, await one.call("files_pid")
        assert group is not None
        ((name, lease),) = group._leases.items()  # pyright: ignore[reportPrivateUsage]
        # As if it had been paused for longer than a lease lasts.
        await lease.release()
        group._on_lease_lost(name, lease)  # pyright: ignore[reportPrivateUsage]
        await until(lambda: not is_running(int(process)))
        await until(lambda: one.state("files") == other.state("files") == "connected")
        assert await one.call("files_pid") == await other.call("files_pid") != process


async def test_a_kernel_that_is_cancelled_while_others_move_leaves_no_process_and_no_open_store_behind(
    tmp_path: Path, sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves, over, moving, closed = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[SharedState]()
    path, found = write_file(tmp_path, sqlite, SHARED), list[int]()
    close = SharedState.close

    async def move_seats(server: ProcessSeatServer, seconds: float) -> None:
        moving.set()
        await asyncio.Event().wait()

    def note_close(state: SharedState) -> None:
        closed.append(state)
        close(state)

    async def serve() -> None:
        async with serving(path) as one:
            found.append(int(await one.call("files_pid")))
            serves.set()
            await over.wait()

    monkeypatch.setattr(ProcessSeatServer, "move_seats", move_seats)
    monkeypatch.setattr(SharedState, "close", note_close)
    owner = asyncio.create_task(serve())
    await serves.wait()
    over.set()
    await moving.wait()
    owner.cancel()
    await asyncio.wait((owner,))
    await until(lambda: not is_running(found[0]))
    assert len(closed) == 1


async def test_a_restart_without_overlap_leaves_one_process_for_all_kernels(tmp_path: Path, sqlite: str) -> None:
    path = write_file(tmp_path, sqlite, entry("files", more='per = "shared"\noverlap = false'))
    async with serving(path) as one, serving(path) as other:
        process = await one.call("files_pid")
        await (one if runs_here(one) else other).kernel.restart("files")
        for here in (one, other):
            await until_called(here, None, unlike=process)
        assert await one.call("files_pid") == await other.call("files_pid")


async def test_a_process_that_ends_is_started_once_for_all_kernels(tmp_path: Path, sqlite: str) -> None:
    path = write_file(tmp_path, sqlite, SHARED)
    async with serving(path) as one, serving(path) as other:
        process = await one.call("files_pid")
        with pytest.raises(DefserveError):
            await other.call("files_leave", code=3)
        for here in (one, other):
            await until_called(here, None, unlike=process)
        assert await one.call("files_pid") == await other.call("files_pid")


async def test_a_process_that_hangs_is_replaced_for_all_kernels(tmp_path: Path, sqlite: str) -> None:
    health = 'per = "shared"\nhealth = { interval_secs = 0.2, timeout_secs = 1, failures = 1 }'
    path = write_file(tmp_path, sqlite, entry("files", more=health))
    async with serving(path) as one, serving(path) as other:
        process = await one.call("files_pid")
        hanging = asyncio.create_task(other.call("files_hang"))
        with pytest.raises(DefserveError):
            await hanging
        await until(lambda: not is_running(int(process)))
        for here in (one, other):
            await until_called(here, None, unlike=process)
        assert await one.call("files_pid") == await other.call("files_pid")


def test_a_group_without_its_store_says_so(tmp_path: Path) -> None:
    path = write_file(tmp_path, "redis://127.0.0.1:1/0", SHARED)
    with pytest.raises(UsageError, match=r"the store of \[kernel.group\] cannot be used"):
        Kernel(load_kernel_config(path))


@for_each_row(
    ("link", "fix"),
    [
        ("nowhere", "write host and port"),
        ("0.0.0.0:8300", "write host and port"),
        (":8300", "write host and port"),
        ("10.0.0.5:123456", "write host and port"),
        ("${NO_SUCH_ADDRESS}:8300", "export NO_SUCH_ADDRESS"),
    ],
)
def test_a_link_that_others_cannot_reach_is_refused(tmp_path: Path, sqlite: str, link: str, fix: str) -> None:
    path = write_file(tmp_path, sqlite, f'link = "{link}"', SHARED)
    with pytest.raises(UsageError, match=fix):
        Kernel(load_kernel_config(path))


@for_each_row("store", ["memory:", "state.json", "mysql://a/b"])
def test_a_store_that_kernels_cannot_share_is_a_mistake_in_the_file(tmp_path: Path, store: str) -> None:
    with pytest.raises(UsageError, match=r"kernel.group.store is not a store that several kernels can use"):
        load_kernel_config(write_file(tmp_path, store, SHARED))


def test_a_kernel_alone_loads_nothing_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "mgp.toml").write_text(SHARED)
    program = (
        "import sys; from defserve.kernel.kernel import Kernel; Kernel.load('mgp.toml');"
        "print([name for name in sys.modules if name.startswith(('defserve.kernel.shared', 'defserve.stores.red'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_two_changes_at_once_are_both_kept(sqlite: str) -> None:
    one, other = states = [SharedState(sqlite, identify_server("desk")) for _ in range(2)]
    await asyncio.gather(
        *(
            asyncio.to_thread(state.update, lambda kept, name=f"{place}.{number}": kept.pins.update({name: {"a": "1"}}))
            for place, state in enumerate((one, other))
            for number in range(10)
        )
    )
    assert one.refresh() and one.known.pins.keys() == {f"{place}.{number}" for place in (0, 1) for number in range(10)}
    states.append(SharedState(sqlite, identify_server("another")))
    assert states[-1].known.pins == {}
    for state in states:
        state.close()
    # It connects again when it is needed.
    assert not one.refresh()
    one.close()


async def test_a_kernel_hears_of_what_was_decided_after_the_store_lost_its_data(sqlite: str) -> None:
    def decide(state: SharedState, decision: str) -> None:
        state.update(lambda kept: kept.access.update(files=[{"agent_id": "ann", "permission": decision}]))

    one, other = states = [SharedState(sqlite, identify_server("desk")) for _ in range(2)]
    decide(one, "allow")
    assert other.refresh()
    with closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"))) as store, store:
        store.execute("DELETE FROM entries WHERE name = 'revision' OR name LIKE 'access %'")
    decide(one, "deny")
    assert other.refresh() and other.known.access == one.known.access
    assert other.known.access["files"][0]["permission"] == "deny"
    for state in states:
        state.close()


async def test_a_change_whose_answer_got_lost_is_made_once(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ServerStore.change

    async def write_twice(store: ServerStore, change: StoreChange) -> bool:
        """As a client of Redis does when its connection breaks."""
        await write(store, change)
        return await write(store, change)

    state = SharedState(sqlite, identify_server("desk"))
    monkeypatch.setattr(ServerStore, "change", write_twice)

    def count(kept: KernelState) -> None:
        orders = kept.servers.setdefault("files", {})
        orders["restarted"] = orders.get("restarted", 0) + 1

    state.update(count)
    assert state.known.servers == {"files": {"restarted": 1}}
    state.close()


# -- kernels as processes: `kill -9` of the one that owns a server


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_the_next_call_is_answered_after_the_owner_was_killed(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    server = request.getfixturevalue(kind)
    store = f"{server.address}?prefix=killed:" if kind == "redis" else server.make_address()
    async with owner_and_client(write_file(tmp_path, store, SHARED)) as (owner, process, client):
        assert await client.call("files_pid") == str(process)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        began = time.monotonic()
        assert await call_until_answered(client) != str(process)
        assert time.monotonic() - began < MAX_MOVE_SECONDS
        await until(lambda: not is_running(process))


@pytest.mark.slow
async def test_no_call_at_another_kernel_fails_while_the_owner_is_stopped(tmp_path: Path, redis: RedisServer) -> None:
    path = write_file(tmp_path, f"{redis.address}?prefix=stopped:", SHARED)
    async with owner_and_client(path) as (owner, process, client):
        slow = asyncio.create_task(client.call("files_slow", seconds=2))
        owner.terminate()
        while owner.poll() is None:
            await client.call("files_pid")
        assert owner.returncode == 0 and await slow == str(process) != await client.call("files_pid")
        assert not is_running(process)


@asynccontextmanager
async def owner_and_client(path: Path) -> AsyncGenerator[tuple[subprocess.Popen[bytes], int, Client]]:
    """Two kernels as processes: the one that owns the server, the process of the server, and a client of the other."""
    logs = [path.with_name(name) for name in ("one", "other")]
    with kernel_process(path, logs[0]) as one, kernel_process(path, logs[1]) as other:
        rows = [await find_row(path, each.pid) for each in (one, other)]
        assert rows[0]["kernel"] == rows[1]["kernel"] is not None
        # Only the owner knows the child's process id.
        owner, log = (one, logs[1]) if rows[0]["pid"] is not None else (other, logs[0])
        address = re.search(r"http://127\.0\.0\.1:\d+/mcp", log.read_text())
        assert address is not None
        async with Client(await connect_url(address[0])) as client:
            yield owner, rows[0]["pid"] or rows[1]["pid"], client


MAX_MOVE_SECONDS = 15.0


@contextmanager
def kernel_process(path: Path, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """One more kernel of the file, as a process that serves."""
    command = [sys.executable, "-m", "defserve", "kernel", "--config", str(path), "--on", "http://127.0.0.1:0/mcp"]
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
    try:
        wait_until(lambda: "serving on" in log.read_text() or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.wait()


async def find_row(path: Path, process: int) -> dict[str, Any]:
    """What a kernel tells of its server, once that is connected."""
    async with asyncio.timeout(60):
        while True:
            with suppress(PeerGone):
                row = await anext(ask_kernel_async(path, {"verb": "ps"}, process))
                if row["state"] == "connected":
                    return row
            await asyncio.sleep(0.05)


async def call_until_answered(client: Client) -> str:
    """A call that comes while its server moves may fail once, and says so."""
    while True:
        try:
            return await client.call("files_pid")
        except DefserveError:
            await asyncio.sleep(0.05)


def runs_here(here: Running) -> bool:
    assert here.kernel.group is not None
    return here.kernel.ps()[0]["kernel"] == here.kernel.group.place.shown


async def until_called(here: Running, process: str | None, unlike: str = "") -> None:
    """Wait until a kernel's calls reach this process, or any other than one."""
    async with asyncio.timeout(60):
        while True:
            with suppress(DefserveError):
                found = await here.call("files_pid")
                if found == process or (process is None and found != unlike):
                    return
            await asyncio.sleep(0.02)
