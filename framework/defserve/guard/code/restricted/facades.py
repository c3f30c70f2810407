"""The modules that restricted code imports: each holds what its export table lists, and nothing else."""

from __future__ import annotations

import types
from collections.abc import Collection
from importlib import import_module
from typing import Any

from defserve.guard.code.imports import EXPORTS, root

# `strptime` imports it from C through the program's `__import__`, and then takes it from `sys.modules`.
_BEHIND_C = frozenset({"_strptime"})


class FacadeImporter:
    """The importer of restricted code: modules made of an export table each, and nothing else."""

    def __init__(self, allow: Collection[str] | None, trust: Collection[str]) -> None:
        self._allow = None if allow is None else frozenset(allow)
        self._trust = frozenset(trust)
        self._made: dict[str, types.ModuleType] = {}

    def import_(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Collection[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        """As `builtins.__import__`: `import a.b` gives `a`, `from a.b import c` gives `a.b`."""
        if name in _BEHIND_C:
            import_module(name)
            return types.ModuleType(name)
        if level or not self._allowed(name):
            raise ImportError(f"import of {name!r} is not allowed")
        module = self._module(name)
        parent = name
        while "." in parent:
            parent, _, child = parent.rpartition(".")
            setattr(self._module(parent), child, self._made[f"{parent}.{child}"])
        for child in fromlist or ():
            if f"{name}.{child}" in EXPORTS and self._allowed(f"{name}.{child}"):
                setattr(module, child, self._module(f"{name}.{child}"))
        return module if fromlist else self._module(root(name))

    def _allowed(self, name: str) -> bool:
        listed = self._allow is None or name == "__future__" or name in self._allow or root(name) in self._allow
        return (listed and name in EXPORTS) or name in self._trust

    def _module(self, name: str) -> types.ModuleType:
        if name not in self._made:
            self._made[name] = import_module(name) if name in self._trust else self._facade(name)
        return self._made[name]

    def _facade(self, name: str) -> types.ModuleType:
        facade = types.ModuleType(name)
        if name in EXPORTS and self._allowed(name):
            real = import_module(name)
            facade.__dict__.update({export: getattr(real, export) for export in EXPORTS[name] if hasattr(real, export)})
        return facade
