"""Servers mounted on the one that a command is about: which of them are not connected, and why, told once."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any, Final

from defserve.cli.log_filters import filtered
from defserve.host.client import Client
from defserve.host.fields import object_of

STATES: Final = "dev.defserve/servers"
"""In `_meta` of a list: the mounted servers whose items may be missing."""


async def not_connected(client: Client) -> dict[str, str]:
    """The mounted servers that are not connected, each with what its server says of it."""
    if "tools" not in client.capabilities:
        return {}
    answer = await client.request("tools/list", {})
    states: dict[str, Any] = object_of(object_of(answer.get("_meta")).get(STATES))
    return {id: str(object_of(state).get("note") or "it is not connected") for id, state in states.items()}


def told_once() -> AbstractContextManager[None]:
    """While the block runs, the log says the same about a mounted server only once. Each attempt to start it tells."""
    return filtered(logging.getLogger("defserve.proxying"), _Once())


class _Once(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in self._told
        self._told.add(text)
        return is_new
