"""Lazy exports: a package offers names, and imports the module behind a name when the name is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str], called: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes` maps each module to the names that live in it, separated by spaces.

    `called` maps names that people know from elsewhere to what they are called here. Importing one says so.

    Type checkers cannot read it: import the same names under `if TYPE_CHECKING`, and list them in `__all__`.
    """

    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        # Not kept in the package: a test runner that reloads modules must not get the old classes.
        if called and name in called:
            # An AttributeError would be replaced by Python's own words.
            raise ImportError(f"{package} has no {name}: write from {package} import {called[name]}", name=package)
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(home_of[name]), name)

    return find
