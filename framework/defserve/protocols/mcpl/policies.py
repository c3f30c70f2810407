"""MCPL §5.2–5.3, §6.7: what one host offered, and what it has enabled and permitted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.core.call import Call
from defserve.core.extension import Offer
from defserve.errors import InvalidParams
from defserve.protocols.mcp.failures import VENDOR
from defserve.protocols.mcp.params import meta
from defserve.protocols.mcpl.errors import FeatureDisabled, UnknownFeatureSet
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.feature_sets import FeatureSet

POLICY_KEY = VENDOR + "featureSets"
MOST_NAMES = 1_000
LONGEST_PATTERN = 1_024


class Policy:
    """What one host has enabled, and its scopes. Until it says so, every set is enabled, or none where `strict`.

    `revision` counts the updates; `approved` holds what the host let pass since the last one.
    """

    __slots__ = ("strict", "revision", "approved", "_decided", "_scopes")

    def __init__(self, strict: bool) -> None:
        self.strict, self.revision = strict, 0
        self.approved: dict[tuple[str, str, bytes], Params] = {}
        self._decided: dict[str, bool] = {}
        self._scopes: dict[str, Scoping] = {}

    def enabled(self, name: str) -> bool:
        """The latest word that covers a name counts; the most specific one of those said at once."""
        for pattern in covering(name):
            if pattern in self._decided:
                return self._decided[pattern]
        return not self.strict

    def scoping(self, name: str) -> Scoping:
        """The host's lists for a scoped set, those of the most specific pattern that covers it."""
        return next((self._scopes[pattern] for pattern in covering(name) if pattern in self._scopes), NO_SCOPING)

    def update(self, params: Params) -> None:
        """Take over `enabled`, `disabled` and `scopes`. Raises InvalidParams and then changes nothing."""
        enabled, disabled = _names(params, "enabled"), _names(params, "disabled")
        scopes = self._scopes | _scopes(params.get("scopes"))
        # A wildcard replaces what was said before of what it covers.
        wildcards = tuple(name[:-1] for name in (*enabled, *disabled) if name == "*" or name.endswith(".*"))
        decided = {name: word for name, word in self._decided.items() if not name.startswith(wildcards)}
        decided |= dict.fromkeys(enabled, True) | dict.fromkeys(disabled, False)  # what is in both is off
        if len(decided) > MOST_NAMES or len(scopes) > MOST_NAMES:
            raise InvalidParams(f"Invalid params: more than {MOST_NAMES} feature sets")
        self._decided, self._scopes = decided, scopes
        self.revision += 1
        self.approved = {}


class Scoping(NamedTuple):
    """A host's patterns for one scoped set. No whitelist at all leaves every label to be asked for."""

    whitelist: Sequence[str] = ()
    blacklist: Sequence[str] = ()


NO_SCOPING = Scoping()


class EverythingEnabled(Policy):
    """The policy of a host that knows nothing of feature sets: its tools all work."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(strict=False)


class RequestPolicy:
    """The policy a request brings along, where there are no sessions."""

    __slots__ = ("policy",)

    def __init__(self) -> None:
        self.policy: Policy | None = None


class Live:
    """What was agreed with one host: its policy, and what it offered."""

    __slots__ = ("policy", "offered", "_noted")

    def __init__(self, offered: Mapping[str, Any], strict: bool) -> None:
        self.policy, self.offered = Policy(strict or _decides_first(offered)), offered
        self._noted = False

    def offers(self, capability: str) -> bool:
        """Whether the host can do something: `pushEvents`, `inferenceRequest`, `channels`, `modelInfo`, …"""
        found = self.offered.get(capability)
        return found is not None and found is not False

    def note_silence(self, call: Call) -> None:
        """Say once, in the log, that this host lets every feature set act without a word of its own."""
        if self._noted or self.policy.revision:
            return
        self._noted = True
        import logging

        logging.getLogger("defserve").info(
            "%s: the host has sent no featureSets/update, so all feature sets act", call.title
        )


def offered(offer: Offer) -> Mapping[str, Any] | None:
    """What a host says of MCPL; None where it says nothing we understand."""
    experimental = offer.capabilities.get("experimental")
    found = experimental.get("mcpl") if is_object(experimental) else None
    if not is_object(found):
        return None
    version = found.get("version", "0.4")
    return found if isinstance(version, str) and version.startswith("0.") else None


def _decides_first(offered: Mapping[str, Any]) -> bool:
    """Whether nothing is enabled until the host says so: from 0.5 on hosts always do."""
    minor = re.match(r"0\.(\d{1,9})", offered.get("version", "0.4"))
    return minor is not None and int(minor[1]) >= 5


def live(call: Call) -> Live | None:
    """What was agreed with the host of this call; None for one that does not speak MCPL."""
    found = call.terms.states.get("mcpl")
    return found if isinstance(found, Live) else None


def policy(call: Call) -> Policy:
    """What the host of this call has enabled."""
    agreed = live(call)
    if agreed is None:
        return EverythingEnabled()
    if not is_stateless(call):
        return agreed.policy
    kept = call.local(RequestPolicy)
    if kept.policy is None:
        kept.policy = Policy(agreed.policy.strict)
        given = meta(call.params).get(POLICY_KEY)
        if is_object(given):
            kept.policy.update(given)
    return kept.policy


def is_pushed_to(call: Call) -> bool:
    """Whether the host of this call is sent push events."""
    agreed = live(call)
    return agreed is not None and agreed.offers("pushEvents") and call.terms.profile.calls_back


def require(call: Call, feature_set: FeatureSet) -> None:
    """Raises FeatureDisabled where the host has switched a set off."""
    if feature_set.removed:
        raise UnknownFeatureSet(feature_set.name)
    if not policy(call).enabled(feature_set.name):
        raise FeatureDisabled(feature_set.name)
    agreed = live(call)
    if agreed is not None and not agreed.policy.revision and not is_stateless(call):
        agreed.note_silence(call)


def is_enabled(call: Call, feature_set: FeatureSet) -> bool:
    """Whether the host of this call lets a set act now."""
    try:
        require(call, feature_set)
    except (FeatureDisabled, UnknownFeatureSet):
        return False
    return True


def is_stateless(call: Call) -> bool:
    """Whether this call stands alone, so that it brings its policy along."""
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
    if found is None:
        return []
    if not is_array(found) or not all(isinstance(name, str) for name in found):
        raise InvalidParams(f"Invalid params: {member} must be a list of feature sets")
    return list(found)


def _scopes(found: Any) -> dict[str, Scoping]:
    if found is None:
        return {}
    if not is_object(found):
        raise InvalidParams("Invalid params: scopes must be an object")
    scopes: dict[str, Scoping] = {}
    for name, lists in found.items():
        if not is_object(lists):
            raise InvalidParams(f"Invalid params: scopes[{name!r}] must be an object")
        scopes[name] = Scoping(_patterns(lists, "whitelist"), _patterns(lists, "blacklist"))
    return scopes


def _patterns(lists: Params, member: str) -> list[str]:
    found = _names(lists, member)
    if len(found) > MOST_NAMES or any(len(pattern) > LONGEST_PATTERN for pattern in found):
        raise InvalidParams(f"Invalid params: {member} has too many patterns, or too long ones")
    return found
