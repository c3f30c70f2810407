"""Who sends a message, as far as a conversation has to know it. The authentication of the transport says so."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol


class PeerIdentity(Protocol):
    """One caller, as it has shown itself with one credential. A caller may have several, with different rights."""

    @property
    def id(self) -> str:
        """The principal. Sessions and state belong to it."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def is_shared_identity(self) -> bool:
        """Whether many callers have it, who cannot be told apart."""
        ...

    @property
    def credential(self) -> str:
        """Names the key or token that was shown, without giving it away."""
        ...

    @property
    def rights(self) -> Any:
        """What `has_rights` reads, as a JSON value: for rights that must be remembered elsewhere."""
        ...

    def has_rights(self, rights: Any) -> bool:
        """Whether it has at least the rights that another credential of the same principal had."""
        ...

    def covers(self, other: Any) -> bool:
        """Whether it is the same principal, with the same credential or with at least the rights of `other`."""
        ...


SENDER: ContextVar[PeerIdentity | None] = ContextVar("defserve_sender", default=None)
"""Who sent the notification whose listener is running; None stands for a local process. Tasks of it inherit this."""


def may_act_for(one: PeerIdentity | None, other: PeerIdentity | None) -> bool:
    """Whether who sent a message may answer, cancel or end what another message began.

    A local process, None, is alone at its end of the pipe.
    """
    return one is other or one is None or other is None or one.covers(other)
