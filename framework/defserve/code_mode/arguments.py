"""The arguments of a call by the code, as if they had come in a message. They may be large: this runs in a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from defserve.limits import Limits
from defserve.sandbox.callouts import Answer, CallOut, ErrorKind
from defserve.wire.jsonvalue import excess, is_array, is_object


class BadCall(Exception):
    """A call that cannot be made. The code sees it as an exception of this kind."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(error=kind, message=message)


def as_json(out: CallOut, limits: Limits) -> CallOut:
    """The call with a JSON copy of its arguments, within the limits of messages. Raises BadCall."""
    given, name = {"args": out.args, "kwargs": out.kwargs}, out.name
    if (odd := _odd(given, limits.depth)) is not None:
        raise BadCall("TypeError", f"an argument of {name} is {odd}, and arguments are JSON")
    try:
        data = to_json(given, inf_nan_mode="constants")
        copy = from_json(data, allow_inf_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise BadCall("ValueError", f"the arguments of {name} are not JSON: {error}") from None
    if len(data) > limits.message:
        raise BadCall("ValueError", f"the arguments of {name} are longer than {limits.message} bytes")
    if (problem := excess(copy, limits.depth, limits.keys)) is not None:
        raise BadCall("ValueError", f"the arguments of {name}: {problem}")
    return replace(out, args=tuple(copy["args"]), kwargs=copy["kwargs"])


def _odd(value: Any, depth: int) -> str | None:
    """What the first value is that JSON does not know. Of the code's objects only texts cross, which are no data."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    for one, level in waiting:
        if level > depth:
            return f"nested more than {depth} levels deep"
        if is_object(one):
            keys: list[Any] = list(one)
            if odd := [key for key in keys if not isinstance(key, str)]:
                return f"a dict with the key {odd[0]!r}"
            waiting += [(inner, level + 1) for inner in one.values()]
        elif is_array(one):
            waiting += [(inner, level + 1) for inner in one]
        elif not (one is None or isinstance(one, str | bool | int | float)):
            return f"of type {type(one).__name__}"
    return None
