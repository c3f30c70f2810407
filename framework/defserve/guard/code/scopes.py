"""Python's scopes: where a name is bound, and which binding a use of it sees.

A name bound in a function is never the built-in or the host's: function scopes `shield`. In a class or module, a name
that is not bound yet may still mean those. So a module's own name counts only from its first mention (`Walk.settled`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True, eq=False)
class Binding:
    """One place that gives a name a value."""

    value: ast.expr | None = None
    """The expression, if the binding is a plain assignment, alone or as one of several."""
    each_of: ast.expr | None = None
    """The iterable, if the binding is a loop."""
    module: str | None = None
    """The module, if the binding is an import."""
    member: str | None = None
    """`module.name`, if the binding is a `from` import."""


@dataclass(slots=True, eq=False)
class NameScope:
    kind: Literal["module", "function", "comprehension", "class"]
    parent: NameScope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict[str, list[Binding]])
    elsewhere: dict[str, Literal["global", "nonlocal"]] = field(
        default_factory=dict[str, Literal["global", "nonlocal"]]
    )

    imports: dict[str, Binding] = field(default_factory=dict[str, Binding])
    """The names that an import binds. Whatever else binds them, they may be that import."""

    def bind(self, name: str, binding: Binding) -> None:
        home = self.home(name)
        home.bindings.setdefault(name, []).append(binding)
        if binding.module is not None or binding.member is not None:
            home.imports.setdefault(name, binding)

    def home(self, name: str) -> NameScope:
        """The scope that an assignment to the name in this one changes."""
        if (where := self.elsewhere.get(name)) is None:
            return self
        scope = self
        while scope.parent is not None:
            scope = scope.parent
            if where == "nonlocal" and scope.kind == "function" and name in scope.bindings:
                return scope
        return scope

    @property
    def shields(self) -> bool:
        """Whether a name bound here can never turn out to be the built-in."""
        return self.kind in ("function", "comprehension")

    def find(self, name: str) -> NameScope | None:
        """The scope whose binding a use of the name here sees, or None: a built-in or the host's."""
        if name in self.elsewhere:
            home = self.home(name)
            return home if name in home.bindings else None
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or scope.kind != "class"):
                return scope
            scope = scope.parent
        return None
