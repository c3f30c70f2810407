"""Which session a verb of a feature set speaks to: in a call or hook, its own; elsewhere, the one that `to=` names.

What the running code belongs to is noted in context variables. Hosts that take `notifications/claude/channel` instead
of requests are spoken to here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from defserve.auth.principals import ANONYMOUS_PREFIX
from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.messages import Notification, Params, RequestId
from defserve.core.peer import CURRENT_SENDER
from defserve.core.session import Session
from defserve.errors import MethodNotFound, NoBackChannel, PeerError, PeerGone, UsageError
from defserve.protocols.mcpl.policies import (
    ALL_ENABLED_POLICY,
    FeaturePolicy,
    McplTerms,
    get_feature_policy,
    get_mcpl_terms,
    is_anonymous_session,
)
from defserve.protocols.mcpl.vocabulary import AmbiguousPeer, UnknownFeatureSet

if TYPE_CHECKING:
    from defserve.core.composition import NegotiatedTerms
    from defserve.core.extension import Offer
    from defserve.core.peer import PeerIdentity
    from defserve.protocols.mcpl.section import FeatureSetBase, McplServerState


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
        self.terms: NegotiatedTerms | None = call.terms if call is not None else session.terms

    @property
    def live(self) -> McplTerms | None:
        """What was agreed; None if the host does not speak MCPL."""
        return get_mcpl_terms(self.terms)

    @property
    def policy(self) -> FeaturePolicy:
        if self.call is not None:
            return get_feature_policy(self.call)
        return self.live.policy if self.live is not None else ALL_ENABLED_POLICY

    @property
    def identity(self) -> PeerIdentity | None:
        """Who is spoken to: who made the call, also when it is over; else who opened the session."""
        return self.call.identity if self.call is not None else self.session.identity

    @property
    def calls_back(self) -> bool:
        return self.terms is not None and self.terms.profile.calls_back

    async def request(
        self,
        method: str,
        params: Params,
        *,
        timeout: float | None = None,
        numbered: Callable[[RequestId], None] | None = None,
    ) -> Any:
        """Ask the host. While a call waits for the answer, its own timeout is paused."""
        call = self.call if self.call is not None and not self.call.settled else None
        asking = self.session.request(
            method, params, relates_to=call, timeout=timeout, numbered=numbered, identity=self.identity
        )
        return await (call.wait_for_answer(asking) if call is not None else asking)

    async def request_or_raise_unsupported(
        self,
        path: str,
        method: str,
        params: Params,
        *,
        timeout: float | None = None,
        numbered: Callable[[RequestId], None] | None = None,
    ) -> Any:
        """Like `request`, for a capability that the host may not have. Raises NoBackChannel once it has said so."""
        try:
            return await self.request(method, params, timeout=timeout, numbered=numbered)
        except PeerError as error:
            if (
                error.code != MethodNotFound.code
                or self.live is None
                or not self.live.record_unsupported_capability(path)
            ):
                raise
            raise NoBackChannel(f"{method}: the host does not know it") from error


Obstacle: TypeAlias = Callable[[Peer], Exception | None]


def get_current_peer() -> Peer | None:
    """The peer that the running call, hook or source speaks to without `to=`."""
    if (call := CURRENT_CALL.get()) is not None:
        return Peer(call.session, call)
    session = SOURCE_SESSION.get()
    return Peer(session) if session is not None else None


def find_send_obstacle(peer: Peer, feature_set: FeatureSetBase, verb: str, path: str) -> Exception | None:
    """Why a set cannot speak to a host; None if it can. `path` is what the verb needs: `channels.incoming`."""
    session, live = peer.session, peer.live
    if feature_set.removed:
        return UnknownFeatureSet(feature_set.name)
    if session.closed:
        return PeerGone(f"{verb}: the peer has left")
    if (refusal := peer.policy.find_refusal(feature_set)) is not None:
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


def select_peers(server: McplServerState, verb: str, to: To, obstacle: Obstacle) -> list[Peer]:
    """The peers that a verb speaks to: exactly one, or for `everyone` all that can be reached, perhaps none.

    Raises the obstacle of the one peer that is meant (FeatureDisabled, NoBackChannel, PeerGone), AmbiguousPeer if
    several could be meant, and NoBackChannel with the reasons if nobody can be reached.
    """
    meant = Peer(to) if isinstance(to, Session) else get_current_peer() if to is None else None
    if meant is not None:
        if (problem := obstacle(meant)) is not None:
            raise problem
        return [meant]
    asked = [Peer(session) for session in _sessions(server, to)]
    found = [peer for peer in asked if obstacle(peer) is None]
    if to is everyone:
        return [peer for peer in found if is_session_owned_by_this_process(peer.session)]
    if len(found) > 1:
        raise AmbiguousPeer(verb, len(found))
    if not found:
        raise NoBackChannel(f"{verb}: {_why(asked, to, obstacle, verb)}")
    return found


async def load_sessions_elsewhere(server: McplServerState, to: To) -> None:
    """Get to know the sessions of a principal that other processes have opened, before it is spoken to."""
    if isinstance(to, str) and server.others is not None:
        await server.others.load_host_sessions(to)


def is_session_owned_by_this_process(session: Session) -> bool:
    """Whether this process does what concerns a session by itself. Of several that share it, one does."""
    return session.sharer is None or session.sharer.is_owner


async def run_on_session_loop(session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Run something on the session's event loop. One server may be served on several loops.

    On another loop it goes on to its end, even if the caller is cancelled meanwhile.
    """
    engine = session.engine
    if engine.is_on_loop():
        return await work
    import asyncio
    from concurrent.futures import Future

    done: Future[T] = Future()

    async def run() -> None:
        if not done.set_running_or_notify_cancel():
            work.close()
            return
        try:
            done.set_result(await work)
        except BaseException as error:
            done.set_exception(error)

    def begin() -> None:
        engine.spawn(run())

    if not engine.post_to_loop(begin):
        work.close()
        raise PeerGone("the peer has left")
    return await asyncio.wrap_future(done)


