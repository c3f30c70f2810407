"""MCPL §5.2–5.3, §6.7: what one host offered, and what it has enabled and permitted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.core.extension import Offer
from defserve.core.session import Session
from defserve.errors import InvalidParams
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.params import meta
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.core.composition import Terms

POLICY_KEY = VENDOR + "featureSets"
MOST_NAMES = 1_000
MOST_BYTES = 1024 * 1024
LONGEST_PATTERN = 1_024


class FeaturePolicy:
    """What one host has enabled, and its scopes. Before its first update every set is enabled; none if `strict`.

    `revision` counts the updates. `approved` holds what the host has approved since the last one.
    """

    __slots__ = ("strict", "revision", "approved", "_decided", "_scopes")

    def __init__(self, strict: bool) -> None:
        self.strict, self.revision = strict, 0
        self.approved: dict[tuple[str, str, bytes, str], Params] = {}
        self._decided: dict[str, bool] = {}
        self._scopes: dict[str, ScopeLists] = {}

    def enabled(self, name: str) -> bool:
        """Whether a set may act. The latest update that covers its name decides; within one, the most specific."""
        for pattern in covering(name):
            if pattern in self._decided:
                return self._decided[pattern]
        return not self.strict

    def scoping(self, name: str) -> ScopeLists:
        """The host's lists for a scoped set: those under the most specific pattern that covers its name."""
        return next((self._scopes[pattern] for pattern in covering(name) if pattern in self._scopes), NO_LISTS)

    def update(self, params: Params, *, may_enable: bool = True) -> None:
        """Apply `enabled`, `disabled` and `scopes`. If it raises InvalidParams, nothing has changed.

        Without `may_enable`, what it enables is ignored.
        """
        enabled, disabled = _names(params, "enabled"), _names(params, "disabled")
        if not may_enable:
            enabled = []
        scopes = self._scopes | _scopes(params.get("scopes"))
        # A wildcard replaces the earlier entries that it covers.
        wildcards = tuple(name[:-1] for name in (*enabled, *disabled) if name == "*" or name.endswith(".*"))
        decided = {name: word for name, word in self._decided.items() if not name.startswith(wildcards)}
        decided |= dict.fromkeys(enabled, True) | dict.fromkeys(disabled, False)  # a name in both lists is off
        if len(decided) > MOST_NAMES or len(scopes) > MOST_NAMES:
            raise InvalidParams(f"Invalid params: more than {MOST_NAMES} feature sets")
        patterns = (text for lists in scopes.values() for part in lists for text in part)
        if sum(map(len, (*decided, *scopes, *patterns))) > MOST_BYTES:
            raise InvalidParams(f"Invalid params: the policy is longer than {MOST_BYTES} bytes")
        self._decided, self._scopes = decided, scopes
        self.revision += 1
        self.approved = {}


class ScopeLists(NamedTuple):
    """A host's patterns for one scoped set. Without a whitelist the host is asked about every label."""

    whitelist: Sequence[str] = ()
    blacklist: Sequence[str] = ()


NO_LISTS: Final = ScopeLists()

# For hosts that do not know feature sets: every tool works. Never updated.
EVERYTHING_ENABLED: Final = FeaturePolicy(strict=False)


class RequestPolicy:
    """The policy that comes with a request, in the era without sessions."""

    policy: FeaturePolicy | None = None


