"""MCPL as an extension (§3–5): advertised to hosts that offer it, silent for everyone else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.extension import Extension, Handler, Listener, Next, Offer, Wrapper
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.core.stages import Stages
from defserve.errors import InvalidParams, MethodNotFound
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.function import FindProvider
from defserve.protocols.mcp.lifecycle import handshake_only
from defserve.protocols.mcpl import claude_channel, errors
from defserve.protocols.mcpl.feature_sets import FeatureSet, Tie
from defserve.protocols.mcpl.policies import Live, is_pushed_to, offered, policy, require
from defserve.protocols.mcpl.section import Section
from defserve.protocols.mcpl.state.binding import without_state
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.channels import Channels
    from defserve.protocols.mcpl.hooks import Hooks
    from defserve.protocols.mcpl.inference import Inferring
    from defserve.protocols.mcpl.push.push import Pushing
    from defserve.protocols.mcpl.scopes.scopes import Scopes
    from defserve.protocols.mcpl.state.section import Stating
    from defserve.protocols.mcpl.state.states import States
    from defserve.protocols.mcpl.state.storage import Keeping

VERSION = "0.4"

DeclareTool = Callable[[Any, Tie, Mapping[str, Any]], None]


class HookRun:
    """One run of a context hook, until it has answered."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running = True


# The call that this code runs for, so that a verb of a feature set knows whom it speaks to.
CURRENT: ContextVar[Call | None] = ContextVar("defserve_call", default=None)

# The hook this code runs in; once it has answered, what it began may infer (§10.7).
IN_HOOK: ContextVar[HookRun | None] = ContextVar("defserve_hook", default=None)

# clientInfo.name → how this host wants `featureSets`; the others read the specification's object.
ARRAY_HOSTS = ("mcpl-harness",)

# §14.3: what hosts ask and tell of channels → the method of that section.
CHANNEL_METHODS: Mapping[str, str] = {
    "channels/list": "known",
    "channels/open": "open",
    "channels/close": "close",
    "channels/publish": "publish",
}
CHANNEL_NEWS: Mapping[str, str] = {
    "channels/publish": "published",
    "channels/outgoing/chunk": "outgoing_chunk",
    "channels/outgoing/complete": "outgoing",
}


@contextmanager
def in_hook() -> Generator[None]:
    """Around a context hook of the author's: inference is refused within (§10.7)."""
    run = HookRun()
    token = IN_HOOK.set(run)
    try:
        yield
    finally:
        run.running = False
        IN_HOOK.reset(token)


