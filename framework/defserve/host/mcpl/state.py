"""MCPL §8 from the host's side: the checkpoints a server told of, their contents, and where the next call starts.

A host that sends them back has a line of its own in the tree, whatever others do to it meanwhile. So that its own calls
do not branch off from each other, they come one after another on each feature set.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import from_json, to_json

from defserve.errors import PeerError, PeerTimeout, Refused
from defserve.host.conversation import object_of
from defserve.host.mcpl.audit import LiveAudit
from defserve.host.mcpl.feature_sets import FeatureSets
from defserve.protocols.mcp.failures import ERROR_KEY
from defserve.protocols.mcpl.state.owner import Unowned
from defserve.protocols.mcpl.state.wire import STATE_KEY
from defserve.stores.checkpoints.patches import apply_patch
from defserve.wire.jsonvalue import is_object

Json: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Json]]

Sending: TypeAlias = Literal["host", "checkpoint"] | None
"""What goes along with a call: the content and its checkpoint, the checkpoint alone, or nothing."""
SENDING: Final = ("host", "checkpoint", None)

ROLLBACK: Final = "state/rollback"
MOST_CHECKPOINTS: Final = 1_000
MOST_BYTES: Final = 16 * 1024 * 1024

log = logging.getLogger("defserve.host")


@dataclass(frozen=True, slots=True)
class HostState:
    """Where a host is in the tree of a feature set. `parents` are the checkpoints it has heard of, the latest last.

    `content` is None where the server keeps it to itself, and if it has to be asked for it again.
    """

    feature_set: str
    checkpoint: str | None
    content: Any
    parents: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What came of a rollback (§8.6). Without success all is as it was, and `reason` says why."""

    checkpoint: str
    success: bool
    reason: str | None = None


class _Line:
    """One feature set's. `pinned`: the next call says where it starts, even if calls otherwise do not."""

    def __init__(self) -> None:
        self.at: str | None = None
        self.pinned = False
        self.parents: OrderedDict[str, str | None] = OrderedDict()
        self.turn = asyncio.Lock()

    def add(self, checkpoint: str, parent: str | None) -> None:
        self.parents[checkpoint] = parent
        self.parents.move_to_end(checkpoint)
        if len(self.parents) > MOST_CHECKPOINTS:
            self.parents.popitem(last=False)


