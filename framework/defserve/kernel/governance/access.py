"""MGP §5 and §3 at a kernel: who operates it, a policy for each server behind it, and permissions that were granted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from defserve.auth.authority import is_local_user, is_stranger, make_anonymous_ip_principal
from defserve.auth.principals import LOCAL_PRINCIPAL, MAX_PRINCIPAL_ID_LENGTH, Principal
from defserve.base.hidden_characters import is_printable_line
from defserve.base.redaction import get_logger
from defserve.core.shapes import read_member
from defserve.errors import DefserveError, UsageError
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.access import MAX_TOOL_NAME_LENGTH, AccessDecision, AccessPolicy, AccessSection, Entry
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.permissions import PermissionSection
from defserve.protocols.mgp.server_discovery import OperatorTool
from defserve.protocols.mgp.vocabulary import (
    GRANTED_STATUS,
    OPERATOR_APPROVER,
    OPERATOR_DENIED_STATUS,
    PermissionStatus,
)

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.messages import Params
    from defserve.core.registry import Registry
    from defserve.core.session import PeerIdentity, Session
    from defserve.kernel.config.entries import KernelConfig
    from defserve.kernel.kernel import Kernel
    from defserve.kernel.kernel_state import KernelState, StateFile
    from defserve.kernel.members import KernelMember
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.audit import AuditTrail
    from defserve.protocols.mgp.terms import SecurityOptions


def needs_access_control(config: KernelConfig, state: StateFile) -> bool:
    """Whether callers are told apart, or the file says anything about access. If not, calls pay nothing for it."""
    settings = config.settings
    return bool(settings.admins or settings.keys or state.known.access) or has_opt_in_servers(config)


def has_opt_in_servers(config: KernelConfig) -> bool:
    """Whether callers need an entry for some server."""
    return "opt-in" in (config.settings.default_policy, *(entry.default_policy for entry in config.servers))


NETWORK_ADDRESSES: Final = ("http://", "https://", "ws://", "wss://")


def find_open_servers(config: KernelConfig, on: str, *, has_auth: bool) -> list[UsageError]:
    """Servers that unauthenticated callers at the address `on` use with the credentials of the file, and how to close
    each. Without an address, the file may yet be served at one."""
    settings = config.settings
    if has_auth or (on and not on.startswith(NETWORK_ADDRESSES)):
        return []
    callers = f"anyone who reaches {on}" if on else "served over HTTP, anyone who reaches this kernel"
    return [
        UsageError(
            f"{callers} can call {entry.id} with your credentials ({credential}): [kernel] has no keys",
            where=entry.where,
            fix=f'write keys = "keys.json" in [kernel] and run defserve keys create; or write default_policy = "opt-in"'
            f" for {entry.id}, and grant callers access",
        )
        for entry in config.servers
        if entry.enabled
        and (credential := entry.launch.credential)
        and (entry.default_policy or settings.default_policy) != "opt-in"
    ]


def make_kernel_policy(config: KernelConfig) -> AccessPolicy:
    """The policy of the kernel's own tools. They show and do only what their caller may."""
    return AccessPolicy("opt-out", admins=config.settings.admins or ("local",))


class ServerPolicy(AccessPolicy):
    """The policy of one server. An entry that cannot be read denies those who have no entry of their own."""

    def decide(self, agent_id: str, tool_name: str | None, now: datetime) -> AccessDecision:
        if UNREADABLE in self._entries:
            for subject in (tool_name, None):
                own, unreadable = self.entry(agent_id, subject), self.entry(UNREADABLE, subject)
                if own is not None and own.holds(now):
                    break
                if unreadable is not None and unreadable.permission == "deny" and unreadable.holds(now):
                    return AccessDecision("deny", unreadable.entry_type)
        return super().decide(agent_id, tool_name, now)


