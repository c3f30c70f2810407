"""MGP §16: finding tools instead of listing them all. `mgp/tools/discover`, `request`, `session`, `session/evict`.

A search shows and counts only what its caller may see. A tool that a list leaves out is still judged, never refused
for being left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from defserve.core import json_values
from defserve.core.call import Call
from defserve.core.extension import Extension, Handler
from defserve.core.messages import Params
from defserve.core.shapes import (
    ANY_VALUE,
    OBJECT,
    TEXT,
    MemberKind,
    WireShape,
    bounded_list_of,
    distinct_list_of,
    make_checked_kind,
    nested_shape,
    one_of,
    read_member,
    restrict_kind,
    wire_member,
    wire_shape,
)
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcp.app_policy import is_view_only
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE, read_meta
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mgp.server_discovery import SERVER_STATUS_FILTERS
from defserve.protocols.mgp.tool_catalogue import (
    CALL_TOOL,
    DISCOVER_TOOL,
    META_TOOL_ALIASES,
    REQUEST_TOOL,
    TOOL_DIGEST_BYTES,
    SearchableToolCatalogue,
    digest_tool_name,
)
from defserve.search.entries import RISK_LEVELS, EntryFilter, LoadedTools, RiskLevel, ToolEntry
from defserve.search.ranking import (
    MAX_QUERY_LENGTH,
    SEARCH_STRATEGIES,
    Search,
    SearchHit,
    SearchResult,
    SearchStrategy,
    ToolIndex,
)
from defserve.search.scores import ToolVectors, get_packaged_embedder, weigh_stems

if TYPE_CHECKING:
    from defserve.protocols.mgp.audit import AuditTrail


MAX_INDEXES = 8
"""Indexes that are kept: one for each set of tools that callers see."""

PENDING = "dev.defserve.tool_pending"
NEAR = 0.8
"""A tool is loaded for a capability if it scores at least this share of the best one."""
MAX_HITS_PER_NEED = 3


class ToolDiscovery(Extension):
    """The section. Searching runs in a worker thread; what a conversation has loaded changes on the loop alone."""

    def __init__(self, options: Search, catalogue: SearchableToolCatalogue, audit: Callable[[], AuditTrail]) -> None:
        self.options, self.catalogue, self._audit = options, catalogue, audit
        self.always: frozenset[str] = frozenset()
        """Tools that every list shows, besides the pinned ones."""
        embedder = options.embedder
        self._vectors = ToolVectors(get_packaged_embedder if embedder is None else lambda: embedder)
        self._weights: dict[ToolEntry, dict[str, float]] = {}
        self._indexes: dict[tuple[ToolEntry, ...], ToolIndex] = {}
        self._lock = Lock()
        self._whole_list_for = UNSEARCHED.union(options.whole_list_for)

    # -- methods -----------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {
            "mgp/tools/discover": self.discover,
            "mgp/tools/request": self.request,
            "mgp/tools/session": self.describe_session_tools,
            "mgp/tools/session/evict": self.evict,
        }

    async def discover(self, call: Call, params: Params) -> Params:
        """The tools that fit a query, best first, with their schemas. Nothing is loaded."""
        asked, began = ToolQuery.from_wire({"strategy": self.options.strategy, **params}), perf_counter()
        visible, loaded = self.catalogue.visible(call), self.get_loaded_tools(call)
        found = await self._search_tools(call, visible, loaded, asked.query, asked.strategy, asked.wanted)
        results, spent, cut = list[Params](), 0, 0
        for entry, score in found.hits[: asked.most]:
            if spent + entry.tokens > self.options.budget.discovery_reserve:
                cut += 1
                continue
            if (about := self.catalogue.describe_tool(entry)) is not None:
                spent += entry.tokens
                results.append({**about, "relevance_score": round(score, 3)})
        answer: Params = {
            "tools": results,
            "total_available": len(visible),
            "search_strategy": found.strategy,
            "query_time_ms": round((perf_counter() - began) * 1000, 3),
        }
        if found.strategy != asked.strategy:
            answer["fallback_strategy"] = found.strategy
        if found.weak:
            answer["weak"] = True
        if cut:
            answer["results_cut"] = cut
        return answer

    async def request(self, call: Call, params: Params) -> Params:
        """Load the tools that an agent says it needs into its conversation."""
        asked, visible, loaded = (
            ToolRequest.from_wire(params),
            self.catalogue.visible(call),
            self.get_loaded_tools(call),
        )
        before, chosen, open_needs = frozenset(loaded.names), dict[ToolEntry, None](), list[Params]()
        for need in asked.needs.capabilities or (asked.context,):
            hits = await self._matching(call, visible, loaded, need, asked)
            usable = [entry for entry, _ in hits if not self.catalogue.find_missing_permissions(call, entry)]
            chosen |= dict.fromkeys(usable)
            if not hits:
                open_needs.append({"capability": need, "reason": "no tool of this server does it"})
            elif not usable:
                open_needs.append(self._explain_blocked(call, need, hits[0].entry))
                if "permissions_missing" in open_needs[-1] and len(loaded.waiting) < MAX_NAMES:
                    loaded.waiting.add(hits[0].entry.name)
        limit, added = self.options.budget.cache_limit, 0
        for entry in chosen:
            if entry.name not in self.options.pinned and loaded.load_tool(entry.name, entry.tokens, limit):
                added += entry.tokens if entry.name not in before else 0
        answer: Params = {
            "status": _status(chosen, open_needs),
            "tools_loaded": [about for entry in chosen if (about := self.catalogue.describe_tool(entry)) is not None],
            "tools_unavailable": open_needs,
            "session_tools_count": len(self._select_pinned(visible)) + sum(entry.name in loaded for entry in visible),
            "context_tokens_added": added,
        }
        return _with_meta(answer, report_loaded_tools(call, loaded, before))

    def describe_session_tools(self, call: Call, params: Params) -> Params:
        """What this conversation's list holds besides the meta-tools."""
        visible, loaded = self.catalogue.visible(call), self.get_loaded_tools(call)
        pinned = self._select_pinned(visible)
        cached = [entry for entry in visible if entry.name in loaded]
        order = {name: at for at, name in enumerate(loaded.names)}
        return {
            "pinned": [entry.name for entry in pinned],
            "cached": sorted((entry.name for entry in cached), key=order.__getitem__),
            "total_tokens": sum(entry.tokens for entry in (*pinned, *cached)),
            "max_tokens": self.options.budget.max_tokens,
        }

    def evict(self, call: Call, params: Params) -> Params:
        """Take tools out of this conversation's list. Those that stay are named in `kept`."""
        names, loaded = read_member(params, "tools", NAMES), self.get_loaded_tools(call)
        before, visible = frozenset(loaded.names), {entry.name for entry in self.catalogue.visible(call)}
        gone = loaded.evict(name for name in names if name in visible)
        answer: Params = {
            "evicted": list(gone),
            "kept": [name for name in names if name not in gone],
            "remaining_count": len(visible.intersection(loaded.names)),
            "freed_tokens": sum(gone.values()),
        }
        return _with_meta(answer, report_loaded_tools(call, loaded, before))

    # -- for the operator --------------------------------------------------------------------------------

    async def search_tools(
        self, query: str, most: int, in_thread: Callable[[Callable[[], SearchResult]], Awaitable[SearchResult]]
    ) -> list[Params]:
        """The tools that fit a query, best first, whoever may use them. Raises InvalidParams."""
        wanted = {"query": query, "max_results": most, "strategy": self.options.strategy}
        asked, entries = ToolQuery.from_wire(wanted), self.catalogue.list_all_tools()
        self.warm_up()

        def search() -> SearchResult:
            return self._index(tuple(entries)).search(asked.query, asked.strategy, asked.wanted, lambda _: 0)

        hits = (await in_thread(search)).hits[:most]
        found = ((self.catalogue.describe_tool(entry), score) for entry, score in hits)
        return [{**about, "relevance_score": round(score, 3)} for about, score in found if about is not None]

    # -- for the list and for calls ----------------------------------------------------------------------

    @property
    def is_list_always_complete(self) -> bool:
        """Whether every list holds every tool, so that nothing has to be loaded. Costs no look at the caller."""
        level = self.options.level
        return level == "L0" or (level == "auto" and self.catalogue.tokens <= self.options.budget.max_tokens)

    def find_list_level(self, call: Call) -> ListLevel:
        """Which level a caller's list has."""
        level, offer = self.options.level, call.terms.offer
        if self.is_list_always_complete or (offer is not None and offer.info.get("name") in self._whole_list_for):
            return "L0"
        if level != "auto":
            return level
        visible = sum(entry.tokens for entry in self.catalogue.visible(call))
        return "L0" if visible <= self.options.budget.max_tokens else "L3"

    def get_loaded_tools(self, call: Call) -> LoadedTools:
        """What this call's conversation has loaded, without tools that are gone."""
        loaded = find_loaded_tools(call, self.catalogue, self.options.budget.cache_limit)
        for name in loaded.waiting.copy():
            entry = self.catalogue.find_by_name(name)
            if entry is None or not self.catalogue.find_missing_permissions(
                call, entry
            ):  # it is gone, or approved by now
                loaded.waiting.discard(name)
                self.mark_used(loaded, name)
        if loaded:
            loaded.retain_known(lambda name: self.catalogue.find_by_name(name) is not None)
        return loaded

    def mark_used(self, loaded: LoadedTools, name: str) -> None:
        """A tool was called: it is loaded, or moves to the end of those that leave next."""
        entry = self.catalogue.find_by_name(name)
        if entry is not None and name not in self.options.pinned:
            loaded.load_tool(name, entry.tokens, self.options.budget.cache_limit)

    def warm_up(self) -> None:
        """Begin to load what search by meaning needs."""
        if self.options.strategy != "keyword":
            self._vectors.start_loading()

    def _select_pinned(self, visible: Sequence[ToolEntry]) -> list[ToolEntry]:
        by_name = {entry.name: entry for entry in visible}
        return [by_name[name] for name in self.options.pinned if name in by_name]

    # -- searching ---------------------------------------------------------------------------------------

    async def _search_tools(
        self,
        call: Call,
        visible: Sequence[ToolEntry],
        loaded: LoadedTools,
        query: str,
        strategy: SearchStrategy,
        wanted: EntryFilter,
    ) -> SearchResult:
        if strategy in ("semantic", "hybrid"):
            self._vectors.start_loading()
        used = frozenset(loaded.names)

        def preference(entry: ToolEntry) -> int:
            return 0 if entry.name in self.options.pinned else 1 if entry.name in used else 2

        def search() -> SearchResult:
            return self._index(tuple(visible)).search(query, strategy, wanted, preference)

        return await call.in_thread(search)

    async def _matching(
        self, call: Call, visible: Sequence[ToolEntry], loaded: LoadedTools, need: str, asked: ToolRequest
    ) -> list[SearchHit]:
        """The best tools for one capability, and those nearly as good."""
        query = " ".join((need.replace("_", " "), *asked.needs.input_types, *asked.needs.output_types))
        wanted = EntryFilter(risk_level_max=asked.needs.risk)
        found = await self._search_tools(call, visible, loaded, query, self.options.strategy, wanted)
        if found.weak:
            return []
        return [hit for hit in found.hits[:MAX_HITS_PER_NEED] if hit.score >= NEAR * found.hits[0].score]

    def _index(self, entries: tuple[ToolEntry, ...]) -> ToolIndex:
        with self._lock:
            if (index := self._indexes.pop(entries, None)) is None:
                index = ToolIndex(entries, self._weigh_entry, self._vectors)
                self._drop_old_indexes(entries)
            self._indexes[entries] = index
            return index

    def _weigh_entry(self, entry: ToolEntry) -> dict[str, float]:
        if (found := self._weights.get(entry)) is None:
            found = self._weights[entry] = weigh_stems(entry)
        return found

    def _drop_old_indexes(self, entries: tuple[ToolEntry, ...]) -> None:
        """Drop indexes beyond the bound, and what is known of tools that no index holds."""
        while len(self._indexes) >= MAX_INDEXES:
            self._indexes.pop(next(iter(self._indexes)))
        held = {entry for kept in self._indexes for entry in kept} | set(entries)
        self._weights = {entry: found for entry, found in self._weights.items() if entry in held}
        self._vectors.retain_entries(held)

    def _explain_blocked(self, call: Call, need: str, entry: ToolEntry) -> Params:
        """Why a tool that was found is not loaded."""
        missing = self.catalogue.find_missing_permissions(call, entry)
        denied = [name for name, decision in missing.items() if decision == "denied"]
        if denied:
            return {"capability": need, "reason": f"{entry.name} does it, but {', '.join(denied)} is denied"}
        names = list(missing)
        self._audit().report_call_event(
            call, PENDING, tool=entry.name, result="BLOCKED", details={"permissions": names}
        )
        reason = f"{entry.name} does it, and needs approval of {', '.join(names)}"
        return {"capability": need, "name": entry.name, "permissions_missing": names, "reason": reason}


