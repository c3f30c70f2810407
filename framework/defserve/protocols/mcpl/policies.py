"""MCPL §5.2–5.3, §6.7: what one host offered, and what it has enabled, granted and permitted.

Before the first policy of a host, every set may act with 0.4, and none with 0.5. A policy comes at the start or with
`featureSets/update`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal
from defserve.core.call import Call
from defserve.core.extension import Offer
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.core.session import Session
from defserve.core.shapes import OBJECT, list_of_texts, read_member, restrict_kind
from defserve.errors import InvalidParams
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE, read_meta, read_optional_object_param
from defserve.protocols.mcpl.vocabulary import (
    CAPABILITY_PATHS,
    MCPL_04,
    CapabilityDenied,
    FeatureDisabled,
    McplVocabulary,
    find_mcpl_vocabulary,
)

if TYPE_CHECKING:
    from defserve.core.composition import NegotiatedTerms
    from defserve.protocols.mcpl.section import FeatureSetBase


POLICY_META_KEY = DEFSERVE_NAMESPACE + "featureSets"
EFFECTIVE = "effectiveCapabilities"
MAX_POLICY_BYTES = 1024 * 1024


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

    @property
    def has_been_sent(self) -> bool:
        """Whether the host has said anything about its policy."""
        return self.revision > 0

    def is_enabled(self, name: str) -> bool:
        """Whether a set may act. The latest update that covers its name decides; within one, the most specific."""
        for pattern in list_covering_patterns(name):
            if pattern in self._decided:
                return self._decided[pattern]
        return not self.strict

    def allows(self, feature_set: FeatureSetBase) -> bool:
        """Whether a set may act."""
        return self.is_enabled(feature_set.name)

    def find_refusal(self, feature_set: FeatureSetBase) -> FeatureDisabled | None:
        """Why a set may not act; None if it may."""
        return None if self.is_enabled(feature_set.name) else FeatureDisabled(feature_set.name)

    def grants(self, path: str) -> bool:
        """Whether the host permits a capability. Only policies of 0.5 say so."""
        return True

    def find_scope_lists(self, name: str) -> ScopeLists:
        """The host's lists for a scoped set: those under the most specific pattern that covers its name."""
        return next(
            (self._scopes[pattern] for pattern in list_covering_patterns(name) if pattern in self._scopes), ScopeLists()
        )

    def update(self, params: Params, *, may_enable: bool = True) -> None:
        """Apply `enabled`, `disabled` and `scopes`. If it raises InvalidParams, nothing has changed.

        Without `may_enable`, what it enables is ignored.
        """
        enabled, disabled = names_in(params, "enabled") if may_enable else [], names_in(params, "disabled")
        scopes = self._scopes | _scopes(params)
        # A wildcard replaces the earlier entries that it covers.
        wildcards = tuple(name[:-1] for name in (*enabled, *disabled) if name == "*" or name.endswith(".*"))
        decided = {name: word for name, word in self._decided.items() if not name.startswith(wildcards)}
        decided |= dict.fromkeys(enabled, True) | dict.fromkeys(disabled, False)  # a name in both lists is off
        if len(decided) > MAX_POLICY_NAMES or len(scopes) > MAX_POLICY_NAMES:
            raise InvalidParams(f"Invalid params: more than {MAX_POLICY_NAMES} feature sets")
        patterns = (text for lists in scopes.values() for part in lists for text in part)
        if sum(map(len, (*decided, *scopes, *patterns))) > MAX_POLICY_BYTES:
            raise InvalidParams(f"Invalid params: the policy is longer than {MAX_POLICY_BYTES} bytes")
        self._decided, self._scopes = decided, scopes
        self.revision += 1
        self.approved = {}

    def export_state(self) -> Params:
        """What another process must know to judge by it, as a JSON value."""
        scopes = {name: [list(part) for part in lists] for name, lists in self._scopes.items()}
        return {"decided": self._decided, "scopes": scopes}

    def import_state(self, kept: Mapping[str, Any]) -> None:
        """Judge by what another process has `kept`."""
        self._decided = dict(kept["decided"])
        self._scopes = {name: ScopeLists(*map(tuple, lists)) for name, lists in kept["scopes"].items()}
        self.revision += 1
        self.approved = {}


class ScopeLists(NamedTuple):
    """A host's patterns for one scoped set. Without a whitelist the host is asked about every label."""

    whitelist: Sequence[str] = ()
    blacklist: Sequence[str] = ()


