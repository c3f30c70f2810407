"""MCPL §14.3: what hosts do with channels: list, open, close and publish, and let them be observed.

What a host opens belongs to its session. Without a session, only shared channels can be opened, published to and
listed. What concerns one channel is done one at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from defserve.base.redaction import get_logger
from defserve.core.call import Call
from defserve.core.extension import Handler, Listener
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.core.peer import mask_unexpected_error
from defserve.core.session import Session
from defserve.core.shapes import INTEGER, OBJECT, TEXT, one_of, read_member, restrict_kind
from defserve.errors import InvalidParams, PeerError, Refused, ToolError, UsageError
from defserve.protocols.mcp.errors import read_text_param
from defserve.protocols.mcpl import content, peers
from defserve.protocols.mcpl.channels.directory import (
    ChannelDirectory,
    ChannelType,
    DeclaredChannel,
    MessageDelivery,
    SessionChannels,
    find_channel_by_address,
    get_session_channels,
)
from defserve.protocols.mcpl.channels.messages import (
    MAX_CHANNELS,
    MAX_HISTORY_MESSAGES,
    OBSERVING_VERBS,
    THINKING_CHANNEL,
    Acknowledgement,
    BlockingOpenHandover,
    Channel,
    ChannelHistory,
    ChannelTypeBase,
    ChannelVerbFunction,
    Delivery,
    ReceivedMessage,
)
from defserve.protocols.mcpl.peers import make_notification_call
from defserve.protocols.mcpl.policies import get_feature_policy, get_mcpl_vocabulary
from defserve.protocols.mcpl.section import McplSection, McplServerState
from defserve.protocols.mcpl.vocabulary import ChannelNotPermitted, ChannelOpenFailed, McplRefusal, UnknownChannel

if TYPE_CHECKING:
    from defserve.protocols.mcpl.section import FeatureSetBase


class ChannelSection(McplSection):
    """The channels of a server."""

    def __init__(self, server: McplServerState) -> None:
        super().__init__(server)
        self.directory = ChannelDirectory(server)

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(self, type: str, feature_set: FeatureSetBase) -> ChannelType:
        """Declare channels of a type. Raises UsageError if the type exists already, or the set is another server's."""
        if not type:
            raise UsageError("channels have no type", fix='server.channels("discord", feature_set=…)')
        if feature_set.owner is not self.server.owner:
            raise UsageError(
                f"channels {type!r}: feature set {feature_set.name!r} belongs to another server",
                fix="declare both on one server",
            )
        made = ChannelType(self.directory, type, feature_set)
        self.directory.types.add(type, made)
        feature_set.record_declaration(*made.uses)
        return made

    def capability(self) -> Params:
        """What is advertised (§14.1)."""
        declared = {verb for kind in self.directory.types for verb in kind.functions}
        return {
            "register": True,
            "publish": "publish" in declared,
            "observe": not declared.isdisjoint(OBSERVING_VERBS),
            "lifecycle": "open" in declared,
            "streaming": "observe_chunks" in declared,
        }

    # -- sessions and sets -------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {
            "channels/list": self.list_channels,
            "channels/open": self.open,
            "channels/close": self.close,
            "channels/publish": self.publish,
            "channels/acknowledge": self.acknowledge,
        }

    def notifications(self) -> Mapping[str, Listener]:
        typing = partial(_run_unanswered, "channels/typing", self.show_typing)
        chunk, complete = "channels/outgoing/chunk", "channels/outgoing/complete"
        return {
            "channels/publish": partial(_run_unanswered, "channels/publish", self.publish),
            "channels/typing": typing,
            "notifications/typing": typing,
            chunk: partial(_run_unanswered, chunk, partial(self._run_observers, "observe_chunks")),
            complete: partial(_run_unanswered, complete, partial(self._run_observers, "observe")),
        }

    def session_changed(self, session: Session) -> None:
        self.directory.notify_host(session)

    def on_feature_set_removed(self, feature_set: FeatureSetBase) -> None:
        self.server.for_each_session(partial(self._close_gone, gone=self.directory.drop_feature_set_types(feature_set)))

    def _close_gone(self, session: Session, gone: list[ChannelTypeBase]) -> None:
        if (view := session.peek(SessionChannels)) is not None:
            self._close_soon(session, [held for held in view.opened.values() if held.kind in gone])
            self.directory.notify_host(session)

    def session_closed(self, session: Session) -> None:
        view, goes_on = session.peek(SessionChannels), session.sharer is not None and session.sharer.goes_on
        if view is not None and session.engine.ready and not goes_on:
            self._close_soon(session, list(view.opened.values()))

    def export_state(self, session: Session) -> Params:
        """The channels of a session, for another process."""
        view = session.peek(SessionChannels)
        return view.export_state() if view is not None else {}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has `kept`."""
        self.directory.import_state(session, kept)

    async def deliver_published(self, value: Any, only: Session | None) -> None:
        """Another process has messages for everyone: the sessions that this one owns get them, or `only` one."""
        type, written = value
        if (kind := self.directory.types.get(type)) is not None:
            messages = [
                ReceivedMessage.from_json_value(found if isinstance(found, str) else kind.decode_channel(found), wire)
                for found, wire in written
            ]
            # One host alone may not want them, which is no fault of anybody.
            with suppress(Refused, PeerError) if only is not None else nullcontext():
                await MessageDelivery(self.directory, kind, messages, only or peers.everyone).deliver()

    def _close_soon(self, session: Session, opened: list[DeclaredChannel]) -> None:
        if opened:
            for held in opened:
                session.local(SessionChannels).opened.pop(held.channel.id)
            session.engine.spawn(self._close_all(session, opened))

    def _close_apart(self, session: Session, held: DeclaredChannel) -> None:
        session.engine.spawn(self._close_all(session, [held]))

    async def _close_all(self, session: Session, opened: list[DeclaredChannel]) -> None:
        for held in opened:
            call = make_notification_call(session, "channels/close", {"channelId": held.channel.id})
            if call is not None:
                try:
                    await self._run_close(call, held)
                except Exception as error:
                    _log_failure(call, error)

    # -- rights ------------------------------------------------------------------------------------------

    def _usable(self, call: Call, id: str, *, even_closed: bool = False) -> DeclaredChannel:
        """A channel that the host may use. Raises the reason if it may not."""
        if _is_thinking(id):
            raise ChannelNotPermitted(id)  # §14.5: it can only be observed
        held = self.directory.find_channel(get_session_channels(call), id, even_closed=even_closed)
        if held is None:
            raise UnknownChannel(id)
        held.kind.feature_set.require_enabled(call)
        if not held.kind.is_permitted(get_feature_policy(call), id):
            raise ChannelNotPermitted(id)
        return held

    def can_deliver(self, peer: peers.Peer) -> bool:
        """Whether messages of some type can reach this peer, directly or through an inbox."""
        sets = [kind.feature_set for kind in self.directory.types]
        return any(
            peers.can_reach_peer(peer, one, peers.find_send_obstacle(peer, one, "incoming", "channels.incoming"))
            for one in sets
        )

    # -- listing and opening -----------------------------------------------------------------------------

    async def list_channels(self, call: Call, params: Params) -> Params:
        """`channels/list`: what this host has."""
        return {
            "channels": list(
                self.directory.describe_channels(get_session_channels(call), get_feature_policy(call)).values()
            )
        }

    async def open(self, call: Call, params: Params) -> Params:
        """`channels/open`: an existing channel by its id, or one by type and address. The id wins.

        It may be repeated: a channel that is open already is returned. If its history cannot be read, nothing is
        opened.
        """
        async with call.session.local(ChannelQueues).wait_for_turn(("open", self._opening_key(call, params))):
            held, is_new = await self._find_or_open(call, params)
            try:
                history = await read_history(call, held, params.get("history"))
            except BaseException:
                if is_new:
                    await self._run_close(call, held)
                raise
            if (view := get_session_channels(call)) is None:
                return {"channel": held.to_wire(), **history}
            if is_new:
                view.opened[held.channel.id] = held
            view.closed.discard(held.channel.id)
            call.session.mark_dirty()
            return {"channel": view.describe_and_mark_told(held), **history}

    def _opening_key(self, call: Call, params: Params) -> str:
        """The same for requests that open or close the same channel."""
        view, id = get_session_channels(call), params.get("channelId")
        held = None
        if isinstance(id, str):
            held = (view and view.closing.get(id)) or self.directory.find_channel(view, id, even_closed=True)
        type = held.kind.type if held else params.get("type")
        address = (held.to_wire() if held else params).get("address")
        return repr((type, id if address is None else json.dumps(address, sort_keys=True)))

    async def _find_or_open(self, call: Call, params: Params) -> tuple[DeclaredChannel, bool]:
        """The channel to open, and whether it was opened just now. Raises the reason if there is none."""
        view, id = (
            get_session_channels(call),
            read_text_param(params, "channelId") if params.get("channelId") is not None else None,
        )
        is_known = id is not None and self.directory.find_channel(view, id, even_closed=True) is not None
        if id is not None and (is_known or params.get("type") is None):
            return self._usable(call, id, even_closed=True), False
        if (kind := self.directory.types.get(read_text_param(params, "type"))) is None:
            raise ChannelOpenFailed(f"there are no channels of type {params['type']!r:.80}")
        kind.feature_set.require_enabled(call)
        address = params.get("address")
        there = find_channel_by_address(self.directory.shared, kind, address)
        there = there or (view and find_channel_by_address(view.opened.values(), kind, address))
        if there and id in (None, there.channel.id):
            return self._usable(call, there.channel.id, even_closed=True), False
        if view is None:
            raise ChannelOpenFailed("without a session only the channels in channels/list can be used")
        if len(view.opened) >= MAX_CHANNELS:
            raise ChannelOpenFailed(f"a session has at most {MAX_CHANNELS} channels open")
        held = DeclaredChannel(kind, await self._open_channel(call, kind, params))
        await self._check_opened(call, held)
        if id not in (None, held.channel.id):
            await self._run_close(call, held)
            raise UnknownChannel(str(id))
        return held, True

    async def _open_channel(self, call: Call, kind: ChannelTypeBase, params: Params) -> Channel:
        """What the author's function opened. Raises ChannelOpenFailed with a reason for the host."""
        if (function := kind.functions.get("open")) is None:
            raise ChannelOpenFailed(f"{kind.name} cannot be opened")
        try:
            values = function.validate_params(params)
            if function.scope is not None:
                label = function.scope(values.get("address"))
                if not kind.is_permitted(get_feature_policy(call), label):
                    raise ChannelNotPermitted(label)
            channel = await self._run_open(call, kind, function, values)
            if not isinstance(channel, Channel):
                raise TypeError(f"{function.function.signature.name} gave {channel!r:.80}, not a Channel")
        except McplRefusal:
            raise
        except (ToolError, Refused, PeerError) as error:
            raise ChannelOpenFailed(error.message) from error
        except Exception as error:
            raise ChannelOpenFailed(mask_unexpected_error(call, error)) from error
        return channel

    async def _run_open(
        self, call: Call, kind: ChannelTypeBase, function: ChannelVerbFunction, values: dict[str, Any]
    ) -> Any:
        """Run the author's `open`. What a blocking one opens for a host that does not wait any more is closed again."""
        blocking = call.local(BlockingOpenHandover)

        def close_orphan(opened: Any) -> None:
            if isinstance(opened, Channel):
                call.engine.post_to_loop(partial(self._close_apart, call.session, DeclaredChannel(kind, opened)))

        try:
            return await function.run(call, kind, values)
        except BaseException:
            blocking.give_up(close_orphan)
            raise

    async def _check_opened(self, call: Call, held: DeclaredChannel) -> None:
        """Close the channel again if the host may not have it. Only an opened channel has an id to check."""
        id, kind = held.channel.id, held.kind
        permitted = kind.is_permitted(get_feature_policy(call), id) and not _is_thinking(id)
        if permitted and kind.feature_set.is_enabled(call):
            return
        await self._run_close(call, held)
        kind.feature_set.require_enabled(call)
        raise ChannelNotPermitted(id)

    # -- closing -----------------------------------------------------------------------------------------

    async def close(self, call: Call, params: Params) -> Params:
        """`channels/close`. A shared channel is closed for this host only."""
        id, view = read_text_param(params, "channelId"), get_session_channels(call)
        async with call.session.local(ChannelQueues).wait_for_turn(("open", self._opening_key(call, params))):
            if (held := self.directory.find_channel(view, id)) is None:
                raise UnknownChannel(id)
            held.kind.feature_set.require_enabled(call)
            close = self._close_opened if view is not None and id in view.opened else self._close_shared
            if view is None or not await close(call, view, held):
                return {"closed": False}
            view.opened.pop(id, None)  # another process may have told of it again, before it knows that it is closed
            view.told.pop(id, None)
            if id in self.directory.shared:
                view.closed.add(id)
            call.session.mark_dirty()
            return {"closed": True}

    async def _close_opened(self, call: Call, view: SessionChannels, held: DeclaredChannel) -> bool:
        """Run the author's `close` once and to its end, even if the host leaves. False: the channel stays open."""
        view.closing[held.channel.id] = view.opened.pop(held.channel.id)
        return await self._to_its_end(call, self._finish_close(call.session, view, held))

    async def _close_shared(self, call: Call, view: SessionChannels, held: DeclaredChannel) -> bool:
        """The same for a channel that all hosts share: it stays there for the others."""
        return await self._to_its_end(call, self._run_own_close(call.session, held))

    async def _to_its_end(self, call: Call, work: Coroutine[Any, Any, bool]) -> bool:
        closing = cast("asyncio.Task[bool]", call.engine.spawn(work))
        try:
            await asyncio.wait((closing,))
        except asyncio.CancelledError:
            await asyncio.wait((closing,))  # whoever opens it next has to wait
            if isinstance(error := closing.exception(), Exception):
                _log_failure(call, error)
            raise
        return closing.result()

    async def _finish_close(self, session: Session, view: SessionChannels, held: DeclaredChannel) -> bool:
        id, is_closed = held.channel.id, False
        try:
            is_closed = await self._run_own_close(session, held)
        finally:
            del view.closing[id]
            if not is_closed and not session.closed:
                view.opened[id] = held
                if id not in view.told:  # the host may have been told meanwhile that it is gone
                    self.directory.notify_host(session)
        return is_closed

    async def _run_own_close(self, session: Session, held: DeclaredChannel) -> bool:
        """Run the author's `close` in a call of its own: that of the host may be cancelled. False leaves it open."""
        call = make_notification_call(session, "channels/close", {"channelId": held.channel.id})
        return call is None or await self._run_close(call, held) is not False

    async def _run_close(self, call: Call, held: DeclaredChannel) -> Any:
        function = held.kind.functions.get("close")
        return await function.run(call, held.kind, {"channel": held.channel}) if function is not None else None

    # -- publishing --------------------------------------------------------------------------------------

    async def publish(self, call: Call, params: Params) -> Params:
        """`channels/publish`. The answer comes after the author's function has delivered the message."""
        id = read_text_param(params, "channelId")
        async with call.session.local(ChannelQueues).wait_for_turn(("publish", id)):
            held = self._usable(call, id)
            function = held.kind.functions.get("publish")
            if function is None or held.channel.direction == "inbound":
                raise ChannelNotPermitted(id)
            values = _content(held.channel, params) | {"stream": params.get("stream") is True}
            outcome = await function.run(call, held.kind, values)
        if outcome is None or isinstance(outcome, bool):
            return Delivery(outcome is not False).to_wire()
        if isinstance(outcome, str | int):
            return Delivery(True, str(outcome)).to_wire()
        # The message is out, so the host must not be told that it failed.
        get_logger().warning(
            "%s: %s gave %.80r, which is no id: return the message's id as text",
            call.title, function.function.signature.name, outcome,
        )  # fmt: skip
        return Delivery(True).to_wire()

    # -- reacting ----------------------------------------------------------------------------------------

    async def acknowledge(self, call: Call, params: Params) -> Params:
        """`channels/acknowledge`: mark a message. Answers what became of it."""
        held = self._usable(call, read_text_param(params, "channelId"))
        values: dict[str, Any] = {
            "channel": held.channel,
            "message_id": read_text_param(params, "messageId"),
            "intent": read_text_param(params, "intent"),
            "value": params.get("value"),
        }
        if (function := held.kind.functions.get("acknowledge")) is None:
            return Acknowledgement(False, reason=f"{held.kind.name} have no acknowledgements").to_wire()
        try:
            outcome = await function.run(call, held.kind, values)
        except (ToolError, Refused, PeerError) as error:
            return Acknowledgement(False, reason=error.message).to_wire()
        return Acknowledgement(outcome is not False, outcome if isinstance(outcome, str) else None).to_wire()

    async def show_typing(self, call: Call, params: Params) -> None:
        """`channels/typing`: tell the author's function that the model writes, or has stopped. Raises InvalidParams."""
        id = read_text_param(params, "channelId")
        async with call.session.local(ChannelQueues).wait_for_turn(("typing", id)):
            held = self._usable(call, id)
            op = read_member(params, "op", one_of("start", "stop"), "start", nullable=False)
            metadata = read_member(params, "metadata", OBJECT, None, lenient=True) or {}
            if (function := held.kind.functions.get("typing")) is not None:
                values = {"channel": held.channel, "active": op == "start", "metadata": metadata}
                await function.run(call, held.kind, values)

    # -- observing ---------------------------------------------------------------------------------------

    async def _run_observers(self, verb: str, call: Call, params: Params) -> None:
        """`channels/outgoing/chunk` and `channels/outgoing/complete`."""
        id, read = read_text_param(params, "channelId"), _content if verb == "observe" else _chunk
        async with call.session.local(ChannelQueues).wait_for_turn(("observe", id)):
            for kind, channel in self._observers(call, verb, id):
                await kind.functions[verb].run(call, kind, read(channel, params))

    def _observers(self, call: Call, verb: str, id: str) -> Iterator[tuple[ChannelTypeBase, Channel]]:
        """The types that observe a channel, ours or the host's own, and the channel as they see it."""
        held = self.directory.find_channel(get_session_channels(call), id)
        channel = held.channel if held is not None else Channel(id, direction="outbound")
        for kind in self.directory.types:
            concerned = verb in kind.functions and (kind.covers_id(id) or (held is not None and held.kind is kind))
            if concerned and kind.feature_set.is_enabled(call) and kind.is_permitted(get_feature_policy(call), id):
                yield kind, channel