def _status(chosen: dict[ToolEntry, None], open_needs: Sequence[Params]) -> str:
    """§16.6. `creating` is never said: nothing here makes tools."""
    if chosen:
        return "partial" if open_needs else "fulfilled"
    return "pending_approval" if any("permissions_missing" in need for need in open_needs) else "unavailable"


def _with_meta(answer: Params, more: Params) -> Params:
    return {**answer, "_meta": more} if more else answer


# -- The params of a search and of a request for tools, checked as they are read.


MAX_SEARCH_RESULTS, DEFAULT_RESULTS = 20, 5
MAX_NAMES, MAX_NAME_LENGTH = 64, 200
TOOL_REQUEST_REASONS = ("capability_gap", "performance", "preference")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_LENGTH


def _read_filter(value: Any) -> EntryFilter:
    given = OBJECT.read(value)
    status = read_member(given, "status", one_of(*SERVER_STATUS_FILTERS), None, label="filter.status")
    categories = read_member(given, "categories", NAMES, (), nullable=False, label="filter.categories")
    risk = read_member(given, "risk_level_max", RISK, None)
    return EntryFilter(categories, risk, None if status == "all" else status)


NAME = restrict_kind(
    ANY_VALUE, lambda value: value and _is_name(value), f"must hold texts of 1 to {MAX_NAME_LENGTH} characters"
)
NAMES = distinct_list_of(bounded_list_of(NAME, MAX_NAMES))
QUERY = restrict_kind(
    TEXT, lambda text: len(text) <= MAX_QUERY_LENGTH, f"may have at most {MAX_QUERY_LENGTH} characters"
)
RISK: MemberKind[Any] = one_of(*RISK_LEVELS)


