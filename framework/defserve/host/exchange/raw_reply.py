"""Replies whose result is kept as the bytes that came, so that it can be passed on without being encoded again."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic_core import from_json

from defserve.wire.codec import decode, encode
from defserve.wire.jsonvalue import excess
from defserve.wire.messages import Encoded, Id, Message, Reply

DEPTH: Final = 64
KEYS: Final = 10_000

# The two ways in which servers write a successful reply. The result stands between a known start and a known end.
ID_FIRST: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":(0|[1-9][0-9]{0,17}),"result":').match
RESULT_FIRST: Final = b'{"result":'
ID_LAST: Final = re.compile(rb',"jsonrpc":"2\.0","id":(0|[1-9][0-9]{0,17})\}\Z').search
LONGEST_END: Final = len(b',"jsonrpc":"2.0","id":}') + 18
CLOSING: Final = ord("}")


class RawReply(Reply):
    """A reply and the bytes of its result. `result` and `error` are decoded; `error` is None if it went well."""

    __slots__ = ("_bytes",)

    def __init__(self, id: Id | None, result: Any, error: dict[str, Any] | None, bytes: bytes | None = None) -> None:
        # Not by `super`: a proxy makes one for every call.
        self.id, self.result, self.error, self._bytes = id, result, error, bytes

    @property
    def raw(self) -> Encoded:
        """The result as JSON on one line: the server's own bytes where possible, else encoded again."""
        data = self._bytes
        # A body may be laid out over several lines. A line feed would break the framing of a pipe, a CR that of events.
        if data is None or b"\n" in data or b"\r" in data:
            return Encoded(encode(self.result))
        return Encoded(data)


def read(data: bytes) -> Message | list[Message]:
    """What `decode` gives. A successful reply in one of the usual forms is a `RawReply`."""
    if found := ID_FIRST(data):
        # `}` closes the reply, because nothing but a whole JSON value is accepted before it.
        number, part = found[1], data[found.end() : -1]
        if data[-1] != CLOSING:
            return decode(data)
    elif data.startswith(RESULT_FIRST) and (found := ID_LAST(data, max(0, len(data) - LONGEST_END))):
        number, part = found[1], data[len(RESULT_FIRST) : found.start()]
    else:
        return decode(data)
    try:
        value = from_json(part, allow_inf_nan=False)
    except ValueError:
        return decode(data)
    # Like `decode`: walk only what could be too deep or too wide.
    if (
        len(part) >= 2 * DEPTH
        and (part.count(b"{") + part.count(b"[") >= DEPTH or (len(part) > KEYS and part.count(b":") > KEYS))
        and excess(value, DEPTH - 1, KEYS) is not None
    ):
        return decode(data)
    return RawReply(int(number), value, None, part)
