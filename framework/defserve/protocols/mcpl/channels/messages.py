"""MCPL §14.2–14.3: channels, messages and receipts as authors see them; a type's functions, and who may use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, wraps
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from defserve.core.call import Call
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.core.shapes import (
    ANY_VALUE,
    BOOLEAN,
    OBJECT,
    TEXT,
    MemberKind,
    WireShape,
    bounded_text,
    one_of,
    wire_member,
    wire_shape,
)
from defserve.errors import BadArguments, InvalidParams, UsageError
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.content import (
    MAX_EVENT_ID_LENGTH,
    TAGS_KIND,
    Content,
    ContentInput,
    encode_mcpl_content,
    format_author_datetime,
    read_mcpl_content,
)
from defserve.protocols.mcpl.peers import CURRENT_CALL
from defserve.protocols.mcpl.scopes import find_label_permission, normalize_label

if TYPE_CHECKING:
    from defserve.protocols.mcpl.policies import FeaturePolicy
    from defserve.protocols.mcpl.section import FeatureSetBase


Direction = Literal["outbound", "inbound", "bidirectional"]
DIRECTIONS = ("outbound", "inbound", "bidirectional")
ADDRESS = replace(ANY_VALUE, write=partial(to_jsonable_python, by_alias=True, exclude_none=True))

# How many channels one session may open, and a host may list.
MAX_CHANNELS = 1_000


@wire_shape
class Channel(WireShape):
    """A destination of messages. `id` is unique within a server: `discord:acme/#general`.

    `label` is what people read; by default the id. `address` is what it was opened with (any model, or a mapping).
    `type` is the type of its `server.channels(…)`, unless the channel is somebody else's, such as the host's.
    """

    id: str = wire_member("id", TEXT)
    label: str = wire_member("label", TEXT, default="", lenient=True)
    direction: Direction = wire_member("direction", one_of(*DIRECTIONS), default="bidirectional", lenient=True)
    address: Any = wire_member("address", ADDRESS, default=None)
    metadata: Mapping[str, Any] | None = wire_member("metadata", OBJECT, default=None, lenient=True)
    type: str | None = wire_member("type", TEXT, default=None, lenient=True)

    def __post_init__(self) -> None:
        _need_text("Channel", id=self.id, label=self.label)
        if not self.id:
            raise UsageError("a channel has no id", fix='Channel("discord:#general", "#general")')
        if self.direction not in DIRECTIONS:
            raise UsageError(
                f"Channel({self.id!r}, direction={self.direction!r}) is not possible",
                fix=f"use one of {', '.join(DIRECTIONS)}",
            )
        try:
            to_jsonable_python((self.address, self.metadata))
        except ValueError as error:
            raise UsageError(
                f"Channel({self.id!r}): its address or metadata has no JSON form ({error})", fix="use plain values"
            ) from None

    def is_same_channel(self, named: Channel) -> bool:
        """Whether a channel that an author names is this one: by its id, and by its address if it has one.

        Two hosts may have opened different channels with one id: the address tells them apart. The rest describes it.
        """
        return self.id == named.id and named.address in (None, self.address)

    def to_json_value(self) -> list[Any]:
        """The channel as JSON, for another process."""
        address, metadata = to_jsonable_python((self.address, self.metadata), by_alias=True)
        return [self.id, self.label, self.direction, address, metadata, self.type]

    def describe(self, type: str) -> Params:
        """The descriptor (§14.2) of a channel that was declared with a type."""
        always = {"id": self.id, "type": type, "label": self.id, "direction": self.direction}
        return {**always, **self.to_wire(), "type": self.type or type}


def read_channel(found: Any) -> Channel:
    """A descriptor. Raises InvalidParams if it has no id; tolerates everything else."""
    if not is_object(found) or not found.get("id"):
        raise InvalidParams("Invalid params: a channel must be an object with an id")
    return Channel.from_wire(found)


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a message."""

    id: str
    name: str = ""

    def __post_init__(self) -> None:
        _need_text("Author", id=self.id, name=self.name)

    def to_wire(self) -> Params:
        """The author for the wire (§14). Without a name, the id is the name."""
        return {"id": self.id, "name": self.name or self.id}


def _read_author(value: Any) -> Author | None:
    has_id = is_object(value) and "id" in value
    return Author(str(value["id"]), str(value.get("name", ""))) if has_id else None


