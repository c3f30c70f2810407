"""MCPL §14: channels of one type, as their author declares and uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from defserve.binding.functions import name_of, where
from defserve.errors import UsageError
from defserve.protocols.mcpl.channels.handlers import ChannelFunction
from defserve.protocols.mcpl.channels.values import Channel, Message, MessageReceipt

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.channels import Channels
    from defserve.protocols.mcpl.feature_sets import FeatureSet
    from defserve.protocols.mcpl.peers import To

F = TypeVar("F", bound=Callable[..., Any])

# §14.5: what a model thinks, which may be watched and nothing else; and the channels of everybody.
THINKING, ANY = "thinking", "*"
WATCHED = (THINKING, ANY)
WATCHING = ("observe", "observe_chunks")


class Verb:
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

        def declare(function: F) -> F:
            self._kind.declare(self._verb, function, timeout, scope)
            return function

        return declare(function) if function is not None else declare


class ChannelType:
    """Channels of one type; made by `server.channels`.

    Those the author adds are shared by all hosts; one that a host opens is that session's, which alone can see, use
    and close it, and it is closed with the session. A host that closes a shared one closes it for itself.

    Functions take what they need by name, besides Context and dependencies:

    - `open(address, metadata)` gives a Channel; `address` is validated against its annotation. It raises
      ChannelOpenFailed with a reason for the host. `scope` gives the label of an address, so that a host's scopes
      are asked before anything is opened, and not only of the id it then has.
    - `close(channel)`, for what was opened. False leaves it open.
    - `publish(channel, content, text, conversation_id, stream)` gives the message's id. False says it is undelivered.
    - `observe(channel, content, text, conversation_id, inference_id)` sees what a host sends to a channel, and
      `observe_chunks(channel, delta, index, conversation_id, inference_id)` sees it grow. Channels of this type are
      seen, also those of the host's; all there are where the type is `*`, and the model's thoughts with `thinking`.
    """

    def __init__(self, section: Channels, type: str, feature_set: FeatureSet) -> None:
        self.type, self.feature_set = type, feature_set
        self.owner = section.mcpl.owner
        self.name = f"{type} channels"
        self.functions: dict[str, ChannelFunction] = {}
        self._section = section
        self.open = Verb(self, "open")
        self.close = Verb(self, "close")
        self.publish = Verb(self, "publish")
        self.observe = Verb(self, "observe")
        self.observe_chunks = Verb(self, "observe_chunks")

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def declare(
        self, verb: str, function: Callable[..., Any], timeout: float | None, scope: Callable[[Any], str] | None
    ) -> None:
        """Note the function for a verb. Raises UsageError for one that could not be it, and for a second one."""
        if verb in self.functions:
            raise UsageError(
                f"{self.name} have a function for {verb} already: {self.functions[verb].function.signature.name}",
                where=where(function),
                fix=f"declare {name_of(function)} on channels of another type",
            )
        if self.type in WATCHED and verb not in WATCHING:
            raise UsageError(
                f"{self.name} can only be observed, not {verb}", where=where(function), fix="use @….observe"
            )
        made = ChannelFunction(verb, function, self._section.mcpl.find_provider, timeout, scope)
        self.functions[verb] = made
        if verb == "publish":
            self.feature_set.use("channels.publish")

    def watches(self, id: str) -> bool:
        """Whether a channel that this server does not keep is of this type, going by its id."""
        return self.type in (ANY, id) or id.startswith(f"{self.type}:")

    # -- verbs -------------------------------------------------------------------------------------------

    def add(self, channel: Channel) -> None:
        """Offer a channel to all hosts, also while serving; they are told. From any thread."""
        if self.type in WATCHED:
            raise UsageError(f"{self.name} can only be observed", fix="declare channels of a type of your own")
        self._section.book.add(self, channel)

    def remove(self, id: str) -> None:
        """Take back a channel that was added; hosts are told. From any thread."""
        self._section.book.remove(self, id)

    def update(self, channel: Channel) -> None:
        """Describe a channel anew that was added or opened; the hosts that have it are told. From any thread."""
        self._section.book.update(self, channel)

    async def incoming(self, messages: Message | Sequence[Message], *, to: To = None) -> list[MessageReceipt]:
        """Deliver messages to whoever has their channels: one receipt each, in order.

        Inside a call or handler that is the session at hand. Outside, a message is for the only session that has its
        channel (for a Channel: that very one; for an id: any of that id); where several have it, `to` says which: a
        session, a principal, or `everyone`, then with a receipt from each. Raises AmbiguousPeer, FeatureDisabled,
        ChannelNotPermitted where the host's scopes forbid the channel, UnknownChannel, PeerError, and NoBackChannel
        where nobody can be told and the set has no `inbox`.
        """
        from defserve.protocols.mcpl.channels.incoming import Mailing

        given = [messages] if isinstance(messages, Message) else messages
        return await Mailing(self._section, self, given, to).deliver()

    async def host_channels(self, *, to: To = None) -> list[Channel]:
        """The channels that a host knows of, of whatever type and whosever. `to` as in `incoming`."""
        return await self._section.of_host(self, to)
