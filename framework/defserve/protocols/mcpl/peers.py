"""Which session a verb of a feature set speaks to: in a call or hook, its own; elsewhere, the one that `to=` names."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from defserve.auth.principals import ANONYMOUS_PREFIX
from defserve.core.session import Session
from defserve.errors import MethodNotFound, NoBackChannel, PeerError, PeerGone, UsageError
from defserve.protocols.mcpl.current import CURRENT, SOURCE_SESSION
from defserve.protocols.mcpl.errors import AmbiguousPeer, UnknownFeatureSet
from defserve.protocols.mcpl.policies import EVERYTHING_ENABLED, FeaturePolicy, LiveTerms, agreed, is_strangers, policy
from defserve.wire.messages import Id, Params

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.composition import Terms
    from defserve.core.identity import PeerIdentity
    from defserve.protocols.mcpl.feature import Feature
    from defserve.protocols.mcpl.section import LiveServer

T = TypeVar("T")


class Everyone:
    """All sessions that can be spoken to; `to=everyone`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "everyone"


everyone: Final = Everyone()

To: TypeAlias = Session | str | Everyone | None


class Peer:
    """A session that can be spoken to, and the call in which that happens, if there is one."""

    __slots__ = ("session", "call", "terms")

    def __init__(self, session: Session, call: Call | None = None) -> None:
        self.session, self.call = session, call
        self.terms: Terms | None = call.terms if call is not None else session.terms

    @property
    def live(self) -> LiveTerms | None:
        """What was agreed; None if the host does not speak MCPL."""
        return agreed(self.terms)

    @property
    def policy(self) -> FeaturePolicy:
        if self.call is not None:
            return policy(self.call)
        return self.live.policy if self.live is not None else EVERYTHING_ENABLED

    @property
    def identity(self) -> PeerIdentity | None:
        """Who is spoken to: who made the call, also when it is over; else who opened the session."""
        return self.call.identity if self.call is not None else self.session.identity

    @property
    def calls_back(self) -> bool:
        return self.terms is not None and self.terms.profile.calls_back

    async def request(
        self, method: str, params: Params, *, timeout: float | None = None, numbered: Callable[[Id], None] | None = None
    ) -> Any:
        """Ask the host. While a call waits for the answer, its own timeout is paused."""
        call = self.call if self.call is not None and not self.call.settled else None
        asking = self.session.request(
            method, params, relates_to=call, timeout=timeout, numbered=numbered, identity=self.identity
        )
        return await (call.asked(asking) if call is not None else asking)

    async def try_request(
        self,
        path: str,
        method: str,
        params: Params,
        *,
        timeout: float | None = None,
        numbered: Callable[[Id], None] | None = None,
    ) -> Any:
        """Like `request`, for a capability that the host may not have. Raises NoBackChannel once it has said so."""
        try:
            return await self.request(method, params, timeout=timeout, numbered=numbered)
        except PeerError as error:
            if error.code != MethodNotFound.code or self.live is None or not self.live.learn(path):
                raise
            raise NoBackChannel(f"{method}: the host does not know it") from error


Obstacle: TypeAlias = Callable[[Peer], Exception | None]


def current() -> Peer | None:
    """The peer that the running call, hook or source speaks to without `to=`."""
    if (call := CURRENT.get()) is not None:
        return Peer(call.session, call)
    session = SOURCE_SESSION.get()
    return Peer(session) if session is not None else None


