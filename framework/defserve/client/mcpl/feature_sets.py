"""MCPL §5.3, §6, §7.2: the feature sets that a server declares, and which of them are enabled.

Patterns (`memory.*`) stay in the host. The server is told the names that match.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeAlias

from defserve.base.redaction import get_logger
from defserve.client.answers import maybe_await
from defserve.client.replies import Json, filter_strings, object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.core.shapes import BOOLEAN, TEXT, TEXT_LIST, WireShape, wire_member, wire_shape
from defserve.errors import InvalidParams, UsageError
from defserve.protocols.mcpl.policies import (
    MAX_PATTERN_LENGTH,
    MAX_POLICY_NAMES,
    POLICY_META_KEY,
    FeaturePolicy,
    ScopeLists,
    list_covering_patterns,
    select_covered_paths,
)
from defserve.protocols.mcpl.vocabulary import (
    CAPABILITY_PATHS,
    CapabilityDenied,
    FeatureDisabled,
    UndeclaredUse,
    UnknownFeatureSet,
)

FEATURE_SETS_UPDATE: Final = "featureSets/update"
FEATURE_SETS_CHANGED: Final = "featureSets/changed"

# What sets of old servers may do without declaring it. Inference costs this host money, so it is not among them.
LENIENT: Final = ("pushEvents", "contextHooks")

# Uses of an older draft that also calls itself 0.5.
OTHER_DRAFT: Final = ("stateUpdate", "branches")

log = get_logger("client")

__all__ = [
    "FEATURE_SETS_CHANGED",
    "POLICY_META_KEY",
    "FEATURE_SETS_UPDATE",
    "DeclaredFeatureSet",
    "FeatureSets",
    "FeatureSetSelection",
]


@wire_shape
class DeclaredFeatureSet(WireShape):
    """A feature set as its server describes it."""

    name: str
    description: str = wire_member("description", TEXT, default="", lenient=True)
    uses: tuple[str, ...] = wire_member("uses", TEXT_LIST, default=(), lenient=True)
    scoped: bool = wire_member("scoped", BOOLEAN, default=False, lenient=True)
    rollback: bool = wire_member("rollback", BOOLEAN, default=False, lenient=True)
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


Decide: TypeAlias = Callable[[DeclaredFeatureSet], bool | Awaitable[bool]]

FeatureSetSelection: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]] | Decide | None
"""Patterns of the sets to enable; `{"enabled": …, "disabled": …}`; a function of each set; or None for all sets.