class KernelAccess(AccessSection):
    """The policies of all servers. A tool has the name that its own server gives it."""

    def __init__(
        self,
        kernel: Kernel,
        state: StateFile,
        policy: AccessPolicy,
        server_id: str,
        tools: Registry[Tool],
        audit: Callable[[], AuditTrail],
    ) -> None:
        super().__init__(policy, server_id, tools, audit)
        self._kernel, self._state = kernel, state
        self._policies: dict[str, ServerPolicy] = {}
        self._closed = AccessPolicy("opt-in")

    def find_policy_and_name(self, tool: Any) -> tuple[AccessPolicy, str]:
        if tool.backend is None:
            return self.policy, tool.name
        # A server that is on its way out may still be listed, and is nobody's.
        member = self._kernel.members.get(tool.server_id)
        return self._closed if member is None else self._policy(member), tool.inner

    def find_policy(self, server_id: str) -> AccessPolicy | None:
        member = self._kernel.members.get(server_id)
        return super().find_policy(server_id) if member is None else self._policy(member)

    def needs_no_entry(self, tool: Any) -> bool:
        return isinstance(tool, OperatorTool) or super().needs_no_entry(tool)

    def is_admin(self, call: Call) -> bool:
        return is_operator(identify_caller(call), self._kernel.config.settings.admins)

    def visible(self, call: Call, item: Any) -> bool:
        """What is not a tool has no entries of its own: the decision about its server holds for it."""
        if item.kind == "tool" or item.backend is None:
            return super().visible(call, item)
        return self._allows(item.backend.id, identify_caller(call).id)

    def may_use_server(self, id: str, session: Session | None, caller: PeerIdentity | None) -> bool:
        """Whether a caller in a session may use a server. See `MountedServer.open_to`."""
        if not isinstance(caller, Principal):
            caller = LOCAL_PRINCIPAL if session is not None and session.is_local else make_anonymous_ip_principal("")
        return self._allows(id, caller.id)

    def _allows(self, id: str, agent: str) -> bool:
        member = self._kernel.members.get(id)
        return member is not None and self._policy(member).decide(agent, None, self.clock()).permission == "allow"

    def view(self, call: Call) -> object:
        agent, now = identify_caller(call).id, self.clock()
        policies = ((id, self._policy(member)) for id, member in self._kernel.members.items())
        return frozenset((id, policy.default, policy.list_active_entries(agent, now)) for id, policy in policies)

    async def answer_access_query(self, call: Call, params: Params) -> Params:
        """`mgp/access/query`, for those who wait for answers."""
        return self.query(call, params)

    def refresh(self) -> None:
        """Other kernels of the same file have granted or revoked something."""
        for policy in self._policies.values():
            policy.reload()

    def drop_server(self, id: str) -> None:
        """A server is gone. The next one of that id has only what was kept."""
        self._policies.pop(id, None)

    def _policy(self, member: KernelMember) -> AccessPolicy:
        """What is granted for a server of the file is kept. Entries of a registered one end with it."""
        entry = member.entry
        default: Any = entry.default_policy or self._kernel.config.settings.default_policy
        known = self._policies.get(entry.id)
        if known is None:
            store = KeptEntries(self._state, entry.id) if member.creator is None else None
            known = self._policies[entry.id] = ServerPolicy(default, store=store)
            known.add_change_listener(self.notify_lists_changed)
        known.default = default
        return known

    def notify_lists_changed(self) -> None:
        """The lists of some callers have changed."""
        mcp = self._kernel.server.mcp
        for registry in (mcp.tools.registry, mcp.resources.concrete, mcp.resources.templates, mcp.prompts.registry):
            registry.notify_watchers()


# -- The access entries of one server in the kernel's state file. One that cannot be read allows nobody anything.


UNREADABLE: Final = "(unreadable)"
"""Stands for the agent of an entry that names none. It denies all who have no entry of their own."""
TIMES: Final = ("granted_at", "expires_at")
MEMBERS: Final = frozenset(each.name for each in fields(Entry))

log = get_logger("kernel")


