"""MCPL §6.7: `featureSets/update`. A host of 0.5 sends its policy as a request, which is answered with a receipt.

A policy that cannot be read leaves such a host with nothing granted. A notification of it can only disable more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from defserve.errors import InvalidParams
from defserve.protocols.mcpl.policies import EFFECTIVE, GrantPolicy, LiveTerms
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcpl.feature import Feature

METHOD = "featureSets/update"
# What a notification of a 0.5 host may say, but not decide.
UNDECIDED = (EFFECTIVE, "deniedCapabilities", "enabled")


def requested(live: LiveTerms, params: Params, session: Session, sets: Iterable[Feature]) -> Params:
    """Apply a policy that came as a request. Returns the answer. Raises InvalidParams for one that is malformed."""
    if not (live.vocabulary.by_grant or EFFECTIVE in params or isinstance(live.policy, GrantPolicy)):
        live.update(live.policy, params, session)
        return {"enabled": [one.name for one in sets if live.policy.allows(one)]}
    policy = live.adopt()
    live.update(policy, params, session)
    answer = receipt(live, policy, sets)
    if not answer["accepted"]:
        policy.clear()
    return answer


def notified(live: LiveTerms, params: Params, session: Session) -> None:
    """Apply a policy that came as a notification. What is wrong with it is only in the log."""
    try:
        if not isinstance(live.policy, GrantPolicy):
            live.update(live.policy, params, session)
            return
        live.policy.reduce(params)
    except InvalidParams as error:
        # A notification has no answer. Only this line shows that the policy is not in force.
        _warn("%s: %s", METHOD, error.message)
        raise
    if undecided := [member for member in UNDECIDED if member in params]:
        _warn("%s as a notification: %s ignored, a request decides that", METHOD, ", ".join(undecided))


def _warn(message: str, *arguments: str) -> None:
    import logging

    logging.getLogger("defserve").warning(message, *arguments)


def receipt(live: LiveTerms, policy: GrantPolicy, sets: Iterable[Feature]) -> Params:
    """What works under a policy, and what does not."""
    unavailable: list[Params] = []
    refused: dict[str, None] = {}
    for one in sets:
        # A host cannot select a set that it was not told of, because nothing of it works there.
        if policy.is_disabled(one.name) or (one.paths and not policy.enabled(one.name)):
            continue
        lost = [use for use in one.uses if use in live.vocabulary.lost]
        missing = policy.missing(one)
        if missing or lost:
            effect = "disabled" if missing or not one.paths else "degraded"
            unavailable.append({"featureSet": one.name, "missingCapabilities": [*missing, *lost], "effect": effect})
        if lost and one.required:
            refused |= dict.fromkeys(lost)
    if refused:
        return {
            "accepted": False,
            "fallback": "mcp-only",
            "missingCapabilities": list(refused),
            "reason": f"a required hook cannot run: this host has no {', '.join(refused)}",
            "unavailableFeatures": unavailable,
        }
    return {"accepted": True} | ({"mode": "degraded", "unavailableFeatures": unavailable} if unavailable else {})
