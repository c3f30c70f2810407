"""No descriptors and no memory are left."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from defserve.client import Client
from defserve.client.targets import connect_url
from defserve.errors import DefserveError
from tests.attack.arena import Served
from tests.attack.speaking.sockets import connect
from tests.attack.trial import Trial
from tests.chaos.fault import SERVERS, Faults, kind, marks_of
from tests.waiting import wait_until

SCARCE = Faults("descriptors and memory")
FAMILIES = (SCARCE,)

MB = 1 << 20


def _limit(served: Served, what: int, most: int) -> None:
    resource.prlimit(served.process.pid, what, (most, resource.getrlimit(what)[1]))


def _cpu(served: Served) -> float:
    words = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


@SCARCE.row(
    "an HTTP server has no descriptors left",
    "who is connected is answered; the server does not spin; new clients are hung up on, and taken when there is room",
)
def no_descriptors(trial: Trial) -> None:
    served = trial.arena.serve(kind(), fresh=True)
    url = f"http://{served.place.authority}/mcp"

    async def run() -> None:
        async with Client(await connect_url(url), timeout=10) as client:
            await client.call("mark", word="before")
            _limit(served, resource.RLIMIT_NOFILE, served.open_files + 10)
            held = [connect(served.place) for _ in range(60)]
            try:
                await asyncio.sleep(0.5)
                before, began = _cpu(served), time.monotonic()
                await asyncio.sleep(3)
                share = (_cpu(served) - before) / (time.monotonic() - began)
                trial.expect(share < 0.3, f"the server uses {share:.0%} of a processor for nothing")
                trial.notes.append(f"{share:.0%} of a processor")
                try:
                    # `mark` opens a file, which it cannot: `slow` needs none.
                    said = await client.call("slow", seconds=0.01)
                except DefserveError as error:
                    said = str(error)
                trial.expect(said == "slept", f"who was connected got {said!r}")
                try:
                    failed = await client.call("open_file", path=__file__)
                except DefserveError as error:
                    failed = str(error)
                trial.expect("Too many open files" in failed, f"a tool that opens a file said {failed!r}")
            finally:
                for one in held:
                    one.close()
            said = None
            for _ in range(100):
                with suppress(DefserveError):
                    async with Client(await connect_url(url), timeout=2) as another:
                        said = await another.call("mark", word="after")
                        break
                await asyncio.sleep(0.1)
            trial.expect(said == "marked after", f"with room again, a new client got {said!r}")

    asyncio.run(run())
    log = served.new_log
    trial.expect(len(log) < 20_000, f"the log has {len(log)} characters about it")
    trial.expect({"before", "after"} <= set(marks_of(served)), "acknowledged and lost")
    trial.arena.drop(served)


_CLIENT = """
import asyncio, os, resource, sys
from defserve.errors import DefserveError
from defserve.client import Client, ProcessLink
from defserve.client.targets import connect_url

async def attempt(open_link):
    try:
        async with Client(await open_link(), timeout=5) as client:
            return "answered " + await client.call("slow", seconds=0)
    except DefserveError as error:
        return f"{type(error).__name__}: {error}"