@wire_shape(kw_only=True)
class ToolQuery(WireShape):
    """What `mgp/tools/discover` asks."""

    query: str = wire_member("query", QUERY)
    wanted: EntryFilter = wire_member("filter", MemberKind("an object", _read_filter), default=EntryFilter())
    strategy: SearchStrategy = wire_member("strategy", one_of(*SEARCH_STRATEGIES))
    most: int = wire_member(
        "max_results",
        make_checked_kind(
            f"1 to {MAX_SEARCH_RESULTS}", lambda value: type(value) is int and 1 <= value <= MAX_SEARCH_RESULTS
        ),
        default=DEFAULT_RESULTS,
        nullable=False,
    )

    def check_members(self) -> None:
        if self.strategy == "category" and not self.wanted.categories:
            raise InvalidParams("Invalid params: the category strategy needs filter.categories")
        if self.strategy != "category" and not self.query.strip():
            raise InvalidParams("Invalid params: query must say what the tool should do")


@wire_shape(kw_only=True)
class ToolRequirements(WireShape):
    """What an agent needs of a tool."""

    capabilities: tuple[str, ...] = wire_member(
        "capabilities", NAMES, default=(), nullable=False, label="requirements.capabilities"
    )
    input_types: tuple[str, ...] = wire_member(
        "input_types", NAMES, default=(), nullable=False, label="requirements.input_types"
    )
    output_types: tuple[str, ...] = wire_member(
        "output_types", NAMES, default=(), nullable=False, label="requirements.output_types"
    )
    risk: RiskLevel | None = wire_member("preferred_risk_level", RISK, default=None)


