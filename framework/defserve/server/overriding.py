"""A dependency replaced by another function, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from defserve.binding.functions import name_of
from defserve.binding.injection import Dependency
from defserve.binding.signature import FindProvider, read_dependency
from defserve.errors import UsageError


class Override:
    """A replacement in force, until `undo` or the end of its `with` block. Then the one before it counts again."""

    def __init__(
        self,
        overrides: dict[Callable[..., Any], Dependency],
        dependency: Callable[..., Any],
        replacement: Callable[..., Any],
        find_provider: FindProvider,
    ) -> None:
        for given in (dependency, replacement):
            if not callable(given):
                raise UsageError(
                    f"override takes two functions, and {given!r} is none",
                    fix="server.override(open_db, lambda: fake_db)",
                )
        self._overrides: dict[Callable[..., Any], Dependency] | None = overrides
        self._dependency, self._replacement = dependency, replacement
        self._before = overrides.get(dependency)
        overrides[dependency] = read_dependency(replacement, find_provider)

    def undo(self) -> None:
        """End it. A second time, it does nothing."""
        if self._overrides is None:
            return
        if self._before is None:
            self._overrides.pop(self._dependency, None)
        else:
            self._overrides[self._dependency] = self._before
        self._overrides = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"Override({name_of(self._dependency)} by {name_of(self._replacement)})"
