"""What a program is made of, read before anything is changed: imports, servers, contexts."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
from libcst.helpers import get_full_name_for_node

from defserve.tooling.migrate.tables import FOREIGN, SERVERS

LOW_LEVEL = frozenset({"mcp.server", "mcp.server.lowlevel", "mcp.server.lowlevel.server"})


@dataclass(slots=True)
class Facts:
    """`names`: a name in the program → what it is called in its package. `modules`: a name → the foreign module."""

    names: dict[str, str] = field(default_factory=dict[str, str])
    modules: dict[str, str] = field(default_factory=dict[str, str])
    servers: set[str] = field(default_factory=set[str])
    low_level: set[str] = field(default_factory=set[str])
    """Variables that hold a server of the low level."""
    low_level_inside: list[cst.CSTNode] = field(default_factory=list[cst.CSTNode])
    """Servers of the low level that are made in a function: what belongs to them is not found."""
    contexts: set[str] = field(default_factory=set[str])
    addresses: dict[str, dict[str, cst.BaseExpression]] = field(
        default_factory=dict[str, dict[str, cst.BaseExpression]]
    )
    """Server → `host`, `port` and path, if they were given to it and not to its `run`."""

    def called(self, node: cst.CSTNode) -> str | None:
        """What an expression is called in its package; None if it is none of theirs."""
        full = get_full_name_for_node(node)
        if full is None:
            return None
        if full in self.names:
            return self.names[full]
        head, _, last = full.rpartition(".")
        return last if head in self.modules else None

    def is_server(self, node: cst.CSTNode) -> bool:
        return get_full_name_for_node(node) in self.servers


def is_foreign(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in FOREIGN


def read(module: cst.Module) -> Facts:
    facts = Facts()
    module.visit(_Imports(facts))
    module.visit(_Values(facts))
    return facts


class _Imports(cst.CSTVisitor):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = get_full_name_for_node(alias.name)
            if name is not None and is_foreign(name):
                self._facts.modules[alias.evaluated_alias or name] = name

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        module = get_full_name_for_node(node.module) if node.module is not None else None
        if not is_foreign(module) or isinstance(node.names, cst.ImportStar) or node.relative:
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


class _Values(cst.CSTVisitor):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._depth -= 1

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
        kind = self._facts.called(value.func)
        if kind in SERVERS:
            self._facts.servers.add(name)
            options = {arg.keyword.value: arg.value for arg in value.args if arg.keyword is not None}
            known = ("host", "port", "path", "streamable_http_path")
            self._facts.addresses[name] = {option: options[option] for option in known if option in options}
        elif kind == "LowLevelServer":
            self._facts.low_level.add(name)
            if self._depth:
                self._facts.low_level_inside.append(value)
        elif isinstance(value.func, cst.Attribute) and self._facts.called(value.func.value) in SERVERS:
            self._facts.servers.add(name)  # `FastMCP.from_openapi(…)`

    def visit_Param(self, node: cst.Param) -> None:
        if node.annotation is None:
            return
        if is_context(node.annotation.annotation, self._facts):
            self._facts.contexts.add(node.name.value)
        elif self._facts.called(node.annotation.annotation) in SERVERS:
            self._facts.servers.add(node.name.value)


def is_context(annotation: cst.BaseExpression, facts: Facts) -> bool:
    """Whether an annotation is their context: also `Context | None`, `Optional[Context]` and `Context[…]`."""
    if facts.called(annotation) == "Context":
        return True
    if isinstance(annotation, cst.BinaryOperation):
        return is_context(annotation.left, facts) or is_context(annotation.right, facts)
    if isinstance(annotation, cst.Subscript):
        if facts.called(annotation.value) == "Context":
            return True
        inner = [e.slice.value for e in annotation.slice if isinstance(e.slice, cst.Index)]
        return get_full_name_for_node(annotation.value) in ("Optional", "typing.Optional") and any(
            is_context(each, facts) for each in inner
        )
    return False
