"""A conversation whose replies are not JSON-RPC: each result is written once, in the form its caller reads."""

from __future__ import annotations

from typing import Any, Protocol

from defserve.core.call import Call, Replied
from defserve.core.session import Session
from defserve.wire.messages import Params


class ReplyShape(Protocol):
    """How a result, and how an error, is written. The code that goes with the bytes is the shape's own."""

    def result(self, call: Call, result: Any) -> Replied:
        """Raises what the call then fails with."""
        ...

    def failure(self, call: Call, error: Params) -> Replied:
        """`error` is the rest of a JSON-RPC reply: `{"error": …}`, or `{"result": …}` for what a model reads."""
        ...


class ShapedSession(Session):
    """A session whose replies `shape` writes. Whoever opens it sets the shape."""

    __slots__ = ("shape",)

    shape: ReplyShape

    def settle(self, call: Call, result: Any) -> None:
        """Answer a call with the value it gave."""
        if call.settled:
            return
        try:
            data, code = self.shape.result(call, result)
            if len(data) > self.composition.limits.response:
                raise self._too_large()
        except Exception as error:
            data, code = self._failure(call, error)
        self._end(call, data, code)

    def _encoded_failure(self, call: Call, error: BaseException) -> Replied:
        body = call.terms.table.failure(call, error) or call.terms.profile.failure(call, error)
        return self.shape.failure(call, body)
