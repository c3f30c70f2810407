"""The public surface as text: every public name with its signature, and the public members of every class.

Annotations stand as they are written, so that the text is the same on every Python.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_overloads

from tests.reference import GIVEN, default, fields, typed

SNAPSHOT: Final = Path(__file__).with_name("snapshot.txt")

MODULES: Final = (
    "defserve",
    "defserve.auth",
    "defserve.code_mode",
    "defserve.openapi",
    "defserve.errors",
    "defserve.extending",
    "defserve.gateway",
    "defserve.kernel",
    "defserve.guard",
    "defserve.guard.code",
    "defserve.guard.network",
    "defserve.guard.paths",
    "defserve.guard.shell",
    "defserve.client",
    "defserve.live",
    "defserve.sandbox",
    "defserve.search",
    "defserve.server",
    "defserve.state",
    "defserve.testing",
    "defserve.topics",
)


def surface() -> str:
    """What `snapshot.txt` should hold."""
    shown: dict[int, str] = {}
    lines: list[str] = []
    for module in MODULES:
        lines += ["", f"# {module}"]
        for name in public_names(module):
            value = getattr(import_module(module), name)
            if (home := shown.setdefault(id(value), f"{module}.{name}")) != f"{module}.{name}":
                lines.append(f"{name}: as {home}")
            else:
                lines += entry(name, value)
    lines += ["", "# what verbs return"]
    for name, (home, _) in GIVEN.items():
        lines += entry(name, getattr(import_module(home), name))
    return "\n".join(lines).lstrip() + "\n"


def public_names(module: str) -> list[str]:
    """`__all__`, or what the module itself defines."""
    found = import_module(module)
    own = (name for name, value in vars(found).items() if getattr(value, "__module__", None) == module)
    return sorted(getattr(found, "__all__", None) or (name for name in own if not name.startswith("_")))


def entry(name: str, value: Any) -> Iterator[str]:
    """A function on a line for each overload; a class with its members, indented."""
    if inspect.isclass(value):
        yield f"class {name}{bases(value)}{constructor(value)}"
        yield from (f"    {line}" for line in members(value))
    elif inspect.isfunction(value):
        yield from functions(name, value)
    else:
        yield f"{name}: {type(value).__name__ if type(value).__module__ == 'builtins' else 'object'}"


def bases(cls: type) -> str:
    ours = [base.__name__ for base in cls.__bases__ if is_ours(base) or issubclass(base, BaseException)]
    return f"({', '.join(ours)})" if ours else ""


def constructor(cls: type) -> str:
    """How an instance is made, where a class of ours says so."""
    makes = any(is_ours(base) and {"__init__", "__new__"} & vars(base).keys() for base in cls.__mro__)
    # An enum is called by Python's own signature, which differs between its versions.
    is_made = makes and not getattr(cls, "_is_protocol", False) and not issubclass(cls, Enum)
    return f": {cls.__name__}{parameters(inspect.signature(cls))}" if is_made else ""


def members(cls: type) -> Iterator[str]:
    """Public attributes, properties and methods by name, those of our own bases included."""
    found: dict[str, Any] = {}
    for base in filter(is_ours, reversed(cls.__mro__)):
        slots = vars(base).get("__slots__", ())
        found |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
        found |= dict.fromkeys(inspect.get_annotations(base))
        found |= vars(base)
    for name, value in sorted(found.items()):
        if name.startswith("_"):
            continue
        if isinstance(value, property) and value.fget is not None:
            yield f"{name}: {typed(inspect.signature(value.fget).return_annotation)}"
        elif isinstance(value, classmethod | staticmethod):
            yield from (f"{type(value).__name__} {line}" for line in functions(name, value.__func__, bound=True))
        elif inspect.isfunction(value):
            yield from functions(name, value, bound=True)
        else:
            yield name


def functions(name: str, function: Any, *, bound: bool = False) -> Iterator[str]:
    word = "async def" if inspect.iscoroutinefunction(inspect.unwrap(function)) else "def"
    for each in get_overloads(function) or [function]:
        yield f"{word} {name}{parameters(inspect.signature(each), skip=bound)}"


def parameters(signature: inspect.Signature, *, skip: bool = False) -> str:
    """`(a: int, /, *, b: str = 'x') -> None`, with annotations and defaults as an author would write them."""
    parts: list[str] = []
    given = list(signature.parameters.values())
    starred = False
    for number, each in enumerate(given):
        if each.kind is each.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        if options := re.fullmatch(r"Unpack\[(\w+)\]", typed(each.annotation)):
            parts += ([] if starred else ["*"]) + fields(options[1])
            continue
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        text = f"{stars}{each.name}" + (f": {typed(each.annotation)}" if each.annotation is not each.empty else "")
        if not (skip and number == 0):
            parts.append(text if each.default is each.empty else f"{text} = {default(each.default)}")
        is_last = number + 1 == len(given) or given[number + 1].kind is not each.POSITIONAL_ONLY
        if each.kind is each.POSITIONAL_ONLY and is_last and parts:
            parts.append("/")
    returns = signature.return_annotation
    shown = "" if returns is signature.empty else f" -> {typed(returns)}"
    return f"({', '.join(parts)}){shown}"


def is_ours(cls: type) -> bool:
    return cls.__module__.startswith("defserve")
