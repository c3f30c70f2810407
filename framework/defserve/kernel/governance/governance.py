"""The kernel's rules as an extension of its server: every tool behind it is marked, pinned and named as it may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from defserve.auth.principals import LOCAL_PRINCIPAL
from defserve.base.redaction import get_logger
from defserve.core.extension import Extension, Stages
from defserve.errors import UsageError
from defserve.kernel.governance.access import (
    KernelAccess,
    KernelPermissions,
    is_operator,
    needs_access_control,
    require_operator,
)
from defserve.kernel.governance.marks_and_pins import (
    DIGEST_LENGTH,
    SANDBOXED_TRUST_LEVELS,
    PinChange,
    ToolPin,
    ToolPins,
    apply_security_marks,
    build_governing_entry,
    digest_held_tools,
    find_contradictions,
    get_tool_claims,
    is_sandboxed,
)
from defserve.kernel.governance.server_directory import KernelDirectory
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mgp.errors import ToolDisabled
from defserve.protocols.mgp.server_discovery import DiscoverySection, OperatorTool, make_discovery_tools
from defserve.proxying.catalogue import is_kernel_tool_name
from defserve.proxying.items import RemotePrompt, RemoteResource, RemoteSkill, RemoteTool

if TYPE_CHECKING:
    from defserve.client.mgp.server_claims import MgpClaims
    from defserve.client.replies import Json
    from defserve.core.call import Call
    from defserve.core.session import Session
    from defserve.kernel.config.entries import ServerEntry
    from defserve.kernel.kernel import Kernel
    from defserve.kernel.kernel_state import StateFile
    from defserve.kernel.members import KernelMember

HELD: Final = "held"
"""The facet of a tool that nobody may use until an operator approves it."""
CONFLICT: Final = "TOOL_NAME_CONFLICT"
CHANGED, WITHHELD, APPROVED = "dev.defserve.tool_changed", "dev.defserve.tool_held", "dev.defserve.tool_approved"
UNRECORDED: Final = "dev.defserve.changes_counted"

PROMPT, TEMPLATE, SKILL, EVENT, INSTRUCTIONS = "prompt ", "template ", "skill ", "event ", "(instructions)"
OTHERS: Final = (PROMPT, TEMPLATE, SKILL, EVENT, INSTRUCTIONS)
"""How the pins of what is no tool begin. Their names are those of the server."""

MAX_REPORTED_CHANGES: Final = 100
REPORT_SECONDS: Final = 60.0
"""Of one server so many changes are told in so many seconds: what it lists, and how often that changes, it decides."""
MAX_RECORDED_CHANGES: Final = 1_000
RECORD_SECONDS: Final = 3_600.0
"""And so many are in the audit log one by one. Of the others their number is there, in a record of its own."""

log = get_logger("kernel")


class Governance(Extension):
    """Sees each tool of a server before anybody else does."""

    name = "governance"

    def __init__(self, kernel: Kernel, state: StateFile) -> None:
        self._kernel, self._state, self.pins = kernel, state, ToolPins(state)
        self.access: KernelAccess | None = None
        self._said: dict[str, MgpClaims | None] = {}
        self._problem = ""
        self._reported: dict[str, tuple[float, int]] = {}
        self._recorded: dict[str, tuple[float, int]] = {}
        self._directory = KernelDirectory(kernel)
        server = kernel.server
        server.mgp.discovery = section = DiscoverySection(self._directory)
        for tool in make_discovery_tools(section, server):
            server.add_tool(tool)
        mgp, tools = server.mgp, server.mcp.tools.registry
        mgp.permissions = self.permissions = KernelPermissions(mgp.options, lambda: mgp.audit, state, kernel)
        if (policy := mgp.options.access) is not None and needs_access_control(kernel.config, state):
            mgp.access = self.access = KernelAccess(kernel, state, policy, mgp.server_id, tools, lambda: mgp.audit)

    def on_item_declared(self, item: Any) -> None:
        if not isinstance(item, RemoteTool):
            if (name := get_pin_name(item)) and (member := self._kernel.members.get(item.backend.id)) is not None:
                self._compare(name, item.raw, item.facets, member)
            return
        member = self._kernel.members.get(item.backend.id)
        if member is None:
            raise UsageError(
                f"server {item.backend.id!r} is not one of this kernel's", fix="add it to the file, or register it"
            )
        if is_kernel_tool_name(item.name) or is_kernel_tool_name(item.inner):
            self._record(CONFLICT, member, "BLOCKED", {"tool_name": item.inner})
            raise UsageError(f"{CONFLICT}: its name is reserved for the kernel", fix="rename it in [servers.tools]")
        apply_security_marks(item, build_governing_entry(member.entry, member.said))
        self._compare(item.inner, item.raw, item.facets, member)

    def visible(self, call: Call, item: Any) -> bool:
        # A call finds the tool, so that it can be told why it is refused.
        return call.method == "tools/call" or (
            HELD not in item.facets and (not isinstance(item, OperatorTool) or self.view(call))
        )

    def view(self, call: Call) -> bool:
        """Whether the caller is an operator by name. The local user may call operators' tools without seeing them."""
        caller, admins = identify_caller(call), self._kernel.config.settings.admins
        return caller.id in admins and is_operator(caller, admins)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        async with self._directory.serving():
            try:
                yield
            finally:
                for id in tuple(self._recorded):
                    self._record_rest(id)

    def session_closed(self, session: Session) -> None:
        self._directory.session_closed(session)

    def stages(self) -> Stages:
        return Stages(
            admit=self._admit, concerns=lambda item, active: HELD in item.facets or isinstance(item, OperatorTool)
        )

    def _admit(self, call: Call, tool: Any) -> None:
        """Before the arguments are read: what is wrong with them tells what a tool takes."""
        if isinstance(tool, OperatorTool):
            require_operator(call, self._kernel.config.settings.admins)
        else:
            raise ToolDisabled(
                f"{tool.name} {WHAT[tool.facets[HELD]]}, and no operator has approved it yet",
                details={"tool": tool.name, "server_id": tool.backend.id},
            )

    # -- pins ----------------------------------------------------------------------------------------------

    def on_change(self, entry: ServerEntry) -> str:
        """What happens when a tool of this server changes. One that is sandboxed is held unless the file says so."""
        said = entry.mgp.on_change if entry.mgp is not None else None
        return said or ("hold" if is_sandboxed(entry) else self._kernel.config.settings.on_change)

    def _rule(self, member: KernelMember) -> str:
        mgp, pinned = member.entry.mgp, self.pins.get_pinned_claims(member.id)
        is_said = mgp is not None and (mgp.on_change is not None or mgp.trust_level is not None)
        # A server that called itself sandboxed does not free its tools by saying so no longer.
        if not is_said and pinned.get("trust_level") in SANDBOXED_TRUST_LEVELS:
            return "hold"
        return self.on_change(build_governing_entry(member.entry, member.said))

    def on_server_listed(self, member: KernelMember) -> None:
        """The list of a server is known, and complete."""
        self.compare_claims(member)
        try:
            self.pins.finish_listing(member.id, keep=self._keeps_pins(member))
        except OSError as error:
            self._report_problem(member, f"the digests of its tools cannot be kept: {error}")

    def _keeps_pins(self, member: KernelMember) -> bool:
        """Whether the pins of a server outlive the kernel."""
        return self._rule(member) == "hold" and member.creator is None

    def drop_server(self, id: str) -> None:
        """A server is gone for good. What was kept of it stays: it may come back."""
        self.pins.drop_server(id)
        self.permissions.drop_server(id)
        self._said.pop(id, None)
        self._reported.pop(id, None)
        self._record_rest(id)
        if self.access is not None:
            self.access.drop_server(id)

    def approve(self, member: KernelMember, tool: str | None, digest: str = "", unseen: bool = False) -> list[str]:
        """Let held tools be used as they were shown. Returns their names. Raises UsageError if there are none.

        The `digest` says what was shown: a tool, or all held tools of the server. It is whole, because a server could
        make two definitions whose digests begin alike. What is longer than is shown is approved only `unseen`. It is
        the user of the control socket who approves. What cannot be recorded is not approved: AuditUnavailable.
        """
        look = f"defserve kernel pins list {member.id}"
        held = [one for one in self.pins.list_held_tools(member.id) if tool in (None, one.name)]
        if not held:
            known = ", ".join(self.pins.list_held_names(member.id)) or "none"
            raise UsageError(f"{member.id} has no held tool{f' {tool!r}' if tool else ''}", fix=f"held are: {known}")
        if len(digest) != DIGEST_LENGTH:
            what = f"{digest[:DIGEST_LENGTH]!r} is no digest" if digest else "what is accepted is named by its digest"
            raise UsageError(what, fix=f"give the whole digest, as shown by: {look}")
        is_all = tool is None and digest_held_tools(held) == digest
        meant = [one for one in held if is_all or one.now.digest == digest]
        if not meant:
            raise UsageError(
                f"what {member.id} offers does not have the digest {digest}: it has changed again",
                fix=f"look at it: {look}",
            )
        for one in meant:
            if not unseen and (left_out := one.difference().left_out):
                raise UsageError(
                    f"{one.name} of {member.id} is longer than is shown: {left_out} lines of its difference were not",
                    fix="ask the server's author for less; or accept with --unseen what nobody has read",
                )
        done = [one.name for one in meant]
        by = {"type": "user", "id": LOCAL_PRINCIPAL.id}
        self._kernel.server.mgp.audit.report_server_event(
            APPROVED, member.id, "SUCCESS", {"tools": done, **({"unseen": True} if unseen else {})}, by=by
        )
        try:
            self.pins.approve(member.id, done, keep=self._keeps_pins(member))
        except OSError as error:
            raise UsageError(
                f"what is accepted cannot be kept: {error}", fix="make the folder of the file writable"
            ) from None
        self.on_server_listed(member)
        self.declare_again(member)
        return done

    async def refresh(self) -> None:
        """Take over what other kernels of the same file have decided meanwhile.

        A file that cannot be read changes nothing. That is logged once, though it is tried each time.
        """
        try:
            is_changed = await asyncio.to_thread(self._state.refresh)
        except UsageError as error:
            if str(error) != self._problem:
                log.error("%s", error)
            self._problem = str(error)
            return
        self._problem = ""
        if not is_changed:
            return
        if self.access is not None:
            self.access.refresh()
        for id in self.pins.refresh():
            if (member := self._kernel.members.get(id)) is not None:
                self.declare_again(member)
        # Last, because it waits for servers.
        await self.permissions.notify_servers()

    def declare_again(self, member: KernelMember) -> None:
        """What the file or an operator says of the tools of a server has changed."""
        if member.backend is not None:
            member.backend.catalogue.declare_again()

    def _compare(self, name: str, raw: Json, facets: dict[str, Any], member: KernelMember) -> None:
        """Compare what a server offers with what was pinned by this name, and mark what is held."""
        id, pin = member.id, ToolPin.from_definition(raw, get_tool_claims(member.said))
        change, rule = self.pins.find_change(id, name, pin), self._rule(member)
        if change is None or rule != "hold":
            self.pins.pin_tool(id, name, pin)
        if change is None:
            return
        details = {"tool_name": name, "change": change, "digest": pin.digest}
        what = f"{name if name.startswith(OTHERS) else f'tool {name!r}'} {WHAT[change]}"
        if rule == "hold":
            facets[HELD] = change
            if self.pins.hold_tool(id, name, pin):
                self._report_change(member, f"{what}, and is held: defserve kernel pins list {id}")
                self._record(WITHHELD, member, "BLOCKED", details)
        elif rule == "warn":
            self._report_change(member, what)
            self._record(CHANGED, member, "SUCCESS", details)

    def compare_claims(self, member: KernelMember) -> None:
        """Compare what a server says of itself with the file, and with what was pinned, before anybody is shown it."""
        if self._said.get(member.id) != member.said:
            # Once for each answer of the server.
            self._said[member.id] = member.said
            for text in find_contradictions(member.entry, member.said):
                self._report_problem(member, text)
        if (backend := member.backend) is None:
            return
        # What a server tells models about itself is held like its tools.
        facets: dict[str, Any] = {}
        if backend.instructions:
            self._compare(INSTRUCTIONS, {"instructions": backend.instructions}, facets, member)
        else:
            self.pins.drop_withdrawn_tool(member.id, INSTRUCTIONS)
        backend.hides_instructions = HELD in facets

    def _report_change(self, member: KernelMember, text: str) -> None:
        """Tell of a change in what a server offers, unless it has changed too much in the last minute."""
        (since, count), now = self._reported.get(member.id, (0.0, 0)), monotonic()
        if now - since > REPORT_SECONDS:
            since, count = now, 0
        self._reported[member.id] = since, count + 1
        if count < MAX_REPORTED_CHANGES:
            self._report_problem(member, text)
        elif count == MAX_REPORTED_CHANGES:
            self._report_problem(
                member, f"it has changed more than {count} times: the others are only in the audit log"
            )

    def _report_problem(self, member: KernelMember, text: str) -> None:
        log.warning("server %r: %s", member.id, text)
        self._kernel.journal.add_line(member.id, "problem", text)

    def _record(self, event: str, member: KernelMember, result: str, details: Mapping[str, Any]) -> None:
        """Have a change in the audit log, unless there were too many in the last hour: then it is counted there."""
        now = monotonic()
        if now - self._recorded.get(member.id, (now, 0))[0] > RECORD_SECONDS:
            self._record_rest(member.id)
        since, count = self._recorded.get(member.id, (now, 0))
        self._recorded[member.id] = since, count + 1
        if count < MAX_RECORDED_CHANGES:
            self._kernel.server.mgp.audit.report_server_event(event, member.id, result, details)
        elif count == MAX_RECORDED_CHANGES:
            self._report_problem(
                member, f"it has changed more than {count} times: of the others only the number is in the audit log"
            )

    def _record_rest(self, id: str) -> None:
        """The hour is over, or the server has gone: how many changes were only counted."""
        _, count = self._recorded.pop(id, (0.0, 0))
        if count > MAX_RECORDED_CHANGES:
            details = {"count": count - MAX_RECORDED_CHANGES}
            self._kernel.server.mgp.audit.report_server_event(UNRECORDED, id, "SUCCESS", details)


def get_pin_name(item: Any) -> str:
    """The name that something of a backend that is no tool is pinned by; empty for what is not pinned.

    Resources are not: their lists are data, which comes and goes. Models read the rest as instructions.
    """
    if isinstance(item, RemotePrompt):
        return PROMPT + item.inner
    if item.kind == "event" and item.backend is not None:
        return EVENT + item.inner
    if isinstance(item, RemoteSkill):
        return f"{SKILL}{item.raw.get('uri')}"
    if isinstance(item, RemoteResource) and item.template is not None:
        return f"{TEMPLATE}{item.raw.get('uriTemplate')}"
    return ""


WHAT: Final[Mapping[PinChange, str]] = {
    "new": "came after the server was first seen",
    "changed": "has changed since it was first seen",
    "outdated": "was pinned by version 0.1.0, which did not look at all of it",
}
