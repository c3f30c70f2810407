"""What a host's version of MCPL means: how it names what feature sets do, which rules hold with it, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from defserve.errors import Refused, UsageError

BEFORE_INFERENCE_USE: Final = "contextHooks.beforeInference"
AFTER_INFERENCE_USE: Final = "contextHooks.afterInference"
OBSERVE_USE: Final = f"{BEFORE_INFERENCE_USE}.observe"

# The position of an injection, as the wire has it → the path that permits it.
INJECT_USES: Final[Mapping[str, str]] = {
    name: f"{BEFORE_INFERENCE_USE}.inject.{name}" for name in ("system", "beforeUser", "afterUser")
}

# What hosts of 0.5 grant a server only if their user says so. A set that uses it is off at all other hosts.
USES_DENIED_BY_DEFAULT: Final = frozenset({INJECT_USES["system"]})

# What a feature set does → how 0.4 names it, and how 0.5 does. A set declares what it does in these words.
USE_NAMES_BY_VERSION: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "pushEvents": (("pushEvents",), ("pushEvents",)),
    BEFORE_INFERENCE_USE: ((BEFORE_INFERENCE_USE,), (OBSERVE_USE, *INJECT_USES.values())),
    OBSERVE_USE: ((BEFORE_INFERENCE_USE,), (OBSERVE_USE,)),
    **{path: ((BEFORE_INFERENCE_USE,), (path,)) for path in INJECT_USES.values()},
    AFTER_INFERENCE_USE: ((AFTER_INFERENCE_USE,), ()),
    "inferenceLifecycle": ((AFTER_INFERENCE_USE,), ("inferenceLifecycle",)),
    "inferenceRequest": (("inferenceRequest",), ("inferenceRequest",)),
    "inferenceRequest.streaming": (("inferenceRequest",), ("inferenceRequest", "inferenceRequest.streaming")),
    "modelInfo": ((), ("modelInfo",)),
    "tools": (("tools",), ("tools",)),
    "channels.register": ((), ("channels.register",)),
    "channels.lifecycle": ((), ("channels.lifecycle",)),
    "channels.publish": (("channels.publish",), ("channels.publish",)),
    "channels.observe": (("channels.observe",), ("channels.register", "channels.incoming")),
    "channels.incoming": (("channels.observe",), ("channels.incoming",)),
    "channels.streaming": (("channels.observe",), ("channels.streaming",)),
    "channels.acknowledge": ((), ("channels.acknowledge",)),
    "channels.typing": ((), ("channels.typing",)),
}

# The paths of 0.5, in the order in which they are listed. Grants know no others.
CAPABILITY_PATHS: Final = tuple(dict.fromkeys(path for _, paths in USE_NAMES_BY_VERSION.values() for path in paths))


@dataclass(frozen=True, slots=True, repr=False)
class McplVocabulary:
    """The words and rules of one version.

    version    what a host of this version is told
    names      what a set does → the names that say so in `uses`
    lost       what a set may do that no host of this version lets happen
    gates      method of the host → the paths of which one must be granted; a method without a gate is always served
    removed    methods that this version does not have
    fields     the members of a set's declaration, besides its description and uses
    by_grant   nothing is permitted before a policy that grants it; else everything is, until a policy forbids it
    scopes     sets have scopes, and `scope/elevate` exists
    tags       events and messages carry tags
    verdicts   channels are judged one by one: `channels/changed` is a request, and no verdict is no acceptance
    manifest   changes are told by `mcpl/manifestChanged`; else by `featureSets/changed`
    can_enable refusals say `canEnable`
    """

    version: str
    names: Mapping[str, tuple[str, ...]]
    lost: tuple[str, ...]
    gates: Mapping[str, tuple[str, ...]]
    removed: frozenset[str]
    fields: tuple[str, ...]
    by_grant: bool
    scopes: bool
    tags: bool
    verdicts: bool
    manifest: bool
    can_enable: bool

    def __repr__(self) -> str:
        return f"<MCPL {self.version}>"

    def translate_uses(self, uses: Iterable[str]) -> list[str]:
        """The `uses` of a set as a host of this version reads them."""
        named = {name for use in uses for name in self.names[use]}
        return [name for name in dict.fromkeys(chain.from_iterable(self.names.values())) if name in named]

    def find_missing_grant(self, method: str, grants: Callable[[str], bool]) -> str | None:
        """The capability that a method of the host needs, if it is not granted; None if the method may be served."""
        paths = self.gates.get(method)
        return None if paths is None or any(map(grants, paths)) else paths[0]


MCPL_04: Final = McplVocabulary(
    version="0.4",
    names={use: old for use, (old, _) in USE_NAMES_BY_VERSION.items()},
    lost=(),
    gates={},
    removed=frozenset({"mcpl/manifest"}),
    fields=("scoped", "rollback", "hostState"),
    by_grant=False,
    scopes=True,
    tags=False,
    verdicts=False,
    manifest=False,
    can_enable=True,
)

MCPL_05: Final = McplVocabulary(
    version="0.5",
    names={use: new for use, (_, new) in USE_NAMES_BY_VERSION.items()},
    lost=(AFTER_INFERENCE_USE,),
    gates={
        "context/beforeInference": (OBSERVE_USE, *INJECT_USES.values()),
        "inference/lifecycle": ("inferenceLifecycle",),
        "inference/chunk": ("inferenceRequest.streaming",),
        "channels/list": ("channels.register",),
        "channels/open": ("channels.lifecycle",),
        "channels/close": ("channels.lifecycle",),
        "channels/publish": ("channels.publish",),
        "channels/acknowledge": ("channels.acknowledge",),
        "channels/typing": ("channels.typing",),
        "notifications/typing": ("channels.typing",),
        "channels/outgoing/chunk": ("channels.streaming",),
        "channels/outgoing/complete": ("channels.streaming",),
    },
    removed=frozenset({"context/afterInference"}),
    fields=("rollback", "tagOntology"),
    by_grant=True,
    scopes=False,
    tags=True,
    verdicts=True,
    manifest=True,
    can_enable=False,
)


def find_uses_denied_by_default(uses: Iterable[str]) -> list[str]:
    """What a set with these `uses` lacks at a host of 0.5 with its default settings. Then the host switches it off."""
    found = [*uses]
    return [path for path in MCPL_05.translate_uses(found) if path in USES_DENIED_BY_DEFAULT] + [
        use for use in found if use in MCPL_05.lost
    ]


_VERSION: Final = re.compile(r"0\.(\d{1,9})")


def find_mcpl_vocabulary(version: Any) -> McplVocabulary | None:
    """The vocabulary for a peer that says this version; None for a version that we do not speak.

    A peer that leaves its version out speaks 0.4.
    """
    if version is None:
        return MCPL_04
    minor = _VERSION.match(version) if isinstance(version, str) else None
    if minor is None:
        return None
    return MCPL_05 if int(minor[1]) >= 5 else MCPL_04


# -- MCPL appendix A: what a host is told when a feature set, a checkpoint or a channel is not available.
#
# The codes are for a session that negotiated MCPL. Every other peer reads the same refusal as a tool's error.


class McplRefusal(Refused):
    """A refusal with a code of its own (appendix A)."""

    code = 0

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message, data=data)


class FeatureDisabled(McplRefusal):
    """The host has not enabled this feature set, or has disabled it."""

    error_type, code = "feature_set_disabled", -32001

    def __init__(self, name: str) -> None:
        super().__init__(f"Feature set not enabled: {name}", featureSet=name, canEnable=True)


class CapabilityDenied(FeatureDisabled):
    """The host has not granted a capability (MCPL 0.5). No set that uses it is enabled."""

    error_type, code = "capability_denied", -32002

    def __init__(self, capability: str, name: str | None = None) -> None:
        McplRefusal.__init__(self, f"Capability not granted: {capability}", capability=capability)
        if name is not None:
            self.data["featureSet"] = name


class UndeclaredUse(FeatureDisabled):
    """A set uses what it does not declare, so nobody could decide about it."""

    error_type = "undeclared_use"

    def __init__(self, name: str, use: str) -> None:
        McplRefusal.__init__(self, f"Feature set {name} does not declare that it uses {use}", featureSet=name)


class UnknownFeatureSet(McplRefusal):
    """Nobody declared this feature set."""

    error_type, code = "unknown_feature_set", -32003

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown feature set: {name}", featureSet=name)


class CheckpointNotFound(McplRefusal):
    """The checkpoint was pruned, or never existed."""

    error_type, code = "checkpoint_not_found", -32005

    def __init__(self, checkpoint: str) -> None:
        super().__init__("Checkpoint not found", checkpoint=checkpoint)


class StateNotManaged(McplRefusal):
    """The host does not keep the state of this feature set."""

    error_type, code = "state_not_managed", -32006

    def __init__(self, name: str) -> None:
        super().__init__(f"No host-managed state: {name}", featureSet=name)


class StateRefused(Refused):
    """A state that a host sent, or that is kept, cannot be used. The model reads why."""

    error_type = "state_refused"


class CannotUndo(Refused):
    """Raised by an author's `on_rollback`: the host is told the reason, and nothing changes."""

    error_type = "cannot_undo"