@wire_shape(kw_only=True)
class ToolRequest(WireShape):
    """What `mgp/tools/request` asks."""

    reason: str = wire_member("reason", one_of(*TOOL_REQUEST_REASONS))
    context: str = wire_member("context", QUERY)
    needs: ToolRequirements = wire_member("requirements", nested_shape(ToolRequirements))
    trace: str | None = wire_member(
        "task_trace_id", make_checked_kind(f"a text of at most {MAX_NAME_LENGTH} characters", _is_name), default=None
    )

    def check_members(self) -> None:
        if not self.needs.capabilities and not self.context.strip():
            raise InvalidParams("Invalid params: name what is needed, in requirements.capabilities or in context")


# -- The tools that a conversation has loaded: kept by its session or, without sessions, in a handle that travels along.
#
# A handle lists digests of tool names. It grants nothing: it says which of the tools that its sender may see anyway are
# listed. So it needs no seal, and no memory here.


HANDLE_KEY = DEFSERVE_NAMESPACE + "tools"
FORMAT = b"\x01"
MAX_TOOLS_IN_HANDLE = 64


class LastList:
    """The level of the list that a session saw last; empty if it saw none."""

    level = ""


def can_remember_loaded_tools(call: Call) -> bool:
    """Whether what is loaded is still known at the next call: without a session, only if a handle was sent."""
    return not get_dialect(call).stateless or HANDLE_KEY in read_meta(call.params)


