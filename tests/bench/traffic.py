"""Requests driven through a server's pipes for a while, and how long each took. Light, so as not to measure itself."""

from __future__ import annotations

import json
import os
import re
from time import perf_counter
from typing import Any, NamedTuple

from .processes import STATELESS_META, ServerProcess, write_all

REPLY_ID = re.compile(rb'"id": ?(\d+)')


class Request(NamedTuple):
    """A request encoded but for its id, which is put between the two parts."""

    before_id: bytes
    after_id: bytes

    @classmethod
    def of(cls, method: str, params: dict[str, Any]) -> Request:
        encoded = json.dumps({"method": method, "params": params}, separators=(",", ":")).encode()
        return cls(b'{"jsonrpc":"2.0","id":', b"," + encoded[1:] + b"\n")

    @classmethod
    def call(cls, tool: str, arguments: dict[str, Any], *, stateless: bool = False) -> Request:
        meta = {"_meta": STATELESS_META} if stateless else {}
        return cls.of("tools/call", {"name": tool, "arguments": arguments, **meta})


class Timing(NamedTuple):
    """What one burst of requests showed; latencies in seconds, unsorted."""

    per_second: float
    latencies: list[float]


def drive(server: ServerProcess, request: Request, *, window: int, seconds: float) -> Timing:
    """Keep `window` requests in flight for about `seconds`, then wait for the last.

    Raises ServerFailed if the server ends or the last ones fail.
    """
    return _one_at_a_time(server, request, seconds) if window == 1 else _pipelined(server, request, window, seconds)


def _one_at_a_time(server: ServerProcess, request: Request, seconds: float) -> Timing:
    before, after = request
    output = server.output
    latencies: list[float] = []
    began = sent = perf_counter()
    deadline = began + seconds
    reply = b""
    while sent < deadline:
        os.write(server.input, before + b"%d" % server.take_ids(1) + after)
        reply = os.read(output, 65536)
        while not reply.endswith(b"\n"):
            reply += server.read()
        now = perf_counter()
        latencies.append(now - sent)
        sent = now
    _check(server, reply)
    return Timing(len(latencies) / (sent - began), latencies)


def _pipelined(server: ServerProcess, request: Request, window: int, seconds: float) -> Timing:
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    began = perf_counter()
    deadline = began + seconds
    now = began
    _send(server, request, window, sent_at)
    pending = complete = b""
    while sent_at:
        data = pending + server.read()
        now = perf_counter()
        complete, newline, pending = data.rpartition(b"\n")
        if not newline:
            continue
        answered = [int(id) for id in REPLY_ID.findall(complete)]
        latencies.extend([now - sent_at.pop(id) for id in answered])
        if now < deadline:
            _send(server, request, len(answered), sent_at)
    _check(server, complete)
    return Timing(len(latencies) / (now - began), latencies)


def _send(server: ServerProcess, request: Request, count: int, sent_at: dict[int, float]) -> None:
    first = server.take_ids(count)
    ids = range(first, first + count)
    lines = [request.before_id + b"%d" % id + request.after_id for id in ids]
    sent_at.update(dict.fromkeys(ids, perf_counter()))
    write_all(server.input, b"".join(lines))


def _check(server: ServerProcess, replies: bytes) -> None:
    """Look at the last replies only: a server that fails one of these requests fails them all."""
    for line in replies.splitlines():
        reply = json.loads(line)
        if "result" not in reply or reply["result"].get("isError"):
            raise server.failed(f"a request answered {line.decode()[:500]}")
