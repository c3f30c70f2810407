"""MGP §5.2, §5.3, §5.5: who may use which tool. Pure judgement over entries that are copied on write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from defserve.auth.authority import is_stranger
from defserve.auth.permissions import SCOPES
from defserve.auth.principals import ANONYMOUS_PREFIX, LONGEST_ID, checked_scopes
from defserve.base.hidden_characters import is_plain
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.auth.principals import Principal

EntryType = Literal["server_grant", "tool_grant"]
Permission = Literal["allow", "deny"]
AccessDefault = Literal["opt-in", "opt-out"]
AccessSource = Literal["tool_grant", "server_grant", "default_policy"]

LONGEST_TOOL_NAME, LONGEST_JUSTIFICATION = 128, 2_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision about an agent: for a tool (`tool_grant`), or for the whole server (`server_grant`).

    `agent_id` is a principal's id: a token's, `local`, or `anonymous:<address>`. Raises UsageError for an entry that
    makes no sense.
    """

    entry_type: EntryType
    agent_id: str
    tool_name: str | None = None
    permission: Permission = "allow"
    granted_by: str = "operator"
    granted_at: datetime | None = None
    expires_at: datetime | None = None
    justification: str | None = None

    def __post_init__(self) -> None:
        _one_of("entry_type", self.entry_type, EntryType)
        _one_of("permission", self.permission, Permission)
        _text("agent_id", self.agent_id, LONGEST_ID)
        _text("granted_by", self.granted_by, LONGEST_ID)
        if self.entry_type == "tool_grant":
            _text("tool_name", self.tool_name, LONGEST_TOOL_NAME)
        elif self.tool_name is not None:
            raise UsageError("a server_grant has no tool_name", fix='leave it out, or make it a "tool_grant"')
        if self.justification is not None:
            _text("justification", self.justification, LONGEST_JUSTIFICATION)
        for name in ("granted_at", "expires_at"):
            instant = getattr(self, name)
            if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
                raise UsageError(
                    f"{name}={instant!r} is not a datetime with a time zone", fix="use datetime(…, tzinfo=UTC)"
                )

    def holds(self, now: datetime) -> bool:
        """Whether it has not expired yet."""
        return self.expires_at is None or now < self.expires_at


class AccessDecision(NamedTuple):
    """Whether an agent is allowed, and which entry or default says so (§5.4)."""

    permission: Permission
    source: AccessSource
    granted_by: str | None = None
    granted_at: datetime | None = None
    expires_at: datetime | None = None


class EntryStore(Protocol):
    """Where granted entries outlive the process. When `put` or `remove` returns, the change is safe."""

    def load(self) -> Iterable[Entry]: ...
    def put(self, entry: Entry) -> None: ...
    def remove(self, entry: Entry) -> None: ...


class SharedDecisions(Protocol):
    """What the processes of one server have decided while they served. When `put` or `remove` returns in a thread, the
    change is safe. Each change, by whomever, is followed by `AccessPolicy.reload`."""

    def check(self) -> None:
        """Raises Refused until it is known what the others have decided."""
        ...

    def decisions(self) -> Iterable[tuple[str, str | None, Entry | None]]:
        """Each agent and tool (None: the server) that was decided about, and the entry. None: it was removed."""
        ...

    def put(self, entry: Entry) -> None: ...
    def remove(self, entry: Entry) -> None: ...


# An agent has at most one entry for each tool, and one for the server, under None.
_Entries: TypeAlias = Mapping[str, Mapping[str | None, Entry]]

_FALLBACKS: Final[Mapping[AccessDefault, AccessDecision]] = {
    "opt-in": AccessDecision("deny", "default_policy"),
    "opt-out": AccessDecision("allow", "default_policy"),
}


