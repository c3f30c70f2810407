"""Puts the parts of a searched server together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from defserve.errors import UsageError, did_you_mean
from defserve.protocols.mgp.tool_discovery.calling import NamedCalls
from defserve.protocols.mgp.tool_discovery.catalogue import ServerCatalogue
from defserve.protocols.mgp.tool_discovery.discovery import ToolDiscovery
from defserve.protocols.mgp.tool_discovery.levels import Levels, SearchedList
from defserve.protocols.mgp.tool_discovery.meta_tools import meta_tools
from defserve.search.options import Search

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tools
    from defserve.protocols.mgp.audit.trail import AuditTrail


class ToolSearch:
    """What `Server(search=…)` adds: the section's methods, an extension for the list, and a wrapper for calls."""

    def __init__(
        self, given: Any, tools: Tools, catalogue: ServerCatalogue, audit: Callable[[], AuditTrail], owner: Any
    ) -> None:
        options = Search.of(given)
        self._tools = tools
        self.section = ToolDiscovery(options, catalogue, audit)
        levels = Levels(options, catalogue)
        self.list = SearchedList(self.section, levels)
        self.calls = NamedCalls(self.section, levels, tools)
        for tool in meta_tools(self.section, owner):
            tools.registry.add(tool.name, tool, where=tool.where)

    def check(self, *, is_whole: bool) -> None:
        """Raises UsageError if the pinned tools that are known cost more than is reserved for them.

        If all tools are there (`is_whole`), a pinned name that is not among them is warned about: one may still come.
        """
        options = self.section.options
        for name in options.pinned if is_whole else ():
            if self.section.catalogue.by_name(name) is None:
                fix = did_you_mean(name, (each for each, _ in self._tools.registry.items()), "check Search(pinned=…)")
                logging.getLogger("defserve").warning("there is no tool %r to be pinned\n  fix: %s", name, fix)
        known = [self.section.catalogue.by_name(name) for name in options.pinned]
        tokens = {entry.name: entry.tokens for entry in known if entry is not None}
        reserve = options.budget.pinned_reserve
        if sum(tokens.values()) > reserve:
            costs = ", ".join(f"{name} {cost}" for name, cost in tokens.items())
            raise UsageError(
                f"the pinned tools cost {sum(tokens.values())} tokens ({costs}), more than pinned_reserve={reserve}",
                fix="pin fewer tools, or give Search(budget=ToolBudget(pinned_reserve=…, max_tokens=…))",
            )
