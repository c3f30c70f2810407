"""`dev` on standard input and output, and on a socket: the parent keeps the clients, and children take turns.

On stdio, no child sees the streams of the parent: lines are relayed, and every request is answered once. A socket is
bound by the parent, which never reads from it; children inherit it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_core import from_json

from defserve.auth.local_token import publish_local_key
from defserve.base.concurrency import BackgroundTasks
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import INTERNAL_ERROR, encode, is_request_id
from defserve.errors import UsageError
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets
from defserve.server.web import list_bound_addresses
from defserve.tooling.devserver.handover import (
    LISTEN_METHOD,
    READY_LINE,
    Json,
    ReplayableClientSetup,
    ServePlan,
    get_object_member,
    is_repeated_acknowledgement,
    make_change_notifications,
    make_subscribed_notifications,
)
from defserve.tooling.devserver.reload_supervisor import (
    ChildNotServing,
    DevConsole,
    ReloadSupervisor,
    ServerProcess,
    WatchedFiles,
)

STDIN, STDOUT = 0, 1
CHUNK = 64 * 1024
INTERRUPTED = 130
FAREWELL_SECONDS = 2.0


def run_dev_server_on_stdio(plan: ServePlan, files: WatchedFiles, grace: float, console: DevConsole) -> int:
    """Relay until the client leaves or a signal ends it, and return the exit code."""
    return asyncio.run(_relay_stdio(plan, files, grace, console))


async def _relay_stdio(plan: ServePlan, files: WatchedFiles, grace: float, console: DevConsole) -> int:
    ending = make_stop_future()
    relay = Relay(LineWriter().write, grace)
    with tempfile.TemporaryDirectory(prefix="defserve-dev-") as folder:
        supervising = asyncio.create_task(ReloadSupervisor(plan, relay, files, Path(folder), console).run())
        read_lines(relay.from_client, lambda: ending.done() or ending.set_result(0))
        supervising.add_done_callback(lambda task: ending.done() or ending.set_exception(_reason(task)))
        try:
            return await ending
        finally:
            supervising.cancel()
            await asyncio.gather(supervising, return_exceptions=True)
            await relay.close(FAREWELL_SECONDS)


def _reason(task: asyncio.Task[None]) -> BaseException:
    return asyncio.CancelledError() if task.cancelled() else task.exception() or RuntimeError("it ended")


def make_stop_future() -> asyncio.Future[int]:
    """A future that gets the exit code when a signal comes."""
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[int] = loop.create_future()
    for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 0)):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, lambda code=code: ending.done() or ending.set_result(code))
    return ending


def read_lines(take: Callable[[bytes], Awaitable[None]], left: Callable[[], object]) -> None:
    """Pass each line of standard input to `take`, one after the other. At the end, `left` is called."""
    loop = asyncio.get_running_loop()

    async def hand_over(lines: list[bytes]) -> None:
        for line in lines:
            await take(line + b"\n")

    def read_stdin() -> None:
        rest = b""
        try:
            while chunk := os.read(STDIN, CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                asyncio.run_coroutine_threadsafe(hand_over([line for line in lines if line.strip()]), loop).result()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(left)

    # A thread, because nothing else reads pipes, files and terminals alike. Nothing waits for it at the end.
    start_new_thread(read_stdin, ())


class LineWriter:
    """Writes to standard output, one line at a time, without blocking the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def write(self, line: bytes) -> None:
        async with self._turn:
            await asyncio.to_thread(_write_all, line)


def _write_all(line: bytes) -> None:
    with suppress(BrokenPipeError):  # a client that stops reading will close its other pipe too
        while line:
            line = line[os.write(STDOUT, line) :]


# -- `dev` on a socket: the parent binds it but never reads from it; children inherit it and take turns.


RunCompanion: TypeAlias = Callable[[str, asyncio.Future[int]], Awaitable[int]]
"""What runs beside the server: it is given the address, and a future that gets the exit code when a signal comes."""


