"""MCPL 0.5 §6: what a server answers to a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from defserve.host.fields import object_of, text_of, texts_of
from defserve.wire.jsonvalue import is_array, is_object


@dataclass(frozen=True, slots=True)
class PolicyReceipt:
    """Whether a server accepts a policy. A receipt never widens what was granted.

    unavailable  set → what it lacks, for the sets that do not work, or not wholly
    notes        what else the server says
    fallback     without acceptance: "mcp-only", or "close" if the server wants to be left
    reason       why it does not accept
    """

    accepted: bool
    unavailable: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    fallback: str | None = None
    reason: str | None = None

    @classmethod
    def read(cls, answer: Any) -> PolicyReceipt:
        """A server's answer. One without a word about acceptance has not accepted."""
        told = object_of(answer)
        features = told.get("unavailableFeatures")
        unavailable = {
            name: tuple(texts_of(one.get("missingCapabilities")))
            for one in (features if is_array(features) else ())
            if is_object(one) and isinstance(name := one.get("featureSet"), str)
        }
        return cls(
            told.get("accepted") is True,
            unavailable,
            tuple(texts_of(told.get("notes"))),
            text_of(told.get("fallback")),
            text_of(told.get("reason")),
        )
