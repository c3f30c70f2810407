"""Who owns a state. A caller that cannot be told apart from others has no head: it must name where to start.

| who calls | `per="principal"` | `per="session"` | `per="server"` |
|---|---|---|---|
| local, with a token, or authenticated by a gateway | the principal | the session | everyone |
| the same, in a request that is a session of its own | the principal | the principal, no head | everyone |
| anonymous, with a handshake | the session | the session | everyone |
| anonymous, without | its address, no head | its address, no head | everyone |

The head of everyone's state is moved only by calls that start there. What a caller brings, or starts elsewhere, becomes
a branch that this caller alone sees and continues. It is kept in a tree of the caller's own, so that it does not count
among everyone's checkpoints. Those who have no head have one such tree together.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from defserve.auth.authority import is_stranger
from defserve.auth.principals import ANONYMOUS_PREFIX, LOCAL_ID, Principal
from defserve.errors import Refused
from defserve.protocols.mcpl.policies import is_stateless

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session

Per = Literal["principal", "session", "server"]

# No token's principal starts with this prefix, so no caller can have these names.
EVERYONE: Final = ANONYMOUS_PREFIX + "everyone"
SESSION: Final = ANONYMOUS_PREFIX + "session:"
BRANCHES: Final = ANONYMOUS_PREFIX + "branches:"
PEER: Final = ANONYMOUS_PREFIX + "peer:"


class StateUnowned(Refused):
    """The caller is unknown, so its state cannot be found. The model reads what to do."""

    error_type = "state_unowned"

    def __init__(self) -> None:
        super().__init__(
            "This tool keeps state, and callers who do not say who they are cannot be told apart: sign in, open a "
            'session, or name the "checkpoint" to start from (null begins anew)'
        )


class StateOwner(NamedTuple):
    """`has_head`: a call that names no checkpoint continues where this owner was."""

    id: str
    has_head: bool = True

    @property
    def is_shared(self) -> bool:
        """Whether other callers read the same head."""
        return self.id == EVERYONE


class SessionOwner:
    """The name of a session as an owner. It cannot be guessed, and ends with the session."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = SESSION + secrets.token_urlsafe(16)


def owner_of(call: Call, per: Per) -> StateOwner:
    session = call.session
    if per == "server":
        return StateOwner(EVERYONE)
    stranger = isinstance(call.identity, Principal) and is_stranger(call.identity)
    if (stranger and is_stateless(call)) or (per == "session" and session.is_short):
        return StateOwner(_principal(call), has_head=False)
    return StateOwner(session_owner(session) if per == "session" or stranger else _principal(call))


def branches_of(call: Call) -> StateOwner:
    """Who owns the branches off everyone's state that this call makes or continues."""
    own = owner_of(call, "principal")
    return StateOwner(branches_owner(own.id) if own.has_head else BRANCHES, own.has_head)


def branches_owner(owner: str) -> str:
    """Under which name the branches of an owner off everyone's state are kept."""
    return BRANCHES + owner


def session_owner(session: Session) -> str:
    if session.sharer is not None:  # the same in every process that serves the session
        return SESSION + sha256(session.sharer.id.encode()).hexdigest()[:32]
    return session.local(SessionOwner).id


def _principal(call: Call) -> str:
    # Several peers on a local carrier are all the local user. Elsewhere the principal itself says where it is known.
    peer = call.session.peer
    return PEER + peer if peer and call.principal == LOCAL_ID else call.principal
