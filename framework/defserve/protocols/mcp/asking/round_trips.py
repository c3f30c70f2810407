"""MCP multi round-trip requests (2026-07-28: input-required results): a function run again with the answers so far.

An answer is matched to its question by the author's key, or by the digest of the question's kind, text and occurrence.
If the answer does not match what was asked, the question is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from defserve.core.call import Call
from defserve.errors import Suspended
from defserve.protocols.mcp.asking.effects import Effects
from defserve.protocols.mcp.asking.marks import marks_of, restore_marks
from defserve.protocols.mcp.asking.request_state import InvalidState, Sealer, binding
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.params import optional_fields, text
from defserve.wire.messages import Params

METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The only requests that may be answered with a question."""


class RoundTrips:
    """What is known in this round: answers, effects done once, and the questions still open.

    `answers` holds the digest of the question with each answer. `unproven` ones came without the state that shows
    they were asked for. `relayed` is what another server that asks through us wants back with the answers. `parked` is
    the handle of work that waits for the answers; see `parking`. `wait_for_answer` is set if the call can wait for an
    answer after all, because it is a task. `keep_effect` is set if effects are kept elsewhere, too.
    """

    __slots__ = (
        "answers", "unproven", "open", "effects", "relayed", "parked", "wait_for_answer", "keep_effect", "_keys",
        "_unwinding",
    )  # fmt: skip

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, Any]] = {}
        self.unproven: Params = {}
        self.open: dict[str, tuple[str, Params]] = {}
        self.effects = Effects()
        self.relayed: Any = None
        self.parked: Params | None = None
        self.wait_for_answer: Callable[[str, str, Params], Awaitable[Any]] | None = None
        self.keep_effect: Callable[[str, Any], Awaitable[None]] | None = None
        self._keys: set[str] = set()
        self._unwinding = False

    # -- a request that brings answers -------------------------------------------------------------------

    async def take(self, call: Call, params: Params) -> None:
        """Read `inputResponses` and `requestState`. Raises InvalidParams when either is not what we handed out."""
        given = optional_fields(params, "inputResponses") or {}
        if params.get("requestState") is None:
            self.unproven = given
            return
        payload = await _sealer(call).open(text(params, "requestState"), binding=_binding(call))
        # An answer counts only with at least the rights of the call that asked.
        if call.identity is not None and not call.identity.has_rights(payload["rights"]):
            raise InvalidState
        restore_marks(call, payload.get("marks", {}))
        self.effects.done, self.relayed, self.parked = payload["once"], payload["relayed"], payload.get("parked")
        self.answers = {key: (digest, answer) for key, (digest, answer) in payload["answers"].items()}
        # All answers, because this run may stop at another question before it reaches theirs.
        self.answers |= {key: (digest, given[key]) for key, digest in payload["asked"].items() if key in given}

    # -- a question --------------------------------------------------------------------------------------

    def key_of(self, key: str | None, method: str, params: Params) -> tuple[str, str]:
        """The key a question travels under, and the digest of what it says."""
        digest = digest_of(method, params)
        base = key or f"{method.partition('/')[0]}-{digest[:12]}"
        name, occurrence = base, 1
        while name in self._keys:
            occurrence += 1
            name = f"{base}-{occurrence}"
        self._keys.add(name)
        return name, digest

    def answer(self, key: str, digest: str, acceptable: Callable[[Any], bool], strict: bool) -> Any | None:
        """The answer to a question, or None when it has to be asked (again).

        A `strict` question takes an answer only with the state that proves it was asked.
        """
        if key in self.unproven and not strict:
            self.answers[key] = (digest, self.unproven[key])
        asked, answer = self.answers.get(key, ("", None))
        return answer if asked == digest and acceptable(answer) else None

    async def ask(self, call: Call, key: str, digest: str, request: Params) -> Any:
        """The answer of a client that can be waited for. Otherwise the run ends here, and this never returns."""
        if self.wait_for_answer is None:
            return await self.suspend(call, key, digest, request)
        return await call.asked(self.wait_for_answer(key, digest, request))

    async def suspend(self, call: Call, key: str, digest: str, request: Params) -> Any:
        """Leave the question in the reply and end this run. Never returns.

        An effect that is running may finish first. If it were cut off, it would happen again.
        """
        if self._unwinding:  # the code caught the end of the run and went on
            raise Suspended
        self.open[key] = (digest, request)
        self.answers.pop(key, None)
        await self.effects.finished()
        if call.suspension is None:
            call.suspend(lambda: self._required(call.root))
            call.engine.soon(self._unwind)
        return await call.engine.pending()

    def park(self, call: Call, handle: Params, questions: dict[str, tuple[str, Params]]) -> None:
        """Leave questions of parked work in the reply. The function ends; the work does not."""
        self.parked, self.open, self.answers = handle, questions, {}
        call.suspend(lambda: self._required(call.root))

    async def once(self, call: Call, key: str, effect: Callable[[], Any]) -> Any:
        """What `effect` gave in this or an earlier round. No effect begins in a run that is about to end."""
        if key not in self.effects.done and call.suspension is not None:
            if self._unwinding:
                raise Suspended
            await call.engine.pending()
        if self.keep_effect is None or key in self.effects.done:
            return await self.effects.once(call, key, effect)
        value = await self.effects.once(call, key, effect)
        await self.keep_effect(key, value)
        return value

    async def relay(self, call: Call, requests: Mapping[str, Params], kept: Any) -> Any:
        """Leave the questions of another server in the reply and end this run. Never returns.

        `kept` comes back as `relayed`, with the answers.
        """
        self.open |= {
            key: (digest_of(request.get("method"), request.get("params")), request) for key, request in requests.items()
        }
        self.relayed = kept
        call.suspend(lambda: self._required(call.root))
        return await call.engine.pending()

    def _unwind(self) -> None:
        self._unwinding = True

    def _required(self, call: Call) -> Params:
        payload = {
            "answers": self.answers,
            "once": self.effects.done,
            "relayed": self.relayed,
            "asked": {key: digest for key, (digest, _) in self.open.items()},
            "rights": call.identity.rights if call.identity is not None else None,
        }
        if self.parked is not None:
            payload["parked"] = self.parked
        if marks := marks_of(call):
            payload["marks"] = marks
        return {
            "resultType": "input_required",
            "inputRequests": {key: request for key, (_, request) in self.open.items()},
            "requestState": _sealer(call).seal(payload, binding=_binding(call)),
        }


def digest_of(method: Any, params: Any) -> str:
    """Names a question by what it says."""
    return sha256(to_json([method, params])).hexdigest()[:24]


async def read_answers(call: Call) -> None:
    """Read the answers that a request brings, before its function runs. Done once, even if it reads a resource."""
    if call.peek(RoundTrips) is None and dialect_of(call).stateless:
        await call.local(RoundTrips).take(call, call.params)


def _sealer(call: Call) -> Sealer:
    return dialect_of(call).secret.sealer(is_local=call.session.is_local)


def _binding(call: Call) -> bytes:
    params = call.params
    target = params.get("name") or params.get("uri") or ""
    binders = call.session.composition.request_binders
    brought = {name: value for name, bind in binders.items() if (value := bind(call)) is not None}
    return binding(call.principal, call.method, str(target), params.get("arguments"), brought)
