"""Who is served: which calls may share one conversation with a backend."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import to_json

from defserve.auth.authority import is_stranger
from defserve.protocols.mcp.apps.offer import OFFER, offers_apps
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.tasks.offer import takes_tasks
from defserve.wire.jsonvalue import is_object

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.identity import PeerIdentity
    from defserve.core.session import Session

OFFERED: Final = ("elicitation", "sampling", "roots")
"""What a front may offer to a backend, beside views. Everything else of its offer concerns us alone."""


class Front(NamedTuple):
    """One client, as a backend may know it. Calls with the same `key` share a conversation; None shares with nobody.

    `session` is its conversation with us, if it has one that lasts. `offers` is what it lets a backend ask of it.
    `principal` is who it is counted for. `is_known`: somebody vouches for it, so that its yes counts.
    `takes_tasks`: its call may become a task. `waits`: it cannot, and the front waits for the result of one.
    `caller` is who sent its call. `place` is the key with what it offers: two clients of one principal may offer
    different things, and a backend is told what its own front offers.

    A backend's question may name no call. It is then asked in any call of the conversation, so that all of them must
    have the same rights: `key` has those too.
    """

    key: Hashable | None
    session: Session | None
    offers: dict[str, Any]
    principal: str
    is_known: bool
    takes_tasks: bool = False
    waits: bool = False
    caller: PeerIdentity | None = None
    place: Hashable = None

    @property
    def credential(self) -> str:
        """Names the key or token that it showed."""
        return self.caller.credential if self.caller is not None else ""


class KnownFront:
    """The front of the last call of a session. The next one mostly has the same sender and the same terms."""

    __slots__ = ("terms", "identity", "front")

    terms: object
    identity: object
    front: Front | None

    def __init__(self) -> None:
        self.front = None


def front_of(call: Call) -> Front:
    """The client behind a call: its session, else its verified principal, else nobody who comes again."""
    known = call.session.peek(KnownFront)
    if (
        known is not None
        and known.terms is call.terms
        and known.identity is call.identity
        and known.front is not None
        and call.outer is None
    ):
        return known.front
    front = _front_of(call)
    if front.session is not None and call.outer is None:
        known = call.session.local(KnownFront)
        known.terms, known.identity, known.front = call.terms, call.identity, front
    return front


def _front_of(call: Call) -> Front:
    session, offer = call.session, call.terms.offer
    waits = call.outer is not None or offer is None or not offer.stateless
    takes = not waits and takes_tasks(call)
    capabilities: Mapping[str, Any] = offer.capabilities if offer is not None else {}
    offers: dict[str, Any] = {}
    if capabilities:
        offers.update((name, capabilities[name]) for name in OFFERED if name in capabilities)
        if offers_apps(capabilities):
            offers |= OFFER
    caller, principal = identity(call), call.principal
    is_known = not is_stranger(caller)
    key: Hashable = (principal, caller.rights_class) if is_known else None
    # `short_sessions` has only those that are open: who stops listening may have none any more.
    lasting = None if session.is_short else session
    if lasting is not None:
        # Another credential may use the same session.
        key = session, principal, caller.rights_class
    place = key, to_json(offers) if offers else b""
    return Front(key, lasting, offers, principal, is_known, takes, waits, call.identity, place)


def is_confirmation(method: str, params: Mapping[str, Any]) -> bool:
    """Whether a question of a backend asks for nothing but a yes.

    It has no field, or one, a boolean `value`, as our own `ctx.confirm` and FastMCP have it. Other forms are questions
    of an author, who would hear a stranger's answer without a front, too.
    """
    if method != "elicitation/create" or params.get("mode", "form") != "form":
        return False
    schema = params.get("requestedSchema")
    fields = schema.get("properties") if is_object(schema) else None
    if not is_object(fields) or not fields:
        return True
    only = fields.get("value")
    return len(fields) == 1 and is_object(only) and only.get("type") == "boolean"