class LiveState:
    """Goes along with the calls of one connection."""

    def __init__(
        self,
        sending: Sending,
        sets: FeatureSets,
        audit: LiveAudit,
        listed: Callable[[str], Awaitable[Json]],
        request: Callable[[str, Mapping[str, Any]], Awaitable[Json]],
        patience: float | None,
    ) -> None:
        self._sending: Sending = sending
        self._sets, self._audit, self._listed, self._request = sets, audit, listed, request
        self._patience = patience
        self._lines: dict[str, _Line] = {}
        self._tied: dict[str, str] = {}
        self._contents = _Contents(MOST_BYTES)

    def state(self, feature_set: str) -> HostState:
        """Raises UnknownFeatureSet."""
        line = self._line(feature_set)
        return HostState(feature_set, line.at, self._contents.get(feature_set, line.at), dict(line.parents))

    def branch(self, feature_set: str, checkpoint: str | None, content: Any = None) -> None:
        """Let the next call start there. Raises UnknownFeatureSet."""
        line = self._line(feature_set)
        line.at, line.pinned = checkpoint, True
        if checkpoint is not None and content is not None:
            self._contents.keep(feature_set, checkpoint, content)

    async def rollback(self, feature_set: str, checkpoint: str) -> RolledBack:
        line = self._line(feature_set)
        async with self._turn(line, feature_set):
            with self._audit.watching(ROLLBACK, feature_set=feature_set, checkpoint=checkpoint) as told:
                result = await self._request(ROLLBACK, {"featureSet": feature_set, "checkpoint": checkpoint})
                reason = result.get("reason")
                done = RolledBack(
                    checkpoint, result.get("success") is True, reason if isinstance(reason, str) else None
                )
                if done.success:
                    line.at, line.pinned = checkpoint, False
                else:
                    told |= {"outcome": "failure", "reason": done.reason}
                return done

    async def around(self, params: Mapping[str, Any], send: Send) -> Json:
        """Send a `tools/call` with what belongs to it, and take note of what came back."""
        name = await self._set_of(str(params.get("name")))
        if name is None:
            return self._received(params, await send(params), None)
        line = self._line(name)
        async with self._turn(line, name):
            result = await send({**self._brought(name, line, params), **params})
            if self._is_unowned(result, line, params):
                # Nothing was done yet: nobody could tell whose state was meant.
                result = await send({"checkpoint": None, **params})
            return self._received(params, result, name)

    # -- what goes along ---------------------------------------------------------------------------------

    def _brought(self, name: str, line: _Line, params: Mapping[str, Any]) -> Json:
        says_so_itself = "state" in params or "checkpoint" in params
        if says_so_itself or not (line.pinned or (self._sending is not None and line.at is not None)):
            return {}
        content = self._contents.get(name, line.at) if line.pinned or self._sending == "host" else None
        return {"checkpoint": line.at} if content is None else {"checkpoint": line.at, "state": content}

    def _is_unowned(self, result: Json, line: _Line, params: Mapping[str, Any]) -> bool:
        if self._sending is None or line.at is not None or line.pinned or "checkpoint" in params or "state" in params:
            return False
        error = object_of(object_of(result.get("_meta")).get(ERROR_KEY))
        return result.get("isError") is True and error.get("error_type") == Unowned.error_type

    async def _set_of(self, tool: str) -> str | None:
        """The set a tool belongs to, if its state can be gone back to."""
        if not any(one.rollback for one in self._sets):
            return None
        tied: Any = self._tied.get(tool)
        if tied is None:
            try:
                tied = object_of((await self._listed(tool)).get("_meta")).get("featureSet")
            except PeerError as error:
                if type(error) is not PeerError:
                    raise
        return tied if isinstance(tied, str) and tied in self._sets and self._sets[tied].rollback else None

    # -- what comes back ---------------------------------------------------------------------------------

    def _received(self, params: Mapping[str, Any], result: Json, tied: str | None) -> Json:
        said = result.get("state")
        state = said if is_object(said) else object_of(object_of(result.get("_meta")).get(STATE_KEY))
        name, checkpoint = state.get("featureSet", tied), state.get("checkpoint")
        if not isinstance(checkpoint, str) or not isinstance(name, str) or name not in self._sets:
            return result
        parent = state.get("parent")
        line = self._line(name)
        content = self._content(name, state, parent)
        line.at, line.pinned = checkpoint, False
        line.add(checkpoint, parent if isinstance(parent, str) else None)
        self._tied[str(params.get("name"))] = name
        if content is not None:
            self._contents.keep(name, checkpoint, content)
        return result

    def _content(self, name: str, state: Json, parent: Any) -> Any:
        if "patch" not in state:
            return state.get("data")
        before = self._contents.get(name, parent) if isinstance(parent, str) else None
        if before is None:
            return None
        try:
            return apply_patch(before, state["patch"])
        except Refused as refused:
            log.warning("the state of %s cannot be followed: %s", name, refused.message)
            return None

    def _line(self, name: str) -> _Line:
        """Raises UnknownFeatureSet."""
        return self._lines.setdefault(self._sets[name].name, _Line())

    @asynccontextmanager
    async def _turn(self, line: _Line, name: str) -> AsyncGenerator[None]:
        if self._sending is None:
            yield
            return
        try:
            async with asyncio.timeout(self._patience):
                await line.turn.acquire()
        except TimeoutError:
            raise PeerTimeout(f"another call on the state of {name!r} takes too long") from None
        try:
            yield
        finally:
            line.turn.release()


class _Contents:
    """The contents used last, as JSON, up to so many bytes: a copy for everybody who asks."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def keep(self, name: str, checkpoint: str, content: Any) -> None:
        encoded = to_json(content)
        self._size += len(encoded) - len(self._kept.pop((name, checkpoint), b""))
        self._kept[name, checkpoint] = encoded
        while self._size > self._most:
            self._size -= len(self._kept.popitem(last=False)[1])

    def get(self, name: str, checkpoint: str | None) -> Any:
        if checkpoint is None or (name, checkpoint) not in self._kept:
            return None
        self._kept.move_to_end((name, checkpoint))
        return from_json(self._kept[name, checkpoint])
