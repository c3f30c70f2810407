"""MCPL §8: the state of a feature set, as its author uses it.

notebooks = notes.state(Notebook, keep=1000)
…
for checkpoint in await notebooks.checkpoints():        # inside a call: the caller's
    print(checkpoint.id, await notebooks.at(checkpoint))
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from pydantic_core import from_json, to_json

from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, PeerGone, UsageError, make_attribute_error
from defserve.protocols.mcpl.peers import CURRENT_CALL, Peer, run_on_session_loop
from defserve.protocols.mcpl.state.binding import StateProvider, WorkingState
from defserve.protocols.mcpl.state.ownership import (
    MAX_CHECKPOINT_ID_LENGTH,
    SHARED_OWNER_ID,
    SentCheckpoints,
    StateOwnerKind,
    TreeLocks,
    UnknownStateOwner,
    can_move_shared_head,
    drop_proof_after_unproved_read,
    find_branch_owner,
    find_state_owner,
    get_session_owner_id,
    is_made_by_dangerous_tool,
    mark_unproved_read,
)
from defserve.protocols.mcpl.state.undo import ChangeLine, UndoDirection, get_line_position
from defserve.protocols.mcpl.vocabulary import CannotUndo, CheckpointNotFound, StateRefused
from defserve.stores.checkpoints.checkpoint_store import CheckpointCommit, CheckpointStore, HeldCheckpoint
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint, CheckpointGone, LinePosition, Retention, TreeKey
from defserve.stores.checkpoints.checkpoint_tree import list_branches as ends
from defserve.stores.checkpoints.json_patches import PatchOperation, diff_json_values

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from defserve.core.call import Call
    from defserve.protocols.mcpl.section import FeatureSetBase, McplServerState
    from defserve.protocols.mcpl.state.section import RollbackHandler, StateHold
    from defserve.stores.checkpoints.checkpoint_tree import CheckpointContent
    from defserve.stores.store import Store


M = TypeVar("M")

StateMode = Literal["patch", "data", "opaque"]
StateConcurrency = Literal["serial", "branch"]

FIX_UNFIT: Final = (
    "if the model has changed, let it read the old form (a field_validator with mode='before'), or put a repaired "
    "content in its place: defserve state branch STORE CHECKPOINT --content FILE"
)
UNPROVED: Final = (
    "A dangerous tool takes only state that this server made from the beginning. A caller brought this one, or a part "
    "of it, or version 0.1.0 kept it.\n  fix: start from a checkpoint that is proved, or roll back to it. If the state "
    "is known to be good, the operator can say so: defserve state trust STORE"
)

_UNDO: Final = (
    "await .undo() takes the last change back. To go elsewhere, copy what await .at(checkpoint) gives into the state; "
    "hosts roll back by themselves"
)
ELSEWHERE: Final = {
    **dict.fromkeys(("rollback", "roll_back", "restore", "revert"), _UNDO),
    **dict.fromkeys(("get", "read", "load", "value", "current"), "await .at() gives the state as it is now"),
    **dict.fromkeys(
        ("set", "write", "save", "put"), "in a tool, change its State[…]; elsewhere, await .update(change)"
    ),
    **dict.fromkeys(("tool", "add_tool"), "declare it on the server or feature set, with a parameter of State[Model]"),
    "on_rollback": "the feature set has it: @notes.on_rollback",
    "head": "(await .history(limit=1))[0]; there is none before the first change",
}
"""A verb that a state does not have → what to write."""


class StateOptions(NamedTuple):
    """How a state is kept, and what hosts get of it.

    `keep` (a number) and `ttl` (seconds) limit which checkpoints are kept. `mode`: hosts get patches, the whole state,
    or only the checkpoints' names. `per`: whose state it is. `concurrency`: the calls on one tree run one after
    another, or each on a branch of its own. `big_integers`: those past 2^53, which JavaScript hosts would change, are
    refused, or kept as text; the default is to refuse them.
    """

    keep: int | None = 1000
    ttl: float | None = None
    mode: StateMode = "patch"
    per: StateOwnerKind = "principal"
    concurrency: StateConcurrency = "serial"
    store: str | Store | None = None
    big_integers: BigIntegerPolicy | None = None

    def check(self, subject: str) -> None:
        """Raises UsageError."""
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise UsageError(
                    f"{subject}: {name}={getattr(self, name)!r} is not possible",
                    fix=f"use one of {', '.join(map(repr, known))}",
                )
        Retention(self.keep, self.ttl)


_CHOICES = {
    "mode": ("patch", "data", "opaque"),
    "per": ("principal", "session", "server"),
    "concurrency": ("serial", "branch"),
    "big_integers": ("refuse", "text", None),
}


class States(Generic[M]):
    """The state of a feature set: one tree of checkpoints for each of its owners. Made by `set.state(Model)`.

    Inside a call or hook, the methods concern the caller's checkpoints. Elsewhere, `owner` says whose: a principal, or
    a session for a state per session. A checkpoint that is not kept (any more) raises CheckpointNotFound.
    """

    def __init__(
        self,
        feature_set: FeatureSetBase,
        model: type[M],
        options: StateOptions,
        store: Store,
        open_trees: Callable[[States[Any]], Awaitable[CheckpointStore]],
        server: McplServerState,
    ) -> None:
        options.check(f"state of {feature_set.name!r}")
        self.feature_set, self.model = feature_set, model
        self.mode, self.concurrency = options.mode, options.concurrency
        self.per: StateOwnerKind = options.per
        self.retention = Retention(options.keep, options.ttl)
        self._open_trees, self._trees, self._server = open_trees, None, server
        self.rollback_handler: RollbackHandler | None = None
        self.store = store
        self.locks = TreeLocks(store)
        self.chooses_integers = options.big_integers is not None or self.mode == "opaque"
        handling = None if self.mode == "opaque" else options.big_integers or "refuse"
        self.values = StateValues(model, f"state of {self.name!r}", handling)

    def __repr__(self) -> str:
        return f"<state of {self.name}>"

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):
            """Only for what does not exist: it is met with what does."""
            raise make_attribute_error("State", name, ELSEWHERE, dir(type(self)))

    @property
    def name(self) -> str:
        return self.feature_set.name

    # -- for authors -------------------------------------------------------------------------------------

    async def checkpoints(self, *, owner: str | Session | None = None) -> list[Checkpoint]:
        """All checkpoints that you can roll back to, oldest first.

        Of a state that all callers share, these are the ones that were its head, and the caller's own branches.
        """
        trees = await self.trees()
        listed = await trees.list_checkpoints(self._key(owner))
        own = self._branches_key(names=False)
        branched = await trees.list_checkpoints(own) if own is not None else []
        return sorted([*listed, *branched], key=lambda at: at.time) if branched else listed

    async def branches(self, *, owner: str | Session | None = None) -> list[Checkpoint]:
        """The ends of the tree: the checkpoints without a child."""
        return ends(await self.checkpoints(owner=owner))

    async def diff(
        self, a: Checkpoint | str, b: Checkpoint | str, *, owner: str | Session | None = None
    ) -> list[PatchOperation]:
        """The RFC 6902 patch that leads from one checkpoint to another."""
        before, after = await self._load_checkpoint(owner, _id(a)), await self._load_checkpoint(owner, _id(b))
        for held in (before, after):
            self.require_proof(CURRENT_CALL.get(), held)
        return diff_json_values(before.content(), after.content())

    async def at(self, checkpoint: Checkpoint | str | None = None, *, owner: str | Session | None = None) -> M:
        """The state as it was at a checkpoint, or as it is now. A copy: changes to it are not kept.

        In a dangerous tool, raises StateRefused if the checkpoint is not `proved`.
        """
        id = None if checkpoint is None else _id(checkpoint)
        held = await self._load_checkpoint(owner, id)
        self.require_proof(CURRENT_CALL.get(), held)
        with self.fitting():
            return self.values.parse_value(held.before)

    async def update(self, change: Callable[[M], Any], *, owner: str | Session | None = None) -> Checkpoint | None:
        """Change the state outside of a tool: `change` is given the value, and changes it. It may be async.

        Hosts that offer `stateUpdate` are told. Returns the new checkpoint; None if nothing has changed. In a call that
        has seen a state that is not `proved`, the new checkpoint is not proved either. Raises StateRefused for a value
        that cannot be kept, and if such a call would change what all callers share.
        """

        call = CURRENT_CALL.get()
        if self._find_hold() is not None:
            raise UsageError(f"{self!r} is held by this call", fix="change the value that the tool was given")
        made = await change_state(self, self._key(owner), change, call)
        if made is None:
            return None
        await self._tell_hosts(made, owner)
        return made.checkpoint

    async def _tell_hosts(self, made: CheckpointCommit, owner: str | Session | None) -> None:
        # A host that refuses it stays where it was, and branches off.
        told = [each for each in self._sessions(owner) if can_tell(self, each)]
        await asyncio.gather(*(_tell_host(self, made, session) for session in told))

    async def undo(self, *, owner: str | Session | None = None) -> bool:
        """Take the last change back; the next `undo` goes one further back. Returns whether there was a change.

        In a tool that takes the state, the value that it was given shows the result, and is kept if the call succeeds.
        Elsewhere, `owner` says whose state it is. An `on_rollback` of the set runs first, and may raise CannotUndo.
        """
        return await self._step("undo", owner)

    async def redo(self, *, owner: str | Session | None = None) -> bool:
        """Take the last `undo` back. Returns whether there was one since the last change."""
        return await self._step("redo", owner)

    async def history(self, limit: int = 20, *, owner: str | Session | None = None) -> list[Checkpoint]:
        """The last changes that `undo` would take back, the newest first: that one is where the state is now.

        Reads only as many checkpoints as are asked for. Changes that were undone are not part of it.
        """
        if owner is None and (hold := self._find_hold()) is not None:
            return await hold.list_changes(limit)
        trees, key = await self.trees(), self._key(owner)
        held = await trees.load_checkpoint(key)
        if held.record is None:
            return []
        return await ChangeLine(trees, [key]).list_changes(get_line_position(held.record), limit)

    async def _step(self, direction: UndoDirection, owner: str | Session | None) -> bool:
        if (hold := self._find_hold()) is not None:
            return await hold.undo_or_redo(direction)
        call = CURRENT_CALL.get()
        if owner is None and call is not None:
            raise UsageError(
                f".{direction}() of {self!r} in a function that does not take it",
                fix=f"in a tool, take it as a parameter: State[{self.model.__name__}]; elsewhere, pass owner=…",
            )
        made = await step_state(self, self._key(owner), direction, call)
        if made is not None:
            await self._tell_hosts(made, owner)
        return made is not None

    def _find_hold(self) -> StateHold | None:
        """The hold of the running call on this state."""
        call = CURRENT_CALL.get()
        working = call.peek(WorkingState) if call is not None else None
        return working.hold if working is not None and working.states is self else None

    async def restore_value(self, call: Call | None, line: ChangeLine, to: LinePosition) -> M:
        """The value at a place in the line, after the author's own undo. Raises CannotUndo, StateRefused."""
        with translate_checkpoint_gone_error():
            held = await line.load_checkpoint(to.at)
        self.require_proof(call, held)
        with self.fitting():
            value = self.values.parse_value(held.before)
        if (handler := self.rollback_handler) is not None:
            if held.checkpoint is None or call is None:
                raise CannotUndo(
                    "The first change cannot be taken back: no checkpoint is before it that on_rollback could be given"
                    if call is not None
                    else "This state has an on_rollback, which runs only in a call: undo it in a tool"
                )
            reason = await handler.run(call, held.checkpoint, call.session.composition.limits.tool)
            if reason is not None:
                raise CannotUndo(reason)
        return value

    async def of_host(self, session: Session) -> HostCheckpoint[M]:
        """Where a host is in this state, and the value that it keeps. Raises NoBackChannel if it keeps none.

        Raises PeerError as well: with -32006 if the host keeps no state of this set.
        """
        if not can_tell(self, session):
            needs = {"experimental": {"mcpl": {STATE_UPDATE_CAPABILITY: True}}}
            raise NoBackChannel(f"{GET}: the host does not keep states", needs=needs)
        asking = session.request(GET, {"featureSet": self.name}, timeout=session.composition.limits.callback)
        answer = await run_on_session_loop(session, asking)
        checkpoint = answer.get("checkpoint") if is_object(answer) else None
        is_id = isinstance(checkpoint, str) and len(checkpoint) <= MAX_CHECKPOINT_ID_LENGTH
        if not is_object(answer) or not (checkpoint is None or is_id):
            raise PeerError(f"the host's answer to {GET} has the wrong shape", code=0)
        data = answer.get("data")
        try:
            return HostCheckpoint(checkpoint, self.values.of_json(data) if data is not None else None)
        except ValueError:
            raise StateRefused("The host's state does not fit its model", data={"featureSet": self.name}) from None

    def _sessions(self, owner: str | Session | None) -> list[Session]:
        """The sessions whose hosts have this state."""
        if isinstance(owner, Session):
            return [owner]
        if self.per == "server":
            return self._server.sessions
        if owner is not None:
            return [session for session in self._server.sessions if session.principal == owner]
        call = CURRENT_CALL.get()
        return [call.session] if call is not None else []

    # -- for the section ---------------------------------------------------------------------------------

    def find_provider(self, annotation: object, extensions: object) -> StateProvider:
        """What a parameter is given that names this state: `Annotated[Model, notebooks]`."""
        return StateProvider(self)

    async def trees(self) -> CheckpointStore:
        if self._trees is None:
            self._trees = await self._open_trees(self)
        return self._trees

    @contextmanager
    def fitting(self) -> Generator[None]:
        """Inside, a content that does not fit the model raises StateRefused."""
        try:
            yield
        except ValueError as error:
            why = summarize_validation_error(error)
            message = f"The state of {self.name} does not fit its model: {why}\n  fix: {FIX_UNFIT}"
            raise StateRefused(message, data={"featureSet": self.name}) from None

    def require_proof(self, call: Call | None, held: HeldCheckpoint) -> None:
        """Raises StateRefused if a dangerous tool would see a state whose whole line is not the server's own.

        It may be another call that reads it, which the tool makes. Others may see it, and it is known that they did.
        """
        if held.verified or call is None:
            return
        if is_made_by_dangerous_tool(call):
            raise StateRefused(UNPROVED, data={"featureSet": self.name})
        mark_unproved_read(call, held)

    def refuse_integers(self, text: bytes) -> None:
        """Raises StateRefused for a text with an integer that must not be kept."""
        if (place := self.values.find_refused_integer(text)) is not None:
            raise StateRefused(
                f"The integer at {place or 'the root'} is past 2^53, and hosts may change it: keep it as text, "
                'or declare the state with big_integers="text"',
                data={"featureSet": self.name},
            )

    async def _load_checkpoint(self, owner: str | Session | None, id: str | None) -> HeldCheckpoint:
        """A checkpoint, or the head. Raises CheckpointNotFound."""
        trees, key = await self.trees(), self._key(owner, names=id is not None)
        with translate_checkpoint_gone_error():
            try:
                return await trees.load_checkpoint(key, id)
            except CheckpointGone:
                if (own := self._branches_key(names=True)) is None:
                    raise
                return await trees.load_checkpoint(own, id)

    def _branches_key(self, *, names: bool) -> TreeKey | None:
        """The tree of the caller's own branches off everyone's state; None if there is none, or it must name them."""
        if self.per != "server" or (call := CURRENT_CALL.get()) is None:
            return None
        owner = find_branch_owner(call)
        return TreeKey(self.name, owner.id) if owner.has_head or names else None

    def _key(self, owner: str | Session | None, *, names: bool = False) -> TreeKey:
        return TreeKey(self.name, self._owner(owner, names))

    def _owner(self, owner: str | Session | None, names: bool) -> str:
        if self.per == "server":
            return SHARED_OWNER_ID
        if isinstance(owner, Session):
            return get_session_owner_id(owner)
        if owner is not None:
            return owner
        if (call := CURRENT_CALL.get()) is None:
            raise UsageError(f"{self!r}: outside a call the owner is not known", fix="pass owner=…")
        caller = find_state_owner(call, self.per)
        if not (caller.has_head or names):
            raise UnknownStateOwner(call, self.per)  # it may not see what others did from there
        return caller.id


