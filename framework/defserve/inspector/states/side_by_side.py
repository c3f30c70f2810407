"""Two contents as lines side by side, equal parts opposite each other. The time is linear in their size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from defserve.stores.checkpoints.json_equality import are_different, common_ends
from defserve.wire.jsonvalue import is_array, is_object

Row: TypeAlias = tuple[str | None, str | None, bool]
"""The line before, the line after, and whether they differ. None: there is nothing opposite."""

Ends: TypeAlias = tuple[str, str]

CONTEXT: Final = 3
MOST_ROWS: Final = 2_000

_ABSENT: Final = object()


def side_by_side(before: Any, after: Any) -> list[Row | int]:
    """The lines of both, names sorted, with unchanged runs left out: a number says how many lines."""
    return folded(aligned(_sorted(before), _sorted(after)))


def aligned(before: Any, after: Any) -> list[Row]:
    """All lines of both. Names stay in their order; those of `after` alone come last in their object."""
    return list(_rows("", before, after, ("", "")))


def _sorted(value: Any) -> Any:
    if is_object(value):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if is_array(value) else value


def _rows(name: str, before: Any, after: Any, ends: Ends) -> Iterator[Row]:
    """The lines of two values of one name. `ends` is what follows each of them, a comma or nothing."""
    if before is _ABSENT:
        yield from ((None, line, True) for line in _lines(name, after, ends[1]))
    elif after is _ABSENT:
        yield from ((line, None, True) for line in _lines(name, before, ends[0]))
    elif not are_different(before, after):
        *same, last = _lines(name, after, "")
        yield from ((line, line, False) for line in same)
        yield last + ends[0], last + ends[1], False
    elif is_object(before) and is_object(after) and before and after:
        names = _merged(before, after)
        pairs = [(_key(each), before.get(each, _ABSENT), after.get(each, _ABSENT)) for each in names]
        yield from _nested(f"{name}{{", pairs, "}", ends)
    elif is_array(before) and is_array(after) and before and after:
        yield from _nested(f"{name}[", [("", *pair) for pair in _aligned(before, after)], "]", ends)
    else:
        left, right = _lines(name, before, ends[0]), _lines(name, after, ends[1])
        for place in range(max(len(left), len(right))):
            yield _line(left, place), _line(right, place), True


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """The names of both in one order: those that only one has stand where they stand there."""
    rest = iter(after)
    told: set[str] = set()
    for name in before:
        if name in after and name not in told:
            for each in rest:
                if each == name:
                    break
                if each not in before and each not in told:
                    told.add(each)
                    yield each
        told.add(name)
        yield name
    yield from (each for each in after if each not in told)


def _nested(opens: str, pairs: list[tuple[str, Any, Any]], closes: str, ends: Ends) -> Iterator[Row]:
    last = [
        max((place for place, pair in enumerate(pairs) if pair[side] is not _ABSENT), default=-1) for side in (1, 2)
    ]
    yield opens, opens, False
    for place, (name, before, after) in enumerate(pairs):
        commas = ("," if place < last[0] else "", "," if place < last[1] else "")
        for left, right, differs in _rows(name, before, after, commas):
            yield _indented(left), _indented(right), differs
    yield closes + ends[0], closes + ends[1], False


def _aligned(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The items of two arrays in pairs: equal beginnings and ends are opposite each other."""
    start, end = common_ends(before, after, are_different)
    yield from zip(before[:start], after[:start], strict=True)
    left, right = before[start : len(before) - end], after[start : len(after) - end]
    for place in range(max(len(left), len(right))):
        yield _item(left, place), _item(right, place)
    yield from zip(before[len(before) - end :], after[len(after) - end :], strict=True)


def _item(items: Sequence[Any], place: int) -> Any:
    return items[place] if place < len(items) else _ABSENT


def _line(lines: list[str], place: int) -> str | None:
    return lines[place] if place < len(lines) else None


def _lines(name: str, value: Any, end: str) -> list[str]:
    return f"{name}{json.dumps(value, indent=2, ensure_ascii=False)}{end}".split("\n")


def _key(name: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: "


def _indented(line: str | None) -> str | None:
    return None if line is None else f"  {line}"


def folded(rows: list[Row]) -> list[Row | int]:
    """The rows that differ, and a few around each. A number says how many are left out."""
    return list(_folded(rows))


def _folded(rows: list[Row]) -> Iterator[Row | int]:
    shown = bytearray(len(rows))
    for place, (_, _, differs) in enumerate(rows):
        if differs:
            start, stop = max(place - CONTEXT, 0), min(place + CONTEXT + 1, len(rows))
            shown[start:stop] = b"\1" * (stop - start)
    told = skipped = 0
    for place, row in enumerate(rows):
        if not shown[place] or told >= MOST_ROWS:
            skipped += 1
            continue
        if skipped:
            yield skipped
            skipped = 0
        told += 1
        yield row
    if skipped:
        yield skipped