def _is_thinking(id: str) -> bool:
    return id == THINKING_CHANNEL or id.startswith(f"{THINKING_CHANNEL}:")


def _content(channel: Channel, params: Params) -> dict[str, Any]:
    parts = content.read_mcpl_content(params.get("content"))
    said = "".join(part.text for part in parts if isinstance(part, content.Text))
    return {"channel": channel, "content": parts, "text": said, **_about(params)}


def _chunk(channel: Channel, params: Params) -> dict[str, Any]:
    index = read_member(params, "index", INTEGER)
    return {"channel": channel, "delta": read_text_param(params, "delta"), "index": index, **_about(params)}


def _about(params: Params) -> dict[str, Any]:
    members = {"conversation_id": "conversationId", "inference_id": "inferenceId"}
    return {name: read_member(params, member, TEXT, None, lenient=True) for name, member in members.items()}


async def _run_unanswered(
    method: str, work: Callable[[Call, Params], Awaitable[object]], session: Session, params: Params
) -> None:
    """Serve a notification. It is dropped if too many of this host wait already. Failures are in the log."""
    if (call := make_notification_call(session, method, params)) is None:
        return
    if session.local(ChannelQueues).waiting >= MAX_WAITING:
        get_logger().warning("%s: dropped, because too many wait already", method)
        return
    try:
        await work(call, params)
    except Exception as error:
        _log_failure(call, error)


