"""What the sections of MCPL have in common: what each knows of its server, and a feature set as they see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.core.extension import Extension
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.errors import UsageError
from defserve.protocols.mcpl.policies import (
    can_receive_push,
    get_feature_policy,
    get_mcpl_terms,
    is_anonymous_session,
    is_stateless_call,
)
from defserve.protocols.mcpl.vocabulary import (
    MCPL_04,
    MCPL_05,
    USE_NAMES_BY_VERSION,
    FeatureDisabled,
    McplVocabulary,
    UnknownFeatureSet,
)

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.composition import Composition
    from defserve.core.session import Session
    from defserve.protocols.mcp.function import FindProvider
    from defserve.protocols.mcpl.push import EventInbox
    from defserve.protocols.mcpl.scopes import ToolScopeCheck
    from defserve.server.sharing import SharedHosts


class McplServerState:
    """What the sections know of their server, which is the `owner`. `composition` is None until it is composed."""

    __slots__ = ("composition", "find_provider", "owner", "sets", "others")

    def __init__(self, find_provider: FindProvider, owner: object) -> None:
        self.find_provider, self.owner = find_provider, owner
        self.sets: Registry[FeatureSetBase] = Registry("feature set")
        self.composition: Composition | None = None
        self.others: SharedHosts | None = None

    @property
    def sessions(self) -> list[Session]:
        """The sessions that are open now; none before the server is composed."""
        return list(self.composition.sessions) if self.composition is not None else []

    def for_each_session(self, action: Callable[[Session], None]) -> None:
        """Do something for every session, on its event loop. From any thread."""
        for session in self.sessions:
            engine = session.engine
            if engine.ready and engine.is_on_loop():
                action(session)
            elif engine.ready:
                engine.post_to_loop(partial(action, session))


class McplSection(Extension):
    """A section of MCPL, and the events that only MCPL has."""

    def __init__(self, server: McplServerState) -> None:
        self.server = server

    def session_changed(self, session: Session) -> None:
        """A host that speaks MCPL is ready, or its `featureSets/update` has taken effect. On the session's loop."""

    def on_feature_set_removed(self, feature_set: FeatureSetBase) -> None:
        """The author took a set back. Called in the author's thread."""


# -- A feature set as the sections see it: its name, what it uses, and whether a host lets it act.


F = TypeVar("F", bound=Callable[..., Any])

FEATURE_SET_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

# A set that declares nothing may do these.
UNDECLARED = ("pushEvents", "inferenceRequest")


