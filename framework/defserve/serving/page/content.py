"""What the page says comes from `tools/list`, asked as a client without a token asks it."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json

from defserve.base.caches import ByteCache
from defserve.core.call import Call, Replied
from defserve.core.extension import Offer
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.versions import STATELESS_VERSIONS
from defserve.serving.page.document import About, headers, page
from defserve.transports.asgi import HeaderList
from defserve.transports.http.page import HTML, PageContent
from defserve.version import VERSION
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params, Request

OFFER: Final = Offer(
    STATELESS_VERSIONS[-1], {}, {"name": "page", "version": VERSION}, stateless=True, key=("page", VERSION)
)


MOST_KEPT: Final = 8 * 1024 * 1024
NEEDS_TOKEN: Final = "Clients need a token to see them."
REFUSED: Final = "They are not listed here."


def page_content(mcp: MCP, *, everywhere: bool) -> PageContent:
    """The page of a server. `everywhere`: browsers elsewhere may see it too."""
    identity, kept = mcp.lifecycle.identity, ByteCache[bytes](MOST_KEPT)

    def unlisted(address: str) -> bytes:
        # Without a token nothing is told about a server but where it is. The name is what clients file it under.
        return page(About(identity.name, unlisted=NEEDS_TOKEN), address, everywhere=everywhere)

    def listed(address: str) -> tuple[Request, PageReply]:
        request = Request(1, "tools/list", {}, {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        about = About(identity.name, identity.title or "", identity.version, identity.description or "")
        return request, PageReply(about, address, everywhere, kept)

    return PageContent(OFFER, listed, unlisted, headers())


class PageReply:
    """The reply to `tools/list`, as a page. If the list is refused, the page has none.

    `kept` holds pages by their address and list, so that a long list is not read for every browser.
    """

    kind = HTML

    def __init__(self, about: About, address: str, everywhere: bool, kept: ByteCache[bytes]) -> None:
        self._about, self._address, self._everywhere, self._kept = about, address, everywhere, kept

    @property
    def headers(self) -> HeaderList:
        return headers()

    def result(self, call: Call, result: Any) -> Replied:
        if not isinstance(result, bytes):
            return self._listed(result), None
        key = self._address, result
        if (made := self._kept.get(key)) is None:
            made = self._listed(from_json(result))
            self._kept.put(key, made, len(made) + len(result))
        return made, None

    def failure(self, call: Call, error: Params) -> Replied:
        return self._page(self._about._replace(unlisted=REFUSED)), None

    def _listed(self, found: Any) -> bytes:
        tools = [tool for tool in found["tools"] if is_object(tool)]
        return self._page(self._about._replace(tools=tools, is_complete="nextCursor" not in found))

    def _page(self, about: About) -> bytes:
        return page(about, self._address, everywhere=self._everywhere)
