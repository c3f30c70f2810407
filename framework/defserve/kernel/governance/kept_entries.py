"""The access entries of one server in the kernel's state file. One that cannot be read allows nobody anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from defserve.auth.principals import LONGEST_ID
from defserve.base.hidden_characters import is_plain
from defserve.errors import DefserveError, UsageError
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.access.policy import LONGEST_TOOL_NAME, Entry

if TYPE_CHECKING:
    from defserve.kernel.governance.state_file import KernelState, StateFile

UNREADABLE: Final = "(unreadable)"
"""Stands for the agent of an entry that names none. It denies all who have no entry of their own."""
TIMES: Final = ("granted_at", "expires_at")
MEMBERS: Final = frozenset(each.name for each in fields(Entry))

log = logging.getLogger("defserve.kernel")


class KeptEntries:
    """See `EntryStore`. What an entry that cannot be read may deny is among the entries, so operators can revoke it."""

    def __init__(self, state: StateFile, id: str) -> None:
        self._state, self._id = state, id

    def load(self) -> Iterable[Entry]:
        denials: list[Entry] = []
        for kept in self._state.known.access.get(self._id, ()):
            try:
                yield _read(kept)
            except DefserveError as error:
                found = _denials(kept)
                what = "it denies all that it may be about" if found else "it is left out"
                problem = str(error).partition("\n")[0]
                log.error("%s: an entry for %r cannot be read, so %s: %s", self._state.path, self._id, what, problem)
                denials += found
        # Last, because they outweigh what others allow.
        yield from denials

    def put(self, entry: Entry) -> None:
        self._replace(entry, [_wire(entry)])

    def remove(self, entry: Entry) -> None:
        self._replace(entry, [])

    def _replace(self, entry: Entry, by: list[dict[str, Any]]) -> None:
        def change(state: KernelState) -> None:
            others = [row for kept in state.access.get(self._id, ()) for row in _without(kept, entry)]
            state.access[self._id] = [*others, *by]

        self._state.update(change)


def _read(kept: Mapping[str, Any]) -> Entry:
    """Raises UsageError or InvalidParams."""
    if unknown := kept.keys() - MEMBERS:
        raise UsageError(f"{min(unknown)[:100]!r} is not a member of an entry")
    needed: dict[str, Any] = {"entry_type": None, "agent_id": None}
    times: dict[str, Any] = {name: instants.read(kept.get(name), name) for name in TIMES}
    return Entry(**{**needed, **kept, **times})


def _denials(kept: Mapping[str, Any]) -> list[Entry]:
    """What an entry that cannot be read may deny. Nothing, if it plainly allows."""
    if kept.get("permission") == "allow":
        return []
    agent = _text(kept.get("agent_id"), LONGEST_ID) or UNREADABLE
    tool = _text(kept.get("tool_name"), LONGEST_TOOL_NAME)
    is_of_tool = tool is not None and kept.get("entry_type") == "tool_grant"
    why = "the entry in the state file cannot be read"
    return [
        *([Entry("tool_grant", agent, tool, "deny", justification=why)] if tool is not None else []),
        *([Entry("server_grant", agent, None, "deny", justification=why)] if not is_of_tool else []),
    ]


def _without(kept: dict[str, Any], entry: Entry) -> list[dict[str, Any]]:
    """What is kept for others than the agent and tool of `entry`."""
    try:
        found = [_read(kept)]
    except DefserveError:
        found = _denials(kept)
    subject = (entry.agent_id, entry.tool_name)
    left = [each for each in found if (each.agent_id, each.tool_name) != subject]
    is_other = len(left) == len(found) and (kept.get("agent_id"), kept.get("tool_name")) != subject
    return [kept] if is_other else [_wire(each) for each in left]


def _wire(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), **{name: instants.wire(getattr(entry, name)) for name in TIMES}}


def _text(value: object, longest: int) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= longest and is_plain(value) else None
