"""What MCPL's messages are made of, as authors see it and on the wire: content blocks, turns, push events, tags.

Content blocks (§10.3, appendix B.1) differ from MCP's. Four kinds: text, image, audio and resource.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from defserve.binding.content import Audio, ContentPart, Embedded, Image, Link, Text
from defserve.core.json_values import format_timestamp, is_array, is_mapping, is_object
from defserve.core.messages import Params
from defserve.core.shapes import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    TEXT,
    TEXT_LIST,
    MemberKind,
    WireShape,
    bounded_text,
    nested_shape,
    one_of,
    wire_member,
    wire_shape,
)
from defserve.errors import InvalidParams, PeerError, UsageError
from defserve.protocols.mcp.errors import read_text_param

if TYPE_CHECKING:
    from defserve.core.session import Session


Content: TypeAlias = Text | Image | Audio | Link
"""What a host sends. An image or audio given by its URI is a Link of the type `image/*` or `audio/*`."""

ContentInput: TypeAlias = str | ContentPart | Mapping[str, Any] | Sequence[str | ContentPart | Mapping[str, Any]]
"""What an author may send: a text, a part, a block written by hand, or several of them."""

MEDIA = ("image", "audio")


def encode_mcpl_content(value: ContentInput) -> list[Params]:
    """An author's value as content blocks. Raises UsageError for what MCPL cannot carry."""
    return [_block(item) for item in (value if is_array(value) else [value])]


def read_mcpl_content(value: Any) -> list[Content]:
    """What a host sent: a string or blocks. Raises InvalidParams for broken blocks.

    An unknown kind becomes a text that names it.
    """
    if isinstance(value, str):
        return [Text(value)]
    if not is_array(value):
        raise InvalidParams("Invalid params: content must be a string or a list of content blocks")
    return [_part(block) for block in value]


# -- out -------------------------------------------------------------------------------------------------
def _block(item: Any) -> Params:
    match item:
        case str():
            return {"type": "text", "text": item}
        case Text() | Embedded(text=str()):
            return {"type": "text", "text": item.text}
        case Link():
            family = (item.mime_type or "").partition("/")[0]
            return {"type": family if family in MEDIA else "resource", "uri": item.uri}
        case Image() | Audio() | Embedded():
            # The content itself, because a resource block holds only a URI.
            family = (item.mime_type or "").partition("/")[0]
            if family not in MEDIA:
                problem = f"MCPL has no block that holds {item.mime_type or 'bytes'}"
                raise UsageError(problem, fix="send a Link to it instead")
            data = b64encode(item.data or b"").decode("ascii")
            return {"type": family, "data": data, "mimeType": item.mime_type}
        case _ if is_mapping(item):
            return _by_hand(item)
        case _:
            raise UsageError(
                f"{item!r:.80} is not content", fix="give a str, Text, Image, Audio, File, Link or a content block"
            )


# The members that each kind of block may have. The first complete choice counts.
_MEMBERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "text": (("text",),),
    "image": (("data", "mimeType"), ("uri",)),
    "audio": (("data", "mimeType"), ("uri",)),
    "resource": (("uri",),),
}


def _by_hand(block: Mapping[str, Any]) -> Params:
    """The members of a block that MCPL knows. The others are dropped."""
    for members in _MEMBERS.get(block.get("type", ""), ()):
        if all(isinstance(block.get(member), str) for member in members):
            return {"type": block["type"], **{member: block[member] for member in members}}
    raise UsageError(
        f"{dict(block)!r:.80} is not a content block of MCPL",
        fix='write {"type": "text", "text": …}, {"type": "image", "uri": …} or {"type": "resource", "uri": …}',
    )


# -- in --------------------------------------------------------------------------------------------------
def _part(block: Any) -> Content:
    kind = block.get("type") if is_object(block) else None
    if not isinstance(kind, str):
        raise InvalidParams("Invalid params: a content block must be an object with a type")
    if (choices := _MEMBERS.get(kind)) is None:
        return Text(f"[content of type {kind:.40}]")
    for members in choices:
        if all(isinstance(block.get(member), str) for member in members):
            return _parse_known_block(kind, block, members)
    needed = " or ".join(map(" and ".join, choices))
    raise InvalidParams(f"Invalid params: a content block of type {kind} needs {needed}")


def _parse_known_block(kind: str, block: Params, members: tuple[str, ...]) -> Content:
    if kind == "text":
        return Text(block["text"])
    if members == ("uri",):
        return Link(block["uri"], mime_type=f"{kind}/*" if kind in MEDIA else None)
    try:
        made = Image if kind == "image" else Audio
        return made(b64decode(block["data"], validate=True), mime_type=block["mimeType"])
    except (NotBase64, TypeError, ValueError) as error:
        raise InvalidParams(f"Invalid params: {kind}: {error}") from None


