"""MGP §5: access control. Which tools an agent sees and calls, and the methods by which an admin changes that.

The caller is the agent that the transport authenticated. An `agent_id` in params only says which agent an admin means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from defserve.core.call import Call
from defserve.errors import InvalidParams, MethodNotFound, UsageError
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.params import text
from defserve.protocols.mgp import instants
from defserve.protocols.mgp.access.policy import AccessDecision, AccessPolicy, Entry, EntryType
from defserve.protocols.mgp.errors import AccessDenied, ServerNotFound
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.registry import Registry
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.audit.trail import AuditTrail

REFUSED = "dev.defserve.access_refused"
NO_ENTRY = "there is no such entry"
# The members of an entry that an admin sets.
GIVEN = ("entry_type", "agent_id", "tool_name", "permission", "justification")


class AccessSection:
    """`mgp/access/*`, and the gate before every tool of a server with an AccessPolicy. `clock` is the wall clock."""

    def __init__(
        self,
        policy: AccessPolicy,
        server_id: str,
        tools: Registry[Tool],
        audit: Callable[[], AuditTrail],
    ) -> None:
        self.policy, self._server_id, self._audit, self.clock = policy, server_id, audit, instants.now
        # The entries decide which tools an agent sees, so a change of them is a change of its list.
        policy.watch(tools.touch)

    # -- which policy ------------------------------------------------------------------------------------

    def of(self, tool: Any) -> tuple[AccessPolicy, str]:
        """The policy that decides about a tool, and the tool's name in its entries."""
        return self.policy, tool.name

    def named(self, server_id: str) -> AccessPolicy | None:
        """The policy of the server that a method names."""
        return self.policy if server_id == self._server_id else None

    def is_admin(self, call: Call) -> bool:
        return self.policy.is_admin(identity(call))

    def needs_no_entry(self, tool: Any) -> bool:
        """Whether a tool lets its caller do only what other entries allow."""
        return tool.protects_itself

    def _is_default(self, tool: Any, decision: AccessDecision) -> bool:
        """Whether a default denies that is not meant for this tool."""
        return decision.source == "default_policy" and self.needs_no_entry(tool)

    # -- the gate ----------------------------------------------------------------------------------------

    def admit(self, call: Call, tool: Tool) -> None:
        """Raises AccessDenied unless the caller may use the tool."""
        agent = identity(call).id
        policy, name = self.of(tool)
        decision = policy.decide(agent, name, self.clock())
        if decision.permission == "deny" and not self._is_default(tool, decision):
            raise AccessDenied(
                f"{agent} has no access to {tool.name} ({decision.source}): ask an admin of this server for it",
                details={"tool": tool.name, "agent_id": agent, "source": decision.source},
            )

    def visible(self, call: Call, item: Any) -> bool:
        """Whether lists show the caller an item. A call finds every tool, so that `admit` can say why it refuses."""
        if item.kind != "tool" or call.method == "tools/call":
            return True
        policy, name = self.of(item)
        decision = policy.decide(identity(call).id, name, self.clock())
        return decision.permission == "allow" or self._is_default(item, decision)

    def view(self, call: Call) -> object:
        """The rules that hold for the caller now. Callers with the same rules share one remembered list."""
        return self.policy.rules(identity(call).id, self.clock())

    # -- methods (§5.4) ----------------------------------------------------------------------------------

    def query(self, call: Call, params: Params) -> Params:
        """Whether an agent may use a tool or, if none is named, the server."""
        policy = self._check(call, params)
        decision = policy.decide(text(params, "agent_id"), _tool_name(params), self.clock())
        return {
            "permission": decision.permission,
            "source": decision.source,
            "granted_by": decision.granted_by,
            "granted_at": instants.wire(decision.granted_at),
            "expires_at": instants.wire(decision.expires_at),
        }

    async def grant(self, call: Call, params: Params) -> Params:
        """Set an entry, and answer with it. `granted_by` is always the caller; params cannot set it."""
        policy = self._check(call, params)
        entry, server_id = self._entry(call, params), text(params, "server_id")
        event = "ACCESS_GRANTED" if entry.permission == "allow" else "ACCESS_REVOKED"
        await call.in_thread(self._change, call, event, self.wire(entry, server_id), partial(policy.grant, entry))
        return self.wire(entry, server_id)

    async def revoke(self, call: Call, params: Params) -> Params:
        """Remove an entry. `revoked` says whether there was one."""
        policy, server_id = self._check(call, params), text(params, "server_id")
        agent_id, tool_name, entry_type = text(params, "agent_id"), _tool_name(params), text(params, "entry_type")
        if entry_type not in get_args(EntryType):
            raise InvalidParams(f"Invalid params: entry_type must be one of {', '.join(get_args(EntryType))}")
        if (entry_type == "tool_grant") != (tool_name is not None):
            raise InvalidParams("Invalid params: a tool_grant has a tool_name, a server_grant has none")
        if (entry := policy.entry(agent_id, tool_name)) is None:
            return {"revoked": False, "reason": NO_ENTRY}
        change = partial(policy.revoke, agent_id, tool_name)
        revoked = await call.in_thread(self._change, call, "ACCESS_REVOKED", self.wire(entry, server_id), change)
        if revoked is None:
            return {"revoked": False, "reason": NO_ENTRY}
        return {"revoked": True, **self.wire(revoked, server_id)}

    def _check(self, call: Call, params: Params) -> AccessPolicy:
        """The policy that is meant, if the caller may look at it and change it."""
        if not self.policy.has_admins:
            raise MethodNotFound(f"Method not found: {call.method}")
        caller = identity(call)
        if not self.is_admin(call):
            self._audit().report(call, REFUSED, result="BLOCKED", details={"method": call.method})
            raise AccessDenied(f"{caller.id} is not an admin of this server", details={"agent_id": caller.id})
        if (policy := self.named(id := text(params, "server_id"))) is None:
            raise ServerNotFound(f"there is no server {id[:128]!r} here; this server's own id is {self._server_id!r}")
        policy.check()
        return policy

    def _entry(self, call: Call, params: Params) -> Entry:
        given: Any = {name: params.get(name) for name in GIVEN}
        try:
            return Entry(
                **given,
                granted_by=identity(call).id,
                granted_at=self.clock(),
                expires_at=instants.read(params.get("expires_at"), "expires_at"),
            )
        except UsageError as error:
            raise InvalidParams(f"Invalid params: {error.problem}") from None

    def _change(self, call: Call, event: str, entry: Params, change: Callable[[], Entry | None]) -> Entry | None:
        """Record a change, then make it. A change that cannot be recorded is not made. Runs in a thread: it may write
        to disk."""
        self._audit().report(call, event, tool=entry["tool_name"], details=entry, durable=True)
        return change()

    def wire(self, entry: Entry, server_id: str) -> Params:
        """An entry as the methods tell it."""
        return {
            "entry_type": entry.entry_type,
            "agent_id": entry.agent_id,
            "server_id": server_id,
            "tool_name": entry.tool_name,
            "permission": entry.permission,
            "granted_by": entry.granted_by,
            "granted_at": instants.wire(entry.granted_at),
            "expires_at": instants.wire(entry.expires_at),
            "justification": entry.justification,
        }


def _tool_name(params: Params) -> str | None:
    return None if params.get("tool_name") is None else text(params, "tool_name")