async def main():
    url, file = sys.argv[1:]
    ways = {"http": lambda: connect_url(url), "ws": lambda: connect_url(url.replace("http", "ws")),
            "process": lambda: ProcessLink.spawn(sys.executable, [file])}
    for open_link in ways.values():
        await attempt(open_link)       # imports
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for name, open_link in ways.items():
        print(name, (await attempt(open_link)).replace("\\n", " "))
    for one in held:
        os.close(one)
    for name, open_link in ways.items():
        if name != "ws":
            print("again", name, await attempt(open_link))

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
asyncio.run(main())
"""


@SCARCE.row("a client has no descriptors left", "connecting fails and says why; with room it connects")
def client_without_descriptors(trial: Trial) -> None:
    served = trial.arena.serve(kind(), fresh=True)
    command = [sys.executable, "-c", _CLIENT, f"http://{served.place.authority}/mcp", f"{SERVERS}/marking.py"]
    env = {**trial.arena.environment, "ATTACK_MARKS": str(trial.arena.folder / "client-marks")}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired as slow:
        trial.expect(False, f"the client hangs; it said {slow.stdout!r}")
        return
    lines = done.stdout.splitlines()
    trial.expect("Traceback" not in done.stderr and len(lines) == 5, f"{lines} {done.stderr[-500:]}")
    for line in lines[:3]:
        trial.expect("Too many open files" in line, f"it does not say why: {line}")
    for line in lines[3:]:
        trial.expect("answered slept" in line, f"with room: {line}")
    trial.notes.extend(lines[:3])


@SCARCE.row(
    "a tool takes more memory than there is",
    "its call fails, and the log says why under the id that the call was given; others are answered",
    growth=400,
)
def no_memory(trial: Trial) -> None:
    served = trial.arena.serve(kind(), fresh=True)
    url = f"http://{served.place.authority}/mcp"

    async def run() -> None:
        async with Client(await connect_url(url), timeout=10) as client:
            await client.call("mark", word="before")
            _limit(served, resource.RLIMIT_AS, _address_space(served) + 300 * MB)
            for n in range(3):
                try:
                    said = str(await client.call("fill", megabytes=2000))
                except DefserveError as error:
                    said = str(error)
                told = said.partition("(id ")[2].rstrip(")")
                is_told = bool(told) and told in served.log and "MemoryError" in served.log
                trial.expect(is_told, f"a call that takes too much said {said!r}, and the log {served.log[-200:]!r}")
                answer = await client.call("mark", word=f"after-{n}")
                trial.expect(answer == f"marked after-{n}", f"another call said {answer!r}")
            _limit(served, resource.RLIMIT_AS, resource.RLIM_INFINITY)

    asyncio.run(run())
    trial.expect(served.is_alive, f"the server has ended: {served.log[-300:]}")
    trial.expect({"before", "after-0", "after-1", "after-2"} <= set(marks_of(served)), "acknowledged and lost")
    trial.arena.drop(served)


@SCARCE.row(
    "many large messages and little memory",
    "each is answered or refused; or the process ends and says why: its JSON library does where an allocation fails",
    growth=400,
)
def large_messages(trial: Trial) -> None:
    served = trial.arena.serve(kind(), fresh=True)
    url = f"http://{served.place.authority}/mcp"
    answered = 0

    async def large(n: int) -> None:
        nonlocal answered
        try:
            async with Client(await connect_url(url), timeout=20) as client:
                said = await client.call("mark", word=f"{n}-" + "x" * (3 * MB))
                trial.expect(said.startswith(f"marked {n}-x"), f"a large call said {said[:80]!r}")
                answered += 1
        except DefserveError as error:
            trial.notes[:] = [str(error)[:100]]

    async def run() -> None:
        _limit(served, resource.RLIMIT_AS, _address_space(served) + 120 * MB)
        await asyncio.gather(*(large(n) for n in range(40)))
        if not served.is_alive:
            is_told = "memory allocation of" in served.log
            trial.expect(is_told, f"the server has ended ({served.process.poll()}): {served.log[-500:]}")
            trial.notes.append("the process ended")
            return
        _limit(served, resource.RLIMIT_AS, resource.RLIM_INFINITY)
        async with Client(await connect_url(url), timeout=10) as client:
            trial.expect(await client.call("mark", word="after") == "marked after", "a small call was not answered")

    asyncio.run(run())
    trial.notes.append(f"{answered} of 40 answered")
    marked = {mark.partition("-")[0] for mark in marks_of(served)}
    trial.expect(answered <= len(marked), "acknowledged and lost")
    trial.arena.drop(served)


def _address_space(served: Served) -> int:
    words = Path(f"/proc/{served.process.pid}/statm").read_text().split()
    return int(words[0]) * resource.getpagesize()


@SCARCE.row("no thread can be started", "a sync tool fails and says so, or runs in a thread there is; async ones go on")
def no_threads(trial: Trial) -> None:
    served = trial.arena.serve(kind(), fresh=True)
    url = f"http://{served.place.authority}/mcp"

    async def run() -> None:
        async with Client(await connect_url(url), timeout=10) as client:
            # A thread wants 8 MB for its stack.
            _limit(served, resource.RLIMIT_AS, _address_space(served) + 4 * MB)
            calls = [client.call("mark", word=f"thread-{n}") for n in range(8)]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                clear = isinstance(outcome, str) or (
                    isinstance(outcome, DefserveError) and "PeerTimeout" not in type(outcome).__name__
                )
                trial.expect(clear, f"a sync tool: {outcome!r}")
                trial.notes[:] = [str(outcome)]
            trial.expect(await client.call("slow", seconds=0) == "slept", "an async tool was not answered")
            _limit(served, resource.RLIMIT_AS, resource.RLIM_INFINITY)
            trial.expect(await client.call("mark", word="after") == "marked after", "a sync tool was not answered")

    asyncio.run(run())
    wait_until(lambda: "after" in marks_of(served))
    trial.arena.drop(served)
