"""How much of the tools a list shows (MGP §16.3): everything, categories, what searches, or what is loaded as well."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from defserve.core.call import Call
from defserve.core.extension import Extension
from defserve.errors import UsageError
from defserve.protocols.mcp.apps.facet import is_for_views
from defserve.protocols.mgp.tool_discovery.catalogue import Catalogue
from defserve.protocols.mgp.tool_discovery.conversations import note_level
from defserve.protocols.mgp.tool_discovery.discovery import ToolDiscovery
from defserve.protocols.mgp.tool_discovery.names import CALL, DISCOVER, REQUEST, SPELLINGS
from defserve.search.options import Search
from defserve.wire.messages import Params

ListLevel: TypeAlias = Literal["L0", "L1", "L2", "L3"]

LIST = "tools/list"
ALWAYS = frozenset({DISCOVER, REQUEST, CALL})
MOST_CATEGORIES = 200
# A REST client has no conversation to load tools into, so its document lists every tool; and authors check them all.
UNSEARCHED = frozenset({"rest", "defserve tooling"})


class Levels:
    """Which level a caller's list has."""

    def __init__(self, options: Search, catalogue: Catalogue) -> None:
        self._options, self._catalogue = options, catalogue
        self._whole = UNSEARCHED.union(options.whole_list_for)

    @property
    def never_searched(self) -> bool:
        """Whether every list holds every tool, so that nothing has to be loaded. Costs no look at the caller."""
        level = self._options.level
        return level == "L0" or (level == "auto" and self._catalogue.tokens <= self._options.budget.max_tokens)

    def of(self, call: Call) -> ListLevel:
        level, offer = self._options.level, call.terms.offer
        if self.never_searched or (offer is not None and offer.info.get("name") in self._whole):
            return "L0"
        if level != "auto":
            return level
        visible = sum(entry.tokens for entry in self._catalogue.visible(call))
        return "L0" if visible <= self._options.budget.max_tokens else "L3"


class ShownTools:
    """What one `tools/list` shows: names, or None for every tool but the meta-tools."""

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None


class SearchedList(Extension):
    """Leaves tools out of lists. It refuses nothing: a tool that is left out can be called."""

    name = "tool_discovery"

    def __init__(self, section: ToolDiscovery, levels: Levels) -> None:
        self._section, self._levels = section, levels
        self._said = False

    def declared(self, item: Any) -> None:
        if item.kind == "tool" and item.name in SPELLINGS and not item.protects_itself:
            raise UsageError(
                f"tool {item.name!r} has the name of a tool that searches", where=item.where, fix="give it another name"
            )

    def visible(self, call: Call, item: Any) -> bool:
        if call.method != LIST or item.kind != "tool":
            return True
        names = call.local(ShownTools).names
        if names is not None:
            # A host looks for the tools of its views in the list. It hides them from the model itself.
            return item.name in names or is_for_views(item)
        return not item.protects_itself and item.name not in SPELLINGS

    def view(self, call: Call) -> object:
        """The names that are shown. Called before `visible`, for every list."""
        if call.method != LIST:
            return None
        section, level = self._section, self._levels.of(call)
        note_level(call, level)
        if level == "L0":
            return None
        if level == "L3":
            self._say_once()
        section.warm_up()
        shown = ALWAYS.union(section.options.pinned, section.always)
        if level == "L3":
            shown = shown.union(SPELLINGS.values(), section.loaded(call).names)
        call.local(ShownTools).names = shown
        return shown, self._categories(call) if level == "L1" else ()

    def describe(self, item: Any, view: Any) -> Params:
        """At level L1 the search lists the categories that there are."""
        categories = view[1] if view is not None and item.kind == "tool" and item.name == DISCOVER else ()
        if not categories:
            return {}
        described: Params = {"categories": {"items": {"enum": list(categories)}}}
        return {"inputSchema": {"properties": {"filter": {"properties": described}}}}

    def _say_once(self) -> None:
        options, catalogue = self._section.options, self._section.catalogue
        if options.level != "auto" or self._said:
            return
        self._said = True
        import logging

        logging.getLogger("defserve").info(
            "a list of all tools would take %d tokens, more than %d: lists show what searches, and what was loaded",
            catalogue.tokens,
            options.budget.max_tokens,
        )

    def _categories(self, call: Call) -> tuple[str, ...]:
        visible = self._section.catalogue.visible(call)
        return tuple(sorted({name for entry in visible for name in entry.categories})[:MOST_CATEGORIES])
