"""Who owns a state. A caller that cannot be told apart from others has no head: it must name where to start.

| who calls | `per="principal"` | `per="session"` | `per="server"` |
|---|---|---|---|
| local, with a token, or authenticated by a gateway | the principal | the session | everyone |
| the same, in a request that is a session of its own | the principal | the principal, no head | everyone |
| anonymous, with a handshake | the session | the session | everyone |
| anonymous, without | its address, no head | its address, no head | everyone |

The head of everyone's state is moved only by calls that start there. What a caller brings, or starts elsewhere, becomes
a branch that this caller alone sees and continues. It is kept in a tree of the caller's own, so that it does not count
among everyone's checkpoints. Those who have no head have one such tree together.

Below: what a host may bring and is told (requests and results), proof, and one call at a time on each tree.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import OrderedDict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

from defserve.auth.authority import is_stranger
from defserve.auth.principals import ANONYMOUS_PREFIX, LOCAL_PRINCIPAL_ID, Principal
from defserve.core.call import Call
from defserve.core.json_values import is_object
from defserve.core.messages import Params
from defserve.core.shapes import BOOLEAN, TEXT, WireShape, read_member, restrict_kind, wire_member, wire_shape
from defserve.errors import InvalidParams, LimitExceeded, Refused
from defserve.protocols.mcp.asking.round_trips import CONFLICTING_MARK, find_call_mark, mark_call
from defserve.protocols.mcp.errors import DEFSERVE_NAMESPACE, read_meta
from defserve.protocols.mcpl.peers import DangerousToolMarker
from defserve.protocols.mcpl.policies import get_mcpl_terms, is_stateless_call
from defserve.stores.checkpoints.checkpoint_store import (
    CheckpointCommit,
    CheckpointStore,
    HeldCheckpoint,
    StateTampered,
)
from defserve.stores.checkpoints.checkpoint_tree import CheckpointGone, TreeKey
from defserve.stores.store import Lease, Store, StoreBusy, make_lease_token

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcpl.state.states import States


StateOwnerKind = Literal["principal", "session", "server"]

# No token's principal starts with this prefix, so no caller can have these names.
SHARED_OWNER_ID: Final = ANONYMOUS_PREFIX + "everyone"
SESSION_OWNER_PREFIX: Final = ANONYMOUS_PREFIX + "session:"
BRANCH_OWNER_PREFIX: Final = ANONYMOUS_PREFIX + "branches:"
PEER: Final = ANONYMOUS_PREFIX + "peer:"


class UnknownStateOwner(Refused):
    """The caller is unknown, so its state cannot be found. The model reads what to do."""

    error_type = "state_unowned"

    def __init__(self, call: Call, per: StateOwnerKind) -> None:
        identity = call.identity
        if per == "session" and not (isinstance(identity, Principal) and is_stranger(identity)):
            super().__init__(
                'This tool keeps state for each session, and this request has no session: open one, or name the "'
                'checkpoint" to start from (null starts empty). A server that keeps it for each caller needs no'
                ' session: per="principal"'
            )
            return
        super().__init__(
            "This tool keeps state, and callers who do not say who they are cannot be told apart: sign in, open a "
            'session, or name the "checkpoint" to start from (null starts empty)'
        )


class StateOwner(NamedTuple):
    """`has_head`: a call that names no checkpoint continues where this owner was."""

    id: str
    has_head: bool = True

    @property
    def is_shared(self) -> bool:
        """Whether other callers read the same head."""
        return self.id == SHARED_OWNER_ID


@dataclass(slots=True, eq=False)
class SessionOwnerId:
    """The name of a session as an owner. It cannot be guessed, and ends with the session."""

    id: str = field(default_factory=lambda: SESSION_OWNER_PREFIX + secrets.token_urlsafe(16))


def find_state_owner(call: Call, per: StateOwnerKind) -> StateOwner:
    session = call.session
    if per == "server":
        return StateOwner(SHARED_OWNER_ID)
    stranger = isinstance(call.identity, Principal) and is_stranger(call.identity)
    if (stranger and is_stateless_call(call)) or (per == "session" and session.is_short):
        return StateOwner(_principal(call), has_head=False)
    return StateOwner(get_session_owner_id(session) if per == "session" or stranger else _principal(call))


def find_branch_owner(call: Call) -> StateOwner:
    """Who owns the branches off everyone's state that this call makes or continues."""
    own = find_state_owner(call, "principal")
    return StateOwner(make_branch_owner_id(own.id) if own.has_head else BRANCH_OWNER_PREFIX, own.has_head)


def make_branch_owner_id(owner: str) -> str:
    """Under which name the branches of an owner off everyone's state are kept."""
    return BRANCH_OWNER_PREFIX + owner


def get_session_owner_id(session: Session) -> str:
    if session.sharer is not None:  # the same in every process that serves the session
        return SESSION_OWNER_PREFIX + sha256(session.sharer.id.encode()).hexdigest()[:32]
    return session.local(SessionOwnerId).id


