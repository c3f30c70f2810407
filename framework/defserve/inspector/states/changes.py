"""What lies between two contents: a patch with the values before it, and the same in a few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic_core import to_json

from defserve.inspector.recording.masking import masked_at
from defserve.stores.checkpoints.diffs import Op, diff
from defserve.wire.jsonvalue import is_array, is_object

MOST_OPS: Final = 500
LONGEST_VALUE: Final = 16 * 1024
LONGEST_WORDS: Final = 160
PREVIEW: Final = 48

_ABSENT: Final = object()


def patch(before: Any, after: Any) -> list[Op]:
    """The RFC 6902 patch from one content to another. `was` has the value that an operation removes or replaces.

    Paths name the place in an array, never `-`. Secrets are masked.
    """
    ops = diff(before, after)
    appended = Counter(op["path"] for op in ops if op["path"].endswith("/-"))
    seen: Counter[str] = Counter()
    made: list[Op] = []
    for op in ops:
        path, removed = op["path"], 0
        if op["op"] == "remove":
            # The items of an array go one after another, all at the place of the first.
            removed = seen[path]
            seen[path] += 1
        elif path in appended and is_array(array := _at(after, _names(path)[:-1])):
            appended[path] -= 1
            path = f"{path[:-1]}{len(array) - appended[path] - 1}"
        names, shown = _names(path), Op(op=op["op"], path=path)
        if op["op"] != "add":
            names, shown["was"] = masked_at(before, _names(path), _at(before, _names(path), removed))
        if "value" in op:
            names, shown["value"] = masked_at(after, _names(path), op["value"])
        made.append(shown | {"path": _path(names)})
    return made


def bounded(ops: Sequence[Op]) -> list[Op]:
    """The first operations, for a page. A long value is the beginning of its text, and `cut` has its size in bytes."""
    return [_short(op) for op in ops[:MOST_OPS]]


def words(ops: Sequence[Op]) -> str:
    """A patch in a few words: `beds/fern/wanted: 18 → 24`, `+ notes/2 "milk"`, `− plants, 4 items, and 2 more`."""
    if not ops:
        return "nothing changed"
    first, *rest = ops
    if len(ops) == 2 and (said := _moved(ops)) is not None:
        return said
    said = _said(first)
    return _cut(said, LONGEST_WORDS) + (f", and {len(rest):,} more" if rest else "")


def _said(op: Op) -> str:
    path = _words_of(op["path"])
    match op["op"]:
        case "add":
            return f"+ {path} {_preview(op['value'])}"
        case "remove":
            return f"− {path}{_counted(op['was'])}"
        case _ if not op["path"]:
            return "begins" if op.get("was") is None else "all of it"
        case _:
            return f"{path}: {_preview(op['was'])} → {_preview(op['value'])}"


def _moved(ops: Sequence[Op]) -> str | None:
    """Something that was removed in one place and added in another."""
    by_kind = {op["op"]: op for op in ops}
    taken, put = by_kind.get("remove"), by_kind.get("add")
    if taken is None or put is None or taken["was"] != put["value"]:
        return None
    return f"{_preview(put['value'])}: {_words_of(taken['path'])} to {_words_of(put['path'])}"


def _counted(value: Any) -> str:
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


def _short(op: Op) -> Op:
    shown = dict(op)
    for name in ("was", "value"):
        if name in op and len(text := _text(op[name])) > LONGEST_VALUE:
            shown |= {name: f"{text[:PREVIEW]}…", "cut": len(text)}
    return shown


def _path(names: Sequence[str]) -> str:
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def _names(path: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[1:]]


def _at(value: Any, names: Sequence[str], offset: int = 0) -> Any:
    """The value at a path; None if there is none. `offset` counts on from there in an array."""
    for step, name in _steps(names, offset):
        if is_object(value):
            value = value.get(name, _ABSENT)
        elif is_array(value) and name.isdecimal() and int(name) + step < len(value):
            value = value[int(name) + step]
        else:
            return None
    return None if value is _ABSENT else value


def _steps(names: Sequence[str], offset: int) -> Iterator[tuple[int, str]]:
    last = len(names) - 1
    return ((offset if place == last else 0, name) for place, name in enumerate(names))
