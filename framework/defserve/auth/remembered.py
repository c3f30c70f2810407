"""Principals as JSON: who opened a session or made a call, for another process. Never a credential, nor its claims."""

from __future__ import annotations

from typing import Any, Final, cast

from defserve.auth.permissions import KeyHolder
from defserve.auth.principals import Kind, Principal


class RememberedPrincipal(Principal):
    """A principal of a kind of its own, of which only its name is left: nobody but its own credential covers it, and
    what it may use is not known."""

    __slots__ = ()

    def may_read(self, tool: str) -> bool:
        return False

    def may_invoke(self, tool: str) -> bool:
        return False


# Those of which `covers` needs nothing else than what is written.
_CLASSES: Final[dict[str, type[Principal]]] = {"plain": Principal, "key": KeyHolder}


def written(principal: Principal) -> list[Any]:
    """What is needed to judge `covers`, as a JSON value."""
    made = next((name for name, each in _CLASSES.items() if type(principal) is each), "")
    return [principal.id, principal.kind, principal.credential, sorted(principal.scopes), made]


def remembered(value: Any) -> Principal:
    """The principal that was `written`."""
    id, kind, credential, scopes, made = value
    return _CLASSES.get(made, RememberedPrincipal)(id, frozenset(scopes), kind=cast(Kind, kind), credential=credential)
