"""MCPL §10: asks servers before and after an inference, each with a time limit.

Before, all servers are asked at once; one that fails adds nothing. After, the blocking servers see the answer one after
the other, each with the changes of those before it. Then the other servers are told the final answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from defserve.base.peer_bounds import truncate_text
from defserve.base.redaction import escape_unprintable, get_logger
from defserve.client.answers import SendNotification, SendRequest
from defserve.client.audit import McplAuditTrail
from defserve.client.mcpl.feature_sets import FeatureSets
from defserve.client.replies import Json, object_or_empty
from defserve.core.json_values import is_array
from defserve.errors import DefserveError, InvalidParams, PeerError, PeerTimeout, UsageError
from defserve.protocols.mcp.errors import read_optional_object_param, read_text_param
from defserve.protocols.mcpl.content import (
    Content,
    FinishedTurn,
    InferenceEnd,
    Injection,
    ModelInfo,
    Text,
    Turn,
    Usage,
    read_mcpl_content,
)
from defserve.protocols.mcpl.vocabulary import BEFORE_INFERENCE_USE as BEFORE_USE
from defserve.protocols.mcpl.vocabulary import INJECT_USES, OBSERVE_USE, FeatureDisabled, HookFailed, McplRefusal

if TYPE_CHECKING:
    from defserve.client.client import Client

BEFORE_INFERENCE: Final = "context/beforeInference"
AFTER_INFERENCE: Final = "context/afterInference"
LIFECYCLE: Final = "inference/lifecycle"
Phase: TypeAlias = Literal["started", "completed", "aborted", "failed"]
BEFORE_INFERENCE_SECONDS: Final = 5.0
AFTER_INFERENCE_SECONDS: Final = 10.0
POSITIONS: Final = ("system", "beforeUser", "afterUser")

log = get_logger("client")


@dataclass(frozen=True, slots=True)
class ServerInjection(Injection):
    """An injection, with its feature set and server. Its content is a list of parts, its position as on the wire.

    A model should be given `labelled`, so that it can tell the texts of servers from its host's and its user's.
    """

    feature_set: str = ""
    server_id: str = ""

    @property
    def origin(self) -> str:
        """Who wrote it: the server, and the feature set if it is known."""
        server, name = escape_unprintable(self.server_id), escape_unprintable(self.feature_set)
        return f"{server} ({name})" if name else server

    @property
    def labelled(self) -> list[Content]:
        """The content, after a line that says where it comes from."""
        return [Text(f"[from {self.origin}, an external server]"), *cast("list[Content]", self.content)]


@dataclass(frozen=True, slots=True)
class RewrittenAnswer:
    """An answer as a blocking server changed it."""

    text: str
    metadata: Mapping[str, Any]
    feature_set: str
    server_id: str


@dataclass(frozen=True, slots=True)
class ReviewedAnswer:
    """The answer that may be shown, and who changed it."""

    text: str
    rewrites: tuple[RewrittenAnswer, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HookOptions:
    before_seconds: float = BEFORE_INFERENCE_SECONDS
    after_seconds: float = AFTER_INFERENCE_SECONDS
    fail_closed: bool = False
    model: ModelInfo | None = None


class ServerHooks:
    """The hooks of one server; none until `read_capability` finds some."""

    def __init__(
        self,
        options: HookOptions,
        sets: FeatureSets,
        audit: McplAuditTrail,
        request: SendRequest,
        notify: SendNotification,
    ) -> None:
        self._options, self._sets, self._audit = options, sets, audit
        self._request, self._notify = request, notify
        self._hooks: Json = {}

    def read_capability(self, capability: Any) -> None:
        """Read the capability `contextHooks`."""
        self._hooks = object_or_empty(capability)

    @property
    def wants_before_inference(self) -> bool:
        if self._sets.grants.by_grant:
            granted = any(map(self._sets.grants.permits, (OBSERVE_USE, *INJECT_USES.values())))
            return granted and bool(self._sets.find_enabled_using(BEFORE_USE))
        is_used = self._sets.is_declared_by_none(BEFORE_USE) or bool(self._sets.find_enabled_using(BEFORE_USE))
        return bool(self._hooks.get("beforeInference")) and is_used

    @property
    def wants_after_inference(self) -> bool:
        after = self._hooks.get("afterInference") if not self._sets.grants.by_grant else None
        return (
            after is not None
            and after is not False
            and bool(self._sets.find_enabled_using("contextHooks.afterInference"))
        )

    @property
    def is_blocking(self) -> bool:
        return self.wants_after_inference and object_or_empty(self._hooks.get("afterInference")).get("blocking") is True

    # -- before ------------------------------------------------------------------------------------------

    async def collect_injections(self, turn: Turn) -> list[ServerInjection]:
        """What this server injects; nothing if it fails or takes too long."""
        if not self.wants_before_inference:
            return []
        try:
            with self._audit.record_outcome(BEFORE_INFERENCE, inference_id=turn.inference_id) as record:
                async with asyncio.timeout(self._options.before_seconds):
                    # The turn without what the server may not see.
                    seen = turn if self._sets.grants.permits(OBSERVE_USE) else replace(turn, user_message=None)
                    result = await self._request(BEFORE_INFERENCE, self._params(seen))
                found = list(self._injections(result))
                record |= {"feature_set": result.get("featureSet"), "injections": len(found)}
                return found
        except (TimeoutError, DefserveError) as error:
            log.warning("%s: %s adds nothing: %s", BEFORE_INFERENCE, self._audit.server_id, _why(error))
            return []

    def _injections(self, result: Json) -> Iterator[ServerInjection]:
        given, refused = result.get("contextInjections"), list[Json]()
        for entry in given if is_array(given) else ():
            injection = object_or_empty(entry)
            name = object_or_empty(injection.get("metadata")).get("featureSet") or result.get("featureSet")
            try:
                yield _injection(injection, self._require_injection_set(name, injection), self._audit.server_id)
            except (InvalidParams, McplRefusal) as error:
                refused.append({"feature_set": name, "reason": str(error)})
        if refused:
            self._audit.report_refused_items(BEFORE_INFERENCE, refused)
            first = truncate_text(refused[0]["reason"])
            about = BEFORE_INFERENCE, len(refused), self._audit.server_id, first
            log.warning("%s: left out %d injections of %s: first %s", *about)

    def _require_injection_set(self, name: Any, injection: Json) -> str:
        """The set that an injection belongs to, as far as it is known. Raises the reason if it must be left out.

        With a server of 0.5 the position decides, by the grant of this moment; the named set is only a label.
        """
        if not self._sets.grants.by_grant:
            return self._sets.require(name, BEFORE_USE).name
        if (path := INJECT_USES.get(str(injection.get("position")))) is not None:
            self._sets.grants.require(path)
        if not isinstance(name, str) or name not in self._sets:
            return ""
        if not self._sets.is_enabled(name):
            raise FeatureDisabled(name)
        return name

    # -- life --------------------------------------------------------------------------------------------

    async def notify_phase(self, turn: Turn, phase: Phase, usage: Usage | None = None) -> None:
        """`inference/lifecycle`, to a server of 0.5 that may know: how an inference goes, without its text."""
        grants = self._sets.grants
        if not grants.by_grant or not grants.permits("inferenceLifecycle"):
            return
        end = InferenceEnd(
            inference_id=turn.inference_id,
            conversation_id=turn.conversation_id,
            turn_index=turn.turn_index,
            usage=usage if phase == "completed" else None,
        )
        params = {**end.to_wire(), "phase": phase}
        model = turn.model or self._options.model
        if model is not None and grants.permits("modelInfo"):
            params["model"] = model.to_wire()
        try:
            with self._audit.record_outcome(LIFECYCLE, inference_id=turn.inference_id, phase=phase):
                await self._notify(LIFECYCLE, params)
        except PeerError as error:
            log.warning("%s: %s was not told: %s", LIFECYCLE, self._audit.server_id, error)

    # -- after -------------------------------------------------------------------------------------------

    async def rewrite(self, turn: FinishedTurn) -> RewrittenAnswer | None:
        """Ask a blocking server. None means that the answer stays as it is.

        If the server fails, the answer stays as it is too, unless the host fails closed: then HookFailed is raised
        (§13.3).
        """
        try:
            with self._audit.record_outcome(AFTER_INFERENCE, inference_id=turn.inference_id) as record:
                async with asyncio.timeout(self._options.after_seconds):
                    result = await self._request(AFTER_INFERENCE, self._params(turn))
                record["feature_set"] = name = result.get("featureSet")
                if result.get("modifiedResponse") is None:
                    return None
                declared = self._sets.require(name, "contextHooks.afterInference")
                modified = read_text_param(result, "modifiedResponse")
                record["modified"] = True
                return RewrittenAnswer(
                    modified, object_or_empty(result.get("metadata")), declared.name, self._audit.server_id
                )
        except (TimeoutError, DefserveError) as error:
            if self._options.fail_closed:
                message = f"{self._audit.server_id} has not reviewed the answer: {_why(error)}"
                raise HookFailed(
                    message, str(object_or_empty(getattr(error, "data", None)).get("featureSet", ""))
                ) from error
            log.warning("%s: the answer is not reviewed by %s: %s", AFTER_INFERENCE, self._audit.server_id, _why(error))
            return None

    async def notify_finished_turn(self, turn: FinishedTurn) -> None:
        """Tell a server that does not block."""
        try:
            with self._audit.record_outcome(AFTER_INFERENCE, inference_id=turn.inference_id):
                await self._notify(AFTER_INFERENCE, self._params(turn))
        except PeerError as error:
            log.warning("%s: %s was not told: %s", AFTER_INFERENCE, self._audit.server_id, error)

    def _params(self, turn: Turn) -> Json:
        return (turn if turn.model is not None else replace(turn, model=self._options.model)).to_wire()


class HookRunner:
    """The hooks of several servers: `HookRunner([memory, compliance])`, in that order.

    `order` sorts the injections of one position; without it they come in the order of the servers.
    Servers that do not speak MCPL, or have no hooks, are skipped.
    """

    def __init__(
        self, clients: Sequence[Client | ServerHooks], *, order: Callable[[ServerInjection], Any] | None = None
    ) -> None:
        self._hooks = [client if isinstance(client, ServerHooks) else _hooks_of(client) for client in clients]
        self._order = order

    async def before_inference(self, turn: Turn) -> list[ServerInjection]:
        """What all servers inject, by position (§10.8): system, before the user's message, after it."""
        await self._notify_phase(turn, "started")
        found = list(chain(*await asyncio.gather(*[hooks.collect_injections(turn) for hooks in self._hooks])))
        if self._order is not None:
            found.sort(key=self._order)
        return sorted(found, key=lambda injection: POSITIONS.index(injection.position))

    async def after_inference(self, turn: Turn, assistant_message: str, usage: Usage | None = None) -> ReviewedAnswer:
        """The answer after the blocking servers' changes. Raises HookFailed if one fails and the host fails closed."""
        rewrites: list[RewrittenAnswer] = []
        finished = FinishedTurn.extend(turn, assistant_message=assistant_message, usage=usage)
        for hooks in self._hooks:
            if hooks.is_blocking and (rewritten := await hooks.rewrite(finished)) is not None:
                rewrites.append(rewritten)
                finished = replace(finished, assistant_message=rewritten.text)
        watching = [hooks for hooks in self._hooks if hooks.wants_after_inference and not hooks.is_blocking]
        await asyncio.gather(*[hooks.notify_finished_turn(finished) for hooks in watching])
        await self._notify_phase(turn, "completed", usage)
        return ReviewedAnswer(finished.assistant_message, tuple(rewrites))

    async def inference_ended(self, turn: Turn, phase: Literal["aborted", "failed"]) -> None:
        """Tell servers of 0.5 that an inference has ended without an answer."""
        await self._notify_phase(turn, phase)

    async def _notify_phase(self, turn: Turn, phase: Phase, usage: Usage | None = None) -> None:
        await asyncio.gather(*[hooks.notify_phase(turn, phase, usage) for hooks in self._hooks])


def _hooks_of(client: Client) -> ServerHooks:
    if client.mcpl is None:
        raise UsageError("a client of the HookRunner does not speak MCPL", fix="Client(link, mcpl=Mcpl(…))")
    return client.mcpl.hooks


def _injection(found: Json, name: str, server_id: str) -> ServerInjection:
    position: Any = found.get("position")
    if position not in POSITIONS:
        raise InvalidParams(f"Invalid result: position must be one of {', '.join(POSITIONS)}")
    return ServerInjection(
        content=read_mcpl_content(found.get("content")),
        position=position,
        namespace=read_text_param(found, "namespace"),
        metadata=read_optional_object_param(found, "metadata"),
        feature_set=name,
        server_id=server_id,
    )


def _why(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError | PeerTimeout) else str(error)
