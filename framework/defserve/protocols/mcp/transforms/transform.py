"""`Transform`: what becomes of the tools of a mounted server or an imported API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from defserve.errors import UsageError, did_you_mean
from defserve.protocols.mcp.items import NAME, ORIGINAL
from defserve.protocols.mcp.tools.tools import Tool
from defserve.protocols.mcp.transforms.arguments import Argument, TransformedArguments

TAG: Final = "tag:"


@dataclass(frozen=True, slots=True)
class Transform:
    """How the tools of a server appear where it is mounted. All names are those that the tools have there.

    rename     new name for old
    only       patterns of the tools to offer: `read_*`, or `tag:public` for those with a tag
    hide       patterns of the tools not to offer
    describe   new description for a name
    arguments  name, or pattern, of tools → argument → `Argument`: another name, a default, a fixed value
    """

    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    only: Sequence[str] | None = None
    hide: Sequence[str] = ()
    describe: Mapping[str, str] = field(default_factory=dict[str, str])
    arguments: Mapping[str, Mapping[str, Argument]] = field(default_factory=dict[str, Mapping[str, Argument]])

    def __post_init__(self) -> None:
        for option in ("only", "hide"):
            if isinstance(given := getattr(self, option), str):
                object.__setattr__(self, option, (given,))
        for old, new in self.rename.items():
            if not NAME.fullmatch(new):
                raise UsageError(
                    f"Transform(rename={{{old!r}: {new!r}}}): the name is not made of A-Z a-z 0-9 _ . -",
                    fix="use a plain word",
                )
        for changes in self.arguments.values():
            for name, change in changes.items():
                if not isinstance(change, Argument):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise UsageError(
                        f"Transform(arguments=…): {name!r} is given {change!r}", fix=f'write {{"{name}": Argument(…)}}'
                    )

    def name(self, name: str) -> str:
        """The name of a tool outside."""
        return self.rename.get(name, name)

    def takes(self, name: str, tags: Iterable[str]) -> bool:
        """Whether a tool with this name and these tags is offered."""
        tags = tuple(tags)
        wanted = self.only is None or any(_means(pattern, name, tags) for pattern in self.only)
        return wanted and not any(_means(pattern, name, tags) for pattern in self.hide)

    def transformed(self, tool: Tool) -> Tool | None:
        """The tool as it appears outside; None for one that is hidden. Raises UsageError if it cannot be so."""
        if not self.takes(tool.name, tool.options.tags):
            return None
        made = tool.renamed(self.name(tool.name))
        self.apply(made, tool.name)
        return made

    def apply(self, tool: Tool, original: str) -> None:
        """Change a tool that nobody uses yet. It has its new name; `original` is the old one."""
        if tool.name != original:
            tool.facets = {**tool.facets, ORIGINAL: original}
        if (text := self.describe.get(original)) is not None:
            tool.options = replace(tool.options, description=text)
        changes: dict[str, Argument] = {}
        for pattern, given in self.arguments.items():
            if fnmatchcase(original, pattern):
                changes |= given
        if changes:
            function = copy(tool.function)
            function.arguments = TransformedArguments(function.arguments, changes, original)
            tool.function = function

    def check(self, names: Iterable[str]) -> None:
        """Raises UsageError for a tool that is meant by its name, and is not among `names`."""
        known = list(names)
        if missing := self.missing(known):
            near = did_you_mean(missing[0], known, f"there are {', '.join(known[:10]) or 'none'}")
            raise UsageError(f"Transform(…) names a tool {missing[0]!r}, which there is not", fix=near)

    def missing(self, known: Sequence[str]) -> list[str]:
        """The tools that are meant by name and are not known."""
        meant = (*self.rename, *self.describe, *self.arguments, *self.hide, *(self.only or ()))
        return [name for name in dict.fromkeys(meant) if NAME.fullmatch(name) and name not in known]


def _means(pattern: str, name: str, tags: Sequence[str]) -> bool:
    if pattern.startswith(TAG):
        return any(fnmatchcase(tag, pattern[len(TAG) :]) for tag in tags)
    return fnmatchcase(name, pattern)


def tags_in(listed: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """The tags that the listing of a tool elsewhere has in its `_meta`, under one of the keys."""
    meta: Any = listed.get("_meta")
    for key in keys if isinstance(meta, Mapping) else ():
        found: Any = meta.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        found = found.get("tags") if isinstance(found, Mapping) else found  # pyright: ignore
        if isinstance(found, list):
            return tuple(tag for tag in found if isinstance(tag, str))  # pyright: ignore[reportUnknownVariableType]
    return ()