def list_covering_patterns(name: str) -> Iterator[str]:
    """The patterns that cover a name, the most specific first: `a.b`, `a.*`, `*`."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield f"{name}.*"
    yield "*"


def _scopes(params: Params) -> dict[str, ScopeLists]:
    found = read_optional_object_param(params, "scopes") or {}
    lists = {name: read_member(found, name, OBJECT, label=f"scopes[{name!r}]") for name in found}
    return {
        name: ScopeLists(few_names_in(both, "whitelist"), few_names_in(both, "blacklist"))
        for name, both in lists.items()
    }


# -- MCPL 0.5 §6: the capability paths that a policy grants.
#
# A pattern has as many segments as the path it covers; `*` stands for exactly one. So `channels.*` covers
# `channels.publish`, and the name of a parent covers nothing below it.


MAX_POLICY_NAMES: Final = 1_000
MAX_PATTERN_LENGTH: Final = 1_024
NAMES = list_of_texts("a list of texts")
FEW_NAMES = restrict_kind(
    NAMES,
    lambda names: len(names) <= MAX_POLICY_NAMES and all(len(name) <= MAX_PATTERN_LENGTH for name in names),
    "has too many names, or too long ones",
)


def names_in(params: Params, member: str) -> list[str]:
    """A member that must be a list of texts, and may be missing. Raises InvalidParams."""
    return list(read_member(params, member, NAMES, ()))


def few_names_in(params: Params, member: str) -> list[str]:
    """The same, for a list that is kept: it must have few names, and short ones."""
    return list(read_member(params, member, FEW_NAMES, ()))


class GrantPolicy(FeaturePolicy):
    """What one host has granted, by the rules of 0.5. It is not `ready`, and grants nothing, before its first policy.

    Sets follow from the grant: one acts if all that it uses is granted, and the host has not left it out by name.
    """

    __slots__ = ("ready", "granted", "_is_complete", "_selected", "_disabled", "_known")

    def __init__(self, vocabulary: McplVocabulary) -> None:
        super().__init__(strict=True)
        self._is_complete = not vocabulary.lost
        self.clear()

    def clear(self) -> None:
        """Grant nothing, until the next policy."""
        self.ready, self.granted = False, frozenset[str]()
        self._selected: tuple[str, ...] | None = None
        self._disabled: tuple[str, ...] = ()
        self._known: dict[str, bool] = {}
        self.revision += 1

    @property
    def has_been_sent(self) -> bool:
        return self.ready

    def is_enabled(self, name: str) -> bool:
        """Whether the host has not left a set out by its name. The names are ours, so as many are remembered."""
        if (known := self._known.get(name)) is None:
            selected = self._selected is None or any(does_pattern_cover(pattern, name) for pattern in self._selected)
            known = self._known[name] = self.ready and selected and not self.is_disabled(name)
        return known

    def is_disabled(self, name: str) -> bool:
        """Whether the host has disabled a set by its name."""
        return any(does_pattern_cover(pattern, name) for pattern in self._disabled)

    def allows(self, feature_set: FeatureSetBase) -> bool:
        paths = feature_set.paths
        return self.is_enabled(feature_set.name) and self.granted >= paths and bool(paths or self._is_complete)

    def find_refusal(self, feature_set: FeatureSetBase) -> FeatureDisabled | None:
        if self.allows(feature_set):
            return None
        missing = self.find_missing_grants(feature_set)
        if missing and (not self.ready or self.is_enabled(feature_set.name)):
            return CapabilityDenied(missing[0], feature_set.name)
        return FeatureDisabled(feature_set.name)

    def grants(self, path: str) -> bool:
        return path in self.granted

    def find_missing_grants(self, feature_set: FeatureSetBase) -> list[str]:
        """What a set uses and the host has not granted."""
        return sorted(feature_set.paths - self.granted)

    def update(self, params: Params, *, may_enable: bool = True) -> None:
        """Apply a whole policy, in place of the one before. If it raises InvalidParams, nothing is granted.

        Without `may_enable`, nothing is granted either.
        """
        self.clear()
        granted = read_granted_paths(params) if may_enable else frozenset[str]()
        selected, disabled = few_names_in(params, "enabled"), few_names_in(params, "disabled")
        self._selected = tuple(selected) if params.get("enabled") is not None else None
        self._disabled, self._known = tuple(disabled), {}
        self.granted, self.ready = granted, True

    def reduce(self, params: Params) -> None:
        """Apply what a notification may change: more sets are disabled. Raises InvalidParams."""
        disabled = tuple(dict.fromkeys((*self._disabled, *few_names_in(params, "disabled"))))
        if len(disabled) > MAX_POLICY_NAMES:
            self.clear()  # what cannot be remembered must not be forgotten
            raise InvalidParams(f"Invalid params: more than {MAX_POLICY_NAMES} disabled feature sets")
        self._disabled, self._known = disabled, {}
        self.revision += 1

    def export_state(self) -> Params:
        granted = sorted(self.granted) if self.ready else None
        return {"granted": granted, "selected": self._selected, "disabled": self._disabled}

    def import_state(self, kept: Mapping[str, Any]) -> None:
        self.clear()
        if kept["granted"] is not None:
            self._selected = tuple(kept["selected"]) if kept["selected"] is not None else None
            self._disabled = tuple(kept["disabled"])
            self.granted, self.ready = frozenset(kept["granted"]), True


# For hosts that do not know feature sets: every tool works. Never updated.
ALL_ENABLED_POLICY: Final = FeaturePolicy(strict=False)


class RequestPolicy:
    """The policy that comes with a request, in the era without sessions."""

    policy: FeaturePolicy | None = None


class McplTerms:
    """What was agreed with one host: its policy, what it offered, and the vocabulary of its version.

    `announced` is the manifest that it was told last.
    """

    __slots__ = ("policy", "offered", "vocabulary", "announced", "_refused", "_noted", "_strict")

    def __init__(self, offered: Mapping[str, Any], vocabulary: McplVocabulary, strict: bool) -> None:
        self.offered, self.vocabulary, self._strict = offered, vocabulary, strict
        self.policy = GrantPolicy(vocabulary) if vocabulary.by_grant else FeaturePolicy(strict)
        self.announced: Params | None = None
        self._refused: set[str] = set()
        self._noted = False

    def update(self, found: FeaturePolicy, params: Params, session: Session) -> None:
        """Apply what a host says to its policy. A strict server's sets are switched on by no stranger.

        Raises InvalidParams.
        """
        found.update(params, may_enable=not (self._strict and is_anonymous_session(session)))

    def switch_to_grants(self) -> GrantPolicy:
        """The policy, by grants from now on: a host below 0.5 has sent a grant."""
        if not isinstance(self.policy, GrantPolicy):
            self.policy.revision += 1
            self.policy = GrantPolicy(self.vocabulary)
        return self.policy

    def export_state(self) -> Params:
        """The policy, for another process."""
        by_grant = isinstance(self.policy, GrantPolicy)
        return {"by_grant": by_grant, **self.policy.export_state()} if by_grant or self.policy.has_been_sent else {}

    def import_state(self, kept: Mapping[str, Any]) -> None:
        """The policy that another process has `kept`."""
        if kept:
            (self.switch_to_grants() if kept["by_grant"] else self.policy).import_state(kept)

    def offers(self, path: str) -> bool:
        """Whether the host can be asked: `pushEvents`, `inferenceRequest`, `channels.incoming`, …

        A grant decides. Without grants the offer does. Some hosts below 0.5 serve channels and inference without a
        word about them: they are asked, until they say that they do not know the method.
        """
        if isinstance(self.policy, GrantPolicy):
            return self.policy.grants(path)
        capability = path.partition(".")[0]
        found = self.offered.get(capability)
        if found is None:
            return capability in UNSPOKEN and capability not in self._refused
        return found is not False

    def record_unsupported_capability(self, path: str) -> bool:
        """The host does not know a method of this capability: remember it, if its offer is silent about it."""
        capability = path.partition(".")[0]
        is_silent = not isinstance(self.policy, GrantPolicy) and self.offered.get(capability) is None
        if is_silent:
            self._refused.add(capability)
        return is_silent

    def log_missing_policy(self, call: Call) -> None:
        """Log once that this host has sent no policy."""
        if self._noted:
            return
        self._noted = True
        from defserve.base.redaction import get_logger

        effect = "no feature set acts" if self.vocabulary.by_grant else "all feature sets act"
        get_logger().info("%s: the host has sent no featureSets/update, so %s", call.title, effect)


# What hosts below 0.5 may serve without offering it.
UNSPOKEN: Final = ("channels", "inferenceRequest")


def negotiate_mcpl_terms(offer: Offer, strict: bool) -> McplTerms | None:
    """The terms for a host that made this offer; None if it does not speak MCPL, or a version that we do not speak."""
    experimental = offer.capabilities.get("experimental")
    found = experimental.get("mcpl") if is_object(experimental) else None
    if not is_object(found) or (vocabulary := find_mcpl_vocabulary(found.get("version"))) is None:
        return None
    return McplTerms(found, vocabulary, strict)


def get_mcpl_terms(terms: NegotiatedTerms | None) -> McplTerms | None:
    """What was agreed with a host; None if it does not speak MCPL."""
    found = terms.states.get("mcpl") if terms is not None else None
    return found if isinstance(found, McplTerms) else None


def get_feature_policy(call: Call) -> FeaturePolicy:
    """What the host of this call has enabled."""
    if (live := get_mcpl_terms(call.terms)) is None:
        return ALL_ENABLED_POLICY
    if not is_stateless_call(call):
        return live.policy
    kept = call.local(RequestPolicy)
    if kept.policy is None:
        given = read_meta(call.params).get(POLICY_META_KEY)
        by_grant = live.vocabulary.by_grant or (is_object(given) and EFFECTIVE in given)
        kept.policy = GrantPolicy(live.vocabulary) if by_grant else FeaturePolicy(live.policy.strict)
        if is_object(given):
            live.update(kept.policy, given, call.session)
    return kept.policy


def get_mcpl_vocabulary(call: Call) -> McplVocabulary:
    """The vocabulary of the host of this call."""
    live = get_mcpl_terms(call.terms)
    return live.vocabulary if live is not None else MCPL_04


def is_anonymous_session(session: Session) -> bool:
    """Whether nobody vouches for the host of a session."""
    opened_by = session.identity
    return isinstance(opened_by, Principal) and is_stranger(opened_by)


def can_receive_push(call: Call) -> bool:
    """Whether the host of this call is sent push events."""
    live = get_mcpl_terms(call.terms)
    return live is not None and live.offers("pushEvents") and call.terms.profile.calls_back


def is_stateless_call(call: Call) -> bool:
    """Whether this call belongs to no session, so that its policy comes with it."""
    return call.terms.offer is not None and call.terms.offer.stateless


# -- MCPL §6.7: `featureSets/update`. A host of 0.5 sends its policy as a request, which is answered with a receipt.
#
# A policy that cannot be read leaves such a host with nothing granted. A notification of it can only disable more.


FEATURE_SETS_UPDATE_METHOD = "featureSets/update"

# What a notification of a 0.5 host may say, but not decide.
REQUEST_ONLY_FIELDS = (EFFECTIVE, "deniedCapabilities", "enabled")


def handle_policy_request(live: McplTerms, params: Params, session: Session, sets: Iterable[FeatureSetBase]) -> Params:
    """Apply a policy that came as a request. Returns the answer. Raises InvalidParams for one that is malformed."""
    if not (live.vocabulary.by_grant or EFFECTIVE in params or isinstance(live.policy, GrantPolicy)):
        live.update(live.policy, params, session)
        return {"enabled": [one.name for one in sets if live.policy.allows(one)]}
    policy = live.switch_to_grants()
    live.update(policy, params, session)
    answer = policy_receipt(live, policy, sets)
    if not answer["accepted"]:
        policy.clear()
    return answer


def handle_policy_notification(live: McplTerms, params: Params, session: Session) -> None:
    """Apply a policy that came as a notification. What is wrong with it is only in the log."""
    try:
        if not isinstance(live.policy, GrantPolicy):
            live.update(live.policy, params, session)
            return
        live.policy.reduce(params)
    except InvalidParams as error:
        # A notification has no answer. Only this line shows that the policy is not in force.
        _warn("%s: %s", FEATURE_SETS_UPDATE_METHOD, error.message)
        raise
    if undecided := [member for member in REQUEST_ONLY_FIELDS if member in params]:
        _warn(
            "%s as a notification: %s ignored, a request decides that", FEATURE_SETS_UPDATE_METHOD, ", ".join(undecided)
        )


def _warn(message: str, *arguments: str) -> None:
    from defserve.base.redaction import get_logger

    get_logger().warning(message, *arguments)


def policy_receipt(live: McplTerms, policy: GrantPolicy, sets: Iterable[FeatureSetBase]) -> Params:
    """What works under a policy, and what does not."""
    unavailable: list[Params] = []
    refused: dict[str, None] = {}
    for one in sets:
        # A host cannot select a set that it was not told of, because nothing of it works there.
        if policy.is_disabled(one.name) or (one.paths and not policy.is_enabled(one.name)):
            continue
        lost = [use for use in one.uses if use in live.vocabulary.lost]
        missing = policy.find_missing_grants(one)
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


def does_pattern_cover(pattern: str, path: str) -> bool:
    """Whether a pattern covers a capability path or the name of a set."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(one in ("*", other) for one, other in zip(wanted, given, strict=True))


def select_covered_paths(patterns: Iterable[str]) -> frozenset[str]:
    """The capability paths that some of the patterns cover."""
    given = frozenset(patterns)
    wild = [pattern for pattern in given if "*" in pattern]
    return frozenset(
        path for path in CAPABILITY_PATHS if path in given or any(does_pattern_cover(pattern, path) for pattern in wild)
    )


def read_granted_paths(params: Params) -> frozenset[str]:
    """The paths that the params of a request-form `featureSets/update` grant; unknown ones are left out.

    Raises InvalidParams if a list is broken, or if a path is both granted and denied.
    """
    granted = select_covered_paths(few_names_in(params, "effectiveCapabilities"))
    if both := granted & select_covered_paths(few_names_in(params, "deniedCapabilities")):
        raise InvalidParams(f"Invalid params: {min(both)} is in effectiveCapabilities and in deniedCapabilities")
    return granted