class AccessPolicy:
    """Which agents may use which tools. An agent's entry for the tool decides, then its entry for the server, then
    `default`.

    `opt-in` denies an agent without an entry, `opt-out` allows it. `admins` are ids of principals who may change
    entries over the wire, and so may whoever has one of the `admin_scopes`; without either, nobody can. `grant` and
    `revoke` may be called from any thread. An entry in `store` replaces one of `entries` for the same agent and tool.
    An entry of `entries` that is revoked comes back at the next start.
    """

    def __init__(
        self,
        default: AccessDefault = "opt-in",
        entries: Iterable[Entry] = (),
        admins: Iterable[str] = (),
        *,
        admin_scopes: Iterable[str] = (),
        store: EntryStore | None = None,
    ) -> None:
        _one_of("default", default, AccessDefault)
        self.default: AccessDefault = default
        self.admins = _checked_admins(admins)
        # Apart from the ids: whoever gives out scopes must not make an admin of who has a scope called like one.
        self.admin_scopes = frozenset(checked_scopes(admin_scopes))
        self._store, self._lock = store, Lock()
        self._shared: SharedDecisions | None = None
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._entries: _Entries = {}
        for entry in entries:
            if self.entry(entry.agent_id, entry.tool_name) is not None:
                subject = "the server" if entry.tool_name is None else f"tool {entry.tool_name!r}"
                raise UsageError(f"there are two entries for {entry.agent_id!r} and {subject}", fix="remove one")
            self._entries = _with(self._entries, entry)
        self._declared = self._entries
        self._entries = self._stored()

    def _stored(self) -> _Entries:
        found = self._declared
        for entry in self._store.load() if self._store is not None else ():
            found = _with(found, entry)
        for agent_id, tool_name, entry in self._shared.decisions() if self._shared is not None else ():
            if entry is not None:
                found = _with(found, entry)
            elif (removed := found.get(agent_id, {}).get(tool_name)) is not None:
                found = _without(found, removed)
        return found

    def share(self, shared: SharedDecisions) -> None:
        """Decide together with other processes, from here on."""
        with self._lock:
            self._shared, self._declared = shared, self._entries

    def check(self) -> None:
        """Raises Refused if other processes decide too and it is not known yet what: it may be that they revoked."""
        if self._shared is not None:
            self._shared.check()

    def is_declared(self, agent_id: str, tool_name: str | None) -> bool:
        """Whether there may be an entry that other processes have not decided about."""
        return self._store is not None or tool_name in self._declared.get(agent_id, {})

    def reload(self) -> None:
        """Take over what others have put into the store, or removed from it."""
        if self._store is None and self._shared is None:
            return
        with self._lock:
            before, self._entries = self._entries, self._stored()
        if before != self._entries:
            self._tell()

    def entries(self) -> list[Entry]:
        """All entries, also those that have expired."""
        return [entry for mine in self._entries.values() for entry in mine.values()]

    def decide(self, agent_id: str, tool_name: str | None, now: datetime) -> AccessDecision:
        """Whether an agent may use a tool or, if none is named, the server."""
        self.check()
        mine = self._entries.get(agent_id, {})
        for subject in (tool_name, None):
            entry = mine.get(subject)
            if entry is not None and entry.holds(now):
                return AccessDecision(
                    entry.permission, entry.entry_type, entry.granted_by, entry.granted_at, entry.expires_at
                )
        return _FALLBACKS[self.default]

    def rules(self, agent_id: str, now: datetime) -> frozenset[tuple[str | None, Permission]]:
        """The entries that apply to an agent now. Agents with the same rules may do the same."""
        self.check()
        mine = self._entries.get(agent_id, {}).items()
        return frozenset((subject, entry.permission) for subject, entry in mine if entry.holds(now))

    def entry(self, agent_id: str, tool_name: str | None = None) -> Entry | None:
        """The entry of an agent for a tool or, if none is named, for the server. None if there is none."""
        return self._entries.get(agent_id, {}).get(tool_name)

    def is_admin(self, principal: Principal) -> bool:
        """Whether a caller may change entries. An anonymous caller never may."""
        if is_stranger(principal):
            return False
        return principal.id in self.admins or not self.admin_scopes.isdisjoint(principal.scopes)

    @property
    def has_admins(self) -> bool:
        """Whether anybody may change entries over the wire."""
        return bool(self.admins or self.admin_scopes)

    def grant(self, entry: Entry) -> None:
        """Set an entry. It replaces the one the agent had for that tool or server."""
        if self._shared is not None:
            self._shared.put(entry)  # not while the lock is held: `reload` waits for it on the loop
        with self._lock:
            if self._store is not None:
                self._store.put(entry)
            # Another process may have decided since.
            self._entries = _with(self._entries, entry) if self._shared is None else self._stored()
        self._tell()

    def revoke(self, agent_id: str, tool_name: str | None = None) -> Entry | None:
        """Remove an agent's entry for a tool, or for the server. Returns it, or None if there was none."""
        found = self.entry(agent_id, tool_name)
        if self._shared is not None and found is not None:
            self._shared.remove(found)
        with self._lock:
            entry = found if self._shared is not None else self.entry(agent_id, tool_name)
            if entry is None:
                return None
            if self._store is not None:
                self._store.remove(entry)
            self._entries = _without(self._entries, entry) if self._shared is None else self._stored()
        self._tell()
        return entry

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, in the thread that made it."""
        with self._lock:
            self._watchers = (*self._watchers, changed)

    def _tell(self) -> None:
        for changed in self._watchers:
            changed()


def _with(entries: _Entries, entry: Entry) -> _Entries:
    return {**entries, entry.agent_id: {**entries.get(entry.agent_id, {}), entry.tool_name: entry}}


def _without(entries: _Entries, entry: Entry) -> _Entries:
    mine = {subject: kept for subject, kept in entries[entry.agent_id].items() if subject != entry.tool_name}
    others = {agent: theirs for agent, theirs in entries.items() if agent != entry.agent_id}
    return {**others, entry.agent_id: mine} if mine else others


def _checked_admins(admins: Iterable[str]) -> frozenset[str]:
    if isinstance(admins, str):
        raise UsageError(f"admins={admins!r} is not a list", fix=f"write admins=[{admins!r}]")
    found = frozenset(admins)
    for admin in found:
        _text("an admin", admin, LONGEST_ID)
        if admin.startswith(ANONYMOUS_PREFIX):
            raise UsageError(
                f"{admin!r} cannot be an admin: anybody may call from an address",
                fix="name a token's principal, or 'local'; admin_scopes=[…] takes scopes",
            )
        if admin in SCOPES.values():
            raise UsageError(f"{admin!r} is a scope, and admins are ids", fix=f"write admin_scopes=[{admin!r}]")
    return found


def _one_of(name: str, value: object, values: Any) -> None:
    if value not in get_args(values):
        raise UsageError(f"{name} must be one of {', '.join(get_args(values))}")


def _text(name: str, value: object, longest: int) -> None:
    if not isinstance(value, str) or not value or len(value) > longest or not is_plain(value):
        raise UsageError(f"{name} must be 1 to {longest} printable characters")