AUTHOR = MemberKind("an object", _read_author, lambda author: author.to_wire())
CONTENT_KIND = MemberKind("content", read_mcpl_content, encode_mcpl_content)


@wire_shape(kw_only=True)
class ChannelMessage(WireShape):
    """A message as it travels in `channels/incoming` (§14.3): what a server makes a `ReceivedMessage` of.

    `server_id` is the name by which the client knows the server.
    """

    channel_id: str = wire_member("channelId", TEXT)
    id: str = wire_member("messageId", bounded_text(MAX_EVENT_ID_LENGTH))
    thread_id: str | None = wire_member("threadId", TEXT, default=None, lenient=True)
    author: Author | None = wire_member("author", AUTHOR, default=None)
    timestamp: str = wire_member("timestamp", MemberKind("a string", str), default="")
    content: list[Content] | Any = wire_member("content", CONTENT_KIND)
    metadata: Mapping[str, Any] = wire_member("metadata", OBJECT, default_factory=dict, lenient=True, omit=False)
    tags: Sequence[str] = wire_member("tags", TAGS_KIND, default=())
    server_id: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One message that came in on a channel, given as a Channel or by its id.

    Use the service's own `id`, if it has one: a host then recognises a message that is delivered again. `tags` say
    what kind of message it is: `chat:mention`, `acme:priority=high`. Hosts below 0.5 are not sent them.
    """

    channel: Channel | str
    content: ContentInput
    author: Author | str
    id: str = field(default_factory=lambda: f"msg_{token_hex(12)}")
    thread: str | None = None
    timestamp: datetime | str | None = None
    metadata: Mapping[str, Any] | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.channel, Channel):
            _need_text("Message", channel=self.channel)
        if not isinstance(self.author, Author):
            _need_text("Message", author=self.author)
        _need_text("Message", id=self.id, thread="" if self.thread is None else self.thread)
        when: Any = self.timestamp
        if when is not None and not isinstance(when, datetime | str):
            raise UsageError(
                f"Message(timestamp={when!r:.80}) is not possible: it is a datetime, or text in ISO 8601",
                fix="for seconds since 1970: datetime.fromtimestamp(seconds, UTC)",
            )

    def to_json_value(self) -> list[Any]:
        """The message as JSON, for another process: its channel, and the rest as on the wire."""
        return [self.channel if isinstance(self.channel, str) else self.channel.to_json_value(), self.to_wire()]

    @classmethod
    def from_json_value(cls, channel: Channel | str, wire: Params) -> ReceivedMessage:
        """The message of `to_json_value`."""
        author = Author(wire["author"]["id"], wire["author"]["name"])
        optional = (wire.get("threadId"), wire["timestamp"], wire["metadata"], wire.get("tags", ()))
        return cls(channel, read_mcpl_content(wire["content"]), author, wire["messageId"], *optional)

    @property
    def channel_id(self) -> str:
        """The channel's id, however the channel was given."""
        return self.channel if isinstance(self.channel, str) else self.channel.id

    def to_wire(self, *, tags: bool = True) -> Params:
        """As in `channels/incoming`, with its tags or without. Raises UsageError for content that MCPL cannot carry."""
        message = ChannelMessage(
            channel_id=self.channel_id,
            id=self.id,
            thread_id=self.thread,
            author=self.author if isinstance(self.author, Author) else Author(self.author),
            timestamp=format_author_datetime(self.timestamp),
            content=self.content,
            metadata=self.metadata or {},
            tags=self.tags if tags else (),
        )
        return message.to_wire()


@dataclass(frozen=True, slots=True)
class ChannelHistory:
    """The latest messages of a channel, the oldest first. `truncated`: there are more before them."""

    messages: Sequence[ReceivedMessage]
    truncated: bool = False


@wire_shape
class MessageReceipt(WireShape):
    """What one host did with a message: whether it accepted it, in which conversation, or why it refused.

    `session` is the host's. `inbox` is the URI of the resource where the message waits, if it could not be sent.
    """

    message_id: str
    accepted: bool = wire_member("accepted", BOOLEAN, default=False, lenient=True)
    conversation_id: str | None = wire_member("conversationId", TEXT, default=None, lenient=True)
    reason: str | None = wire_member("reason", TEXT, default=None, lenient=True)
    session: Any = None
    inbox: str | None = None