class MCPL(Extension):
    """A server that takes part: pushes, hooks into inference, infers, keeps channels and state."""

    name = "mcpl"

    def __init__(
        self,
        declare_tool: DeclareTool,
        find_provider: FindProvider,
        tools: Registry[Any],
        owner: object,
        keeping: Keeping,
        strict: bool = False,
    ) -> None:
        self.declare_tool, self.find_provider = declare_tool, without_state(find_provider)
        self.tools, self.owner, self.keeping, self.strict = tools, owner, keeping, strict
        self.sets: Registry[FeatureSet] = Registry("feature set")
        self.composition: Composition | None = None

    def feature_set(self, name: str, description: str, **options: Any) -> FeatureSet:
        """Declare a set; once hosts are there they are told."""
        made = FeatureSet(self, name, description, **options)
        self.sets.add(name, made)
        if made.inbox is not None and self.composition is not None:
            made.inbox.serve(_mcp(self.composition))
        self._tell(lambda: {"added": {name: made.wire()}})
        return made

    def remove(self, name: str) -> None:
        """Take a set back; hosts are told, and its tools, hooks and events stop at once."""
        removed = self.sets.remove(name)
        removed.removed = True
        if removed.inbox is not None and self.composition is not None:
            removed.inbox.withdraw(_mcp(self.composition))
        for tool in [tool for tool in self.tools if (tie := tied(tool)) and tie.feature_set is removed]:
            self.tools.remove(tool.name)
        for section in self._sections():
            section.removed(removed)
        self._tell(lambda: {"removed": [name]})

    def _tell(self, change: Callable[[], Params]) -> None:
        """Tell every host, when the declarations that follow at once have been made. From any thread."""
        for session in list(self.composition.sessions) if self.composition is not None else ():
            if session.ready and session.terms is not None and self.name in session.terms.states:
                send = partial(_send_change, session, change)
                if session.engine.on_loop():
                    session.engine.soon(send)
                else:
                    session.engine.post(send)

    # -- negotiation -------------------------------------------------------------------------------------

    def negotiate(self, offer: Offer) -> Live | None:
        found = offered(offer)
        return Live(found, self.strict) if found is not None else None

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        found: Params = {}
        if any(one.claude_channel for one in self.sets) and claude_channel.offered(offer):
            found[claude_channel.CAPABILITY] = {}
        if offered(offer) is not None:
            found["mcpl"] = self._capability(offer)
        return {"experimental": found} if found else {}

    def _capability(self, offer: Offer) -> Params:
        sets = list(self.sets)
        used = {use for one in sets for use in one.uses}
        mcpl: Params = {"version": VERSION}
        if "pushEvents" in used:
            mcpl["pushEvents"] = True
        hooks = self.hooks.capability() if "hooks" in self.__dict__ else {}
        if hooks:
            mcpl["contextHooks"] = hooks
        if "inferenceRequest" in used:
            mcpl["inferenceRequest"] = {"streaming": True}
        if any(one.model_info for one in sets):
            mcpl["modelInfo"] = True
        if "channels" in self.__dict__:
            mcpl["channels"] = self.channels.capability()
        described = {one.name: one.wire() for one in sets}
        is_array = str(offer.info.get("name", "")).startswith(ARRAY_HOSTS)
        mcpl["featureSets"] = [{"name": n, **wire} for n, wire in described.items()] if is_array else described
        return mcpl

    def compose(self, composition: Composition) -> None:
        """The composition whose sessions are spoken to."""
        self.composition = composition
        for one in self.sets:
            if one.inbox is not None:
                one.inbox.serve(_mcp(composition))

    # -- sections, made when the first of their kind is declared -----------------------------------------

    @cached_property
    def hooks(self) -> Hooks:
        from defserve.protocols.mcpl.hooks import Hooks

        return Hooks(self)

    @cached_property
    def pushing(self) -> Pushing:
        from defserve.protocols.mcpl.push.push import Pushing

        return Pushing(self)

    @cached_property
    def inference(self) -> Inferring:
        from defserve.protocols.mcpl.inference import Inferring

        return Inferring(self)

    @cached_property
    def channels(self) -> Channels:
        from defserve.protocols.mcpl.channels.channels import Channels

        return Channels(self)

    @cached_property
    def states(self) -> Stating:
        from defserve.protocols.mcpl.state.section import Stating

        return Stating(self)

    @cached_property
    def scopes(self) -> Scopes:
        from defserve.protocols.mcpl.scopes.scopes import Scopes

        return Scopes(self)

    def _sections(self) -> Iterator[Section]:
        """Those that were made."""
        return (section for section in list(self.__dict__.values()) if isinstance(section, Section))

    # -- the plug ----------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {
            "featureSets/update": self._update,
            "context/beforeInference": self._before_inference,
            "context/afterInference": self._after_inference,
            "state/rollback": self._rollback,
            **{method: self._of_channels(name) for method, name in CHANNEL_METHODS.items()},
        }

    def notifications(self) -> Mapping[str, Listener]:
        return {
            "featureSets/update": self._updated,
            "notifications/initialized": self._ready,
            "context/afterInference": self._inference_ended,
            "inference/chunk": self._chunk,
            **{method: self._told_of_channels(name) for method, name in CHANNEL_NEWS.items()},
        }

    async def _ready(self, session: Session, params: Params) -> None:
        # A coroutine: what begins now needs the event loop.
        for section in self._sections():
            section.session_ready(session)

    def _chunk(self, session: Session, params: Params) -> None:
        if "inference" in self.__dict__:
            self.inference.chunk(session, params)

    def session_closed(self, session: Session) -> None:
        for section in self._sections():
            section.session_closed(session)

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        found = [life for section in self._sections() if (life := section.lifespan()) is not None]
        return _together(found) if len(found) > 1 else found[0] if found else None

    def around(self) -> Mapping[str, Wrapper]:
        return {"tools/call": self._around_call} if "states" in self.__dict__ else {}

    async def _around_call(self, call: Call, params: Params, following: Next) -> Any:
        result = await following(call, params)
        self.states.tell(call, result)
        return result

    def declared_states(self) -> list[States[Any]]:
        return list(self.states) if "states" in self.__dict__ else []

    async def _rollback(self, call: Call, params: Params) -> Params:
        if "states" not in self.__dict__:
            raise MethodNotFound(f"Method not found: {call.method}")
        return await self.states.rollback(call, params)

    def _update(self, call: Call, params: Params) -> Params:
        """A request in newer drafts; its receipt says what is enabled now."""
        handshake_only(call)  # where there are no sessions the policy comes with every request
        agreed = call.terms.states[self.name]
        agreed.policy.update(params)
        self._changed(call.session)
        return {"enabled": [one.name for one in self.sets if agreed.policy.enabled(one.name)]}

    def _updated(self, session: Session, params: Params) -> None:
        if session.terms is None or self.name not in session.terms.states:
            return
        try:
            session.terms.states[self.name].policy.update(params)
        except InvalidParams as error:
            import logging

            # Nobody else would hear that a host's wishes are not in force.
            logging.getLogger("defserve").warning("featureSets/update: %s", error.message)
            raise
        self._changed(session)

    # Where no hook was declared the methods are unknown; one may be declared while serving.

    async def _before_inference(self, call: Call, params: Params) -> Params:
        return await self._declared_hooks(call).before(call, params)

    async def _after_inference(self, call: Call, params: Params) -> Params:
        return await self._declared_hooks(call).after(call, params)

    async def _inference_ended(self, session: Session, params: Params) -> None:
        if "hooks" in self.__dict__:
            await self.hooks.ended(session, params)

    def _declared_hooks(self, call: Call) -> Hooks:
        if "hooks" not in self.__dict__:
            raise MethodNotFound(f"Method not found: {call.method}")
        return self.hooks

    def _of_channels(self, name: str) -> Handler:
        async def run(call: Call, params: Params) -> Params:
            if "channels" not in self.__dict__:
                raise MethodNotFound(f"Method not found: {call.method}")
            return await getattr(self.channels, name)(call, params)

        return run

    def _told_of_channels(self, name: str) -> Listener:
        async def run(session: Session, params: Params) -> None:
            if "channels" in self.__dict__:
                await getattr(self.channels, name)(session, params)

        return run

    def _changed(self, session: Session) -> None:
        """Tools come and go with their sets, and so does what runs for them."""
        for section in self._sections():
            section.policy_changed(session)
        if session.ready and any("tools" in one.uses for one in self.sets):
            session.notify("notifications/tools/list_changed", {})

    def stages(self) -> Stages:
        return Stages(admit=self._admit, judge=self._judge, hold=self._hold if "states" in self.__dict__ else None)

    def _admit(self, call: Call, item: Any) -> None:
        CURRENT.set(call)
        tie = tied(item)
        if tie is not None:
            require(call, tie.feature_set)

    async def _judge(self, call: Call, item: Any, arguments: dict[str, Any]) -> None:
        tie = tied(item)
        if tie is not None and tie.scope is not None:
            await self.scopes.check(call, tie, arguments)

    def _hold(self, call: Call, item: Any, arguments: dict[str, Any]) -> AbstractAsyncContextManager[None] | None:
        return self.states.hold(call, item)

    def declared(self, item: Any) -> None:
        tie = tied(item)
        if tie is not None and tie.scope is not None:
            self.scopes.read(tie, item)
        if "states" in self.__dict__:
            self.states.read(item, tie)

    def visible(self, call: Call, item: Any) -> bool:
        tie = tied(item)
        return tie is None or tie.shown(call)

    def view(self, call: Call) -> object:
        found = policy(call)
        enabled = tuple(one.name for one in self.sets if found.enabled(one.name))
        return self.name in call.terms.states, enabled, is_pushed_to(call)

    def describe(self, item: Any, view: Any) -> Mapping[str, Any]:
        tie = tied(item)
        return {"_meta": {"featureSet": tie.feature_set.name}} if tie is not None and view[0] else {}

    def can(self, call: Call, feature: str) -> bool:
        """Whether the host of a call can be asked to `push`, `infer` or `model_info`, or sent messages of channels."""
        from defserve.protocols.mcpl import inference
        from defserve.protocols.mcpl.peers import Peer

        if feature == "model_info":
            return inference.can_model_info(call)
        if feature == "channels" and "channels" not in self.__dict__:
            return False
        section = {"push": "pushing", "infer": "inference", "channels": "channels"}[feature]
        return getattr(self, section).can(Peer(call.session, call))

    def failure(self, call: Call, error: BaseException) -> Params | None:
        return errors.failure(call, error)


@asynccontextmanager
async def _together(lifespans: Sequence[AbstractAsyncContextManager[None]]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for lifespan in lifespans:
            await stack.enter_async_context(lifespan)
        yield


def _send_change(session: Session, change: Callable[[], Params]) -> None:
    if not session.closed:
        session.notify("featureSets/changed", change())


def _mcp(composition: Composition) -> MCP:
    return next(extension for extension in composition.extensions if isinstance(extension, MCP))


def tied(item: Any) -> Tie | None:
    """What binds a tool to a feature set."""
    return item.facets.get(MCPL.name)