def find_loaded_tools(call: Call, catalogue: SearchableToolCatalogue, limit: int) -> LoadedTools:
    """The tools that this call's conversation has loaded. Raises InvalidParams for a handle that is none."""
    if not get_dialect(call).stateless:
        return call.session.local(LoadedTools)
    if (known := call.peek(LoadedTools)) is None:
        known = call.local(LoadedTools)
        for each in _digests(read_meta(call.params).get(HANDLE_KEY)):
            if (entry := catalogue.find_by_digest(each)) is not None:
                known.load_tool(entry.name, entry.tokens, limit)
    return known


def report_loaded_tools(call: Call, loaded: LoadedTools, before: frozenset[str]) -> Params:
    """Tell the caller what is loaded now, if that has changed: a notification, or the `_meta` of the result."""
    if get_dialect(call).stateless:
        if not loaded and HANDLE_KEY not in read_meta(call.params):
            return {}
        names = loaded.names[-MAX_TOOLS_IN_HANDLE:]
        return {HANDLE_KEY: json_values.encode_base64url(FORMAT + b"".join(map(digest_tool_name, names)))}
    if call.session.ready and call.session.local(LastList).level == "L3" and before != frozenset(loaded.names):
        call.session.notify("notifications/tools/list_changed", {}, audience=())
    return {}