def _log_failure(call: Call, error: Exception) -> None:
    if isinstance(error, InvalidParams | McplRefusal | ToolError):
        get_logger().warning("%s: %s", call.title, error)
    else:
        mask_unexpected_error(call, error)


# -- MCPL 0.5 §14: the history of a channel.
#
# The shapes are those of the hosts in use; the draft only names the capabilities.


COUNT = restrict_kind(INTEGER, lambda count: count >= 0)


async def read_history(call: Call, held: DeclaredChannel, wanted: Any) -> Params:
    """The latest messages of a channel, if the host wants them and the author can tell. Raises ChannelOpenFailed."""
    function = held.kind.functions.get("history")
    if not is_object(wanted) or function is None:
        return {}
    most = min(read_member(wanted, "limit", COUNT, MAX_HISTORY_MESSAGES, lenient=True), MAX_HISTORY_MESSAGES)
    values = {
        "channel": held.channel,
        "limit": most,
        "before": read_member(wanted, "beforeMessageId", TEXT, None, lenient=True),
        "since_last_seen": wanted.get("sinceLastSeen") is True,
    }
    try:
        found = await function.run(call, held.kind, values)
        told = found if isinstance(found, ChannelHistory) else ChannelHistory(found)
        messages = [_require_message(message).to_wire(tags=get_mcpl_vocabulary(call).tags) for message in told.messages]
    except McplRefusal:
        raise
    except (ToolError, Refused, PeerError) as error:
        raise ChannelOpenFailed(error.message) from error
    except Exception as error:
        raise ChannelOpenFailed(mask_unexpected_error(call, error)) from error
    is_cut = told.truncated or len(messages) > most
    return {"history": messages[len(messages) - most :] if is_cut and most else messages[:most]} | (
        {"historyTruncated": True} if is_cut else {}
    )