def run_dev_server_on_sockets(
    plan: ServePlan, files: WatchedFiles, grace: float, console: DevConsole, beside: RunCompanion | None = None
) -> int:
    """Serve an address until a signal ends it, and return the exit code. Raises UsageError if it cannot be used."""
    address = Address.parse(plan.options["on"], "/mcp")
    if os.name != "posix":
        raise UsageError("dev cannot serve on a socket on this system", fix="use stdio:, or defserve run")
    local = plan.options.get("local_token", False)
    with (
        bind_sockets(address) as sockets,
        publish_local_key(list_bound_addresses(sockets)) if local else nullcontext("") as key,
        tempfile.TemporaryDirectory(prefix="defserve-dev-") as folder,
    ):
        sessions = Path(folder) / "sessions"
        sessions.mkdir(mode=0o700)
        local_key = Path(folder) / "local-token"
        local_key.touch(mode=0o600)
        local_key.write_text(key)
        numbers = tuple(one.fileno() for one in sockets)
        plan = replace(plan, sockets=numbers, sessions=str(sessions), local_key=str(local_key))
        where = replace(address, port=sockets[0].getsockname()[1]) if address.port == 0 else address
        console.address = str(where)
        return asyncio.run(_hand_over_sockets(plan, files, grace, Path(folder), console, beside))