class LiveTerms:
    """What was agreed with one host: its policy, and what it offered."""

    __slots__ = ("policy", "offered", "_noted", "_strict")

    def __init__(self, offered: Mapping[str, Any], strict: bool) -> None:
        self.policy, self.offered = FeaturePolicy(strict or _decides_first(offered)), offered
        self._noted, self._strict = False, strict

    def update(self, found: FeaturePolicy, params: Params, session: Session) -> None:
        """Apply what a host says to its policy. A strict server's sets are switched on by no stranger.

        Raises InvalidParams.
        """
        found.update(params, may_enable=not (self._strict and is_strangers(session)))

    def offers(self, capability: str) -> bool:
        """Whether the host can do something: `pushEvents`, `inferenceRequest`, `channels`, `modelInfo`, …"""
        found = self.offered.get(capability)
        return found is not None and found is not False

    def note_silence(self, call: Call) -> None:
        """Log once that this host has sent no policy, so every feature set acts."""
        if self._noted or self.policy.revision:
            return
        self._noted = True
        import logging

        logging.getLogger("defserve").info(
            "%s: the host has sent no featureSets/update, so all feature sets act", call.title
        )


def offered(offer: Offer) -> Mapping[str, Any] | None:
    """What a host offers for MCPL; None if it offers nothing, or a version that we do not speak."""
    experimental = offer.capabilities.get("experimental")
    found = experimental.get("mcpl") if is_object(experimental) else None
    if not is_object(found):
        return None
    version = found.get("version", "0.4")
    return found if isinstance(version, str) and version.startswith("0.") else None


def _decides_first(offered: Mapping[str, Any]) -> bool:
    """Whether nothing is enabled before the first update. From version 0.5 on, every host sends one."""
    minor = re.match(r"0\.(\d{1,9})", offered.get("version", "0.4"))
    return minor is not None and int(minor[1]) >= 5


def agreed(terms: Terms | None) -> LiveTerms | None:
    """What was agreed with a host; None if it does not speak MCPL."""
    found = terms.states.get("mcpl") if terms is not None else None
    return found if isinstance(found, LiveTerms) else None


def policy(call: Call) -> FeaturePolicy:
    """What the host of this call has enabled."""
    if (live := agreed(call.terms)) is None:
        return EVERYTHING_ENABLED
    if not is_stateless(call):
        return live.policy
    kept = call.local(RequestPolicy)
    if kept.policy is None:
        kept.policy = FeaturePolicy(live.policy.strict)
        given = meta(call.params).get(POLICY_KEY)
        if is_object(given):
            live.update(kept.policy, given, call.session)
    return kept.policy


def is_strangers(session: Session) -> bool:
    """Whether nobody vouches for the host of a session."""
    opened_by = session.identity
    return isinstance(opened_by, Principal) and is_stranger(opened_by)


def is_pushed_to(call: Call) -> bool:
    """Whether the host of this call is sent push events."""
    live = agreed(call.terms)
    return live is not None and live.offers("pushEvents") and call.terms.profile.calls_back


def is_stateless(call: Call) -> bool:
    """Whether this call belongs to no session, so that its policy comes with it."""
    return call.terms.offer is not None and call.terms.offer.stateless


def covering(name: str) -> Iterator[str]:
    """The patterns that cover a name, the most specific first: `a.b`, `a.*`, `*`."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield f"{name}.*"
    yield "*"


def _names(params: Params, member: str) -> list[str]:
    found = params.get(member)
    if found is not None and not (is_array(found) and all(isinstance(name, str) for name in found)):
        raise InvalidParams(f"Invalid params: {member} must be a list of feature sets")
    return list(found or ())


def _scopes(found: Any) -> dict[str, ScopeLists]:
    if found is not None and not is_object(found):
        raise InvalidParams("Invalid params: scopes must be an object")
    scopes: dict[str, ScopeLists] = {}
    for name, lists in (found or {}).items():
        if not is_object(lists):
            raise InvalidParams(f"Invalid params: scopes[{name!r}] must be an object")
        scopes[name] = ScopeLists(_patterns(lists, "whitelist"), _patterns(lists, "blacklist"))
    return scopes


def _patterns(lists: Params, member: str) -> list[str]:
    found = _names(lists, member)
    if len(found) > MOST_NAMES or any(len(pattern) > LONGEST_PATTERN for pattern in found):
        raise InvalidParams(f"Invalid params: {member} has too many patterns, or too long ones")
    return found
