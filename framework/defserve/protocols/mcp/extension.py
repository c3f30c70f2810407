"""MCP as an extension (base protocol: capabilities, methods, notifications), plugged in like any other protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import Handler, Listener, Offer, SectionedExtension
from defserve.core.messages import Notification, Params, Request
from defserve.errors import UsageError
from defserve.protocols.mcp import reporting
from defserve.protocols.mcp.asking.server_secret import ServerSecret
from defserve.protocols.mcp.items import Item, WaitForLateItems
from defserve.protocols.mcp.lifecycle import Dialect, McpLifecycle, ServerDescription
from defserve.protocols.mcp.prompts import Completions, Prompts
from defserve.protocols.mcp.resources import Resources
from defserve.protocols.mcp.subscriptions import Subscriptions
from defserve.protocols.mcp.tools import Tool, Tools
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS

OPTIONAL_EXTENSION_FACETS: Final = {"tasks": "task", "apps": "view or tool of a view"}
"""Facets of items whose extension, of the same name, is part of a server only if an item had it before serving."""

ITEM_LISTS: Final = frozenset({"tools/list", "resources/list", "resources/templates/list", "prompts/list"})

BeforeList = Callable[[Call], Awaitable[None]]

if TYPE_CHECKING:
    from defserve.protocols.mcp.skills import Skills
    from defserve.proxying.mounts import Mounts


class MCP(SectionedExtension):
    """The base protocol, in every version from 2024-11-05 to 2026-07-28."""

    name = "mcp"
    # A cancellation has to find its request even without a handshake.
    # A bare `server/discover` is a probe: "method not found" is the answer that sends clients to `initialize`.
    opens_with = frozenset({"initialize", "ping", "server/discover", "notifications/cancelled"})
    listing = ITEM_LISTS | {"skills/list"}

    def __init__(self, identity: ServerDescription, secret: ServerSecret) -> None:
        self.lifecycle, self.secret = McpLifecycle(identity, secret), secret
        self.tools, self.resources, self.prompts = Tools(), Resources(), Prompts()
        self.completions = Completions(self.prompts, self.resources)
        self.subscriptions = Subscriptions(self.resources.find_resource)
        self.subscriptions.add_update_listener(self.resources.cache.drop_contents)

        self.permanent = (
            self.lifecycle,
            self.tools,
            self.resources,
            self.subscriptions,
            self.prompts,
            self.completions,
            reporting.Reporting(),
        )
        self._before_list: BeforeList | None = None
        self.skills: Skills | None = None
        self._skill_followers: list[Callable[[Skills], object]] = []
        changed = self.subscriptions.notify_list_changed
        self.tools.registry.watch(lambda: changed("tools"))
        self.prompts.registry.watch(lambda: changed("prompts"))
        self.resources.concrete.watch(lambda: changed("resources"))
        self.resources.templates.watch(lambda: changed("resources"))

    def attach_backend_sources(
        self, source: Mounts, before: BeforeList, meta: Callable[[Call], Params], late: WaitForLateItems
    ) -> None:
        """Offer what comes from elsewhere. Call it before serving.

        `before` is awaited ahead of every list, whose `_meta` for a caller is `meta`. `late` is awaited for what is not
        known yet.
        """
        self._before_list = before
        self.subscriptions.source = source
        self.tools.late = self.prompts.late = self.resources.late = self.subscriptions.late = late
        resources = self.resources
        for each in (self.tools.tool_list, self.prompts.prompt_list, resources.concrete_list, resources.template_list):
            each.meta = meta

    def items(self) -> Iterator[Item[Any]]:
        """Everything that is offered, of every kind."""
        yield from (*self.tools.registry, *self.resources.concrete, *self.resources.templates, *self.prompts.registry)

    def ensure_skills_section(self) -> Skills:
        """The section of skills. It is made with the first skill, before serving begins."""
        if self.skills is None:
            if self.subscriptions.composition is not None:
                raise UsageError(
                    "the first skill comes after the server has started", fix="declare it where you create the server"
                )
            from defserve.protocols.mcp.skills import Skills

            skills = Skills(self.resources)
            for follow in self._skill_followers:
                follow(skills)
            self.skills, self.permanent = skills, (*self.permanent, skills)
        return self.skills

    def add_skills_listener(self, follow: Callable[[Skills], object]) -> None:
        """Call `follow` with the section of skills, now or when there is one."""
        self._skill_followers.append(follow)
        if self.skills is not None:
            follow(self.skills)

    def describe_tool(self, tool: Tool) -> Params:
        """A tool as the newest version with sessions lists it."""
        return tool.describe(self.lifecycle.dialects[HANDSHAKE_VERSIONS[-1]])

    def attach_composition(self, composition: Composition) -> None:
        """The composition whose sessions are told of changes. Raises UsageError for what does not fit together."""
        self.completions.check()
        self.subscriptions.composition = composition

    def on_item_declared(self, item: Item[Any]) -> None:
        composition = self.subscriptions.composition
        if composition is None or item.facets.keys().isdisjoint(OPTIONAL_EXTENSION_FACETS):
            return
        served = {extension.name for extension in composition.extensions}
        for facet, what in OPTIONAL_EXTENSION_FACETS.items():
            if facet in item.facets and facet not in served:
                raise UsageError(
                    f"{item.kind} {item.name!r} is the first {what}, and comes after the server has started",
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
        capabilities: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "logging": {},
        }
        if "completions" in self.lifecycle.dialects[offer.version].has and self.completions.offered:
            capabilities["completions"] = {}
        if self.skills is not None:
            capabilities |= self.skills.capabilities(offer)
        return capabilities

    def methods(self) -> Mapping[str, Handler]:
        methods, before = super().methods(), self._before_list
        if before is None:
            return methods
        return {**methods, **{name: _run_after(before, methods[name]) for name in ITEM_LISTS}}

    def notifications(self) -> Mapping[str, Listener]:
        ignored = ("notifications/progress", "notifications/roots/list_changed")
        return {**super().notifications(), **dict.fromkeys(ignored, _ignore_notification)}


def _run_after(before: BeforeList, page: Handler) -> Handler:
    async def list_after(call: Call, params: Params) -> Any:
        await before(call)
        return page(call, params)

    return list_after


def _ignore_notification(session: Any, params: Any) -> None:
    """Part of the protocol; the server need not react."""
