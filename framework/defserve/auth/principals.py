"""Who is calling: a principal proved by a token, the local user, or an unproved network address."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from defserve.auth.urls import is_loopback
from defserve.base.hidden_characters import is_plain
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array

if TYPE_CHECKING:
    from defserve.auth.buckets import Rate

Kind = Literal["token", "local", "anonymous"]

LOCAL_ID = "local"
ANONYMOUS_PREFIX = "anonymous:"
UNKNOWN_ADDRESS = "unknown"
LONGEST_ID = 256

# RFC 6749 §3.3: scope-token = 1*( %x21 / %x23-5B / %x5D-7E )
_SCOPE = re.compile(r"[!#-\[\]-~]+")


@dataclass(frozen=True, slots=True)
class Principal:
    """One caller. Sessions, streams, state and rates belong to its `id`.

    `claims` are those of its token, read-only, and left out of the `repr` so that they do not get into logs. Raises
    UsageError for an id that is not valid (`is_token_id`).
    """

    id: str
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    kind: Kind = "token"
    credential: str = field(default="", kw_only=True, compare=False)
    """Names the key or token that was shown, without giving it away. `Auth` fills it in if a verifier does not."""
    is_shared_identity: bool = field(default=False, init=False)
    """Whether many callers have this identity: everybody on this machine, or everybody without an address.

    Then the mistakes of one must not shut out the others, and what is for one must not reach the others.
    """

    def __post_init__(self) -> None:
        if self.kind == "token" and not is_token_id(self.id):
            raise UsageError(
                f"a token's principal cannot be called {self.id[:LONGEST_ID]!r}",
                fix=f"use 1 to {LONGEST_ID} printable characters; {LOCAL_ID!r} and {ANONYMOUS_PREFIX!r}… are reserved",
            )
        object.__setattr__(self, "scopes", frozenset(checked_scopes(self.scopes)))
        object.__setattr__(self, "claims", MappingProxyType(dict(self.claims)))
        if self.kind == "anonymous":
            address = self.id.removeprefix(ANONYMOUS_PREFIX)
            object.__setattr__(self, "is_shared_identity", address == UNKNOWN_ADDRESS or is_loopback(address))
        if self.kind != "token":
            object.__setattr__(self, "credential", self.id)

    def covers(self, other: Principal) -> bool:
        """Whether it is the same principal, with the same credential or with at least the rights of `other`."""
        return self.id == other.id and (self.credential == other.credential or self._has_rights_of(other))

    @property
    def rights(self) -> list[Any]:
        """What `has_rights` reads, as a JSON value."""
        return [self.credential, sorted(self.scopes)]

    def has_rights(self, rights: Any) -> bool:
        """Whether it covers a principal of the same id and kind, of which only the `rights` are left."""
        credential, scopes = rights
        return self.covers(replace(self, credential=credential, scopes=frozenset(scopes)))

    @property
    def rights_class(self) -> Hashable:
        """Two credentials of one principal have the same one only if each covers the other."""
        return type(self), self.scopes if type(self) is Principal else self.credential

    def _has_rights_of(self, other: Principal) -> bool:
        # What another kind of principal may do is its own affair, so nothing is known to be at least as much.
        return type(self) is type(other) is Principal and other.scopes <= self.scopes

    def missing(self, required: Iterable[str]) -> frozenset[str]:
        """The scopes of `required` that it does not have. A local principal has all scopes: it started the server."""
        return frozenset() if self.kind == "local" else frozenset(required) - self.scopes

    def may_read(self, tool: str) -> bool:
        """Whether it may see a tool, apart from the scopes that the tool requires."""
        return True

    def may_invoke(self, tool: str) -> bool:
        """Whether it may call a tool that it may see."""
        return True

    @property
    def rates(self) -> Mapping[tuple[str, str], Rate]:
        """How often it may call anything: (what is counted, the name of the limit) → the rate."""
        return {}


def is_token_id(text: str) -> bool:
    """Whether this may be the id of a token's principal.

    A token must not pass for the local user or for an address, nor bring line breaks or lone surrogates into logs.
    """
    reserved = text == LOCAL_ID or text.startswith(ANONYMOUS_PREFIX)
    return 0 < len(text) <= LONGEST_ID and is_plain(text) and not text.isspace() and not reserved


def checked_scopes(value: str | Iterable[str]) -> tuple[str, ...]:
    """Scopes as authors write them: a list, or a string with spaces. Raises UsageError for an invalid scope."""
    found = tuple(value.split()) if isinstance(value, str) else tuple(value)
    for scope in found:
        if not is_scope(scope):
            raise UsageError(
                f"{scope!r} is not a scope",
                fix='use printable ASCII without spaces, quotes or backslashes: "files:read"',
            )
    return found


def is_scope(value: object) -> bool:
    return isinstance(value, str) and _SCOPE.fullmatch(value) is not None


def scopes_in(value: object) -> frozenset[str]:
    """The scopes that a token's claim holds: a text with spaces, or a list. What is not a scope is left out."""
    listed = value.split(" ") if isinstance(value, str) else value if is_array(value) else ()
    return frozenset(scope for scope in listed if isinstance(scope, str) and is_scope(scope))


LOCAL = Principal(LOCAL_ID, kind="local")


def anonymous(address: str) -> Principal:
    """The caller at a network address, without a token."""
    return Principal(f"{ANONYMOUS_PREFIX}{address}", kind="anonymous")
