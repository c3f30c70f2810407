"""Principals as JSON: who opened a session or made a call, for another process. Never a credential, nor its claims."""

from __future__ import annotations

from typing import Any, cast

from defserve.auth.principals import Kind, Principal


class RememberedPrincipal(Principal):
    """A principal of a kind of its own, of which only its name is left: nobody but its own credential covers it."""

    __slots__ = ()


def written(principal: Principal) -> list[Any]:
    """What is needed to judge `covers`, as a JSON value."""
    is_plain = type(principal) is Principal
    return [principal.id, principal.kind, principal.credential, sorted(principal.scopes), is_plain]


def remembered(value: Any) -> Principal:
    """The principal that was `written`."""
    id, kind, credential, scopes, is_plain = value
    made = Principal if is_plain else RememberedPrincipal
    return made(id, frozenset(scopes), kind=cast(Kind, kind), credential=credential)
