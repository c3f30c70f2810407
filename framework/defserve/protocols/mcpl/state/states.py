"""MCPL §8: the state of a feature set, as its author uses it.

notebooks = notes.state(Notebook, keep=1000)
…
for checkpoint in await notebooks.checkpoints():        # inside a call: the caller's
    print(checkpoint.id, await notebooks.at(checkpoint))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from defserve.core.session import Session
from defserve.errors import UsageError, no_attribute
from defserve.protocols.mcpl.current import CURRENT
from defserve.protocols.mcpl.errors import CheckpointNotFound, StateRefused
from defserve.protocols.mcpl.state.binding import StateProvider, WorkingState
from defserve.protocols.mcpl.state.integers import BigIntegers
from defserve.protocols.mcpl.state.locks import TreeLocks
from defserve.protocols.mcpl.state.owner import EVERYONE, Per, StateUnowned, branches_of, owner_of, session_owner
from defserve.protocols.mcpl.state.proof import is_for_dangerous, note_reading
from defserve.protocols.mcpl.state.values import StateValues, summary
from defserve.stores.checkpoints.diffs import Op, diff
from defserve.stores.checkpoints.store import CheckpointStore, HeldCheckpoint
from defserve.stores.checkpoints.tree import Checkpoint, CheckpointGone, Retention, TreeKey
from defserve.stores.checkpoints.tree import branches as ends

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.protocols.mcpl.feature import Feature
    from defserve.protocols.mcpl.section import LiveServer
    from defserve.protocols.mcpl.state.updates import HostCheckpoint
    from defserve.stores.store import Store

M = TypeVar("M")

Mode = Literal["patch", "data", "opaque"]
Concurrency = Literal["serial", "branch"]

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
    "in a tool, copy what await .at(checkpoint) gives into the state (docs/cookbook/undo.md); hosts roll back by "
    "themselves"
)
ELSEWHERE: Final = {
    **dict.fromkeys(("rollback", "roll_back", "restore", "undo", "revert"), _UNDO),
    **dict.fromkeys(("get", "read", "load", "value", "current"), "await .at() gives the state as it is now"),
    **dict.fromkeys(
        ("set", "write", "save", "put"), "in a tool, change its State[…]; elsewhere, await .update(change)"
    ),
    **dict.fromkeys(("tool", "add_tool", "on_rollback"), "the set has it: @notes.tool, @notes.on_rollback"),
    "history": "await .checkpoints()",
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
    mode: Mode = "patch"
    per: Per = "principal"
    concurrency: Concurrency = "serial"
    store: str | Store | None = None
    big_integers: BigIntegers | None = None

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
        feature_set: Feature,
        model: type[M],
        options: StateOptions,
        store: Store,
        open_trees: Callable[[States[Any]], Awaitable[CheckpointStore]],
        server: LiveServer,
    ) -> None:
        options.check(f"state of {feature_set.name!r}")
        self.feature_set, self.model = feature_set, model
        self.mode, self.concurrency = options.mode, options.concurrency
        self.per: Per = options.per
        self.retention = Retention(options.keep, options.ttl)
        self._open_trees, self._trees, self._server = open_trees, None, server
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
            raise no_attribute("State", name, ELSEWHERE, dir(type(self)))

    @property
    def name(self) -> str:
        return self.feature_set.name

    # -- for authors -------------------------------------------------------------------------------------

    async def checkpoints(self, *, owner: str | Session | None = None) -> list[Checkpoint]:
        """All checkpoints that you can roll back to, oldest first.

        Of a state that all callers share, these are the ones that were its head, and the caller's own branches.
        """
        trees = await self.trees()
        listed = await trees.checkpoints(self._key(owner))
        own = self._branches_key(names=False)
        branched = await trees.checkpoints(own) if own is not None else []
        return sorted([*listed, *branched], key=lambda at: at.time) if branched else listed

    async def branches(self, *, owner: str | Session | None = None) -> list[Checkpoint]:
        """The ends of the tree: the checkpoints without a child."""
        return ends(await self.checkpoints(owner=owner))

    async def diff(self, a: Checkpoint | str, b: Checkpoint | str, *, owner: str | Session | None = None) -> list[Op]:
        """The RFC 6902 patch that leads from one checkpoint to another."""
        before, after = await self._hold(owner, _id(a)), await self._hold(owner, _id(b))
        for held in (before, after):
            self.require_proof(CURRENT.get(), held)
        return diff(before.content(), after.content())

    async def at(self, checkpoint: Checkpoint | str | None = None, *, owner: str | Session | None = None) -> M:
        """The state as it was at a checkpoint, or as it is now. A copy: changes to it are not kept.

        In a dangerous tool, raises StateRefused if the checkpoint is not `proved`.
        """
        id = None if checkpoint is None else _id(checkpoint)
        held = await self._hold(owner, id)
        self.require_proof(CURRENT.get(), held)
        with self.fitting():
            return self.values.read(held.before)

    async def update(self, change: Callable[[M], Any], *, owner: str | Session | None = None) -> Checkpoint | None:
        """Change the state outside of a tool: `change` is given the value, and changes it. It may be async.

        Hosts that offer `stateUpdate` are told. Returns the new checkpoint; None if nothing has changed. In a call that
        has seen a state that is not `proved`, the new checkpoint is not proved either. Raises StateRefused for a value
        that cannot be kept, and if such a call would change what all callers share.
        """
        from defserve.protocols.mcpl.state.updates import changed, tell_hosts

        call = CURRENT.get()
        working = call.peek(WorkingState) if call is not None else None
        if working is not None and working.states is self:
            raise UsageError(f"{self!r} is held by this call", fix="change the value that the tool was given")
        made = await changed(self, self._key(owner), change, call)
        if made is None:
            return None
        await tell_hosts(self, made, self._sessions(owner))
        return made.checkpoint

    async def of_host(self, session: Session) -> HostCheckpoint[M]:
        """Where a host is in this state, and the value that it keeps. Raises NoBackChannel if it keeps none."""
        from defserve.protocols.mcpl.state.updates import host_checkpoint

        return await host_checkpoint(self, session)

    def _sessions(self, owner: str | Session | None) -> list[Session]:
        """The sessions whose hosts have this state."""
        if isinstance(owner, Session):
            return [owner]
        if self.per == "server":
            return self._server.sessions
        if owner is not None:
            return [session for session in self._server.sessions if session.principal == owner]
        call = CURRENT.get()
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
            message = f"The state of {self.name} does not fit its model: {summary(error)}\n  fix: {FIX_UNFIT}"
            raise StateRefused(message, data={"featureSet": self.name}) from None

    def require_proof(self, call: Call | None, held: HeldCheckpoint) -> None:
        """Raises StateRefused if a dangerous tool would see a state whose whole line is not the server's own.

        It may be another call that reads it, which the tool makes. Others may see it, and it is known that they did.
        """
        if held.verified or call is None:
            return
        if is_for_dangerous(call):
            raise StateRefused(UNPROVED, data={"featureSet": self.name})
        note_reading(call, held)

    def refuse_integers(self, text: bytes) -> None:
        """Raises StateRefused for a text with an integer that must not be kept."""
        if (place := self.values.refused_integer(text)) is not None:
            raise StateRefused(
                f"The integer at {place or 'the root'} is past 2^53, and hosts may change it: keep it as text, "
                'or declare the state with big_integers="text"',
                data={"featureSet": self.name},
            )

    async def _hold(self, owner: str | Session | None, id: str | None) -> HeldCheckpoint:
        """A checkpoint, or the head. Raises CheckpointNotFound."""
        trees, key = await self.trees(), self._key(owner, names=id is not None)
        with found():
            try:
                return await trees.hold(key, id)
            except CheckpointGone:
                if (own := self._branches_key(names=True)) is None:
                    raise
                return await trees.hold(own, id)

    def _branches_key(self, *, names: bool) -> TreeKey | None:
        """The tree of the caller's own branches off everyone's state; None if there is none, or it must name them."""
        if self.per != "server" or (call := CURRENT.get()) is None:
            return None
        owner = branches_of(call)
        return TreeKey(self.name, owner.id) if owner.has_head or names else None

    def _key(self, owner: str | Session | None, *, names: bool = False) -> TreeKey:
        return TreeKey(self.name, self._owner(owner, names))

    def _owner(self, owner: str | Session | None, names: bool) -> str:
        if self.per == "server":
            return EVERYONE
        if isinstance(owner, Session):
            return session_owner(owner)
        if owner is not None:
            return owner
        if (call := CURRENT.get()) is None:
            raise UsageError(f"{self!r}: outside a call the owner is not known", fix="pass owner=…")
        caller = owner_of(call, self.per)
        if not (caller.has_head or names):
            raise StateUnowned  # it may not see what others did from there
        return caller.id


@contextmanager
def found() -> Generator[None]:
    """Inside, a checkpoint that is not there raises CheckpointNotFound."""
    try:
        yield
    except CheckpointGone as gone:
        raise CheckpointNotFound(gone.data["checkpoint"]) from None


def _id(checkpoint: Checkpoint | str) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.id