def _principal(call: Call) -> str:
    # Several peers on a local carrier are all the local user. Elsewhere the principal itself says where it is known.
    peer = call.session.peer
    return PEER + peer if peer and call.principal == LOCAL_PRINCIPAL_ID else call.principal


# -- MCPL §8.2–8.4: state in requests and results. What a host sends is checked, never trusted.
#
# If a request has both `checkpoint` and `state`, `state` is the content and `checkpoint` its parent (A18). Without a
# handshake both travel in the params, or in `_meta` if a client cannot add params; the result has its state in both.


STATE_META_KEY: Final = DEFSERVE_NAMESPACE + "state"
MAX_CHECKPOINT_ID_LENGTH: Final = 256
# A longer one could not be repeated in an error.
CHECKPOINT_ID_KIND = restrict_kind(
    TEXT, lambda id: len(id) <= MAX_CHECKPOINT_ID_LENGTH, f"has more than {MAX_CHECKPOINT_ID_LENGTH} characters"
)


@wire_shape
class RolledBack(WireShape):
    """The result of a rollback (§8.6). Without success nothing has changed, and `reason` says why."""

    checkpoint: str = wire_member("checkpoint", TEXT)
    success: bool = wire_member("success", BOOLEAN, default=False, lenient=True, omit=False)
    reason: str | None = wire_member("reason", TEXT, default=None, lenient=True)


class StartState(NamedTuple):
    """What a request says about state. `names`: it says where to start, perhaps with null."""

    checkpoint: str | None = None
    state: Any = None
    names: bool = False


def read_start_state(call: Call) -> StartState:
    """What the request brings; nothing if the host does not speak MCPL. Raises InvalidParams."""
    source = find_state_fields(call)
    checkpoint = read_member(source, "checkpoint", CHECKPOINT_ID_KIND, None)
    return StartState(checkpoint, source.get("state"), "checkpoint" in source or "state" in source)


def find_state_fields(call: Call) -> Params:
    """The object that has the `checkpoint` and the `state` of a request, if it has them. They are not checked."""
    if get_mcpl_terms(call.terms) is None:
        return {}
    if is_stateless_call(call) and not ("state" in call.params or "checkpoint" in call.params):
        mirrored = read_meta(call.params).get(STATE_META_KEY)
        return mirrored if is_object(mirrored) else {}
    return call.params


async def load_start_checkpoint(
    trees: CheckpointStore, key: TreeKey, params: StartState, call: Call, *, has_head: bool
) -> HeldCheckpoint:
    """Where a call starts. Raises CheckpointGone, StateTampered, LimitExceeded and InvalidParams."""
    if params.state is None:
        if params.checkpoint is None and not has_head:
            return HeldCheckpoint(key, await trees.load_tree(key))
        return await trees.load_checkpoint(key, params.checkpoint)
    try:
        adopted = await trees.adopt_content(key, params.state, checkpoint=params.checkpoint)
    except ValueError as error:  # a number that is too large for a float
        raise InvalidParams(f"Invalid params: state cannot be kept: {error}") from None
    if params.checkpoint is not None or adopted.before is None:
        return adopted
    return await _recognise_content(trees, key, adopted.before.encoded, call, has_head=has_head) or adopted


async def load_shared_start_checkpoint(
    trees: CheckpointStore, key: TreeKey, branches: StateOwner, params: StartState, call: Call
) -> HeldCheckpoint:
    """Where a call on everyone's state starts: there, or on a branch of its caller. Raises as `start`."""
    own = TreeKey(key.feature_set, branches.id)
    try:
        held = await load_start_checkpoint(trees, key, params, call, has_head=True)
    except (CheckpointGone, StateTampered):
        if params.checkpoint is None:
            raise
        return await load_start_checkpoint(trees, own, params, call, has_head=branches.has_head)
    if held.parent is not None or params.state is None:
        return held
    branched = await load_start_checkpoint(trees, own, params, call, has_head=branches.has_head)
    return branched if branched.parent is not None else held


async def _recognise_content(
    trees: CheckpointStore, key: TreeKey, content: bytes, call: Call, *, has_head: bool
) -> HeldCheckpoint | None:
    """The checkpoint that a content without a checkpoint belongs to; None if there is none.

    It is one that the host was sent, the head, or any other of this caller that is proved. Proved ones come first.
    """
    sent = call.session.peek(SentCheckpoints)
    id = sent.find(key.feature_set, content) if sent is not None else None
    candidates = [*([id] if id is not None else ()), *([None] if has_head else ())]
    unproved: HeldCheckpoint | None = None
    for candidate in candidates:
        try:
            held = await trees.load_checkpoint(key, candidate)
        except CheckpointGone:
            continue
        if held.before is None or held.before.encoded != content:
            continue
        if held.verified:
            return held
        unproved = unproved or held
    # Callers without a head cannot be told apart, so what was proved for one says nothing of another.
    return (await trees.find_proved_checkpoint(key, content) if has_head else None) or unproved


