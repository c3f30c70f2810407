"""MCPL §14: channels of one type, as authors declare and use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from defserve.binding.functions import name_of, where
from defserve.errors import InvalidParams, PeerError, UsageError
from defserve.protocols.mcpl.channels.handlers import ChannelFunction
from defserve.protocols.mcpl.channels.kind import OBSERVED_ONLY, OBSERVING_VERBS, VERB_USES, ChannelKind
from defserve.protocols.mcpl.channels.values import MOST_CHANNELS, Channel, Message, MessageReceipt
from defserve.protocols.mcpl.feature import decorator
from defserve.protocols.mcpl.peers import To, addressed, everyone, find, obstacle, on_its_loop
from defserve.wire.jsonvalue import is_array, is_object

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.directory import ChannelDirectory
    from defserve.protocols.mcpl.feature import Feature

INCOMING = "incoming"
F = TypeVar("F", bound=Callable[..., Any])


class ChannelDecorator:
    """A decorator of a channel type: `@chat.publish`, `@chat.publish(timeout=5)`. Returns the function unchanged."""

    __slots__ = ("_kind", "_verb")

    def __init__(self, kind: ChannelType, verb: str) -> None:
        self._kind, self._verb = kind, verb

    # used bare: @chat.open
    @overload
    def __call__(self, function: F, /) -> F: ...
    # used with options: @chat.open(timeout=5)
    @overload
    def __call__(
        self, /, *, timeout: float | None = None, scope: Callable[[Any], str] | None = None
    ) -> Callable[[F], F]: ...
    def __call__(
        self, function: Any = None, /, *, timeout: float | None = None, scope: Callable[[Any], str] | None = None
    ) -> Any:
        if scope is not None and self._verb != "open":
            raise UsageError(f"{self._verb} needs no scope: a channel's id is its label", fix="leave scope= out")
        return decorator(function, lambda made: self._kind.declare(self._verb, made, timeout, scope))


class ChannelType(ChannelKind):
    """Channels of one type; made by `server.channels`.

    Channels that the author adds are shared by all hosts. A channel that a host opens belongs to its session: no other
    session can see, use or close it, and it is closed with the session. A host that closes a shared channel closes it
    for itself.

    Functions take what they need by name, besides Context and dependencies:

    - `open(address, metadata)` returns a Channel. `address` is validated against its annotation. Raise
      ChannelOpenFailed with a reason for the host. `scope` returns the label of an address, so that the host's scopes
      are checked before anything is opened, and not only with the id that the channel gets.
    - `close(channel)`, when a host closes a channel: one that it opened, or, for itself, a shared one. A channel that
      a host opened is closed with its session, too. False leaves it open.
    - `publish(channel, content, text, conversation_id, stream)` returns the message's id. False means undelivered.
    - `observe(channel, content, text, conversation_id, inference_id)` sees what a host sends to a channel, and
      `observe_chunks(channel, delta, index, conversation_id, inference_id)` sees it grow. They see channels of this
      type, including the host's own. The type `*` sees all channels, `thinking` the model's thoughts.
    - `history(channel, limit, before, since_last_seen)` returns the latest Messages of a channel that a host opens,
      the oldest first, or a ChannelHistory. `before` is the id of a message, `since_last_seen` a bool.
    - `acknowledge(channel, message_id, intent, value)` marks a message, such as with a reaction. It may return how the
      service shows that, as text. False means that it did not.
    - `typing(channel, active, metadata)` shows that the model writes, or has stopped.
    """

    def __init__(self, directory: ChannelDirectory, type: str, feature_set: Feature) -> None:
        super().__init__(type, feature_set)
        self._directory = directory
        self.open = ChannelDecorator(self, "open")
        self.close = ChannelDecorator(self, "close")
        self.publish = ChannelDecorator(self, "publish")
        self.observe = ChannelDecorator(self, "observe")
        self.observe_chunks = ChannelDecorator(self, "observe_chunks")
        self.acknowledge = ChannelDecorator(self, "acknowledge")
        self.typing = ChannelDecorator(self, "typing")
        self.history = ChannelDecorator(self, "history")

    def declare(
        self, verb: str, function: Callable[..., Any], timeout: float | None, scope: Callable[[Any], str] | None
    ) -> None:
        """Add the function for a verb. Raises UsageError for one that does not fit, and for a second one."""
        if verb in self.functions:
            raise UsageError(
                f"{self.name} have a function for {verb} already: {self.functions[verb].function.signature.name}",
                where=where(function),
                fix=f"declare {name_of(function)} on channels of another type",
            )
        if self.type in OBSERVED_ONLY and verb not in OBSERVING_VERBS:
            raise UsageError(
                f"{self.name} can only be observed, not {verb}", where=where(function), fix="use @….observe"
            )
        self.functions[verb] = ChannelFunction(verb, function, self._directory.server.find_provider, timeout, scope)
        self.feature_set.use(*VERB_USES.get(verb, ()))

    # -- verbs -------------------------------------------------------------------------------------------

    def add(self, channel: Channel) -> None:
        """Offer a channel to all hosts, also while serving. They are told. From any thread."""
        if self.type in OBSERVED_ONLY:
            raise UsageError(f"{self.name} can only be observed", fix="declare channels of a type of your own")
        self._directory.add(self, _checked(channel))

    def remove(self, id: str) -> None:
        """Take back a channel that was added. Hosts are told. From any thread."""
        self._directory.remove(self, id)

    def update(self, channel: Channel) -> None:
        """Change the description of a channel that was added or opened. Its hosts are told. From any thread."""
        self._directory.update(self, _checked(channel))

    async def incoming(self, messages: Message | Sequence[Message], *, to: To = None) -> list[MessageReceipt]:
        """Deliver messages to the hosts that have their channels. Returns one receipt each, in order.

        Inside a call or handler, that is its session. Outside, a message goes to the only session that has its channel
        (for a Channel with an address: the one with that address; else any channel with that id). If several have it,
        `to` says which: a session, a principal, or `everyone`, which returns a receipt from each. Raises AmbiguousPeer,
        FeatureDisabled, ChannelNotPermitted if the host's scopes forbid the channel, UnknownChannel, PeerError, and
        NoBackChannel if nobody can be reached and the set has no `inbox`.
        """
        from defserve.protocols.mcpl.channels.incoming import MessageDelivery

        given = [messages] if isinstance(messages, Message) else messages
        await find(self._directory.server, to)
        if to is everyone and (others := self._directory.server.others) is not None:
            others.publish(INCOMING, [self.type, [message.written() for message in given]])
        return await MessageDelivery(self._directory, self, given, to).deliver()

    async def host_channels(self, *, to: To = None) -> list[Channel]:
        """The channels that a host knows, of any type and any server. `to` as in `incoming`."""
        verb, told = "host_channels", list[Channel]()
        await find(self._directory.server, to)
        for peer in addressed(
            self._directory.server, verb, to, lambda peer: obstacle(peer, self.feature_set, verb, "channels.register")
        ):
            asking = peer.request("channels/list", {}, timeout=peer.session.composition.limits.callback)
            told += _channels_in(await on_its_loop(peer.session, asking))
        return told


def _checked(channel: object) -> Channel:
    if isinstance(channel, Channel):
        return channel
    fix = f'Channel("{channel}")' if isinstance(channel, str) else 'Channel("discord:#general", "#general")'
    raise UsageError(f"{channel!r:.80} is not a channel", fix=fix)


def _channels_in(answer: Any) -> list[Channel]:
    """A host's answer to `channels/list`. Raises PeerError for one that is no list of channels."""
    channels = answer.get("channels") if is_object(answer) else None
    try:
        if not is_array(channels):
            raise InvalidParams("channels must be a list")
        return [Channel.read(one) for one in channels[:MOST_CHANNELS]]
    except InvalidParams as error:
        raise PeerError(f"the host's answer to channels/list has the wrong shape: {error.message}", code=0) from None