def check_use_declared(feature_set: FeatureSetBase, verb: str, use: str) -> None:
    """Raises UsageError if the set does not tell hosts that it uses this verb (§6.2)."""
    if use not in feature_set.uses:
        raise UsageError(
            f"{verb}: feature set {feature_set.name!r} does not tell hosts that it uses {use}",
            fix=f'server.feature_set("{feature_set.name}", …, uses=["{use}"])',
        )


def drop_unsupported_tags(peer: Peer, wire: Params) -> Params:
    """An event or message as this host reads it: hosts below 0.5 are not sent tags."""
    reads_tags = peer.live is not None and peer.live.vocabulary.tags
    return wire if reads_tags else {member: value for member, value in wire.items() if member != "tags"}


def can_reach_peer(peer: Peer, feature_set: FeatureSetBase, problem: Exception | None) -> bool:
    """Whether a set reaches a peer in spite of `problem`: directly if there is none, or through the set's inbox."""
    has_inbox = feature_set.inbox is not None and not is_anonymous_session(peer.session)
    return problem is None or (isinstance(problem, NoBackChannel) and has_inbox)


def find_inbox_principal(to: To) -> str | None:
    """The principal whose inbox a verb means; None if that is unknown. A stranger has none: others have its address."""
    if isinstance(to, str):
        return None if to.startswith(ANONYMOUS_PREFIX) else to
    meant = Peer(to) if isinstance(to, Session) else get_current_peer() if to is None else None
    return meant.session.principal if meant is not None and not is_anonymous_session(meant.session) else None


def _sessions(server: McplServerState, to: To) -> Iterable[Session]:
    if isinstance(to, str):
        return [session for session in server.sessions if session.principal == to]
    if to is None or to is everyone:
        return server.sessions
    raise UsageError(f"to={to!r} names nobody", fix="to=session, to=principal or to=everyone")


def _why(asked: list[Peer], to: To, obstacle: Obstacle, verb: str) -> str:
    if not asked:
        return f"{to} has no session here" if isinstance(to, str) else "nobody is connected"
    return "; ".join(dict.fromkeys(str(obstacle(peer)).removeprefix(f"{verb}: ") for peer in asked))


