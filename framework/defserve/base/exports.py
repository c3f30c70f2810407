"""Lazy exports: a package offers names, and imports the module behind a name when the name is first used."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `defserve`, which imports this first

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def make_lazy_getattr(
    package: str,
    homes: Mapping[str, str],
    elsewhere: Mapping[str, str] | None = None,
    called: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes` maps each module to the names that live in it, separated by spaces.

    The package gets a `__dir__` too, so that a Python prompt can complete these names.

    `elsewhere` maps public modules to names that people look for in this package, and `called` names that people know
    from other frameworks to what they are called here. Importing one says what to write.

    Type checkers cannot read it: import the same names under `if TYPE_CHECKING`, and list them in `__all__`.
    """

    home_of = _by_name(homes)
    if (module := sys.modules.get(package)) is not None:
        own = vars(module)
        own["__dir__"] = lambda: sorted({*own, *home_of})
    imports = {name: (module, name) for name, module in _by_name(elsewhere or {}).items()}
    imports |= {name: (package, ours) for name, ours in (called or {}).items()}

    def find(name: str) -> Any:
        # Not kept in the package: a test runner that reloads modules must not get the old classes.
        if name in imports:
            module, ours = imports[name]
            # An AttributeError would be replaced by Python's own words.
            raise ImportError(f"{package} has no {name}: write from {module} import {ours}", name=package)
        if name not in home_of:
            if (near := _find_near_name(package, name, [*home_of, *imports])) is not None:
                raise ImportError(f"{package} has no {name}: did you mean {near}?", name=package)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(home_of[name]), name)

    return find


def _find_near_name(package: str, name: str, known: list[str]) -> str | None:
    """The name that was probably meant. None for a module of the package, which Python imports next."""
    if name.startswith("_"):
        return None
    from difflib import get_close_matches
    from importlib.util import find_spec

    near = get_close_matches(name, known, 1, cutoff=0.8)
    return near[0] if near and find_spec(f"{package}.{name}") is None else None


def _by_name(modules: Mapping[str, str]) -> dict[str, str]:
    return {name: module for module, names in modules.items() for name in names.split()}
