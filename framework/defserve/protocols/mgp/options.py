"""What an author sets for the whole server: `Server(permissions=…, granted=…, confirm=…, access=…, audit=…)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from defserve.net.egress import Egress
    from defserve.protocols.mgp.access.policy import AccessPolicy
    from defserve.protocols.mgp.audit.sinks import AuditSinks

PermissionPolicy = Literal["operator", "config_only", "deny_all"]
ConfirmPolicy = Literal["auto", "always", "never"]
TrustLevel = Literal["trusted", "standard", "sandboxed", "core", "experimental", "untrusted"]


class SecurityFields(TypedDict, total=False):
    """How a server protects its tools. See `SecurityOptions`."""

    permissions: PermissionPolicy
    granted: Sequence[str]
    confirm: ConfirmPolicy
    access: AccessPolicy
    audit: AuditSinks
    server_id: str
    trust_level: TrustLevel
    egress: Egress


class SecurityOptions:
    """The same with its defaults. Making one imports nothing that the server does not use.

    `permissions` None: `operator` for local and authenticated peers, `config_only` for anonymous ones.
    """

    __slots__ = ("permissions", "granted", "confirm", "access", "audit", "server_id", "trust_level", "egress")

    def __init__(
        self,
        permissions: PermissionPolicy | None = None,
        granted: Sequence[str] = (),
        confirm: ConfirmPolicy = "auto",
        access: AccessPolicy | None = None,
        audit: AuditSinks = (),
        server_id: str | None = None,
        trust_level: TrustLevel = "standard",
        egress: Egress | None = None,
    ) -> None:
        self.confirm: ConfirmPolicy = confirm
        self.permissions, self.granted, self.access, self.audit = permissions, granted, access, audit
        self.server_id, self.trust_level, self.egress = server_id, trust_level, egress

    @property
    def acts(self) -> list[str]:
        """What the author set that changes how tools are protected."""
        found = [name for name in ("permissions", "granted", "access", "audit") if getattr(self, name)]
        return found if self.confirm == "auto" else [*found, "confirm"]
