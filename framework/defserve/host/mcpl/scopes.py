"""MCPL §7.4–7.7: which scopes a server may act in. A scope is forbidden, allowed, or a person or function decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.base.hidden_characters import is_plain
from defserve.errors import InvalidParams, UsageError
from defserve.host.answers import Answers, settled
from defserve.host.fields import Json
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.host.mcpl.once import Once
from defserve.host.person import agrees
from defserve.protocols.mcp.params import fields, optional_fields, text
from defserve.protocols.mcpl.errors import ScopeDenied
from defserve.protocols.mcpl.scopes.values import LONGEST_LABEL, Scope, listed, normal
from defserve.redaction import printable
from defserve.wire.codec import encode
from defserve.wire.jsonvalue import is_mapping

ELEVATE: Final = "scope/elevate"
MOST_APPROVALS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Elevation:
    """A server asks to act in a scope. `label` is for people and patterns, `payload` is what the server works with."""

    server_id: str
    feature_set: str
    label: str
    payload: Mapping[str, Any]


Approved: TypeAlias = bool | Mapping[str, Any] | None
"""True approves, a mapping approves with that payload, False and None refuse."""
Approve: TypeAlias = Callable[[Elevation], Approved | Awaitable[Approved]]


class ScopeApproval:
    """Answers `scope/elevate`. An approval is remembered, for the same payload."""

    def __init__(self, approve: Approve | None, answers: Answers, sets: FeatureSets, audit: McplAuditTrail) -> None:
        self._approve, self._answers, self._sets, self._audit = approve, answers, sets, audit
        self._approved = Once(MOST_APPROVALS)

    async def elevate(self, params: Json) -> Json:
        """Raises InvalidParams, FeatureDisabled or UnknownFeatureSet."""
        scope = fields(params, "scope")
        label, payload = text(scope, "label"), optional_fields(scope, "payload") or {}
        with self._audit.watching(ELEVATE, feature_set=params.get("featureSet"), label=label) as record:
            name = self._sets.require(params.get("featureSet")).name
            if not label or len(label) > LONGEST_LABEL or not is_plain(label):
                raise InvalidParams("Invalid params: scope.label must be one line of printable text")
            key = (name, label, encode(payload))
            elevation = Elevation(self._audit.server_id, name, label, payload)
            answer = await self._approved.answer(key, lambda: self._judge(elevation))
            if not answer["approved"]:
                record |= {"outcome": "refused", "reason": answer["reason"]}
            return answer

    def require(self, feature_set: str, scope: Scope) -> None:
        """Raises ScopeDenied for a scope that is forbidden (§7.7)."""
        if listed(self._sets.scoping(feature_set), normal(scope.label)) is False:
            raise ScopeDenied(feature_set, scope.label, "the host forbids it")

    def forget(self) -> None:
        """Forget all approvals: the policy has changed."""
        self._approved.forget()

    async def _judge(self, elevation: Elevation) -> tuple[Json, bool]:
        allowed = self._listed(elevation)
        if allowed is False:
            return _denied("the host forbids it"), False
        decision = True if allowed else await self._asked(elevation)
        # Asking took time: the policy may have changed.
        self._sets.require(elevation.feature_set)
        if self._listed(elevation) is False:
            return _denied("the host forbids it"), False
        if is_mapping(decision):
            return {"approved": True, "payload": dict(decision)}, True
        if decision is True:
            return {"approved": True, "payload": dict(elevation.payload)}, allowed is None
        if decision is None or decision is False:
            return _denied("nobody approved it" if decision is None else "the user did not approve"), False
        raise UsageError(f"approve returned {decision!r:.80}", fix="return True, False, None, or a payload")

    def _listed(self, elevation: Elevation) -> bool | None:
        # Normalized, because a label may name a place by a detour such as `a/../b`.
        return listed(self._sets.scoping(elevation.feature_set), normal(elevation.label))

    async def _asked(self, elevation: Elevation) -> Any:
        if self._approve is not None:
            return await settled(self._approve(elevation))
        server, name, label = (
            printable(part) for part in (elevation.server_id, elevation.feature_set, elevation.label)
        )
        return await agrees(self._answers, f"Allow {server} ({name}) to act on {label}?", "approved")


def _denied(reason: str) -> Json:
    return {"approved": False, "reason": reason}
