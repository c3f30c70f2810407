"""MCP multi round-trip requests (2026-07-28: input-required results): a function run again with the answers so far.

An answer belongs to a question by the author's key, or by the digest of its kind, text and occurrence; one that
does not match what was asked is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from defserve.core.call import Call
from defserve.errors import InvalidParams, LimitExceeded
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.protocols.mcp.request_state import binding
from defserve.wire.messages import Params

STATE_BYTES = 64 * 1024


class Rounds:
    """What is known in this round: recorded answers, fresh ones, effects done once, and what is still open."""

    __slots__ = ("answers", "fresh", "asked", "once", "open", "stated", "_occurrences")

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, Any]] = {}
        self.fresh: dict[str, Any] = {}
        self.asked: dict[str, str] = {}
        self.once: dict[str, Any] = {}
        self.open: dict[str, tuple[str, Params]] = {}
        self.stated = False
        self._occurrences: dict[str, int] = {}

    # -- a request that brings answers -------------------------------------------------------------------

    def take(self, call: Call, params: Params) -> None:
        """Read `inputResponses` and `requestState`. Raises InvalidParams when either is not what we handed out."""
        responses, state = params.get("inputResponses"), params.get("requestState")
        if responses is not None:
            if not isinstance(responses, dict):
                raise InvalidParams("Invalid params: inputResponses must be an object")
            self.fresh = dict(responses)  # pyright: ignore[reportUnknownArgumentType]
        if state is None:
            return
        if not isinstance(state, str):
            raise InvalidParams("Invalid params: requestState must be a string")
        payload = dialect_of(call).sealing.sealer.open(state, binding=_binding(call))
        self.answers = {key: (digest, answer) for key, (digest, answer) in payload["answers"].items()}
        self.once, self.asked, self.stated = payload["once"], payload["asked"], True

    # -- a question --------------------------------------------------------------------------------------

    def key_of(self, key: str | None, method: str, params: Params) -> tuple[str, str]:
        """The key a question travels under, and the digest of what it says."""
        digest = sha256(to_json([method, params])).hexdigest()[:24]
        base = key or f"{method.partition('/')[0]}-{digest[:12]}"
        count = self._occurrences[base] = self._occurrences.get(base, 0) + 1
        return (base if count == 1 else f"{base}-{count}"), digest

    def answer(self, key: str, digest: str, acceptable: Callable[[Any], bool], strict: bool) -> Any | None:
        """The recorded or fresh answer to a question, or None when it has to be asked.

        A `strict` question takes a fresh answer only with the state that proves it was asked.
        """
        recorded = self.answers.get(key)
        if recorded is not None and recorded[0] == digest:
            return recorded[1]
        if key not in self.fresh or (strict and not self.stated):
            return None
        if self.stated and self.asked.get(key) != digest:
            return None
        given = self.fresh[key]
        if not acceptable(given):
            return None
        self.answers[key] = (digest, given)
        return given

    async def suspend(self, call: Call, key: str, digest: str, request: Params) -> Any:
        """Leave the question in the reply and end this run. Never returns."""
        self.open[key] = (digest, request)
        call.suspend(lambda: self._required(call))
        return await call.engine.pending()

    def _required(self, call: Call) -> Params:
        payload = {
            "answers": self.answers,
            "once": self.once,
            "asked": {key: digest for key, (digest, _) in self.open.items()},
        }
        state = dialect_of(call).sealing.sealer.seal(payload, binding=_binding(call))
        if len(state) > STATE_BYTES:
            raise LimitExceeded(f"the answers so far are larger than {STATE_BYTES} bytes", data={"limit": "state"})
        return {
            "resultType": "input_required",
            "inputRequests": {key: request for key, (_, request) in self.open.items()},
            "requestState": state,
        }


def begin(call: Call, params: Params) -> None:
    """Take up the answers a request brings, before its function runs."""
    if dialect_of(call).stateless and ("requestState" in params or "inputResponses" in params):
        call.local(Rounds).take(call, params)


def _binding(call: Call) -> bytes:
    params = call.params
    target = params.get("name") or params.get("uri") or ""
    return binding(call.principal, call.method, str(target), params.get("arguments"))
