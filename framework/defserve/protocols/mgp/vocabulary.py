"""The words of MGP on the wire: permissions, risks and effects (§3.2, §4), grants and instants (§3.6). No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

from defserve.core.json_values import format_timestamp, is_object
from defserve.core.messages import Params
from defserve.core.shapes import (
    TEXT,
    MemberKind,
    WireShape,
    list_of_texts,
    one_of,
    read_member,
    wire_member,
    wire_shape,
)
from defserve.errors import InvalidParams, UsageError, did_you_mean
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE
from defserve.protocols.mgp.terms import MGP_EXTENSION_ID

RiskLevel = Literal["safe", "moderate", "dangerous"]

# §3.2: the standard permissions and their risk.
PERMISSION_RISKS: Mapping[str, RiskLevel] = {
    "filesystem.read": "moderate",
    "filesystem.write": "dangerous",
    "network.outbound": "moderate",
    "network.listen": "dangerous",
    "shell.execute": "dangerous",
    "code_execution": "dangerous",
    "memory.read": "safe",
    "memory.write": "moderate",
    "system.info": "safe",
    "camera": "dangerous",
    "notification": "safe",
}
READ_ONLY_PERMISSIONS = frozenset({"filesystem.read", "network.outbound", "memory.read", "system.info"})

# §2.3 shows bare family names, §3.2 has none: a peer that sends one means the whole family.
PERMISSION_FAMILIES: Mapping[str, tuple[str, ...]] = {
    family: tuple(name for name in PERMISSION_RISKS if name.startswith(family + "."))
    for family in dict.fromkeys(name.partition(".")[0] for name in PERMISSION_RISKS if "." in name)
}
SIDE_EFFECT_NAMES = ("filesystem", "network", "process", "database", "notification")
VALIDATOR_NAMES = ("sandbox", "readonly", "network_restricted", "code_safety", "none")
CUSTOM_NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9_-]*){2,}")
"""A name of the author's own, in reverse-domain notation."""


def is_permission_name(name: str) -> bool:
    """Whether it is a standard permission, or one in reverse-domain notation."""
    return name in PERMISSION_RISKS or CUSTOM_NAME_PATTERN.fullmatch(name) is not None


def require_permission_name(name: object, place: str = "") -> str:
    """The name, if it is a permission. Raises UsageError for anything else."""
    if isinstance(name, str) and is_permission_name(name):
        return name
    others = f"use one of {', '.join(PERMISSION_RISKS)}, or your own in reverse-domain notation: com.example.billing"
    raise UsageError(
        f"{name!r} is not a permission",
        where=place,
        fix=did_you_mean(str(name), PERMISSION_RISKS, others),
    )


# -- MGP §3.6: permissions on the wire: reading a client's grants, and the answer to it. No I/O.


PermissionDecision = Literal["approved", "denied", "deferred"]

CLIENT_POLICIES = ("interactive", "auto_approve", "deny_all", "config_only")
"""§3.3: how a client decides."""

OPERATOR_APPROVER = "operator"
GRANT_META_KEYS = (MGP_EXTENSION_ID + "/grants", DEFSERVE_NAMESPACE + "grants")
MAX_PERMISSIONS = MAX_PERMISSION_LENGTH = 256


class PermissionStatus(NamedTuple):
    """One permission of one caller. If it is not approved, `why` gives the reason, as in "shell.execute: <why>"."""

    decision: PermissionDecision
    by: str | None = None
    expires_at: datetime | None = None
    why: str = ""


UNDECIDED_STATUS = PermissionStatus("deferred", why="nobody has granted it")
GRANTED_STATUS = PermissionStatus("approved", OPERATOR_APPROVER)
OPERATOR_DENIED_STATUS = PermissionStatus("denied", why="the operator of this server denies it")
ANONYMOUS_DENIED_STATUS = PermissionStatus("denied", why="an anonymous client can give permissions up, not grant them")
UNKNOWN_PERMISSION_STATUS = PermissionStatus("denied", why="there is no such permission")
CLIENT_DECISION_REASONS: Mapping[PermissionDecision, str] = {
    "approved": "",
    "denied": "the client denied it",
    "deferred": "the client has put off its decision",
}


def encode_permission_status(status: PermissionStatus) -> list[Any]:
    """A status as JSON, for another process."""
    until = status.expires_at
    return [status.decision, status.by, until.isoformat() if until is not None else None, status.why]


def decode_permission_status(value: Any) -> PermissionStatus:
    """The status of `encode_permission_status`."""
    decision, by, until, why = value
    return PermissionStatus(decision, by, datetime.fromisoformat(until) if until is not None else None, why)


