"""A conversation whose replies are not JSON-RPC. Each result is encoded once, in the form its caller reads."""

from __future__ import annotations

from typing import Any, Protocol

from defserve.core.call import Call, Replied
from defserve.core.failures import failure_body, failure_reply, too_large
from defserve.core.session import Session
from defserve.wire.messages import Params


class ReplyShape(Protocol):
    """How results and errors are encoded. The meaning of the code beside the bytes is up to the shape."""

    def result(self, call: Call, result: Any) -> Replied:
        """If it raises, the call fails with that error."""
        ...

    def failure(self, call: Call, error: Params) -> Replied:
        """`error` is the rest of a JSON-RPC reply: `{"error": …}`, or `{"result": …}` if the model should read it."""
        ...


class ShapedSession(Session):
    """A session whose replies `shape` encodes. Set the shape right after making it."""

    __slots__ = ("shape",)

    shape: ReplyShape

    def settle(self, call: Call, result: Any) -> None:
        """Answer a call with the value it gave."""
        if call.settled:
            return
        try:
            data, code = self.shape.result(call, result)
            if len(data) > self.composition.limits.response:
                raise too_large(call)
        except Exception as error:
            data, code = failure_reply(call, error, self._encode_failure)
        self._end(call, data, code)

    def _encode_failure(self, call: Call, error: BaseException) -> Replied:
        return self.shape.failure(call, failure_body(call, error))
