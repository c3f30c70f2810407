"""What a name in judged code stands for: a built-in, an imported module, a member of one. Aliases are resolved."""

from __future__ import annotations

import ast
from typing import NamedTuple

from defserve.guard.code import imports
from defserve.guard.code.scopes import NameScope
from defserve.guard.code.walk import Walk


class Reference(NamedTuple):
    """What a name or attribute chain stands for, import aliases resolved."""

    dotted: str
    is_module: bool


class References:
    """The references of one walked tree, each resolved once."""

    def __init__(self, walk: Walk, strict: bool) -> None:
        self.walk, self.strict = walk, strict
        self._known: dict[int, Reference | None] = {}

    def refer(self, node: ast.expr, scope: NameScope) -> Reference | None:
        """What an expression refers to, if it is an imported module or a member of one."""
        chain: list[ast.Attribute] = []
        while isinstance(node, ast.Attribute) and id(node) not in self._known:
            chain.append(node)
            node = node.value
        if isinstance(node, ast.Attribute):
            reference = self._known[id(node)]
        else:
            reference = self._imported(node.id, scope) if isinstance(node, ast.Name) else None
        for link in reversed(chain):
            if reference is not None:
                dotted = f"{reference.dotted}.{link.attr}"
                reference = Reference(dotted, reference.is_module and self.is_submodule(dotted))
            self._known[id(link)] = reference
        return reference

    def _imported(self, name: str, scope: NameScope) -> Reference | None:
        home = scope.find(name)
        binding = home.imports.get(name) if home else None
        if binding is None:
            return None
        if binding.module is not None:
            return Reference(binding.module, True)
        return Reference(binding.member or "", self.is_submodule(binding.member or ""))

    def is_submodule(self, dotted: str) -> bool:
        """Whether a dotted name is a module: one with an export table, or one that the code imports."""
        return imports.exports(dotted, self.strict) is not None or dotted in self.walk.imported

    def is_builtin(self, name: str, scope: NameScope) -> bool:
        """Whether the name may be the built-in here."""
        if (home := scope.find(name)) is None:
            return True
        return not home.shields and (home is not self.walk.module or not self.walk.settled(name))
