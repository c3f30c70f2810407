"""What a verb is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from defserve.inspector.inspection import Inspection
from defserve.inspector.protocol import Request

Verb: TypeAlias = Callable[[Inspection, Request], Awaitable[Any]]


def era_of(request: Request) -> str | None:
    """The era that a request is about; None stands for the first conversation."""
    return request.text("era", "") or None
