"""The clients of a cluster, in one process on their machine: raw requests through the load balancer.

python -m tests.cluster.load PLAN

The plan is JSON: `host`, `port`, `tokens`, `seed`, `history`, `pause`. They work until the line `over` comes, and say
`quiet` when their last operations have ended. After the line `final` they read everything, and say `done`.
Nothing is judged here: what came is written into the history.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from itertools import count
from random import Random
from typing import Any

from tests.cluster.history import HistoryWriter, Outcome, make_trace
from tests.faults.sessions.client import GONE, Response
from tests.listening import request
from tests.raw import PREFIX, STATELESS

Json = dict[str, Any]

HANDSHAKE = "2025-11-25"
CALL_SECONDS, STREAM_SECONDS, FINAL_SECONDS = 25.0, 90.0, 90.0
# A server says something every 15 seconds, if only a comment.
SILENT_SECONDS = 20.0
TASKS_AT_ONCE = 3
OVER = ("completed", "failed", "cancelled")
# What a process says that has refused a call before it ran.
REFUSED_TYPES = ("draining", "overloaded")
Said = tuple[Outcome, Any]


def is_named(params: Json) -> bool:
    return "name" in params.get("arguments", {})


class Place:
    """The load balancer, and the token of a caller."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self.host, self.port, self.token = host, port, token

    async def send(self, message: Json | None, *lines: str) -> tuple[Response, Any]:
        """The head of what is answered, and its body, unless it is a stream. Raises one of GONE."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        body = json.dumps({"jsonrpc": "2.0", **message}).encode() if message is not None else b""
        head = (
            f"host: {self.host}:{self.port}",
            f"authorization: Bearer {self.token}",
            "accept: application/json, text/event-stream",
            "connection: close",
            *lines,
        )
        try:
            writer.write(request(*head, body=body, verb="POST" if message is not None else "GET"))
            await writer.drain()
            status = (await reader.readline()).split()
            if len(status) < 2:
                raise EOFError
            headers: dict[str, str] = {}
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            response = Response(int(status[1]), headers, reader, writer)
            if response.is_stream:
                return response, None
            data = (
                await reader.readexactly(int(headers["content-length"]))
                if "content-length" in headers
                else await reader.read()
            )
        except BaseException:
            writer.close()
            raise
        writer.close()
        try:
            return response, json.loads(data) if data else None
        except ValueError:
            return response, {"text": data[:200].decode(errors="replace")}


class Caller:
    """Calls without a session."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ids = count(1)

    async def ask(self, method: str, params: Json) -> Said:
        meta: Json = {
            PREFIX + "protocolVersion": STATELESS,
            PREFIX + "clientCapabilities": {"extensions": {PREFIX + "tasks": {}}},
            **(
                {"traceparent": f"00-{make_trace(params['arguments']['name'])}-{'1' * 16}-01"}
                if is_named(params)
                else {}
            ),
        }
        message = {"id": next(self._ids), "method": method, "params": {**params, "_meta": meta}}
        lines = [f"mcp-protocol-version: {STATELESS}", f"mcp-method: {method}"]
        if (name := params.get("name") or params.get("taskId")) is not None:
            lines.append(f"mcp-name: {name}")
        try:
            async with asyncio.timeout(CALL_SECONDS):
                response, body = await self._place.send(message, *lines)
                if response.is_stream:
                    body = None
                    with closing(response):
                        async for _, said in response.events():
                            if said is not None and "id" in said and "method" not in said:
                                body = said
                                break
        except TimeoutError:
            return "unknown", "no answer in time"
        except ConnectionRefusedError:
            return "failed", "refused"
        except (*GONE, ValueError) as error:
            return "unknown", f"cut: {type(error).__name__}"
        return judge(response.status, body)

    async def call(self, tool: str, **arguments: Any) -> Said:
        outcome, result = await self.ask("tools/call", {"name": tool, "arguments": arguments})
        return (outcome, result) if outcome != "ok" else read_result(result)


