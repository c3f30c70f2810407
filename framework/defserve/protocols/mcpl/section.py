"""What the parts of MCPL have in common: each is told what becomes of sessions and sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from defserve.core.session import Session
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.feature_sets import FeatureSet


class Section:
    """Made when the first of its kind is declared. Override what you want to hear of; all on the session's loop."""

    def __init__(self, mcpl: MCPL) -> None:
        self.mcpl = mcpl

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        """Entered when the server starts."""
        return None

    def session_ready(self, session: Session) -> None:
        """A host that speaks MCPL has said that it is ready."""

    def policy_changed(self, session: Session) -> None:
        """A host has sent `featureSets/update`; it is in force already."""

    def session_closed(self, session: Session) -> None:
        """The conversation ended."""

    def removed(self, feature_set: FeatureSet) -> None:
        """A set was taken back. In whatever thread that was done."""
