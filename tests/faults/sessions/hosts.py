"""Hosts that speak MCPL to workers that may die: events and messages arrive, each counts once, in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

from tests.faults.process import Broken
from tests.faults.sessions.client import Client, Json
from tests.faults.sessions.group import Group

HOSTS, MOST_AT_ONCE = 2, 6
THINKING = 0.1
# Until what was pushed last has arrived. A push whose answer was lost is sent again after a minute.
HEARING_SECONDS = 90.0
UNKNOWN_CHANNEL = -32023
TICK, KINDS = "tick", ("push", "say", "push_to_all")


class Host(Client):
    """One session. `taken` has the numbers of each series of events or messages, in their order, each once.

    A server that does not know whether an event has arrived sends it again with its id: `again` counts that.
    """

    capabilities: Json = {
        "experimental": {
            "mcpl": {
                "version": "0.4",
                "pushEvents": True,
                "featureSets": True,
                "channels": {"register": True, "publish": True, "observe": True, "lifecycle": True},
            }
        }
    }

    def __init__(self, name: str, random: Random, running: Group) -> None:
        super().__init__(name, random, lambda: [running.port])
        self.taken: dict[str, list[int]] = {}
        self._ids: set[str] = set()
        self.again, self.is_known = 0, False

    def _decided(self, question: Json) -> Json:
        params: Json = question.get("params", {})
        match question["method"]:
            case "push/event":
                return {"accepted": True, "inferenceId": self._take(params["eventId"])}
            case "channels/incoming":
                return {"results": [self._judged(message["messageId"]) for message in params["messages"]]}
            case _:
                return {}

    def _judged(self, id: str) -> Json:
        return {"messageId": id, "accepted": True, "conversationId": self._take(id)}

    def _take(self, id: str) -> str:
        if id in self._ids:
            self.again += 1
        else:
            self._ids.add(id)
            series, _, number = id.rpartition(" ")
            self.taken.setdefault(series, []).append(int(number))
        return f"{self.name} has {id}"

    def _result(self, request: Json, message: Any) -> str | None:
        """What this session has opened is known to other processes a moment later, and then to all of them."""
        if message and message.get("error", {}).get("code") == UNKNOWN_CHANNEL and not self.is_known:
            return None
        self.is_known = self.is_known or request["params"]["name"] == "say"
        return super()._result(request, message)

    async def until_answered(self, tool: str, arguments: Json) -> str:
        """Call a tool, again if its process died: what it sends has the same ids."""
        while (text := await self.call(tool, arguments)) is None:
            pass
        return text


class Hosts:
    """Some hosts. `receive_event` are the series that all of them must hear, by how long they are."""

    def __init__(self, running: Group, seed: int) -> None:
        self.hosts = [Host(f"h{number}", Random(seed + 100 + number), running) for number in range(HOSTS)]
        self._random, self._over = Random(seed), asyncio.Event()
        self._watched: list[list[tuple[str, str]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._talking: list[asyncio.Task[None]] = []
        self.receive_event: dict[str, int] = {}

    async def begin(self) -> None:
        for host in self.hosts:
            await host.open()
            await host.repeat("channels/open", {"type": "room", "address": host.name})
            self._watched.append([])
            self._tasks.append(asyncio.create_task(host.watch(self._watched[-1])))
        # Not before: what the first pushes to all is owed only to those who are there.
        self._talking += [asyncio.create_task(self._talk(host)) for host in self.hosts]

    async def _talk(self, host: Host) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            kind, total = self._random.choice(KINDS), self._random.randint(1, MOST_AT_ONCE)
            token = f"{kind}/{host.name}/{turn}"
            given = {"address": host.name} if kind == "say" else {}
            text = await host.until_answered(kind, {"token": token, "total": total, **given})
            if kind == "push_to_all":
                self.receive_event[token] = total
            else:
                self._check_receipts(host, token, total, text)
            await asyncio.sleep(self._random.uniform(0, 2 * THINKING))

    def _check_receipts(self, host: Host, token: str, total: int, text: str) -> None:
        wanted = [f"{host.name} has {token} {number}" for number in range(total)]
        if text.split("\n") != wanted:
            raise Broken(f"{host.name} got other receipts for {total} of {token}: {text}")
        if host.taken.get(token) != list(range(total)):
            raise Broken(f"{host.name} got {host.taken.get(token)} of {total} of {token}")

    def check(self) -> None:
        for task in (*self._tasks, *self._talking):
            if task.done():
                task.result()

    async def end(self) -> None:
        """When the last fault is over: everything arrives, and the ticks go on."""
        self._over.set()
        await asyncio.gather(*self._talking)
        before = [len(host.taken.get(TICK, ())) for host in self.hosts]
        try:
            async with asyncio.timeout(HEARING_SECONDS):
                while any(map(self._missing, self.hosts)) or any(  # noqa: ASYNC110
                    len(host.taken.get(TICK, ())) <= had for host, had in zip(self.hosts, before, strict=True)
                ):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            missing = {host.name: self._missing(host) for host in self.hosts}
            ticks = [len(host.taken.get(TICK, ())) for host in self.hosts]
            raise Broken(f"events did not arrive: {missing}; ticks {before}, later {ticks}") from None
        self.check()
        for host, events in zip(self.hosts, self._watched, strict=True):
            self._check_order(host, events)

    def _missing(self, host: Host) -> list[str]:
        return [series for series, total in self.receive_event.items() if len(host.taken.get(series, ())) < total]

    def _check_order(self, host: Host, events: list[tuple[str, str]]) -> None:
        if len(set(events)) != len(events):
            raise Broken(f"{host.name} was told something twice: {events}")
        for series, numbers in host.taken.items():
            if numbers != list(range(len(numbers))):
                raise Broken(f"{host.name} heard {series} in this order: {numbers}")

    async def kill(self) -> None:
        for task in (*self._tasks, *self._talking):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._talking, return_exceptions=True)

    @property
    def counts(self) -> Counter[str]:
        found = Counter[str]()
        for host in self.hosts:
            found.update(answered=host.answered, told=host.told, cut=host.cut, resumed=host.resumed, again=host.again)
            found["events"] += sum(map(len, host.taken.values()))
        return found
