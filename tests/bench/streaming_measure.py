"""What MGP's streams and health checks cost others: a slow reader, a pipe that nobody reads, threads that all sleep.

Only defserve takes part: nobody else has these to compare.
"""

from __future__ import annotations

import array
import fcntl
import re
import termios
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from .contenders import SERVERS, Contender, HttpContender
from .http_process import HttpServer
from .http_traffic import Connection, HttpRequest, call, connected, drive, open_session
from .measure import ADDENDS, Run, percentile
from .processes import HANDSHAKE_VERSION, ServerProcess, write_all
from .targets import SUBJECT
from .traffic import Request, Timing

SCRIPT = SERVERS / "streaming_server.py"
PIPE = Contender(SUBJECT, SCRIPT, ())
WEB = HttpContender(SUBJECT, SCRIPT)

MGP: dict[str, Any] = {"mgp": {"version": "0.3.0", "extensions": ["streaming", "lifecycle"]}}
SLEEPERS = 64
NAP_SECONDS = 30.0
PINGS = 300

# The slow reader: so many bytes at a time, and a rest.
SIP = 64 * 1024
REST = 0.01
STREAM_ID = 5_000_000

INDEX = re.compile(rb'"index":(\d+),')


def measure_health(run: Run) -> None:
    """The p99 of pings over a pipe while 64 sync tools sleep, which is more than there are threads."""
    for turn in range(run.plan.stream_rounds):
        run.say(f"health {turn + 1}/{run.plan.stream_rounds}")
        with ServerProcess(PIPE, "stdio", run.launch) as server:
            _speak_mgp(server)
            for _ in range(SLEEPERS):
                _send(server, Request.call("nap", {"seconds": NAP_SECONDS}))
            pings: list[float] = []
            for _ in range(PINGS):
                began = perf_counter()
                server.request("mgp/health/ping", {})
                pings.append(perf_counter() - began)
            run.results.add(
                f"health-p99/{SLEEPERS} sleeping sync tools", SUBJECT, percentile(Timing(0, pings), 99) / 1e3
            )


def measure_slow_reader(run: Run) -> None:
    """The p99 of calls in a session that a slow reader streams in, and what the stream takes of memory."""
    for turn in range(run.plan.stream_rounds):
        run.say(f"slow reader {turn + 1}/{run.plan.stream_rounds}")
        with HttpServer(WEB, run.launch) as server, connected(server, 2) as (streaming, calling):
            session = open_session(server, streaming, MGP)
            calling.request = call(server, "add", ADDENDS, session)
            drive(server, [calling], 0)
            before = server.peak()
            reader = SlowReader(streaming, _stream_of(server, run.plan.chunks, session))
            reader.start()
            latencies: list[float] = []
            while reader.is_alive():
                latencies += drive(server, [calling], 0.05).latencies
            reader.check(server, run.plan.chunks)
            run.results.add("stream-p99/add", SUBJECT, percentile(Timing(0, latencies), 99) / 1e3)
            run.results.add(f"stream-memory/{run.plan.chunks:,} chunks", SUBJECT, server.peak() - before)


def measure_waiting(run: Run) -> None:
    """How many bytes of chunks an answer finds before it, beyond those that are in the pipe already."""
    for turn in range(run.plan.stream_rounds):
        run.say(f"unread pipe {turn + 1}/{run.plan.stream_rounds}")
        with ServerProcess(PIPE, "stdio", run.launch) as server:
            _speak_mgp(server)
            params = {"name": "count", "arguments": {"chunks": run.plan.chunks}, "_mgp": {"stream": True}}
            _send(server, Request.of("tools/call", params))
            in_pipe = _when_full(server)
            answer = b'"id":%d,' % _send(server, Request.call("add", ADDENDS))
            read = b""
            while answer not in read:
                read += server.read()
            waited = read.index(answer) - in_pipe
            run.results.add("stream-waiting/chunks", SUBJECT, max(waited, 0))


STREAMING: dict[str, Callable[[Run], None]] = {
    "streaming-health": measure_health,
    "streaming-http": measure_slow_reader,
    "streaming-pipe": measure_waiting,
}


class SlowReader(threading.Thread):
    """Reads a stream a sip at a time, and notes whether its chunks come in order."""

    def __init__(self, connection: Connection, request: bytes) -> None:
        super().__init__(daemon=True)
        self._socket, self._request = connection.socket, request
        self.chunks, self.in_order, self.end = 0, True, b""

    def run(self) -> None:
        self._socket.setblocking(True)
        self._socket.sendall(self._request)
        pending = b""
        while data := self._socket.recv(SIP):
            pending += data
            seen = 0
            for found in INDEX.finditer(pending):
                self.in_order &= int(found[1]) == self.chunks
                self.chunks += 1
                seen = found.end()
            pending = pending[seen:]
            if b'"chunks_sent":' in pending:
                self.end = pending
                return
            time.sleep(REST)

    def check(self, server: HttpServer, chunks: int) -> None:
        if not (self.in_order and self.chunks == chunks and b'"chunks_sent":%d' % chunks in self.end):
            raise server.failed(f"{self.chunks} of {chunks} chunks came, in order: {self.in_order}")


def _speak_mgp(server: ServerProcess) -> None:
    client = {"name": "bench", "version": "1"}
    server.request("initialize", {"protocolVersion": HANDSHAKE_VERSION, "capabilities": MGP, "clientInfo": client})
    write_all(server.input, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')


def _send(server: ServerProcess, request: Request) -> int:
    id = server.take_ids(1)
    write_all(server.input, request.before_id + b"%d" % id + request.after_id)
    return id


def _stream_of(server: HttpServer, chunks: int, session: str) -> bytes:
    params = {"name": "count", "arguments": {"chunks": chunks}, "_mgp": {"stream": True}}
    headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": HANDSHAKE_VERSION}
    return HttpRequest.of(server.port, {"method": "tools/call", "params": params}, headers).numbered(STREAM_ID)


def _when_full(server: ServerProcess) -> int:
    """The bytes in its pipe, once they grow no more."""
    before, now = -1, 0
    while before != now or not now:
        time.sleep(0.1)
        size = array.array("i", [0])
        fcntl.ioctl(server.output, termios.FIONREAD, size)
        before, now = now, size[0]
    return now
