"""A server's process that several kernels use: one owner has it, and the others reach it over a link.

How it works: the process speaks to one client. `SharedProcess` is that client, for any number of seats; each seat looks
like a process of its own. It gives requests new ids, sends answers and progress back to who asked, and performs the
handshake once.

    backend → seat ──────────────────────────────┐
                                                  SharedProcess → process
    backend → RemoteProcessSeat ── link ── seat ────────┘

Below is the link between two kernels. Both prove that they know the key of their group, and each frame has a code that
only they can make. It is not encrypted: it belongs into a network that is as private as that of the store.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.client.replies import Json, UnreadableLine, object_or_empty
from defserve.core.json_values import is_object
from defserve.errors import PeerGone
from defserve.serve.address import Address
from defserve.serve.sockets import bind_sockets

if TYPE_CHECKING:
    from defserve.client.links.stdio import ProcessLink

MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""What a seat may be behind. One that reads too slowly loses its seat, and nobody else waits for it."""
MAX_QUESTIONS: Final = 1_000
HEALTH_METHODS: Final = frozenset(("ping", "server/discover", "mgp/health/ping"))
SHUTDOWN: Final = "mgp/lifecycle/shutdown"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
NOBODY_TO_ASK: Final[Json] = {"code": -32603, "message": "no call is under way, so there is nobody to ask"}
UNREADABLE: Final[Json] = {"code": -32603, "message": "the process gave an answer that cannot be read"}

log = get_logger("kernel")


class _Sent(NamedTuple):
    """A request on its way: whose it is, its id there, and its progress token there."""

    seat: ProcessSeat
    id: Any
    method: str
    token: Any


