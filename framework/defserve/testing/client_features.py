"""What a test client has of MCPL, tasks and apps, without `await`. Each is loaded when a test first uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from defserve.client.apps import RenderedApp
from defserve.client.mcpl.channels import Acknowledgement, ChannelMessage, Delivery, LiveChannels
from defserve.client.mcpl.feature_sets import FeatureSets
from defserve.client.mcpl.hooks import Injected, Reviewed
from defserve.client.mcpl.peer import McplPeer, PolicyReceipt
from defserve.client.mcpl.push import Inbox, PushedEvent
from defserve.client.mcpl.state import HostState, RolledBack
from defserve.client.tasks import StartedCall
from defserve.errors import PeerTimeout
from defserve.protocols.mcpl.channels.messages import Channel
from defserve.protocols.mcpl.content import Sendable, Turn, Usage
from defserve.protocols.mcpl.scopes import Scope

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

        async def send_chunks(_: Any) -> None:
            async with self.peer.outgoing(id, inference_id=inference_id, conversation_id=conversation_id) as out:
                for delta in deltas:
                    await out.chunk(delta)

        self._do(send_chunks)

    def _next(self, inbox: Inbox[T], within: float, missing: str) -> T:
        async def await_next(_: Any) -> T:
            try:
                async with asyncio.timeout(within):
                    return await anext(inbox)
            except TimeoutError:
                raise PeerTimeout(f"{missing} within {within:g} s") from None

        return self._do(await_next)


# -- `client.start` without `await`.


class SyncTask:
    """The verbs of `StartedCall`. Made by `SyncClient.start`."""

    def __init__(self, task: StartedCall, do: Callable[[Callable[[Any], Awaitable[Any]]], Any]) -> None:
        self._task, self._do = task, do

    @property
    def id(self) -> str | None:
        """The id of the task; None if the call is no task of the server."""
        return self._task.id

    @property
    def status(self) -> str:
        """What was known last: "working", "input_required", "completed", "failed" or "cancelled"."""
        return self._task.status

    @property
    def message(self) -> str:
        """The status message that was known last."""
        return self._task.message

    def refresh(self) -> str:
        """Ask the server how far the call is; returns the status."""
        return self._do(lambda client: self._task.refresh())

    def result(self) -> Any:
        """The value of the call, when it is there. Prepare answers to questions with `will_answer`.

        Raises ToolError if the tool failed, PeerError if the call failed or was cancelled.
        """
        return self._do(lambda client: self._task.result())

    def result_raw(self) -> dict[str, Any]:
        """The result unchanged, even if it has `isError`."""
        return self._do(lambda client: self._task.result_raw())

    def cancel(self) -> None:
        """Ask the server to stop. It may end all the same."""
        self._do(lambda client: self._task.cancel())


# -- `client.render` without `await`: a view, and the verbs of the host that shows it.


Json: TypeAlias = dict[str, Any]


class SyncApp:
    """The verbs of `RenderedApp`. Made by `SyncClient.render`."""

    def __init__(self, app: RenderedApp, do: Do) -> None:
        self.app, self._do = app, do

    @property
    def uri(self) -> str:
        return self.app.uri

    @property
    def html(self) -> str:
        """The document that a host shows."""
        return self.app.html

    @property
    def policy(self) -> str:
        """The `Content-Security-Policy` under which it is shown."""
        return self.app.policy

    @property
    def permissions(self) -> list[str]:
        """The features that it wishes for, as an `allow` attribute names them."""
        return self.app.permissions

    @property
    def border(self) -> bool | None:
        return self.app.border

    @property
    def text(self) -> str:
        """What the model, and a host without views, read of the result."""
        return self.app.text

    @property
    def result(self) -> Json:
        """The result of the tool, unchanged."""
        return self.app.result

    @property
    def received(self) -> list[tuple[str, Json]]:
        """Method and params of what the view sent last."""
        return list(self.app.received)

    @property
    def value(self) -> Any:
        """The value that the tool returned. Raises ToolError if it failed."""
        return self._do(lambda _: self.app.value())

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool as the view does. Raises UsageError for one that is not visible to views."""
        return self._do(lambda _: self.app.call(tool, **arguments))

    def answer(self, message: Any) -> list[Json]:
        """The messages to post to the view after one that it has sent."""
        return self._do(lambda _: self.app.answer(message))
