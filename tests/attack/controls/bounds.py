"""What servers and clients do without their bounds. How to write one: `controls/__init__.py`."""

from __future__ import annotations

import gc
from typing import Any

from tests.attack.controls.patching import Patch

CODEC = "defserve.core.messages"
LIFECYCLE = "defserve.protocols.mcp.lifecycle"
QUEUE = "defserve.core.call:CallQueue"
SUBSCRIPTIONS = "defserve.protocols.mcp.subscriptions"

# -- memory ----------------------------------------------------------------------------------------------


def keep_whole_offers(patch: Patch) -> None:
    """An offer of any size is taken, kept by its session, and remembered for others."""
    patch.set(f"{LIFECYCLE}:MAX_KEY_LENGTH", 10**12)
    patch.set(f"{LIFECYCLE}:MAX_CAPABILITIES_BYTES", 10**12)


def leave_calls_to_the_collector(patch: Patch) -> None:
    """What a call has brought is in a circle of references when the call is over, and the collector comes late."""
    gc.set_threshold(100_000)

    def make(run: Any) -> Any:
        def run_in(context: Any, function: Any) -> Any:
            circle: list[Any] = [function]
            circle.append(circle)
            return run(context, function)

        return run_in

    patch.wrap("defserve.serve.threads:run_in", make)


def watch_anything(patch: Patch) -> None:
    """A session may watch any number of resources, of any length, whether they are there or not."""
    patch.set(f"{SUBSCRIPTIONS}:_is_within_limits", lambda uris, call: True)

    def make(start: Any) -> Any:
        def initialize(self: Any, *given: Any, **named: Any) -> None:
            start(self, *given, **named)
            self._find_resource = lambda call, uri: object()

        return initialize

    patch.wrap(f"{SUBSCRIPTIONS}:Subscriptions.__init__", make)


def know_every_head(patch: Patch) -> None:
    patch.set("defserve.serve.http1.request:MAX_KNOWN_HEADS_BYTES", 10**9)
    patch.set("defserve.serve.http1.request:MAX_KNOWN_HEAD_BYTES", 10**9)
    patch.set("defserve.serve.http1.connection:MAX_LEARNED_HEADS", 10**9)


def keep_every_address(patch: Patch) -> None:
    """What a request was about is kept for its address."""
    kept: dict[str, Any] = {}

    def make(find: Any) -> Any:
        def find_stranger(self: Any, scope: Any) -> Any:
            principal = find(self, scope)
            kept[principal.id] = principal, dict(scope)
            return principal

        return find_stranger

    patch.wrap("defserve.serve.http.app:HttpApp._nobody", make)


# -- messages --------------------------------------------------------------------------------------------


def fail_at_broken_messages(patch: Patch) -> None:
    """What cannot be read raises, as it does in most programs."""

    def make(read: Any) -> Any:
        def decode(data: bytes, *limits: int) -> Any:
            from defserve.core.messages import MalformedMessage

            message = read(data, *limits)
            if isinstance(message, MalformedMessage):
                raise TypeError(message.message)
            return message

        return decode

    patch.wrap(f"{CODEC}:decode", make)


def take_any_id(patch: Patch) -> None:
    patch.set(f"{CODEC}:is_request_id", lambda id: True)


# -- pipes -----------------------------------------------------------------------------------------------


def refuse_the_excess(patch: Patch) -> None:
    """Calls for which there is no room are refused, and do not wait in the pipe."""

    def make(wait: Any) -> Any:
        def put(self: Any, call: Any) -> Any:
            if self._holds(1):
                raise self.refusal()
            return wait(self, call)

        return put

    patch.wrap(f"{QUEUE}.enqueue_call", make)
    patch.set(f"{QUEUE}.is_full", False)


def end_with_the_input(patch: Patch) -> None:
    async def wait_for_nothing(calls: Any, seconds: float) -> None:
        pass

    patch.set("defserve.serve.lifespans:wait_for_calls", wait_for_nothing)


def stop_reading_whatever_waits(patch: Patch) -> None:
    """A full queue stops the pipe, even if all calls wait for answers that are in it."""
    patch.set(f"{QUEUE}._can_move", True)
    patch.set("defserve.core.session:Session.make_room", lambda self, calls: None)


def cancel_nothing(patch: Patch) -> None:
    patch.set("defserve.core.session:Session._cancel", lambda self, call: None)


def take_batches_of_any_number(patch: Patch) -> None:
    patch.set(f"{CODEC}:MAX_BATCH_MESSAGES", 10**12)


def gather_lines_of_any_length(patch: Patch) -> None:
    patch.wrap("defserve.core.messages:LineSplitter.__init__", lambda start: lambda self, limit: start(self, 10**12))
