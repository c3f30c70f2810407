"""MCPL §8: the states of a server's sets, where they are kept, and the stage that holds one for a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from defserve.core.call import Call
from defserve.core.extension import Next
from defserve.core.session import Session
from defserve.errors import InvalidParams, Refused, UsageError
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl.errors import UnknownFeatureSet
from defserve.protocols.mcpl.section import LiveServer, Section
from defserve.protocols.mcpl.state.binding import states_in
from defserve.protocols.mcpl.state.call import NewCheckpoint, StateHold
from defserve.protocols.mcpl.state.owner import SessionOwner, branches_owner, session_owner
from defserve.protocols.mcpl.state.rollback import RollbackHandler, roll_back
from defserve.protocols.mcpl.state.states import StateOptions, States
from defserve.protocols.mcpl.state.wire import checkpoint_in, state_fields, tell
from defserve.stores.checkpoints.secret import checkpoint_secret, find_old_secret
from defserve.stores.checkpoints.store import CheckpointStore
from defserve.stores.checkpoints.tree import TreeKey
from defserve.stores.identity import server_store
from defserve.stores.store import Store
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.feature import Feature, FeatureBinding
    from defserve.protocols.mcpl.state.storage import StateStorage

FACET: Final = "mcpl.state"


class StateSection(Section):
    """The states of a server, by the names of their sets."""

    def __init__(self, server: LiveServer, storage: StateStorage) -> None:
        super().__init__(server)
        self._storage = storage
        self._states: dict[str, States[Any]] = {}
        self._undos: dict[str, RollbackHandler] = {}
        self._default: Store | None = None
        self._opened: dict[Store, int] = {}

    def __iter__(self) -> Iterator[States[Any]]:
        return iter(self._states.values())

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(self, feature_set: Feature, model: type[Any], options: StateOptions) -> States[Any]:
        """Raises UsageError for a model that cannot be kept, a second state of one set, and while serving."""
        if feature_set.name in self._states:
            raise UsageError(
                f"feature set {feature_set.name!r} has a state already",
                fix="put both in one model, or make another set",
            )
        if self.server.composition is not None:
            raise UsageError("a state was declared after serving began", fix="declare it where the server is made")
        store = self._store_of(options.store)
        states = self._states[feature_set.name] = States(
            feature_set, model, options, store, self._open_trees, self.server
        )
        feature_set.rollback, feature_set.host_state = True, states.mode != "opaque"
        feature_set.changed()
        return states

    def on_rollback(self, feature_set: Feature, function: Callable[..., Any]) -> None:
        if feature_set.name not in self._states:
            raise UsageError(
                f"feature set {feature_set.name!r} has no state to roll back",
                fix="declare it first, on the same set: notes.state(Model)",
            )
        if feature_set.name in self._undos:
            raise UsageError(
                f"feature set {feature_set.name!r} has an on_rollback already", fix="do both in one function"
            )
        self._undos[feature_set.name] = RollbackHandler(function, self.server.find_provider, feature_set.owner)

    def undoes(self, name: str) -> bool:
        """Whether the state of a set has an `on_rollback`."""
        return name in self._undos

    def read(self, item: Any, binding: FeatureBinding | None) -> None:
        """Note which state an item takes. Raises UsageError for the state of another set."""
        for states in states_in(item.function.signature):
            if item.kind != "tool" or binding is None or binding.feature_set is not states.feature_set:
                raise UsageError(
                    f"{item.kind} {item.name!r} takes {states!r}, which only that set's tools can take",
                    where=item.where,
                    fix="declare it with the set's own @….tool, or await the state's .at()",
                )
            item.facets[FACET] = states

    # -- the plug ----------------------------------------------------------------------------------------

    def hold(self, call: Call, item: Any, arguments: dict[str, Any]) -> StateHold | None:
        states: States[Any] | None = item.facets.get(FACET)
        return StateHold(states, call) if states is not None else None

    def bind_request(self, call: Call) -> Params | None:
        """The state that a request brings, for the answers to it: they are for a call that starts at the same state."""
        said = state_fields(call)
        return {name: said[name] for name in ("checkpoint", "state") if name in said} or None

    async def around_call(self, call: Call, params: Params, following: Next) -> Any:
        """Add the checkpoint that a call has made to its result, for hosts that negotiated MCPL."""
        result = await following(call, params)
        new = call.peek(NewCheckpoint)
        if new is not None and new.made is not None:
            tell(call, *new.made, result)
        return result

    async def rollback(self, call: Call, params: Params) -> Params:
        name, checkpoint = text(params, "featureSet"), checkpoint_in(params)
        if (feature_set := self.server.sets.get(name)) is None:
            raise UnknownFeatureSet(name)
        feature_set.require(call)
        if (states := self._states.get(name)) is None:
            raise InvalidParams(f"Invalid params: feature set {name!r} has no state to roll back")
        return await roll_back(call, states, checkpoint, self._undos.get(name))

    def session_closed(self, session: Session) -> None:
        if session.sharer is not None:
            if not session.sharer.goes_on:
                session.engine.spawn(self._forget(session_owner(session)))
        elif (owner := session.peek(SessionOwner)) is not None:
            session.engine.spawn(self._forget(owner.id))

    async def _forget(self, owner: str) -> None:
        """Drop the state of a session that is over. Nobody can return to it."""
        for states in self:
            with suppress(Refused):  # then `defserve state prune` removes it
                key = TreeKey(states.name, branches_owner(owner) if states.per == "server" else owner)
                # After a call that is being stopped, so that what it still commits goes too.
                lock = await states.locks.acquire(key, self._storage.limits.lock)
                try:
                    await (await states.trees()).forget(key)
                finally:
                    await lock.release()

    # -- where it is kept --------------------------------------------------------------------------------

    def _store_of(self, given: str | Store | None) -> Store:
        """The store of a state: its own, the server's, or the memory of this process."""
        if given is not None:
            return server_store(given, self._storage.identity())
        if self._default is None:
            self._default = self._storage.store or server_store("memory:", self._storage.identity())
        return self._default

    async def _open_trees(self, states: States[Any]) -> CheckpointStore:
        limits = self._storage.limits
        return CheckpointStore(
            states.store,
            secret=await checkpoint_secret(states.store, self._storage.secret(), self._storage.identity()),
            old_secret=await find_old_secret(states.store),
            retention=states.retention,
            max_bytes=limits.checkpoint,
            max_depth=limits.depth,
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Open the stores before the first call, so that problems show early. The last server to stop closes them."""
        stores = list(dict.fromkeys(states.store for states in self))
        for store in stores:
            await store.open()
            self._opened[store] = self._opened.get(store, 0) + 1
        try:
            yield
        finally:
            for store in stores:
                self._opened[store] -= 1
            for store in stores:
                if not self._opened[store]:
                    await store.close()
