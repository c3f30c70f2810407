"""A server inside another: its items appear there under a prefix, also when they change later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from defserve.core.registry import Registry
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.prefixes import Prefix

if TYPE_CHECKING:
    from defserve.server.server import Server


class Mount:
    """Repeats the child's items in the parent's registries, now and after each change."""

    def __init__(self, parent: MCP, server: Server, prefix: str | None) -> None:
        self.server, renames = server, Prefix(prefix)
        child = server.mcp
        mirrors: tuple[tuple[Registry[Any], Registry[Any], Callable[[str], str]], ...] = (
            (child.tools.registry, parent.tools.registry, renames.name),
            (child.prompts.registry, parent.prompts.registry, renames.name),
            (child.resources.concrete, parent.resources.concrete, renames.uri),
            (child.resources.templates, parent.resources.templates, renames.uri),
            (child.completions.registry, parent.completions.registry, renames.completion),
        )
        with ExitStack() as refused:
            for source, target, rename in mirrors:
                refused.callback(_mirror(source, target, rename, renames))
            refused.pop_all()
        child.follow_skills(
            lambda skills: _mirror(skills.registry, parent.need_skills().registry, renames.uri, renames)
        )
        child.subscriptions.forward(lambda uri: parent.subscriptions.updated(renames.uri(uri)))


def _mirror(
    source: Registry[Any], target: Registry[Any], rename: Callable[[str], str], prefix: Prefix
) -> Callable[[], None]:
    def renamed(name: str, item: Any) -> tuple[str, Any]:
        there = rename(name)
        if hasattr(item, "mounted"):  # it has names of other items in it
            return there, item.mounted(there, prefix)
        return there, item.renamed(there) if hasattr(item, "renamed") else item

    return source.mirror(target, renamed)