class SharedProcess:
    """A process and its seats. It ends with the last of them; `on_end` is called when it takes no more.

    At most `room` calls of tools run at once, whoever makes them. The others wait in line.
    """

    def __init__(self, link: ProcessLink, room: int, on_end: Callable[[], None]) -> None:
        self._link, self._room, self._on_end = link, room, on_end
        self.seats: list[ProcessSeat] = []
        self.is_retired = False
        """Whether it takes no more seats: it has ended, or somebody left because it did not answer."""
        self._numbers = count(1)
        self._sent: dict[int, _Sent] = {}
        self._running: set[int] = set()
        self._waiting: deque[tuple[int, Json]] = deque()
        self._questions: dict[Any, ProcessSeat] = {}
        self._handshake: Json | None = None
        """The answer to the handshake, and who waits for it."""
        self._handshaking: list[tuple[ProcessSeat, Any]] | None = None
        self._is_initialized = self._is_unreadable_told = False
        self._tasks = BackgroundTasks()
        link.push(self._on_message, self._on_gone)

    @property
    def pid(self) -> int:
        return self._link.pid

    def add_seat(self) -> ProcessSeat:
        """One more client of the process. Raises PeerGone if it takes no more."""
        if self.is_retired:
            raise PeerGone("the process has ended")
        seat = ProcessSeat(self)
        self.seats.append(seat)
        return seat

    # -- from a seat to the process ------------------------------------------------------------------------

    def send_from(self, seat: ProcessSeat, data: bytes) -> Awaitable[None] | None:
        """Pass on what a seat says. Raises PeerGone for what is no message."""
        message = _parse_message(data)
        if message is None:
            raise PeerGone("this is not a message")
        if "method" not in message:
            # Only the seat that was asked may answer.
            is_asked = self._questions.get(message.get("id")) is seat
            if is_asked:
                del self._questions[message["id"]]
            return self._link.write(data) if is_asked else None
        if "id" in message:
            return self._send_request(seat, message)
        return self._send_notification(seat, message)

    def _send_request(self, seat: ProcessSeat, message: Json) -> Awaitable[None] | None:
        method, params = message["method"], object_or_empty(message.get("params"))
        if method == "initialize":
            if self._handshake is not None:
                seat.deliver(to_json({**self._handshake, "id": message["id"]}))
                return None
            if self._handshaking is not None:
                self._handshaking.append((seat, message["id"]))
                return None
            self._handshaking = []
        elif method == "resources/subscribe":
            seat.uris.add(str(params.get("uri")))
        elif method == "resources/unsubscribe":
            seat.uris.discard(uri := str(params.get("uri")))
            if any(uri in other.uris for other in self.seats):
                seat.deliver(to_json({"jsonrpc": "2.0", "id": message["id"], "result": {}}))
                return None
        elif method == SHUTDOWN and len(self.seats) > 1:
            # The others still need it.
            seat.deliver(to_json({"jsonrpc": "2.0", "id": message["id"], "result": {"accepted": False}}))
            return None
        number, meta = next(self._numbers), object_or_empty(params.get("_meta"))
        token = meta.get("progressToken")
        if token is not None:
            params = {**params, "_meta": {**meta, "progressToken": number}}
        if params:
            message = {**message, "params": params}
        self._sent[number] = _Sent(seat, message["id"], method, token)
        message = {**message, "id": number}
        if method == "tools/call":
            if len(self._running) >= self._room:
                self._waiting.append((number, message))
                return None
            self._running.add(number)
        return self._link.write(to_json(message))

    def _send_notification(self, seat: ProcessSeat, message: Json) -> Awaitable[None] | None:
        match message["method"]:
            case "notifications/initialized":
                if self._is_initialized:
                    return None
                self._is_initialized = True
            case "notifications/cancelled":
                params = object_or_empty(message.get("params"))
                number = self._find_sent(seat, params.get("requestId"))
                if number is None:
                    return None
                seat.has_unanswered_probe |= self._sent[number].method in HEALTH_METHODS
                was_waiting = number not in self._running and any(number == one for one, _ in self._waiting)
                self._end_request(number)
                if was_waiting:
                    return None
                message = {**message, "params": {**params, "requestId": number}}
            case _:
                pass
        return self._link.write(to_json(message))

    def _find_sent(self, seat: ProcessSeat, id: Any) -> int | None:
        return next((number for number, sent in self._sent.items() if sent.seat is seat and sent.id == id), None)

    def _end_request(self, number: int) -> None:
        """A request is over. Its place goes to the first call in line."""
        del self._sent[number]
        self._running.discard(number)
        self._waiting = deque(one for one in self._waiting if one[0] != number)
        while self._waiting and len(self._running) < self._room:
            following, message = self._waiting.popleft()
            self._running.add(following)
            self._write_soon(message)

    def _write_soon(self, message: Json) -> None:
        if (waits := self._link.write(to_json(message))) is not None:
            self._tasks.start(_finish_write(waits))

    def remove_seat(self, seat: ProcessSeat) -> None:
        """A client leaves. What it has begun is cancelled, and what it was asked is refused."""
        self.seats.remove(seat)
        # Its own calls in line go first, so that none of them begins when another one ends.
        self._waiting = deque(one for one in self._waiting if self._sent[one[0]].seat is not seat)
        for number, sent in list(self._sent.items()):
            if sent.seat is seat and sent.method != "initialize":  # others wait for that
                seat.has_unanswered_probe |= sent.method in HEALTH_METHODS
                self._end_request(number)
                self._write_soon(_notify("notifications/cancelled", {"requestId": number}))
        for id in [id for id, asked in self._questions.items() if asked is seat]:
            del self._questions[id]
            self._write_soon({"jsonrpc": "2.0", "id": id, "error": NOBODY_TO_ASK})
        for uri in seat.uris - {uri for other in self.seats for uri in other.uris}:
            self._write_soon(
                {"jsonrpc": "2.0", "id": next(self._numbers), "method": "resources/unsubscribe", "params": {"uri": uri}}
            )
        if seat.has_unanswered_probe or not self.seats:
            # Who left because it hangs must not get the same process again.
            self.retire()

    def retire(self) -> None:
        """Take no more seats."""
        if not self.is_retired:
            self.is_retired = True
            self._on_end()

    async def aclose(self) -> None:
        """End the process, and every seat."""
        self.retire()
        for seat in self.seats:
            seat.end("the process was ended")
        await self._link.aclose()
        self._tasks.cancel()

    # -- from the process to its seats ---------------------------------------------------------------------

    def _on_message(self, data: bytes) -> None:
        message = _parse_message(data)
        if message is None:
            self._on_unreadable(data)
        elif "method" not in message:
            self._on_reply(message)
        elif "id" in message:
            self._on_question(message, data)
        else:
            self._on_notification(message, data)

    def _on_unreadable(self, data: bytes) -> None:
        """A line that cannot be read may have been a reply: else who waits for it would wait to the limit."""
        if not self._is_unreadable_told:
            self._is_unreadable_told = True
            log.warning("process %d said something that is not a message; such lines are left out", self.pid)
        line = UnreadableLine(data)
        number = line.id if line.id is not None or len(self._sent) != 1 else next(iter(self._sent))
        if line.is_reply:
            self._on_reply({"jsonrpc": "2.0", "id": number, "error": UNREADABLE})

    def _on_reply(self, message: Json) -> None:
        number = message.get("id")
        if not isinstance(number, int) or (sent := self._sent.get(number)) is None:
            return
        self._end_request(number)
        sent.seat.has_unanswered_probe &= sent.method not in HEALTH_METHODS
        sent.seat.deliver(to_json({**message, "id": sent.id}))
        if sent.method == "initialize":
            waiting, self._handshaking = self._handshaking, None
            # A refusal is not kept: the next one may ask for another version.
            self._handshake = message if "result" in message else None
            for seat, id in waiting or ():
                seat.deliver(to_json({**message, "id": id}))

    def _get_sent(self, number: Any) -> _Sent | None:
        """The request with this number of ours, which a process may write in any form."""
        return self._sent.get(number) if isinstance(number, int) else None

    def _on_question(self, message: Json, data: bytes) -> None:
        """One that names no call belongs to the one that began last, as it does with one client."""
        calls = (sent.seat for sent in reversed(self._sent.values()) if sent.method not in HEALTH_METHODS)
        seat = next((seat for seat in calls if seat in self.seats), next(iter(self.seats), None))
        if seat is None or len(self._questions) >= MAX_QUESTIONS:
            self._write_soon({"jsonrpc": "2.0", "id": message["id"], "error": NOBODY_TO_ASK})
        else:
            self._questions[message["id"]] = seat
            seat.deliver(data)

    def _on_notification(self, message: Json, data: bytes) -> None:
        method, params = message["method"], object_or_empty(message.get("params"))
        meta = object_or_empty(params.get("_meta"))
        asked = params.get("requestId")
        if method == "notifications/cancelled" and isinstance(asked, str | int | float) and asked in self._questions:
            self._questions.pop(asked).deliver(data)
        elif method == "notifications/progress":
            if (sent := self._get_sent(params.get("progressToken"))) is not None:
                sent.seat.deliver(to_json({**message, "params": {**params, "progressToken": sent.token}}))
        elif SUBSCRIPTION in meta:
            if (sent := self._get_sent(meta[SUBSCRIPTION])) is not None:
                own = {**params, "_meta": {**meta, SUBSCRIPTION: sent.id}}
                sent.seat.deliver(to_json({**message, "params": own}))
        else:
            for seat in self.seats:
                seat.deliver(data)

    def _on_gone(self, reason: PeerGone) -> None:
        for seat in self.seats:
            seat.end(reason.message)
        self.retire()


