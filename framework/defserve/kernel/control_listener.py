"""The kernel's end of the control socket, and what can be asked there: each verb and the fields that it takes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, UsageError
from defserve.kernel.control import own_place
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets, user_of

MAX_REQUEST_BYTES: Final = 64 * 1024
REQUEST_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 30.0
MAX_PEERS: Final = 32

log = logging.getLogger("defserve.kernel")


@asynccontextmanager
async def open_control_socket(config: Path, kernel: Operations) -> AsyncGenerator[Path | None]:
    """Listen for as long as the block runs. Yields the path of the socket.

    A kernel that cannot be operated still serves: then a warning says why, and the path is None.
    """
    try:
        path = own_place(config)
        sockets = bind_sockets(Address("unix", str(path)))
        listening = sockets.__enter__()
    except (UsageError, AttributeError) as error:  # Windows has no os.getuid
        log.warning("this kernel cannot be operated while it runs: %s", error)
        yield None
        return
    peers: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peers.add(task)
        try:
            await _serve(kernel, reader, writer, len(peers) <= MAX_PEERS)
        finally:
            peers.discard(task)
            writer.close()

    server = None
    try:
        server = await asyncio.start_unix_server(serve, sock=listening[0], limit=MAX_REQUEST_BYTES)
        yield path
    finally:
        if server is not None:
            server.close()
        for peer in peers:
            peer.cancel()
        await asyncio.gather(*peers, return_exceptions=True)
        sockets.__exit__(None, None, None)


async def _serve(
    kernel: Operations, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_room: bool
) -> None:
    """Answer one request. A peer that is another user gets no answer at all."""
    user = user_of(writer.get_extra_info("socket"))
    if user is not None and user != os.getuid():
        log.warning("user %s tried to operate this kernel", user)
        return
    with suppress(OSError, TimeoutError):
        try:
            request = await _request(reader)
            if not has_room:
                raise UsageError("too many operate this kernel at once", fix="end a `kernel logs -f`")
            if request is not None:
                await _answer(kernel, request, reader, writer)
        except DefserveError as error:
            fix = error.fix if isinstance(error, UsageError) else ""
            problem = str(error).removesuffix(f"\n  fix: {fix}")
            await _write(writer, {"error": {"problem": problem, "fix": fix}})


async def _request(reader: asyncio.StreamReader) -> Any:
    """The request of a peer. None if it left without one, as who only looks whether somebody listens does."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            line = await reader.readline()
    except ValueError:
        raise UsageError(f"a request has at most {MAX_REQUEST_BYTES} bytes", fix="send less at a time") from None
    try:
        return json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        raise UsageError("a request is one line of JSON", fix='send {"verb": "ps"}') from None


