"""MCPL §8: follows the checkpoints of a server's feature sets and their contents, and knows where the next call starts.

A host that sends its checkpoint with each call has its own branch, whatever other hosts do. Its calls on one feature
set run one after another, so that they do not branch off from each other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import from_json, to_json

from defserve.base.redaction import get_logger
from defserve.client.answers import SendRequest
from defserve.client.audit import McplAuditTrail
from defserve.client.extension import SendParams
from defserve.client.mcpl.feature_sets import FeatureSets
from defserve.client.replies import Json, object_or_empty, string_or_none
from defserve.core.json_values import is_object
from defserve.errors import InvalidParams, PeerError, PeerTimeout, Refused
from defserve.protocols.mcp.errors import ERROR_META_KEY, read_text_param
from defserve.protocols.mcpl.state.ownership import STATE_META_KEY, RolledBack, UnknownStateOwner
from defserve.protocols.mcpl.vocabulary import StateNotManaged
from defserve.stores.checkpoints.json_patches import apply_patch_to_text

StateSendMode: TypeAlias = Literal["host", "checkpoint"] | None
"""What a call carries: the content and its checkpoint, only the checkpoint, or nothing."""
STATE_SEND_MODES: Final = ("host", "checkpoint", None)

ROLLBACK: Final = "state/rollback"
# Of an older draft that also calls itself 0.5.
STATE_UPDATE: Final = "state/update"
STATE_GET: Final = "state/get"
MAX_CHECKPOINTS: Final = 1_000
MAX_STATE_CHECKPOINT_ID_LENGTH: Final = 1_024
MAX_CONTENT_BYTES: Final = 16 * 1024 * 1024
EACH_TAKES: Final = 256

log = get_logger("client")


@dataclass(frozen=True, slots=True)
class HostState:
    """A host's position in the checkpoints of a feature set. `parents` has the known checkpoints, the latest last.

    `content` is None if the server does not send it, or this host does not keep it any more.
    """

    feature_set: str
    checkpoint: str | None
    content: Any
    parents: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class StateChange:
    """A host's position has moved, to `checkpoint`. Told to `Mcpl(on_state=…)`.

    `tool` is the tool whose call has made the checkpoint; None if the server made it by itself. `content` as in
    HostState. After a rollback, `by_rollback` is true, and `parent` is what is known of it.
    """

    feature_set: str
    checkpoint: str
    parent: str | None
    content: Any
    tool: str | None = None
    by_rollback: bool = False


OnState: TypeAlias = Callable[[StateChange], object]


class _Branch:
    """The position in one feature set. `pinned`: the next call names its checkpoint, even if calls usually do not."""

    def __init__(self) -> None:
        self.at: str | None = None
        self.pinned = False
        self.parents: OrderedDict[str, str | None] = OrderedDict()
        self.turn = asyncio.Lock()
        self.following = asyncio.Lock()
        """Held while a new state is read, so that states are followed in the order in which they came."""

    def add(self, checkpoint: str, parent: str | None) -> None:
        if len(checkpoint) > MAX_STATE_CHECKPOINT_ID_LENGTH or len(parent or "") > MAX_STATE_CHECKPOINT_ID_LENGTH:
            return
        self.parents[checkpoint] = parent
        self.parents.move_to_end(checkpoint)
        if len(self.parents) > MAX_CHECKPOINTS:
            self.parents.popitem(last=False)


class StateTracker:
    """Adds the state to the calls of one connection, and reads it from their results."""

    def __init__(
        self,
        sending: StateSendMode,
        sets: FeatureSets,
        audit: McplAuditTrail,
        listed: Callable[[str], Awaitable[Json]],
        request: SendRequest,
        patience: float | None,
        on_state: OnState | None = None,
    ) -> None:
        self._sending: StateSendMode = sending
        self._on_state = on_state
        self._sets, self._audit, self._listed, self._request = sets, audit, listed, request
        self._patience = patience
        self._branches: dict[str, _Branch] = {}
        self._tied: dict[str, str] = {}
        self._contents = StateContentCache(MAX_CONTENT_BYTES)

    def state(self, feature_set: str) -> HostState:
        """Raises UnknownFeatureSet."""
        branch = self._branch(feature_set)
        return HostState(
            feature_set, branch.at, self._contents.get_content(feature_set, branch.at), dict(branch.parents)
        )

    def branch(self, feature_set: str, checkpoint: str | None, content: Any = None) -> None:
        """Let the next call start at a checkpoint. Raises UnknownFeatureSet."""
        branch = self._branch(feature_set)
        branch.at, branch.pinned = checkpoint, True
        if checkpoint is not None and content is not None:
            self._contents.store_content(feature_set, checkpoint, content)

    async def rollback(self, feature_set: str, checkpoint: str) -> RolledBack:
        branch = self._branch(feature_set)
        async with self._turn(branch, feature_set):
            with self._audit.record_outcome(ROLLBACK, feature_set=feature_set, checkpoint=checkpoint) as record:
                result = await self._request(ROLLBACK, {"featureSet": feature_set, "checkpoint": checkpoint})
                done = RolledBack.from_wire({**result, "checkpoint": checkpoint})
                if done.success:
                    async with branch.following:
                        branch.at, branch.pinned = checkpoint, False
                    if self._on_state is not None:
                        content = self._contents.get_content(feature_set, checkpoint)
                        parent = branch.parents.get(checkpoint)
                        self._on_state(StateChange(feature_set, checkpoint, parent, content, by_rollback=True))
                else:
                    record |= {"outcome": "failure", "reason": done.reason}
                return done

    async def call_with_state(self, params: Mapping[str, Any], send: SendParams) -> Json:
        """Send a `tools/call` with its state, and read the state of its result."""
        name = await self._set_of(str(params.get("name")))
        if name is None:
            return await self._receive(params, await send(params), None)
        branch = self._branch(name)
        async with self._turn(branch, name):
            result = await send({**self._build_state_params(name, branch, params), **params})
            if self._is_unowned(result, branch, params):
                # The tool has not run: the server did not know whose state was meant.
                result = await send({"checkpoint": None, **params})
            return await self._receive(params, result, name)

    # -- the state of a call -----------------------------------------------------------------------------

    def _build_state_params(self, name: str, branch: _Branch, params: Mapping[str, Any]) -> Json:
        given = params.keys() & {"state", "checkpoint"}
        if given or not (branch.pinned or (self._sending is not None and branch.at is not None)):
            return {}
        content = self._contents.get_content(name, branch.at) if branch.pinned or self._sending == "host" else None
        return {"checkpoint": branch.at} if content is None else {"checkpoint": branch.at, "state": content}

    def _is_unowned(self, result: Json, branch: _Branch, params: Mapping[str, Any]) -> bool:
        if (params.keys() & {"state", "checkpoint"}) or branch.pinned or branch.at is not None or self._sending is None:
            return False
        error = object_or_empty(object_or_empty(result.get("_meta")).get(ERROR_META_KEY))
        return result.get("isError") is True and error.get("error_type") == UnknownStateOwner.error_type

    async def _set_of(self, tool: str) -> str | None:
        """The feature set of a tool, if its state can be rolled back."""
        if not any(one.rollback for one in self._sets):
            return None
        tied: Any = self._tied.get(tool)
        if tied is None:
            try:
                tied = object_or_empty((await self._listed(tool)).get("_meta")).get("featureSet")
            except PeerError as error:
                if type(error) is not PeerError:
                    raise
        return tied if isinstance(tied, str) and tied in self._sets and self._sets[tied].rollback else None

    # -- the state of a result ---------------------------------------------------------------------------

    async def _receive(self, params: Mapping[str, Any], result: Json, tied: str | None) -> Json:
        given = result.get("state")
        state = given if is_object(given) else object_or_empty(object_or_empty(result.get("_meta")).get(STATE_META_KEY))
        checkpoint = state.get("checkpoint")
        if not isinstance(checkpoint, str):
            return result
        # A checkpoint without a name belongs to the set that keeps state, if there is one alone.
        keeping = [one.name for one in self._sets if one.rollback]
        name = state.get("featureSet", tied or (keeping[0] if len(keeping) == 1 else None))
        if not isinstance(name, str) or name not in self._sets:
            log.warning("%s: a checkpoint that belongs to no feature set is dropped", self._audit.server_id)
            return result
        tool = str(params.get("name"))
        branch = self._branch(name)
        async with branch.following:
            await self._follow(branch, name, checkpoint, state, tool)
        self._tied[tool] = name
        return result

    async def _follow(self, branch: _Branch, name: str, checkpoint: str, state: Json, tool: str | None = None) -> None:
        """Go to a new checkpoint, and keep its content if the server tells it. The caller holds `following`."""
        parent = string_or_none(state.get("parent"))
        was = branch.at, branch.pinned
        content = await self._content(name, state, parent)
        branch.add(checkpoint, parent)
        if content is not None:
            self._contents.store_content(name, checkpoint, content)
        if (branch.at, branch.pinned) != was:
            return  # meanwhile the host has chosen where its next call starts
        branch.at, branch.pinned = checkpoint, False
        if self._on_state is not None:
            self._on_state(StateChange(name, checkpoint, parent, content, tool))

    # -- the server's requests ---------------------------------------------------------------------------

    async def apply_update(self, params: Json) -> Json:
        """`state/update`: the server has changed a state by itself.

        Raises InvalidParams, and as `_require_managed_set`.
        """
        name, checkpoint = self._require_managed_set(params), read_text_param(params, "checkpoint")
        with self._audit.record_outcome(STATE_UPDATE, feature_set=name, checkpoint=checkpoint) as record:
            if "data" in params and "patch" in params:
                raise InvalidParams("Invalid params: a state has data or a patch, not both")
            branch = self._branch(name)
            async with branch.following:
                if string_or_none(params.get("parent")) != branch.at:
                    record["outcome"] = "refused"
                    return {"accepted": False, "reason": "this host is at another checkpoint than its parent"}
                await self._follow(branch, name, checkpoint, params)
            return {"accepted": True}

    async def answer_state_get(self, params: Json) -> Json:
        """`state/get`: where this host is, and the content it keeps."""
        name = self._require_managed_set(params)
        with self._audit.record_outcome(STATE_GET, feature_set=name):
            at = self._branch(name).at
            return {"checkpoint": at, "data": self._contents.get_content(name, at)}

    def _require_managed_set(self, params: Json) -> str:
        """The set of a request. Raises UnknownFeatureSet, FeatureDisabled, or StateNotManaged."""
        declared = self._sets.require(params.get("featureSet"))
        if not declared.rollback or self._sending is None:
            raise StateNotManaged(declared.name)
        return declared.name

    async def _content(self, name: str, state: Json, parent: str | None) -> Any:
        if "patch" not in state:
            return state.get("data")
        before = self._contents.get_content_text(name, parent)
        if before is None:
            return None
        try:
            # How much work a patch is, the server decides: others of this loop are not to wait for it.
            return await asyncio.to_thread(apply_patch_to_text, before, state["patch"])
        except Refused as refused:
            log.warning("the state of %s cannot be followed: %s", name, refused.message)
            return None

    def _branch(self, name: str) -> _Branch:
        """Raises UnknownFeatureSet."""
        return self._branches.setdefault(self._sets[name].name, _Branch())

    @asynccontextmanager
    async def _turn(self, branch: _Branch, name: str) -> AsyncGenerator[None]:
        if self._sending is None:
            yield
            return
        try:
            async with asyncio.timeout(self._patience):
                await branch.turn.acquire()
        except TimeoutError:
            raise PeerTimeout(f"another call on the state of {name!r} takes too long") from None
        try:
            yield
        finally:
            branch.turn.release()


class StateContentCache:
    """The contents that were used last, as JSON, up to `most` bytes. `get` returns a copy."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def store_content(self, name: str, checkpoint: str, content: Any) -> None:
        if len(checkpoint) > MAX_STATE_CHECKPOINT_ID_LENGTH:
            return
        encoded, key = to_json(content), (name, checkpoint)
        self._size += _size(key, encoded) - (_size(key, self._kept.pop(key)) if key in self._kept else 0)
        self._kept[key] = encoded
        while self._size > self._most:
            self._size -= _size(*self._kept.popitem(last=False))

    def get_content(self, name: str, checkpoint: str | None) -> Any:
        text = self.get_content_text(name, checkpoint)
        return None if text is None else from_json(text)

    def get_content_text(self, name: str, checkpoint: str | None) -> bytes | None:
        if checkpoint is None or (name, checkpoint) not in self._kept:
            return None
        self._kept.move_to_end((name, checkpoint))
        return self._kept[name, checkpoint]


def _size(key: tuple[str, str], encoded: bytes) -> int:
    """What a content takes: with its names, or a server could have as many small ones kept as it likes."""
    return EACH_TAKES + sum(map(len, key)) + len(encoded)