class KeptEntries:
    """See `EntryStore`. What an entry that cannot be read may deny is among the entries, so operators can revoke it."""

    def __init__(self, state: StateFile, id: str) -> None:
        self._state, self._id = state, id

    def iter_entries(self) -> Iterable[Entry]:
        denials: list[Entry] = []
        for kept in self._state.known.access.get(self._id, ()):
            try:
                yield _parse_entry(kept)
            except DefserveError as error:
                found = _denials(kept)
                what = "it denies all that it may be about" if found else "it is left out"
                problem = str(error).partition("\n")[0]
                log.error("%s: an entry for %r cannot be read, so %s: %s", self._state.where, self._id, what, problem)
                denials += found
        # Last, because they outweigh what others allow.
        yield from denials

    def store_entry(self, entry: Entry) -> None:
        self._replace(entry, [_wire(entry)])

    def remove(self, entry: Entry) -> None:
        self._replace(entry, [])

    def _replace(self, entry: Entry, by: list[dict[str, Any]]) -> None:
        def change(state: KernelState) -> None:
            others = [row for kept in state.access.get(self._id, ()) for row in _without(kept, entry)]
            state.access[self._id] = [*others, *by]

        try:
            self._state.update(change)
        except OSError as error:
            from defserve.stores.store import StoreUnavailable

            log.error("%s: a decision on access cannot be kept: %s", self._state.where, error)
            raise StoreUnavailable("The decision cannot be kept; the log of the kernel says why") from None


def _parse_entry(kept: Mapping[str, Any]) -> Entry:
    """Raises UsageError or InvalidParams."""
    if unknown := kept.keys() - MEMBERS:
        raise UsageError(f"{min(unknown)[:100]!r} is not a member of an entry")
    needed: dict[str, Any] = {"entry_type": None, "agent_id": None}
    times: dict[str, Any] = {name: read_member(kept, name, vocabulary.INSTANT_KIND, None) for name in TIMES}
    return Entry(**{**needed, **kept, **times})


def _denials(kept: Mapping[str, Any]) -> list[Entry]:
    """What an entry that cannot be read may deny. Nothing, if it plainly allows."""
    if kept.get("permission") == "allow":
        return []
    agent = _text(kept.get("agent_id"), MAX_PRINCIPAL_ID_LENGTH) or UNREADABLE
    tool = _text(kept.get("tool_name"), MAX_TOOL_NAME_LENGTH)
    is_of_tool = tool is not None and kept.get("entry_type") == "tool_grant"
    why = "the entry in the state file cannot be read"
    return [
        *([Entry("tool_grant", agent, tool, "deny", justification=why)] if tool is not None else []),
        *([Entry("server_grant", agent, None, "deny", justification=why)] if not is_of_tool else []),
    ]


def _without(kept: dict[str, Any], entry: Entry) -> list[dict[str, Any]]:
    """What is kept for others than the agent and tool of `entry`."""
    try:
        found = [_parse_entry(kept)]
    except DefserveError:
        found = _denials(kept)
    subject = (entry.agent_id, entry.tool_name)
    left = [each for each in found if (each.agent_id, each.tool_name) != subject]
    is_other = len(left) == len(found) and (kept.get("agent_id"), kept.get("tool_name")) != subject
    return [kept] if is_other else [_wire(each) for each in left]


def _wire(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), **{name: vocabulary.format_instant(getattr(entry, name)) for name in TIMES}}


def _text(value: object, longest: int) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= longest and is_printable_line(value) else None


# -- Who operates a kernel: the local user, and the verified principals that `[kernel] admins` names.


def is_operator(caller: Principal, admins: Collection[str]) -> bool:
    return is_local_user(caller) or (not is_stranger(caller) and caller.id in admins)


def require_operator(call: Call, admins: Collection[str]) -> Principal:
    """Who calls. Raises PermissionDenied for a caller who is no operator."""
    caller = identify_caller(call)
    if not is_operator(caller, admins):
        raise PermissionDenied(f"{caller.id} may not operate the servers of this kernel")
    return caller


# -- MGP §3 at a kernel: what operators have decided about the permissions that each server needs.


PermissionDecision: TypeAlias = Literal["approved", "denied"]
INTERACTIVE_POLICY: Final = "interactive"
ASKED: Final = PermissionStatus("deferred", why="no operator has approved it yet")
MAX_ASKED_PERMISSIONS: Final = 4_096


@dataclass(slots=True)
class AskedPermission:
    """A permission that a call was refused for, because no operator has decided: how often, and for whom last."""

    calls: int
    agent_id: str
    at: datetime


