"""MCP as an extension (base protocol: capabilities, methods, notifications), plugged in like any other protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import Extension, Handler, Listener, Offer
from defserve.core.messages import Notification, Params, Request
from defserve.core.session import Session
from defserve.errors import UsageError
from defserve.protocols.mcp import reporting
from defserve.protocols.mcp.asking.server_secret import ServerSecret
from defserve.protocols.mcp.items import Item, Late
from defserve.protocols.mcp.lifecycle import Dialect, Identity, McpLifecycle
from defserve.protocols.mcp.prompts import Completions, Prompts
from defserve.protocols.mcp.resources import Resources
from defserve.protocols.mcp.subscriptions import Subscriptions, UpdateSource
from defserve.protocols.mcp.tools import Tool, Tools, Validation
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS

LATE: Final = {"tasks": "task", "apps": "view or tool of a view"}
"""Facets of items whose extension, of the same name, is part of a server only if an item had it before serving."""

BeforeList = Callable[[Call], Awaitable[None]]

if TYPE_CHECKING:
    from defserve.protocols.mcp.skills import Skills


class MCP(Extension):
    """The base protocol, in every version from 2024-11-05 to 2026-07-28."""

    name = "mcp"
    # A cancellation has to find its request even without a handshake.
    # A bare `server/discover` is a probe: "method not found" is the answer that sends clients to `initialize`.
    opens_with = frozenset({"initialize", "ping", "server/discover", "notifications/cancelled"})
    listing = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list", "skills/list"})

    def __init__(self, identity: Identity, secret: ServerSecret) -> None:
        self.lifecycle, self.secret = McpLifecycle(identity, secret), secret
        self.tools, self.resources, self.prompts = Tools(), Resources(), Prompts()
        self.completions = Completions(self.prompts, self.resources)
        self.subscriptions = Subscriptions(self.resources.readable)
        self.subscriptions.forward(self.resources.cache.drop_contents)
        self.validation = Validation(self.tools.registry)
        self._before_list: BeforeList | None = None
        self.skills: Skills | None = None
        self._skill_followers: list[Callable[[Skills], object]] = []
        changed = self.subscriptions.notify_list_changed
        self.tools.registry.watch(lambda: changed("tools"))
        self.prompts.registry.watch(lambda: changed("prompts"))
        self.resources.concrete.watch(lambda: changed("resources"))
        self.resources.templates.watch(lambda: changed("resources"))

    def offer_elsewhere(
        self, source: UpdateSource, before: BeforeList, meta: Callable[[Call], Params], late: Late
    ) -> None:
        """Offer what comes from elsewhere. Call it before serving.

        `before` is awaited ahead of every list, whose `_meta` for a caller is `meta`. `late` is awaited for what is not
        known yet.
        """
        self._before_list = before
        self.subscriptions.source = source
        self.tools.late = self.prompts.late = self.resources.late = self.subscriptions.late = late
        for listing in (self.tools.listing, self.prompts.listing, *self.resources.listings):
            listing.meta = meta

    def _list(self, page: Handler) -> Handler:
        if (before := self._before_list) is None:
            return page

        async def list_after(call: Call, params: Params) -> Any:
            await before(call)
            return page(call, params)

        return list_after

    def items(self) -> Iterator[Item[Any]]:
        """Everything that is offered, of every kind."""
        yield from (*self.tools.registry, *self.resources.concrete, *self.resources.templates, *self.prompts.registry)

    def need_skills(self) -> Skills:
        """The section of skills. It is made with the first skill, before serving begins."""
        if self.skills is None:
            if self.subscriptions.composition is not None:
                raise UsageError("the first skill comes after serving began", fix="declare it where the server is made")
            from defserve.protocols.mcp.skills import Skills

            skills = Skills(self.resources)
            for follow in self._skill_followers:
                follow(skills)
            self.skills = skills
        return self.skills

    def follow_skills(self, follow: Callable[[Skills], object]) -> None:
        """Call `follow` with the section of skills, now or when there is one."""
        self._skill_followers.append(follow)
        if self.skills is not None:
            follow(self.skills)

    def describe_tool(self, tool: Tool) -> Params:
        """A tool as the newest version with sessions lists it."""
        return tool.describe(self.lifecycle.dialects[HANDSHAKE_VERSIONS[-1]])

    def compose(self, composition: Composition) -> None:
        """The composition whose sessions are told of changes. Raises UsageError for what does not fit together."""
        self.completions.check()
        self.subscriptions.composition = composition

    def on_item_declared(self, item: Item[Any]) -> None:
        composition = self.subscriptions.composition
        if composition is None or item.facets.keys().isdisjoint(LATE):
            return
        served = {extension.name for extension in composition.extensions}
        for facet, what in LATE.items():
            if facet in item.facets and facet not in served:
                raise UsageError(
                    f"{item.kind} {item.name!r} is the first {what} of this server, and comes after serving began",
                    where=item.where,
                    fix=f"declare a {what} before the server serves",
                )

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        return self.secret.lifespan()

    def offer_in(self, message: Request | Notification) -> Offer | None:
        return self.lifecycle.offer_in(message) if "_meta" in message.params else None

    def negotiate(self, offer: Offer) -> Dialect | None:
        return self.lifecycle.dialects.get(offer.version)

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        dialect = self.lifecycle.dialects[offer.version]
        capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "logging": {},
        }
        if "completions" in dialect.has and self.completions.offered:
            capabilities["completions"] = {}
        if self.skills is not None:
            capabilities["extensions"] = self.skills.capabilities()
        return capabilities

    def methods(self) -> Mapping[str, Handler]:
        subscriptions = self.subscriptions
        elsewhere = subscriptions.source is not None
        return {
            "initialize": self.lifecycle.initialize,
            "ping": self.lifecycle.ping,
            "server/discover": self.lifecycle.discover,
            "tools/list": self._list(self.tools.list),
            "tools/call": self.tools.call,
            "tools/validate": self.validation.validate,
            "resources/list": self._list(self.resources.list),
            "resources/templates/list": self._list(self.resources.list_templates),
            "resources/read": self.resources.read_resource,
            "resources/subscribe": subscriptions.subscribe_elsewhere if elsewhere else subscriptions.subscribe,
            "resources/unsubscribe": subscriptions.unsubscribe_elsewhere if elsewhere else subscriptions.unsubscribe,
            "prompts/list": self._list(self.prompts.list),
            "prompts/get": self.prompts.get,
            "completion/complete": self.completions.complete,
            "logging/setLevel": reporting.set_level,
            **(self.skills.methods() if self.skills is not None else {}),
            "subscriptions/listen": subscriptions.listen,
        }

    def notifications(self) -> Mapping[str, Listener]:
        return {
            "notifications/initialized": self.lifecycle.on_initialized,
            "notifications/cancelled": reporting.on_cancelled,
            "notifications/progress": _ignore_notification,
            "notifications/roots/list_changed": _ignore_notification,
        }

    def credential_ended(self, session: Session, credential: str) -> None:
        self.subscriptions.credential_ended(session, credential)

    def session_closed(self, session: Session) -> None:
        self.subscriptions.session_closed(session)

    def export_state(self, session: Session) -> Params:
        level = session.peek(reporting.LogLevel)
        named = {"level": level.level} if level is not None else {}
        return named | {f"uri {uri}": callers for uri, callers in self.subscriptions.export_state(session).items()}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        if "level" in kept:
            session.local(reporting.LogLevel).level = kept["level"]
        uris = {name.removeprefix("uri "): callers for name, callers in kept.items() if name.startswith("uri ")}
        self.subscriptions.import_state(session, uris)


def _ignore_notification(session: Any, params: Any) -> None:
    """Part of the protocol; the server need not react."""
