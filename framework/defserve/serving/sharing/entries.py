"""MGP's access entries: granted or revoked in one process, they hold in all, and outlive them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from defserve.protocols.mcp.resources.subscriptions import Subscriptions
from defserve.protocols.mgp.access.policy import AccessPolicy, Entry
from defserve.stores.shared.link import SharedLink
from defserve.stores.shared.tables import SharedTable
from defserve.stores.store import StoreUnavailable

TABLE = "access"
INSTANTS = ("granted_at", "expires_at")
# The clocks of machines differ.
SLACK: Final = timedelta(hours=1)
MOST_DROPPED: Final = 1000


class SharedEntries:
    """The decisions of a policy that were made while it was served.

    An entry that was removed is kept as None if it would come back otherwise.
    """

    def __init__(self, link: SharedLink, policy: AccessPolicy, subscriptions: Subscriptions) -> None:
        def reload() -> None:
            # The process that decided tells all sessions that their lists have changed.
            with subscriptions.told_elsewhere():
                policy.reload()

        self._table, self._policy = SharedTable(link, TABLE, reload), policy
        policy.share(self)

    def check(self) -> None:
        if not self._table.is_loaded:
            raise StoreUnavailable("The store cannot be reached: who may use what is not known yet")

    def decisions(self) -> Iterable[tuple[str, str | None, Entry | None]]:
        for name, value in self._table.values.items():
            agent, tool = json.loads(name)
            yield agent, tool, _entry(json.loads(value))

    def put(self, entry: Entry) -> None:
        written = asdict(entry) | {name: _text(getattr(entry, name)) for name in INSTANTS}
        self._table.put(
            json.dumps([entry.agent_id, entry.tool_name]),
            json.dumps(written),
            is_restrictive=entry.permission == "deny",
            dropped=self._expired(),
        )

    def remove(self, entry: Entry) -> None:
        name, is_declared = [entry.agent_id, entry.tool_name], self._policy.is_declared(entry.agent_id, entry.tool_name)
        self._table.put(json.dumps(name), json.dumps(None) if is_declared else "", is_restrictive=True)

    def _expired(self) -> dict[str, str]:
        """Entries that say nothing any more, as they are in the table."""
        instant, found = datetime.now(UTC) - SLACK, dict[str, str]()
        for name, value in self._table.values.items():
            entry = _entry(json.loads(value))
            if entry is None or entry.holds(instant) or self._policy.is_declared(entry.agent_id, entry.tool_name):
                continue
            found[name] = value
            if len(found) == MOST_DROPPED:
                break
        return found


def _text(instant: datetime | None) -> str | None:
    return instant.isoformat() if instant is not None else None


def _entry(written: Any) -> Entry | None:
    if written is None:
        return None
    given: dict[str, Any] = {**written}
    for name in INSTANTS:
        given[name] = datetime.fromisoformat(given[name]) if given[name] is not None else None
    return Entry(**given)