async def watch_silence(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The same events. Raises ConnectionResetError if none comes for too long: half of the connection may be gone."""
    while True:
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                found = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ConnectionResetError("silence") from None
        yield found


def judge(status: int, body: Any) -> Said:
    """What became of a request, by its answer."""
    match body:
        case {"result": result}:
            return "ok", result
        case {"error": {"message": message, "data": {"type": kind}}}:
            return ("failed" if kind in REFUSED_TYPES else "unknown"), f"{status} {kind}: {message}"
        case {"error": {"message": message}}:
            return "unknown", f"{status}: {message}"
        case _:
            pass
    # The balancer has no node, and has sent it to none.
    outcome: Outcome = "failed" if status == 503 and "No server" in str(body) else "unknown"
    return outcome, f"{status}: {str(body)[:120]}"


def read_result(result: Any) -> Said:
    """What a tool has answered."""
    if "taskId" in result or "task" in result:
        return "ok", result
    text = result["content"][0]["text"] if result.get("content") else ""
    if result.get("isError"):
        return "unknown", text
    try:
        return "ok", json.loads(text)
    except ValueError:
        return "ok", text


class Clients:
    """All clients of one process."""

    def __init__(self, plan: Json) -> None:
        self._history = HistoryWriter(plan["history"], "raw")
        self._places = [Place(plan["host"], plan["port"], token) for token in plan["tokens"]]
        self._callers = [Caller(place) for place in self._places]
        self._seed, self._pause = plan["seed"], plan["pause"]
        self.over = asyncio.Event()
        self._names = count(1)
        self._start = ""
        self._tasks: dict[str, tuple[int, str]] = {}
        self._sessions: list[SessionClient] = []

    def clients(self) -> list[Awaitable[None]]:
        lanes = range(len(self._places))
        return [
            *(self._keep_ledger(f"ledger{lane}{who}", lane) for lane in lanes for who in "ab"),
            *(self._run_tasks(f"tasks{lane}", lane) for lane in lanes[:2]),
            *(self._emit(f"emitter{lane}", lane) for lane in lanes[:2]),
            *(self._poll(f"poller{lane}", lane) for lane in lanes[:2]),
            self._wipe("wiper", 0),
            *(self._talk(f"session{number}", number % len(lanes)) for number in range(4)),
        ]

    async def prepare(self) -> None:
        """Find the end of the log of events, from which all is read at the end."""
        while True:
            outcome, page = await self._callers[0].ask(
                "events/poll", {"name": "moved", "arguments": {}, "cursor": None}
            )
            if outcome == "ok":
                self._start = page["cursor"]
                return
            await asyncio.sleep(0.5)

    async def _do(self, kind: str, client: str, doing: Callable[[], Awaitable[Said]], **arguments: Any) -> Said:
        id = self._history.begin(kind, client, **arguments)
        outcome, result = await doing()
        self._history.end(id, outcome, result)
        return outcome, result

    async def _rest(self, random: Random) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(random.uniform(0, 2 * self._pause)):
                await self.over.wait()

    def _name(self, client: str) -> str:
        return f"{client}.{next(self._names)}"

    # -- what they do ------------------------------------------------------------------------------------

    async def _keep_ledger(self, client: str, lane: int) -> None:
        random, caller = Random(f"{self._seed} {client}"), self._callers[lane]
        while not self.over.is_set():
            if random.random() < 0.3:
                await self._do("read", client, lambda: caller.call("read"), lane=lane)
            else:
                name = self._name(client)
                await self._do("append", client, lambda n=name: caller.call("append", name=n), lane=lane, name=name)
            await self._rest(random)

    async def _emit(self, client: str, lane: int) -> None:
        random, caller = Random(f"{self._seed} {client}"), self._callers[lane]
        while not self.over.is_set():
            name = self._name(client)
            await self._do("emit", client, lambda n=name: caller.call("emit", name=n), name=name)
            await self._rest(random)

    async def _poll(self, client: str, lane: int) -> None:
        random, cursor = Random(f"{self._seed} {client}"), self._start
        while not self.over.is_set():
            cursor = await self._poll_once(client, lane, cursor) or cursor
            await self._rest(random)

    async def _poll_once(self, client: str, lane: int, cursor: str) -> str:
        """The next cursor; empty if there was no answer."""

        async def poll() -> Said:
            params: Json = {"name": "moved", "arguments": {}, "cursor": cursor}
            outcome, page = await self._callers[lane].ask("events/poll", params)
            if outcome != "ok":
                return outcome, page
            names = [[event["eventId"], event["data"]["name"]] for event in page["events"]]
            return "ok", {
                "events": names,
                "truncated": page["truncated"],
                "cursor": page["cursor"],
                "more": page["hasMore"],
            }

        outcome, page = await self._do("poll", client, poll, cursor=cursor)
        return page["cursor"] if outcome == "ok" else ""

    async def _wipe(self, client: str, lane: int) -> None:
        random, caller = Random(f"{self._seed} {client}"), self._callers[lane]
        while not self.over.is_set():
            name = self._name(client)
            await self._do("wipe", client, lambda n=name: caller.call("wipe", name=n), name=name)
            await self._rest(random)

    async def _run_tasks(self, client: str, lane: int) -> None:
        random, caller = Random(f"{self._seed} {client}"), self._callers[lane]
        running: list[str] = []
        while not self.over.is_set():
            if len(running) < TASKS_AT_ONCE:
                tool, name, seconds = random.choice(("once", "again")), self._name(client), random.uniform(0, 5)
                outcome, result = await self._do(
                    "task",
                    client,
                    lambda t=tool, n=name, s=seconds: caller.call(t, name=n, seconds=s),
                    tool=tool,
                    name=name,
                )
                if outcome == "ok":
                    running.append(result["taskId"])
                    self._tasks[result["taskId"]] = (lane, name)
            for task in list(running):
                if await self._look(client, lane, task) in OVER:
                    running.remove(task)
            await self._rest(random)

    async def _look(self, client: str, lane: int, task: str) -> str:
        """The status of a task; empty if there was no answer."""

        async def get() -> Said:
            outcome, found = await self._callers[lane].ask("tasks/get", {"taskId": task})
            if outcome != "ok":
                return outcome, found
            text = found["result"]["content"][0]["text"] if found.get("result") else None
            return "ok", {"status": found["status"], "message": found.get("statusMessage"), "text": text}

        outcome, found = await self._do("look", client, get, task=task)
        if outcome == "ok" and found["status"] in OVER:
            self._tasks.pop(task, None)
        return found["status"] if outcome == "ok" else ""

    async def _talk(self, client: str, lane: int) -> None:
        random, session = Random(f"{self._seed} {client}"), SessionClient(self._places[lane])
        self._sessions.append(session)
        while not self.over.is_set():
            if not session.id:
                await self._do("open", client, session.open)
            elif random.random() < 0.5:
                name = self._name(client)
                await self._do("echo", client, lambda n=name: session.echo(n), name=name, session=session.id)
            else:
                name, total = self._name(client), random.randint(1, 60)
                await self._do(
                    "stream",
                    client,
                    lambda n=name, t=total: session.count(n, t),
                    name=name,
                    total=total,
                    session=session.id,
                )
            await self._rest(random)

    # -- the end -----------------------------------------------------------------------------------------

    async def read_all(self) -> None:
        """What is there at the end. What is not answered is asked again, for a while."""
        for reading in (self._read_ledgers, self._read_tasks, self._read_events):
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_SECONDS):
                    await reading()

    async def _read_ledgers(self) -> None:
        for lane, caller in enumerate(self._callers):

            async def read(caller: Caller = caller, lane: int = lane) -> Said:
                return await self._do("final read", "final", lambda: caller.call("read"), lane=lane)

            while (await read())[0] != "ok":  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.5)

    async def _read_tasks(self) -> None:
        while self._tasks:
            for task, (lane, _) in list(self._tasks.items()):
                await self._look("final", lane, task)
            await asyncio.sleep(0.5)

    async def _read_events(self) -> None:
        cursor = self._start
        about: Json = {"name": "moved", "arguments": {}}
        while True:
            before = cursor
            cursor = await self._poll_once("final", 0, cursor) or cursor
            if cursor == before:
                outcome, page = await self._callers[0].ask("events/poll", {**about, "cursor": cursor})
                if outcome == "ok" and not page["events"] and not page["hasMore"]:
                    return
            await asyncio.sleep(0.05)


class SessionClient:
    """One session after another: who is told that a session is lost opens a new one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.id = ""
        self._ids = count(1)

    def _lines(self) -> list[str]:
        return [f"mcp-protocol-version: {HANDSHAKE}", *([f"mcp-session-id: {self.id}"] if self.id else [])]

    async def open(self) -> Said:
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "cluster", "version": "1"}}
        try:
            async with asyncio.timeout(CALL_SECONDS):
                response, body = await self._place.send(
                    {"id": 0, "method": "initialize", "params": params}, *self._lines()
                )
                if response.status != 200 or "mcp-session-id" not in response.headers:
                    return "unknown", f"{response.status}: {body}"
                self.id = response.headers["mcp-session-id"]
                while True:
                    with suppress(*GONE):
                        told, body = await self._place.send({"method": "notifications/initialized"}, *self._lines())
                        if told.status < 300:
                            return "ok", self.id
                        if told.status == 404:
                            self.id, lost = "", self.id
                            return "unknown", f"404: {lost}: {body}"
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self.id = ""
            return "unknown", "no answer in time"
        except (*GONE, ValueError) as error:
            self.id = ""
            return "unknown", f"cut: {type(error).__name__}"

    async def echo(self, name: str) -> Said:
        outcome, found = await self._call("echo", {"name": name}, CALL_SECONDS)
        return outcome, found

    async def count(self, name: str, total: int) -> Said:
        return await self._call("count", {"name": name, "total": total}, STREAM_SECONDS)

    async def _call(self, tool: str, arguments: Json, seconds: float) -> Said:
        """`received` is the id and the text of each event, `told` why there is no result, `cuts` how often resumed."""
        number = next(self._ids)
        call = {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        received: list[Any] = []
        found: Json = {"received": received, "text": None, "told": "", "cuts": 0}
        last = ""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with suppress(*GONE, ValueError):
                        lines = [*self._lines(), *([f"last-event-id: {last}"] if last else [])]
                        response, body = await self._place.send(None if last else call, *lines)
                        if response.status == 404:
                            self.id = ""
                            return "unknown", found | {"told": f"404: {body}"}
                        if response.is_stream:
                            with closing(response):
                                async for id, message in watch_silence(response.events()):
                                    last = id or last
                                    if message is None:
                                        continue
                                    if message.get("id") == number and "method" not in message:
                                        return self._read(message, found)
                                    if message.get("method") == "notifications/message":
                                        received.append([id, message["params"]["data"]])
                        elif response.status not in (409, 502, 503, 504) or not last:
                            outcome, text = judge(response.status, body)
                            if outcome != "ok":
                                return outcome, found | {"told": str(text)}
                            return self._read(body, found)
                    if not last:
                        return "unknown", found | {"told": "cut"}
                    found["cuts"] += 1
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return "unknown", found | {"told": "no answer in time"}

    @staticmethod
    def _read(message: Json, found: Json) -> Said:
        outcome, result = judge(200, message)
        if outcome == "ok":
            outcome, result = read_result(result)
        return (outcome, found | {"text": result}) if outcome == "ok" else (outcome, found | {"told": str(result)})


async def main(plan: Json) -> None:
    loop = asyncio.get_running_loop()
    clients = Clients(plan)
    await clients.prepare()
    print("up", flush=True)
    working = asyncio.gather(*clients.clients())
    commands = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await asyncio.wait([working, commands], return_when=asyncio.FIRST_COMPLETED)
    clients.over.set()
    await working
    print("quiet", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    await clients.read_all()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
