"""The states of a server behind this one (MGP §11.2), and the changes between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from defserve.proxying.backend import Backend

State: TypeAlias = Literal[
    "registered", "connecting", "connected", "draining", "disconnected", "restarting", "error"
]


@dataclass(frozen=True, slots=True)
class Transition:
    """A backend went from one state to another. `reason` is for people, without secrets."""

    backend: Backend
    previous: State
    new: State
    reason: str
