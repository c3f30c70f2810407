"""Takes a protection out of this process, and puts it back."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

VARIABLE = "ATTACK_WITHOUT"
Removal = Callable[["Patch"], None]


class Patch:
    """What a removal has changed here. A name that is not there is an error: the protection has moved."""

    def __init__(self) -> None:
        self._undone: list[Callable[[], None]] = []

    def set(self, place: str, value: Any) -> None:
        """Bind a name anew: `defserve.serve.http.request_heads:HostOriginGate.judge`, or `defserve.limits:MAX_DEPTH`.

        A name of a module is bound anew in every module that has imported it.
        """
        module_name, _, path = place.partition(":")
        owner: Any = import_module(module_name)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        old = inspect.getattr_static(owner, name)
        if isinstance(old, staticmethod) and not isinstance(value, staticmethod):
            value = staticmethod(value)
        elif isinstance(old, classmethod) and not isinstance(value, classmethod):
            value = classmethod(value)
        is_own = name in vars(owner)
        setattr(owner, name, value)
        self._undone.append(lambda: setattr(owner, name, old) if is_own else delattr(owner, name))
        if not outer:
            self._bind_importers(owner, name, old, value)

    def wrap(self, place: str, make: Callable[[Any], Any]) -> None:
        """Bind a name to what `make` makes of what it was."""
        module_name, _, path = place.partition(":")
        found: Any = import_module(module_name)
        for each in path.split("."):
            found = getattr(found, each)
        self.set(place, make(found))

    def item(self, place: str, key: Any, value: Any) -> None:
        """Put a value into a table (a dict) under a key that it has."""
        module_name, _, path = place.partition(":")
        table: Any = import_module(module_name)
        for each in path.split("."):
            table = getattr(table, each)
        old = table[key]
        table[key] = value
        self._undone.append(lambda: table.__setitem__(key, old))

    def when_undone(self, action: Callable[[], object]) -> None:
        """Call this when all is put back; for a cache, say."""
        self._undone.insert(0, lambda: (action(), None)[1])

    def undo(self) -> None:
        while self._undone:
            self._undone.pop()()

    def _bind_importers(self, owner: Any, name: str, old: Any, value: Any) -> None:
        for module in list(sys.modules.values()):
            if module is owner or not getattr(module, "__name__", "").startswith("defserve"):
                continue
            for other, bound in list(vars(module).items()):
                if bound is old and (other == name or callable(old)):
                    setattr(module, other, value)
                    self._undone.append(lambda module=module, other=other: setattr(module, other, old))


def remove(name: str) -> Patch:
    """Take the protection out of this process (`Control.name`)."""
    module, _, function = name.partition(":")
    patch = Patch()
    getattr(import_module(module), function)(patch)
    return patch


def remove_named() -> None:
    """Take out what the environment names."""
    remove(os.environ[VARIABLE])
