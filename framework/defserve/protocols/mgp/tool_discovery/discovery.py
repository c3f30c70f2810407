"""MGP §16.5 to §16.8: `mgp/tools/discover`, `request`, `session` and `session/evict`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING

from defserve.core.call import Call
from defserve.protocols.mgp.tool_discovery.catalogue import Catalogue
from defserve.protocols.mgp.tool_discovery.conversations import loaded_by, told
from defserve.protocols.mgp.tool_discovery.reading import MOST_NAMES, ToolQuery, ToolRequest, texts
from defserve.search.bm25 import weighed
from defserve.search.entries import EntryFilter, ToolEntry
from defserve.search.options import Search
from defserve.search.ranking import Found, Hit, Strategy, ToolIndex
from defserve.search.vectors import PackagedEmbedder, Vectors
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mgp.audit.trail import AuditTrail
    from defserve.search.budget import LoadedTools

MOST_INDEXES = 8
"""Indexes that are kept: one for each set of tools that callers see."""

PENDING = "dev.defserve.tool_pending"
NEAR = 0.8
"""A tool is loaded for a capability if it scores at least this share of the best one."""
MOST_EACH = 3


class ToolDiscovery:
    """The section. Searching runs in a worker thread; what a conversation has loaded changes on the loop alone."""

    def __init__(self, options: Search, catalogue: Catalogue, audit: Callable[[], AuditTrail]) -> None:
        self.options, self.catalogue, self._audit = options, catalogue, audit
        self.always: frozenset[str] = frozenset()
        """Tools that every list shows, besides the pinned ones."""
        embedder = options.embedder
        self._vectors = Vectors(PackagedEmbedder if embedder is None else lambda: embedder)
        self._weights: dict[ToolEntry, dict[str, float]] = {}
        self._indexes: dict[tuple[ToolEntry, ...], ToolIndex] = {}
        self._lock = Lock()

    # -- methods -----------------------------------------------------------------------------------------

    async def discover(self, call: Call, params: Params) -> Params:
        """The tools that fit a query, best first, with their schemas. Nothing is loaded."""
        asked, began = ToolQuery.of(params, self.options.strategy), perf_counter()
        visible, loaded = self.catalogue.visible(call), self.loaded(call)
        found = await self._found(call, visible, loaded, asked.query, asked.strategy, asked.wanted)
        results, spent, cut = list[Params](), 0, 0
        for entry, score in found.hits[: asked.most]:
            if spent + entry.tokens > self.options.budget.discovery_reserve:
                cut += 1
                continue
            if (about := self.catalogue.about(entry)) is not None:
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
        asked, visible, loaded = ToolRequest.of(params), self.catalogue.visible(call), self.loaded(call)
        before, chosen, open_needs = frozenset(loaded.names), dict[ToolEntry, None](), list[Params]()
        for need in asked.capabilities or (asked.context,):
            hits = await self._matching(call, visible, loaded, need, asked)
            usable = [entry for entry, _ in hits if not self.catalogue.missing(call, entry)]
            chosen |= dict.fromkeys(usable)
            if not hits:
                open_needs.append({"capability": need, "reason": "no tool of this server does it"})
            elif not usable:
                open_needs.append(self._blocked(call, need, hits[0].entry))
                if "permissions_missing" in open_needs[-1] and len(loaded.waiting) < MOST_NAMES:
                    loaded.waiting.add(hits[0].entry.name)
        limit, added = self.options.budget.cache_limit, 0
        for entry in chosen:
            if not self.is_pinned(entry.name) and loaded.load(entry.name, entry.tokens, limit):
                added += entry.tokens if entry.name not in before else 0
        answer: Params = {
            "status": _status(chosen, open_needs),
            "tools_loaded": [about for entry in chosen if (about := self.catalogue.about(entry)) is not None],
            "tools_unavailable": open_needs,
            "session_tools_count": len(self._pinned(visible)) + sum(entry.name in loaded for entry in visible),
            "context_tokens_added": added,
        }
        return _with_meta(answer, told(call, loaded, before))

    def session(self, call: Call, params: Params) -> Params:
        """What this conversation's list holds besides the meta-tools."""
        visible, loaded = self.catalogue.visible(call), self.loaded(call)
        pinned = self._pinned(visible)
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
        names, loaded = texts(params, "tools", required=True), self.loaded(call)
        before, visible = frozenset(loaded.names), {entry.name for entry in self.catalogue.visible(call)}
        gone = loaded.evict(name for name in names if name in visible)
        answer: Params = {
            "evicted": list(gone),
            "kept": [name for name in names if name not in gone],
            "remaining_count": len(visible.intersection(loaded.names)),
            "freed_tokens": sum(gone.values()),
        }
        return _with_meta(answer, told(call, loaded, before))

    # -- for the operator --------------------------------------------------------------------------------

    async def find(
        self, query: str, most: int, in_thread: Callable[[Callable[[], Found]], Awaitable[Found]]
    ) -> list[Params]:
        """The tools that fit a query, best first, whoever may use them. Raises InvalidParams."""
        asked, entries = (
            ToolQuery.of({"query": query, "max_results": most}, self.options.strategy),
            self.catalogue.all(),
        )
        self.warm_up()

        def search() -> Found:
            return self._index(tuple(entries)).search(asked.query, asked.strategy, asked.wanted, lambda _: 0)

        hits = (await in_thread(search)).hits[:most]
        found = ((self.catalogue.about(entry), score) for entry, score in hits)
        return [{**about, "relevance_score": round(score, 3)} for about, score in found if about is not None]

    # -- for the list and for calls ----------------------------------------------------------------------

    def loaded(self, call: Call) -> LoadedTools:
        """What this call's conversation has loaded, without tools that are gone."""
        loaded = loaded_by(call, self.catalogue, self.options.budget.cache_limit)
        for name in loaded.waiting.copy():
            self._load_if_approved(call, loaded, name)
        if loaded:
            loaded.keep(lambda name: self.catalogue.by_name(name) is not None)
        return loaded

    def _load_if_approved(self, call: Call, loaded: LoadedTools, name: str) -> None:
        entry = self.catalogue.by_name(name)
        if entry is None or not self.catalogue.missing(call, entry):
            loaded.waiting.discard(name)
            if entry is not None:
                self.used(loaded, name)

    def used(self, loaded: LoadedTools, name: str) -> None:
        """A tool was called: it is loaded, or moves to the end of those that leave next."""
        entry = self.catalogue.by_name(name)
        if entry is not None and not self.is_pinned(name):
            loaded.load(name, entry.tokens, self.options.budget.cache_limit)

    def is_pinned(self, name: str) -> bool:
        return name in self.options.pinned

    def warm_up(self) -> None:
        """Begin to load what search by meaning needs."""
        if self.options.strategy != "keyword":
            self._vectors.begin()

    def _pinned(self, visible: Sequence[ToolEntry]) -> list[ToolEntry]:
        by_name = {entry.name: entry for entry in visible}
        return [by_name[name] for name in self.options.pinned if name in by_name]

    # -- searching ---------------------------------------------------------------------------------------

    async def _found(
        self,
        call: Call,
        visible: Sequence[ToolEntry],
        loaded: LoadedTools,
        query: str,
        strategy: Strategy,
        wanted: EntryFilter,
    ) -> Found:
        if strategy in ("semantic", "hybrid"):
            self._vectors.begin()
        used = frozenset(loaded.names)

        def preference(entry: ToolEntry) -> int:
            return 0 if self.is_pinned(entry.name) else 1 if entry.name in used else 2

        def search() -> Found:
            return self._index(tuple(visible)).search(query, strategy, wanted, preference)

        return await call.in_thread(search)

    async def _matching(
        self, call: Call, visible: Sequence[ToolEntry], loaded: LoadedTools, need: str, asked: ToolRequest
    ) -> list[Hit]:
        """The best tools for one capability, and those nearly as good."""
        query = " ".join((need.replace("_", " "), *asked.types))
        found = await self._found(call, visible, loaded, query, self.options.strategy, asked.wanted)
        if found.weak:
            return []
        return [hit for hit in found.hits[:MOST_EACH] if hit.score >= NEAR * found.hits[0].score]

    def _index(self, entries: tuple[ToolEntry, ...]) -> ToolIndex:
        with self._lock:
            if (index := self._indexes.pop(entries, None)) is None:
                index = ToolIndex(entries, self._weighed, self._vectors)
                self._forget(entries)
            self._indexes[entries] = index
            return index

    def _weighed(self, entry: ToolEntry) -> dict[str, float]:
        if (found := self._weights.get(entry)) is None:
            found = self._weights[entry] = weighed(entry)
        return found

    def _forget(self, entries: tuple[ToolEntry, ...]) -> None:
        """Drop indexes beyond the bound, and what is known of tools that no index holds."""
        while len(self._indexes) >= MOST_INDEXES:
            self._indexes.pop(next(iter(self._indexes)))
        held = {entry for kept in self._indexes for entry in kept} | set(entries)
        self._weights = {entry: found for entry, found in self._weights.items() if entry in held}
        self._vectors.keep(held)

    def _blocked(self, call: Call, need: str, entry: ToolEntry) -> Params:
        """Why a tool that was found is not loaded."""
        missing = self.catalogue.missing(call, entry)
        denied = [name for name, decision in missing.items() if decision == "denied"]
        if denied:
            return {"capability": need, "reason": f"{entry.name} does it, but {', '.join(denied)} is denied"}
        names = list(missing)
        self._audit().report(call, PENDING, tool=entry.name, result="BLOCKED", details={"permissions": names})
        reason = f"{entry.name} does it, and needs approval of {', '.join(names)}"
        return {"capability": need, "name": entry.name, "permissions_missing": names, "reason": reason}


def _status(chosen: dict[ToolEntry, None], open_needs: Sequence[Params]) -> str:
    """§16.6. `creating` is never said: nothing here makes tools."""
    if chosen:
        return "partial" if open_needs else "fulfilled"
    return "pending_approval" if any("permissions_missing" in need for need in open_needs) else "unavailable"


def _with_meta(answer: Params, more: Params) -> Params:
    return {**answer, "_meta": more} if more else answer
