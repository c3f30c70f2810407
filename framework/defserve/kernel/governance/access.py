"""MGP §5 at a kernel: one policy for each server behind it, with the default that the file says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from defserve.auth.authority import stranger_at
from defserve.auth.principals import LOCAL, Principal
from defserve.kernel.governance.kept_entries import UNREADABLE, KeptEntries
from defserve.kernel.governance.operators import is_operator
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mgp.access.access import AccessSection
from defserve.protocols.mgp.access.policy import AccessDecision, AccessPolicy
from defserve.protocols.mgp.discovery.operator_tools import OperatorTool

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.registry import Registry
    from defserve.core.session import PeerIdentity, Session
    from defserve.kernel.config.entries import KernelConfig
    from defserve.kernel.governance.state_file import StateFile
    from defserve.kernel.members import Member
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.audit.trail import AuditTrail
    from defserve.server.server import Server
    from defserve.wire.messages import Params

LOCAL_ADMIN: Final = ("local",)


class GovernedServers(Protocol):
    """The part of a kernel whose servers have policies."""

    config: KernelConfig
    server: Server
    members: dict[str, Member]


def wants_access(config: KernelConfig, state: StateFile) -> bool:
    """Whether callers are told apart, or the file says anything about access. If not, calls pay nothing for it."""
    settings = config.settings
    return bool(settings.admins or settings.keys or state.known.access) or closes_servers(config)


def closes_servers(config: KernelConfig) -> bool:
    """Whether callers need an entry for some server."""
    return "opt-in" in (config.settings.default_policy, *(entry.default_policy for entry in config.servers))


def own_policy(config: KernelConfig) -> AccessPolicy:
    """The policy of the kernel's own tools. They show and do only what their caller may."""
    return AccessPolicy("opt-out", admins=config.settings.admins or LOCAL_ADMIN)


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
        kernel: GovernedServers,
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

    def of(self, tool: Any) -> tuple[AccessPolicy, str]:
        if tool.backend is None:
            return self.policy, tool.name
        # A server that is on its way out may still be listed, and is nobody's.
        member = self._kernel.members.get(tool.server_id)
        return self._closed if member is None else self._policy(member), tool.inner

    def named(self, server_id: str) -> AccessPolicy | None:
        member = self._kernel.members.get(server_id)
        return super().named(server_id) if member is None else self._policy(member)

    def needs_no_entry(self, tool: Any) -> bool:
        return isinstance(tool, OperatorTool) or super().needs_no_entry(tool)

    def is_admin(self, call: Call) -> bool:
        return is_operator(identity(call), self._kernel.config.settings.admins)

    def visible(self, call: Call, item: Any) -> bool:
        """What is not a tool has no entries of its own: the decision about its server holds for it."""
        if item.kind == "tool" or item.backend is None:
            return super().visible(call, item)
        return self._allows(item.backend.id, identity(call).id)

    def opens(self, id: str, session: Session, caller: PeerIdentity | None) -> bool:
        """Whether a caller in a session may use a server. See `MountedServer.open_to`."""
        if not isinstance(caller, Principal):
            caller = LOCAL if session.is_local else stranger_at("")
        return self._allows(id, caller.id)

    def _allows(self, id: str, agent: str) -> bool:
        member = self._kernel.members.get(id)
        return member is not None and self._policy(member).decide(agent, None, self.clock()).permission == "allow"

    def view(self, call: Call) -> object:
        agent, now = identity(call).id, self.clock()
        policies = ((id, self._policy(member)) for id, member in self._kernel.members.items())
        return frozenset((id, policy.default, policy.rules(agent, now)) for id, policy in policies)

    async def answer_query(self, call: Call, params: Params) -> Params:
        """`mgp/access/query`, for those who wait for answers."""
        return self.query(call, params)

    def refresh(self) -> None:
        """Other kernels of the same file have granted or revoked something."""
        for policy in self._policies.values():
            policy.reload()

    def forget(self, id: str) -> None:
        """A server is gone. The next one of that id has only what was kept."""
        self._policies.pop(id, None)

    def _policy(self, member: Member) -> AccessPolicy:
        """What is granted for a server of the file is kept. Entries of a registered one end with it."""
        entry = member.entry
        default: Any = entry.default_policy or self._kernel.config.settings.default_policy
        known = self._policies.get(entry.id)
        if known is None:
            store = KeptEntries(self._state, entry.id) if member.creator is None else None
            known = self._policies[entry.id] = ServerPolicy(default, store=store)
            known.watch(self.touch)
        known.default = default
        return known

    def touch(self) -> None:
        """The lists of some callers have changed."""
        mcp = self._kernel.server.mcp
        for registry in (mcp.tools.registry, mcp.resources.concrete, mcp.resources.templates, mcp.prompts.registry):
            registry.touch()
