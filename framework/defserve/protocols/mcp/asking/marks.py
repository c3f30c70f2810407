"""Marks of a call: what an extension must not forget of it, however it goes on.

A mark is set on the call and on all calls that make it. Nobody takes it away. It travels with the call: into the next
round of a request that is repeated with answers, and into a further run of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from defserve.core.call import Call

SEVERAL = ""
"""The value of a mark that was set with different values."""


class _Marks:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}


def mark(call: Call, name: str, value: str = SEVERAL) -> None:
    """Mark a call, and the calls that make it. A second value of the same mark makes it SEVERAL."""
    for one in _line(call):
        values = one.local(_Marks).values
        values[name] = value if values.get(name, value) == value else SEVERAL


def find_mark(call: Call, name: str) -> str | None:
    """The value of a mark of a call, or of one that makes it; None if there is none."""
    found = {marks.values[name] for one in _line(call) if (marks := one.peek(_Marks)) and name in marks.values}
    return None if not found else found.pop() if len(found) == 1 else SEVERAL


def marks_of(call: Call) -> dict[str, str]:
    """All marks of a call itself, to restore them on the call that goes on with its work."""
    marks = call.peek(_Marks)
    return dict(marks.values) if marks is not None else {}


def restore_marks(call: Call, marks: Mapping[str, str]) -> None:
    """Set the marks of the call whose work this one goes on with."""
    for name, value in marks.items():
        mark(call, name, value)


def _line(call: Call) -> Iterator[Call]:
    one: Call | None = call
    while one is not None:
        yield one
        one = one.outer