@contextmanager
def translate_checkpoint_gone_error() -> Generator[None]:
    """Inside, a checkpoint that is not there raises CheckpointNotFound."""
    try:
        yield
    except CheckpointGone as gone:
        raise CheckpointNotFound(gone.data["checkpoint"]) from None


def _id(checkpoint: Checkpoint | str) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.id


# -- States that a server changes by itself, and telling hosts: `state/update` and `state/get`.
#
# The methods are those of an older draft of 0.5. A host that takes them offers `stateUpdate`.


STATE_UPDATE_METHOD: Final = "state/update"
GET: Final = "state/get"
STATE_UPDATE_CAPABILITY: Final = "stateUpdate"
LOCK_SECONDS: Final = 30.0
UNPROVED_UPDATE: Final = (
    "All callers share this state, and this call has seen a state that is not proved: a caller brought it, or a part "
    "of it. So nothing was changed.\n  fix: start from a checkpoint that is proved, and read only such ones"
)


class HostCheckpoint(NamedTuple, Generic[M]):
    """Where a host is in a state, and the content that it keeps; None for what it does not have."""

    checkpoint: str | None
    value: M | None


async def lock_tree(states: States[Any], key: TreeKey, seconds: float) -> AsyncExitStack:
    """Let one after another work on a tree, unless each gets a branch. To be closed. Raises as `TreeLocks` does."""
    return await states.locks.acquire(key, seconds) if states.concurrency == "serial" else AsyncExitStack()