class FeatureSetBase:
    """The part of a feature set that needs no section; `FeatureSet` adds the author's verbs.

    `owner` is the server that declared it. `removed` is True once the server has taken it back. A `strict` set is off
    until a host switches it on, which no stranger can. The set that `server.state` stands for `is_of_server`: the
    server's own tools that take its state belong to it. One that is declared while serving is `whole`, and shown to
    hosts, when the code that declares it is done. `told` is what they know, by 0.4 and by 0.5. `changed` is called when
    more is declared on it.
    """

    inbox: EventInbox | None = None
    strict = False
    is_of_server = False
    whole = True
    told: tuple[Params, Params] | None = None
    changed: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        description: str,
        owner: object,
        *,
        scoped: bool = False,
        uses: Sequence[str] = (),
        model_info: bool = False,
        claude_channel: bool = False,
        tag_ontology: Mapping[str, Any] | None = None,
    ) -> None:
        if not FEATURE_SET_NAME_PATTERN.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a feature set",
                fix='use words with dots between them: "memory.retrieval"',
            )
        if not description:
            raise UsageError(f"feature set {name!r} has no description", fix="say what it does, so people can decide")
        for use in uses:
            if use not in USE_NAMES_BY_VERSION:
                raise UsageError(
                    f"feature set {name!r} cannot use {use!r}", fix=f"use some of {', '.join(USE_NAMES_BY_VERSION)}"
                )
        self.name, self.description, self.owner = name, description, owner
        self.scoped, self.model_info, self.claude_channel = scoped, model_info, claude_channel
        self.tag_ontology = dict(tag_ontology) if tag_ontology is not None else None
        self.rollback = self.host_state = self.removed = False
        # Whether a host that cannot run everything this set does must be refused (MCPL 0.5).
        self.required = False
        self._uses = dict.fromkeys([*uses, "modelInfo"] if model_info else uses)
        self._paths: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"<feature set {self.name}>"

    @property
    def uses(self) -> list[str]:
        """What it does, in the words of `vocabulary.USES`; a set that declares nothing may push and infer."""
        declared = self._uses if self._uses.keys() - {"modelInfo"} else {*self._uses, *UNDECLARED}
        return [use for use in USE_NAMES_BY_VERSION if use in declared]

    @property
    def paths(self) -> frozenset[str]:
        """What a host of 0.5 must grant, so that the set may act."""
        if self._paths is None:
            self._paths = frozenset(MCPL_05.translate_uses(self.uses))
        return self._paths

    @property
    def declares(self) -> bool:
        """Whether a verb or `uses=` said what it is for."""
        return bool(self._uses) or self.inbox is not None or self.claude_channel

    def record_declaration(self, *what: str) -> None:
        """Note that something was declared on this set."""
        self._uses.update(dict.fromkeys(what))
        self._paths = None
        self.changed()

    def to_wire(self, vocabulary: McplVocabulary = MCPL_04) -> Params:
        """The declaration that hosts of a version are shown."""
        # hostState: from newer drafts. Without it some hosts drop the state they are sent.
        fields = {
            "scoped": self.scoped,
            "rollback": self.rollback,
            "hostState": self.host_state,
            "tagOntology": self.tag_ontology,
        }
        shown = {name: fields[name] for name in vocabulary.fields if fields[name]}
        return {"description": self.description, "uses": vocabulary.translate_uses(self.uses), **shown}

    def require_enabled(self, call: Call) -> None:
        """Raises FeatureDisabled if the host of this call has not enabled the set."""
        if self.removed:
            raise UnknownFeatureSet(self.name)
        live = get_mcpl_terms(call.terms)
        if live is not None and not live.policy.has_been_sent and not is_stateless_call(call):
            live.log_missing_policy(call)
        if not self.is_switched_on(call):
            raise get_feature_policy(call).find_refusal(self) or FeatureDisabled(self.name)

    def is_switched_on(self, call: Call) -> bool:
        """Whether the policy of this call's host has the set on. A host without MCPL has no policy: all is on."""
        if self.strict and get_mcpl_terms(call.terms) is None and is_anonymous_session(call.session):
            return False
        return get_feature_policy(call).allows(self)

    def is_enabled(self, call: Call) -> bool:
        """Whether the host of this call lets the set act now."""
        try:
            self.require_enabled(call)
        except (FeatureDisabled, UnknownFeatureSet):
            return False
        return True


class FeatureBinding:
    """Binds a tool or resource to its feature set. `scope` is None if the item is not scoped."""

    __slots__ = ("feature_set", "scope")

    def __init__(self, feature_set: FeatureSetBase, scope: ToolScopeCheck | None = None) -> None:
        self.feature_set, self.scope = feature_set, scope

    def is_visible(self, call: Call) -> bool:
        """Whether the peer of a call may see the item."""
        # `tools/call` checks the policy in its own stage, which says why it refuses.
        return call.method == "tools/call" or self.feature_set.is_switched_on(call)


class InboxBinding(FeatureBinding):
    """Hides the inbox from a host that is pushed the events: it would get them twice."""

    __slots__ = ()

    def is_visible(self, call: Call) -> bool:
        return not can_receive_push(call) and super().is_visible(call)


def get_feature_binding(item: Any) -> FeatureBinding | None:
    """What binds an item to a feature set, if anything does."""
    return item.facets.get("mcpl")


DeclareTool = Callable[[Any, FeatureBinding, Mapping[str, Any]], None]


def make_registering_decorator(function: F | None, register: Callable[[F], object]) -> Any:
    """A decorator that registers a function and returns it unchanged, used bare or with options."""

    def declare(function: F) -> F:
        register(function)
        return function

    return declare(function) if function is not None else declare