def _parse_message(data: bytes) -> Json | None:
    try:
        found = from_json(data)
    except ValueError:
        return None
    # An id that cannot be looked up is not one.
    is_message = is_object(found) and isinstance(found.get("id"), str | int | float | None)
    return found if is_message and isinstance(found.get("method", ""), str) else None


def _notify(method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


async def _finish_write(waits: Awaitable[None]) -> None:
    with suppress(PeerGone):
        await waits


class ProcessSeat:
    """One client of a shared process. To its user it is a `ClientLink` to a process of its own."""

    def __init__(self, process: SharedProcess) -> None:
        self._process = process
        self.uris: set[str] = set()
        self.has_unanswered_probe = False
        self._unread: deque[bytes] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._end: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, message: bytes) -> None:
        if self._end is not None:
            raise PeerGone(self._end)
        if (waits := self._process.send_from(self, message)) is not None:
            await waits

    async def receive(self) -> bytes:
        while not self._unread:
            if self._end is not None:
                raise PeerGone(self._end)
            self._arrived.clear()
            await self._arrived.wait()
        data = self._unread.popleft()
        self._bytes -= len(data)
        return data

    def deliver(self, data: bytes) -> None:
        """Something for this seat."""
        if self._end is not None:
            return
        self._unread.append(data)
        self._bytes += len(data)
        if self._bytes > MAX_UNREAD_BYTES:
            self.end("it was told more than it read")
        self._arrived.set()

    def end(self, reason: str) -> None:
        """Nothing more comes, for this reason."""
        self._end = reason if self._end is None else self._end
        self._arrived.set()

    async def aclose(self) -> None:
        """Leave. The last one ends the process, and waits for that."""
        self.end("it was closed")
        process = self._process
        if self in process.seats:
            process.remove_seat(self)
            if not process.seats:
                await process.aclose()


# -- The link between two kernels of a group. One connection carries one seat.


GREETING: Final = b"defserve kernel link 1\n"
NONCE_BYTES: Final = 32
CODE_BYTES: Final = 16
MAX_OPENING_BYTES: Final = 16 * 1024
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
MAX_LINKS: Final = 4_096
OPENING_SECONDS: Final = 5.0
START_SECONDS: Final = 30.0
BEAT_SECONDS: Final = 3.0
SILENCE_SECONDS: Final = 12.0
MOVE_POLL_SECONDS: Final = 0.05
MAX_REASON_LENGTH: Final = 4_000

