"""Server-sent events as bytes (the WHATWG event stream format). No I/O."""

from __future__ import annotations

import re

CONTENT_TYPE = b"text/event-stream"

# Proxies must not cache, compress or buffer events, because they must arrive at once.
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

# A comment, which readers skip.
KEEP_ALIVE = b": keep-alive\n\n"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_UNSAFE = re.compile(r"[\r\n\0]")


def event(data: bytes, *, id: str | None = None, retry: int | None = None, name: str | None = None) -> bytes:
    """One event. `data` may be any bytes; `retry` is in milliseconds; without a `name` it is a `message`.

    Raises ValueError for an `id` or a `name` that would end its line.
    """
    head = ""
    if id is not None:
        head = f"id: {_one_line(id)}\n"
    if retry is not None:
        head += f"retry: {retry:d}\n"
    if name is not None:
        head += f"event: {_one_line(name)}\n"
    if b"\n" not in data and b"\r" not in data:
        return b"%bdata: %b\n\n" % (head.encode(), data)
    return head.encode() + b"".join(b"data: %b\n" % line for line in _LINE_END.split(data)) + b"\n"


def _one_line(text: str) -> str:
    if _UNSAFE.search(text):
        raise ValueError(f"{text!r} does not fit on one line of an event stream")
    return text
