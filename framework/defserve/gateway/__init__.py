"""TODO door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.exports import lazy

if TYPE_CHECKING:
    from defserve.gateway.policy import Admission
else:
    __getattr__ = lazy(__name__, {"defserve.gateway.policy": "Admission"})

__all__ = ["Admission"]
