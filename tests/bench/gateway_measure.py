"""What a gateway's rules cost: one participant talks and all hear it, beside a server that only broadcasts."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Final, NamedTuple

from .contenders import SERVERS, HttpContender
from .http_process import HttpServer
from .measure import Run, percentile
from .targets import SUBJECT
from .traffic import Timing

BARE: Final = "bare"
CROWDS: Final = (2, 50, 500)
MOST: Final = max(CROWDS)
CONTENDERS: Final = (
    HttpContender(BARE, SERVERS / "bare_gateway.py"),
    HttpContender(SUBJECT, SERVERS / "defserve_gateway.py", (str(MOST),)),
)

# Outstanding messages of the one who talks: enough that nobody waits for a turn of the loop, less than any queue.
WINDOW: Final = 16
AT_ONCE: Final = 256 * 1024
QUIET_SECONDS: Final = 0.2
HANDSHAKE: Final = (
    "GET /ws?topic=bench HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer t-{each}\r\n\r\n"
)
PAYLOAD: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "add", "arguments": {"a": 20, "b": 22}},
}


class Traffic(NamedTuple):
    """How much one round is: a burst ends with its messages or its deliveries; then come single messages."""

    messages: int
    deliveries: int
    singles: int

    def burst(self, crowd: int) -> int:
        return max(min(self.messages, self.deliveries // crowd), 1)


def measure_fan_out(run: Run) -> None:
    """Messages delivered per second, the time until the last has one, and what a connection weighs."""
    seconds = run.plan.http_burst
    traffic = Traffic(int(10_000 * seconds), int(200_000 * seconds), int(400 * seconds))
    for crowd in CROWDS:
        for turn in range(run.plan.service_rounds):
            for contender in CONTENDERS:
                run.say(f"gateway, {crowd} participants, {turn + 1}/{run.plan.service_rounds}: {contender.name}")
                _measure(run, contender, crowd, traffic)


GATEWAY: dict[str, Callable[[Run], None]] = {"gateway-fan-out": measure_fan_out}


def _measure(run: Run, contender: HttpContender, crowd: int, traffic: Traffic) -> None:
    name = f"{crowd} participants"
    with HttpServer(contender, run.launch) as server:
        before = server.resident()
        with joined(server.port, crowd) as sockets:
            talk = Talk(sockets)
            count = traffic.burst(crowd)
            talk.exchange(count // 4, WINDOW)
            weight = (server.resident() - before) * 2**20 / crowd
            began = perf_counter()
            talk.exchange(count, WINDOW)
            run.results.add(f"gateway/{name}", contender.name, count * crowd / (perf_counter() - began))
            took = [talk.single() for _ in range(traffic.singles)]
            run.results.add(f"gateway-p99/{name}", contender.name, percentile(Timing(0, took), 99))
            run.results.add(f"gateway-memory/{name}", contender.name, weight)


@contextmanager
def joined(port: int, crowd: int) -> Generator[list[socket.socket]]:
    """Connections past their handshake and all that a gateway has to say about it."""
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for each in range(crowd):
            opened = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.sendall(HANDSHAKE.format(port=port, each=each).encode())
            sockets.append(opened)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += opened.recv(AT_ONCE)
            if not answer.startswith(b"HTTP/1.1 101 "):
                raise OSError(f"no handshake: {answer[:200]!r}")
            _drain(sockets, 0)
        _drain(sockets, QUIET_SECONDS)
        yield sockets


class Talk:
    """The first of the sockets talks; a message comes out as it went in, so bytes count them."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = {each.fileno(): each for each in sockets}
        self._talker = sockets[0]
        self._epoll = select.epoll()
        for each in self._sockets:
            self._epoll.register(each, select.EPOLLIN)
        about = {"protocol": "mcpx/v0.1", "id": "2f6b6e70-7b36-4b8b-9ad8-7c4f7d0e2d0b", "ts": "2025-08-26T14:00:00Z"}
        message = {**about, "from": "p0", "to": ["p1"], "kind": "mcp/request:tools/call:add", "payload": PAYLOAD}
        data = json.dumps(message, separators=(",", ":")).encode()
        self._frame, self._length = masked(data), len(data) + 4

    def single(self) -> float:
        """Seconds until everyone has a message."""
        began = perf_counter()
        self.exchange(1, 1)
        return perf_counter() - began

    def exchange(self, count: int, window: int) -> None:
        """Say so many messages, a window ahead of hearing them, until everyone has them all."""
        left = count * self._length * len(self._sockets)
        talker, sent, heard = self._talker.fileno(), 0, 0
        while left:
            ahead = min(window - (sent - heard // self._length), count - sent)
            if ahead > 0:
                self._talker.sendall(self._frame * ahead)
                sent += ahead
            for number, _ in self._epoll.poll(10):
                got = len(self._sockets[number].recv(AT_ONCE))
                if not got:
                    raise OSError("the server hung up")
                left -= got
                if number == talker:
                    heard += got
            if left < 0:
                raise OSError("more came than was sent")


def masked(data: bytes) -> bytes:
    """A client's text frame of 126 to 65,535 bytes."""
    key = os.urandom(4)
    return b"\x81\xfe" + struct.pack("!H", len(data)) + key + bytes(byte ^ key[n % 4] for n, byte in enumerate(data))


def _drain(sockets: list[socket.socket], seconds: float) -> None:
    """Read whatever comes, until nothing has come for so long."""
    while ready := select.select(sockets, [], [], seconds)[0]:
        for each in ready:
            each.recv(AT_ONCE)
