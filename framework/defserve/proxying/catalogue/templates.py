"""URI templates of backends. One that we cannot match is still offered: its backend may understand it."""

from __future__ import annotations

from typing import Any

from defserve.protocols.mcp.resources.uri_template import UriTemplate


class LooseTemplate(UriTemplate):
    """Matches every URI that begins as the template does, up to its first variable."""

    __slots__ = ("_head",)

    def __init__(self, text: str) -> None:
        self.text, self.names, self._head = text, (), text.partition("{")[0]

    def match(self, uri: str) -> dict[str, Any] | None:
        return {} if len(self._head) > 0 and uri.startswith(self._head) else None


def template_of(text: str) -> UriTemplate:
    try:
        return UriTemplate.parse(text)
    except ValueError:
        return LooseTemplate(text)
