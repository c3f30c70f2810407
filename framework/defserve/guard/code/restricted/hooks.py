"""What attribute access and writes of restricted code call at run time.

The jailed child imports this file, so it imports little.
"""

from __future__ import annotations

import operator
import re
import string
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from RestrictedPython import Guards

from defserve.guard.code.levels import RestrictedLevel
from defserve.guard.code.names import FRAMES, MUTATORS, is_private

# By name, so that the child need not import them; a class of the program's own is in `__main__`.
_WRITABLE = frozenset(
    (
        "builtins.dict builtins.list builtins.bytearray collections.defaultdict collections.OrderedDict"
        " collections.Counter collections.deque array.array types.SimpleNamespace"
    ).split()
)
_SETTINGS = frozenset({"decimal.Context"})
_OPERATORS = {
    "+=": "add",
    "-=": "sub",
    "*=": "mul",
    "/=": "truediv",
    "//=": "floordiv",
    "%=": "mod",
    "**=": "pow",
    "<<=": "lshift",
    ">>=": "rshift",
    "|=": "or",
    "&=": "and",
    "^=": "xor",
    "@=": "matmul",
}
# Typed by hand: the guards carry no annotations.
GUARDS = cast(dict[str, Callable[..., Any]], vars(Guards))
_guarded_getattr = GUARDS["safer_getattr_raise"]
_FIELD_PART = re.compile(r"\A[^.\[]+|\.[^.\[]+|\[[^\]]+\]")


class RuntimeHooks:
    """What attribute access and writes are rewritten to call. Keeps which classes the program itself made."""

    def __init__(self, scope: dict[str, Any], frozen: frozenset[int], level: RestrictedLevel) -> None:
        self._scope, self._frozen, self._readonly = scope, frozen, level == "readonly"
        self._own: set[type] = set()
        self.build = ClassBuilder(self._own)

    def getattr(self, ob: Any, name: str, *default: Any) -> Any:
        if type(name) is str and is_private(name) and self._is_own(ob):
            return getattr(ob, name, *default)
        if name == "format" and type(ob) is str:
            return _Format(self.getattr, ob)
        if name in FRAMES:
            raise AttributeError(f"{name!r} is not an attribute restricted code may read")
        if self._readonly and name in MUTATORS and (id(ob) in self._frozen or isinstance(ob, type)):
            raise TypeError(f"readonly: {name!r} would change an object the code did not make")
        return _guarded_getattr(ob, name, *default)

    def hasattr(self, ob: Any, name: str) -> bool:
        try:
            self.getattr(ob, name)
        except AttributeError:
            return False
        return True

    def write(self, ob: Any) -> Any:
        """The object, if the program may assign to its items or attributes. Raises TypeError."""
        if self._readonly:
            if _kind(ob) in _WRITABLE and id(ob) not in self._frozen:
                return ob
            raise TypeError("readonly: assignment to an object the code did not make")
        if _kind(ob) in _WRITABLE or _kind(ob) in _SETTINGS or self._is_own(ob):
            return ob
        raise TypeError(f"assignment to items or attributes of {type(ob).__name__!r} is not allowed")

    def in_place(self, symbol: str, left: Any, right: Any) -> Any:
        prefix = "" if self._readonly else "i"
        return getattr(operator, f"__{prefix}{_OPERATORS[symbol]}__")(left, right)

    def augment_attribute(self, symbol: str, ob: Any, name: str, value: Any) -> None:
        setattr(self.write(ob), name, self.in_place(symbol, self.getattr(ob, name), value))

    def augment_item(self, symbol: str, ob: Any, key: Any, value: Any) -> None:
        self.write(ob)[key] = self.in_place(symbol, ob[key], value)

    def _is_own(self, ob: Any) -> bool:
        if isinstance(ob, types.FunctionType):
            return ob.__globals__ is self._scope
        return type(ob) in self._own or any(ob is made for made in self._own if isinstance(ob, type))


def _kind(ob: object) -> str:
    return f"{type(ob).__module__}.{type(ob).__qualname__}"


class ClassBuilder:
    """Used as the metaclass: builds the class as `type` (or `EnumType`, `ABCMeta`) would, and remembers it."""

    def __init__(self, made: set[type]) -> None:
        self._made = made

    def __prepare__(self, name: str, bases: tuple[type, ...], **keywords: Any) -> Mapping[str, object]:
        return types.prepare_class(name, bases)[1]

    def __call__(self, name: str, bases: tuple[type, ...], body: dict[str, Any], **keywords: Any) -> type:
        made = cast(type, types.prepare_class(name, bases)[0](name, bases, body))
        self._made.add(made)
        return made


class _Format:
    """`str.format` of one template whose fields go through the guarded `getattr`."""

    def __init__(self, guarded: Callable[[Any, str], Any], template: str) -> None:
        self._template = template
        self._formatter = _Formatter(guarded)

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self._formatter.vformat(self._template, args, kwargs)


class _Formatter(string.Formatter):
    def __init__(self, guarded: Callable[[Any, str], Any]) -> None:
        self._guarded = guarded

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        # `0.name[key]`: the way the interpreter reads it, with the guarded `getattr` in its place.
        first, *rest = _FIELD_PART.findall(field_name)
        if "".join([first, *rest]) != field_name or first[:1] in (".", "["):
            raise ValueError(f"bad field in format string: {field_name!r}")
        key = int(first) if first.isdigit() else first
        ob = self.get_value(key, args, kwargs)
        for part in rest:
            if part.startswith("."):
                ob = self._guarded(ob, part[1:])
            else:
                ob = ob[int(part[1:-1]) if part[1:-1].isdigit() else part[1:-1]]
        return ob, key
