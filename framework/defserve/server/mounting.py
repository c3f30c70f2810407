"""A server inside another: its items appear there under a prefix, also when they change later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from defserve.core.registry import Registry
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.prefixes import Prefix

if TYPE_CHECKING:
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.protocols.mcp.transforms.transform import Transform
    from defserve.server.server import Server


class Mount:
    """Repeats the child's items in the parent's registries, now and after each change."""

    def __init__(self, parent: MCP, server: Server, prefix: str | None, transform: Transform | None = None) -> None:
        self.server, self._transform, renames = server, transform, Prefix(prefix)
        self.prefix = renames
        child = server.mcp
        mirrors: tuple[tuple[Registry[Any], Registry[Any], Callable[[str], str]], ...] = (
            (child.prompts.registry, parent.prompts.registry, renames.name),
            (child.resources.concrete, parent.resources.concrete, renames.uri),
            (child.resources.templates, parent.resources.templates, renames.uri),
            (child.completions.registry, parent.completions.registry, renames.completion),
        )
        with ExitStack() as refused:
            tools = child.tools.registry.mirror(parent.tools.registry, _tools(renames, transform))
            refused.callback(tools)
            for source, target, rename in mirrors:
                refused.callback(_mirror(source, target, rename, renames))
            refused.pop_all()
        child.follow_skills(
            lambda skills: _mirror(skills.registry, parent.need_skills().registry, renames.uri, renames)
        )
        child.subscriptions.forward(lambda uri: parent.subscriptions.updated(renames.uri(uri)))

    def check(self) -> None:
        """Raises UsageError if the transform names a tool that the child does not have."""
        if self._transform is not None:
            self._transform.check(name for name, _ in self.server.mcp.tools.registry.items())


def _tools(prefix: Prefix, transform: Transform | None) -> Callable[[str, Tool], tuple[str, Tool] | None]:
    def renamed(name: str, tool: Tool) -> tuple[str, Tool] | None:
        if transform is None:
            there = prefix.name(name)
            return there, _moved(tool, there, prefix)
        if not transform.takes(name, tool.options.tags):
            return None
        there = prefix.name(transform.name(name))
        made = _moved(tool, there, prefix)
        transform.apply(made, name)
        return there, made

    return renamed


def _mirror(
    source: Registry[Any], target: Registry[Any], rename: Callable[[str], str], prefix: Prefix
) -> Callable[[], None]:
    def renamed(name: str, item: Any) -> tuple[str, Any]:
        there = rename(name)
        return there, _moved(item, there, prefix)

    return source.mirror(target, renamed)


def _moved(item: Any, there: str, prefix: Prefix) -> Any:
    """The item under its name in the parent."""
    if hasattr(item, "mounted"):  # it has names of other items in it
        return item.mounted(there, prefix)
    return item.renamed(there) if hasattr(item, "renamed") else item
