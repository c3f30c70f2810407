"""MCP pagination (server utilities): lists encoded once per view, with cursors that survive changes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from defserve.base.caches import ByteCache
from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.errors import InvalidParams, TimedOut
from defserve.protocols.mcp.lifecycle import Dialect, dialect_cache_hints, dialect_of
from defserve.wire.codec import encode_early
from defserve.wire.messages import Encoded, Params

# Of the pages that are kept: all together, and what the key of one takes.
MOST_BYTES, KEY_BYTES = 16 * 1024 * 1024, 4 * 1024


class Listed(Protocol):
    """An item that a list can show."""

    def describe(self, dialect: Dialect) -> Params:
        """The item as a list shows it to a peer of this version."""
        ...


T = TypeVar("T", bound=Listed)


class Listing(Generic[T]):
    """One list method: its member name (`tools`), its registry, which items it shows, and how each looks in a dialect.

    Without `describe`, an item describes itself.
    """

    def __init__(
        self,
        member: str,
        registry: Registry[T],
        shows: Callable[[T], bool] = lambda _: True,
        describe: Callable[[T, Dialect], Params] = lambda item, dialect: item.describe(dialect),
    ) -> None:
        self.member, self.registry, self.shows, self.describe = member, registry, shows, describe
        self.meta: Callable[[Call], Params] | None = None
        """The `_meta` of its pages. It may change only with the registry's version, and differ only with the view."""
        self._pages = ByteCache[Encoded](MOST_BYTES)
        self._version = -1

    def page(self, call: Call, params: Params) -> Encoded:
        """The page a cursor points to. Callers with the same view share its bytes."""
        dialect, composition = dialect_of(call), call.session.composition
        views = composition.views(call)
        position = position_of(self.member, params.get("cursor"))
        if self._version != self.registry.version:
            self._pages.clear()
            self._version = self.registry.version
        key = (dialect.version, views, position)
        if (page := self._pages.get(key)) is None:
            began, seconds = monotonic(), composition.limits.discovery
            page = encode_early(self._page(call, dialect, views, position))
            self._pages.put(key, page, len(page) + KEY_BYTES)
            if monotonic() - began > seconds:
                raise TimedOut.of("discovery", f"listing the {self.member}", seconds)
        return page

    def _page(self, call: Call, dialect: Dialect, views: tuple[object, ...], position: int) -> Any:
        composition = call.session.composition
        size = composition.limits.page
        # Look for one more than a page, so that a last page never ends with a cursor to nothing.
        found: list[tuple[int, T]] = []
        for place, item in self.registry.after(position, len(self.registry)):
            if self.shows(item) and composition.visible(call, item):
                found.append((place, item))
                if len(found) > size:
                    break
        items = [composition.describe(item, views, self.describe(item, dialect)) for _, item in found[:size]]
        result: Params = {self.member: items, **dialect_cache_hints(dialect)}
        if self.meta is not None and "meta" in dialect.has and (meta := self.meta(call)):
            result["_meta"] = meta
        if len(found) > size:
            result["nextCursor"] = cursor_at(self.member, found[size - 1][0])
        return dialect.result(call, result)


def is_listed(call: Call, method: str, item: Any) -> bool:
    """Whether the list of that method would show the item to the caller of a call."""
    composition = call.session.composition
    if not composition.hides:
        return True
    asker = Call(call.session, call.id, method, call.params, call.raw, call.terms)
    asker.identity = call.identity
    composition.views(asker)  # an extension that shows a choice makes it here
    return composition.visible(asker, item)


def cursor_at(member: str, position: int) -> str:
    """The cursor that stands behind a position of a list."""
    from defserve.wire import base64url

    return base64url.encode(f"{member}:{position}".encode())


def position_of(member: str, cursor: Any) -> int:
    """The position that a cursor stands behind; -1 without a cursor. Raises InvalidParams for one that is not ours."""
    if cursor is None:
        return -1
    from defserve.wire import base64url

    try:
        text = base64url.decode(cursor).decode()
        named, _, position = text.partition(":")
        if named == member and position.isdecimal() and cursor_at(member, int(position)) == cursor:
            return int(position)
    except (TypeError, ValueError):
        pass
    raise InvalidParams("Invalid cursor", data={"cursor": cursor if isinstance(cursor, str) else None})
