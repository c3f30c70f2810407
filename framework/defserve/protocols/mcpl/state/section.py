"""MCPL §8: the states of a server's sets, the stage that holds one for a call, and `state/rollback`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from defserve.auth.authority import AUTHENTICATION_HINT, is_stranger
from defserve.auth.principals import Principal
from defserve.base.concurrency import wait_for_shared
from defserve.core.call import Call
from defserve.core.extension import Handler, Next, Wrapper
from defserve.core.messages import Params
from defserve.core.peer import mask_unexpected_error
from defserve.core.session import Session
from defserve.core.shapes import read_member
from defserve.errors import InvalidParams, Refused, ToolError, UsageError
from defserve.protocols.mcp.errors import read_text_param
from defserve.protocols.mcp.function import FindProvider, Function
from defserve.protocols.mcpl.peers import CURRENT_CALL
from defserve.protocols.mcpl.section import FeatureBinding, McplSection, McplServerState
from defserve.protocols.mcpl.state.binding import WorkingState, find_injected_states
from defserve.protocols.mcpl.state.ownership import (
    CHECKPOINT_ID_KIND,
    SHARED_OWNER_ID,
    RolledBack,
    SessionOwnerId,
    UnknownStateOwner,
    add_state_to_result,
    can_move_shared_head,
    drop_proof_after_unproved_read,
    find_branch_owner,
    find_state_fields,
    find_state_owner,
    get_session_owner_id,
    load_shared_start_checkpoint,
    load_start_checkpoint,
    make_branch_owner_id,
    read_start_state,
)
from defserve.protocols.mcpl.state.states import StateOptions, States, lock_tree, translate_checkpoint_gone_error
from defserve.protocols.mcpl.state.undo import ChangeLine, UndoDirection, get_line_position, overwrite_in_place
from defserve.protocols.mcpl.vocabulary import CheckpointNotFound, StateRefused, UnknownFeatureSet
from defserve.stores.checkpoints.checkpoint_store import (
    CheckpointCommit,
    CheckpointStore,
    HeldCheckpoint,
    find_old_secret,
    load_checkpoint_secret,
)
from defserve.stores.checkpoints.checkpoint_tree import (
    Checkpoint,
    CheckpointDraft,
    CheckpointGone,
    LinePosition,
    TreeKey,
)
from defserve.stores.identity import make_server_store
from defserve.stores.store import Store

if TYPE_CHECKING:
    from defserve.protocols.mcpl.section import FeatureSetBase
    from defserve.protocols.mcpl.state.binding import StateStorage


FACET: Final = "mcpl.state"


class StateSection(McplSection):
    """The states of a server, by the names of their sets."""

    def __init__(self, server: McplServerState, storage: StateStorage) -> None:
        super().__init__(server)
        self._storage = storage
        self._states: dict[str, States[Any]] = {}
        self._default: Store | None = None
        self._opened: dict[Store, int] = {}

    def __iter__(self) -> Iterator[States[Any]]:
        return iter(self._states.values())

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(self, feature_set: FeatureSetBase, model: type[Any], options: StateOptions) -> States[Any]:
        """Raises UsageError for a model that cannot be kept, a second state of one set, and while serving."""
        if feature_set.name in self._states:
            raise UsageError(
                f"feature set {feature_set.name!r} has a state already",
                fix="put both in one model, or make another set",
            )
        if self.server.composition is not None:
            raise UsageError(
                "a state was declared after the server has started", fix="declare it where you create the server"
            )
        store = self._store_of(options.store)
        states = self._states[feature_set.name] = States(
            feature_set, model, options, store, self._open_trees, self.server
        )
        feature_set.rollback, feature_set.host_state = True, states.mode != "opaque"
        feature_set.changed()
        return states

    def on_rollback(self, feature_set: FeatureSetBase, function: Callable[..., Any]) -> None:
        if (states := self._states.get(feature_set.name)) is None:
            raise UsageError(
                f"feature set {feature_set.name!r} has no state to roll back",
                fix="declare it first, on the same set: notes.state(Model)",
            )
        if states.rollback_handler is not None:
            raise UsageError(
                f"feature set {feature_set.name!r} has an on_rollback already", fix="do both in one function"
            )
        states.rollback_handler = RollbackHandler(function, self.server.find_provider, feature_set.owner)

    def has_rollback_handler(self, name: str) -> bool:
        """Whether the state of a set has an `on_rollback`."""
        return name in self._states and self._states[name].rollback_handler is not None

    def bind_item_state(self, item: Any, binding: FeatureBinding | None) -> None:
        """Note which state an item takes. Raises UsageError for the state of another set."""
        for states in find_injected_states(item.function.signature):
            if binding is None and states.feature_set.is_of_server and item.kind == "tool":
                binding = item.facets["mcpl"] = FeatureBinding(states.feature_set)
            if item.kind != "tool" or binding is None or binding.feature_set is not states.feature_set:
                raise UsageError(
                    f"{item.kind} {item.name!r} takes {states!r}, which only that set's tools can take",
                    where=item.where,
                    fix="declare it with the set's own @….tool, or await the state's .at()",
                )
            item.facets[FACET] = states

    # -- the plug ----------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {"state/rollback": self.rollback}

    def around(self) -> Mapping[str, Wrapper]:
        return {"tools/call": self._around_call}

    def hold_state(self, call: Call, item: Any, arguments: dict[str, Any]) -> StateHold | None:
        states: States[Any] | None = item.facets.get(FACET)
        return StateHold(states, call) if states is not None else None

    def bind_request(self, call: Call) -> Params | None:
        """The state that a request brings, for the answers to it: they are for a call that starts at the same state."""
        said = find_state_fields(call)
        return {name: said[name] for name in ("checkpoint", "state") if name in said} or None

    async def _around_call(self, call: Call, params: Params, following: Next) -> Any:
        """Add the checkpoint that a call has made to its result, for hosts that negotiated MCPL."""
        result = await following(call, params)
        new = call.peek(NewCheckpoint)
        if new is not None and new.made is not None:
            add_state_to_result(call, *new.made, result)
        return result

    async def rollback(self, call: Call, params: Params) -> Params:
        name, checkpoint = read_text_param(params, "featureSet"), read_member(params, "checkpoint", CHECKPOINT_ID_KIND)
        if (feature_set := self.server.sets.get(name)) is None:
            raise UnknownFeatureSet(name)
        feature_set.require_enabled(call)
        if (states := self._states.get(name)) is None:
            raise InvalidParams(f"Invalid params: feature set {name!r} has no state to roll back")
        return await roll_back(call, states, checkpoint, states.rollback_handler)

    def session_closed(self, session: Session) -> None:
        if session.sharer is not None:
            if not session.sharer.goes_on:
                session.engine.spawn(self._drop_state(get_session_owner_id(session)))
        elif (owner := session.peek(SessionOwnerId)) is not None:
            session.engine.spawn(self._drop_state(owner.id))

    async def _drop_state(self, owner: str) -> None:
        """Drop the state of a session that is over. Nobody can return to it."""
        for states in self:
            with suppress(Refused):  # then `defserve state prune` removes it
                key = TreeKey(states.name, make_branch_owner_id(owner) if states.per == "server" else owner)
                # After a call that is being stopped, so that what it still commits goes too.
                async with await states.locks.acquire(key, self._storage.limits.lock):
                    await (await states.trees()).drop_tree(key)

    # -- where it is kept --------------------------------------------------------------------------------

    def _store_of(self, given: str | Store | None) -> Store:
        """The store of a state: its own, the server's, or the memory of this process."""
        if given is not None:
            return make_server_store(given, self._storage.identity())
        if self._default is None:
            self._default = self._storage.store or make_server_store("memory:", self._storage.identity())
        return self._default

    async def _open_trees(self, states: States[Any]) -> CheckpointStore:
        limits = self._storage.limits
        return CheckpointStore(
            states.store,
            secret=await load_checkpoint_secret(states.store, self._storage.secret(), self._storage.identity()),
            old_secret=await find_old_secret(states.store),
            retention=states.retention,
            max_bytes=limits.checkpoint,
            max_depth=limits.depth,
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Open the stores before the first call, so that problems show early. The last server to stop closes them."""
        stores = list[Store]()
        try:
            for store in dict.fromkeys(states.store for states in self):
                await store.open()
                self._opened[store] = self._opened.get(store, 0) + 1
                stores.append(store)
            yield
        finally:
            for store in stores:
                self._opened[store] -= 1
            for store in stores:
                if not self._opened[store]:
                    await store.close()


# -- A state held for one call, with or without MCPL: the call's value is kept if the call succeeds, dropped otherwise.


async def run_uninterrupted(call: Call, work: Coroutine[Any, Any, Any]) -> None:
    """Do something to its end, even if the call is cancelled. The cancellation takes effect afterwards."""
    task = cast("asyncio.Task[Any]", call.engine.spawn(work))
    try:
        await wait_for_shared(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise


class NewCheckpoint:
    """The checkpoint that a call has made, if it made one."""

    made: tuple[States[Any], CheckpointCommit] | None = None


class StateHold:
    """The hold stage of one call."""

    __slots__ = (
        "_states", "_call", "_lock", "_trees", "_held", "_own", "_branches", "_moves_head", "_before", "_value",
        "_position", "_restored",
    )  # fmt: skip

    def __init__(self, states: States[Any], call: Call) -> None:
        self._states, self._call = states, call
        self._lock: AsyncExitStack | None = None
        self._trees: CheckpointStore | None = None
        self._held: HeldCheckpoint | None = None
        self._own: TreeKey | None = None  # of the caller's branches, if all callers share the state
        self._branches, self._moves_head = False, True
        self._before, self._value = b"", None
        self._position: LinePosition | None = None  # where this call's undo or redo leads, and the text that is there
        self._restored = b""

    async def __aenter__(self) -> None:
        call, states = self._call, self._states
        brought, owner = read_start_state(call), find_state_owner(call, states.per)
        if brought.state is not None and states.mode == "opaque":  # hosts never see its content
            raise StateRefused(
                "This state is kept by the server; send its checkpoint instead", data={"featureSet": states.name}
            )
        if not (owner.has_head or brought.names):
            raise UnknownStateOwner(call, states.per)
        key = TreeKey(states.name, owner.id)
        if states.concurrency == "serial":
            self._lock = await states.locks.acquire(key, call.session.composition.limits.lock)
        try:
            self._trees = trees = await states.trees()
            # It may start elsewhere than at the head. Then its result is a branch.
            is_elsewhere = brought.checkpoint is not None or brought.state is not None
            if owner.is_shared:
                branches = find_branch_owner(call)
                self._held = held = await load_shared_start_checkpoint(trees, key, branches, brought, call)
                self._own = TreeKey(states.name, branches.id)
                is_elsewhere = is_elsewhere and not (held.key == key and held.is_head)
                self._moves_head = not is_elsewhere
            else:
                self._held = held = await load_start_checkpoint(trees, key, brought, call, has_head=owner.has_head)
            self._branches = is_elsewhere or not owner.has_head or states.concurrency == "branch"
            states.require_proof(call, held)
            with states.fitting():
                self._value, self._before = states.values.take_unshared_value(held.before)
        except CheckpointGone as gone:
            await self._release()
            raise CheckpointNotFound(gone.data["checkpoint"]) from None
        except BaseException:
            await self._release()
            raise
        working = call.local(WorkingState)
        working.states, working.value, working.hold = states, self._value, self

    async def undo_or_redo(self, direction: UndoDirection) -> bool:
        """Undo or redo a change, in the value that the call was given. Returns whether there was one."""
        line, position = self._line()
        if position is None or (found := await line.find_position_after_step(position, direction)) is None:
            return False
        value = await self._states.restore_value(self._call, line, found)
        self._position, self._restored = found, self._states.values.dump(value)
        overwrite_in_place(self._value, value)
        return True

    async def list_changes(self, limit: int) -> list[Checkpoint]:
        line, position = self._line()
        return await line.list_changes(position, limit) if position is not None else []

    def _line(self) -> tuple[ChangeLine, LinePosition | None]:
        """The line that the call is in, and where it is there; None if its beginning is not kept."""
        held = self._held
        assert held is not None and self._trees is not None
        keys = [held.key] if self._own is None else [held.key, self._own, TreeKey(self._states.name, SHARED_OWNER_ID)]
        position = get_line_position(held.record) if held.record is not None else None
        return ChangeLine(self._trees, list(dict.fromkeys(keys))), self._position or position

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            over = kind is not None or self._call.stopped or self._call.settled
            made = None if over else self._make_draft()
        except BaseException:
            await self._release()
            raise
        if made is None:
            await self._release()
        else:
            await run_uninterrupted(self._call, self._commit(*made))

    def _make_draft(self) -> tuple[CheckpointDraft, Any] | None:
        """What to keep, and a value of it for the next call; None if nothing has changed.

        Raises TypeError for a value that could not be read again.
        """
        states, held, trees = self._states, self._held, self._trees
        assert held is not None and trees is not None
        text = states.values.dump(self._value)
        if text != self._restored:
            self._position = None  # what the call changed after an undo is a change of its own
        if text == self._before and self._position is None:
            return None
        states.refuse_integers(text)
        draft = trees.draft_commit(held, text)
        if draft.is_same and self._position is None:
            return None  # the same content in another order
        try:
            return draft, states.values.parse_value(draft.content)
        except ValueError as error:
            raise TypeError(f"a tool left {states!r} in a form that its model refuses: {error}") from None

    async def _commit(self, draft: CheckpointDraft, value: Any) -> None:
        """Keep the change, and only then let the next call in."""
        assert self._held is not None and self._trees is not None
        held = drop_proof_after_unproved_read(self._call, self._held)
        if self._own is not None and not can_move_shared_head(self._call, held):
            self._branches, self._moves_head = True, False
        try:
            if self._own is not None and not self._moves_head and held.key != self._own:
                held = await self._trees.rebase_held_checkpoint(self._own, held)
            commit = await self._trees.commit(
                held, draft, branch=self._branches, moves_head=self._moves_head, position=self._position
            )
            self._states.values.store_value(draft.content, value)
        finally:
            await self._release()
        self._call.local(NewCheckpoint).made = self._states, commit

    async def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.aclose()


# -- MCPL §8.5–8.7: state/rollback. The author's undo runs first. If it fails, nothing changes.


UNPROVED_SHARED: Final = (
    "All callers share this state, and a caller brought a part of that checkpoint, or version 0.1.0 kept it. An "
    "operator can roll back to it with defserve state rollback"
)

ON_A_BRANCH: Final = (
    "All callers share this state, and that checkpoint is on a branch of your own, which they do not see. Calls can "
    "start there. An operator can put its content into the shared state: defserve state branch STORE CHECKPOINT "
    "--content FILE"
)


class RollbackTarget:
    """The checkpoint that a rollback leads to."""

    checkpoint: Checkpoint | None = None


class RollbackHandler:
    """An author's function, `(to: Checkpoint)`. `owner` is its server. Raises UsageError if it could not be called."""

    __slots__ = ("function", "owner")

    def __init__(self, function: Callable[..., Any], find_provider: FindProvider, owner: object) -> None:
        self.function = Function(
            function,
            lambda kind: (
                (lambda call: call.local(RollbackTarget).checkpoint) if kind is Checkpoint else find_provider(kind)
            ),
        )
        self.owner = owner
        signature = self.function.signature
        if signature.parameters:
            raise UsageError(
                f"{self.name}: a rollback has no value for the parameter {signature.parameters[0].name!r}",
                where=signature.where,
                fix="annotate it: `to: Checkpoint`, or drop it",
            )

    @property
    def name(self) -> str:
        return self.function.signature.name

    async def run(self, call: Call, to: Checkpoint, seconds: float) -> str | None:
        """Why it could not be undone; None if it was."""
        call.local(RollbackTarget).checkpoint = to
        try:
            await self.function.run(call, {}, seconds)
        except (Refused, ToolError) as refused:
            return refused.message
        except Exception as error:
            return mask_unexpected_error(call, error)
        return None


async def roll_back(call: Call, states: States[Any], id: str, undo: RollbackHandler | None) -> Params:
    """Undo what came after a checkpoint and make it the head. Raises CheckpointNotFound."""
    CURRENT_CALL.set(call)
    call.subject = undo
    owner = find_state_owner(call, states.per)
    key = TreeKey(states.name, owner.id)
    trees, limits = await states.trees(), call.session.composition.limits
    async with await lock_tree(states, key, limits.lock):
        with translate_checkpoint_gone_error():
            try:
                held = await trees.load_checkpoint(key, id)
            except CheckpointGone:
                if not owner.is_shared:
                    raise
                await trees.load_checkpoint(TreeKey(states.name, find_branch_owner(call).id), id)
                return RolledBack(id, reason=ON_A_BRANCH).to_wire()
            to = held.checkpoint
            if owner.is_shared and (refused := _refuse_shared(call, held)) is not None:
                return RolledBack(id, reason=refused).to_wire()
            reason = await undo.run(call, to, limits.tool) if undo is not None and to is not None else None
            if reason is not None:
                return RolledBack(id, reason=reason).to_wire()
            # The author's undo is done: the state must follow, even if the call is cancelled, or if the checkpoint is
            # no longer retained.
            await run_uninterrupted(call, trees.restore_as_head(held))
    return RolledBack(id, True).to_wire()


def _refuse_shared(call: Call, held: HeldCheckpoint) -> str | None:
    """Why this caller may not make a checkpoint the head of everyone's state; None if it may."""
    if isinstance(call.identity, Principal) and is_stranger(call.identity):
        return (
            "All callers share this state, and a caller without a verified identity cannot undo it: "
            f"{AUTHENTICATION_HINT}"
        )
    return None if held.verified else UNPROVED_SHARED
