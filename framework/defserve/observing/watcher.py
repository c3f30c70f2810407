"""Watching requests from outside: when each began, how long it took, how it ended. Arguments are not kept."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from defserve.core.call import Call
from defserve.core.extension import EVERY, Extension, Next, Offer, Wrapper
from defserve.errors import ProtocolError
from defserve.protocols.mcp.failures import ERROR_KEY
from defserve.wire.jsonvalue import is_mapping
from defserve.wire.messages import Params

Handle = TypeVar("Handle")

OK, ERROR, CANCELLED, ASKED = "ok", "error", "cancelled", "asked"
OUTCOMES = (OK, ERROR, CANCELLED, ASKED)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
UNNAMED = "unnamed"


class RequestOutcome(NamedTuple):
    """How a request ended: one of `OUTCOMES`, and the type of an error. ASKED: the client has to answer a question."""

    kind: str
    error_type: str = ""
    code: int | None = None
    """The error code of the reply. A failed tool has none: its reply is a result."""


class RequestWatcher(Extension, ABC, Generic[Handle]):
    """Override `begin` and `end`. If `methods_watched` is None, every request is watched except `initialize`.

    A wrapped `initialize` would run as a task, and messages right behind it would find no open session.
    """

    methods_watched: tuple[str, ...] | None = None

    def negotiate(self, offer: Offer) -> object | None:
        """Active with every peer."""
        return self

    def around(self) -> Mapping[str, Wrapper]:
        """A wrapper for each method that is watched."""
        return dict.fromkeys((EVERY,) if self.methods_watched is None else self.methods_watched, self._watched)

    async def _watched(self, call: Call, params: Params, next: Next) -> Any:
        began, begun = perf_counter(), self.begin(call)
        try:
            result = await next(call, params)
        except BaseException as error:
            self.end(call, begun, perf_counter() - began, _raised(call, error))
            raise
        self.end(call, begun, perf_counter() - began, _returned(result))
        return result

    @abstractmethod
    def begin(self, call: Call) -> Handle:
        """A request comes in. `end` gets the value that this returns."""

    @abstractmethod
    def end(self, call: Call, begun: Handle, seconds: float, outcome: RequestOutcome) -> None:
        """The request was answered, or never will be."""


def _raised(call: Call, error: BaseException) -> RequestOutcome:
    if call.timed_out:
        return RequestOutcome(ERROR, "timeout")
    if call.suspension is not None and not call.cut_short:
        return RequestOutcome(ASKED)
    if not isinstance(error, Exception):
        return RequestOutcome(CANCELLED)
    code = error.code if isinstance(error, ProtocolError) else None
    return RequestOutcome(ERROR, _error_type(getattr(error, "error_type", None) or type(error).__name__), code)


def _returned(result: Any) -> RequestOutcome:
    if not is_mapping(result):
        return RequestOutcome(OK)
    if result.get("resultType") == "input_required":
        return RequestOutcome(ASKED)
    if result.get("isError") is not True:
        return RequestOutcome(OK)
    meta = result.get("_meta")
    detail = meta.get(ERROR_KEY) if is_mapping(meta) else None
    return RequestOutcome(ERROR, _error_type(detail.get("error_type", "")) if is_mapping(detail) else "")


def _error_type(said: Any) -> str:
    """The name of a kind of error. What is not such a name may be a peer's text, and does not get into logs."""
    return said if isinstance(said, str) and (not said or _NAME.fullmatch(said)) else UNNAMED
