"""The arguments of a tool as callers see them, and as the tool takes them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from defserve.binding.arguments.explicit import ExplicitArguments
from defserve.binding.arguments.schema import Arguments
from defserve.binding.arguments.wording import did_you_mean
from defserve.errors import BadArguments, Problem, UsageError
from defserve.protocols.mcp.items import NAME
from defserve.wire.jsonvalue import JsonSchema, is_object


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
        if self.name is not None and not NAME.fullmatch(self.name):
            raise UsageError(f"Argument(name={self.name!r}) is not made of A-Z a-z 0-9 _ . -", fix="use a plain word")
        if self.fixed is not UNSET and (self.default is not UNSET or self.name is not None):
            raise UsageError("a fixed argument has no name and no default outside", fix="keep fixed= alone")


class TransformedArguments(Arguments):
    """Stands before a tool's own arguments: names and values from outside become those inside."""

    __slots__ = ("_inner", "_changes", "_names", "_gone", "_schema")

    def __init__(self, inner: Arguments | ExplicitArguments, changes: Mapping[str, Argument], tool: str) -> None:
        """Raises UsageError for a change of an argument that there is not, or two arguments of one name."""
        super().__init__((), ())
        self._inner, self._changes = inner, changes
        properties = inner.schema.get("properties")
        known: Mapping[str, Any] = properties if is_object(properties) else {}
        for name in changes:
            if name not in known:
                raise UsageError(f"tool {tool!r} has no argument {name!r}", fix=did_you_mean(name, known))
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
            self._schema = _changed(self._inner.schema, self._changes)
        return self._schema

    @property
    def may_annotate(self) -> bool:
        return self._inner.may_annotate

    def validate(self, given: dict[str, Any] | None) -> dict[str, Any]:
        if self._gone and given and (sent := [name for name in given if name in self._gone]):
            known = self.schema.get("properties", {})
            raise BadArguments(tuple(Problem("", did_you_mean(name, known)) for name in sent))
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


def _changed(schema: JsonSchema, changes: Mapping[str, Argument]) -> JsonSchema:
    properties: dict[str, Any] = {}
    required = list(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        change = changes.get(name)
        if change is None:
            properties[name] = field
        elif change.fixed is UNSET:
            own: JsonSchema = dict(field) if is_object(field) else {}
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
