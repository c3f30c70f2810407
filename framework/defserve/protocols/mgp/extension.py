"""MGP as an extension (§1, §2): puts its sections together, each imported when it is first needed."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.extension import Next, Offer, Section, SectionedExtension, Stages, Wrapper, section
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, MethodNotFound
from defserve.protocols.mcp.errors import TRACE_ID_RULE, is_trace_id, read_client_trace_id
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mgp.terms import (
    MGP_EXTENSION_ID,
    MGP_NAME,
    MGP_VERSION,
    SECURITY_META_KEY,
    MgpAgreement,
    SecurityOptions,
    derive_security,
    get_agreed_sections,
    get_call_sections,
    get_tool_security,
    negotiate_mgp,
)

if TYPE_CHECKING:
    from weakref import WeakKeyDictionary

    from defserve.core.composition import Composition
    from defserve.core.service import Phase
    from defserve.guard.http_client import GuardedClient
    from defserve.protocols.mcp.extension import MCP
    from defserve.protocols.mcp.tools import Tool
    from defserve.protocols.mgp.access import AccessSection
    from defserve.protocols.mgp.audit import AuditTrail
    from defserve.protocols.mgp.callbacks import CallbackSection
    from defserve.protocols.mgp.events import EventSection, MgpEvent
    from defserve.protocols.mgp.lifecycle import HealthCheck, HealthSection, LifecycleSection
    from defserve.protocols.mgp.meta_tools import ToolSearch
    from defserve.protocols.mgp.permissions import PermissionSection
    from defserve.protocols.mgp.server_discovery import DiscoverySection
    from defserve.protocols.mgp.streaming import StreamSection
    from defserve.protocols.mgp.tool_discovery import ToolDiscovery

PERMISSION_METHODS = (
    "mgp/permission/request",
    "mgp/permission/await",
    "mgp/permission/grant",
    "mgp/permission/response",
)

# To declare security, an author imports one of these. Until then, tools need not be read.
_DECLARING = {"defserve.protocols.mgp.security", "defserve.guard.argument_types"}
_ALWAYS_SERVED = frozenset(
    {"permissions", "tool_security", "audit", "code_safety", "callbacks", "events", "streaming", "lifecycle"}
)


class MGP(SectionedExtension):
    """Security that tools declare, enforced for every peer and shown to those that speak MGP."""

    name = MGP_NAME
    opens_with = frozenset(PERMISSION_METHODS)
    while_draining = frozenset({"mgp/health/status"})
    ahead_of_queue = frozenset({"mgp/permission/grant", "mgp/permission/response"})

    def __init__(self, tools: Registry[Tool], server_id: str, options: SecurityOptions) -> None:
        self.tools, self.options = tools, options
        self._clients: WeakKeyDictionary[Any, GuardedClient] | None = None
        self.server_id = options.server_id or server_id
        self.checks: dict[str, HealthCheck] = {}
        self.mounted: list[tuple[str, MGP]] = []
        self.share_events: Callable[[MgpEvent], bool] | None = None
        """Sends an event to all processes; False if it cannot."""
        self.hides = options.access is not None
        self.log_name: Callable[[], str] | None = None
        """The name of this server's audit log in a store."""
        _ = self.access  # the lists of tools change with its entries
        if options.permissions is not None or options.granted:
            _ = self.permissions  # raises UsageError for a policy or permission that does not exist

    # -- negotiation (§2) --------------------------------------------------------------------------------

    @property
    def served_sections(self) -> frozenset[str]:
        """The sections this server takes part in."""
        access, more = self.options.access, set[str]()
        if access is not None and access.has_admins:
            more.add("access_control")
        if self.tool_discovery is not None:
            more.add("tool_discovery")
        if self.discovery is not None:
            more.add("discovery")
        return _ALWAYS_SERVED | more if more else _ALWAYS_SERVED

    def negotiate(self, offer: Offer) -> MgpAgreement | None:
        return negotiate_mgp(offer, self.served_sections)

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        if (agreed := self.negotiate(offer)) is None:
            return {}
        mgp = {
            "version": MGP_VERSION,
            "extensions": list(agreed.extensions),
            "permissions_required": self.permissions.list_required_permissions(self.tools),
            "server_id": self.server_id,
            "trust_level": self.options.trust_level,
        }
        return (
            {"extensions": {MGP_EXTENSION_ID: mgp}} if offer.stateless else {"mgp": mgp, "experimental": {"mgp": mgp}}
        )

    # -- sections ----------------------------------------------------------------------------------------

    @section(agreed_as="permissions", methods=PERMISSION_METHODS, keeps=("grant:",))
    def permissions(self) -> PermissionSection:
        from defserve.protocols.mgp.permissions import PermissionSection

        return PermissionSection(self.options, lambda: self.audit)

    @section(agreed_as="access_control", methods=("mgp/access/query", "mgp/access/grant", "mgp/access/revoke"))
    def access(self) -> AccessSection | None:
        if self.options.access is None:
            return None
        from defserve.protocols.mgp.access import AccessSection

        return AccessSection(self.options.access, self.server_id, self.tools, lambda: self.audit)

    @section(
        agreed_as="events",
        methods=("mgp/events/subscribe", "mgp/events/unsubscribe", "mgp/events/replay"),
        keeps=("subscription:", "sequence:"),
    )
    def events(self) -> EventSection:
        from defserve.protocols.mgp.events import EventSection

        return EventSection(lambda event: self.share_events is not None and self.share_events(event))

    @section(
        agreed_as="callbacks",
        at_once=("mgp/callback/respond",),
        notifications=("notifications/dev.defserve.callback_answered",),
    )
    def callbacks(self) -> CallbackSection:
        from defserve.protocols.mgp.callbacks import CallbackSection

        return CallbackSection()

    @section(
        agreed_as="streaming",
        at_once=("mgp/stream/cancel",),
        notifications=("notifications/mgp.stream.pace", "notifications/mgp.stream.gap"),
    )
    def streaming(self) -> StreamSection:
        from defserve.protocols.mgp.streaming import StreamSection

        return StreamSection()

    @section(
        agreed_as="lifecycle",
        at_once=("mgp/lifecycle/shutdown",),
        notifications=("notifications/initialized", "notifications/mgp.lifecycle"),
    )
    def lifecycle(self) -> LifecycleSection:
        from defserve.protocols.mgp.lifecycle import LifecycleSection

        return LifecycleSection(self.server_id, self.options.access, lambda: self.audit, self.health)

    @section(agreed_as="lifecycle", methods=("mgp/health/status",), at_once=("mgp/health/ping",))
    def health(self) -> HealthSection:
        from defserve.protocols.mgp.lifecycle import HealthSection

        return HealthSection(self.server_id, self.tools, self.list_health_checks)

    @section(
        agreed_as="discovery", methods=("mgp/discovery/list", "mgp/discovery/register", "mgp/discovery/deregister")
    )
    def discovery(self) -> DiscoverySection | None:
        return None  # a kernel has one

    @section(
        agreed_as="tool_discovery",
        methods=("mgp/tools/discover", "mgp/tools/request", "mgp/tools/session", "mgp/tools/session/evict"),
    )
    def tool_discovery(self) -> ToolDiscovery | None:
        return None  # see `enable_search`

    @cached_property
    def audit(self) -> AuditTrail:
        from defserve.protocols.mgp.audit import AuditTrail

        log_name = self.log_name() if self.log_name is not None else None
        return AuditTrail(self.options.audit, self.server_id, self._call_listeners, log_name)

    def _call_listeners(self) -> EventSection | None:
        events = MGP.events.get_existing_section(self)
        return events if events is not None and events.has_call_subscribers else None

    def can_receive_mgp_events(self, call: Call) -> bool:
        """Whether this call's peer can be sent events (§13.3)."""
        return "events" in get_call_sections(call) and not get_dialect(call).stateless

    def enable_search(self, given: Any, mcp: MCP, owner: Any) -> ToolSearch:
        """Make the tools findable (§16), as `Server(search=…)` says. Raises UsageError for what it cannot mean."""
        from defserve.protocols.mgp.meta_tools import ToolSearch
        from defserve.protocols.mgp.tool_catalogue import SearchableToolCatalogue

        def missing(call: Call, names: Sequence[str], server_id: str) -> Mapping[str, str]:
            statuses = self.permissions.find_permission_statuses(call, names, server_id).items()
            return {name: status.decision for name, status in statuses if status.decision != "approved"}

        catalogue = SearchableToolCatalogue(self.tools, self.server_id, mcp.describe_tool, missing)
        search = ToolSearch(given, mcp.tools, catalogue, lambda: self.audit, owner)
        self.tool_discovery = search.section
        return search

    def list_health_checks(self) -> dict[str, HealthCheck]:
        """The author's health checks by name, with those of mounted servers under their prefixes."""
        theirs = (
            (prefix + name, check) for prefix, one in self.mounted for name, check in one.list_health_checks().items()
        )
        return dict(theirs) | self.checks

    @property
    def http(self) -> GuardedClient:
        """The guarded client of the running event loop. Its connections cannot serve another loop."""
        from asyncio import get_running_loop
        from weakref import WeakKeyDictionary

        from defserve.guard.http_client import GuardedClient

        if self._clients is None:
            self._clients = WeakKeyDictionary()
        loop = get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = GuardedClient(self.options.egress)
        return self._clients[loop]

    # -- the plug ----------------------------------------------------------------------------------------

    def check_method(self, section: Section[Any], call: Call) -> None:
        if section.agreed_as not in get_call_sections(call):
            raise MethodNotFound(f"Method not found: {call.method}")
        _check_trace_id(call)

    def around(self) -> Mapping[str, Wrapper]:
        return {
            "tools/call": self._around_call,
            "resources/read": _run_with_trace_check,
            "prompts/get": _run_with_trace_check,
        }

    def _around_call(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        _check_trace_id(call)
        if "streaming" not in get_call_sections(call):
            return following(call, params)
        return self.streaming.around_call(call, params, following)

    def find_asker(self, call: Call) -> CallbackSection | None:
        """How to ask a person by callbacks (§13.4); see `mcp.asking.client_requests.AskerProvider`."""
        # Without a session there is no channel for the answer.
        return self.callbacks if "callbacks" in get_call_sections(call) and not get_dialect(call).stateless else None

    def lifespan(self) -> AbstractAsyncContextManager[Any] | None:
        return self._hold_audit_trail() if self.options.audit else None

    @asynccontextmanager
    async def _hold_audit_trail(self) -> AsyncGenerator[None]:
        """Open the audit trail before the first call, so that a log that is not intact stops the start."""
        trail = self.audit
        try:
            yield
        finally:
            from anyio import CancelScope
            from anyio.to_thread import run_sync

            with CancelScope(shield=True):
                await run_sync(trail.flush_sinks)

    def on_item_declared(self, item: Any) -> None:
        is_tool = item.kind == "tool"
        if not (sys.modules.keys() & _DECLARING or (is_tool and item.options.security)):
            return
        if not is_tool:
            from defserve.protocols.mgp.guarded_types import find_parameter_guards

            find_parameter_guards(item)
            return
        from defserve.protocols.mgp.security import ToolSecurity

        if (found := ToolSecurity.from_tool(item)) is not None:
            item.facets[self.name] = found
            item.is_dangerous = found.security.risk_level == "dangerous"

    def stages(self) -> Stages:
        return Stages(
            audit=lambda call, tool: self.audit.make_call_audit(call, tool),
            admit=self._admit,
            judge=self._judge,
            concerns=self._concerns,
        )

    def _concerns(self, item: Any, active: frozenset[str]) -> bool:
        options, found = self.options, get_tool_security(item)
        is_enforced = found is not None and found.is_enforced
        is_watched = options.access is not None or options.policy is not None or bool(options.audit)
        return is_enforced or is_watched or self.name in active

    def _admit(self, call: Call, tool: Any) -> None:
        if self.access is not None:
            self.access.check_access(call, tool)
        if (found := get_tool_security(tool)) is not None:
            self.permissions.check_permissions(call, tool)
            found.start_url_and_upload_tracking()

    async def _judge(self, call: Call, tool: Any, arguments: dict[str, Any]) -> None:
        if (found := get_tool_security(tool)) is not None:
            await found.judge_arguments(self.options.egress, arguments)
        needs_yes, confirm = found is not None and found.security.confirmation_required, None
        if self.options.policy is not None:
            from defserve.protocols.mgp.policy import ask_policy

            if (await ask_policy(self.options.policy, call, tool, arguments)).outcome == "confirm":
                needs_yes, confirm = True, "always"
        if needs_yes:
            from defserve.protocols.mgp.permissions import confirm_call

            await confirm_call(self, call, tool, arguments, confirm)

    def visible(self, call: Call, item: Any) -> bool:
        return self.access is None or self.access.visible(call, item)

    def view(self, call: Call) -> object:
        seen = self.access.view(call) if self.access is not None else None
        return get_call_sections(call) & {"tool_security", "code_safety"}, "meta" in get_dialect(call).has, seen

    def describe(self, item: Any, view: Any) -> Mapping[str, Any]:
        shown, has_meta, _ = view
        if (found := get_tool_security(item)) is not None:
            block = found.security.to_wire()
        elif item.kind == "tool" and "tool_security" in shown:
            block = derive_security(item.options.annotations, is_own=item.backend is None)
        else:
            return {}
        described: Params = {"security": block} if "tool_security" in shown else {}
        return described | {"_meta": {SECURITY_META_KEY: block}} if has_meta else described

    def failure(self, call: Call, error: BaseException) -> Params | None:
        from defserve.protocols.mgp import errors

        return errors.build_mgp_error_reply(call, error)

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        # If nobody listens, the section is not imported.
        if any("lifecycle" in get_agreed_sections(session.terms) for session in composition.sessions):
            self.lifecycle.phase_changed(composition, previous)


def _check_trace_id(call: Call) -> None:
    """Raises InvalidParams for a trace id that cannot be kept (§6.5). To replace it would break the client's trace."""
    if (given := read_client_trace_id(call)) is not None and not is_trace_id(given):
        raise InvalidParams(f"Invalid params: trace_id must be a text of {TRACE_ID_RULE}")


def _run_with_trace_check(call: Call, params: Params, following: Next) -> Awaitable[Any]:
    _check_trace_id(call)
    return following(call, params)