async def change_state(
    states: States[M], key: TreeKey, change: Callable[[M], Any], call: Call | None
) -> CheckpointCommit | None:
    """Change a state that no call holds. Returns what was committed; None if `change` changed nothing.

    `call` is the one that runs, if any: a dangerous one is not given an unproved state, and one that has seen an
    unproved state does not change what all callers share.
    """
    trees = await states.trees()
    async with await lock_tree(states, key, LOCK_SECONDS):
        held = await trees.load_checkpoint(key)
        states.require_proof(call, held)
        with states.fitting():
            value, before = states.values.take_unshared_value(held.before)
        outcome = change(value)
        if isinstance(outcome, Awaitable):
            await outcome
        text = states.values.dump(value)
        states.refuse_integers(text)
        draft = trees.draft_commit(held, text)
        if text == before or draft.is_same:
            return None
        with states.fitting():
            states.values.parse_value(draft.content)
        if key.owner == SHARED_OWNER_ID and not can_move_shared_head(call, held):
            raise StateRefused(UNPROVED_UPDATE, data={"featureSet": states.name})
        return await trees.commit(drop_proof_after_unproved_read(call, held), draft)


async def step_state(
    states: States[Any], key: TreeKey, direction: UndoDirection, call: Call | None
) -> CheckpointCommit | None:
    """Undo or redo a change of a state that no call holds. None if there is none."""
    trees = await states.trees()
    async with await lock_tree(states, key, LOCK_SECONDS):
        held, line = await trees.load_checkpoint(key), ChangeLine(trees, [key])
        position = get_line_position(held.record) if held.record is not None else None
        found = await line.find_position_after_step(position, direction) if position is not None else None
        if found is None:
            return None
        value = await states.restore_value(call, line, found)
        draft = trees.draft_commit(held, states.values.dump(value))
        if key.owner == SHARED_OWNER_ID and not can_move_shared_head(call, held):
            raise StateRefused(UNPROVED_UPDATE, data={"featureSet": states.name})
        return await trees.commit(drop_proof_after_unproved_read(call, held), draft, position=found)