# -- What the running code belongs to: a call, a context hook, or a source of events.
#
# The verbs of a feature set read it to find the host they speak to.


class HookRun:
    """One run of a context hook. `running` is False once the hook has answered."""

    running = True


class DangerousToolMarker:
    """Says of a call that it is one of a dangerous tool, whatever the tool makes it read meanwhile.

    The subject of a call changes while a tool reads a resource. That its tool is dangerous does not.
    """


# The call that this code runs for.
CURRENT_CALL: ContextVar[Call | None] = ContextVar("defserve_call", default=None)

# The hook that this code was started in. A task that outlives its hook may infer (§10.7).
IN_HOOK: ContextVar[HookRun | None] = ContextVar("defserve_hook", default=None)

# The session that a source of events runs for. Outside any call, the source speaks to this session.
SOURCE_SESSION: ContextVar[Session | None] = ContextVar("defserve_source_session", default=None)


@contextmanager
def mark_running_hook() -> Generator[None]:
    """Around an author's context hook: `is_in_hook()` is True inside, and inference is refused (§10.7)."""
    run = HookRun()
    token = IN_HOOK.set(run)
    try:
        yield
    finally:
        run.running = False
        IN_HOOK.reset(token)


def is_in_hook() -> bool:
    """Whether this code runs in a context hook that has not answered yet."""
    run = IN_HOOK.get()
    return run is not None and run.running


def make_notification_call(session: Session, method: str, params: Params) -> Call | None:
    """A call for a notification, which gets no answer. None if the host did not negotiate MCPL."""
    import asyncio

    composition = session.composition
    offer = composition.offer_in(Notification(method, params, {}))
    terms = composition.negotiate_terms(offer) if offer is not None else session.terms
    if terms is None or get_mcpl_terms(terms) is None:
        return None
    call = Call(session, "", method, params, {}, terms)
    call.settled, call.task, call.identity = True, asyncio.current_task(), CURRENT_SENDER.get()
    return call


# -- `notifications/claude/channel`: events for hosts that take these instead of `push/event`, if a set opts in.
#
# The shape follows Claude Code's channels reference: `content` is text, `meta` holds texts under names that are
# identifiers. A notification has no answer, so an event that is sent this way counts as accepted.


CLAUDE_CAPABILITY = "claude/channel"
CLAUDE_METHOD = "notifications/claude/channel"

# clientInfo.name of hosts that take the notification from servers that advertise it, without an offer of their own.
CLAUDE_HOSTS = ("claude-code",)


def can_take_claude_channel(offer: Offer) -> bool:
    """Whether a host takes these notifications."""
    experimental = offer.capabilities.get("experimental")
    named = is_object(experimental) and CLAUDE_CAPABILITY in experimental
    return not offer.stateless and (named or offer.info.get("name") in CLAUDE_HOSTS)


def can_notify_claude(peer: Peer, feature_set: FeatureSetBase, problem: Exception | None) -> bool:
    """Whether the notification can be sent instead of a request, which `problem` prevents."""
    offer = peer.terms.offer if peer.terms is not None else None
    takes = peer.session.ready and not peer.session.closed and offer is not None and can_take_claude_channel(offer)
    return takes and feature_set.claude_channel and isinstance(problem, NoBackChannel)


def notify_claude(peer: Peer, event: Params) -> None:
    """Send an event, given as the params of `push/event`."""
    meta = {"event_id": event["eventId"], "feature_set": event["featureSet"], "timestamp": event["timestamp"]}
    origin: Mapping[str, Any] = event.get("origin", {})
    meta |= {name: str(value) for name, value in origin.items() if name.isidentifier() and isinstance(value, str | int)}
    text = "\n".join(
        block["text"] if block["type"] == "text" else f"[{block['type']}: {block.get('uri', block.get('mimeType'))}]"
        for block in event["payload"]["content"]
    )
    audience = (peer.identity,) if peer.identity is not None else None
    peer.session.notify(CLAUDE_METHOD, {"content": text, "meta": meta}, audience=audience)