Without `enabled`, every set that is not disabled is enabled.
"""


class FeatureSets:
    """`client.mcpl.feature_sets`: name to `DeclaredFeatureSet`, and which sets this host enables."""

    def __init__(
        self,
        wish: FeatureSetSelection,
        scopes: Mapping[str, Mapping[str, Sequence[str]]],
        grants: HostGrants | None = None,
    ) -> None:
        self.grants = grants if grants is not None else HostGrants(None, frozenset())
        self.advertised: Json = {}
        self._declared: dict[str, DeclaredFeatureSet] = {}
        self._warned: set[tuple[str, str]] = set()
        self._waiting: set[str] = set()
        self._decide = wish if callable(wish) else None
        patterns = _patterns(wish)
        self._policy = FeaturePolicy(strict="enabled" in patterns or self._decide is not None)
        self._change({**patterns, "scopes": scopes})

    def __iter__(self) -> Iterator[DeclaredFeatureSet]:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def __getitem__(self, name: str) -> DeclaredFeatureSet:
        """Raises UnknownFeatureSet for a set that the server does not declare."""
        if (found := self._declared.get(name)) is None:
            raise UnknownFeatureSet(name)
        return found

    def is_enabled(self, name: str) -> bool:
        """Whether a set is declared and enabled. With a server of 0.5, all that it uses must be granted, too."""
        found = self._declared.get(name)
        return found is not None and self._policy.is_enabled(name) and self._is_granted(found)

    def mark_pending(self, before: Iterable[str]) -> None:
        """Sets that were not enabled `before` wait for the receipt of a server of 0.5."""
        self._waiting = {one.name for one in self} - set(before) if self.grants.by_grant else set()

    def apply_receipt(self, is_accepted: bool) -> None:
        """The server has answered the policy."""
        self.grants.apply_receipt(is_accepted)
        self._waiting = set()

    def _is_granted(self, one: DeclaredFeatureSet) -> bool:
        active, is_waiting = self.grants.active, one.name in self._waiting
        return not self.grants.by_grant or (bool(one.uses) and active.issuperset(one.uses) and not is_waiting)

    def find_enabled_using(self, use: str) -> list[DeclaredFeatureSet]:
        """The enabled sets with such a use: `contextHooks.beforeInference`, or a family, `channels`."""
        return [one for one in self if self.is_enabled(one.name) and declares_use(one, use)]

    def get_scope_lists(self, name: str) -> ScopeLists:
        """Which scopes of a set are allowed and denied."""
        return self._policy.find_scope_lists(name)

    def require(self, name: Any, use: str | None = None) -> DeclaredFeatureSet:
        """The set that a message is tagged with (§6.5, §6.6). It must be enabled, and declare `use` if that is given.

        Raises InvalidParams, UnknownFeatureSet, FeatureDisabled, CapabilityDenied, or UndeclaredUse.
        """
        if not isinstance(name, str):
            raise InvalidParams("Invalid params: featureSet must be a string")
        found = self[name]
        if not self._policy.is_enabled(name):
            raise FeatureDisabled(name)
        if not self._is_granted(found):
            missing = sorted(set(found.uses) - self.grants.active)
            raise CapabilityDenied(missing[0], name) if missing else UndeclaredUse(name, use or "anything")
        if use is not None and not declares_use(found, use):
            if not self.is_declared_by_none(use):
                raise UndeclaredUse(name, use)
            if (name, use) not in self._warned:
                self._warned.add((name, use))
                log.warning("feature set %s does not declare that it uses %s; its server does", name, use)
        return found

    def is_declared_by_none(self, use: str) -> bool:
        """Whether a server below 0.5 advertises something that none of its sets declares.

        Some servers declare only `tools`, and push or inject all the same. Every set of theirs may.
        """
        family = use.partition(".")[0]
        claims = family in LENIENT and bool(self.advertised.get(family)) and not self.grants.by_grant
        return claims and not any(declares_use(one, use) for one in self)

    # -- what the server declares ------------------------------------------------------------------------

    async def declare(self, found: Any) -> list[str]:
        """Add declarations, as an object (as in the specification) or as an array. Returns the names."""
        added = list(_declarations(found))[: MAX_POLICY_NAMES - len(self._declared)]
        if self.grants.by_grant:
            added = _in_known_words(added)
        for one in added:
            self._declared[one.name] = one
            if self._decide is not None:
                enabled = await maybe_await(self._decide(one))
                self._change({"enabled" if enabled else "disabled": [one.name]})
        return [one.name for one in added]

    def withdraw(self, names: Any) -> None:
        """Remove sets that the server does not declare any more."""
        for name in filter_strings(names):
            self._declared.pop(name, None)

    # -- what this host decides --------------------------------------------------------------------------

    def update(
        self, enabled: Sequence[str], disabled: Sequence[str], scopes: Mapping[str, Mapping[str, Sequence[str]]]
    ) -> Json:
        """Change the policy. Returns what to tell the server about the affected sets."""
        self._change({"enabled": enabled, "disabled": disabled, "scopes": scopes})
        changed = {*enabled, *disabled}
        params = self.to_wire(name for name in self._declared if changed.intersection(list_covering_patterns(name)))
        rescoped = (
            name for name in self._declared if any(pattern in scopes for pattern in list_covering_patterns(name))
        )
        limits = self._scopes(rescoped)
        return {**params, "scopes": limits} if limits else {k: v for k, v in params.items() if k != "scopes"}

    def to_wire(self, names: Iterable[str] | None = None) -> Json:
        """The params of `featureSets/update` for these sets, or for all."""
        about = list(self._declared if names is None else names)
        params: Json = {
            "enabled": [name for name in about if self._policy.is_enabled(name)],
            "disabled": [name for name in about if not self._policy.is_enabled(name)],
        }
        limits = self._scopes(about)
        return {**params, "scopes": limits} if limits else params

    def policy(self) -> Json:
        """The params of `featureSets/update` for a server of 0.5: the whole policy."""
        valid = [one.name for one in self if one.uses and set(one.uses) <= set(CAPABILITY_PATHS)]
        enabled = list(filter(self._policy.is_enabled, valid))
        return {
            **self.grants.to_wire(),
            "enabled": enabled,
            "disabled": [name for name in self._declared if name not in enabled],
        }

    def _scopes(self, names: Iterable[str]) -> Json:
        found = ((name, self._policy.find_scope_lists(name)) for name in names)
        return {
            name: {"whitelist": list(lists.whitelist), "blacklist": list(lists.blacklist)}
            for name, lists in found
            if lists.whitelist or lists.blacklist
        }

    def _change(self, change: Mapping[str, Any]) -> None:
        for name in ("enabled", "disabled"):
            if isinstance(change.get(name), str):
                raise UsageError(f"{name}={change[name]!r} is not a list", fix=f"write [{change[name]!r}]")
        plain = {name: list(change[name]) for name in ("enabled", "disabled") if name in change}
        scopes = {name: {k: list(v) for k, v in lists.items()} for name, lists in change.get("scopes", {}).items()}
        try:
            self._policy.update({**plain, "scopes": scopes})
        except InvalidParams as error:
            raise UsageError(f"not a policy for feature sets: {error.message}") from None


def declares_use(one: DeclaredFeatureSet, use: str) -> bool:
    """Whether a set declares a use, or one below it: `contextHooks.beforeInference.observe`."""
    return any(used == use or used.startswith(f"{use}.") for used in one.uses)


def _in_known_words(sets: Sequence[DeclaredFeatureSet]) -> list[DeclaredFeatureSet]:
    """Sets of a 0.5 server without the uses that only another draft of that number has."""
    if known := {use: one.name for one in reversed(sets) for use in one.uses if use in OTHER_DRAFT}:
        found = ", ".join(f"{use} is not a use of MCPL 0.5 (feature set {name})" for use, name in known.items())
        log.warning("%s", found)
    return [replace(one, uses=tuple(use for use in one.uses if use not in OTHER_DRAFT)) for one in sets]


def _patterns(wish: Any) -> dict[str, Sequence[str]]:
    if wish is None or callable(wish):
        return {}
    if not isinstance(wish, Mapping):
        return {"enabled": wish}
    chosen: dict[str, Sequence[str]] = dict(wish)  # pyright: ignore[reportUnknownArgumentType]
    if unknown := chosen.keys() - {"enabled", "disabled"}:
        raise UsageError(f"feature_sets has {sorted(unknown)}", fix='write {"enabled": […], "disabled": […]}')
    return chosen


def _declarations(found: Any) -> Iterator[DeclaredFeatureSet]:
    if is_object(found):
        entries = found.items()
    elif is_array(found):
        entries = ((object_or_empty(one).get("name"), one) for one in found)
    else:
        return
    left_out: list[str] = []
    for name, entry in entries:
        if not isinstance(name, str) or not is_object(entry):
            continue
        if "*" in name or len(name) > MAX_PATTERN_LENGTH:
            # Whoever decides about a set called "memory.*" would decide about all that this pattern covers.
            left_out.append(name)
        else:
            yield DeclaredFeatureSet.from_wire(entry, name=name)
    if left_out:
        count, first = len(left_out), left_out[0]
        log.warning("left out %d feature sets whose name is a pattern or too long: first %.100r", count, first)


# -- MCPL 0.5 §5–6: what a server claims, and which of it this host grants.
#
# A grant counts from the server's receipt on. What is taken back stops counting at once.


TOOLS_CAPABILITY_PATH: Final = "tools"


class HostGrants:
    """The grants for one server. Until `claim` is called, the server is below 0.5, and nothing is denied.

    `wish` are paths or patterns; None grants all that the server claims and this host is `able` to do.
    """

    def __init__(self, wish: Sequence[str] | None, able: frozenset[str]) -> None:
        if isinstance(wish, str) or (wish is not None and not select_covered_paths(wish) and wish):
            raise UsageError(f"grants={wish!r} names no capability", fix=f"use some of {', '.join(CAPABILITY_PATHS)}")
        self.by_grant = False
        self.claimed: frozenset[str] = frozenset()
        self.active: frozenset[str] = frozenset()
        self._able = able if wish is None else able & select_covered_paths(wish)

    @property
    def claimed_and_possible(self) -> frozenset[str]:
        """What the server claims and may have."""
        return self.claimed & self._able

    def replace_claims(self, claimed: frozenset[str]) -> None:
        """Take what the server claims now. What it does not claim any more is revoked."""
        self.by_grant, self.claimed = True, claimed
        self.active &= self.claimed_and_possible

    def apply_receipt(self, is_accepted: bool) -> None:
        """The server has answered a policy: all that is wanted counts, or nothing does."""
        self.active = self.claimed_and_possible if is_accepted else frozenset()

    def permits(self, path: str) -> bool:
        return not self.by_grant or path in self.active

    def require(self, path: str) -> None:
        """Raises CapabilityDenied."""
        if not self.permits(path):
            raise CapabilityDenied(path)

    def to_wire(self) -> Json:
        """The lists of a policy."""
        return {
            "effectiveCapabilities": sorted(self.claimed_and_possible),
            "deniedCapabilities": sorted(self.claimed - self.claimed_and_possible),
        }


def collect_claimed_paths(block: Mapping[str, Any], capabilities: Mapping[str, Any]) -> frozenset[str]:
    """The paths that a server claims: by its block of MCPL, and for tools by its capabilities."""
    found = frozenset(path for path in CAPABILITY_PATHS if path != TOOLS_CAPABILITY_PATH and _claims(block, path))
    return found | {TOOLS_CAPABILITY_PATH} if is_object(capabilities.get(TOOLS_CAPABILITY_PATH)) else found


def _claims(node: Any, path: str) -> bool:
    """`true` claims everything below; an object at a path that has paths below it claims that path."""
    for name in path.split("."):
        if node is True:
            return True
        node = node.get(name) if isinstance(node, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return node is True or (path == "inferenceRequest" and is_object(node))
