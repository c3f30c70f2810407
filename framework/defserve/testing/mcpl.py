"""`client.mcpl` without `await`: the verbs of an MCPL host, and what servers sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from defserve.errors import PeerTimeout
from defserve.host.mcpl.channels.channels import LiveChannels
from defserve.host.mcpl.channels.messages import Acknowledgement, ChannelMessage, Delivery
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.host.mcpl.hooks import Injected, Reviewed
from defserve.host.mcpl.inbox import Inbox
from defserve.host.mcpl.peer import McplPeer
from defserve.host.mcpl.push.receiver import PushedEvent
from defserve.host.mcpl.receipts import PolicyReceipt
from defserve.host.mcpl.state import HostState, RolledBack
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.content import Sendable
from defserve.protocols.mcpl.scopes.values import Scope
from defserve.protocols.mcpl.turns import Turn, Usage

# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True

T = TypeVar("T")
Do: TypeAlias = Callable[[Callable[[Any], Awaitable[Any]]], Any]


class SyncMcpl:
    """The verbs of `McplPeer`. Made by `SyncClient.mcpl`."""

    def __init__(self, peer: McplPeer, do: Do) -> None:
        self.peer, self._do = peer, do

    @property
    def version(self) -> str | None:
        return self.peer.version

    @property
    def server_id(self) -> str:
        return self.peer.server_id

    @property
    def receipt(self) -> PolicyReceipt | None:
        return self.peer.receipt

    @property
    def feature_sets(self) -> FeatureSets:
        return self.peer.feature_sets

    @property
    def channels(self) -> LiveChannels:
        """The known channels. Its own verbs are async; use those of this class."""
        return self.peer.channels

    def update(
        self,
        enabled: Sequence[str] = (),
        disabled: Sequence[str] = (),
        scopes: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    ) -> None:
        self._do(lambda _: self.peer.update(enabled, disabled, scopes))

    def next_event(self, *, within: float = 5.0) -> PushedEvent:
        """The next pushed event, if the host has no `on_event`."""
        return self._next(self.peer.events(), within, "no event")

    def next_message(self, *, within: float = 5.0) -> ChannelMessage:
        """The next message of a channel, if the host has no `on_message`."""
        return self._next(self.peer.messages(), within, "no message")

    def collect(self) -> int:
        return self._do(lambda _: self.peer.collect())

    def before_inference(self, turn: Turn) -> list[Injected]:
        return self._do(lambda _: self.peer.before_inference(turn))

    def after_inference(self, turn: Turn, assistant_message: str, usage: Usage | None = None) -> Reviewed:
        return self._do(lambda _: self.peer.after_inference(turn, assistant_message, usage))

    def call(self, tool: str, scope: Scope | str, /, **arguments: Any) -> Any:
        return self._do(lambda _: self.peer.call(tool, scope, **arguments))

    def state(self, feature_set: str) -> HostState:
        return self.peer.state(feature_set)

    def rollback(self, feature_set: str, checkpoint: str) -> RolledBack:
        return self._do(lambda _: self.peer.rollback(feature_set, checkpoint))

    def branch(self, feature_set: str, checkpoint: str | None, content: Any = None) -> None:
        self.peer.branch(feature_set, checkpoint, content)

    def inference_ended(self, turn: Turn, phase: Literal["aborted", "failed"]) -> None:
        self._do(lambda _: self.peer.inference_ended(turn, phase))

    def open(
        self, type: str | None, address: Any = None, metadata: Mapping[str, Any] | None = None, **more: Any
    ) -> Channel:
        return self._do(lambda _: self.peer.open(type, address, metadata, **more))

    def acknowledge(self, id: str, message_id: str, intent: str, value: Any = None) -> Acknowledgement:
        return self._do(lambda _: self.peer.acknowledge(id, message_id, intent, value))

    def typing(self, id: str, *, active: bool = True, metadata: Mapping[str, Any] | None = None) -> None:
        self._do(lambda _: self.peer.typing(id, active=active, metadata=metadata))

    def close(self, id: str) -> bool:
        return self._do(lambda _: self.peer.close(id))

    def refresh_channels(self) -> list[Channel]:
        return self._do(lambda _: self.peer.channels.refresh())

    def publish(
        self, id: str, content: Sendable, *, ack: bool = True, conversation_id: str | None = None, stream: bool = False
    ) -> Delivery | None:
        return self._do(
            lambda _: self.peer.publish(id, content, ack=ack, conversation_id=conversation_id, stream=stream)
        )

    def outgoing(self, id: str, *deltas: str, inference_id: str, conversation_id: str) -> None:
        """Show observers of a channel a message: its chunks, then the whole."""

        async def tell(_: Any) -> None:
            async with self.peer.outgoing(id, inference_id=inference_id, conversation_id=conversation_id) as out:
                for delta in deltas:
                    await out.chunk(delta)

        self._do(tell)

    def _next(self, inbox: Inbox[T], within: float, missing: str) -> T:
        async def take(_: Any) -> T:
            try:
                async with asyncio.timeout(within):
                    return await anext(inbox)
            except TimeoutError:
                raise PeerTimeout(f"{missing} within {within:g} s") from None

        return self._do(take)
