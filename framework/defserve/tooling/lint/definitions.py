"""What the rules look at: everything that a server lists, with its place in the source and its guards, if known.

Beside it: what a rule finds, and the check of single calls against a list of tools.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, Final, NamedTuple

from defserve.core.json_values import as_list, is_array, is_mapping
from defserve.errors import find_nearest_names
from defserve.tooling.listing import ServerListing, estimate_definition_tokens, get_security_block

DEEPEST: Final = 20


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """An argument of a tool. `guarded`: it is checked before the function runs."""

    name: str
    schema: Mapping[str, Any]
    guarded: bool = False

    @property
    def takes_text(self) -> bool:
        """Whether it accepts free text."""
        if "enum" in self.schema or "const" in self.schema:
            return False
        branches: list[Any] = self.schema.get("anyOf") or self.schema.get("oneOf") or [self.schema]
        types = [kind for b in branches if is_mapping(b) and "enum" not in b for kind in as_list(b.get("type"))]
        return "string" in types


@dataclass(frozen=True, slots=True)
class ItemDefinition:
    """One tool, resource, template or prompt. `where` is empty if it is only known from the wire.

    `trusts`: the author said that its arguments need no check. `function` is the author's, if it is in this process.
    `takes` are the types of its arguments, `returns` that of its result, `text` its option of this name. `origins` are
    those that a view may reach; None for what is not a view.
    """

    kind: str
    name: str
    wire: Mapping[str, Any]
    where: str = ""
    parameters: tuple[ToolParameter, ...] = ()
    security: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trusts: bool = False
    function: Any = None
    takes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    origins: tuple[str, ...] | None = None
    returns: Any = None
    text: Any = None

    @property
    def description(self) -> str:
        return str(self.wire.get("description") or "")

    @property
    def annotations(self) -> Mapping[str, Any]:
        return self.wire.get("annotations") or {}

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.wire.get("inputSchema") or {}

    @property
    def tokens(self) -> int:
        """What it costs in every request to a model. Hosts do not show models what is for views alone."""
        meta: Any = self.wire.get("_meta")
        ui: Any = meta.get("ui") if is_mapping(meta) else None
        audience = ui.get("visibility") if is_mapping(ui) else None
        return 0 if is_array(audience) and "model" not in audience else estimate_definition_tokens(self.wire)

    def iter_model_texts(self) -> Iterator[tuple[str, str]]:
        """Every text that a model reads, each with its place."""
        for member in ("name", "title", "description"):
            if self.wire.get(member):
                yield member, str(self.wire[member])
        arguments: list[dict[str, Any]] = self.wire.get("arguments") or []
        for argument in arguments:
            yield f"argument {argument.get('name')!r}", str(argument.get("description") or "")
        for member in ("inputSchema", "outputSchema"):
            yield from _schema_texts(self.wire.get(member), member, DEEPEST)


@dataclass(frozen=True, slots=True)
class FeatureSetUse:
    """A feature set, and whether anything was declared on it.

    `denied` is what MCPL hosts of 0.5 do not grant it by default. If there is any, they switch the set off.
    `only_lost`: it uses nothing but what MCPL 0.5 dropped, so splitting it would keep nothing on.
    """

    name: str
    declares: bool
    denied: tuple[str, ...] = ()
    only_lost: bool = False


@dataclass(frozen=True, slots=True)
class InjectingHook:
    """A function that injects texts before inference."""

    feature_set: str
    name: str
    where: str
    function: Any


@dataclass(frozen=True, slots=True)
class StateSchema:
    """The model of a state, its schema, and whether its author said what becomes of integers past 2^53."""

    feature_set: str
    model: Any
    schema: Mapping[str, Any]
    chooses: bool


@dataclass(frozen=True, slots=True)
class ServedSkill:
    """A skill as it is served. `files` are those that are not in a skill inside it; `paths` are all of them."""

    name: str
    where: str
    frontmatter: Mapping[str, Any]
    files: Mapping[str, bytes]
    paths: Collection[str]
    left_out: tuple[tuple[str, str], ...]

    @property
    def skill_md(self) -> str:
        return self.files["SKILL.md"].decode()


@dataclass(frozen=True, slots=True)
class ServerDefinitions:
    """A whole server. `is_searched`: its tools can be searched, and are not all listed if they are many.

    `info` is what it says about itself: `name`, `version`, `title`, `icons`, `websiteUrl`.
    """

    items: tuple[ItemDefinition, ...]
    instructions: str = ""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    feature_sets: tuple[FeatureSetUse, ...] = ()
    hooks: tuple[InjectingHook, ...] = ()
    states: tuple[StateSchema, ...] = ()
    skills: tuple[ServedSkill, ...] = ()
    is_searched: bool = False

    @property
    def tools(self) -> tuple[ItemDefinition, ...]:
        return tuple(item for item in self.items if item.kind == "tool")

    @property
    def tokens(self) -> int:
        """What the list of tools costs in every request to a model."""
        return sum(tool.tokens for tool in self.tools)


def _schema_texts(schema: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if not is_mapping(schema) or depth == 0:
        return
    for member in ("title", "description"):
        if isinstance(schema.get(member), str):
            yield f"{member} of {path}", schema[member]
    for member in ("properties", "$defs"):
        if is_mapping(schema.get(member)):
            for name, below in schema[member].items():
                yield f"name in {path}", name
                yield from _schema_texts(below, f"{path}.{name}", depth - 1)
    for value in as_list(schema.get("enum") or []):
        if isinstance(value, str):
            yield f"enum of {path}", value
    for member in ("items", "additionalProperties"):
        yield from _schema_texts(schema.get(member), f"{path}[]", depth - 1)
    for member in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for branch in as_list(schema.get(member) or []):
            yield from _schema_texts(branch, path, depth - 1)


def read_listed_definitions(listed: ServerListing) -> ServerDefinitions:
    """The definitions of a server that is only known from what it lists."""
    named = {"tool": listed.tools, "resource": listed.resources, "template": listed.templates, "prompt": listed.prompts}
    items = tuple(_of_wire(kind, wire) for kind, wires in named.items() for wire in wires)
    said = str(listed.initialize.get("instructions") or "")
    return ServerDefinitions(items, said, listed.info, is_searched=listed.is_searched)


def _of_wire(kind: str, wire: Mapping[str, Any]) -> ItemDefinition:
    name = str(wire.get("name") or wire.get("uri") or wire.get("uriTemplate") or "")
    security = get_security_block(wire)
    # What its validator checks cannot be seen here. It is enough that there is one.
    guarded = security.get("validator", "none") != "none"
    return ItemDefinition(
        kind, name, wire, parameters=parse_tool_parameters(wire, lambda _: guarded), security=security
    )


def parse_tool_parameters(wire: Mapping[str, Any], guarded: Callable[[str], bool]) -> tuple[ToolParameter, ...]:
    schema: Any = wire.get("inputSchema") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return tuple(ToolParameter(name, below, guarded(name)) for name, below in properties.items() if is_mapping(below))


# -- The source of a function, for the rules that read it.


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def parse_function_source(function: Any) -> tuple[FunctionNode | None, int]:
    """The function as it is written, and its first line. None if there is no source, or it cannot be parsed alone."""
    try:
        lines, first = inspect.getsourcelines(function)
        (written,) = ast.parse(dedent("".join(lines))).body
    except (TypeError, OSError, SyntaxError, ValueError):
        return None, 0
    return (written if isinstance(written, FunctionNode) else None), first


# -- One problem: what it is, where it is, and what to do about it.


class LintFinding(NamedTuple):
    """`subject` is the item with the problem (`tool 'add'`). `where` is `file.py:12`, or empty if that is not known."""

    subject: str
    where: str
    problem: str
    fix: str


def make_finding(item: ItemDefinition, problem: str, fix: str) -> LintFinding:
    """A finding about an item."""
    return LintFinding(f"{item.kind} {item.name!r}", item.where, problem, fix)


# -- Checks calls against a list of tools. The server is not asked: a tool that it does not list does not exist.


MAX_PROBLEMS = 20


def problems(tools: Iterable[Mapping[str, Any]], name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Why a call would fail, one line each; empty if the list allows it.

    An argument that the schema does not name is a problem too, unless the schema allows others.
    """
    known = {str(tool.get("name")): tool for tool in tools}
    if name not in known:
        return [f"there is no tool {name!r}{_close(name, known)}"]
    schema: Mapping[str, Any] = known[name].get("inputSchema") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    allows_others = "additionalProperties" in schema or "patternProperties" in schema
    unknown = [] if allows_others else sorted(arguments.keys() - properties)
    return [*(f"{each}: unknown{_close(each, properties)}" for each in unknown), *_broken(schema, arguments)][
        :MAX_PROBLEMS
    ]


def _broken(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    from defserve.binding.explicit_schema import find_instance_errors

    try:
        errors = find_instance_errors(dict(arguments), dict(schema), MAX_PROBLEMS, with_formats=True)
    except Exception as error:
        return [f"its schema cannot be used: {error}"]
    return [f"{_path(error.absolute_path)}{error.message}" for error in errors]


def _path(steps: Iterable[Any]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return f"{text}: " if text else ""


def _close(name: str, known: Mapping[str, Any]) -> str:
    close = find_nearest_names(name, known)
    return f"; did you mean {close[0]!r}?" if close else ""


def parse_tool_call(value: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The name and arguments of a call: `{"name": …, "arguments": {…}}`, or a whole `tools/call` request."""
    call: Any = value.get("params") if is_mapping(value) and "params" in value else value
    if not is_mapping(call) or not isinstance(call.get("name"), str):
        return None
    arguments: Any = call.get("arguments") or {}
    return (call["name"], arguments) if is_mapping(arguments) else None
