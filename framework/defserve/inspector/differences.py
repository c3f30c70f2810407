"""What lies between two contents: a patch with the values before it, in a few words, and as lines side by side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from pydantic_core import to_json

from defserve.core.json_values import is_array, is_object
from defserve.inspector.recording.masking import mask_value_at
from defserve.stores.checkpoints.json_patches import PatchOperation, are_different, count_common_ends, diff_json_values

MAX_OPS: Final = 500
MAX_VALUE_LENGTH: Final = 16 * 1024
MAX_SUMMARY_LENGTH: Final = 160
PREVIEW: Final = 48

_ABSENT: Final = object()


def make_json_patch(before: Any, after: Any) -> list[PatchOperation]:
    """The RFC 6902 patch from one content to another. `was` has the value that an operation removes or replaces.

    Paths name the place in an array, never `-`. Secrets are masked.
    """
    ops = diff_json_values(before, after)
    appended = Counter(op["path"] for op in ops if op["path"].endswith("/-"))
    seen: Counter[str] = Counter()
    made: list[PatchOperation] = []
    for op in ops:
        path, removed = op["path"], 0
        if op["op"] == "remove":
            # The items of an array go one after another, all at the place of the first.
            removed = seen[path]
            seen[path] += 1
        elif path in appended and is_array(array := _at(after, _names(path)[:-1])):
            appended[path] -= 1
            path = f"{path[:-1]}{len(array) - appended[path] - 1}"
        names, shown = _names(path), PatchOperation(op=op["op"], path=path)
        if op["op"] != "add":
            names, shown["was"] = mask_value_at(before, _names(path), _at(before, _names(path), removed))
        if "value" in op:
            names, shown["value"] = mask_value_at(after, _names(path), op["value"])
        made.append(shown | {"path": _path(names)})
    return made


def shorten_patch_operations(ops: Sequence[PatchOperation]) -> list[PatchOperation]:
    """The first operations, for a page. A long value is the beginning of its text, and `cut` has its size in bytes."""
    return [_short(op) for op in ops[:MAX_OPS]]


def summarize_patch(ops: Sequence[PatchOperation]) -> str:
    """A patch in a few words: `beds/fern/wanted: 18 → 24`, `+ notes/2 "milk"`, `− plants, 4 items, and 2 more`."""
    if not ops:
        return "nothing changed"
    first, *rest = ops
    if len(ops) == 2 and (said := _describe_move(ops)) is not None:
        return said
    return _cut(_describe_op(first), MAX_SUMMARY_LENGTH) + (f", and {len(rest):,} more" if rest else "")


def _describe_op(op: PatchOperation) -> str:
    path = _words_of(op["path"])
    match op["op"]:
        case "add":
            return f"+ {path} {_preview(op['value'])}"
        case "remove":
            return f"− {path}{_describe_removed_value(op['was'])}"
        case _ if not op["path"]:
            return "begins" if op.get("was") is None else "all of it"
        case _:
            return f"{path}: {_preview(op['was'])} → {_preview(op['value'])}"


def _describe_move(ops: Sequence[PatchOperation]) -> str | None:
    """Something that was removed in one place and added in another."""
    by_kind = {op["op"]: op for op in ops}
    taken, put = by_kind.get("remove"), by_kind.get("add")
    if taken is None or put is None or taken["was"] != put["value"]:
        return None
    return f"{_preview(put['value'])}: {_words_of(taken['path'])} to {_words_of(put['path'])}"


def _describe_removed_value(value: Any) -> str:
    if is_array(value) or is_object(value):
        return f", {len(value):,} {'item' if len(value) == 1 else 'items'}"
    return f" {_preview(value)}"


def _preview(value: Any) -> str:
    return _cut(_text(value), PREVIEW)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(value: Any) -> str:
    return to_json(value).decode()


def _words_of(path: str) -> str:
    return "/".join(_names(path))


def _short(op: PatchOperation) -> PatchOperation:
    shown = dict(op)
    for name in ("was", "value"):
        if name in op and len(text := _text(op[name])) > MAX_VALUE_LENGTH:
            shown |= {name: f"{text[:PREVIEW]}…", "cut": len(text)}
    return shown


def _path(names: Sequence[str]) -> str:
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def _names(path: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:]]


def _at(value: Any, names: Sequence[str], offset: int = 0) -> Any:
    """The value at a path; None if there is none. `offset` counts on from there in an array."""
    for place, name in enumerate(names, 1):
        step = offset if place == len(names) else 0
        if is_object(value):
            value = value.get(name, _ABSENT)
        elif is_array(value) and name.isdecimal() and int(name) + step < len(value):
            value = value[int(name) + step]
        else:
            return None
    return None if value is _ABSENT else value


# -- Two contents as lines side by side, equal parts opposite each other. The time is linear in their size.


DiffRow: TypeAlias = tuple[str | None, str | None, bool]
"""The line before, the line after, and whether they differ. None: there is nothing opposite."""

Ends: TypeAlias = tuple[str, str]

CONTEXT: Final = 3
MAX_ROWS: Final = 2_000


def align_changed_lines(before: Any, after: Any) -> list[DiffRow | int]:
    """The lines of both, names sorted, with unchanged runs left out: a number says how many lines."""
    return fold_equal_rows(align_lines(_sort_names(before), _sort_names(after)))


def align_lines(before: Any, after: Any) -> list[DiffRow]:
    """All lines of both. Names stay in their order; those of `after` alone come last in their object."""
    return list(_rows("", before, after, ("", "")))


def _sort_names(value: Any) -> Any:
    if is_object(value):
        return {name: _sort_names(value[name]) for name in sorted(value)}
    return [_sort_names(each) for each in value] if is_array(value) else value


def _rows(name: str, before: Any, after: Any, ends: Ends) -> Iterator[DiffRow]:
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
        pairs = [
            (f"{json.dumps(each, ensure_ascii=False)}: ", before.get(each, _ABSENT), after.get(each, _ABSENT))
            for each in _merge_names(before, after)
        ]
        yield from _iter_nested_rows(f"{name}{{", pairs, "}", ends)
    elif is_array(before) and is_array(after) and before and after:
        yield from _iter_nested_rows(f"{name}[", [("", *pair) for pair in _pair_items(before, after)], "]", ends)
    else:
        pairs = zip_longest(_lines(name, before, ends[0]), _lines(name, after, ends[1]))
        yield from ((left, right, True) for left, right in pairs)


def _merge_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
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


def _iter_nested_rows(opens: str, pairs: list[tuple[str, Any, Any]], closes: str, ends: Ends) -> Iterator[DiffRow]:
    last = [
        max((place for place, pair in enumerate(pairs) if pair[side] is not _ABSENT), default=-1) for side in (1, 2)
    ]
    yield opens, opens, False
    for place, (name, before, after) in enumerate(pairs):
        commas = ("," if place < last[0] else "", "," if place < last[1] else "")
        for left, right, differs in _rows(name, before, after, commas):
            yield _indent_line(left), _indent_line(right), differs
    yield closes + ends[0], closes + ends[1], False


def _pair_items(before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The items of two arrays in pairs: equal beginnings and ends are opposite each other."""
    start, end = count_common_ends(before, after, are_different)
    yield from zip(before[:start], after[:start], strict=True)
    left, right = before[start : len(before) - end], after[start : len(after) - end]
    yield from zip_longest(left, right, fillvalue=_ABSENT)
    yield from zip(before[len(before) - end :], after[len(after) - end :], strict=True)


def _lines(name: str, value: Any, end: str) -> list[str]:
    return f"{name}{json.dumps(value, indent=2, ensure_ascii=False)}{end}".split("\n")


def _indent_line(line: str | None) -> str | None:
    return None if line is None else f"  {line}"


def fold_equal_rows(rows: list[DiffRow]) -> list[DiffRow | int]:
    """The rows that differ, and a few around each. A number says how many are left out."""
    folded: list[DiffRow | int] = []
    shown = bytearray(len(rows))
    for place, (_, _, differs) in enumerate(rows):
        if differs:
            start, stop = max(place - CONTEXT, 0), min(place + CONTEXT + 1, len(rows))
            shown[start:stop] = b"\1" * (stop - start)
    told = skipped = 0
    for place, row in enumerate(rows):
        if not shown[place] or told >= MAX_ROWS:
            skipped += 1
            continue
        if skipped:
            folded.append(skipped)
            skipped = 0
        told += 1
        folded.append(row)
    return [*folded, skipped] if skipped else folded
