"""A guarded type in a union with one that takes any text: what the guard refuses reaches the function by no branch."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Optional, Union, get_args, get_origin

from pydantic import AnyUrl, BeforeValidator, Field, Json, RootModel, SecretStr

from defserve import PublicUrl, Server, ShellCommand, UsageError
from defserve.errors import DefserveError
from defserve.guard.argument_types import Code, Within
from tests.attack.controls.rules import compare_no_branches, judge_late
from tests.attack.trial import Control, Family, Trial
from tests.protocols.mgp.security.test_union_bypass import (
    Alias,
    Aliased,
    Guarded,
    Named,
    OfAny,
    Once,
    Open,
    OpenTree,
    Plain,
    PlainNamed,
    PlainRecord,
    PlainTyped,
    Record,
    Typed,
)

FAMILY = Family("unions")
PRIVATE = "http://127.0.0.1/admin"
GUARDED: dict[str, tuple[Any, str]] = {
    "PublicUrl": (PublicUrl, PRIVATE),
    "ShellCommand": (ShellCommand, "ls; cat /etc/shadow"),
    "Within": (Annotated[Path, Within("/srv")], "/etc/shadow"),
    "Code": (Annotated[str, Code()], "import os"),
}

# How a guarded type and one that takes any text are put side by side, and the JSON that fits both.
SHAPES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bare list": (lambda g: list | list[g], lambda v: [v]),
    "list of str": (lambda g: list[g] | list[str], lambda v: [v]),
    "list of Any": (lambda g: list[Any] | list[g], lambda v: [v]),
    "sequence": (lambda g: Sequence[g] | list[str], lambda v: [v]),
    "deque": (lambda g: deque[str] | list[g], lambda v: [v]),
    "tuples": (lambda g: tuple[int, g] | tuple[int, str], lambda v: [1, v]),
    "tuple and list": (lambda g: tuple[g, ...] | list[Any], lambda v: [v]),
    "dicts": (lambda g: dict[str, g] | dict[str, str], lambda v: {"a": v}),
    "ordered": (lambda g: dict[str, g] | OrderedDict[str, Any], lambda v: {"a": v}),
    "mapping": (lambda g: dict[str, g] | Mapping[str, Any], lambda v: {"a": v}),
    "bare dict": (lambda g: dict | dict[str, g], lambda v: {"a": v}),
    "object": (lambda g: g | object, lambda v: v),
    "any": (lambda g: Union[g, Any], lambda v: v),  # noqa: UP007
    "text": (lambda g: Union[g, str], lambda v: v),  # noqa: UP007
    "optional text": (lambda g: Optional[Union[str, g]], lambda v: v),  # noqa: UP007, UP045
    "in order": (lambda g: Annotated[Union[str, g], Field(union_mode="left_to_right")], lambda v: v),  # noqa: UP007
    "deep": (lambda g: list[dict[str, list[g] | list[Any]]], lambda v: [{"a": [v]}]),
    "root": (lambda g: str | RootModel[g], lambda v: v),
    "generic": (lambda g: OfAny[g] | OfAny[str], lambda v: {"url": v}),
    "json": (lambda g: str | Json[g], lambda v: v),
}

# Siblings that have a form of their own.
OWN: dict[str, tuple[Any, Any]] = {
    "model and dict": (Guarded | dict[str, str], {"url": PRIVATE}),
    "models": (Guarded | Plain, {"url": PRIVATE}),
    "open model": (Guarded | Open, {"url": PRIVATE}),
    "alias": (Guarded | Aliased, {"url": PRIVATE}),
    "typed": (Typed | PlainTyped, {"url": PRIVATE}),
    "records": (Record | PlainRecord, {"url": PRIVATE}),
    "named": (Named | PlainNamed, [PRIVATE]),
    "named and list": (Named | list[str], [PRIVATE]),
    "model and typed": (Guarded | PlainTyped, {"url": PRIVATE}),
    "new type": (PublicUrl | Once, PRIVATE),
    "path": (PublicUrl | Path, PRIVATE),
    "url": (PublicUrl | AnyUrl, PRIVATE),
    "secret": (PublicUrl | SecretStr, PRIVATE),
    "bytes": (PublicUrl | bytes, PRIVATE),
    "before": (PublicUrl | Annotated[int, BeforeValidator(lambda text: text)], PRIVATE),
    "type alias": (Alias, PRIVATE),
    "tree": (OpenTree, {"below": [PRIVATE]}),
}


def declare(annotation: Any) -> Any:
    """The arguments of a tool with one parameter of this type. Raises UsageError."""
    server = Server("t")

    def f(given: Any) -> str:
        return ""

    f.__annotations__ = {"given": annotation, "return": str}
    server.tool(f)
    tool = server.mcp.tools.registry.get("f")
    assert tool is not None
    return tool.function.arguments


def reach(annotation: Any, value: Any) -> str:
    """What reaches the function although a guard refuses it; empty if the declaration or the call is refused."""
    try:
        found = declare(annotation).validate({"given": value})
    except (UsageError, DefserveError):
        return ""
    return f"{str(found)[:80]} reaches the function"


def cases() -> dict[str, tuple[Any, Any]]:
    made = {
        f"{shape} of {name}": (make(guard), wrap(refused))
        for shape, (make, wrap) in SHAPES.items()
        for name, (guard, refused) in GUARDED.items()
    }
    # A guard that comes first ends the reading. So each is tried with the other type first, too.
    turned = {
        f"{name}, turned": (Union[tuple(reversed(get_args(annotation)))], value)  # noqa: UP007
        for name, (annotation, value) in OWN.items()
        if get_origin(annotation) in (Union, UnionType)
    }
    return made | OWN | turned


@FAMILY.attack(
    "a branch beside a guard",
    Control(compare_no_branches, "reaches the function", "bare list of PublicUrl", here=True),
    Control(compare_no_branches, "reaches the function", "optional text of ShellCommand", here=True),
    Control(compare_no_branches, "reaches the function", "root of Code", here=True),
    Control(compare_no_branches, "reaches the function", "in order of Within", here=True),
)
def _(trial: Trial) -> None:
    for name, (annotation, value) in trial.choose(cases()):
        trial.expect(not (said := reach(annotation, value)), f"{name}: {said}")


@FAMILY.attack("a guard that judges too late", Control(judge_late, "reaches the function", here=True))
def _(trial: Trial) -> None:
    """An iterator would be read by the function, and nothing in it judged before."""
    late = {
        "list of iterables": (list[Iterable[PublicUrl]], [[PRIVATE]]),
        "dict of iterables": (dict[str, Iterable[PublicUrl]], {"a": [PRIVATE]}),
        "generic": (OfAny[Iterable[PublicUrl]], {"url": [PRIVATE]}),
    }
    for name, (annotation, value) in trial.choose(late):
        trial.expect(not (said := reach(annotation, value)), f"{name}: {said}")