# -- MCPL §10: a turn of a conversation as context hooks see it, and what hooks may return.


InjectionPosition = Literal["system", "beforeUser", "afterUser", "before_user", "after_user"]

# As authors may write it → as the wire has it.
INJECTION_POSITION_ALIASES: Mapping[str, str] = {
    "system": "system",
    "beforeUser": "beforeUser",
    "before_user": "beforeUser",
    "afterUser": "afterUser",
    "after_user": "afterUser",
}


# -- what a host says ------------------------------------------------------------------------------------
TEXT_OR_NULL = replace(TEXT, description="a string or null")
PHASE = replace(one_of("completed", "aborted", "failed"), description="one of started, completed, aborted, failed")


def _read_channel_id(value: Any) -> str:
    if not is_object(value):
        raise ValueError
    return read_text_param(value, "channelId")


CHANNEL_ID = MemberKind("an object", _read_channel_id, lambda id: {"channelId": id})


@wire_shape
class ModelInfo(WireShape):
    """The model at work (§12.2). What a host leaves out, or says in another form, stays empty."""

    id: str = wire_member("id", TEXT, default="", lenient=True, omit=False)
    vendor: str = wire_member("vendor", TEXT, default="", lenient=True, omit=False)
    context_window: int | None = wire_member("contextWindow", INTEGER, default=None, lenient=True)
    capabilities: tuple[str, ...] = wire_member("capabilities", TEXT_LIST, default=(), lenient=True, omit=False)
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


@wire_shape
class Usage(WireShape):
    """Tokens spent; zero for what a host does not report."""

    input_tokens: int = wire_member("inputTokens", INTEGER, default=0, lenient=True, omit=False)
    output_tokens: int = wire_member("outputTokens", INTEGER, default=0, lenient=True, omit=False)


@wire_shape
class IncomingMessage(WireShape):
    """The message of a channel that this turn answers."""

    channel_id: str = wire_member("channelId", TEXT)
    message_id: str | None = wire_member("messageId", TEXT, default=None)
    thread_id: str | None = wire_member("threadId", TEXT, default=None)


@wire_shape
class TurnChannels(WireShape):
    """Where a turn comes from and where its answer may go (§14.4)."""

    incoming: IncomingMessage | None = wire_member("incoming", nested_shape(IncomingMessage), default=None)
    default_outgoing: str | None = wire_member("defaultOutgoing", CHANNEL_ID, default=None)
    candidates: tuple[str, ...] = wire_member("candidates", TEXT_LIST, default=(), lenient=True)


@wire_shape(kw_only=True)
class Turn(WireShape):
    """A turn whose inference is about to begin. `user_message` is None if the model continues by itself."""

    inference_id: str = wire_member("inferenceId", TEXT)
    conversation_id: str = wire_member("conversationId", TEXT, default="", omit=False)
    turn_index: int = wire_member("turnIndex", INTEGER, default=0, omit=False)
    user_message: str | None = wire_member("userMessage", TEXT_OR_NULL, default=None, omit=False)
    model: ModelInfo | None = wire_member("model", nested_shape(ModelInfo), default=None)
    channels: TurnChannels | None = wire_member("channels", nested_shape(TurnChannels), default=None, lenient=True)
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


@wire_shape(kw_only=True)
class FinishedTurn(Turn):
    """A turn that the model has answered."""

    assistant_message: str = wire_member("assistantMessage", TEXT)
    usage: Usage | None = wire_member("usage", nested_shape(Usage), default=None)


@wire_shape(kw_only=True)
class InferenceEnd(WireShape):
    """An inference that has ended: which one, how, and what it cost. It has no text.

    `phase` is `completed`, `aborted` or `failed`. Hosts below 0.5 only tell of completed ones.
    """

    inference_id: str = wire_member("inferenceId", TEXT)
    conversation_id: str = wire_member("conversationId", TEXT, default="", omit=False)
    turn_index: int = wire_member("turnIndex", INTEGER, default=0, omit=False)
    phase: Literal["completed", "aborted", "failed"] = wire_member("phase", PHASE, default="completed", omit=False)
    model: ModelInfo | None = wire_member("model", nested_shape(ModelInfo), default=None)
    usage: Usage | None = wire_member("usage", nested_shape(Usage), default=None)
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    @classmethod
    def from_wire(cls, value: Mapping[str, Any], **own: Any) -> Self:
        """The params of `inference/lifecycle`, or of `context/afterInference`, which has no phase."""
        end = super().from_wire(value, **own)
        return end if end.phase == "completed" else replace(end, usage=None)


