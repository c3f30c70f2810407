"""Lines that cannot be decoded: which request one was meant to answer, by a bounded part of it."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic_core import from_json

from defserve.wire.codec import is_id
from defserve.wire.messages import Id, Reply

HEAD: Final = 16 * 1024
TAIL: Final = 1024
# A string without an end is taken whole: else each quote in it would be tried as a beginning.
TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?+|[{}\[\]]', re.DOTALL)
VALUE: Final = re.compile(rb'\s*+:\s*+(-?\d{1,18}(?=[\s,}])|"(?:[^"\\]|\\.){0,256}+")')
LAST: Final = re.compile(rb',\s*+"id"(\s*+:[^{}\[\]]{1,600})\}\s*+$')
OPEN: Final = (b"{", b"[")


class CutMessage(bytes):
    """The beginning and the end of a line that was longer than `limit` bytes."""

    limit = 0


class UnreadableReply(Reply):
    """Stands for a reply that cannot be decoded. `why` is in our own words."""

    __slots__ = ("why",)

    def __init__(self, id: Id | None, code: int, why: str) -> None:
        super().__init__(id, None, {"code": code, "message": f"the peer's reply is unreadable: {why}"})
        self.why = why


class Unreadable:
    """A line that is no message. `is_reply`: it may have been one; `id`: the request that it then answers, if found.

    What a program prints beside its messages is no reply, nor is anything with a method.
    """

    __slots__ = ("id", "is_reply")

    def __init__(self, data: bytes) -> None:
        head, tail = data[:HEAD].lstrip(), data[-TAIL:]
        members = _members(head)
        self.id: Id | None = None
        self.is_reply = (
            head.startswith(OPEN) and b'"method"' not in members and (b'"jsonrpc"' in head or b'"jsonrpc"' in tail)
        )
        if self.is_reply:
            last = LAST.search(tail)
            self.id = (
                _id_at(head, members[b'"id"']) if b'"id"' in members else _id_at(tail, last.start(1)) if last else None
            )


def _members(head: bytes) -> dict[bytes, int]:
    """The strings right inside the outermost object, each with the place where it ends."""
    found: dict[bytes, int] = {}
    depth = 0
    for token in TOKEN.finditer(head):
        if (text := token[0]) in OPEN:
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and head[token.end() : token.end() + 8].lstrip().startswith(b":"):
            found.setdefault(text, token.end())
    return found


def _id_at(data: bytes, place: int) -> Id | None:
    value = VALUE.match(data, place)
    try:
        id: Any = from_json(value[1]) if value else None
    except ValueError:
        return None
    return id if is_id(id) else None
