"""Whom a verb of a feature set speaks to: this session inside a call or hook, else whom `to=` names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerGone, UsageError
from defserve.protocols.mcpl.errors import AmbiguousPeer, FeatureDisabled, UnknownFeatureSet
from defserve.protocols.mcpl.extension import CURRENT, MCPL
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.protocols.mcpl.policies import EverythingEnabled, Live, Policy, policy
from defserve.wire.messages import Id, Params

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.composition import Terms

T = TypeVar("T")


class Everyone:
    """All sessions that can be spoken to; `to=everyone`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "everyone"


everyone: Final = Everyone()

To: TypeAlias = Session | str | Everyone | None

# The session that a source of events runs for: what it says outside any call is for that one.
SPEAKING_TO: ContextVar[Session | None] = ContextVar("defserve_speaking_to", default=None)


class Peer:
    """A session, and the call it is spoken to in, if it is one that still runs."""

    __slots__ = ("session", "call", "terms")

    def __init__(self, session: Session, call: Call | None = None) -> None:
        self.session, self.call = session, call
        self.terms: Terms | None = call.terms if call is not None else session.terms

    @property
    def live(self) -> Live | None:
        """What was agreed; None with a host that does not speak MCPL."""
        found = self.terms.states.get(MCPL.name) if self.terms is not None else None
        return found if isinstance(found, Live) else None

    @property
    def policy(self) -> Policy:
        if self.call is not None:
            return policy(self.call)
        return self.live.policy if self.live is not None else EverythingEnabled()

    @property
    def calls_back(self) -> bool:
        return self.terms is not None and self.terms.profile.calls_back

    async def request(
        self, method: str, params: Params, *, timeout: float | None = None, numbered: Callable[[Id], None] | None = None
    ) -> Any:
        """Ask the host: within the call, whose own timeout stands still meanwhile, as long as that runs."""
        call = self.call if self.call is not None and not self.call.settled else None
        asking = self.session.request(method, params, relates_to=call, timeout=timeout, numbered=numbered)
        return await (call.asked(asking) if call is not None else asking)


Obstacle: TypeAlias = Callable[[Peer], Exception | None]


def current() -> Peer | None:
    """Who is spoken to here without a word about it: the peer of the running call, hook or source."""
    call = CURRENT.get()
    if call is not None:
        return Peer(call.session, call)
    session = SPEAKING_TO.get()
    return Peer(session) if session is not None else None


def obstacle(peer: Peer, feature_set: FeatureSet, verb: str, capability: str) -> Exception | None:
    """Why a host cannot be spoken to in the name of a set; None where it can."""
    session, agreed = peer.session, peer.live
    if feature_set.mcpl.sets.get(feature_set.name) is not feature_set:
        return UnknownFeatureSet(feature_set.name)
    if session.closed:
        return PeerGone(f"{verb}: the peer has left")
    if not peer.policy.enabled(feature_set.name):
        return FeatureDisabled(feature_set.name)
    needs = {"experimental": {"mcpl": {capability: True}}}
    if agreed is None:
        return NoBackChannel(f"{verb}: the host does not speak MCPL", needs=needs)
    if not peer.calls_back:
        return NoBackChannel(f"{verb}: this protocol version takes no requests from a server")
    if not session.ready:
        return NoBackChannel(f"{verb}: the host has not said that it is ready")
    if not agreed.offers(capability):
        return NoBackChannel(f"{verb}: the host does not offer {capability}", needs=needs)
    return None


def addressed(mcpl: MCPL, verb: str, to: To, obstacle: Obstacle) -> list[Peer]:
    """The peers a verb speaks to: exactly one, or for `everyone` all there are, which may be none.

    Raises what stands in the way of the one that is meant (FeatureDisabled, NoBackChannel, PeerGone), AmbiguousPeer
    where several could be, and NoBackChannel with the reasons where nobody can.
    """
    meant = Peer(to) if isinstance(to, Session) else current() if to is None else None
    if meant is not None:
        problem = obstacle(meant)
        if problem is not None:
            raise problem
        return [meant]
    asked = [Peer(session) for session in _sessions(mcpl, to)]
    found = [peer for peer in asked if obstacle(peer) is None]
    if to is everyone:
        return found
    if len(found) > 1:
        raise AmbiguousPeer(verb, len(found))
    if not found:
        raise NoBackChannel(f"{verb}: {_why(asked, to, obstacle, verb)}")
    return found


async def on_its_loop(session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Run something where the session lives: one server may be served on several event loops."""
    engine = session.engine
    if engine.on_loop():
        return await work
    import asyncio
    from concurrent.futures import Future

    done: Future[T] = Future()

    async def run() -> None:
        try:
            done.set_result(await work)
        except BaseException as error:
            done.set_exception(error)

    def begin() -> None:
        engine.spawn(run())

    if not engine.post(begin):
        work.close()
        raise PeerGone("the peer has left")
    return await asyncio.wrap_future(done)


def declared(feature_set: FeatureSet, verb: str, use: str) -> None:
    """Raises UsageError for a verb that the set's description to hosts leaves out (§6.2)."""
    if use not in feature_set.uses:
        raise UsageError(
            f"{verb}: feature set {feature_set.name!r} does not tell hosts that it uses {use}",
            fix=f'server.feature_set("{feature_set.name}", …, uses=["{use}"])',
        )


def _sessions(mcpl: MCPL, to: To) -> Iterable[Session]:
    sessions = list(mcpl.composition.sessions) if mcpl.composition is not None else []
    if isinstance(to, str):
        return [session for session in sessions if session.principal == to]
    if to is None or to is everyone:
        return sessions
    raise UsageError(f"to={to!r} is nobody", fix="to=session, to=principal or to=everyone")


def _why(asked: list[Peer], to: To, obstacle: Obstacle, verb: str) -> str:
    if not asked:
        return f"{to} has no session here" if isinstance(to, str) else "nobody is connected"
    return "; ".join(dict.fromkeys(str(obstacle(peer)).removeprefix(f"{verb}: ") for peer in asked))