# -- what a hook returns ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Injection:
    """Text for the model to read (§10.4).

    Without a `position` it goes to the first that its hook declares. If the hook declares none, that is `system` with
    hosts of 0.4 and `before_user` with hosts of 0.5, which usually deny `system`. `namespace` is by default the first
    segment of the feature set's name.
    """

    content: ContentInput
    position: InjectionPosition | None = None
    namespace: str | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.position is not None and self.position not in INJECTION_POSITION_ALIASES:
            raise UsageError(
                f"Injection(position={self.position!r}) is not possible", fix="use system, before_user or after_user"
            )

    def to_wire(self, namespace: str, position: str = "system") -> Params:
        """The injection for the wire (§10.4). `namespace` and `position`, as on the wire, are for one that has none."""
        described: Params = {
            "namespace": self.namespace or namespace,
            "position": INJECTION_POSITION_ALIASES[self.position] if self.position is not None else position,
            "content": encode_mcpl_content(self.content),
        }
        if self.metadata:
            described["metadata"] = dict(self.metadata)
        return described


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Another text for the model's answer, and metadata about the change."""

    text: str
    metadata: Mapping[str, Any] | None = None


# -- MCPL §9.2–9.3: push events and receipts, as authors see them and on the wire.


PUSH_METHOD = "push/event"


@dataclass(frozen=True, slots=True)
class Event:
    """What an event source yields. With an `id`, an event that is yielded again counts once.

    `tags` say what kind of event it is: `chat:mention`, `acme:priority=high`. Hosts below 0.5 are not sent them. In a
    source that runs for everyone, `to` names the one principal who gets the event.
    """

    content: Any
    id: str | None = None
    origin: Mapping[str, Any] | None = None
    timestamp: datetime | str | None = None
    to: str | None = None
    tags: Sequence[str] = ()


@wire_shape
class Receipt(WireShape):
    """What one host did with an event: whether it accepted it, the inference it began, or why it refused.

    `inbox` is the URI of the resource where the event waits, if it could not be sent.
    """

    event_id: str
    accepted: bool = wire_member("accepted", BOOLEAN, default=False, lenient=True)
    inference_id: str | None = wire_member("inferenceId", TEXT, default=None, lenient=True)
    reason: str | None = wire_member("reason", TEXT, default=None, lenient=True)
    session: Session | None = None
    inbox: str | None = None

    @classmethod
    def from_answer(cls, event_id: str, answer: Any, session: Session) -> Receipt:
        """A host's answer to `push/event`. Raises PeerError for one that is not an object."""
        if not is_object(answer):
            raise PeerError(f"the host's answer to {PUSH_METHOD} has the wrong shape", code=0)
        return cls.from_wire(answer, event_id=event_id, session=session)


def encode_receipt_for_process(receipt: Receipt) -> str:
    """A receipt as JSON, for another process."""
    return json.dumps([receipt.event_id, receipt.accepted, receipt.inference_id, receipt.reason])


def decode_receipt_of_process(text: str, session: Session) -> Receipt:
    """The receipt of a text that `encode_receipt_for_process` wrote."""
    return Receipt(*json.loads(text), session=session)


def _read_payload(value: Any) -> list[Content]:
    if not is_object(value) or value.get("content") is None:
        raise InvalidParams("Invalid params: payload.content is missing")
    return read_mcpl_content(value["content"])


MAX_EVENT_ID_LENGTH: Final = 1_024
EVENT_ID_KIND = bounded_text(MAX_EVENT_ID_LENGTH)
PAYLOAD = MemberKind("an object", _read_payload, lambda content: {"content": encode_mcpl_content(content)})
TAGS_KIND = MemberKind("a list", lambda value: read_tags(value), lambda tags: add_implied_tags(check_tags(tags)))


@wire_shape(kw_only=True)
class PushedEvent(WireShape):
    """The params of `push/event` (§9.2): what a server sends for an `Event`, and what a client gets.

    `server_id` is the name by which the client knows the server.
    """

    feature_set: str = wire_member("featureSet", TEXT)
    id: str = wire_member("eventId", EVENT_ID_KIND)
    timestamp: str = wire_member("timestamp", TEXT)
    origin: Mapping[str, Any] = wire_member("origin", OBJECT, default_factory=dict, lenient=True)
    tags: Sequence[str] = wire_member("tags", TAGS_KIND, default=())
    content: list[Content] | Any = wire_member("payload", PAYLOAD)
    server_id: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


