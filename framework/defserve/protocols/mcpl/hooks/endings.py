"""MCPL 0.5 §10: which inferences of a session have begun and ended. An end counts once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

REMEMBERED: Final = 1_000
LONGEST_ID: Final = 256


class SeenInferences:
    """The latest inferences of one session: True once they have ended."""

    __slots__ = ("_ended",)

    def __init__(self) -> None:
        self._ended: OrderedDict[str, bool] = OrderedDict()

    def begin(self, id: str) -> None:
        self._note(id, self._ended.get(id[:LONGEST_ID], False))

    def end(self, id: str) -> bool:
        """Whether this is the first end of an inference. Its beginning may have been missed."""
        is_first = not self._ended.get(id[:LONGEST_ID], False)
        self._note(id, True)
        return is_first

    def _note(self, id: str, ended: bool) -> None:
        self._ended[id[:LONGEST_ID]] = ended
        self._ended.move_to_end(id[:LONGEST_ID])
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
