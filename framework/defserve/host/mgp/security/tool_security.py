"""MGP §4: what a listed tool declares about its security. A host is more careful if that is missing or invalid."""

from __future__ import annotations

from typing import Final, NamedTuple

from defserve.host.fields import Json, object_of, text_of, texts_of
from defserve.protocols.mgp.agreed import SECURITY_KEY, undeclared
from defserve.wire.jsonvalue import is_array

RISKS: Final = ("safe", "moderate", "dangerous")
MADE_UP: Final = frozenset(("risk_level", "permissions_required"))


class ListedSecurity(NamedTuple):
    """One tool. `security` is its block as the server sent it (empty if there is none); `risk` follows from it.

    A tool that is not listed says nothing of itself: it is dangerous.
    """

    name: str
    risk: str
    security: Json
    schema: Json
    is_listed: bool = True

    @property
    def properties(self) -> Json:
        """Its arguments, as its schema declares them."""
        return object_of(self.schema.get("properties"))

    @property
    def is_marked(self) -> bool:
        """Whether the author marked it. A block without any of the optional fields was made up by the server."""
        return bool(self.permissions) or not self.security.keys() <= MADE_UP

    @property
    def permissions(self) -> list[str] | None:
        """The permissions that it needs; None if it does not say so."""
        found = self.security.get("permissions_required")
        return texts_of(found) if is_array(found) else None

    @property
    def validator(self) -> str | None:
        """The validator that it declares, if any."""
        return text_of(self.security.get("validator"))

    @property
    def confirmation_required(self) -> bool | None:
        found = self.security.get("confirmation_required")
        return found if isinstance(found, bool) else None


def tool_security(name: str, tool: Json) -> ListedSecurity:
    """Read a listed tool; `tool` is empty if the server does not list it."""
    security = object_of(tool.get("security")) or object_of(object_of(tool.get("_meta")).get(SECURITY_KEY))
    schema = object_of(tool.get("inputSchema"))
    risk = _risk(security, object_of(tool.get("annotations"))) if tool else "dangerous"
    return ListedSecurity(name, risk, security, schema, bool(tool))


def _risk(security: Json, hints: Json) -> str:
    if security:
        found = security.get("risk_level")
        return found if found in RISKS else "dangerous"
    return undeclared(hints)["risk_level"]
