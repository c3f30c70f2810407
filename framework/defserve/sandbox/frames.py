"""Messages over a pipe between two processes.

How it works: a frame is a letter, a length and so many bytes, mostly a line of JSON and what follows it. Who reads says
how much there may be of each letter, before anything of it is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

HEADER = struct.Struct(">cQ")

# To the process that owns the interpreter …
RUN, START, LOAD, RESUME, DUMP, LEAVE = b"X", b"S", b"L", b"R", b"D", b"E"
# … and from it. A NAME is asked and answered under the same letter, and a LEAVE is confirmed.
READY, PRINTED, CALL, NAME, WAITS, OUTCOME, SNAPSHOT = b"H", b"P", b"C", b"N", b"W", b"O", b"B"


class FrameError(Exception):
    """The other side sent what it may not send."""


def send_frame(file: IO[bytes], kind: bytes, data: bytes = b"", *, more: bool = False) -> None:
    """Write one frame. If `more` follow at once, it may wait for them."""
    file.write(HEADER.pack(kind, len(data)))
    file.write(data)
    if not more:
        file.flush()


def receive_frame(file: IO[bytes], most: Mapping[bytes, int] | None = None) -> tuple[bytes, bytes]:
    """The next frame. Raises EOFError at the end of the pipe, FrameError for one that is not in the table or larger."""
    head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        raise EOFError
    kind, size = HEADER.unpack(head)
    if most is not None and size > most.get(kind, -1):
        raise FrameError(f"a frame {kind!r} of {size} bytes")
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return kind, data


def join_parts(header: Mapping[str, Any], rest: bytes = b"") -> bytes:
    """A line of JSON, and what follows it."""
    return json.dumps(header).encode() + b"\n" + rest


def split_parts(data: bytes) -> tuple[Any, bytes]:
    """What `join_parts` joined. Raises FrameError for anything else."""
    line, _, rest = data.partition(b"\n")
    try:
        return json.loads(line), rest
    except ValueError:
        raise FrameError("a frame without its line") from None
