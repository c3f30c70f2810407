"""MGP as an extension (§1, §2): what it adds to a conversation, each section imported when it is first needed."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Listener, Next, Offer, Wrapper
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.core.stages import Stages
from defserve.errors import MethodNotFound
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mgp.agreed import EXTENSION_ID, VERSION, Agreed, agree
from defserve.protocols.mgp.options import SecurityOptions
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from weakref import WeakKeyDictionary

    from defserve.core.composition import Composition, Terms
    from defserve.core.service import Phase
    from defserve.net.client import GuardedClient
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mgp.access.access import Access
    from defserve.protocols.mgp.audit import Audit
    from defserve.protocols.mgp.callbacks.callbacks import Callbacks
    from defserve.protocols.mgp.events.events import Events
    from defserve.protocols.mgp.lifecycle.health import Health, HealthCheck
    from defserve.protocols.mgp.lifecycle.lifecycle import Lifecycle
    from defserve.protocols.mgp.permissions import Permissions
    from defserve.protocols.mgp.security.security import Guarded
    from defserve.protocols.mgp.streaming.streaming import Streaming

_BRINGERS = {"defserve.protocols.mgp.security.security", "defserve.guard.arguments"}
SECURITY_KEY = VENDOR + "security"

# Method → the section it belongs to, and that section's handler.
METHODS: Mapping[str, tuple[str, str, str]] = {
    "mgp/permission/request": ("permissions", "permissions", "request"),
    "mgp/permission/await": ("permissions", "permissions", "request"),
    "mgp/permission/grant": ("permissions", "permissions", "grant"),
    "mgp/permission/response": ("permissions", "permissions", "grant"),
    "mgp/access/query": ("access_control", "access", "query"),
    "mgp/access/grant": ("access_control", "access", "grant"),
    "mgp/access/revoke": ("access_control", "access", "revoke"),
    "mgp/events/subscribe": ("events", "events", "subscribe"),
    "mgp/events/unsubscribe": ("events", "events", "unsubscribe"),
    "mgp/events/replay": ("events", "events", "replay"),
    "mgp/health/status": ("lifecycle", "health", "status"),
}
# The same for what is answered at once: those who wait for it may hold every place there is.
AT_ONCE: Mapping[str, tuple[str, str, str]] = {
    "mgp/callback/respond": ("callbacks", "callbacks", "respond"),
    "mgp/stream/cancel": ("streaming", "streaming", "cancel"),
    "mgp/health/ping": ("lifecycle", "health", "ping"),
    "mgp/lifecycle/shutdown": ("lifecycle", "lifecycle", "shutdown"),
}


class MGP(Extension):
    """Security that is declared, enforced for every peer, and shown to those who speak MGP."""

    name = "mgp"
    opens_with = frozenset(method for method in METHODS if method.startswith("mgp/permission/"))
    while_draining = frozenset({"mgp/health/status"})

    def __init__(self, tools: Registry[Tool], server_id: str, options: SecurityOptions) -> None:
        self.tools, self.options = tools, options
        self._clients: WeakKeyDictionary[Any, GuardedClient] | None = None
        self.server_id = options.server_id or server_id
        self.checks: dict[str, HealthCheck] = {}
        self.mounted: list[tuple[str, MGP]] = []
        self.hides = options.access is not None
        if options.permissions is not None or options.granted:
            _ = self.permissions  # which complains about a policy or permission that does not exist

    # -- negotiation (§2) --------------------------------------------------------------------------------

    @property
    def served(self) -> frozenset[str]:
        always = frozenset(
            {"permissions", "tool_security", "audit", "code_safety", "callbacks", "events", "streaming", "lifecycle"}
        )
        access = self.options.access
        return always | {"access_control"} if access is not None and access.admins else always

    def negotiate(self, offer: Offer) -> Agreed | None:
        return agree(offer, self.served)

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        agreed = self.negotiate(offer)
        if agreed is None:
            return {}
        mgp = {
            "version": VERSION,
            "extensions": list(agreed.extensions),
            "permissions_required": self.permissions.required(self.tools),
            "server_id": self.server_id,
            "trust_level": self.options.trust_level,
        }
        return {"extensions": {EXTENSION_ID: mgp}} if offer.stateless else {"mgp": mgp, "experimental": {"mgp": mgp}}

    # -- sections, made when they are first needed -------------------------------------------------------

    @cached_property
    def permissions(self) -> Permissions:
        from defserve.protocols.mgp.permissions import Permissions

        return Permissions(self)

    @cached_property
    def access(self) -> Access:
        from defserve.protocols.mgp.access.access import Access

        return Access(self)

    @cached_property
    def audit(self) -> Audit:
        from defserve.protocols.mgp.audit import Audit

        return Audit(self)

    @cached_property
    def callbacks(self) -> Callbacks:
        from defserve.protocols.mgp.callbacks.callbacks import Callbacks

        return Callbacks(self)

    @cached_property
    def events(self) -> Events:
        from defserve.protocols.mgp.events.events import Events

        return Events(self)

    def pushes_events(self, call: Call) -> bool:
        """Whether this call's peer can be sent events (§13.3)."""
        return "events" in sections(call) and not dialect_of(call).stateless

    @cached_property
    def streaming(self) -> Streaming:
        from defserve.protocols.mgp.streaming.streaming import Streaming

        return Streaming(self)

    @cached_property
    def lifecycle(self) -> Lifecycle:
        from defserve.protocols.mgp.lifecycle.lifecycle import Lifecycle

        return Lifecycle(self)

    @cached_property
    def health(self) -> Health:
        from defserve.protocols.mgp.lifecycle.health import Health

        return Health(self)

    def all_checks(self) -> dict[str, HealthCheck]:
        """The author's health checks by name, with those of mounted servers under their prefixes."""
        found: dict[str, HealthCheck] = {}
        for prefix, mounted in self.mounted:
            found |= {prefix + name: check for name, check in mounted.all_checks().items()}
        return found | self.checks

    @property
    def http(self) -> GuardedClient:
        """The guarded client of the running loop; its connections are of no use to another."""
        from asyncio import get_running_loop
        from weakref import WeakKeyDictionary

        from defserve.net.client import GuardedClient

        if self._clients is None:
            self._clients = WeakKeyDictionary()
        loop = get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = GuardedClient(self.options.egress)
        return self._clients[loop]

    # -- the plug ----------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        lazy = {method: self._lazy(*place) for method, place in METHODS.items()}
        return lazy | {method: self._at_once(*place) for method, place in AT_ONCE.items()}

    def _at_once(self, section: str, attribute: str, handler: str) -> Handler:
        def run(call: Call, params: Params) -> Any:
            if section not in sections(call):
                raise MethodNotFound(f"Method not found: {call.method}")
            return getattr(getattr(self, attribute), handler)(call, params)

        return run

    def notifications(self) -> Mapping[str, Listener]:
        # Which find only streams, and so nothing where they were not negotiated.
        return {
            "notifications/mgp.stream.pace": lambda session, params: self.streaming.pace(session, params),
            "notifications/mgp.stream.gap": lambda session, params: self.streaming.gap(session, params),
        }

    def around(self) -> Mapping[str, Wrapper]:
        return {"tools/call": self._around_call}

    def _around_call(self, call: Call, params: Params, following: Next) -> Awaitable[Any]:
        if "streaming" not in sections(call):
            return following(call, params)
        return self.streaming.around(call, params, following)

    def asker(self, call: Call) -> Callbacks | None:
        """The road to a person by callbacks (§13.4); see `mcp.talkback.BringsAsker`."""
        # Without a session there is no channel for the answer.
        return self.callbacks if "callbacks" in sections(call) and not dialect_of(call).stateless else None

    def _lazy(self, section: str, attribute: str, handler: str) -> Handler:
        async def run(call: Call, params: Params) -> Any:
            if section not in sections(call):
                raise MethodNotFound(f"Method not found: {call.method}")
            result = getattr(getattr(self, attribute), handler)(call, params)
            return await result if hasattr(result, "__await__") else result

        return run

    def declared(self, item: Any) -> None:
        # Marks and guarded types bring their modules along; without them there is nothing to read.
        if item.kind != "tool" or not (item.options.security or sys.modules.keys() & _BRINGERS):
            return
        from defserve.protocols.mgp.security.security import Guarded

        found = Guarded.of(item)
        if found is not None:
            item.facets[self.name] = found
            item.is_dangerous = found.security.risk_level == "dangerous"

    def stages(self) -> Stages:
        return Stages(audit=self._audit, admit=self._admit, judge=self._judge, concerns=self._concerns)

    def _concerns(self, item: Any, active: frozenset[str]) -> bool:
        options = self.options
        return self.name in item.facets or options.access is not None or bool(options.audit) or self.name in active

    def _audit(self, call: Call, tool: Any) -> AbstractAsyncContextManager[Any] | None:
        return self.audit.around(call, tool)

    def _admit(self, call: Call, tool: Any) -> None:
        if self.options.access is not None:
            self.access.admit(call, tool)
        if guarded(tool) is not None:
            self.permissions.admit(call, tool)

    async def _judge(self, call: Call, tool: Any, arguments: dict[str, Any]) -> None:
        found = guarded(tool)
        if found is None:
            return
        await found.judge(self, call, tool, arguments)
        if found.security.confirmation_required:
            from defserve.protocols.mgp.confirmation import confirmed

            await confirmed(self, call, tool, arguments)

    def visible(self, call: Call, item: Any) -> bool:
        return self.options.access is None or self.access.visible(call, item)

    def view(self, call: Call) -> object:
        seen = self.access.view(call) if self.options.access is not None else None
        return sections(call) & {"tool_security", "code_safety"}, "meta" in dialect_of(call).has, seen

    def describe(self, item: Any, view: Any) -> Mapping[str, Any]:
        found = guarded(item)
        if found is None:
            return {}
        shown, has_meta, _ = view
        described: Params = {}
        if "tool_security" in shown:
            described["security"] = found.security.wire()
        if has_meta:
            described["_meta"] = {SECURITY_KEY: found.security.wire()}
        return described

    def failure(self, call: Call, error: BaseException) -> Params | None:
        from defserve.protocols.mgp import errors

        return errors.failure(call, error)

    def phase_changed(self, composition: Composition, previous: Phase) -> None:
        # Where nobody wants to know, nothing need be imported.
        listeners = [s for s in composition.sessions if s.terms and "lifecycle" in _agreed(s.terms)]
        if listeners:
            self.lifecycle.phase_changed(composition.service, previous, listeners)

    def session_closed(self, session: Session) -> None:
        if "callbacks" in self.__dict__:
            self.callbacks.closed(session)
        if "events" in self.__dict__:
            self.events.closed(session)


def sections(call: Call) -> frozenset[str]:
    """The sections of MGP that are active for this call's peer."""
    return _agreed(call.terms)


def _agreed(terms: Terms) -> frozenset[str]:
    agreed = terms.states.get(MGP.name)
    return agreed.sections if isinstance(agreed, Agreed) else frozenset()


def guarded(item: Any) -> Guarded | None:
    """What a tool declared of its security, as it was read at registration."""
    return item.facets.get(MGP.name)