def _require_message(message: object) -> ReceivedMessage:
    if not isinstance(message, ReceivedMessage):
        raise TypeError(f"a history has {message!r:.80}, not a Message")
    return message


# -- MCPL §14.3: what concerns one channel is done one at a time, in the order in which it came.


# For one session: notifications that wait for earlier ones.
MAX_WAITING = 1_000


@dataclass(slots=True, eq=False)
class ChannelQueues:
    """The queues of one session."""

    waiting: int = 0
    _tails: dict[Hashable, asyncio.Future[None]] = field(default_factory=dict[Hashable, asyncio.Future[None]])

    def __len__(self) -> int:
        """How many queues have work."""
        return len(self._tails)

    @asynccontextmanager
    async def wait_for_turn(self, queue: Hashable) -> AsyncGenerator[None]:
        """Wait for everything that came earlier in this queue."""
        before, mine = self._tails.get(queue), asyncio.get_running_loop().create_future()
        self._tails[queue] = mine
        self.waiting += 1

        def end(_: object = None) -> None:
            mine.set_result(None)
            if self._tails[queue] is mine:
                del self._tails[queue]

        try:
            if before is not None:
                await asyncio.wait((before,))
            yield
        finally:
            self.waiting -= 1
            if before is None or before.done():
                end()
            else:  # cancelled while it waited: those behind it keep waiting for the one before
                before.add_done_callback(end)
