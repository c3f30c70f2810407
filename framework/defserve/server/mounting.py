"""A server inside another: its items appear there under a prefix, also when they change later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.items import NAME

if TYPE_CHECKING:
    from defserve.server.server import Server


class Mount:
    """Repeats the child's items in the parent's registries, now and after each change."""

    def __init__(self, parent: MCP, server: Server, prefix: str | None) -> None:
        if prefix is not None and not NAME.fullmatch(prefix):
            raise UsageError(f"prefix {prefix!r} is not made of A-Z a-z 0-9 _ . -", fix="use a plain word")
        self.server, self.prefix = server, prefix
        child = server.mcp
        mirrors: tuple[tuple[Registry[Any], Registry[Any], Callable[[str], str]], ...] = (
            (child.tools.registry, parent.tools.registry, self._name),
            (child.prompts.registry, parent.prompts.registry, self._name),
            (child.resources.concrete, parent.resources.concrete, self._uri),
            (child.resources.templates, parent.resources.templates, self._uri),
            (child.completions.registry, parent.completions.registry, self._target),
        )
        with ExitStack() as refused:
            for source, target, rename in mirrors:
                refused.callback(_mirror(source, target, rename))
            refused.pop_all()
        child.follow_skills(lambda skills: _mirror(skills.registry, parent.need_skills().registry, self._uri))
        child.subscriptions.forward(lambda uri: parent.subscriptions.updated(self._uri(uri)))

    def _name(self, name: str) -> str:
        return f"{self.prefix}_{name}" if self.prefix else name

    def _uri(self, uri: str) -> str:
        if not self.prefix:
            return uri
        scheme, separator, rest = uri.partition("://")
        return f"{scheme}://{self.prefix}/{rest}" if separator else f"{self.prefix}+{uri}"

    def _target(self, key: str) -> str:
        target, _, argument = key.rpartition(" ")
        return f"{self._uri(target) if ':' in target else self._name(target)} {argument}"


def _mirror(source: Registry[Any], target: Registry[Any], rename: Callable[[str], str]) -> Callable[[], None]:
    def renamed(name: str, item: Any) -> tuple[str, Any]:
        there = rename(name)
        return there, item.renamed(there) if hasattr(item, "renamed") else item

    return source.mirror(target, renamed)
