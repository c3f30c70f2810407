"""A program as it is migrated: its facts, the names it uses, imports, annotations in quotes."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import libcst as cst
from libcst import matchers
from libcst.helpers import get_full_name_for_node

from defserve.tooling.migrate.name_tables import (
    FOREIGN_PACKAGES,
    FOREIGN_SERVER_CLASSES,
    RENAMED_CLASSES,
    UNSUPPORTED_NAMES,
)

LOW_LEVEL = frozenset({"mcp.server", "mcp.server.lowlevel", "mcp.server.lowlevel.server"})


@dataclass(slots=True)
class ProgramFacts:
    """`names`: a name in the program → what it is called in its package. `modules`: a name → the foreign module."""

    names: dict[str, str] = field(default_factory=dict[str, str])
    modules: dict[str, str] = field(default_factory=dict[str, str])
    servers: set[str] = field(default_factory=set[str])
    low_level: set[str] = field(default_factory=set[str])
    """Variables that hold a server of the low level."""
    low_level_runs: set[cst.CSTNode] = field(default_factory=set[cst.CSTNode])
    """`await server.run(read, write, …)`."""
    low_level_problems: list[tuple[cst.CSTNode, str]] = field(default_factory=list[tuple[cst.CSTNode, str]])
    """What keeps a function that serves a server of the low level from becoming a plain one."""
    left_versions: list[cst.Arg] = field(default_factory=list[cst.Arg])
    """The versions of servers of the low level, which only the options of `run` had."""
    contexts: set[str] = field(default_factory=set[str])
    addresses: dict[str, dict[str, cst.BaseExpression]] = field(
        default_factory=dict[str, dict[str, cst.BaseExpression]]
    )
    """Server → `host`, `port` and path, if they were given to it and not to its `run`."""
    makers: set[str] = field(default_factory=set[str])
    """Functions that are annotated as returning a server."""
    server_classes: dict[str, bool] = field(default_factory=dict[str, bool])
    """Subclasses of their server, also of other files → whether their `__init__` is the program's own."""
    returns: dict[str, list[cst.BaseExpression]] = field(default_factory=dict[str, list[cst.BaseExpression]])
    """A function or method → what each of that name returns; of other files, too, if none here has the name."""
    plain: set[cst.CSTNode] = field(default_factory=set[cst.CSTNode])
    """`async def` that only serves, what it awaits, and the `asyncio.run` of it: it needs no loop any more.

    Of one that serves a server of the low level also `async with stdio_server()`, and the making of its options.
    """
    functions: dict[str, list[cst.FunctionDef]] = field(default_factory=dict[str, list[cst.FunctionDef]])
    registered: dict[cst.CSTNode, str] = field(default_factory=dict[cst.CSTNode, str])
    """Functions that a call makes a tool, resource or prompt, such as `mcp.tool()(price)` → which of them."""
    left: frozenset[str] = frozenset()
    """Names of theirs that this file keeps: what a client of theirs reads is theirs."""
    is_package: bool = False
    """Whether the file is an `__init__.py`: what it imports may be meant for others."""

    def resolve_name(self, node: cst.CSTNode) -> str | None:
        """What an expression is called in its package; None if it is none of theirs."""
        full = get_full_name_for_node(node)
        if full is None:
            return None
        head, _, last = full.rpartition(".")
        name = self.names.get(full) or (last if head in self.modules else None)
        return None if name in self.left else name

    def is_server(self, node: cst.CSTNode) -> bool:
        return get_full_name_for_node(node) in self.servers

    def inherits_own_init(self, node: cst.ClassDef) -> bool:
        """Whether a subclass of a server extends one whose `__init__` is the program's own."""
        return any(self.server_classes.get(get_full_name_for_node(base) or "") for base in list_bases(node))