def expand_permission(name: str) -> tuple[str, ...]:
    """The permissions that a name from a peer stands for. Empty for an unknown name."""
    return PERMISSION_FAMILIES.get(name) or ((name,) if is_permission_name(name) else ())


def check_permission_name_bounds(names: Collection[str]) -> None:
    """Raises InvalidParams for too many names, or too long ones."""
    if len(names) > MAX_PERMISSIONS or any(len(name) > MAX_PERMISSION_LENGTH for name in names):
        raise InvalidParams(
            f"Invalid params: at most {MAX_PERMISSIONS} permissions of {MAX_PERMISSION_LENGTH} characters each"
        )


def parse_permission_decision(
    name: str, value: Any, expires_at: datetime | None
) -> tuple[PermissionDecision, datetime | None]:
    """One decision in any of its forms: `"approved"`, `{"decision": "approved"}`, `{"granted": true}`."""
    given: Any = value
    if is_object(value) and ("decision" in value) != ("granted" in value):
        granted = value.get("granted")
        given = ("approved" if granted else "denied") if isinstance(granted, bool) else value.get("decision")
        expires_at = read_member(value, "expires_at", INSTANT_KIND, expires_at, label=f"grants[{name!r}].expires_at")
    if given not in get_args(PermissionDecision):
        choices = ", ".join(get_args(PermissionDecision))
        raise InvalidParams(f"Invalid params: grants[{name!r}] must be one of {choices}")
    return given, expires_at


def choose_permission_event_type(before: PermissionStatus, after: PermissionStatus) -> str | None:
    """The audit event of a change, if it is one."""
    if after.decision == "approved":
        return "PERMISSION_GRANTED"
    if before.decision == "approved":
        return "PERMISSION_REVOKED"
    return "PERMISSION_DENIED" if after.decision == "denied" else None


def build_permission_result(statuses: Mapping[str, PermissionStatus], asked: Iterable[str]) -> Params:
    """The result of §3.6, for the names a client asked for. `reasons`, an addition of ours, says why one is denied."""
    told = {**statuses, **{name: UNKNOWN_PERMISSION_STATUS for name in asked if not expand_permission(name)}}
    approved = [status for status in told.values() if status.decision == "approved"]
    result: Params = {
        "grants": {name: status.decision for name, status in told.items()},
        "approved_by": ", ".join(sorted({status.by for status in approved if status.by})) or None,
        "expires_at": format_instant(min((s.expires_at for s in approved if s.expires_at), default=None)),
    }
    reasons = {name: status.why for name, status in told.items() if status.decision == "denied"}
    return result | {"reasons": reasons} if reasons else result


def _read_request_id(value: Any) -> str | int:
    if value is None:
        raise ValueError("is missing")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    if isinstance(value, str) and len(value) > MAX_PERMISSION_LENGTH:
        raise ValueError(f"is longer than {MAX_PERMISSION_LENGTH} characters")
    return value


REQUEST_ID_KIND = MemberKind("a string or an integer", _read_request_id)


@wire_shape(kw_only=True)
class PermissionRequest(WireShape):
    """§3.5: a client says which permissions it is about to decide on. `request_id` is repeated in the answer."""

    request_id: str | int = wire_member("request_id", REQUEST_ID_KIND)
    permissions: Sequence[str] = wire_member("permissions", list_of_texts("a list of names"))
    policy: str | None = wire_member("policy", one_of(*CLIENT_POLICIES), default=None)
    message: str | None = wire_member("message", TEXT, default=None)

    def check_members(self) -> None:
        check_permission_name_bounds(self.permissions)

    def build_result(self, statuses: Mapping[str, PermissionStatus]) -> Params:
        """The result, as for grants."""
        return {"request_id": self.request_id, **build_permission_result(statuses, self.permissions)}


# -- MGP §3.6, §5.4: instants on the wire, ISO 8601 with `Z` or an offset; kept in UTC.


def utc_now() -> datetime:
    """The wall clock, against which a peer's `expires_at` is measured."""
    return datetime.now(UTC)


def format_instant(when: datetime | None) -> str | None:
    """An instant as it is sent; None for none."""
    return None if when is None else format_timestamp(when)


def _read_instant(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(TEXT.read(value))
        # A time without an offset is refused: its zone is unknown.
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError


INSTANT_KIND = MemberKind("ISO 8601 with an offset, like 2026-03-01T00:00:00Z", _read_instant, format_instant)
