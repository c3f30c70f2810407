"""The official Python client, of either major version and era, calls until its input ends, and judges what it hears.

The only argument is the plan: `url`, `name`, `version`, `seed`, how many `clients`. It tells problems, and at last its
counts, in lines of JSON. Nothing of the project is here: it is run by the interpreter of the client's package.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from random import Random
from typing import Any

import mcp
from mcp.client.streamable_http import streamable_http_client
from patience import CUT_OFF, IS_OLD, PatientTransport, httpx

types = import_module("mcp.types" if IS_OLD else "mcp_types")
PLAN: dict[str, Any] = json.loads(sys.argv[1])
STATELESS = "2026-07-28"
IS_STATELESS = PLAN["version"] == STATELESS
CALL_SECONDS, HEARING_SECONDS = 150, 60
PAUSE = 0.15
AWAY = "The store cannot be reached"
KINDS = ("echo", "count", "count", "ask", "ask", "touch", "announce")
COUNTS = Counter[str]()
# 2.x says that what belongs to the handshake era is old.
warnings.simplefilter("ignore")


def problem(text: str) -> None:
    print(json.dumps({"problem": text}), flush=True)


async def eventually(is_there: Callable[[], bool], seconds: float = HEARING_SECONDS) -> bool:
    for _ in range(int(seconds / 0.05)):
        if is_there():
            return True
        await asyncio.sleep(0.05)
    return is_there()


class Talker:
    """One client. `logs`, `updates`, `lists` are what it heard."""

    def __init__(self, name: str, random: Random) -> None:
        self.name, self._random = name, random
        self.session: Any = None
        self.lost: list[str] = []
        self.logs: dict[str, list[int]] = {}
        self.updates = Counter[str]()
        self.lists = 0
        self._numbers = 0

    # -- what the client is given ------------------------------------------------------------------------

    async def elicited(self, context: Any, params: Any) -> Any:
        await asyncio.sleep(self._random.choice((0, 0, 0.2, 1)))
        return types.ElicitResult(action="accept", content={"value": f"{self.name} {params.message}"})

    async def logged(self, params: Any) -> None:
        token, _, number = str(params.data).rpartition(" ")
        self.logs.setdefault(token, []).append(int(number))

    async def told(self, message: Any) -> None:
        message = getattr(message, "root", message)
        kind = type(message).__name__
        if "ResourceUpdated" in kind:
            self.updates[str(message.params.uri)] += 1
        elif "ListChanged" in kind:
            self.lists += 1

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Talker]:
        self._network = PatientTransport(self.lost)
        client = httpx.AsyncClient(transport=self._network, timeout=httpx.Timeout(CALL_SECONDS))
        way = streamable_http_client(PLAN["url"], http_client=client)
        handlers = {"elicitation_callback": self.elicited, "logging_callback": self.logged}
        handlers["message_handler"] = self.told
        if IS_OLD:
            async with way as streams, mcp.ClientSession(*streams[:2], **handlers) as self.session:
                await self.session.initialize()
                yield self
        else:
            mode = {"mode": "auto", "log_level": "debug"} if IS_STATELESS else {"mode": "legacy"}
            async with mcp.Client(way, **mode, **handlers) as self.session:
                if (self.session.protocol_version == STATELESS) != IS_STATELESS:
                    problem(f"{self.name} speaks {self.session.protocol_version}")
                yield self

    # -- what it does ------------------------------------------------------------------------------------

    async def call(self, tool: str, **arguments: Any) -> str | None:
        """The text of a result. None: the call was interrupted, and this client was told, or it was cut off."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                result = await self.session.call_tool(tool, arguments)
        except TimeoutError:
            problem(f"{self.name}: {tool} {arguments} hangs")
            return None
        except Exception as error:
            return self._not_answered(tool, error)
        text = " ".join(block.text for block in result.content)
        if result.isError if IS_OLD else result.is_error:
            if not text.startswith(AWAY):
                problem(f"{self.name}: {tool}: {text}")
            COUNTS["refused"] += 1
            return None
        COUNTS["answered"] += 1
        return text

    def _not_answered(self, what: str, error: Exception) -> None:
        said = getattr(error, "error", None)
        if said is not None and said.code == CUT_OFF:
            COUNTS["cut"] += 1
        elif said is not None and isinstance(said.data, dict) and said.data.get("type") == "interrupted":
            COUNTS["told"] += 1
        else:
            problem(f"{self.name}: {what}: {error!r}")

    async def repeat(self, what: str, asking: Callable[[], Awaitable[Any]]) -> None:
        """Ask something that may be asked again, until it is answered."""
        before = COUNTS["cut"] + COUNTS["told"]
        while True:
            try:
                await asking()
                return
            except Exception as error:
                self._not_answered(what, error)
                if COUNTS["cut"] + COUNTS["told"] == before:
                    return

    def token(self) -> str:
        self._numbers += 1
        return f"{self.name}/{self._numbers}"

    async def echo(self, token: str) -> None:
        if (text := await self.call("echo", text=token)) not in (None, token):
            problem(f"{self.name}: echo {token} got {text}")

    async def ask(self, token: str) -> None:
        if (text := await self.call("ask", token=token)) not in (None, f"{self.name} {token}"):
            problem(f"{self.name}: the answer to {token} was {text}")

    async def announce(self, token: str) -> None:
        text = await self.call("announce", token=token)
        COUNTS["announced" if text is not None else "perhaps_announced"] += 1

    async def count(self, token: str) -> None:
        total = self._random.randint(1, 60)
        text = await self.call("count", total=total, token=token)
        if text is not None:
            await eventually(lambda: len(self.logs.get(token, ())) >= total)
        numbers = self.logs.pop(token, [])
        COUNTS["events"] += len(numbers)
        if numbers != list(range(len(numbers))) or (text is not None and len(numbers) != total):
            problem(f"{self.name}: of {total} events of {token}, whose result is {text}, came {numbers}")

    async def touch(self, token: str) -> None:
        uri = f"memo://{token}"
        if IS_STATELESS:
            await self._touch_listening(uri)
            return
        await self.repeat("subscribe", lambda: self.session.subscribe_resource(uri))
        text = await self.call("touch", uri=uri)
        if text is not None and not await eventually(lambda: self.updates[uri] > 0):
            problem(f"{self.name} was not told of {uri}")
        COUNTS["updates"] += self.updates[uri]
        await self.repeat("unsubscribe", lambda: self.session.unsubscribe_resource(uri))

    async def _touch_listening(self, uri: str) -> None:
        heard: list[str] = []
        is_cut = False

        async def hear(events: Any) -> None:
            nonlocal is_cut
            with suppress(Exception):
                async for event in events:
                    heard.append(str(getattr(event, "uri", "")))  # noqa: PERF401 (each at once)
            is_cut = True

        try:
            async with self.session.listen(resource_subscriptions=[uri]) as events:
                hearing = asyncio.create_task(hear(events))
                text = await self.call("touch", uri=uri)
                if text is not None and not await eventually(lambda: is_cut or bool(heard)):
                    problem(f"{self.name} was not told of {uri}")
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
        except Exception as error:
            if not is_cut:
                self._not_answered("listen", error)
        COUNTS["updates"] += len(heard)
        COUNTS["cut"] += is_cut
        if len(heard) > 1:
            problem(f"{self.name} was told of {uri} {len(heard)} times")

    async def talk(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await getattr(self, self._random.choice(KINDS))(self.token())
            await asyncio.sleep(self._random.uniform(0, 2 * PAUSE))

    def close(self) -> None:
        for uri, times in self.updates.items():
            if times > 1:
                problem(f"{self.name} was told of {uri} {times} times")
        for said in self.lost:
            problem(f"{self.name} is not known any more: {said}")
        COUNTS["resumed"] += self._network.resumed
        if not IS_STATELESS:
            print(json.dumps({"lists": [self.name, self.lists]}), flush=True)


class Phases:
    """The campaign says when to begin, to end, and that all the others have ended."""

    def __init__(self) -> None:
        self.begun, self.over, self.quiet = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def follow(self) -> None:
        for event in (self.begun, self.over, self.quiet):
            await asyncio.to_thread(sys.stdin.readline)
            event.set()


async def run_one(number: int, ready: asyncio.Semaphore, phases: Phases) -> None:
    name = f"{PLAN['name']}.{number}"
    talker = Talker(name, Random(f"{PLAN['seed']} {name}"))
    try:
        async with talker.opened():
            ready.release()
            await phases.begun.wait()
            # Two at a time: answers and events of one must not reach the other.
            await asyncio.gather(*(talker.talk(phases.over) for _ in range(2)))
            print(json.dumps({"quiet": name}), flush=True)
            await phases.quiet.wait()
            await talker.echo(talker.token())
            talker.close()
    except Exception as error:
        problem(f"{name} is lost: {error!r} {getattr(error, 'exceptions', '')}")
    finally:
        ready.release()


async def main() -> None:
    phases, ready = Phases(), asyncio.Semaphore(0)
    clients = [asyncio.create_task(run_one(n, ready, phases)) for n in range(PLAN["clients"])]
    for _ in clients:
        await ready.acquire()
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.gather(phases.follow(), *clients)
    print(json.dumps({"counts": COUNTS}), flush=True)


asyncio.run(main())
