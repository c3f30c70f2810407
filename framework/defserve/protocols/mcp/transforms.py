"""Tools of others, changed on their way in: renamed, hidden, described anew, with arguments fixed or given defaults.

What is hidden cannot be called, and what is fixed cannot be sent. Checks, guards and the function itself see the names
and values of the tool as it was declared; callers, lists and the audit see those outside. `MountPrefix` names what is
mounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from defserve.binding.arguments import ArgumentsSchema
from defserve.binding.explicit_schema import ExplicitArgumentsSchema
from defserve.binding.problems import describe_unknown_argument
from defserve.core.json_values import JsonSchema, is_array, is_object
from defserve.errors import BadArguments, Problem, UsageError, did_you_mean
from defserve.protocols.mcp.items import ITEM_NAME_PATTERN, ORIGINAL_NAME_FACET
from defserve.protocols.mcp.tools import Tool

TAG: Final = "tag:"


# -- The arguments of a tool as callers see them, and as the tool takes them.


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()
"""No value. None is one."""


@dataclass(frozen=True, slots=True)
class Argument:
    """How one argument of a tool is changed.

    `name` is what callers call it. `default` is used when they leave it out. `fixed` is used always: callers neither
    see nor send it. `description` replaces what the tool says of it.
    """

    name: str | None = None
    description: str | None = None
    default: Any = UNSET
    fixed: Any = UNSET

    def __post_init__(self) -> None:
        if self.name is not None and not ITEM_NAME_PATTERN.fullmatch(self.name):
            raise UsageError(f"Argument(name={self.name!r}) is not made of A-Z a-z 0-9 _ . -", fix="use a plain word")
        if self.fixed is not UNSET and (self.default is not UNSET or self.name is not None):
            raise UsageError("a fixed argument has no name and no default outside", fix="keep fixed= alone")


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
            if not ITEM_NAME_PATTERN.fullmatch(new):
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

    def transform_tool(self, tool: Tool) -> Tool | None:
        """The tool as it appears outside; None for one that is hidden. Raises UsageError if it cannot be so."""
        if not self.takes(tool.name, tool.options.tags):
            return None
        made = tool.copy_as(self.name(tool.name))
        self.apply(made, tool.name)
        return made

    def apply(self, tool: Tool, original: str) -> None:
        """Change a tool that nobody uses yet. It has its new name; `original` is the old one."""
        if tool.name != original:
            tool.facets = {**tool.facets, ORIGINAL_NAME_FACET: original}
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
        if missing := self.find_missing_tools(known):
            near = did_you_mean(missing[0], known, f"there are {', '.join(known[:10]) or 'none'}")
            raise UsageError(f"Transform(…) names a tool {missing[0]!r}, which there is not", fix=near)

    def find_missing_tools(self, known: Sequence[str]) -> list[str]:
        """The tools that are meant by name and are not known."""
        meant = (*self.rename, *self.describe, *self.arguments, *self.hide, *(self.only or ()))
        return [name for name in dict.fromkeys(meant) if ITEM_NAME_PATTERN.fullmatch(name) and name not in known]


def _means(pattern: str, name: str, tags: Sequence[str]) -> bool:
    if pattern.startswith(TAG):
        return any(fnmatchcase(tag, pattern[len(TAG) :]) for tag in tags)
    return fnmatchcase(name, pattern)


def read_listed_tags(listed: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """The tags that the listing of a tool elsewhere has in its `_meta`, under one of the keys."""
    meta: Any = listed.get("_meta")
    for key in keys if isinstance(meta, Mapping) else ():
        found: Any = meta.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        found = found.get("tags") if isinstance(found, Mapping) else found  # pyright: ignore
        if isinstance(found, list):
            return tuple(tag for tag in found if isinstance(tag, str))  # pyright: ignore[reportUnknownVariableType]
    return ()


class TransformedArguments(ArgumentsSchema):
    """Stands before a tool's own arguments: names and values from outside become those inside."""

    __slots__ = ("_inner", "_changes", "_names", "_gone", "_schema")

    def __init__(
        self, inner: ArgumentsSchema | ExplicitArgumentsSchema, changes: Mapping[str, Argument], tool: str
    ) -> None:
        """Raises UsageError for a change of an argument that there is not, or two arguments of one name."""
        super().__init__((), ())
        self._inner, self._changes = inner, changes
        properties = inner.schema.get("properties")
        known: Mapping[str, Any] = properties if is_object(properties) else {}
        for name in changes:
            if name not in known:
                raise UsageError(
                    f"tool {tool!r} has no argument {name!r}", fix=describe_unknown_argument((), name, known).reason
                )
        outer = {name: changes[name].name or name for name in changes if changes[name].fixed is UNSET}
        names = [outer.get(name, name) for name in known if name not in changes or name in outer]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"tool {tool!r} has two arguments {twice!r}", fix="give one of them another name")
        self._names = {shown: name for name, shown in outer.items()}
        # What callers must not send: it would reach the tool under its own name.
        self._gone = {name for name in changes if name not in names}
        self._schema: JsonSchema | None = None

    @property
    def schema(self) -> JsonSchema:
        if self._schema is None:
            self._schema = _apply_changes(self._inner.schema, self._changes)
        return self._schema

    def publish_schema(self, dialect: str | None = None) -> JsonSchema:
        return _apply_changes(self._inner.publish_schema(dialect), self._changes)

    @property
    def may_annotate(self) -> bool:
        return self._inner.may_annotate

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        if self._gone and given and (sent := [name for name in given if name in self._gone]):
            known = self.schema.get("properties", {})
            raise BadArguments(tuple(Problem("", describe_unknown_argument((), name, known).reason) for name in sent))
        meant = {self._names.get(name, name): value for name, value in (given or {}).items()}
        for name, change in self._changes.items():
            if change.fixed is not UNSET:
                meant[name] = deepcopy(change.fixed)
            elif change.default is not UNSET and name not in meant:
                meant[name] = deepcopy(change.default)
        try:
            return self._inner.validate(meant)
        except BadArguments as error:
            raise BadArguments(tuple(map(self._seen, error.problems))) from None

    def _seen(self, problem: Problem) -> Problem:
        """A problem in the words of the caller."""
        for name, change in self._changes.items():
            head, rest = problem.field[: len(name)], problem.field[len(name) :]
            if head == name and rest[:1] in ("", ".", "["):
                if change.fixed is not UNSET:
                    return Problem("", "a value that this server sets does not fit: tell its operator")
                return Problem((change.name or name) + rest, problem.reason)
        return problem


