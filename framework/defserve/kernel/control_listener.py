"""The kernel's end of the control socket. What can be asked there is in `verbs.py`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, UsageError
from defserve.kernel.control import make_socket_path
from defserve.kernel.verbs import VerbAnswers, parse_verb_request
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets, get_peer_user

if TYPE_CHECKING:
    from defserve.kernel.kernel import Kernel

MAX_REQUEST_BYTES: Final = 64 * 1024
REQUEST_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 30.0
MAX_PEERS: Final = 32

log = logging.getLogger("defserve.kernel")


@asynccontextmanager
async def open_control_socket(config: Path, kernel: Kernel) -> AsyncGenerator[Path | None]:
    """Listen for as long as the block runs. Yields the path of the socket.

    A kernel that cannot be operated still serves: then a warning says why, and the path is None.
    """
    try:
        path = make_socket_path(config)
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


async def _serve(kernel: Kernel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_room: bool) -> None:
    """Answer one request. A peer that is another user gets no answer at all."""
    user = get_peer_user(writer.get_extra_info("socket"))
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


async def _answer(kernel: Kernel, request: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


def answers(kernel: Kernel, request: Any) -> AsyncIterator[Any]:
    """The answers to a request, one by one. Raises UsageError for one that `parse_verb_request` refuses."""
    verb, fields = parse_verb_request(request)
    return _each_answer(verb.function(kernel)(**fields))


async def _each_answer(result: VerbAnswers) -> AsyncIterator[Any]:
    if isinstance(result, AsyncIterator):
        async for answer in result:
            yield answer
        return
    value = await result if isawaitable(result) else result
    for answer in value if is_array(value) else (value,):
        yield answer


def follows(request: Any) -> bool:
    """Whether the answers to a request only end when nobody wants more of them."""
    return is_object(request) and request.get("follow") is True
