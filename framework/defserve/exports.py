"""Lazy exports: a package offers names, and imports the module behind a name when the name is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes` maps each module to the names that live in it, separated by spaces.

    Type checkers cannot read it: import the same names under `if TYPE_CHECKING`, and list them in `__all__`.
    """

    def find(name: str) -> Any:
        for module, names in homes.items():
            if name in names.split():
                from importlib import import_module

                value = getattr(import_module(module), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