MESSAGE, BEAT, END, MOVE = b"m", b"b", b"e", b"v"
"""What a frame is: a message, nothing but a sign of life, the end and its reason, a request to sit elsewhere."""


class OwnerGone(PeerGone):
    """The kernel that was asked cannot be reached, or does not run the server any more: another one may."""


OpenSeat = Callable[[Json], Awaitable[ProcessSeat]]
"""Gives the seat that another kernel asks for. Raises OwnerGone if it is not here, PeerGone if there is none."""


class SealedFrames:
    """Frames over a connection. Each has a code over its place and its content, made with a key of this connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: tuple[bytes, bytes], limit: int
    ) -> None:
        self._reader, self._writer, self.limit = reader, writer, limit
        self._read_key, self._write_key = keys
        self._reads, self._writes = count(), count()

    async def read_frame(self, seconds: float = SILENCE_SECONDS) -> tuple[bytes, bytes]:
        """The kind and the content of the next frame. Raises PeerGone if none comes, or if it is not the peer's."""
        try:
            async with asyncio.timeout(seconds):
                length = int.from_bytes(await self._reader.readexactly(4), "big")
                if not 0 < length <= self.limit:
                    raise PeerGone("a kernel sent a frame that is too long")
                code, data = await self._reader.readexactly(CODE_BYTES), await self._reader.readexactly(length)
        except TimeoutError:
            raise PeerGone(f"the other kernel said nothing for {seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            raise PeerGone("the other kernel has left") from None
        if not hmac.compare_digest(code, _make_code(self._read_key, next(self._reads), data)):
            raise PeerGone("a frame was not made by a kernel of this group")
        return data[:1], data[1:]

    def write_frame(self, kind: bytes, data: bytes = b"") -> None:
        whole = kind + data
        code = _make_code(self._write_key, next(self._writes), whole)
        self._writer.write(len(whole).to_bytes(4, "big") + code + whole)

    async def drain(self) -> None:
        """Wait until the peer has taken enough. Raises PeerGone."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._writer.drain()
        except (OSError, TimeoutError):
            raise PeerGone("the other kernel takes nothing") from None

    async def beat(self) -> None:
        """Give signs of life until cancelled."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.write_frame(BEAT)

    def close(self) -> None:
        self._writer.close()


def _make_code(key: bytes, place: int, data: bytes) -> bytes:
    return blake2b(place.to_bytes(8, "big") + data, key=key, digest_size=CODE_BYTES).digest()


def _make_keys(key: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """The keys of one connection: what the opener writes with, and what the owner writes with."""
    return hmac.digest(key, b"opener" + nonces, "sha256"), hmac.digest(key, b"owner" + nonces, "sha256")


class RemoteProcessSeat:
    """A seat at a process of another kernel: a `ClientLink`. `on_moved` is called if its owner is about to leave."""

    def __init__(self, frames: SealedFrames, on_moved: Callable[[], None]) -> None:
        self._frames, self._on_moved = frames, on_moved
        self._beating = asyncio.create_task(frames.beat(), name="defserve kernel link")

    @classmethod
    async def connect(
        cls, at: tuple[str, int], key: bytes, request: Mapping[str, Any], on_moved: Callable[[], None]
    ) -> RemoteProcessSeat:
        """Ask the kernel at an address for a seat. Raises OwnerGone if it has none, PeerGone if it refuses."""
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                reader, writer = await asyncio.open_connection(*at)
        except (OSError, TimeoutError) as error:
            raise OwnerGone(f"the kernel at {at[0]}:{at[1]} cannot be reached: {error or 'it is late'}") from None
        try:
            frames = await _greet_owner(reader, writer, key)
            frames.write_frame(MESSAGE, json.dumps(dict(request)).encode())
            kind, data = await frames.read_frame(START_SECONDS)
            if kind != MESSAGE:
                raise (OwnerGone if kind == MOVE else PeerGone)(_format_reason(data))
        except BaseException:
            writer.close()
            raise
        return cls(frames, on_moved)

    async def send(self, message: bytes) -> None:
        self._frames.write_frame(MESSAGE, message)
        await self._frames.drain()

    async def receive(self) -> bytes:
        while True:
            kind, data = await self._frames.read_frame()
            if kind == MESSAGE:
                return data
            if kind == MOVE:
                self._on_moved()
            elif kind == END:
                raise PeerGone(_format_reason(data))

    async def aclose(self) -> None:
        self._beating.cancel()
        self._frames.close()


async def _greet_owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> SealedFrames:
    """Begin a connection. Raises PeerGone if the one who answers does not know the key."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    writer.write(GREETING + nonce)
    try:
        async with asyncio.timeout(OPENING_SECONDS):
            nonces = nonce + await reader.readexactly(NONCE_BYTES)
            proof = await reader.readexactly(NONCE_BYTES)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        raise OwnerGone("the other kernel left before it answered") from None
    write_key, read_key = _make_keys(key, nonces)
    if not hmac.compare_digest(proof, hmac.digest(read_key, nonces, "sha256")):
        raise PeerGone("the kernel that answers is not one of this group")
    return SealedFrames(reader, writer, (read_key, write_key), MAX_FRAME_BYTES)


def _format_reason(data: bytes) -> str:
    return data.decode(errors="replace")[:MAX_REASON_LENGTH]


class ProcessSeatServer:
    """The owner's end of the link: gives seats to kernels that know the key, at the address `at`."""

    def __init__(self, key: bytes, open_seat: OpenSeat) -> None:
        self._key, self._open_seat = key, open_seat
        self._peers: set[asyncio.Task[Any]] = set()
        self._seated: set[SealedFrames] = set()

    @asynccontextmanager
    async def listen(self, host: str, port: int) -> AsyncGenerator[int]:
        """Listen as long as the block runs. Yields the port. Raises UsageError if that is impossible."""
        with bind_sockets(Address("http", host, port)) as sockets:
            server = await asyncio.start_server(self._serve, sock=sockets[0], limit=MAX_OPENING_BYTES)
            try:
                yield sockets[0].getsockname()[1]
            finally:
                server.close()
                for peer in self._peers:
                    peer.cancel()
                await asyncio.gather(*self._peers, return_exceptions=True)

    async def move_seats(self, seconds: float) -> None:
        """Ask the other kernels to sit elsewhere, and wait until they do; at most so many seconds."""
        for frames in self._seated:
            frames.write_frame(MOVE)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._seated:  # noqa: ASYNC110 - once, at the end of a kernel
                    await asyncio.sleep(MOVE_POLL_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._peers.add(task)
        try:
            if len(self._peers) <= MAX_LINKS:
                await self._serve_peer(reader, writer)
        except (PeerGone, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.debug("a kernel left: %s", error)
        except asyncio.CancelledError:
            pass  # this kernel ends, and asyncio would complain about a connection that was cancelled
        finally:
            self._peers.discard(task)
            writer.close()

    async def _serve_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Who does not know the key learns nothing, and is told nothing but a nonce and a proof about it."""
        async with asyncio.timeout(OPENING_SECONDS):
            if await reader.readexactly(len(GREETING)) != GREETING:
                return
            nonces = await reader.readexactly(NONCE_BYTES) + (nonce := secrets.token_bytes(NONCE_BYTES))
        read_key, write_key = _make_keys(self._key, nonces)
        writer.write(nonce + hmac.digest(write_key, nonces, "sha256"))
        frames = SealedFrames(reader, writer, (read_key, write_key), MAX_OPENING_BYTES)
        try:
            _, opening = await frames.read_frame(OPENING_SECONDS)
        except PeerGone as error:
            log.warning("somebody who is no kernel of this group tried to use the link: %s", error.message)
            return
        frames.limit = MAX_FRAME_BYTES
        try:
            seat = await self._open_seat(object_or_empty(_parse_message(opening)))
        except PeerGone as error:
            kind = MOVE if isinstance(error, OwnerGone) else END
            frames.write_frame(kind, error.message[:MAX_REASON_LENGTH].encode())
            await frames.drain()
            return
        frames.write_frame(MESSAGE)
        self._seated.add(frames)
        try:
            await _join_seat(frames, seat)
        finally:
            self._seated.discard(frames)
            await asyncio.shield(asyncio.ensure_future(seat.aclose()))


async def _join_seat(frames: SealedFrames, seat: ProcessSeat) -> None:
    """Carry messages between a seat and the kernel that uses it, until one of them ends."""

    async def carry_in() -> None:
        while True:
            kind, data = await frames.read_frame()
            if kind == MESSAGE:
                await seat.send(data)

    async def carry_out() -> None:
        try:
            while True:
                frames.write_frame(MESSAGE, await seat.receive())
                await frames.drain()
        except PeerGone as gone:
            frames.write_frame(END, gone.message[:MAX_REASON_LENGTH].encode())
            with suppress(PeerGone):
                await frames.drain()

    tasks = [asyncio.ensure_future(work) for work in (carry_in(), carry_out(), frames.beat())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
