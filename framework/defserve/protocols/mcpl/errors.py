"""MCPL appendix A: what a host is told when a feature set, a checkpoint or a channel is not available.

The codes are for a session that negotiated MCPL. Every other peer reads the same refusal as a tool's error.
"""

from __future__ import annotations

from typing import Any

from defserve.errors import Refused, UsageError


class LiveRefusal(Refused):
    """A refusal with a code of its own (appendix A)."""

    code = 0

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message, data=data)


class FeatureDisabled(LiveRefusal):
    """The host has not enabled this feature set, or has disabled it."""

    error_type, code = "feature_set_disabled", -32001

    def __init__(self, name: str) -> None:
        super().__init__(f"Feature set not enabled: {name}", featureSet=name, canEnable=True)


class CapabilityDenied(FeatureDisabled):
    """The host has not granted a capability (MCPL 0.5). No set that uses it is enabled."""

    error_type, code = "capability_denied", -32002

    def __init__(self, capability: str, name: str | None = None) -> None:
        LiveRefusal.__init__(self, f"Capability not granted: {capability}", capability=capability)
        if name is not None:
            self.data["featureSet"] = name


class UndeclaredUse(FeatureDisabled):
    """A set uses what it does not declare, so nobody could decide about it."""

    error_type = "undeclared_use"

    def __init__(self, name: str, use: str) -> None:
        LiveRefusal.__init__(self, f"Feature set {name} does not declare that it uses {use}", featureSet=name)


class UnknownFeatureSet(LiveRefusal):
    """Nobody declared this feature set."""

    error_type, code = "unknown_feature_set", -32003

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown feature set: {name}", featureSet=name)


class CheckpointNotFound(LiveRefusal):
    """The checkpoint was pruned, or never existed."""

    error_type, code = "checkpoint_not_found", -32005

    def __init__(self, checkpoint: str) -> None:
        super().__init__("Checkpoint not found", checkpoint=checkpoint)


class StateNotManaged(LiveRefusal):
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


class ChannelNotPermitted(LiveRefusal):
    """The host's scopes do not cover this channel."""

    error_type, code = "channel_not_permitted", -32017

    def __init__(self, channel: str) -> None:
        super().__init__(f"Channel not permitted: {channel}", channelId=channel)


class UnknownChannel(LiveRefusal):
    """No channel has this id."""

    error_type, code = "unknown_channel", -32023

    def __init__(self, channel: str) -> None:
        super().__init__(f"Unknown channel: {channel}", channelId=channel)


class ChannelOpenFailed(LiveRefusal):
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
