"""MGP §5: access control. Which tools an agent sees and calls, and the methods by which an admin changes that.

The caller is the agent that the transport authenticated; an id in a message is never authority. A change that cannot be
recorded is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from defserve.auth.authority import is_stranger
from defserve.auth.principals import ANONYMOUS_PREFIX, MAX_PRINCIPAL_ID_LENGTH, PERMISSION_SCOPES, parse_scopes
from defserve.base.hidden_characters import is_printable_line
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.messages import Params
from defserve.core.shapes import TEXT, one_of, read_member
from defserve.errors import InvalidParams, MethodNotFound, UsageError, explain_arguments
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import read_text_param
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.errors import AccessDenied, ServerNotFound

if TYPE_CHECKING:
    from defserve.auth.principals import Principal
    from defserve.core.registry import Registry
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.audit import AuditTrail
    from defserve.server.sharing import SharedAccessEntries


REFUSED = "dev.defserve.access_refused"
NO_ENTRY = "there is no such entry"

# The members of an entry that an admin sets.
GIVEN = ("entry_type", "agent_id", "tool_name", "permission", "justification")


class AccessSection(Extension):
    """`mgp/access/*`, and the gate before every tool of a server with an AccessPolicy. `clock` is the wall clock."""

    def __init__(
        self,
        policy: AccessPolicy,
        server_id: str,
        tools: Registry[Tool],
        audit: Callable[[], AuditTrail],
    ) -> None:
        self.policy, self._server_id, self._audit, self.clock = policy, server_id, audit, vocabulary.utc_now
        # The entries decide which tools an agent sees, so a change of them is a change of its list.
        policy.add_change_listener(tools.notify_watchers)

    # -- which policy ------------------------------------------------------------------------------------

    def find_policy_and_name(self, tool: Any) -> tuple[AccessPolicy, str]:
        """The policy that decides about a tool, and the tool's name in its entries."""
        return self.policy, tool.name

    def find_policy(self, server_id: str) -> AccessPolicy | None:
        """The policy of the server that a method names."""
        return self.policy if server_id == self._server_id else None

    def is_admin(self, call: Call) -> bool:
        return self.policy.is_admin(identify_caller(call))

    def needs_no_entry(self, tool: Any) -> bool:
        """Whether a tool lets its caller do only what other entries allow."""
        return tool.protects_itself

    def _is_default(self, tool: Any, decision: AccessDecision) -> bool:
        """Whether a default denies that is not meant for this tool."""
        return decision.source == "default_policy" and self.needs_no_entry(tool)

    # -- the gate ----------------------------------------------------------------------------------------

    def check_access(self, call: Call, tool: Tool) -> None:
        """Raises AccessDenied unless the caller may use the tool."""
        agent = identify_caller(call).id
        policy, name = self.find_policy_and_name(tool)
        decision = policy.decide(agent, name, self.clock())
        if decision.permission == "deny" and not self._is_default(tool, decision):
            raise AccessDenied(
                f"{agent} has no access to {tool.name} ({decision.source}): ask an admin of this server for it",
                details={"tool": tool.name, "agent_id": agent, "source": decision.source},
            )

    def has_tool_entry(self, caller: Principal, tool: Tool) -> bool:
        """Whether an entry allows the caller this very tool, and not the whole server."""
        policy, name = self.find_policy_and_name(tool)
        return policy.decide(caller.id, name, self.clock())[:2] == ("allow", "tool_grant")

    def visible(self, call: Call, item: Any) -> bool:
        """Whether lists show the caller an item. A call finds every tool, so that `admit` can say why it refuses."""
        if item.kind != "tool" or call.method == "tools/call":
            return True
        policy, name = self.find_policy_and_name(item)
        decision = policy.decide(identify_caller(call).id, name, self.clock())
        return decision.permission == "allow" or self._is_default(item, decision)

    def view(self, call: Call) -> object:
        """The rules that hold for the caller now. Callers with the same rules share one remembered list."""
        return self.policy.list_active_entries(identify_caller(call).id, self.clock())

    # -- methods (§5.4) ----------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {"mgp/access/query": self.query, "mgp/access/grant": self.grant, "mgp/access/revoke": self.revoke}

    def query(self, call: Call, params: Params) -> Params:
        """Whether an agent may use a tool or, if none is named, the server."""
        policy = self._check(call, params)
        decision = policy.decide(
            read_text_param(params, "agent_id"), read_member(params, "tool_name", TEXT, None), self.clock()
        )
        return {
            "permission": decision.permission,
            "source": decision.source,
            "granted_by": decision.granted_by,
            "granted_at": vocabulary.format_instant(decision.granted_at),
            "expires_at": vocabulary.format_instant(decision.expires_at),
        }

    async def grant(self, call: Call, params: Params) -> Params:
        """Set an entry, and answer with it. `granted_by` is always the caller; params cannot set it."""
        policy = self._check(call, params)
        entry, server_id = self._entry(call, params), read_text_param(params, "server_id")
        event = "ACCESS_GRANTED" if entry.permission == "allow" else "ACCESS_REVOKED"
        await call.in_thread(self._change, call, event, self.to_wire(entry, server_id), partial(policy.grant, entry))
        return self.to_wire(entry, server_id)

    async def revoke(self, call: Call, params: Params) -> Params:
        """Remove an entry. `revoked` says whether there was one."""
        policy, server_id = self._check(call, params), read_text_param(params, "server_id")
        agent_id, tool_name = read_text_param(params, "agent_id"), read_member(params, "tool_name", TEXT, None)
        entry_type = read_member(params, "entry_type", ENTRY_TYPE)
        if (entry_type == "tool_grant") != (tool_name is not None):
            raise InvalidParams("Invalid params: a tool_grant has a tool_name, a server_grant has none")
        if (entry := policy.entry(agent_id, tool_name)) is None:
            return {"revoked": False, "reason": NO_ENTRY}
        change = partial(policy.revoke, agent_id, tool_name)
        revoked = await call.in_thread(self._change, call, "ACCESS_REVOKED", self.to_wire(entry, server_id), change)
        if revoked is None:
            return {"revoked": False, "reason": NO_ENTRY}
        return {"revoked": True, **self.to_wire(revoked, server_id)}

    def _check(self, call: Call, params: Params) -> AccessPolicy:
        """The policy that is meant, if the caller may look at it and change it."""
        if not self.policy.has_admins:
            raise MethodNotFound(f"Method not found: {call.method}")
        caller = identify_caller(call)
        if not self.is_admin(call):
            self._audit().report_call_event(call, REFUSED, result="BLOCKED", details={"method": call.method})
            raise AccessDenied(f"{caller.id} is not an admin of this server", details={"agent_id": caller.id})
        if (policy := self.find_policy(id := read_text_param(params, "server_id"))) is None:
            raise ServerNotFound(f"there is no server {id[:128]!r} here; this server's own id is {self._server_id!r}")
        policy.require_current_entries()
        return policy

    def _entry(self, call: Call, params: Params) -> Entry:
        given: Any = {name: params.get(name) for name in GIVEN}
        try:
            return Entry(
                **given,
                granted_by=identify_caller(call).id,
                granted_at=self.clock(),
                expires_at=read_member(params, "expires_at", vocabulary.INSTANT_KIND, None),
            )
        except UsageError as error:
            raise InvalidParams(f"Invalid params: {error.problem}") from None

    def _change(self, call: Call, event: str, entry: Params, change: Callable[[], Entry | None]) -> Entry | None:
        """Record a change, then make it. A change that cannot be recorded is not made. Runs in a thread: it may write
        to disk."""
        self._audit().report_call_event(call, event, tool=entry["tool_name"], details=entry, durable=True)
        return change()

    def to_wire(self, entry: Entry, server_id: str) -> Params:
        """An entry as the methods tell it."""
        return {
            "entry_type": entry.entry_type,
            "agent_id": entry.agent_id,
            "server_id": server_id,
            "tool_name": entry.tool_name,
            "permission": entry.permission,
            "granted_by": entry.granted_by,
            "granted_at": vocabulary.format_instant(entry.granted_at),
            "expires_at": vocabulary.format_instant(entry.expires_at),
            "justification": entry.justification,
        }


