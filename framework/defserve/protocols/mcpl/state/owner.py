"""Whose state it is. A caller who cannot be told apart from others has no head: it names where it starts.

| who calls | `per="principal"` | `per="session"` | `per="server"` |
|---|---|---|---|
| local, or with a token | the principal | the session | everyone |
| the same, in a request that is a session of its own | the principal | the principal, no head | everyone |
| anonymous, with a handshake | the session | the session | everyone |
| anonymous, without | its address, no head | its address, no head | everyone |
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from defserve.auth.principals import ANONYMOUS_PREFIX, Principal
from defserve.errors import Refused
from defserve.protocols.mcpl.policies import is_stateless

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session

Per = Literal["principal", "session", "server"]

# No token's principal begins so: a caller can never be given these names.
EVERYONE: Final = ANONYMOUS_PREFIX + "everyone"
SESSION: Final = ANONYMOUS_PREFIX + "session:"
PEER: Final = ANONYMOUS_PREFIX + "peer:"


class Unowned(Refused):
    """Nobody can say whose state is meant. The model reads what to do."""

    error_type = "state_unowned"

    def __init__(self) -> None:
        super().__init__(
            "This tool keeps state, and callers who do not say who they are cannot be told apart: sign in, open a "
            'session, or name the "checkpoint" to start from (null begins anew)'
        )


class Owner(NamedTuple):
    """`has_head`: what comes without a checkpoint goes on where this owner was."""

    id: str
    has_head: bool = True


class SessionOwner:
    """The name of a session as an owner; unguessable, and gone with it."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = SESSION + secrets.token_urlsafe(16)


def owner_of(call: Call, per: Per) -> Owner:
    session = call.session
    if per == "server":
        return Owner(EVERYONE)
    anonymous = isinstance(session.identity, Principal) and session.identity.kind == "anonymous"
    if (anonymous and is_stateless(call)) or (per == "session" and session in session.composition.short_sessions):
        return Owner(_principal(session), has_head=False)
    return Owner(session_owner(session) if per == "session" or anonymous else _principal(session))


def session_owner(session: Session) -> str:
    return session.local(SessionOwner).id


def _principal(session: Session) -> str:
    if session.peer:
        return PEER + session.peer  # one of many on a carrier
    return session.identity.id if isinstance(session.identity, Principal) else session.principal
