"""News that is told to each session once, whichever worker tells it."""

from __future__ import annotations


class Delivery:
    """One piece of news that sessions are being told. Each message that tells a session has an id of its own.

    `record` is a field of the session's record that is kept together with the next message, and its value.
    """

    __slots__ = ("id", "record", "_counts")

    def __init__(self, id: str) -> None:
        self.id, self.record = id, ("", "")
        self._counts: dict[str, int] = {}

    def next_id(self, session: str) -> str:
        count = self._counts[session] = self._counts.get(session, 0) + 1
        return f"{self.id}-{count}"

    def skip(self, session: str, delivered: str) -> bool:
        """Whether the next message is there already: `delivered` is the id of the last one. Then it is left out."""
        time, place, last = ([int(part) for part in delivered.split("-")] + [0])[:3]
        count, mine = self._counts.get(session, 0) + 1, tuple(map(int, self.id.split("-")))
        if mine > (time, place) or (mine == (time, place) and count > last):
            return False
        self._counts[session] = count
        return True