class KernelPermissions(PermissionSection):
    """The permissions of the servers behind a kernel; those of its own tools are as at any server."""

    def __init__(
        self, options: SecurityOptions, audit: Callable[[], AuditTrail], state: StateFile, kernel: Kernel
    ) -> None:
        super().__init__(options, audit)
        self._state, self._kernel = state, kernel
        # Decisions about registered servers. They end with them: another server may have that id next.
        self._passing: dict[str, dict[str, dict[str, Any]]] = {}
        self.asked: dict[tuple[str, str], AskedPermission] = {}

    def find_permission_statuses(
        self, call: Call, names: Iterable[str], server_id: str | None = None
    ) -> dict[str, PermissionStatus]:
        found = super().find_permission_statuses(call, names)
        if server_id is None or (server_id not in self._kernel.members and not self._decisions(server_id)):
            return found
        decided = {name: self._apply_operator_decision(server_id, name, status) for name, status in found.items()}
        for name in (name for name, status in decided.items() if status is ASKED):
            self._ask(call, server_id, name)
        return decided

    def list_statuses_for_server(self, id: str, call: Call | None, names: Iterable[str]) -> dict[str, PermissionStatus]:
        """What a server is told of its permissions: for a call, or, without one, for callers that are vouched for."""
        found = dict.fromkeys(names, GRANTED_STATUS) if call is None else super().find_permission_statuses(call, names)
        return {name: self._apply_operator_decision(id, name, status) for name, status in found.items()}

    def grant(self, call: Call, params: Params) -> Params:
        result = super().grant(call, params)
        if call.session.engine.ready:
            call.session.engine.spawn(self.notify_servers())
        return result

    async def notify_servers(self, id: str | None = None) -> None:
        """Somebody has decided: servers that speak MGP are told, one of them or all."""
        backends = (one.backend for one in self._kernel.members.values() if id in (None, one.id))
        await asyncio.gather(*(backend.notify_permission_decisions() for backend in backends if backend is not None))

    def _apply_operator_decision(self, id: str, name: str, status: PermissionStatus) -> PermissionStatus:
        kept = self._decisions(id).get(name)
        # One that is neither was not written by a kernel of this version, and allows nothing.
        if kept is not None and kept.get("decision") != "approved":
            return OPERATOR_DENIED_STATUS
        if status.decision != "approved" and status.by not in (None, OPERATOR_APPROVER):
            return status  # the caller itself has given it up
        if kept is not None:
            return GRANTED_STATUS
        return ASKED if self._kernel.config.settings.permissions == INTERACTIVE_POLICY else status

    def _ask(self, call: Call, id: str, name: str) -> None:
        agent, now = identify_caller(call).id, self.clock()
        if (asked := self.asked.get((id, name))) is not None:
            asked.calls, asked.agent_id, asked.at = asked.calls + 1, agent, now
        elif len(self.asked) < MAX_ASKED_PERMISSIONS:
            self.asked[id, name] = AskedPermission(1, agent, now)

    def get_decision(self, id: str, name: str) -> dict[str, Any]:
        """What an operator has decided about a permission of a server: `decision`, `by`, `at`, `reason`; or nothing."""
        return self._decisions(id).get(name, {})

    def _decisions(self, id: str) -> dict[str, dict[str, Any]]:
        return self._passing.get(id, {}) if self._is_registered(id) else self._state.known.permissions.get(id, {})

    def _is_registered(self, id: str) -> bool:
        member = self._kernel.members.get(id)
        return member is not None and member.creator is not None

    def store_decision(self, id: str, names: Iterable[str], decision: PermissionDecision, by: str, reason: str) -> None:
        """Keep an operator's decision. Raises OSError if that fails."""
        kept = {"decision": decision, "by": by, "at": vocabulary.format_instant(self.clock()), "reason": reason}
        decided = dict.fromkeys(names, kept)
        if self._is_registered(id):
            self._passing.setdefault(id, {}).update(decided)
        else:
            self._state.update(lambda state: state.permissions.setdefault(id, {}).update(decided))
        for name in decided:
            self.asked.pop((id, name), None)

    def drop_server(self, id: str) -> None:
        """A server is gone. What was decided about one of the file stays."""
        self._passing.pop(id, None)
        for key in [key for key in self.asked if key[0] == id]:
            del self.asked[key]

    def _remedy(self, call: Call, tool: Tool, names: list[str]) -> str:
        if tool.server_id is None:
            return super()._remedy(call, tool, names)
        return f"An operator approves it: defserve kernel permissions approve {tool.server_id} {names[0]}."