def add_state_to_result(call: Call, states: States[Any], made: CheckpointCommit, result: Params) -> None:
    """Add the new state to the result (§8.2, §8.3)."""
    at = made.checkpoint
    state: Params = {"checkpoint": at.id, "parent": at.parent, "featureSet": states.name}
    if states.mode != "opaque":
        patch = made.patch() if states.mode == "patch" and _has(call, at.parent) else None
        if patch is not None and len(patch) <= call.session.composition.limits.patch_operations:
            state["patch"] = patch
        else:
            state["data"] = made.content
    result["state"] = state
    if is_stateless_call(call):
        result["_meta"] = {**(result.get("_meta") or {}), STATE_META_KEY: state}
    elif states.mode != "opaque" and made.made is not None:
        call.session.local(SentCheckpoints).add(at.id, states.name, made.made.content.encoded)


def _has(call: Call, parent: str | None) -> bool:
    """Whether the host can apply a patch to this checkpoint: it named it, brought its content, or was sent it."""
    if parent is None:
        return False
    brought, sent = read_start_state(call), call.session.peek(SentCheckpoints)
    return brought.checkpoint == parent or brought.state is not None or (sent is not None and parent in sent)


# -- The checkpoints that a host has the content of.


REMEMBERED: Final = 256


class SentCheckpoints(OrderedDict[str, bytes]):
    """The latest checkpoints whose content this session's host has: id → digest."""

    def add(self, id: str, name: str, content: bytes) -> None:
        self[id] = _digest(name, content)
        if len(self) > REMEMBERED:
            self.popitem(last=False)

    def find(self, name: str, content: bytes) -> str | None:
        """The latest checkpoint of a set with this content."""
        wanted = _digest(name, content)
        return next((id for id, digest in reversed(self.items()) if digest == wanted), None)


def _digest(name: str, content: bytes) -> bytes:
    return sha256(b"%b\0%b" % (name.encode(), content)).digest()


# -- What a call has seen of states that are not proved. All that it keeps afterwards is not proved either.
#
# That holds for the whole call that a peer makes: what one part of it reads, another may write, in any set. So no tool
# makes a proved state of one that a caller brought, by whatever way it copies it.


UNPROVED_MARK: Final = "mcpl.unproved"


def is_made_by_dangerous_tool(call: Call | None) -> bool:
    """Whether a dangerous tool makes this call, itself or through others."""
    while call is not None:
        if call.peek(DangerousToolMarker) is not None:
            return True
        call = call.outer
    return False


def mark_unproved_read(call: Call, held: HeldCheckpoint) -> None:
    """A call is about to see what is held. From then on it is known if that is not proved."""
    if not held.verified:
        mark_call(call, UNPROVED_MARK, _name(held))


def drop_proof_after_unproved_read(call: Call | None, held: HeldCheckpoint) -> HeldCheckpoint:
    """What is held, for a commit of this call: it is verified only if all is that the call has seen."""
    if call is None or not held.verified or find_call_mark(call, UNPROVED_MARK) is None:
        return held
    return held._replace(verified=False)


def can_move_shared_head(call: Call | None, held: HeldCheckpoint) -> bool:
    """Whether a commit of this call may become the head of everyone's state.

    That is so if it is proved, or if the head is all that the call has seen of what is not: a store of version 0.1.0
    has such heads, and they go on.
    """
    seen = find_call_mark(call, UNPROVED_MARK) if call is not None else None
    return seen is None or (seen != CONFLICTING_MARK and held.is_head and seen == _name(held))


def _name(held: HeldCheckpoint) -> str:
    return f"{held.parent} {held.key.feature_set}" if held.parent is not None else CONFLICTING_MARK


# -- One call at a time on each tree: a lock within this process, and a lease among processes if the store is shared.
#
# With other stores, two processes may start from the same checkpoint; then one of them is refused when it commits.


class StateBusy(LimitExceeded):
    """Another call held the same state for too long."""

    error_type = "state_busy"

    def __init__(self) -> None:
        data = {"limit": "lock", "retry_after_ms": 1000}
        super().__init__("Another call works on this state; try again later", data=data)


class TreeLocks:
    """The locks on the trees of one state."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By event loop. Dropped when nobody uses them.
        self._locks: WeakValueDictionary[tuple[int, TreeKey], asyncio.Lock] = WeakValueDictionary()
        # One token per process and loop, within which the locks order the calls. A forked process gets its own.
        self._tokens: dict[tuple[int, int], bytes] = {}

    async def acquire(self, key: TreeKey, within: float) -> AsyncExitStack:
        """Lock a tree for a call. The call must close what it gets. Raises StateBusy, and what the store raises."""
        place = id(asyncio.get_running_loop()), key
        if (lock := self._locks.get(place)) is None:
            lock = self._locks[place] = asyncio.Lock()
        try:
            async with asyncio.timeout(within):
                await lock.acquire()
        except TimeoutError:
            raise StateBusy from None
        async with AsyncExitStack() as held:
            held.callback(lock.release)
            if getattr(self._store, "is_for_many", False):
                holder = os.getpid(), id(asyncio.get_running_loop())
                lease = Lease(self._store, key.space, self._tokens.setdefault(holder, make_lease_token()))
                try:
                    await lease.acquire(within)
                except StoreBusy:
                    raise StateBusy from None
                held.push_async_callback(lease.release)
            return held.pop_all()