def can_tell(states: States[Any], session: Session) -> bool:
    """Whether a host takes states of its own accord, and has enabled the set."""
    peer = Peer(session)
    offers = peer.live is not None and peer.live.offered.get(STATE_UPDATE_CAPABILITY) is True
    return offers and peer.calls_back and session.ready and peer.policy.allows(states.feature_set)


async def _tell_host(states: States[Any], made: CheckpointCommit, session: Session) -> None:
    with suppress(PeerGone):  # its loop has ended
        await run_on_session_loop(session, _send_update(states, made, session))


async def _send_update(states: States[Any], made: CheckpointCommit, session: Session) -> None:
    at, sent = made.checkpoint, session.local(SentCheckpoints)
    state: Params = {"featureSet": states.name, "checkpoint": at.id, "parent": at.parent}
    if states.mode != "opaque":
        patch = made.patch() if states.mode == "patch" and at.parent in sent else None
        state |= {"data": made.content} if patch is None else {"patch": patch}
    try:
        answer = await session.request(STATE_UPDATE_METHOD, state, timeout=session.composition.limits.callback)
        reason = None if is_object(answer) and answer.get("accepted") is True else "the host refuses it"
    except PeerError as error:
        reason = str(error)
    if reason is None:
        if states.mode != "opaque" and made.made is not None:
            sent.add(at.id, states.name, made.made.content.encoded)
        return
    from defserve.base.redaction import get_logger

    get_logger().warning("%s of %s: %s", STATE_UPDATE_METHOD, states.name, reason)


