"""Asking the client within a call: forms, confirmations, sampling, roots, in both eras.

With a handshake, a question is a request to the client. Without one, the question is left in the reply, and the
function runs again with the answers. Recorded answers are sealed, bound to their request, and accepted once.

What `Context` imports at the start stands here: the verbs, loaded on first use, and `PendingVerb`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from defserve.base.exports import make_lazy_getattr
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.protocols.mcp.asking.client_requests import (
        ask_choice,
        ask_confirmation,
        ask_form,
        ask_url,
        can_ask_client,
        can_ask_confirmation,
        gather_answers,
        request_roots,
        request_sampling,
        run_once_per_call,
    )
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.protocols.mcp.asking.client_requests": (
                "ask_form ask_url can_ask_client can_ask_confirmation ask_choice "
                "ask_confirmation gather_answers run_once_per_call request_roots request_sampling"
            )
        },
    )

__all__ = [
    "ask_form",
    "ask_url",
    "can_ask_client",
    "can_ask_confirmation",
    "ask_choice",
    "ask_confirmation",
    "gather_answers",
    "run_once_per_call",
    "request_roots",
    "request_sampling",
]


# -- A verb that has to be awaited, and says so if it is used as its answer.


T = TypeVar("T")
P = ParamSpec("P")


class PendingVerb(Coroutine[Any, Any, T]):
    """What a verb of `Context` gives, to be awaited. Used as if it were the answer, it raises and says so.

    Without this a forgotten `await` would be true in an `if`, and `<coroutine object …>` in a text.
    """

    __slots__ = ("_asking", "__name__", "__qualname__")

    def __init__(self, asking: Coroutine[Any, Any, T], verb: str) -> None:
        self._asking = asking
        self.__name__ = self.__qualname__ = f"Context.{verb}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PendingVerb):  # as in the sets of whoever runs coroutines
            return self is other
        raise self._forgotten()

    __hash__ = object.__hash__

    def _refuse_use(self, *operands: object) -> Any:
        raise self._forgotten()

    __bool__ = __str__ = __format__ = _refuse_use
    __add__ = __radd__ = __getitem__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_use

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):
            if name.startswith(("_", "cr_", "gi_")):
                raise AttributeError(name)  # asked for by whoever runs coroutines
            raise AttributeError(f"{self._forgotten()}")

    def __repr__(self) -> str:
        return f"<{self._called}, not awaited>"

    def _forgotten(self) -> UsageError:
        self._asking.close()
        return UsageError(
            f"{self._called} was not awaited, so it is no answer yet",
            fix=f"await {self._called}; in a plain def: ctx.wait({self._called})",
        )

    @property
    def _called(self) -> str:
        return f"{self.__name__.replace('Context', 'ctx')}(…)"

    def __await__(self) -> Generator[Any, Any, T]:
        return self._asking.__await__()

    def send(self, value: Any) -> Any:
        return self._asking.send(value)

    def throw(self, *error: Any) -> Any:
        return self._asking.throw(*error)

    def close(self) -> None:
        self._asking.close()


def returns_pending_verb(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, PendingVerb[T]]:
    """Decorates a verb of `Context`: it gives an `PendingVerb`."""

    @wraps(verb)
    def ask(*args: P.args, **kwargs: P.kwargs) -> PendingVerb[T]:
        return PendingVerb(verb(*args, **kwargs), verb.__name__)

    return ask