def read_message_receipts(messages: list[Params], answer: Any, session: Any) -> list[MessageReceipt]:
    """One receipt per message, from a host's answer. A host that gives no details has accepted all of them."""
    ids: list[str] = [message["messageId"] for message in messages]
    results = answer.get("results") if is_object(answer) else None
    if not is_array(results):
        accepted = not is_object(answer) or answer.get("accepted") is not False
        return [MessageReceipt(id, accepted, session=session) for id in ids]
    named = [(result.get("messageId"), result) for result in results if is_object(result)]
    told: dict[str, Params] = {id: result for id, result in named if isinstance(id, str)}
    unmentioned = {"accepted": False, "reason": "the host did not mention it"}
    return [MessageReceipt.from_wire(told.get(id, unmentioned), message_id=id, session=session) for id in ids]


@wire_shape
class Delivery(WireShape):
    """Whether published content was delivered, and its message id."""

    delivered: bool = wire_member("delivered", BOOLEAN, default=False, lenient=True, omit=False)
    message_id: str | None = wire_member("messageId", TEXT, default=None, lenient=True)


@wire_shape
class Acknowledgement(WireShape):
    """Whether a message was marked, how the service shows that, or why not."""

    acknowledged: bool = wire_member("acknowledged", BOOLEAN, default=False, lenient=True, omit=False)
    representation: str | None = wire_member("representation", TEXT, default=None, lenient=True)
    reason: str | None = wire_member("reason", TEXT, default=None, lenient=True)


def _need_text(kind: str, **given: object) -> None:
    """Raises UsageError for a value that is not text: a host refuses everything that comes with it."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise UsageError(
                f"{kind}({name}={value!r:.80}) is not possible: {name} is text, and this is {type(value).__name__}",
                fix=f"{kind}({name}=str(…))",
            )


# -- Channels of one type as the other files here see them: their set, their functions, and who may use them.


# §14.5: the channel of the model's thoughts, which can only be observed; and the type that observes every channel.
THINKING_CHANNEL, ANY_CHANNEL = "thinking", "*"
OBSERVE_ONLY_CHANNELS = (THINKING_CHANNEL, ANY_CHANNEL)

# How many messages of its history a channel is opened with.
MAX_HISTORY_MESSAGES = 200
OBSERVING_VERBS = ("observe", "observe_chunks")

# The author's function for a verb → what its feature set does with it.
USES_BY_VERB: Mapping[str, tuple[str, ...]] = {
    "open": ("channels.lifecycle",),
    "close": ("channels.lifecycle",),
    "publish": ("channels.publish",),
    "observe": ("channels.streaming",),
    "observe_chunks": ("channels.streaming",),
    "acknowledge": ("channels.acknowledge",),
    "typing": ("channels.typing",),
    "history": ("channels.lifecycle",),
}


class ChannelTypeBase:
    """The part of a channel type that needs no other module; `ChannelType` adds the author's verbs."""

    def __init__(self, type: str, feature_set: FeatureSetBase) -> None:
        self.type, self.feature_set, self.owner = type, feature_set, feature_set.owner
        self.name = f"{type} channels"
        self.functions: dict[str, ChannelVerbFunction] = {}

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def uses(self) -> tuple[str, ...]:
        """What its feature set does with the type alone: every one may register channels and deliver messages."""
        return (
            ("channels.streaming",)
            if self.type in OBSERVE_ONLY_CHANNELS
            else ("channels.register", "channels.incoming")
        )

    @property
    def capabilities(self) -> Params:
        """What hosts may do with channels of this type, besides what every version has."""
        found: Params = {}
        if (history := self.functions.get("history")) is not None:
            found["history"] = {
                "maxMessages": MAX_HISTORY_MESSAGES,
                "supportsBeforeMessage": "before" in history.takes,
                "supportsSinceLastSeen": "since_last_seen" in history.takes,
            }
        if (acknowledge := self.functions.get("acknowledge")) is not None:
            found["acknowledgment"] = {"supportsValue": "value" in acknowledge.takes}
        return found

    def decode_channel(self, written: Any) -> Channel:
        """A channel that another process has opened. Its address has the form that the author's `open` takes."""
        id, label, direction, address, metadata, type = written
        opens = self.functions.get("open")
        if opens is not None and address is not None:
            with suppress(BadArguments):
                address = opens.validate_params({"address": address}).get("address", address)
        return Channel(id, label, direction=direction, address=address, metadata=metadata, type=type)

    def covers_id(self, id: str) -> bool:
        """Whether a channel that this server does not keep is of this type, going by its id."""
        return self.type in (ANY_CHANNEL, id) or id.startswith(f"{self.type}:")

    def is_permitted(self, policy: FeaturePolicy, label: str) -> bool:
        """Whether a host's scopes allow a channel (§14.5). The blacklist counts first."""
        lists = policy.find_scope_lists(self.feature_set.name)
        allowed = find_label_permission(lists, normalize_label(label))
        return not lists.whitelist if allowed is None else allowed