def encode_push_event(name: str, event: Event) -> Params:
    """An author's event for the wire, for a feature set's name. Raises UsageError for a broken event."""
    id: Any = event.id if event.id is not None else new_event_id()
    if not isinstance(id, str) or not id:
        raise UsageError(f"push: id={id!r} is not a text", fix='give the event a stable name: id="evt_1"')
    if event.origin is not None and not is_mapping(event.origin):
        raise UsageError(f"push: origin={event.origin!r} is not a mapping", fix='origin={"memoryId": "m1"}')
    pushed = PushedEvent(
        feature_set=name,
        id=id,
        timestamp=format_author_datetime(event.timestamp),
        origin=event.origin or {},
        tags=event.tags,
        content=event.content,
    )
    return pushed.to_wire()


_HEX = frozenset("0123456789abcdef")


def new_event_id() -> str:
    import secrets

    return f"evt_{secrets.token_hex(12)}"


def is_generated_event_id(id: str) -> bool:
    """Whether an id has the form of those that are made here: no event has it twice."""
    return len(id) == 28 and id.startswith("evt_") and not set(id[4:]) - _HEX


# -- MCPL 0.5 §9: tags of events and messages: `ns:value` or `ns:key=value`. They describe; they permit nothing.


MAX_TAGS: Final = 100
MAX_TAG_LENGTH: Final = 256

CHAT_TAGS: Final = frozenset(
    """addressed mention reply dm ambient broadcast to-self from-human from-bot from-self from-agent edited deleted
    reaction reaction-remove has-image has-audio has-file has-link command private group thread""".split()
)
RESERVED: Final = ("chat", "mcpl")

# A tag → the tags that follow from it.
IMPLIED: Final[Mapping[str, tuple[str, ...]]] = {
    "chat:mention": ("chat:addressed",),
    "chat:reply": ("chat:addressed",),
    "chat:dm": ("chat:addressed", "chat:private"),
}

_TAG: Final = re.compile(r"([A-Za-z0-9._*-]+):([A-Za-z0-9._:*-]+)(=[^\s=]+)?")


def check_tags(tags: Iterable[str]) -> list[str]:
    """An author's tags, each once. Raises UsageError for what is not a tag, and for names that are reserved."""
    given: Any = tags
    if isinstance(given, str) or not all(isinstance(tag, str) for tag in given):
        raise UsageError(f"tags={given!r:.80} is not a list of texts", fix='tags=["chat:mention"]')
    found = list(dict.fromkeys(given))
    for tag in found:
        match = _TAG.fullmatch(tag)
        if match is None or len(tag) > MAX_TAG_LENGTH:
            raise UsageError(f"{tag!r:.80} cannot be a tag", fix="write namespace:value or namespace:key=value")
        if match[1] in RESERVED and not (match[1] == "chat" and tag.removeprefix("chat:") in CHAT_TAGS):
            raise UsageError(f"tag {tag!r}: the namespace {match[1]!r} is reserved", fix="use a namespace of your own")
    if len(found) > MAX_TAGS:
        raise UsageError(f"{len(found)} tags are too many", fix=f"give at most {MAX_TAGS}")
    return found


def add_implied_tags(tags: Iterable[str]) -> list[str]:
    """The tags with those that follow from them. What is addressed is not ambient."""
    found = dict.fromkeys(tags)
    for tag in list(found):
        found.update(dict.fromkeys(IMPLIED.get(tag, ())))
    if "chat:addressed" in found:
        found.pop("chat:ambient", None)
    return list(found)


def read_tags(value: Any) -> tuple[str, ...]:
    """The tags that a server sent, with those that follow from them. What is not a tag is left out."""
    given = value[:MAX_TAGS] if is_array(value) else ()
    known = (tag for tag in given if isinstance(tag, str) and len(tag) <= MAX_TAG_LENGTH and _TAG.fullmatch(tag))
    return tuple(add_implied_tags(known))


# -- MCPL §9.2, §14.3: instants on the wire, ISO 8601 in UTC with `Z`.


def format_author_datetime(when: datetime | str | None = None) -> str:
    """An instant that an author gives, in the form of the wire. None is now. Raises UsageError."""
    if when is None:
        when = datetime.now(UTC)
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            raise UsageError(f"timestamp {when!r} is not ISO 8601", fix='write "2026-01-23T10:30:00Z"') from None
    try:
        return format_timestamp(when)
    except OverflowError:
        raise UsageError(f"timestamp {when} is in no year from 1 to 9999 in UTC", fix="give another time") from None