# -- MGP §5.2, §5.3, §5.5: who may use which tool. Pure judgement over entries that are copied on write.


EntryType = Literal["server_grant", "tool_grant"]
ENTRY_TYPE = one_of(*get_args(EntryType))
Permission = Literal["allow", "deny"]
AccessDefault = Literal["opt-in", "opt-out"]
AccessSource = Literal["tool_grant", "server_grant", "default_policy"]

MAX_TOOL_NAME_LENGTH, MAX_JUSTIFICATION_LENGTH = 128, 2_000


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
        _text("agent_id", self.agent_id, MAX_PRINCIPAL_ID_LENGTH)
        _text("granted_by", self.granted_by, MAX_PRINCIPAL_ID_LENGTH)
        if self.entry_type == "tool_grant":
            _text("tool_name", self.tool_name, MAX_TOOL_NAME_LENGTH)
        elif self.tool_name is not None:
            raise UsageError("a server_grant has no tool_name", fix='leave it out, or make it a "tool_grant"')
        if self.justification is not None:
            _text("justification", self.justification, MAX_JUSTIFICATION_LENGTH)
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
    """Where granted entries outlive the process. When `store_entry` or `remove` returns, the change is safe."""

    def iter_entries(self) -> Iterable[Entry]: ...
    def store_entry(self, entry: Entry) -> None: ...
    def remove(self, entry: Entry) -> None: ...


# An agent has at most one entry for each tool, and one for the server, under None.
_Entries: TypeAlias = Mapping[str, Mapping[str | None, Entry]]