# -- The values of a state's model. Each call has a value of its own, read from JSON and written back to JSON.
#
# What a call leaves is read once more, to be sure that it can be read. The next call gets that value.


class _Known(NamedTuple, Generic[M]):
    """A content as the model writes it, and a value of it that no call has seen yet, if there is one."""

    text: bytes
    unseen: list[M]


class StateValues(Generic[M]):
    """Raises UsageError for a model that cannot be kept, or that has no initial value.

    `big_integers` says what becomes of integers past 2^53; None keeps them, for a content that no host sees.
    """

    def __init__(self, model: type[M], subject: str, big_integers: BigIntegerPolicy | None = None) -> None:
        self._adapter, self._big_integers = _adapter(model), big_integers
        from defserve.binding.core_schemas import make_pattern_bounded_validator

        # The adapter's own would match a text of any length, and a host may have written it.
        self._validate_json = make_pattern_bounded_validator(self._adapter).validate_json
        self._fresh = self._dump_initial_value(model, subject)
        self._known: WeakKeyDictionary[CheckpointContent, _Known[M]] = WeakKeyDictionary()

    def take_unshared_value(self, content: CheckpointContent | None) -> tuple[M, bytes]:
        """A value for one caller alone, and its text. Without content, the initial value. Raises ValueError."""
        known = self._known.get(content) if content is not None else None
        if known is not None:
            return known.unseen.pop() if known.unseen else self.parse_value(content), known.text
        value = self.parse_value(content)
        text = self.dump(value)
        if content is not None:
            self._known[content] = _Known(text, [])
        return value, text

    def store_value(self, content: CheckpointContent, value: M) -> None:
        """Keep an unused value of a content for the next caller."""
        self._known[content] = _Known(self.dump(value), [value])

    def parse_value(self, content: CheckpointContent | None) -> M:
        """A new value. Raises ValueError if the content does not fit the model."""
        return self._validate_json(self._fresh if content is None else content.encoded)

    def of_json(self, data: Any) -> M:
        """A value of what a peer sent. Raises ValueError if it does not fit the model."""
        return self._validate_json(to_json(data))

    def dump(self, value: M) -> bytes:
        text = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False)
        return with_texts(text) if self._big_integers == "text" else text

    def find_refused_integer(self, text: bytes) -> str | None:
        """Where a text has an integer that must not be kept, as a JSON pointer."""
        return big_integer(text) if self._big_integers == "refuse" else None

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the model."""
        return self._adapter.json_schema(mode="serialization")

    def _dump_initial_value(self, model: type[M], subject: str) -> bytes:
        try:
            fresh = self.dump(model())
            self._validate_json(fresh)
            return fresh
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{subject}: {model.__name__}() cannot make the initial state: {summarize_validation_error(error)}",
                fix="give every field a default",
            ) from None


def summarize_validation_error(error: Exception) -> str:
    """The first problem, in one line and without the values."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return type(error).__name__
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _adapter(model: type[M]) -> TypeAdapter[M]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    from defserve.binding.arguments import UnusablePattern, check_core_schema_patterns

    try:
        made = TypeAdapter(model)
        check_core_schema_patterns(made.core_schema)
        return made
    except UnusablePattern as error:
        raise UsageError(f"state: {model.__name__}: {error.problem}", fix=error.fix) from None
    except PydanticUserError as error:
        raise UsageError(f"state: {model!r} cannot be kept as JSON", fix="use a pydantic model") from error


