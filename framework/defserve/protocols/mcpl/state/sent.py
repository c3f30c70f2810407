"""The checkpoints that a host has the content of."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final

REMEMBERED: Final = 256
LONGEST_ID: Final = 256


class SentCheckpoints:
    """The latest checkpoints whose content this session's host has."""

    __slots__ = ("_digests",)

    def __init__(self) -> None:
        self._digests: OrderedDict[str, bytes] = OrderedDict()

    def add(self, id: str, name: str, content: bytes) -> None:
        self._digests[id] = _digest(name, content)
        if len(self._digests) > REMEMBERED:
            self._digests.popitem(last=False)

    def knows(self, id: str | None) -> bool:
        return id in self._digests

    def find(self, name: str, content: bytes) -> str | None:
        """The latest checkpoint of a set with this content."""
        wanted = _digest(name, content)
        return next((id for id, digest in reversed(self._digests.items()) if digest == wanted), None)


def _digest(name: str, content: bytes) -> bytes:
    return sha256(b"%b\0%b" % (name.encode(), content)).digest()
