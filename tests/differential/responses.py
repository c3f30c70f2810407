"""What a server's responses say about the requests that it has read."""

from __future__ import annotations

import re
from typing import NamedTuple

_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


class Reading(NamedTuple):
    """The requests that a server has read, as it told them, and what it did with the rest of the stream.

    `refused`: it answered with an error or closed the connection. Otherwise it was ready for more, or waited for it.
    """

    requests: tuple[bytes, ...]
    refused: bool


def read_responses(data: bytes, *, was_closed: bool) -> Reading:
    """The requests behind all good responses, up to the first refusal."""
    requests, at = list[bytes](), 0
    while (found := _HEAD.match(data, at)) is not None:
        status, at = int(found[1]), found.end()
        if status < 200:
            continue
        body, at = _read_body(data, at, found[2].lower())
        if status != 200:
            return Reading(tuple(requests), refused=True)
        requests.append(body)
    return Reading(tuple(requests), refused=was_closed)


def _read_body(data: bytes, at: int, head: bytes) -> tuple[bytes, int]:
    if (length := re.search(rb"content-length: *(\d+)", head)) is not None:
        end = at + int(length[1])
        return data[at:end], end
    if b"chunked" not in head:
        return data[at:], len(data)
    body = b""
    while (size := re.compile(rb"([0-9a-f]+)\r\n").match(data, at)) is not None:
        end = size.end() + int(size[1], 16)
        body, at = body + data[size.end() : end], end + 2
        if size[1] == b"0":
            break
    return body, at