async def _answer(kernel: Operations, request: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write the answers as they come. A peer that leaves ends what it follows, and nothing that it asked to be done."""

    async def write() -> None:
        async for answer in answers(kernel, request):
            await _write(writer, {"answer": answer})
        await _write(writer, {"done": True})

    work, left = asyncio.ensure_future(write()), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not follows(request):
            # Half of a stop or of a reload would leave servers that nobody can operate.
            await asyncio.wait((work,))
        if work.done():
            work.result()
    finally:
        for task in (work, left):
            task.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    async with asyncio.timeout(WRITE_SECONDS):
        await writer.drain()


# -- What can be asked of a kernel, as a table: each verb and the fields that it takes.


class Operations(Protocol):
    """What a kernel does for its operator. Ids that nobody knows raise UsageError with a suggestion."""

    def status(self) -> dict[str, Any]: ...
    def ps(self) -> list[dict[str, Any]]: ...
    def history(self) -> list[dict[str, Any]]: ...
    def logs(self, id: str | None, follow: bool) -> AsyncIterator[dict[str, Any]]: ...
    async def start(self, id: str) -> dict[str, Any]: ...
    async def stop(self, id: str, reason: str = "", timeout: float | None = None) -> dict[str, Any]: ...
    async def restart(self, id: str, now: bool = False) -> dict[str, Any]: ...
    async def reload(self) -> dict[str, Any]: ...
    async def approve(self, id: str, tool: str | None, digest: str, unseen: bool) -> list[dict[str, Any]]: ...
    async def search(self, query: str, top: int) -> list[dict[str, Any]]: ...
    async def health(self, id: str | None) -> list[dict[str, Any]]: ...
    def audit(self, last: int, follow: bool, verify: bool) -> AsyncIterator[dict[str, Any]]: ...


Fields: TypeAlias = Mapping[str, tuple[type, Any]]
"""The type of each field, and its value if it is left out. `...`: it may not be left out."""

ID: Final[Fields] = {"id": (str, ...)}
OPTIONAL_ID: Final[Fields] = {"id": (str, None)}
HELD: Final[Fields] = {"id": (str, ...), "tool": (str, None), "digest": (str, ""), "unseen": (bool, False)}
ENTRY: Final[Fields] = {"agent": (str, ...), "id": (str, ...), "tool": (str, None)}
VERBS: Final[Mapping[str, Fields]] = {
    "status": {},
    "ps": {},
    "history": {},
    "logs": {"id": (str, None), "follow": (bool, False)},
    "start": ID,
    "stop": ID,
    "restart": {**ID, "now": (bool, False)},
    "reload": {},
    "approve": HELD,
    "search": {"query": (str, ...), "top": (int, 5)},
    "health": OPTIONAL_ID,
    "audit": {"last": (int, 20), "follow": (bool, False), "verify": (bool, False)},
    "access list": {**OPTIONAL_ID, "agent": (str, None)},
    "access grant": {**ENTRY, "reason": (str, None), "until": (str, None), "force": (bool, False)},
    "access deny": {**ENTRY, "reason": (str, None), "until": (str, None), "force": (bool, False)},
    "access revoke": ENTRY,
    "permissions list": OPTIONAL_ID,
    "permissions approve": {**ID, "permission": (str, None), "reason": (str, "")},
    "permissions deny": {**ID, "permission": (str, None), "reason": (str, "")},
    "pins list": OPTIONAL_ID,
    "pins accept": HELD,
}
"""Each is a method of `Operations`. With two words it is the method of what the first one names."""


def answers(kernel: Operations, request: Any) -> AsyncIterator[Any]:
    """The answers to a request `{"verb": …, fields}`. Raises UsageError for one that is not made so."""
    if not is_object(request):
        raise UsageError("a request is an object", fix='send {"verb": "ps"}')
    fields = {**request}
    name = fields.pop("verb", None)
    known = VERBS.get(name) if isinstance(name, str) else None
    if known is None:
        raise UsageError(f"there is no verb {str(name)[:60]!r}", fix=f"use one of {', '.join(VERBS)}")
    given: dict[str, Any] = {}
    for field, (kind, default) in known.items():
        value = fields.pop(field, default)
        if value is ... or (value is not default and type(value) is not kind):
            raise UsageError(f"{name} needs {field}", fix=f"give {field}: a {kind.__name__}")
        given[field] = value
    if fields:
        raise UsageError(f"{name} has no {min(fields)!r}", fix=f"it takes {', '.join(known) or 'nothing'}")
    return _each(attrgetter(str(name).replace(" ", "."))(kernel)(**given))


def follows(request: Any) -> bool:
    """Whether the answers to a request only end when nobody wants more of them."""
    return is_object(request) and request.get("follow") is True


async def _each(result: Any) -> AsyncIterator[Any]:
    """What a method gives, one by one: it may be a value, a list, or something to wait for."""
    if isinstance(result, AsyncIterator):
        async for answer in cast("AsyncIterator[Any]", result):
            yield answer
        return
    found = await result if isawaitable(result) else result
    for answer in found if is_array(found) else (found,):
        yield answer