async def _hand_over_sockets(
    plan: ServePlan,
    files: WatchedFiles,
    grace: float,
    folder: Path,
    console: DevConsole,
    beside: RunCompanion | None,
) -> int:
    ending, front = make_stop_future(), SocketFront(grace)
    supervising = asyncio.create_task(ReloadSupervisor(plan, front, files, folder, console).run())
    tasks: list[asyncio.Future[Any]] = [ending, supervising]
    if beside is not None:
        tasks.append(asyncio.ensure_future(beside(console.address, ending)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending.done() else done.pop().result() or 0
    finally:
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        await front.close()


class SocketFront:
    """A `ClientFront` whose clients talk to the children directly. A replaced child has `grace` seconds to finish."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._children: set[ServerProcess] = set()
        self._leaving = BackgroundTasks()

    async def wait_until_ready(self, child: ServerProcess) -> None:
        self._children.add(child)
        if await child.output.readline() != READY_LINE:
            raise ChildNotServing

    def switch_to_child(self, child: ServerProcess, previous: ServerProcess | None) -> None:
        if previous is not None:
            self._leaving.start(self._retire(previous))

    async def _retire(self, child: ServerProcess) -> None:
        await child.stop(self._grace + FAREWELL_SECONDS)
        self._children.discard(child)

    def on_child_exit(self, child: ServerProcess) -> None:
        self._children.discard(child)

    async def close(self) -> None:
        self._leaving.cancel()
        await asyncio.gather(*(child.stop(FAREWELL_SECONDS) for child in self._children))


# -- Passes lines between one client and the children that replace each other. Every request is answered once.


CANCELLED = "notifications/cancelled"

# Ids of our own requests to a child, and of a child's requests to the client.
OURS, THEIRS = "defserve-dev-", "defserve-child-"

Write = Callable[[bytes], Awaitable[None]]


class ChildConnection:
    """One child, and the requests that it has not answered: those of the client, and our own."""

    def __init__(self, child: ServerProcess) -> None:
        self.child = child
        self.requests: dict[Any, Json] = {}
        self.ours: dict[str, asyncio.Future[Json]] = {}
        self.moved: set[Any] = set()
        self.opened: Json | None = None
        self.capabilities: Json = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self.reader: asyncio.Task[None] | None = None

    def add_request(self, request: Json) -> None:
        self.requests[request["id"]] = request
        self.idle.clear()

    def remove_request(self, id: Any) -> bool:
        """Remove a request. True if this child had to answer it. A peer may have sent any value as its id."""
        known = is_request_id(id) and self.requests.pop(id, None) is not None
        if not self.requests:
            self.idle.set()
        return known


class Relay:
    """A `ClientFront` for standard input and output. `grace`: how long running calls of a replaced child may take."""

    def __init__(self, write: Write, grace: float) -> None:
        self._write, self._grace = write, grace
        self._opening = ReplayableClientSetup()
        self._links: dict[ServerProcess, ChildConnection] = {}
        self._current: ChildConnection | None = None
        # Lines of the client are held back until the first server has started.
        self._holding, self._held = True, list[bytes]()
        self._asked: dict[str, tuple[ChildConnection, Any]] = {}
        self._numbers = count(1)
        self._tasks = BackgroundTasks()

    # -- the client --------------------------------------------------------------------------------------

    async def from_client(self, line: bytes) -> None:
        """Take one line from the client."""
        if self._holding:
            self._held.append(line)
        else:
            await self._feed_line(line)

    async def _feed_line(self, line: bytes) -> None:
        message = _parse_line(line)
        if not isinstance(message, dict):
            await self._pass_on(line, [one for one in message if _is_request(one)])
        elif "method" not in message:
            link, id = self._asked.pop(str(message.get("id")), (None, None))
            if link is not None:
                await link.child.send(_line({**message, "id": id}))
        elif message["method"] == CANCELLED:
            id = get_object_member(message, "params").get("requestId")
            found = (link for link in self._links.values() if is_request_id(id) and id in link.requests)
            link = next(found, self._current)
            if link is not None:
                await link.child.send(line)
        else:
            self._opening.record_message(message)
            await self._pass_on(line, [message] if _is_request(message) else [])

    async def _pass_on(self, line: bytes, requests: list[Json]) -> None:
        if self._current is None:
            for request in requests:
                await self._refuse(request["id"], "the server has ended and does not start; see its traceback")
            return
        for request in requests:
            self._current.add_request(request)
        await self._current.child.send(line)

    async def _refuse(self, id: Any, text: str) -> None:
        await self._write(_line({"jsonrpc": "2.0", "id": id, "error": {"code": INTERNAL_ERROR, "message": text}}))

    # -- the children ------------------------------------------------------------------------------------

    async def wait_until_ready(self, child: ServerProcess) -> None:
        link = self._links[child] = ChildConnection(child)
        link.reader = asyncio.create_task(self._listen(link))
        # Any answer will do.
        await self._ask(link, {"method": "ping"})
        if self._opening.initialize is None:
            return
        link.opened = self._opening.initialize
        reply = await self._ask(link, link.opened)
        if "result" not in reply:
            raise ChildNotServing(f"it refuses the client: {reply.get('error')}")
        link.capabilities = get_object_member(get_object_member(reply, "result"), "capabilities")

    def switch_to_child(self, child: ServerProcess, previous: ServerProcess | None) -> None:
        link = self._current = self._links.get(child)
        old = self._links.get(previous) if previous is not None else None
        if link is None:  # already gone; the supervisor will notice
            if old is not None:
                self._tasks.start(self._retire(old))
            return
        # Written at once, so that it comes before the next line of the client.
        child.write(b"".join(map(_line, self._preamble(link))))
        heard = self._move(old, link) if old is not None else []
        # A client that was held back has not seen any list.
        news = (
            make_change_notifications(link.capabilities)
            if self._opening.initialized is not None and not self._holding
            else []
        )
        self._tasks.start(self._hand_over(old, news + heard))

    def _preamble(self, link: ChildConnection) -> Iterator[Json]:
        """What the client has sent so far and the child does not know yet."""
        opening = self._opening
        if opening.initialize is not None and link.opened is not opening.initialize:
            yield self._own_request(link, opening.initialize)[0]
        if opening.initialized is not None:
            yield opening.initialized
            for setting in opening.settings:
                yield self._own_request(link, setting)[0]

    def _move(self, old: ChildConnection, link: ChildConnection) -> list[Json]:
        """Move listening requests to another child, and return what the client is told about it."""
        found = [request for request in old.requests.values() if request["method"] == LISTEN_METHOD]
        for request in found:
            old.remove_request(request["id"])
            link.add_request(request)
            link.moved.add(request["id"])
            link.child.write(_line(request))
        return [change for request in found for change in make_subscribed_notifications(request)]

    async def _hand_over(self, old: ChildConnection | None, news: list[Json]) -> None:
        await self._write_messages(news)
        while self._held:
            await self._feed_line(self._held.pop(0))
        self._holding = False
        if old is not None:
            await self._retire(old)

    async def _write_messages(self, messages: list[Json]) -> None:
        for message in messages:
            await self._write(_line(message))

    async def _retire(self, link: ChildConnection) -> None:
        """Let a child finish its running calls, for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await link.idle.wait()
        for id in list(link.requests):
            link.remove_request(id)
            await self._refuse(id, f"the server was reloaded, and this call was not done {self._grace:g} s later")
        await link.child.stop()

    def on_child_exit(self, child: ServerProcess) -> None:
        if self._current is not None and self._current.child is child:
            self._current = None

    async def close(self, seconds: float) -> None:
        """The client has left."""
        self._tasks.cancel()
        await asyncio.gather(*(link.child.stop(seconds) for link in list(self._links.values())))

    async def _listen(self, link: ChildConnection) -> None:
        """Read what a child says, until it ends."""
        while True:
            try:
                line = await link.child.output.readline()
            except ValueError:  # a line that is too long is left out
                continue
            if not line:
                break
            await self._from_child(link, line)
        del self._links[link.child]
        self.on_child_exit(link.child)  # at once: nobody would answer what comes now
        for waiting in link.ours.values():
            if not waiting.done():
                waiting.set_exception(ChildNotServing())
                waiting.exception()  # read here, in case nobody waits for it
        for id in list(link.requests):
            link.remove_request(id)
            await self._refuse(id, "the server ended before it answered; see its traceback")
        for id in [id for id, (asker, _) in self._asked.items() if asker is link]:
            del self._asked[id]
            await self._write_messages([{"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": id}}])

    async def _from_child(self, link: ChildConnection, line: bytes) -> None:
        message = _parse_line(line)
        if not isinstance(message, dict):
            for reply in message:
                link.remove_request(reply.get("id"))
            await self._write(line)
        elif "method" not in message:
            await self._reply(link, message, line)
        elif "id" in message:
            await self._question(link, message)
        elif message["method"] == CANCELLED:
            await self._cancel_question(link, message)
        elif not is_repeated_acknowledgement(message, link.moved) and (link is self._current or link.requests):
            await self._write(line)

    async def _reply(self, link: ChildConnection, message: Json, line: bytes) -> None:
        id = message.get("id")
        ours = link.ours.pop(id, None) if isinstance(id, str) else None
        if ours is not None:
            if not ours.done():
                ours.set_result(message)
            return
        if is_request_id(id) and link.requests.get(id, {}).get("method") == "initialize":
            link.capabilities = get_object_member(get_object_member(message, "result"), "capabilities")
        if id is None or link.remove_request(id):
            await self._write(line)

    async def _question(self, link: ChildConnection, request: Json) -> None:
        """Renumber a request of a child, because two children use the same ids."""
        id = f"{THEIRS}{next(self._numbers)}"
        self._asked[id] = link, request["id"]
        await self._write(_line({**request, "id": id}))

    async def _cancel_question(self, link: ChildConnection, message: Json) -> None:
        params = get_object_member(message, "params")
        for id, (asker, original) in list(self._asked.items()):
            if asker is link and original == params.get("requestId"):
                del self._asked[id]
                await self._write_messages([{**message, "params": {**params, "requestId": id}}])

    # -- requests of our own -----------------------------------------------------------------------------

    async def _ask(self, link: ChildConnection, request: Json) -> Json:
        own_request, answer = self._own_request(link, request)
        await link.child.send(_line(own_request))
        return await answer

    def _own_request(self, link: ChildConnection, request: Json) -> tuple[Json, asyncio.Future[Json]]:
        id = f"{OURS}{next(self._numbers)}"
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        link.ours[id] = answer
        return {"jsonrpc": "2.0", **request, "id": id}, answer


def _parse_line(line: bytes) -> Json | list[Json]:
    """A message, or the messages of a batch. Anything else is passed on unchanged; the server reports it."""
    try:
        found = from_json(line)
    except ValueError:
        return []
    if is_array(found):
        return [one for one in found if is_object(one) and _has_method_name(one)]
    return found if is_object(found) and _has_method_name(found) else []


def _has_method_name(message: Json) -> bool:
    """Whether its method, if it has one, is a text. Other messages are passed on, and their receiver reports them."""
    return isinstance(message.get("method", ""), str)


def _is_request(message: Json) -> bool:
    # The server reports an id of another type.
    return "method" in message and is_request_id(message.get("id"))


def _line(message: Json) -> bytes:
    return encode(message) + b"\n"