class ChannelNotPermitted(McplRefusal):
    """The host's scopes do not cover this channel."""

    error_type, code = "channel_not_permitted", -32017

    def __init__(self, channel: str) -> None:
        super().__init__(f"Channel not permitted: {channel}", channelId=channel)


class UnknownChannel(McplRefusal):
    """No channel has this id."""

    error_type, code = "unknown_channel", -32023

    def __init__(self, channel: str) -> None:
        super().__init__(f"Unknown channel: {channel}", channelId=channel)


class ChannelOpenFailed(McplRefusal):
    """The channel could not be opened."""

    error_type, code = "channel_open_failed", -32024

    def __init__(self, reason: str) -> None:
        super().__init__(f"Channel open failed: {reason}", reason=reason)


class HookFailed(Refused):
    """A blocking hook failed, so the answer has not been checked."""

    error_type = "hook_failed"

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, data={"featureSet": name})


class ScopeDenied(Refused):
    """The host's scopes do not cover what a tool was asked to do. The model reads why."""

    error_type = "scope_denied"

    def __init__(self, name: str, label: str, reason: str) -> None:
        super().__init__(
            f"not permitted in {label!r}: {reason}", data={"featureSet": name, "scope": label, "reason": reason}
        )


class AmbiguousPeer(UsageError):
    """Several sessions could be meant. `to=` says which."""

    def __init__(self, verb: str, count: int) -> None:
        super().__init__(
            f"{verb}: {count} sessions could be meant", fix="say which: to=session, to=principal or to=everyone"
        )
