"""Workers that share sessions are killed, and their Redis is: no session, event or answer is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from tests.faults.killing import Tally
from tests.faults.process import Broken
from tests.faults.sessions.client import Client
from tests.faults.sessions.driver import Driver, Official, installed
from tests.faults.sessions.group import Group, group
from tests.faults.sessions.hosts import Hosts

WORKERS, FEW_WORKERS, CLIENTS = 5, 2, 2
REDIS_EVERY = 6
# Seconds between two faults, at most; until news has reached everybody after the last; until one client has it.
PAUSE, SETTLING, HEARING = 3.0, 15.0, 60.0
THINKING = 0.05
MOST_SHOWN, LONGEST_SHOWN = 20, 400
COLUMNS = ("answered", "told", "cut", "refused", "resumed", "events", "again", "updates")


def kill_sharing(seed: int, runs: int) -> Tally:
    """Faults under load from official clients and our own. Prints a table. Raises Broken."""
    return asyncio.run(_kill_all(seed, runs, installed(), WORKERS, PAUSE))


def kill_sharing_here(seed: int, runs: int) -> Tally:
    """The same with our own clients alone, few workers, and faults that follow closely."""
    return asyncio.run(_kill_all(seed, runs, [], FEW_WORKERS, 0.6))


async def talk(client: Client, random: Random, over: asyncio.Event) -> None:
    """Calls of all kinds, one after the other, each checked."""
    while not over.is_set():
        kind, token = random.choice(("echo", "count", "ask", "touch")), f"{client.name}/{client.last + 1}"
        if kind == "count":
            total, seen = random.randint(1, 40), list[Any]()
            text = await client.call("count", {"total": total, "token": token}, seen)
            numbers = [message["params"]["data"] for message in seen]
            if numbers != [f"{token} {number}" for number in range(len(numbers))]:
                raise Broken(f"{client.name} was told {numbers}")
            if text is not None and (text != f"{total} counted" or len(numbers) != total):
                raise Broken(f"{client.name} was told {text} after {len(numbers)} of {total}")
        elif kind == "ask":
            text = await client.call("ask", {"token": token}, [])
            if text is not None and text != f"{client.name} {client.last}":
                raise Broken(f"{client.name} {client.last} got the answer of {text}")
        else:
            given = "text" if kind == "echo" else "uri"
            text = await client.call(kind, {given: f"memo://{client.name}/1"})
            if text not in (None, f"memo://{client.name}/1"):
                raise Broken(f"{client.name} got {text}")
            client.touched.update([text] if kind == "touch" else [])
        await asyncio.sleep(random.uniform(0, 2 * THINKING))


class OwnClients:
    """Two clients of ours, one session each, which look at ids of events too."""

    def __init__(self, running: Group, seed: int) -> None:
        names = [(f"c{number}", Random(seed + number)) for number in range(CLIENTS)]
        self.clients = [Client(name, random, lambda: [running.port]) for name, random in names]
        self._watched: list[list[tuple[str, str]]] = []
        self._over, self._random = asyncio.Event(), Random(seed)
        self._talking: list[asyncio.Task[None]] = []
        self._watching: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for client in self.clients:
            await client.open()
            await client.repeat("resources/subscribe", {"uri": f"memo://{client.name}/1"})
            self._watched.append([])
            self._watching.append(asyncio.create_task(client.watch(self._watched[-1])))
            self._talking.append(asyncio.create_task(talk(client, self._random, self._over)))

    def check(self) -> None:
        for task in (*self._talking, *self._watching):
            if task.done():
                task.result()

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._talking)
        self.check()
        for client, events in zip(self.clients, self._watched, strict=True):
            # Of a change whose call was interrupted nobody knows.
            most = client.touched.total()
            least = most - client.touched[None]
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARING):
                    while _updates(events) < least:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            if not least <= _updates(events) <= most:
                raise Broken(f"{client.name} was told of {_updates(events)} updates, of {least} to {most}")
            if len(set(events)) != len(events):
                raise Broken(f"{client.name} was told of a change twice: {events}")

    async def kill(self) -> None:
        for task in (*self._talking, *self._watching):
            task.cancel()
        await asyncio.gather(*self._talking, *self._watching, return_exceptions=True)

    @property
    def counts(self) -> Counter[str]:
        found = Counter[str]()
        for client in self.clients:
            found.update(answered=client.answered, told=client.told, cut=client.cut, resumed=client.resumed)
        found["updates"] = sum(map(_updates, self._watched))
        return found


def _updates(events: list[tuple[str, str]]) -> int:
    return sum(method == "notifications/resources/updated" for _, method in events)


async def _kill_all(seed: int, runs: int, official: list[Official], workers: int, pause: float) -> Tally:
    random, drivers, ours = Random(seed), list[Driver](), list[str]()
    async with group(workers) as running:
        own, hosts = OwnClients(running, seed), Hosts(running, seed)
        try:
            for each in official:
                drivers.append(await Driver.start(each, running.url, seed, CLIENTS))
            for driver in drivers:
                driver.say("begin")
            await own.begin()
            await hosts.begin()
            kills, restarts = await _break(running, random, runs, pause, (own, hosts))
            for driver in drivers:
                driver.say("over")
            ours = [
                str(found) for found in await asyncio.gather(own.end(), hosts.end(), return_exceptions=True) if found
            ]
            await asyncio.gather(*(driver.until_quiet(CLIENTS) for driver in drivers))
            await asyncio.sleep(SETTLING if drivers else 0)
            for driver in drivers:
                driver.say("quiet")
            await asyncio.gather(*(driver.end() for driver in drivers))
        finally:
            await own.kill()
            await hosts.kill()
            await asyncio.gather(*(driver.kill() for driver in drivers))
            problems = [*ours, *(text for driver in drivers for text in driver.problems)]
    problems += _lists(drivers)
    for text in problems[:MOST_SHOWN]:
        print(f"             {text[:LONGEST_SHOWN]}")
    if drivers:
        _print_table(kills, restarts, drivers, own, hosts)
    if problems:
        first, said = problems[0][:LONGEST_SHOWN], running.said[-3:]
        raise Broken(f"{len(problems)} problems, the first is {first}; the workers said {said}")
    counts = sum((driver.counts for driver in drivers), own.counts + hosts.counts)
    return Tally(runs, acknowledged=counts["answered"], rollbacks=counts["told"])


async def _break(
    running: Group, random: Random, runs: int, pause: float, ours: tuple[OwnClients, Hosts]
) -> tuple[int, int]:
    """How many workers were killed, and how often Redis was."""
    kills = 0
    for run in range(runs):
        await running.until_ready()
        await asyncio.sleep(random.uniform(0, pause))
        if run % REDIS_EVERY == REDIS_EVERY - 1:
            await running.restart_redis(random.uniform(0.0, 1.0))
        else:
            kills += 1
            running.kill_one(random)
        for each in ours:
            each.check()
    return kills, runs - kills


def _lists(drivers: list[Driver]) -> list[str]:
    """Each session hears of each change of a list once. Of one whose call was interrupted nobody knows."""
    least = sum(driver.counts["announced"] for driver in drivers)
    most = least + sum(driver.counts["perhaps_announced"] for driver in drivers)
    heard = {name: times for driver in drivers for name, times in driver.lists.items()}
    return [
        f"{name} was told of {times} changes of lists, of {least} to {most}; others of {max(heard.values())}"
        for name, times in heard.items()
        if not least <= times <= most
    ]


def _print_table(kills: int, restarts: int, drivers: list[Driver], own: OwnClients, hosts: Hosts) -> None:
    print(f"             {kills} workers and {restarts} Redis killed")
    rows = [(driver.official.name, driver.counts) for driver in drivers] + [("raw HTTP", own.counts)]
    rows.append(("raw HTTP, MCPL host", hosts.counts))
    rows.append(("all", sum((counts for _, counts in rows), Counter[str]())))
    print(f"             {'':26}" + "".join(f"{column:>10}" for column in COLUMNS))
    for name, counts in rows:
        print(f"             {name:26}" + "".join(f"{counts[column]:>10,}" for column in COLUMNS))