def _apply_changes(schema: JsonSchema, changes: Mapping[str, Argument]) -> JsonSchema:
    properties: dict[str, Any] = {}
    given: Any = schema.get("required")
    required = list(given) if is_array(given) else []
    for name, inner in schema.get("properties", {}).items():
        change = changes.get(name)
        if change is None:
            properties[name] = inner
        elif change.fixed is UNSET:
            own: JsonSchema = dict(inner) if is_object(inner) else {}
            if change.description is not None:
                own["description"] = change.description
            if change.default is not UNSET:
                own["default"] = change.default
            properties[change.name or name] = own
    for name, change in changes.items():
        if change.fixed is not UNSET or change.default is not UNSET:
            required = [each for each in required if each != name]
        elif change.name is not None:
            required = [change.name if each == name else each for each in required]
    made = {**schema, "properties": properties, "required": required}
    if not required:
        del made["required"]
    return made


# -- The names of what is mounted: `p_tool`, `s://p/rest`, and back again.


class MountPrefix:
    """Renames what a mounted server offers. Without a text, everything keeps its name."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        if text is not None and not ITEM_NAME_PATTERN.fullmatch(text):
            raise UsageError(f"prefix {text!r} is not made of A-Z a-z 0-9 _ . -", fix="use a plain word")
        self.text = text

    def prefix_name(self, name: str) -> str:
        """The name of a tool or prompt outside."""
        return f"{self.text}_{name}" if self.text else name

    def prefix_uri(self, uri: str) -> str:
        """The URI of a resource, or a template, outside."""
        if not self.text:
            return uri
        scheme, separator, rest = uri.partition("://")
        return f"{scheme}://{self.text}/{rest}" if separator else f"{self.text}+{uri}"

    def strip_uri(self, uri: str) -> str | None:
        """The URI inside for one outside; None if it does not have the prefix."""
        if not self.text:
            return uri
        scheme, separator, rest = uri.partition("://")
        if separator:
            return f"{scheme}://{rest[len(self.text) + 1 :]}" if rest.startswith(f"{self.text}/") else None
        return uri[len(self.text) + 1 :] if uri.startswith(f"{self.text}+") else None

    def is_prefix_of(self, name: str) -> bool:
        """Whether a name, or a URI, outside is one that this prefix gives. Without a text it gives none."""
        if not self.text:
            return False
        return name.startswith(f"{self.text}_") or (":" in name and self.strip_uri(name) is not None)

    def prefix_completion_key(self, key: str) -> str:
        """The key of a completion outside: its target, a blank, and the argument."""
        target, _, argument = key.rpartition(" ")
        return f"{self.prefix_uri(target) if ':' in target else self.prefix_name(target)} {argument}"
