"""MGP §4: what a listed tool says of itself, as a host reads it: what is missing or garbled makes it more careful."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from defserve.host.conversation import object_of
from defserve.protocols.mgp.agreed import SECURITY_KEY
from defserve.wire.jsonvalue import is_array

Json: TypeAlias = dict[str, Any]

RISKS: Final = ("safe", "moderate", "dangerous")


class Declared(NamedTuple):
    """One tool: `security` is its block as it came (empty where there is none), `risk` what follows from it."""

    name: str
    risk: str
    security: Json
    properties: Json

    @property
    def permissions(self) -> list[str]:
        listed = self.security.get("permissions_required")
        return [name for name in listed if isinstance(name, str)] if is_array(listed) else []

    @property
    def validator(self) -> str | None:
        """The validator it wants applied; None where it does not say."""
        found = self.security.get("validator")
        return found if isinstance(found, str) else None

    @property
    def confirmation_required(self) -> bool | None:
        found = self.security.get("confirmation_required")
        return found if isinstance(found, bool) else None


def declared(name: str, tool: Json) -> Declared:
    """Read the listed `tool`; an empty one is a tool nobody has listed."""
    security = object_of(tool.get("security")) or object_of(object_of(tool.get("_meta")).get(SECURITY_KEY))
    properties = object_of(object_of(tool.get("inputSchema")).get("properties"))
    return Declared(name, _risk(security, object_of(tool.get("annotations"))), security, properties)


def _risk(security: Json, hints: Json) -> str:
    if security:
        found = security.get("risk_level")
        return found if found in RISKS else "dangerous"
    if hints.get("destructiveHint") is True:
        return "dangerous"
    return "safe" if hints.get("readOnlyHint") is True else "moderate"
