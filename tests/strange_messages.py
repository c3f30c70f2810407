"""Messages that no peer should send, for property tests: any JSON, and real messages with a part of them changed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from([1, 2, "1", "x" * 10_000, 10**400, -1, 0.5, "\x00", "é", "notifications/cancelled"]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
ODD_IDS: list[Any] = [[1], {}, None, True, 1.5, 10**400, "x" * 10_000, {"a": [1]}, -0.0]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every part of a JSON value."""
    found = [path]
    if isinstance(value, dict):
        found += [place for key, part in value.items() for place in places(part, (*path, key))]
    elif isinstance(value, list):
        found += [place for index, part in enumerate(value) for place in places(part, (*path, index))]
    return found


def changed(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    """A copy of a JSON value with one part of it replaced."""
    if not path:
        return part
    copy = json.loads(json.dumps(value))
    inside = copy
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = part
    return copy


@st.composite
def messages(draw: st.DrawFn, real: list[Json]) -> bytes:
    """One line: a real message with one or two parts changed, any JSON, or any bytes."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=40)).replace(b"\n", b" ").replace(b"\r", b" ") or b"{"
    if kind == 1:
        return json.dumps(draw(values)).encode()
    message: Any = {"jsonrpc": "2.0", **draw(st.sampled_from(real))}
    for _ in range(draw(st.integers(1, 2))):
        part = draw(st.one_of(values, st.sampled_from(ODD_IDS)))
        message = changed(message, draw(st.sampled_from(places(message))), part)
    return json.dumps([message, message] if kind == 2 else message).encode()