# -- Integers past 2^53 in a state. A host written in JavaScript would change them without a word.
#
# They are refused, or kept and sent as text, by the author's choice.


BigIntegerPolicy: TypeAlias = Literal["refuse", "text"]

SAFE: Final = 2**53

# The shortest number past 2^53 has sixteen digits, so most states need not be parsed.
_LONG: Final = re.compile(rb"[0-9]{16}")


def big_integer(text: bytes) -> str | None:
    """Where the JSON text has an integer past 2^53, as a JSON pointer; None if it has none."""
    return _place(from_json(text), "") if _LONG.search(text) else None


def with_texts(text: bytes) -> bytes:
    """The JSON text with its integers past 2^53 as strings."""
    return to_json(_as_text(from_json(text))) if big_integer(text) is not None else text


def _is_big(value: Any) -> bool:
    return type(value) is int and abs(value) > SAFE


def _place(value: Any, path: str) -> str | None:
    if is_object(value):
        below = ((f"{path}/{name}", item) for name, item in value.items())
    elif is_array(value):
        below = ((f"{path}/{index}", item) for index, item in enumerate(value))
    else:
        return path if _is_big(value) else None
    return next((found for place, item in below if (found := _place(item, place)) is not None), None)


def _as_text(value: Any) -> Any:
    if is_object(value):
        return {name: _as_text(item) for name, item in value.items()}
    if is_array(value):
        return [_as_text(item) for item in value]
    return str(value) if _is_big(value) else value