def obstacle(peer: Peer, feature_set: Feature, verb: str, path: str) -> Exception | None:
    """Why a set cannot speak to a host; None if it can. `path` is what the verb needs: `channels.incoming`."""
    session, live = peer.session, peer.live
    if feature_set.removed:
        return UnknownFeatureSet(feature_set.name)
    if session.closed:
        return PeerGone(f"{verb}: the peer has left")
    if (refusal := peer.policy.refusal(feature_set)) is not None:
        return refusal
    capability = path.partition(".")[0]
    needs = {"experimental": {"mcpl": {capability: True}}}
    if live is None:
        return NoBackChannel(f"{verb}: the host does not speak MCPL, which ctx.can(…) tells before", needs=needs)
    if not peer.calls_back:
        return NoBackChannel(f"{verb}: this protocol version takes no requests from a server")
    if not session.ready:
        return NoBackChannel(f"{verb}: the host has not said that it is ready")
    if not live.offers(path):
        return NoBackChannel(f"{verb}: the host does not offer {capability}", needs=needs)
    return None


def addressed(server: LiveServer, verb: str, to: To, obstacle: Obstacle) -> list[Peer]:
    """The peers that a verb speaks to: exactly one, or for `everyone` all that can be reached, perhaps none.

    Raises the obstacle of the one peer that is meant (FeatureDisabled, NoBackChannel, PeerGone), AmbiguousPeer if
    several could be meant, and NoBackChannel with the reasons if nobody can be reached.
    """
    meant = Peer(to) if isinstance(to, Session) else current() if to is None else None
    if meant is not None:
        if (problem := obstacle(meant)) is not None:
            raise problem
        return [meant]
    asked = [Peer(session) for session in _sessions(server, to)]
    found = [peer for peer in asked if obstacle(peer) is None]
    if to is everyone:
        return [peer for peer in found if is_ours(peer.session)]
    if len(found) > 1:
        raise AmbiguousPeer(verb, len(found))
    if not found:
        raise NoBackChannel(f"{verb}: {_why(asked, to, obstacle, verb)}")
    return found


async def find(server: LiveServer, to: To) -> None:
    """Get to know the sessions of a principal that other processes have opened, before it is spoken to."""
    if isinstance(to, str) and server.others is not None:
        await server.others.find(to)


def is_ours(session: Session) -> bool:
    """Whether this process does what concerns a session by itself. Of several that share it, one does."""
    return session.sharer is None or session.sharer.is_owner


async def on_its_loop(session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Run something on the session's event loop. One server may be served on several loops."""
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


def check_declared(feature_set: Feature, verb: str, use: str) -> None:
    """Raises UsageError if the set does not tell hosts that it uses this verb (§6.2)."""
    if use not in feature_set.uses:
        raise UsageError(
            f"{verb}: feature set {feature_set.name!r} does not tell hosts that it uses {use}",
            fix=f'server.feature_set("{feature_set.name}", …, uses=["{use}"])',
        )


def can_reach(peer: Peer, feature_set: Feature, problem: Exception | None) -> bool:
    """Whether a set reaches a peer in spite of `problem`: directly if there is none, or through the set's inbox."""
    has_inbox = feature_set.inbox is not None and not is_strangers(peer.session)
    return problem is None or (isinstance(problem, NoBackChannel) and has_inbox)


def inbox_reader(to: To) -> str | None:
    """The principal whose inbox a verb means; None if that is unknown. A stranger has none: others have its address."""
    if isinstance(to, str):
        return None if to.startswith(ANONYMOUS_PREFIX) else to
    meant = Peer(to) if isinstance(to, Session) else current() if to is None else None
    return meant.session.principal if meant is not None and not is_strangers(meant.session) else None


def _sessions(server: LiveServer, to: To) -> Iterable[Session]:
    if isinstance(to, str):
        return [session for session in server.sessions if session.principal == to]
    if to is None or to is everyone:
        return server.sessions
    raise UsageError(f"to={to!r} names nobody", fix="to=session, to=principal or to=everyone")


def _why(asked: list[Peer], to: To, obstacle: Obstacle, verb: str) -> str:
    if not asked:
        return f"{to} has no session here" if isinstance(to, str) else "nobody is connected"
    return "; ".join(dict.fromkeys(str(obstacle(peer)).removeprefix(f"{verb}: ") for peer in asked))