def is_foreign_module(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in FOREIGN_PACKAGES


def collect_program_facts(module: cst.Module) -> ProgramFacts:
    facts = ProgramFacts()
    walk(module, _Imports(facts))
    walk(module, ServerClasses(facts))
    walk(module, _Values(facts))
    return facts


class _Imports:
    def __init__(self, facts: ProgramFacts) -> None:
        self._facts = facts

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = get_full_name_for_node(alias.name)
            if name is not None and is_foreign_module(name):
                self._facts.modules[alias.evaluated_alias or name] = name

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        module = get_full_name_for_node(node.module) if node.module is not None else None
        if not is_foreign_module(module) or isinstance(node.names, cst.ImportStar) or node.relative:
            return
        for alias in node.names:
            name = alias.evaluated_name
            local = alias.evaluated_alias or name
            if name.islower() and name not in ("stdio_server",) and name in ("types", "base", "stdio", "server"):
                self._facts.modules[local] = f"{module}.{name}"
            elif name == "Server" and module in LOW_LEVEL:
                self._facts.names[local] = "LowLevelServer"
            else:
                self._facts.names[local] = name


class _Values:
    def __init__(self, facts: ProgramFacts) -> None:
        self._facts = facts

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._facts.functions.setdefault(node.name.value, []).append(node)
        annotation = node.returns.annotation if node.returns is not None else cst.Name("None")
        self._facts.returns.setdefault(node.name.value, []).append(annotation)
        returned = node.returns.annotation if node.returns is not None else node.name
        if (
            self._facts.resolve_name(returned.value if isinstance(returned, cst.Subscript) else returned)
            in FOREIGN_SERVER_CLASSES
        ):
            self._facts.makers.add(node.name.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._note(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._note(node.target, node.value)

    def _note(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        name = get_full_name_for_node(target)
        if name is None or not isinstance(value, cst.Call):
            return
        kind = self._facts.resolve_name(value.func)
        if kind in FOREIGN_SERVER_CLASSES:
            self._facts.servers.add(name)
            options = {arg.keyword.value: arg.value for arg in value.args if arg.keyword is not None}
            known = ("host", "port", "path", "streamable_http_path")
            self._facts.addresses[name] = {option: options[option] for option in known if option in options}
        elif kind == "LowLevelServer":
            self._facts.low_level.add(name)
        elif (
            isinstance(value.func, cst.Attribute)
            and self._facts.resolve_name(value.func.value) in FOREIGN_SERVER_CLASSES
        ):
            self._facts.servers.add(name)  # `FastMCP.from_openapi(…)`

    def visit_Param(self, node: cst.Param) -> None:
        if node.annotation is None:
            return
        if self._facts.resolve_name(node.annotation.annotation) == "LowLevelServer":
            self._facts.low_level.add(node.name.value)
        if is_context_annotation(node.annotation.annotation, self._facts):
            self._facts.contexts.add(node.name.value)
        elif self._facts.resolve_name(node.annotation.annotation) in FOREIGN_SERVER_CLASSES:
            self._facts.servers.add(node.name.value)


class ServerClasses:
    """Finds `class Shop(FastMCP):`, and subclasses of classes that are known."""

    def __init__(self, facts: ProgramFacts) -> None:
        self._facts = facts

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        if any(
            self._facts.resolve_name(base) in FOREIGN_SERVER_CLASSES
            or get_full_name_for_node(base) in self._facts.server_classes
            for base in list_bases(node)
        ):
            names = {each.name.value for each in find_nodes(node.body, cst.FunctionDef)}
            has_own = "__init__" in names or self._facts.inherits_own_init(node)
            self._facts.server_classes[node.name.value] = has_own


def list_bases(node: cst.ClassDef) -> list[cst.BaseExpression]:
    """The classes that a class extends: of `FastMCP[State]`, `FastMCP`."""
    return [arg.value.value if isinstance(arg.value, cst.Subscript) else arg.value for arg in node.bases]


def is_context_annotation(annotation: cst.BaseExpression, facts: ProgramFacts) -> bool:
    """Whether an annotation is their context: also `Context | None`, `Optional[Context]` and `Context[…]`."""
    if facts.resolve_name(annotation) == "Context":
        return True
    if isinstance(annotation, cst.BinaryOperation):
        return is_context_annotation(annotation.left, facts) or is_context_annotation(annotation.right, facts)
    if isinstance(annotation, cst.Subscript):
        if facts.resolve_name(annotation.value) == "Context":
            return True
        inner = [e.slice.value for e in annotation.slice if isinstance(e.slice, cst.Index)]
        return get_full_name_for_node(annotation.value) in ("Optional", "typing.Optional") and any(
            is_context_annotation(each, facts) for each in inner
        )
    return False


def is_rewritten_context(annotation: cst.BaseExpression) -> bool:
    """`Context | None` after its name was rewritten."""
    return isinstance(annotation, cst.BinaryOperation | cst.Subscript) and any(
        isinstance(node, cst.Name) and node.value == "Context" for node in annotation.children
    )


# -- Going through a program. libcst's own `visit` makes every node anew, and goes through the whitespace, too.


_Node = TypeVar("_Node", bound=cst.CSTNode)


def list_children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The parts of a node that are code."""
    kind = type(node)
    if (names := _FIELDS.get(kind)) is None:
        names = tuple(each.name for each in fields(kind) if not _LAYOUT.match(each.name))  # pyright: ignore
        _FIELDS[kind] = names
    children: list[cst.CSTNode] = []
    for name in names:
        value: Any = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            children.append(value)
        elif isinstance(value, tuple | list):
            children += [each for each in cast("Sequence[Any]", value) if isinstance(each, cst.CSTNode)]
    return children


_FIELDS: dict[type[cst.CSTNode], tuple[str, ...]] = {}
_LAYOUT = re.compile("whitespace|leading_lines|lines_after|trailing|header|footer|indent|comma|semicolon|[lr]par$")


def find_nodes(node: cst.CSTNode, kind: type[_Node]) -> list[_Node]:
    """Every node of a kind below this one, itself included, from the first to the last of each block."""
    found: list[_Node] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, kind):
            found.append(each)
        waiting += reversed(list_children(each))
    return found


def walk(node: cst.CSTNode, visitor: object) -> None:
    """Call `visit_…` and `leave_…` of a visitor for every node; nothing below one whose visit is False."""
    name = type(node).__name__
    visit = getattr(visitor, f"visit_{name}", None)
    if visit is None or visit(node) is not False:
        for child in list_children(node):
            walk(child, visitor)
    if (leave := getattr(visitor, f"leave_{name}", None)) is not None:
        leave(node)


def find_scopes(module: cst.Module) -> dict[cst.FunctionDef, cst.CSTNode | None]:
    """Every function → the function or class that it is defined in; None in the module. In their order."""
    scopes: dict[cst.FunctionDef, cst.CSTNode | None] = {}
    waiting: list[tuple[cst.CSTNode, cst.CSTNode | None]] = [(module, None)]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, cst.FunctionDef):
            scopes[node] = scope
        inner = node if isinstance(node, cst.FunctionDef | cst.ClassDef) else scope
        if isinstance(node, cst.BaseSuite | cst.BaseStatement | cst.Module | cst.BaseSmallStatement):
            waiting += [(child, inner) for child in reversed(list_children(node))]
    return scopes


def get_target(statement: cst.CSTNode) -> str | None:
    """The name that a statement gives a value to."""
    if isinstance(statement, cst.SimpleStatementLine):
        statement = statement.body[0]
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        return get_full_name_for_node(statement.targets[0].target)
    return get_full_name_for_node(statement.target) if isinstance(statement, cst.AnnAssign) else None


# -- The names that a program uses, outside of its imports.


_WORD = re.compile(r"[A-Za-z_]\w*+")


class Use(NamedTuple):
    """`full` is the name with the attributes that follow it: `types.ImageContent`."""

    name: str
    full: str
    node: cst.CSTNode


def find_name_uses(code: cst.CSTNode) -> list[Use]:
    """Every use of a name, also in quoted annotations."""
    found = _Uses()
    walk(code, found)
    return found.uses


class _Uses:
    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._annotations = 0

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name):
            self.uses.append(Use(root.value, get_full_name_for_node(node) or root.value, root))
        else:
            walk(root, self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        walk(node.value, self)
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        for part in (node.annotation, node.default):
            if part is not None:
                walk(part, self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.uses.append(Use(node.value, node.value, node))

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation) -> None:
        self._annotations -= 1

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if self._annotations:
            self.uses += [Use(word, word, node) for word in _WORD.findall(node.value)]


# -- The imports of a program: theirs go if nothing uses them any more, ours come where the first of theirs was.


_Found: TypeAlias = cst.Import | cst.ImportFrom
_Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Part = cst.BaseSmallStatement


class RequiredImports:
    """Collects the names that the rewritten program needs. `problems`: a node, and what is left to do about it."""

    def __init__(self, facts: ProgramFacts) -> None:
        self._facts = facts
        self._standard: dict[str, set[str]] = {}
        self.needed: set[str] = set()
        self.problems: list[tuple[cst.CSTNode, str]] = []

    def add_name(self, name: str) -> str:
        self.needed.add(name)
        return name

    def add_standard_name(self, module: str, name: str) -> str:
        self._standard.setdefault(module, set()).add(name)
        return name

    def replace_imports(self, after: cst.Module) -> cst.Module:
        """The rewritten module without the imports it no longer needs, and with ours."""
        strip = _Strip(self._facts, find_name_uses(after), self.problems)
        made: list[_Statement] = []
        place: int | None = None
        comments: list[cst.EmptyLine] = []
        """Of imports that are gone: they stand before what comes next."""
        for statement in after.body:
            strip.has_found = False
            kept = _strip_statement(statement, strip)
            if comments and kept:
                kept[0] = kept[0].with_changes(leading_lines=[*comments, *kept[0].leading_lines])
                comments = []
            if place is not None and strip.has_found and not kept:
                comments += _collect_comments(statement)
            if place is None and strip.has_found:
                ours, kept = self._ours(statement, kept)
                is_def = isinstance(statement, cst.FunctionDef | cst.ClassDef)
                place = _end_of_head(made) if is_def else len(made)
                made[place:place] = ours
            made += kept
        if place is None:  # all that imported theirs is gone
            place = _end_of_head(made)
            made[place:place] = self._lines()
        module = after.with_changes(body=made, footer=[*comments, *after.footer])
        for source, names in sorted(self._standard.items(), reverse=True):
            module = _import_names(module, source, names)
        return module

    def _ours(self, was: cst.CSTNode, kept: list[_Statement]) -> tuple[list[cst.SimpleStatementLine], list[_Statement]]:
        """Our import for the place of a statement of theirs, and what is left of that. The comments go to ours."""
        lines = self._lines()
        if not lines or isinstance(was, cst.FunctionDef | cst.ClassDef):
            return lines, kept
        if isinstance(was, cst.SimpleStatementLine):
            inner = [] if kept else [line for part in was.body for line in _collect_comments(part)]
            own = lines[0].with_changes(
                leading_lines=[*was.leading_lines, *inner], trailing_whitespace=was.trailing_whitespace
            )
            blank = cst.TrailingWhitespace()
            return [own], [each.with_changes(leading_lines=(), trailing_whitespace=blank) for each in kept]
        if not kept and isinstance(was, cst.Try | cst.If):
            return [lines[0].with_changes(leading_lines=was.leading_lines)], kept
        return lines, kept

    def _lines(self) -> list[cst.SimpleStatementLine]:
        if not self.needed:
            return []
        return [_statement(f"from defserve import {', '.join(sorted(self.needed))}")]


class BlockTransformer(cst.CSTTransformer):
    """Goes through the statements of a program alone: the expressions in them are most of it."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        return isinstance(node, _BLOCKS) and super().on_visit(node)


_BLOCKS = (
    cst.Module, cst.BaseSuite, cst.BaseCompoundStatement, cst.SimpleStatementLine, cst.Else, cst.Finally,
    cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase,
)  # fmt: skip


class _Strip(BlockTransformer):
    """Takes imports of theirs away. What is still used stays, and is a problem."""

    def __init__(self, facts: ProgramFacts, after: list[Use], problems: list[tuple[cst.CSTNode, str]]) -> None:
        super().__init__()
        self._facts, self._after, self._problems = facts, after, problems
        # A program may call its server `mcp`, as the package is called.
        self._are_used = {use.name for use in after} - facts.servers - facts.low_level
        self.has_found = False

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        if (body := self._parts(updated_node.body)) is None:
            return updated_node
        return updated_node.with_changes(body=body) if body else cst.RemoveFromParent()

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        body = self._parts(original_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_Try(
        self, original_node: cst.Try, updated_node: cst.Try
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        """Without the import there is nothing to try: what follows a success is left."""
        if updated_node.body.body:
            return updated_node
        after = [block.body for block in (updated_node.orelse, updated_node.finalbody) if block is not None]
        if any(not isinstance(block, cst.IndentedBlock) for block in after):
            return updated_node
        left = [each for block in after for each in block.body if isinstance(each, cst.BaseStatement)]
        return cst.FlattenSentinel(left) if left else cst.RemoveFromParent()

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.BaseStatement | cst.RemovalSentinel:
        is_for_types = (get_full_name_for_node(updated_node.test) or "").rpartition(".")[2] == "TYPE_CHECKING"
        if is_for_types and not updated_node.body.body and updated_node.orelse is None:
            return cst.RemoveFromParent()
        return updated_node

    def _parts(self, parts: Sequence[_Part]) -> list[_Part] | None:
        """The statements of a line without imports of theirs; None if it has none of them."""
        if not any(isinstance(part, cst.Import | cst.ImportFrom) and _is_theirs(part) for part in parts):
            return None
        self.has_found = True
        kept = [self._strip_names(part) if isinstance(part, cst.Import | cst.ImportFrom) else part for part in parts]
        found = [part for part in kept if part is not None]
        return [*found[:-1], *(part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for part in found[-1:])]

    def _strip_names(self, found: _Found) -> _Found | None:
        if isinstance(found.names, cst.ImportStar):
            if _is_theirs(found):
                self._problems.append((found, "what * brings is not known: import each name, and migrate again"))
            return found
        if not _is_theirs(found):
            return found
        kept = [alias for alias in found.names if self._stays(alias, found)]
        if not kept:
            return None
        # What stood behind the last name stands behind the one that is last now.
        kept[-1] = kept[-1].with_changes(comma=found.names[-1].comma)
        return found.with_changes(names=kept)

    def _stays(self, alias: cst.ImportAlias, found: _Found) -> bool:
        name = get_full_name_for_node(alias.name) or ""
        local = alias.evaluated_alias or (name.partition(".")[0] if isinstance(found, cst.Import) else name)
        if isinstance(found, cst.Import) and not is_foreign_module(name):
            return True
        if isinstance(found, cst.Import) or local in self._facts.modules:
            if local in self._are_used:
                self._problems += [(use.node, describe_kept_name(use.full)) for use in self._after if use.name == local]
            return local in self._are_used
        if self._facts.names.get(local) in RENAMED_CLASSES.keys() - self._facts.left:
            return False
        if local not in self._are_used and not self._facts.is_package:
            return False
        self._problems.append((found, describe_kept_name(name)))
        return True


def _collect_comments(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """The comments of an import, each as a line; without those for tools, which are about that import alone."""
    comments = [cst.ensure_type(each, cst.Comment) for each in matchers.findall(node, matchers.Comment())]
    return [cst.EmptyLine(comment=each) for each in comments if not FOR_TOOLS.match(each.value)]


def find_comments_above(value: cst.CSTNode, function: cst.FunctionDef) -> list[cst.EmptyLine]:
    """The comments between a value of a list and the one before it; of the first, also those above the function."""
    for node in find_nodes(function.body, cst.List):
        for place, element in enumerate(node.elements):
            if element.value is value:
                above = [line for line in function.leading_lines if line.comment is not None] if place == 0 else []
                gap = node.elements[place - 1].comma if place else node.lbracket
                return above + (_collect_comments(gap) if isinstance(gap, cst.CSTNode) else [])
    return []


FOR_TOOLS = re.compile(r"#\s*+(?:noqa|type:|mypy:|pyright:|pylint:|ruff:|isort:|fmt:)")


def _import_names(module: cst.Module, source: str, names: set[str]) -> cst.Module:
    """The module with names of the standard library imported: in the line that is there, or in one of its own."""
    known: set[str] = set()
    for statement in module.body:
        for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(part, cst.ImportFrom) and not isinstance(part.names, cst.ImportStar):
                known |= {alias.evaluated_alias or alias.evaluated_name for alias in part.names}
    missing = sorted(names - known)
    if not missing:
        return module
    for place, statement in enumerate(module.body):
        if _is_import_of(statement, source) and isinstance(statement, cst.SimpleStatementLine):
            part = cst.ensure_type(statement.body[0], cst.ImportFrom)
            if isinstance(part.names, cst.ImportStar) or part.lpar is not None:
                break
            wider_names = [*part.names, *(cst.ImportAlias(cst.Name(name)) for name in missing)]
            wider = statement.with_changes(
                body=[part.with_changes(names=_separate_aliases(wider_names)), *statement.body[1:]]
            )
            return module.with_changes(body=[*module.body[:place], wider, *module.body[place + 1 :]])
    line = _statement(f"from {source} import {', '.join(missing)}")
    body = [*module.body]
    place = next((i for i, each in enumerate(body) if _is_import_of(each, "defserve")), None)
    if place is None:
        place = _end_of_head(body)
    else:
        first = cst.ensure_type(body[place], cst.SimpleStatementLine)
        line = line.with_changes(leading_lines=first.leading_lines)
        body[place] = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return module.with_changes(body=[*body[:place], line, *body[place:]])


def describe_kept_name(name: str) -> str:
    """What is said about a name of theirs that stays. `name` may be dotted."""
    if (hint := UNSUPPORTED_NAMES.get(name.rpartition(".")[2])) is not None:
        return f"{name} is not rewritten: {hint}"
    return f"{name} has no counterpart: see the page on migrating, or keep this part where it is"


def _is_theirs(found: _Found) -> bool:
    if isinstance(found, cst.Import):
        return any(is_foreign_module(get_full_name_for_node(alias.name)) for alias in found.names)
    return found.module is not None and not found.relative and is_foreign_module(get_full_name_for_node(found.module))


def _strip_statement(statement: _Statement, strip: _Strip) -> list[_Statement]:
    made = statement.visit(strip)
    if isinstance(made, cst.RemovalSentinel):
        return []
    return list(made) if isinstance(made, cst.FlattenSentinel) else [made]  # pyright: ignore


def _end_of_head(body: Sequence[_Statement]) -> int:
    """The place behind the docstring and the first imports."""
    for place, statement in enumerate(body):
        part = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        is_docstring = place == 0 and isinstance(part, cst.Expr) and isinstance(part.value, cst.SimpleString)
        if not is_docstring and not isinstance(part, cst.Import | cst.ImportFrom):
            return place
    return len(body)


def _statement(text: str) -> cst.SimpleStatementLine:
    made = cst.parse_statement(text)
    assert isinstance(made, cst.SimpleStatementLine)
    return made


def _separate_aliases(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = len(aliases) - 1
    return [a.with_changes(comma=comma if i < last else cst.MaybeSentinel.DEFAULT) for i, a in enumerate(aliases)]


def _is_import_of(statement: cst.CSTNode, module: str) -> bool:
    part = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(part, cst.ImportFrom) and get_full_name_for_node(part.module or cst.Name("_")) == module


# -- Annotations in quotes. They hide names of theirs, and need no quotes once the names come from a plain import.


def unquote_annotations(module: cst.Module, facts: ProgramFacts) -> cst.Module:
    """The module with `"Context | None"` as `Context | None`. Lines stay where they are."""
    texts = [each for each in find_nodes(module, cst.Annotation) if isinstance(each.annotation, cst.SimpleString)]
    return module.visit(_Unquoting(_rewritten(facts))) if texts else module


def _rewritten(facts: ProgramFacts) -> set[str]:
    """The names in the program that are written as ours."""
    return {local for local, name in facts.names.items() if name in RENAMED_CLASSES}


def parse_quoted_annotation(text: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression in a string; None if it is no string, or if none is in it."""
    value = text.evaluated_value if isinstance(text, cst.SimpleString) else None
    try:
        return cst.parse_expression(value) if isinstance(value, str) else None
    except cst.ParserSyntaxError:
        return None


class _Unquoting(cst.CSTTransformer):
    def __init__(self, theirs: set[str]) -> None:
        super().__init__()
        self._theirs = theirs

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        if (inner := parse_quoted_annotation(updated_node.annotation)) is None:
            return updated_node
        names = {use.name for use in find_name_uses(inner)} - {"None"}
        return updated_node.with_changes(annotation=inner) if names and names <= self._theirs else updated_node


# -- Whether a program can run.


def is_valid_python(text: str) -> bool:
    """Whether it is a program for the oldest Python that we support."""
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(ast.parse(text, feature_version=OLDEST_PYTHON), "program", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


OLDEST_PYTHON = (3, 11)
