"""URI templates of backends. One that we cannot match is still offered: its backend may understand it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from defserve.protocols.mcp.resources.uri_template import UriTemplate


class LooseTemplate(UriTemplate):
    """Matches every URI that begins as the template does, up to its first variable."""

    __slots__ = ("_head",)

    def __init__(self, text: str) -> None:
        self.text, self.names, self._head = text, (), text.partition("{")[0]

    def match(self, uri: str) -> dict[str, Any] | None:
        return {} if len(self._head) > 0 and uri.startswith(self._head) else None


class MountedTemplate(UriTemplate):
    """A template that matches no URI which `is_others` says is of another mounted server."""

    __slots__ = ("_inner", "_is_others")

    def __init__(self, inner: UriTemplate, is_others: Callable[[str], bool]) -> None:
        self.text, self.names, self._inner, self._is_others = inner.text, inner.names, inner, is_others

    def expand(self, values: Mapping[str, Any]) -> str:
        return self._inner.expand(values)

    def match(self, uri: str) -> dict[str, Any] | None:
        return None if self._is_others(uri) else self._inner.match(uri)


def template_of(text: str) -> UriTemplate:
    try:
        return UriTemplate.parse(text)
    except ValueError:
        return LooseTemplate(text)
