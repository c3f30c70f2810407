"""The modules that restricted code imports: each holds what its export table lists, and nothing else.

What reads or writes attributes by a name that its caller gives, or makes code out of such names, has a stand-in here.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import keyword
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from defserve.guard.code.imports import EXPORTS, root
from defserve.guard.code.names import STRICT_METHODS, words

# `strptime` imports it from C through the program's `__import__`, and then takes it from `sys.modules`.
_BEHIND_C = frozenset({"_strptime"})

SOURCE = "<code>"
"""The file name of everything that restricted code defines."""

_T = TypeVar("_T")


def wraps(wrapped: Any) -> Callable[[_T], _T]:
    """`functools.wraps` for functions of the program: their name and text, no attributes of the caller's choice."""

    def name_like(wrapper: _T) -> _T:
        if isinstance(wrapper, types.FunctionType) and wrapper.__code__.co_filename == SOURCE:
            functools.update_wrapper(wrapper, wrapped, ("__name__", "__qualname__", "__doc__"), ())
        return wrapper

    return name_like


def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """`dataclasses.dataclass`, which makes code out of the names of the fields. Raises TypeError for other names."""

    def check_and_make(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError("dataclass() takes a class")
        for name in _annotated_names(cls):
            if type(name) is not str or not name.isidentifier() or keyword.iskeyword(name) or name[:2] == "__":
                raise TypeError(f"{name!r} is not a name of a field")
        make: Any = dataclasses.dataclass(**options)
        return make(cast(Any, cls))

    return check_and_make if cls is None else check_and_make(cls)


def _annotated_names(cls: type) -> Iterable[object]:
    if sys.version_info >= (3, 14):
        lib = import_module("annotationlib")
        return list(lib.get_annotations(cls, format=lib.Format.FORWARDREF))
    return list(inspect.get_annotations(cls))


# What a class statement sets by itself.
_SET_BY_PYTHON = words(
    "__module__ __qualname__ __doc__ __annotations__ __classcell__ __firstlineno__ __static_attributes__ __annotate__"
    " __annotate_func__ __conditional_annotations__ __classdictcell__"
)


class _PlainMembers(enum.EnumMeta):
    """Makes enumerations. `Enum("X", {"__reduce_ex__": f})` would define a method that the judge never saw."""

    def __new__(metacls, cls: str, bases: tuple[type, ...], classdict: Any, **keywords: Any) -> Any:
        for name in classdict:
            if name[:2] == "__" and name not in STRICT_METHODS and name not in _SET_BY_PYTHON:
                raise TypeError(f"{name!r} is not a name of a member")
        return super().__new__(metacls, cls, bases, classdict, **keywords)


def _enumerations() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"):
        bases = (getattr(enum, name),)
        body: Any = _PlainMembers.__prepare__(name, bases)
        body["__module__"] = "enum"
        made[name] = _PlainMembers(name, bases, body)
    return made


STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "functools": {"wraps": wraps},
    "dataclasses": {"dataclass": dataclass},
    "enum": _enumerations(),
}


class FacadeImporter:
    """The importer of restricted code: modules made of an export table each, and nothing else."""

    def __init__(self, allow: Collection[str] | None, trust: Collection[str]) -> None:
        self._allow = None if allow is None else frozenset(allow)
        self._trust = frozenset(trust)
        self._made: dict[str, types.ModuleType] = {}

    def import_(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Collection[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        """As `builtins.__import__`: `import a.b` gives `a`, `from a.b import c` gives `a.b`."""
        if name in _BEHIND_C:
            import_module(name)
            return types.ModuleType(name)
        if level or not self._allowed(name):
            raise ImportError(f"import of {name!r} is not allowed")
        module = self._module(name)
        parent = name
        while "." in parent:
            parent, _, child = parent.rpartition(".")
            setattr(self._module(parent), child, self._made[f"{parent}.{child}"])
        for child in fromlist or ():
            if f"{name}.{child}" in EXPORTS and self._allowed(f"{name}.{child}"):
                setattr(module, child, self._module(f"{name}.{child}"))
        return module if fromlist else self._module(root(name))

    def _allowed(self, name: str) -> bool:
        listed = self._allow is None or name == "__future__" or name in self._allow or root(name) in self._allow
        return (listed and name in EXPORTS) or name in self._trust

    def _module(self, name: str) -> types.ModuleType:
        if name not in self._made:
            self._made[name] = import_module(name) if name in self._trust else self._facade(name)
        return self._made[name]

    def _facade(self, name: str) -> types.ModuleType:
        facade = types.ModuleType(name)
        if name in EXPORTS and self._allowed(name):
            real = import_module(name)
            facade.__dict__.update({export: getattr(real, export) for export in EXPORTS[name] if hasattr(real, export)})
            facade.__dict__.update(STAND_INS.get(name, {}))
        return facade
