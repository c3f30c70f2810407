"""What the sections of MGP share: what was agreed with a peer (§2), and what an author sets for the whole server.

Every server imports this file, so it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from defserve.core.extension import Offer
from defserve.core.json_values import is_array, is_object
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.composition import NegotiatedTerms
    from defserve.guard.network import Egress
    from defserve.protocols.mgp.access import AccessPolicy
    from defserve.protocols.mgp.audit import AuditSinks
    from defserve.protocols.mgp.policy import Policy
    from defserve.protocols.mgp.security import ToolSecurity


MGP_NAME = "mgp"
MGP_VERSION = "0.3.0"
MGP_EXTENSION_ID = "dev.cloto/mgp"
SECURITY_META_KEY = DEFSERVE_NAMESPACE + "security"
CONFIRMED_META_KEY = DEFSERVE_NAMESPACE + "confirmed"
"""In the `_meta` of a call: a person has confirmed it in front of the client. Worth as much as the client's word."""

# Every extension name, old or new, and the sections that it switches on.
MGP_SECTIONS_BY_NAME: Mapping[str, frozenset[str]] = {
    "security": frozenset({"permissions", "tool_security"}),
    "permissions": frozenset({"permissions"}),
    "tool_security": frozenset({"tool_security"}),
    "access_control": frozenset({"access_control"}),
    "audit": frozenset({"audit"}),
    "code_safety": frozenset({"code_safety"}),
    "lifecycle": frozenset({"lifecycle"}),
    "streaming": frozenset({"streaming"}),
    "bidirectional": frozenset({"callbacks", "events"}),
    "callbacks": frozenset({"callbacks"}),
    "events": frozenset({"events"}),
    "discovery": frozenset({"discovery"}),
    "tool_discovery": frozenset({"tool_discovery"}),
}


class MgpAgreement:
    """What was agreed with one peer: `extensions` in the peer's own words, `sections` in ours."""

    __slots__ = ("extensions", "sections")

    def __init__(self, extensions: tuple[str, ...], sections: frozenset[str]) -> None:
        self.extensions, self.sections = extensions, sections


def negotiate_mgp(offer: Offer, served: frozenset[str]) -> MgpAgreement | None:
    """The sections that are both offered and served here. None: the conversation stays plain MCP."""
    if (offered := _read_offer(offer)) is None:
        return None
    version, names = offered.get("version"), offered.get("extensions")
    if not isinstance(version, str) or not is_array(names):
        _log(f"capabilities.mgp needs a version and extensions, got {sorted(offered)}: continuing without MGP")
        return None
    if version.partition(".")[0] != MGP_VERSION.partition(".")[0]:
        _log(f"the client speaks MGP {version[:32]!r}, this server {MGP_VERSION}: continuing without MGP")
        return None
    known = tuple(
        dict.fromkeys(n for n in names if isinstance(n, str) and MGP_SECTIONS_BY_NAME.get(n, frozenset()) & served)
    )
    return MgpAgreement(known, frozenset[str]().union(*(MGP_SECTIONS_BY_NAME[name] & served for name in known)))


def get_call_sections(call: Call) -> frozenset[str]:
    """The sections of MGP that are active for this call's peer."""
    return get_agreed_sections(call.terms)


def get_agreed_sections(terms: NegotiatedTerms | None) -> frozenset[str]:
    """The same, for what was agreed with a peer; None: nothing was."""
    agreed = terms.states.get(MGP_NAME) if terms is not None else None
    return agreed.sections if isinstance(agreed, MgpAgreement) else frozenset()


def get_tool_security(item: Any) -> ToolSecurity | None:
    """What a tool declared, as it was read at registration. None for a tool that declared nothing."""
    return item.facets.get(MGP_NAME)


def derive_security(hints: Mapping[str, Any] | None, *, is_own: bool = False) -> dict[str, Any]:
    """The `security` of a tool that declares none (§4.1: each tool has one), by MCP's hints.

    The hints of a server's own author are believed. Those of another server can only raise the risk.

    The optional fields are left out: nothing is known of them. A validator of "none" would tell a client not to check.
    """
    said = hints or {}
    if said.get("destructiveHint") is True:
        risk = "dangerous"
    else:
        risk = "safe" if is_own and said.get("readOnlyHint") is True else "moderate"
    return {"risk_level": risk, "permissions_required": []}


def _read_offer(offer: Offer) -> Mapping[str, Any] | None:
    capabilities = offer.capabilities
    if offer.stateless:
        extensions = capabilities.get("extensions")
        found = extensions.get(MGP_EXTENSION_ID) if is_object(extensions) else None
    else:
        experimental = capabilities.get("experimental")
        found = capabilities.get("mgp") or (experimental.get("mgp") if is_object(experimental) else None)
    return found if is_object(found) else None


def _log(text: str) -> None:
    from defserve.base.redaction import get_logger

    get_logger().warning(text)


class PersonConfirmedHere:
    """Belongs to a call that a person has confirmed here."""


class RecordedPolicyDecision:
    """What the policy has decided about a call: "allow", "refuse", "confirm" or "error", and why."""

    __slots__ = ("outcome", "reason")

    def __init__(self) -> None:
        self.outcome = self.reason = ""


class RequestedToolMarker:
    """Belongs to a call whose client named another tool, or spelled it otherwise: what it named, if that is listed."""

    item: Any = None


# -- What an author sets for the whole server: `Server(permissions=…, confirm=…, access=…, policy=…, audit=…)`.


PermissionPolicy = Literal["operator", "config_only", "deny_all"]
ConfirmPolicy = Literal["auto", "always", "never"]
TrustLevel = Literal["trusted", "standard", "sandboxed", "core", "experimental", "untrusted"]


class SecurityOptionsDict(TypedDict, total=False):
    """How a server protects its tools. See `SecurityOptions`."""

    permissions: PermissionPolicy
    granted: Sequence[str]
    confirm: ConfirmPolicy
    access: AccessPolicy
    policy: Policy
    audit: AuditSinks
    server_id: str
    trust_level: TrustLevel
    egress: Egress


class SecurityOptions:
    """The same with its defaults. Making one imports nothing that the server does not use.

    `permissions` None: `operator` for local and authenticated peers, `config_only` for anonymous ones.
    """

    __slots__ = ("permissions", "granted", "confirm", "access", "policy", "audit", "server_id", "trust_level", "egress")

    def __init__(
        self,
        permissions: PermissionPolicy | None = None,
        granted: Sequence[str] = (),
        confirm: ConfirmPolicy = "auto",
        access: AccessPolicy | None = None,
        policy: Policy | None = None,
        audit: AuditSinks = (),
        server_id: str | None = None,
        trust_level: TrustLevel = "standard",
        egress: Egress | None = None,
    ) -> None:
        self.confirm: ConfirmPolicy = confirm
        self.permissions, self.granted, self.access, self.audit = permissions, granted, access, audit
        self.policy, self.server_id, self.trust_level, self.egress = policy, server_id, trust_level, egress

    @property
    def changed_protections(self) -> list[str]:
        """What the author set that changes how tools are protected."""
        found = [name for name in ("permissions", "granted", "access", "policy", "audit") if getattr(self, name)]
        return found if self.confirm == "auto" else [*found, "confirm"]
