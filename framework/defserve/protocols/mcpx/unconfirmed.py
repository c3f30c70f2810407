"""Messages of ours that did not come back yet. Some gateways refuse a message without saying which one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MOST_UNCONFIRMED: Final = 1_000


class UnconfirmedMessages:
    """The id and the kind of each message since it was sent, until the gateway sends it to us as well.

    A gateway handles the messages of one connection in order. So a refusal is about the oldest message of its kind
    that did not come back.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}

    def add(self, id: str, kind: str) -> None:
        """A message was sent. Beyond a limit, the oldest are forgotten."""
        if len(self._kinds) >= MOST_UNCONFIRMED:
            self._kinds.pop(next(iter(self._kinds)), None)
        self._kinds[id] = kind

    def discard(self, id: str) -> None:
        """The message came back, or was answered."""
        self._kinds.pop(id, None)

    def clear(self) -> None:
        self._kinds.clear()

    def refused(self, payload: Mapping[str, Any]) -> str | None:
        """The id of the message that a refusal is about; None if that cannot be told."""
        kind, waiting = payload.get("attempted_kind"), list(self._kinds.items())
        if isinstance(kind, str):
            found = next((id for id, sent in waiting if sent == kind), None)
        else:
            found = waiting[0][0] if len(waiting) == 1 else None
        if found is not None:
            self.discard(found)
        return found
