"""What operators ask of a kernel: the words of the command line (access, pins, permissions, …), and MGP's tools.

Whoever reaches the control socket is the user who runs the kernel. Changes of access go through the same methods as
those of MGP's clients, so there is one set of rules, and one audit trail.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final

from defserve.auth.principals import LOCAL_PRINCIPAL
from defserve.base.hidden_characters import has_hidden_characters
from defserve.core.call import Call
from defserve.core.messages import Params
from defserve.errors import MethodNotFound, PeerError, UsageError, did_you_mean
from defserve.kernel.governance.access import INTERACTIVE_POLICY, KernelAccess, PermissionDecision, require_operator
from defserve.kernel.governance.marks_and_pins import digest_held_tools
from defserve.kernel.members import KernelMember
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.audit import MAX_REPLAYED_EVENTS, ReadableAuditLog, find_readable_log, replay_audit_log
from defserve.protocols.mgp.server_discovery import (
    AsyncMethodHandler,
    MethodToolSpec,
    make_operator_tool,
    make_tool_input_schema,
)
from defserve.protocols.mgp.terms import get_tool_security
from defserve.protocols.mgp.vocabulary import PERMISSION_RISKS
from defserve.proxying.items import RemoteTool
from defserve.server.server import Server
from defserve.stores.audit.log_file import AuditUnavailable

if TYPE_CHECKING:
    from defserve.kernel.kernel import Kernel

FIX: Final = 'say keys = "keys.json", default_policy = "opt-in" or admins = […] in [kernel], and start the kernel again'

MAX_LISTED_NAMES: Final = 20


class AccessVerbs:
    """Each public method is a verb: see `control.py`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def list_entries(self, id: str | None = None, caller: str | None = None) -> list[dict[str, Any]]:
        """The default of each server, and every entry; of one server or caller, if they are named."""
        access = self._access()
        if id is not None:
            self._kernel.member(id)
        await self._kernel.governance.refresh()
        rows: list[dict[str, Any]] = []
        for one in [id] if id is not None else self._kernel.members:
            if (policy := access.find_policy(one)) is None:
                continue
            rows.append({"server_id": one, "default": policy.default})
            rows += [
                {**access.to_wire(entry, one), "expired": not entry.holds(access.clock())}
                for entry in policy.entries()
                if caller in (None, entry.agent_id)
            ]
        return rows

    async def set_entry(
        self,
        permission: str,
        caller: str,
        id: str,
        tool: str | None = None,
        reason: str | None = None,
        until: str | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Let a caller use a server, or one of its tools by the server's own name of it ("allow"); or keep it from
        that ("deny").

        Raises UsageError for a tool that a connected server does not have, unless `force` is set.
        """
        if not force:
            self._check_tool(id, tool)
        more = {"permission": permission, "justification": reason, "expires_at": until}
        return await self._operate(
            "mgp_access_grant",
            {**_about(caller, id, tool), **{name: value for name, value in more.items() if value is not None}},
        )

    async def revoke_entry(self, caller: str, id: str, tool: str | None = None) -> dict[str, Any]:
        """Remove an entry: then that of the server counts, or the default."""
        found = await self._operate("mgp_access_revoke", _about(caller, id, tool))
        if not found["revoked"]:
            raise UsageError(f"{caller!r} has no such entry", fix="see `defserve kernel access list`")
        return found

    def _check_tool(self, id: str, tool: str | None) -> None:
        if tool is None or self._kernel.member(id).state != "connected":
            return
        tools = self._kernel.server.mcp.tools.registry
        known = sorted({one.inner for one in tools if isinstance(one, RemoteTool) and one.backend.id == id})
        if tool not in known and known:
            hint = did_you_mean(tool, known, f"it has {', '.join(known[:MAX_LISTED_NAMES])}.")
            raise UsageError(
                f"server {id!r} has no tool {tool[:128]!r}", fix=f"{hint} For a tool that is yet to come: --force"
            )

    async def _operate(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._access()
        self._kernel.member(arguments["server_id"])
        await self._kernel.governance.refresh()
        return await operate(self._kernel.server, tool, arguments)

    def _access(self) -> KernelAccess:
        if (access := self._kernel.governance.access) is None:
            raise UsageError("this kernel has no access control: it cannot tell its callers apart", fix=FIX)
        return access


def _about(caller: str, id: str, tool: str | None) -> dict[str, Any]:
    if tool is None:
        return {"entry_type": "server_grant", "agent_id": caller, "server_id": id}
    return {"entry_type": "tool_grant", "agent_id": caller, "server_id": id, "tool_name": tool}


# -- `defserve kernel permissions`: what servers need, and what operators have decided about it.


EVENTS: Final[Mapping[PermissionDecision, tuple[str, str]]] = {
    "approved": ("PERMISSION_GRANTED", "SUCCESS"),
    "denied": ("PERMISSION_DENIED", "DENIED"),
}
MAX_REASON_LENGTH: Final = 2_000


class PermissionVerbs:
    """Each public method is a verb: see `control.py`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def list_needed(self, id: str | None = None) -> list[dict[str, Any]]:
        """Every permission that a tool of a server needs: the decision about it, and who has asked for it."""
        if id is not None:
            self._kernel.member(id)
        await self._kernel.governance.refresh()
        needed = self._find_needed_permissions()
        return [self._row(one, name, needed[one][name]) for one in needed for name in needed[one] if id in (None, one)]

    async def decide_permission(
        self, decision: PermissionDecision, id: str, permission: str | None = None, reason: str = ""
    ) -> list[dict[str, Any]]:
        """Let the tools of a server use a permission, whoever calls them, or keep them from it. If none is named, it's
        about all that nobody has decided about."""
        kernel, section = self._kernel, self._kernel.governance.permissions
        kernel.member(id)
        if len(reason) > MAX_REASON_LENGTH or has_hidden_characters(reason):
            raise UsageError(
                f"a reason is a line of at most {MAX_REASON_LENGTH} printable characters", fix="write a shorter reason"
            )
        await kernel.governance.refresh()
        needed = self._find_needed_permissions().get(id, {})
        names = [permission] if permission else [name for name in needed if not section.get_decision(id, name)]
        if permission is not None and permission not in needed and not section.get_decision(id, permission):
            known = ", ".join(needed) or "none"
            raise UsageError(f"{id} needs no permission {permission[:128]!r}", fix=f"it needs: {known}")
        if not names:
            raise UsageError(f"nobody asks for a permission of {id}", fix="see `defserve kernel permissions`")
        event, result = EVENTS[decision]
        details = {"permissions": names, "reason": reason}
        by = {"type": "user", "id": LOCAL_PRINCIPAL.id}
        # A decision that cannot be recorded is not made.
        await asyncio.to_thread(lambda: kernel.server.mgp.audit.report_server_event(event, id, result, details, by=by))
        try:
            await asyncio.to_thread(section.store_decision, id, names, decision, LOCAL_PRINCIPAL.id, reason)
        except OSError as error:
            raise UsageError(
                f"the decision cannot be kept: {error}", fix="make the folder of the file writable"
            ) from None
        await section.notify_servers(id)
        return [self._row(id, name, needed.get(name, [])) for name in names]

    def _find_needed_permissions(self) -> dict[str, dict[str, list[str]]]:
        """Server → permission → the tools that need it, by their names here."""
        found: dict[str, dict[str, list[str]]] = {id: {} for id in self._kernel.members}
        for tool in self._kernel.server.mcp.tools.registry:
            id, security = tool.server_id, get_tool_security(tool)
            if id in found and security is not None:
                for name in security.security.permissions:
                    found[id].setdefault(name, []).append(tool.name)
        return found

    def _row(self, id: str, name: str, tools: list[str]) -> dict[str, Any]:
        section = self._kernel.governance.permissions
        undecided = "asked" if self._kernel.config.settings.permissions == INTERACTIVE_POLICY else "auto"
        row: dict[str, Any] = {
            "id": id,
            "permission": name,
            "risk_level": PERMISSION_RISKS.get(name, "moderate"),
            "decision": undecided,
            **section.get_decision(id, name),
            "tools": tools,
        }
        if (asked := section.asked.get((id, name))) is not None:
            row |= {
                "refused_calls": asked.calls,
                "asked_by": asked.agent_id,
                "asked_at": vocabulary.format_instant(asked.at),
            }
        return row


# -- `defserve kernel pins`: definitions that have changed and are held, and what has changed.


async def list_held_tools(kernel: Kernel, id: str | None = None) -> list[dict[str, Any]]:
    """The held tools of one server, or of all, and the difference to what was pinned."""
    if id is not None:
        kernel.member(id)
    await kernel.governance.refresh()
    rows: list[dict[str, Any]] = []
    for one in [id] if id is not None else kernel.members:
        held = kernel.governance.pins.list_held_tools(one)
        all_held = digest_held_tools(held)
        for tool in held:
            difference = tool.difference()
            rows.append(
                {
                    "id": one,
                    "tool": tool.name,
                    "change": tool.change,
                    "pinned": tool.before.digest if tool.before is not None else None,
                    "now": tool.now.digest,
                    "all": all_held,
                    "difference": difference.lines,
                    "left_out": difference.left_out,
                }
            )
    return rows


# -- `defserve kernel health`: whether each server answers now, and how fast.


PING_SECONDS: Final = 5.0
AT_ONCE: Final = 16


async def check_server_health(kernel: Kernel, id: str | None = None) -> list[dict[str, Any]]:
    """The health of one server, or of all. A slow one delays the answer by at most five seconds."""
    members = [kernel.member(id)] if id is not None else list(kernel.members.values())
    room = asyncio.Semaphore(AT_ONCE)

    async def each(member: KernelMember) -> dict[str, Any]:
        async with room:
            return await health_of(member)

    return await asyncio.gather(*map(each, members))


async def health_of(member: KernelMember) -> dict[str, Any]:
    """What one server answers now. `status` is None for one that does not run and need not."""
    backend = member.backend
    found: dict[str, Any] = {"id": member.id, "state": member.state, "status": None}
    if backend is not None:
        found |= {
            "tools": backend.tools,
            "pending_requests": backend.calls,
            "calls_total": backend.room.total,
            "restarts": backend.restarts,
            "uptime_secs": int(time.time() - backend.since) if backend.state == "connected" else None,
        }
    if backend is not None and backend.state == "connected":
        began = time.perf_counter()
        try:
            found["status"] = await backend.ping(PING_SECONDS) or "healthy"
        except PeerError as error:
            found |= {"status": "unhealthy", "problem": member.hidden(error.message)}
        found["latency_ms"] = round((time.perf_counter() - began) * 1000, 1)
    elif member.state in ("error", "restarting"):
        found |= {"status": "unhealthy", "problem": member.problem or member.hidden(backend.note if backend else "")}
    return {**found, "observed_at": vocabulary.format_instant(vocabulary.utc_now())}


# -- `defserve why … --server mgp.toml`: whether a caller may call a tool.


async def explain_kernel_call(
    kernel: Kernel, caller: str, tool: str, token: str | None, scopes: str | None
) -> dict[str, Any]:
    """What the gates of the kernel say about the call. The server behind it decides after them, in its own process."""
    from defserve.server.call_decision import CallDecisionStep, explain_call, resolve_named_caller

    await kernel.governance.refresh()
    found = kernel.server.mcp.tools.registry.get(tool)
    if found is None:
        _check_owner_runs(kernel, tool)
    known = await resolve_named_caller(
        kernel.server, caller, token=token, scopes=None if scopes is None else scopes.replace(",", " ").split()
    )
    decision = await explain_call(kernel.server, known, tool)
    if isinstance(found, RemoteTool) and known.principal is not None:
        id = found.backend.id
        grant = f"defserve kernel access grant {shlex.join((known.principal.id, id))} --config {kernel.config.path}"
        decision.steps[:] = [
            step._replace(fix=grant) if step.gate == "access" and step.outcome == "refused" else step
            for step in decision.steps
        ]
        if not any(step.outcome == "refused" for step in decision.steps):
            sentence = "decides for itself as well; to it, the kernel is the caller"
            decision.steps.append(CallDecisionStep(f"server {id}", "depends", sentence))
    return {"caller": known.title, "tool": tool, **decision.describe()}


def _check_owner_runs(kernel: Kernel, tool: str) -> None:
    """Raises UsageError if the tool may be one of a server whose tools are not known."""
    for member in kernel.members.values():
        backend = member.backend
        if backend is not None and not backend.is_known and backend.prefix.text and backend.may_offer_name(tool):
            raise UsageError(
                f"server {member.id!r} is not connected ({member.state}), so its tools are not known",
                fix="see why: defserve kernel ps",
            )


# -- `defserve kernel audit` and `mgp/audit/replay`: the audit log of a kernel, for its operators.


FOLLOW_SECONDS: Final = 0.5
NO_LOG: Final = "this kernel keeps no audit log that can be read"


async def answer_audit_replay(kernel: Kernel, call: Call, params: Params) -> Params:
    """`mgp/audit/replay`. Raises PermissionDenied for others than operators: the log tells what everybody does."""
    require_operator(call, kernel.config.settings.admins)
    if (log := find_readable_log(kernel.server.mgp.audit.sinks)) is None:
        raise MethodNotFound(f"Method not found: {NO_LOG}")
    return await replay_audit_log(call, log, params)


async def show_audit(kernel: Kernel, last: int, follow: bool, verify: bool) -> AsyncGenerator[dict[str, Any]]:
    """The last records, and with `follow` those that come; or with `verify`, whether the log is intact."""
    if (log := find_readable_log(kernel.server.mgp.audit.sinks)) is None:
        raise UsageError(NO_LOG, fix='say audit = "audit.jsonl" in [kernel], and start the kernel again')
    try:
        if verify:
            yield {"log": kernel.config.settings.audit, **(await asyncio.to_thread(log.verify))._asdict()}
            return
        async for event in _events(log, last, follow):
            yield event
    except AuditUnavailable as error:
        raise UsageError(error.message, fix="see `defserve kernel audit --verify`") from None


async def _events(log: ReadableAuditLog, last: int, follow: bool) -> AsyncGenerator[dict[str, Any]]:
    newest = await asyncio.to_thread(lambda: log.last_seq)
    seq = max(1, newest - last + 1)
    while True:
        page = await asyncio.to_thread(log.replay, seq, None, MAX_REPLAYED_EVENTS)
        for event in page.events:
            yield event
        seq = page.next_seq
        if not page.has_more:
            if not follow:
                return
            await asyncio.sleep(FOLLOW_SECONDS)


# -- MGP's methods for operators as tools, for clients that know only MCP. Each checks itself who calls it.


TEXT: Final[Params] = {"type": "string"}
ENTRY: Final[Params] = {
    "entry_type": {"enum": ["server_grant", "tool_grant"]},
    "agent_id": TEXT,
    "server_id": TEXT,
    "tool_name": {"type": "string", "description": "The server's own name of the tool, for a tool_grant"},
}
NEW_ENTRY: Final[Params] = {
    **ENTRY,
    "permission": {"enum": ["allow", "deny"]},
    "justification": TEXT,
    "expires_at": {"type": "string", "format": "date-time"},
}

ACCESS_QUERY, ACCESS_GRANT, ACCESS_REVOKE = "mgp_access_query", "mgp_access_grant", "mgp_access_revoke"
HEALTH, RESTART, AUDIT = "mgp_health", "mgp_server_restart", "mgp_audit"

TOOLS: Final[Mapping[str, MethodToolSpec]] = {
    ACCESS_QUERY: MethodToolSpec(
        "Tell whether a caller may use a server or one of its tools, and which entry says so.",
        make_tool_input_schema({"agent_id": TEXT, "server_id": TEXT, "tool_name": TEXT}, "agent_id", "server_id"),
        False,
    ),
    ACCESS_GRANT: MethodToolSpec(
        "Allow a caller a server or one of its tools, or deny it.",
        make_tool_input_schema(NEW_ENTRY, "entry_type", "agent_id", "server_id", "permission"),
        True,
    ),
    ACCESS_REVOKE: MethodToolSpec(
        "Take back what was granted or denied.",
        make_tool_input_schema(ENTRY, "entry_type", "agent_id", "server_id"),
        True,
    ),
    HEALTH: MethodToolSpec(
        "Ask one server behind this one, or all of them, whether they answer.",
        make_tool_input_schema({"server_id": TEXT}),
        False,
    ),
    RESTART: MethodToolSpec(
        "Start a server again; calls under way finish.", make_tool_input_schema({"server_id": TEXT}, "server_id"), True
    ),
    AUDIT: MethodToolSpec(
        "Read the audit log: events from a sequence number or a time on.",
        make_tool_input_schema(
            {
                "since_seq": {"type": "integer", "minimum": 0},
                "since_timestamp": {"type": "string", "format": "date-time"},
                "limit": {"type": "integer", "minimum": 1},
            }
        ),
        False,
    ),
}


def add_operator_tools(server: Server, answers: Mapping[str, AsyncMethodHandler]) -> None:
    """Add those tools for which there is an answer."""
    for name, answer in answers.items():
        server.add_tool(make_operator_tool(name, TOOLS[name], answer, server, _format_answer))


def _format_answer(value: Params) -> str:
    """The answer as lines: a list's items one by one, else the members."""
    rows: list[Params] = next((value[name] for name in ("servers", "events") if name in value), [value])
    return "\n".join(map(_line, rows)) or "Nothing."


def _line(row: Params) -> str:
    return ", ".join(f"{name}: {value}" for name, value in row.items() if value not in (None, "", [], {}))


# -- Operators' tools, called for the user at the control socket: under the rules of every caller, and audited.


async def operate(server: Server, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a tool answers the local user. Raises UsageError with the text of its refusal."""
    async with server.connect() as client:
        try:
            found = await client.call_raw(tool, arguments)
        except PeerError as error:
            raise UsageError(error.message) from None
    if found.get("isError"):
        raise UsageError(str(found["content"][0].get("text")))
    return found["structuredContent"]
