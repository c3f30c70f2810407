"""Where extensions keep things of their own: one instance of each kind, made on first use."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Locals:
    """What a call and a session have in common: a place for per-request and per-session things."""

    __slots__ = ("_locals",)

    def __init__(self) -> None:
        self._locals: dict[type, Any] | None = None

    def local(self, kind: type[T]) -> T:
        """The instance of `kind` that belongs here."""
        if self._locals is None:
            self._locals = {}
        if kind not in self._locals:
            self._locals[kind] = kind()
        return self._locals[kind]

    def peek(self, kind: type[T]) -> T | None:
        """The instance of `kind` if it was ever made."""
        return self._locals.get(kind) if self._locals else None