# -- MCPL §14.3: the author's functions for channels: which values each may take by name, and how it runs.


# Verb → the parameters its function may take, besides Context and dependencies.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "open": ("address", "metadata"),
    "close": ("channel",),
    "publish": ("channel", "content", "text", "conversation_id", "stream"),
    "observe": ("channel", "content", "text", "conversation_id", "inference_id"),
    "observe_chunks": ("channel", "delta", "index", "conversation_id", "inference_id"),
    "acknowledge": ("channel", "message_id", "intent", "value"),
    "typing": ("channel", "active", "metadata"),
    "history": ("channel", "limit", "before", "since_last_seen"),
}


@dataclass(slots=True, eq=False)
class BlockingOpenHandover:
    """What a blocking `open` returns in its thread, which nobody can stop. Given up, it goes to `orphaned` instead."""

    _lock: Lock = field(default_factory=Lock)
    _opened: Any = None
    _orphaned: Callable[[Any], None] | None = None

    def on_returned(self, opened: Any) -> None:
        with self._lock:
            self._opened, orphaned = opened, self._orphaned
        if orphaned is not None:
            orphaned(opened)

    def give_up(self, orphaned: Callable[[Any], None]) -> None:
        """Nobody waits for it any more. `orphaned` is called in any thread, at once or when the function returns."""
        with self._lock:
            self._orphaned, opened = orphaned, self._opened
        if opened is not None:
            orphaned(opened)


def _note_opened_channel(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(**kwargs: Any) -> Any:
        opened = function(**kwargs)
        if (call := CURRENT_CALL.get()) is not None:
            call.local(BlockingOpenHandover).on_returned(opened)
        return opened

    return run


class ChannelVerbFunction:
    """One function of a channel type. `scope` returns the label for an address, before the channel is opened."""

    __slots__ = ("function", "takes", "timeout", "scope")

    def __init__(
        self,
        verb: str,
        function: Callable[..., Any],
        find_provider: FindProvider,
        timeout: float | None,
        scope: Callable[[Any], str] | None,
    ) -> None:
        # The arguments of `open` come as JSON and are validated; the other functions get our own values.
        self.function = Function(function, find_provider, plain=verb != "open")
        self.timeout, self.scope = timeout, scope
        signature = self.function.signature
        self.takes = tuple(parameter.name for parameter in signature.parameters)
        if self.function.streams:
            raise UsageError(
                f"{signature.name}: a function for {verb} yields nothing", where=signature.where, fix="return a value"
            )
        for parameter in signature.parameters:
            if parameter.wire_name not in PARAMETERS[verb] and parameter.required:
                raise UsageError(
                    f"{signature.name}: {verb} has no value for the parameter {parameter.name!r}",
                    where=signature.where,
                    fix=f"take some of {', '.join(PARAMETERS[verb])}, Context and dependencies",
                )
        if verb == "open" and signature.flow == "sync":
            signature.function = _note_opened_channel(function)

    def validate_params(self, params: Params) -> dict[str, Any]:
        """The arguments of a function that takes JSON. Raises BadArguments."""
        taken = [parameter.wire_name for parameter in self.function.signature.parameters]
        return self.function.arguments.validate({name: params[name] for name in taken if params.get(name) is not None})

    async def run(self, call: Call, subject: Any, values: Mapping[str, Any]) -> Any:
        """Call it within `call`, with the values that it takes."""
        kwargs = {name: values[name] for name in self.takes if name in values}
        call.subject = subject
        token = CURRENT_CALL.set(call)
        try:
            return await self.function.run(call, kwargs, self.timeout or call.session.composition.limits.tool)
        finally:
            CURRENT_CALL.reset(token)
