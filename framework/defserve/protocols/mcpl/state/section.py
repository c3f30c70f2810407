"""MCPL §8 in a server: the states of all sets, where they are kept, and the stage that holds one for each call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from defserve.core.call import Call
from defserve.core.session import Session
from defserve.errors import InvalidParams, Refused, UsageError
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl.errors import UnknownFeatureSet
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.protocols.mcpl.policies import require
from defserve.protocols.mcpl.section import Section
from defserve.protocols.mcpl.state.binding import states_in
from defserve.protocols.mcpl.state.call import Holding, Made
from defserve.protocols.mcpl.state.owner import SessionOwner
from defserve.protocols.mcpl.state.rollback import Undo, roll_back
from defserve.protocols.mcpl.state.states import StateOptions, States
from defserve.protocols.mcpl.state.wire import checkpoint_in, tell
from defserve.stores.checkpoints.secret import checkpoint_secret
from defserve.stores.checkpoints.store import CheckpointStore
from defserve.stores.checkpoints.tree import TreeKey
from defserve.stores.open import open_store
from defserve.stores.store import Store
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL

FACET: Final = "mcpl.state"


class Stating(Section):
    """The states of a server, by the names of their sets."""

    def __init__(self, mcpl: MCPL) -> None:
        super().__init__(mcpl)
        self._states: dict[str, States[Any]] = {}
        self._undos: dict[str, Undo] = {}
        self._default: Store | None = None
        self._opened: dict[Store, int] = {}

    def __iter__(self) -> Iterator[States[Any]]:
        return iter(self._states.values())

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(self, feature_set: FeatureSet, model: type[Any], options: StateOptions) -> States[Any]:
        """Raises UsageError for what cannot be kept, a second state of one set, and one that comes too late."""
        if feature_set.name in self._states:
            raise UsageError(
                f"feature set {feature_set.name!r} has a state already",
                fix="put both in one model, or make another set",
            )
        if self.mcpl.composition is not None:
            raise UsageError("a state comes after serving began", fix="declare it where the server is made")
        states = self._states[feature_set.name] = States(self, feature_set, model, options)
        feature_set.rollback, feature_set.host_state = True, states.mode != "opaque"
        return states

    def on_rollback(self, feature_set: FeatureSet, function: Callable[..., Any]) -> None:
        if feature_set.name not in self._states:
            raise UsageError(
                f"feature set {feature_set.name!r} has no state to roll back", fix="declare it before: set.state(Model)"
            )
        if feature_set.name in self._undos:
            raise UsageError(f"feature set {feature_set.name!r} has an undo already", fix="do both in one function")
        self._undos[feature_set.name] = Undo(function, self.mcpl.find_provider, self.mcpl.owner)

    def read(self, item: Any, tie: Any) -> None:
        """Note which state an item is given. Raises UsageError for one that is not its to change."""
        for states in states_in(item.function.signature):
            if item.kind != "tool" or tie is None or tie.feature_set is not states.feature_set:
                raise UsageError(
                    f"{item.kind} {item.name!r} is given {states!r}, which is held for that set's tools",
                    where=item.where,
                    fix="declare it with the set's own @….tool, or await the state's .at()",
                )
            item.facets[FACET] = states

    # -- the plug ----------------------------------------------------------------------------------------

    def hold(self, call: Call, item: Any) -> Holding | None:
        states: States[Any] | None = item.facets.get(FACET)
        return states.holding(call) if states is not None else None

    def tell(self, call: Call, result: Params) -> None:
        """Add the state that a call has made to its result, where MCPL was negotiated."""
        made = call.peek(Made)
        if made is not None and made.states is not None and made.commit is not None:
            tell(call, made.states, made.commit, result)

    async def rollback(self, call: Call, params: Params) -> Params:
        name, checkpoint = text(params, "featureSet"), checkpoint_in(params)
        feature_set = self.mcpl.sets.get(name)
        if feature_set is None:
            raise UnknownFeatureSet(name)
        require(call, feature_set)
        states = self._states.get(name)
        if states is None:
            raise InvalidParams(f"Invalid params: feature set {name!r} has no state to roll back")
        return await roll_back(call, states, checkpoint, self._undos.get(name))

    def session_closed(self, session: Session) -> None:
        owner = session.peek(SessionOwner)
        if owner is not None:
            session.engine.spawn(self._forget(owner.id))

    async def _forget(self, owner: str) -> None:
        """A session is over, and nobody can come back to what was its own."""
        for states in self:
            if states.per != "server":
                with suppress(Refused):  # then it is left to `defserve state prune`
                    await self._forget_tree(states, TreeKey(states.name, owner))

    async def _forget_tree(self, states: States[Any], key: TreeKey) -> None:
        # Behind a call that is being stopped: what it still commits goes too.
        turn = await states.turns.take(key, self.mcpl.keeping.limits.tool)
        try:
            await (await states.trees()).forget(key)
        finally:
            await turn.end()

    # -- where it is kept --------------------------------------------------------------------------------

    def store_of(self, given: str | Store | None) -> Store:
        """The store a state is kept in: its own, the server's, or this process's memory."""
        if given is not None:
            return open_store(given) if isinstance(given, str) else given
        if self._default is None:
            self._default = self.mcpl.keeping.store or open_store("memory:")
        return self._default

    async def trees_of(self, states: States[Any]) -> CheckpointStore:
        limits = self.mcpl.keeping.limits
        return CheckpointStore(
            states.store,
            secret=await checkpoint_secret(states.store, self.mcpl.keeping.secret()),
            retention=states.retention,
            max_bytes=limits.checkpoint,
            max_depth=limits.depth,
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Hear of a store in trouble before the first call; let go of it with the last that serves."""
        stores = list(dict.fromkeys(states.store for states in self))
        for store in stores:
            await store.open()
            self._opened[store] = self._opened.get(store, 0) + 1
        try:
            yield
        finally:
            for store in stores:
                self._opened[store] -= 1
            await _close(store for store in stores if not self._opened[store])


async def _close(stores: Iterable[Store]) -> None:
    for store in stores:
        await store.close()
