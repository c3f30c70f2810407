"""Processes that are stopped for a while (SIGSTOP), and go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from defserve.client import Client, ProcessLink
from defserve.client.targets import connect_url
from defserve.errors import DefserveError, PeerTimeout
from tests.attack.arena import Served
from tests.attack.trial import MissingFeature, Trial
from tests.chaos.carrying.mangling import Harm
from tests.chaos.fault import SERVERS, Faults, expect_unharmed, kind, marks_of
from tests.chaos.load import Tally, judge, note, ours_at, talk, words_for
from tests.faults.killing_tasks import LOST, Worker
from tests.faults.notebook import Notebook
from tests.faults.process import PATIENCE, Broken
from tests.stores.postgres_server import PostgresServer, find_postgres
from tests.stores.redis_server import RedisServer
from tests.waiting import wait_until

PAUSED = Faults("paused processes")
FAMILIES = (PAUSED,)


@contextmanager
def stopped(pid: int) -> Generator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def url_of(served: Served) -> str:
    return f"http://{served.place.authority}/mcp"


@PAUSED.row("a server at HTTP for 1 s, clients that wait", "every call is answered, once")
def short_pause(trial: Trial) -> None:
    served = trial.arena.serve(kind())
    files, tally = served.open_files, Tally()

    async def run() -> None:
        said = [words_for(trial.random, f"{trial.random.random()}", 60) for _ in range(3)]
        talking = [asyncio.create_task(talk(partial(ours_at, url_of(served)), w, tally, n)) for n, w in enumerate(said)]
        await asyncio.sleep(0.05)
        with stopped(served.process.pid):
            await asyncio.sleep(1)
        await asyncio.gather(*talking)

    asyncio.run(run())
    judge(trial, tally, marks_of(served), Harm.LATE)
    note(trial, tally)
    expect_unharmed(trial, served, files)


@PAUSED.row(
    "a server at HTTP for 5 s, clients that wait for 2 s", "the call ends in time, and says so; then all is well"
)
def long_pause(trial: Trial) -> None:
    served = trial.arena.serve(kind())
    files = served.open_files

    async def run() -> None:
        async with Client(await connect_url(url_of(served)), timeout=2.0) as client:
            await client.call("mark", word="before")
            with stopped(served.process.pid):
                await _times_out(trial, client, "mark", word="while")
                await asyncio.sleep(3)
            said = await client.call("mark", word="after")
            trial.expect(said == "marked after", f"after the pause the answer was {said!r}")

    asyncio.run(run())
    marks = marks_of(served)
    trial.expect({"before", "after"} <= set(marks), f"acknowledged and lost: {marks}")
    trial.expect(marks.count("while") <= 1, f"a call ran twice: {marks}")
    expect_unharmed(trial, served, files)


async def _times_out(trial: Trial, client: Client, tool: str, **arguments: object) -> None:
    began = time.monotonic()
    try:
        said = await client.call(tool, **arguments)
    except PeerTimeout as error:
        took = time.monotonic() - began
        trial.expect(took < 4 and len(str(error).split()) > 3, f"it took {took:.1f} s, and said {error}")
        trial.notes.append(str(error))
    except DefserveError as error:
        trial.expect(False, f"it said {error!r}, not that the time is over")
    else:
        trial.expect(False, f"a stopped server answered {said!r}")


@PAUSED.row("a server of pipes for 5 s", "the call ends in time, and says so; the next is answered by the same process")
def paused_pipe(trial: Trial) -> None:
    marks = trial.arena.folder / "paused-marks"

    async def run() -> None:
        env = {**trial.arena.environment, "ATTACK_MARKS": str(marks)}
        link = await ProcessLink.spawn(sys.executable, [f"{SERVERS}/marking.py"], env=env)
        async with Client(link, timeout=20) as client:
            await client.call("mark", word="before")
            pid, client.timeout = link.pid, 2.0
            with stopped(pid):
                await _times_out(trial, client, "mark", word="while")
                await asyncio.sleep(1)
            client.timeout = 20
            said = await client.call("mark", word="after")
            trial.expect(said == "marked after" and link.pid == pid, f"after the pause the answer was {said!r}")

    asyncio.run(run())
    trial.expect(marks.read_text().split().count("after") == 1, "a call was lost or ran twice")


@PAUSED.row("a client that reads a stream", "others are answered meanwhile; it gets the rest when it goes on")
def paused_client(trial: Trial) -> None:
    served = trial.arena.serve(kind())
    files = served.open_files
    code = (
        "import asyncio, sys\n"
        "from defserve.client import RemoteServer\n"
        "async def main():\n"
        "    async with RemoteServer(sys.argv[1]).connect(sys.argv[2]) as client:\n"
        "        print('begun', flush=True)\n"
        "        print(await client.call('count', n=200), flush=True)\n"
        "asyncio.run(main())\n"
    )

    async def run(era: str) -> None:
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, url_of(served), era, stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        await asyncio.wait_for(reader.stdout.readline(), 30)
        async with Client(await connect_url(url_of(served)), timeout=5.0) as client:
            with stopped(reader.pid):
                for n in range(50):
                    said = await client.call("mark", word=f"other-{era}-{n}")
                    trial.expect(said == f"marked other-{era}-{n}", f"another client got {said!r}")
                await asyncio.sleep(2.5)
        rest = await asyncio.wait_for(reader.stdout.read(), 60)
        trial.expect(rest == b"counted\n", f"the client that was stopped got {rest!r}")
        await reader.wait()

    for era in ("2025-11-25", "2026-07-28"):
        asyncio.run(run(era))
    expect_unharmed(trial, served, files)


@PAUSED.row("one of two workers", "the other takes new connections; a call that waits for the first ends in time")
def paused_worker(trial: Trial) -> None:
    served = trial.arena.serve(kind("marking", "--workers", "2", "--stateless"))
    workers = _children(served.process.pid)
    trial.expect(len(workers) >= 2, f"there are {len(workers)} workers")
    answered: list[str] = []

    async def call(n: int) -> None:
        try:
            async with Client(await connect_url(url_of(served)), version="2026-07-28", timeout=2.0) as client:
                answered.append(await client.call("mark", word=f"worker-{n}"))
        except DefserveError as error:
            trial.notes.append(str(error)[:80])

    async def run() -> None:
        with stopped(workers[0]):
            began = time.monotonic()
            for n in range(20):
                await call(n)
            took = time.monotonic() - began
        trial.expect(took < 60, f"20 calls took {took:.0f} s")
        trial.expect(len(answered) >= 10, f"only {len(answered)} of 20 calls were answered while one worker stood")
        await asyncio.sleep(0.5)
        before = len(answered)
        for n in range(20, 30):
            await call(n)
        trial.expect(len(answered) - before == 10, f"afterwards only {len(answered) - before} of 10 were answered")

    asyncio.run(run())
    marks = marks_of(served)
    trial.expect({said.removeprefix("marked ") for said in answered} <= set(marks), "acknowledged and lost")
    del trial.notes[3:]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@PAUSED.row("a server behind a kernel", "its calls end in time, and say so; those of the others are answered")
def paused_behind_a_kernel(trial: Trial) -> None:
    asyncio.run(_kernel(trial))


async def _kernel(trial: Trial) -> None:
    folder = Path(tempfile.mkdtemp(prefix="k", dir=trial.arena.folder))
    config, marks = folder / "mgp.toml", folder / "marks"
    config.write_text(
        "\n".join(
            f'[[servers]]\nid = "{id}"\nprefix = "{id}"\ncommand = "{sys.executable}"\n'
            f'args = ["{SERVERS}/marking.py"]\nper = "shared"\ntimeout = 2\n[servers.env]\nATTACK_MARKS = "{marks}"\n'
            for id in ("left", "right")
        )
    )
    command = [sys.executable, "-m", "defserve", "kernel", "--config", str(config)]
    link = await ProcessLink.spawn(command[0], command[1:], env=trial.arena.environment)
    async with Client(link, timeout=30) as client:
        await client.call("left_mark", word="before")
        await client.call("right_mark", word="before")
        victims = [pid for pid in _children(link.pid) if _is_first(pid, "marking.py")]
        trial.expect(len(victims) == 2, f"the kernel has {len(victims)} servers")
        said = {}
        with stopped(victims[0]):
            for id in ("left", "right"):
                began = time.monotonic()
                try:
                    said[id] = await client.call(f"{id}_mark", word=f"while-{id}")
                except DefserveError as error:
                    said[id] = error
                trial.expect(time.monotonic() - began < 10, f"{id} took {time.monotonic() - began:.1f} s")
        bad = [id for id in said if isinstance(said[id], Exception)]
        trial.expect(len(bad) == 1, f"of two servers one stood still, and the calls gave {said}")
        if bad:
            trial.notes.append(str(said[bad[0]]))
        for id in ("left", "right"):
            answer = await client.call(f"{id}_mark", word=f"after-{id}")
            trial.expect(answer == f"marked after-{id}", f"afterwards {id} said {answer!r}")


def _is_first(pid: int, word: str) -> bool:
    return word in Path(f"/proc/{pid}/cmdline").read_text()


@PAUSED.row(
    "Redis, in which states are kept", "the call fails and says that the store is not reached, or is answered late"
)
def paused_redis(trial: Trial) -> None:
    if not _has("redis-server"):
        raise MissingFeature("there is no redis-server")
    redis = RedisServer().start()
    assert redis._process is not None
    try:
        pid = redis._process.pid
        pause_store(trial, redis.address, lambda: [pid])
    finally:
        redis.remove()


@PAUSED.row(
    "Postgres, in which states are kept", "the call fails and says that the store is not reached, or is answered late"
)
def paused_postgres(trial: Trial) -> None:
    if find_postgres() is None:
        raise MissingFeature("there is no Postgres")
    postgres = PostgresServer().start()
    try:
        pause_store(trial, postgres.url, lambda: postgres.pids)
    finally:
        postgres.remove()


def pause_store(trial: Trial, address: str, find_pids: Callable[[], list[int]]) -> None:
    """A note is added before, while and after the processes of a store stand still."""
    notebook = Notebook(address)
    try:
        trial.expect(notebook.try_to_add("before") is None, "a note was refused before")
        with ExitStack() as still:
            for pid in find_pids():
                still.enter_context(stopped(pid))
            began = time.monotonic()
            try:
                said = notebook.try_to_add("while")
            except Broken as broken:
                said = None
                trial.expect(False, f"a call hangs while the store stands: {broken}")
            trial.expect(time.monotonic() - began < PATIENCE, "the call took too long")
            trial.expect(said is not None and "store" in said.lower(), f"it said {said!r}")
            trial.notes.append(str(said))
        trial.expect(notebook.try_to_add("after") is None, "a note was refused after")
        texts = notebook.read()
        trial.expect(texts in (["before", "after"], ["before", "while", "after"]), f"the notes are {texts}")
    finally:
        notebook.close()


def _has(program: str) -> bool:
    from shutil import which

    return which(program) is not None


@PAUSED.row(
    "a process that runs tasks, for longer than its heartbeat",
    "another says that its task is lost, or runs it again if that was allowed; the sleeper changes nothing of it",
)
def paused_tasks(trial: Trial) -> None:
    with tempfile.TemporaryDirectory(prefix="paused") as name:
        folder = Path(name)
        store, log = f"sqlite:///{folder / 'tasks.db'}", folder / "log"
        sleeper, other = (Worker(store, log, fresh=True, JOBS_HEARTBEAT="2") for _ in range(2))
        try:
            ids = {}
            for tool in ("once", "again"):
                sleeper.start(tool, tool, 30.2)
                answer = sleeper.receive(time.monotonic() + PATIENCE)
                assert answer is not None
                ids[tool] = answer["result"]["taskId"]
            wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2)
            for _ in range(5):
                with stopped(sleeper.process.pid):
                    try:
                        other.tasks("tasks/get", list(ids.values()))
                    except Broken as locked:
                        # It was stopped in the middle of a commit. Others are told, and can do nothing about it.
                        trial.expect("kept locked by another process" in str(locked), str(locked))
                        continue
                    _wait_for(other, ids["once"], "failed")
                    _wait_for(other, ids["again"], "completed")
                    break
            # It wakes, and finds that its tasks are over.
            for who in (sleeper, other):
                found = who.tasks("tasks/get", list(ids.values()))
                once, again = found[ids["once"]], found[ids["again"]]
                is_lost = once["status"] == "failed" and LOST in once["statusMessage"]
                trial.expect(is_lost, f"a lost task is {once['status']}: {once.get('statusMessage')}")
                trial.expect(again["status"] == "completed", f"a task that may run again is {again['status']}")
            lines = log.read_text().splitlines()
            trial.expect(lines.count("begin once") == 1, f"ran twice: {lines}")
            trial.expect(lines.count("end again") == 1, f"came to its end twice: {lines}")
        finally:
            sleeper.close()
            other.close()


def _wait_for(worker: Worker, id: str, status: str) -> None:
    wait_until(lambda: worker.tasks("tasks/get", [id])[id]["status"] == status, 60)