def _digests(handle: object) -> list[bytes]:
    if handle is None:
        return []
    most = len(FORMAT) + MAX_TOOLS_IN_HANDLE * TOOL_DIGEST_BYTES
    try:
        if not isinstance(handle, str) or len(handle) > 2 * most:
            raise ValueError
        raw = json_values.decode_base64url(handle)
        if not raw.startswith(FORMAT) or len(raw) > most or (len(raw) - len(FORMAT)) % TOOL_DIGEST_BYTES:
            raise ValueError
    except ValueError:
        raise InvalidParams(
            f"Invalid params: _meta[{HANDLE_KEY!r}] must be what the last result had there, or be left out"
        ) from None
    return [raw[at : at + TOOL_DIGEST_BYTES] for at in range(len(FORMAT), len(raw), TOOL_DIGEST_BYTES)]


# -- How much of the tools a list shows (MGP §16.3): everything, categories, what searches, or what is loaded as well.


ListLevel: TypeAlias = Literal["L0", "L1", "L2", "L3"]

LIST = "tools/list"
ALWAYS = frozenset({DISCOVER_TOOL, REQUEST_TOOL, CALL_TOOL})
MAX_CATEGORIES = 200

# A REST client has no conversation to load tools into, so its document lists every tool; and authors check them all.
UNSEARCHED = frozenset({"rest", "defserve tooling"})


class ShownTools:
    """What one `tools/list` shows: names, or None for every tool but the meta-tools."""

    names: frozenset[str] | None = None


class ToolListShortener(Extension):
    """Leaves tools out of lists. It refuses nothing: a tool that is left out can be called."""

    name = "tool_discovery"

    def __init__(self, section: ToolDiscovery) -> None:
        self._section, self._said = section, False

    def on_item_declared(self, item: Any) -> None:
        if item.kind == "tool" and item.name in META_TOOL_ALIASES and not item.protects_itself:
            raise UsageError(
                f"tool {item.name!r} has the name of a tool that searches", where=item.where, fix="give it another name"
            )

    def visible(self, call: Call, item: Any) -> bool:
        if call.method != LIST or item.kind != "tool":
            return True
        names = call.local(ShownTools).names
        if names is not None:
            # A host looks for the tools of its views in the list. It hides them from the model itself.
            return item.name in names or is_view_only(item)
        return not item.protects_itself and item.name not in META_TOOL_ALIASES

    def view(self, call: Call) -> object:
        """The names that are shown. Called before `visible`, for every list."""
        if call.method != LIST:
            return None
        section, level = self._section, self._section.find_list_level(call)
        if not get_dialect(call).stateless:  # without a session nobody is told of changes
            call.session.local(LastList).level = level
        if level == "L0":
            return None
        section.warm_up()
        shown = ALWAYS.union(section.options.pinned, section.always)
        if level == "L3":
            self._say_once()
            shown = shown.union(META_TOOL_ALIASES.values(), section.get_loaded_tools(call).names)
        call.local(ShownTools).names = shown
        visible = section.catalogue.visible(call) if level == "L1" else ()
        return shown, tuple(sorted({name for entry in visible for name in entry.categories})[:MAX_CATEGORIES])

    def describe(self, item: Any, view: Any) -> Params:
        """At level L1 the search lists the categories that there are."""
        categories = view[1] if view is not None and item.kind == "tool" and item.name == DISCOVER_TOOL else ()
        if not categories:
            return {}
        described: Params = {"categories": {"items": {"enum": list(categories)}}}
        return {"inputSchema": {"properties": {"filter": {"properties": described}}}}

    def _say_once(self) -> None:
        options, catalogue = self._section.options, self._section.catalogue
        if options.level != "auto" or self._said:
            return
        self._said = True
        from defserve.base.redaction import get_logger

        get_logger().info(
            "a list of all tools would take %d tokens, more than %d: lists show what searches, and what was loaded",
            catalogue.tokens,
            options.budget.max_tokens,
        )