_FALLBACKS: Final[Mapping[AccessDefault, AccessDecision]] = {
    "opt-in": AccessDecision("deny", "default_policy"),
    "opt-out": AccessDecision("allow", "default_policy"),
}


@explain_arguments
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
        self.admins = _check_admins(admins)
        # Apart from the ids: whoever gives out scopes must not make an admin of who has a scope called like one.
        self.admin_scopes = frozenset(parse_scopes(admin_scopes))
        self._store, self._lock = store, Lock()
        self._shared: SharedAccessEntries | None = None
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._entries: _Entries = {}
        for entry in entries:
            if self.entry(entry.agent_id, entry.tool_name) is not None:
                subject = "the server" if entry.tool_name is None else f"tool {entry.tool_name!r}"
                raise UsageError(f"there are two entries for {entry.agent_id!r} and {subject}", fix="remove one")
            self._entries = _with(self._entries, entry)
        self._declared = self._entries
        self._entries = self._load_entries()

    def _load_entries(self) -> _Entries:
        found = self._declared
        for entry in self._store.iter_entries() if self._store is not None else ():
            found = _with(found, entry)
        for agent_id, tool_name, entry in self._shared.decisions() if self._shared is not None else ():
            if entry is not None:
                found = _with(found, entry)
            elif (removed := found.get(agent_id, {}).get(tool_name)) is not None:
                found = _without(found, removed)
        return found

    def share_entries(self, shared: SharedAccessEntries) -> None:
        """Decide together with other processes, from here on."""
        with self._lock:
            self._shared, self._declared = shared, self._entries

    def require_current_entries(self) -> None:
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
            before, self._entries = self._entries, self._load_entries()
        if before != self._entries:
            self._notify_watchers()

    def entries(self) -> list[Entry]:
        """All entries, also those that have expired."""
        return [entry for mine in self._entries.values() for entry in mine.values()]

    def decide(self, agent_id: str, tool_name: str | None, now: datetime) -> AccessDecision:
        """Whether an agent may use a tool or, if none is named, the server."""
        self.require_current_entries()
        mine = self._entries.get(agent_id, {})
        for subject in (tool_name, None):
            entry = mine.get(subject)
            if entry is not None and entry.holds(now):
                return AccessDecision(
                    entry.permission, entry.entry_type, entry.granted_by, entry.granted_at, entry.expires_at
                )
        return _FALLBACKS[self.default]

    def list_active_entries(self, agent_id: str, now: datetime) -> frozenset[tuple[str | None, Permission]]:
        """The entries that apply to an agent now. Agents with the same rules may do the same."""
        self.require_current_entries()
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
            self._shared.store_entry(entry)  # not while the lock is held: `reload` waits for it on the loop
        with self._lock:
            if self._store is not None:
                self._store.store_entry(entry)
            # Another process may have decided since.
            self._entries = _with(self._entries, entry) if self._shared is None else self._load_entries()
        self._notify_watchers()

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
            self._entries = _without(self._entries, entry) if self._shared is None else self._load_entries()
        self._notify_watchers()
        return entry

    def add_change_listener(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, in the thread that made it."""
        with self._lock:
            self._watchers = (*self._watchers, changed)

    def _notify_watchers(self) -> None:
        for changed in self._watchers:
            changed()


def _with(entries: _Entries, entry: Entry) -> _Entries:
    return {**entries, entry.agent_id: {**entries.get(entry.agent_id, {}), entry.tool_name: entry}}


def _without(entries: _Entries, entry: Entry) -> _Entries:
    mine = {subject: kept for subject, kept in entries[entry.agent_id].items() if subject != entry.tool_name}
    others = {agent: theirs for agent, theirs in entries.items() if agent != entry.agent_id}
    return {**others, entry.agent_id: mine} if mine else others


def _check_admins(admins: Iterable[str]) -> frozenset[str]:
    if isinstance(admins, str):
        raise UsageError(f"admins={admins!r} is not a list", fix=f"write admins=[{admins!r}]")
    found = frozenset(admins)
    for admin in found:
        _text("an admin", admin, MAX_PRINCIPAL_ID_LENGTH)
        if admin.startswith(ANONYMOUS_PREFIX):
            raise UsageError(
                f"{admin!r} cannot be an admin: anybody may call from an address",
                fix="name a token's principal, or 'local'; admin_scopes=[…] takes scopes",
            )
        if admin in PERMISSION_SCOPES.values():
            raise UsageError(f"{admin!r} is a scope, and admins are ids", fix=f"write admin_scopes=[{admin!r}]")
    return found


def _one_of(name: str, value: object, values: Any) -> None:
    if value not in get_args(values):
        raise UsageError(f"{name} must be one of {', '.join(get_args(values))}")


def _text(name: str, value: object, longest: int) -> None:
    if not isinstance(value, str) or not value or len(value) > longest or not is_printable_line(value):
        raise UsageError(f"{name} must be 1 to {longest} printable characters")
