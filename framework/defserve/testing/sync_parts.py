"""What a test client has of MCPL, tasks and apps, without `await`. Each is loaded when a test first uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

from defserve.client.apps import RenderedApp
from defserve.client.mcpl.channels import ChannelMessage, LiveChannels
from defserve.client.mcpl.feature_sets import FeatureSets
from defserve.client.mcpl.peer import McplPeer, PolicyReceipt
from defserve.client.mcpl.push import Inbox, PushedEvent
from defserve.client.mcpl.state import HostState
from defserve.client.tasks import StartedCall
from defserve.errors import PeerTimeout
from defserve.protocols.mcpl.channels.messages import Channel
from defserve.testing.blocking import make_blocking_method

# pytest leaves out the frames of this module, so that a failure shows the line of the test.
__tracebackhide__ = True

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")
RunVerb: TypeAlias = Callable[[Callable[[Any], Awaitable[Any]]], Any]
"""`SyncClient._run_verb`, which gives the verb its client."""


class SyncPart(Generic[T]):
    """An object of a client, whose verbs run on the loop of that client."""

    def __init__(self, target: T, run_verb: RunVerb) -> None:
        self.target, self._run_on_client = target, run_verb

    def _run_verb(self, verb: Callable[[T], Awaitable[R]]) -> R:
        return self._run_on_client(lambda _: verb(self.target))


class SyncMcpl(SyncPart[McplPeer]):
    """The verbs of `McplPeer`. Made by `SyncClient.mcpl`."""

    update = make_blocking_method(McplPeer.update)
    collect = make_blocking_method(McplPeer.collect)
    before_inference = make_blocking_method(McplPeer.before_inference)
    after_inference = make_blocking_method(McplPeer.after_inference)
    inference_ended = make_blocking_method(McplPeer.inference_ended)
    call = make_blocking_method(McplPeer.call)
    rollback = make_blocking_method(McplPeer.rollback)
    open = make_blocking_method(McplPeer.open)
    close = make_blocking_method(McplPeer.close)
    publish = make_blocking_method(McplPeer.publish)
    acknowledge = make_blocking_method(McplPeer.acknowledge)
    typing = make_blocking_method(McplPeer.typing)

    @property
    def version(self) -> str | None:
        return self.target.version

    @property
    def server_id(self) -> str:
        return self.target.server_id

    @property
    def receipt(self) -> PolicyReceipt | None:
        return self.target.receipt

    @property
    def feature_sets(self) -> FeatureSets:
        return self.target.feature_sets

    @property
    def channels(self) -> LiveChannels:
        """The known channels. Its own verbs are async; use those of this class."""
        return self.target.channels

    def state(self, feature_set: str) -> HostState:
        return self.target.state(feature_set)

    def branch(self, feature_set: str, checkpoint: str | None, content: Any = None) -> None:
        self.target.branch(feature_set, checkpoint, content)

    def refresh_channels(self) -> list[Channel]:
        return self._run_verb(lambda peer: peer.channels.refresh())

    def next_event(self, *, within: float = 5.0) -> PushedEvent:
        """The next pushed event, if the host has no `on_event`."""
        return self._await_next(self.target.events(), within, "no event")

    def next_message(self, *, within: float = 5.0) -> ChannelMessage:
        """The next message of a channel, if the host has no `on_message`."""
        return self._await_next(self.target.messages(), within, "no message")

    def outgoing(self, id: str, *deltas: str, inference_id: str, conversation_id: str) -> None:
        """Show observers of a channel a message: its chunks, then the whole."""

        async def send_chunks(peer: McplPeer) -> None:
            async with peer.outgoing(id, inference_id=inference_id, conversation_id=conversation_id) as out:
                for delta in deltas:
                    await out.chunk(delta)

        self._run_verb(send_chunks)

    def _await_next(self, inbox: Inbox[R], within: float, missing: str) -> R:
        async def await_next(_: McplPeer) -> R:
            try:
                async with asyncio.timeout(within):
                    return await anext(inbox)
            except TimeoutError:
                raise PeerTimeout(f"{missing} within {within:g} s") from None

        return self._run_verb(await_next)


class SyncTask(SyncPart[StartedCall]):
    """The verbs of `StartedCall`. Made by `SyncClient.start`."""

    refresh = make_blocking_method(StartedCall.refresh)
    result = make_blocking_method(
        StartedCall.result,
        """The value of the call, when it is there. Prepare answers to questions with `will_answer`.

        Raises ToolError if the tool failed, PeerError if the call failed or was cancelled.
        """,
    )
    result_raw = make_blocking_method(StartedCall.result_raw)
    cancel = make_blocking_method(StartedCall.cancel)

    @property
    def id(self) -> str | None:
        """The id of the task; None if the call is no task of the server."""
        return self.target.id

    @property
    def status(self) -> str:
        """What was known last: "working", "input_required", "completed", "failed" or "cancelled"."""
        return self.target.status

    @property
    def message(self) -> str:
        """The status message that was known last."""
        return self.target.message


class SyncApp(SyncPart[RenderedApp]):
    """The verbs of `RenderedApp`, which are those of a host that shows the view. Made by `SyncClient.render`."""

    call = make_blocking_method(RenderedApp.call)
    answer = make_blocking_method(RenderedApp.answer)
    reload = make_blocking_method(RenderedApp.reload)

    @property
    def uri(self) -> str:
        return self.target.uri

    @property
    def html(self) -> str:
        """The document that a host shows."""
        return self.target.html

    @property
    def policy(self) -> str:
        """The `Content-Security-Policy` under which it is shown."""
        return self.target.policy

    @property
    def permissions(self) -> list[str]:
        """The features that it wishes for, as an `allow` attribute names them."""
        return self.target.permissions

    @property
    def border(self) -> bool | None:
        return self.target.border

    @property
    def text(self) -> str:
        """What the model, and a host without views, read of the result."""
        return self.target.text

    @property
    def result(self) -> Json:
        """The result of the tool, unchanged."""
        return self.target.result

    @property
    def state(self) -> Any:
        """What the view has saved."""
        return self.target.state

    @property
    def received(self) -> list[tuple[str, Json]]:
        """Method and params of what the view sent last."""
        return list(self.target.view_messages)

    @property
    def value(self) -> Any:
        """The value that the tool returned. Raises ToolError if it failed."""
        return self._run_verb(lambda app: app.value())
