"""TODO door."""

from defserve.gateway.policy import Admission

__all__ = ["Admission"]
