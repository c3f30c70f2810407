"""Layer 2: what strict and readonly code is compiled to and given to run with (RestrictedPython with our hooks).

RestrictedPython is a compiler policy, not a sandbox: run the result in the jail. Self-contained and light, because
the jailed child imports it.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
import string
import types
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Literal, cast

from RestrictedPython import Guards
from RestrictedPython.compile import CompileResult, compile_restricted_exec

from defserve.guard.code.dialect import Dialect
from defserve.guard.code.imports import EXPORTS, root
from defserve.guard.code.mutators import MUTATORS
from defserve.guard.code.names import FRAMES, is_private

RestrictedLevel = Literal["strict", "readonly"]

_BUILTINS = (
    "None False True Ellipsis NotImplemented __build_class__ abs all any ascii bin bool bytearray bytes callable chr"
    " classmethod complex dict divmod enumerate filter float format frozenset hash hex id int isinstance issubclass"
    " iter len list map max min next object oct ord pow property range repr reversed round set slice sorted"
    " staticmethod str sum tuple zip"
).split()
# The BaseException family would pass a host's `except Exception`.
_EXCEPTIONS = [
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, BaseExceptionGroup)
]
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
_GUARDS = cast(dict[str, Callable[..., Any]], vars(Guards))
_guarded_getattr = _GUARDS["safer_getattr_raise"]
# `strptime` imports it from C through the program's `__import__`, and then takes it from `sys.modules`.
_BEHIND_C = frozenset({"_strptime"})
_FIELD_PART = re.compile(r"\A[^.\[]+|\.[^.\[]+|\[[^\]]+\]")
_COMPLAINT = re.compile(r"Line (\d+|None): (.*)", re.DOTALL)


def compile_restricted(source: str | ast.Module, level: RestrictedLevel = "strict") -> types.CodeType:
    """Code to `exec` with `namespace(level, …)`. Raises ValueError with what RestrictedPython refuses."""
    result = _compile(source)
    if result.code is None:
        raise ValueError("; ".join(result.errors))
    return result.code


def complaints(source: str | ast.Module) -> list[tuple[int | None, str]]:
    """What RestrictedPython refuses, as line and message. Raises RecursionError or MemoryError on absurd depth."""
    found: list[tuple[int | None, str]] = []
    for error in _compile(source).errors:
        parts = _COMPLAINT.match(error)
        line, message = (parts[1], parts[2]) if parts else ("None", error)
        found.append((int(line) if line.isdigit() else None, f"Blocked pattern: {message}"))
    return found


def _compile(source: str | ast.Module) -> CompileResult:
    return compile_restricted_exec(source, filename="<code>", policy=Dialect)


def namespace(
    level: RestrictedLevel = "strict",
    allow: Collection[str] | None = None,
    *,
    trust: Collection[str] = (),
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The globals to run compiled code with: safe built-ins, facade modules, hooks, and the `inputs` by name.

    Readonly code may change no container reachable from `inputs`, whatever road it takes. `trust` names modules
    given out whole. One namespace serves one run.
    """
    scope: dict[str, Any] = dict(inputs or {})
    hooks = Hooks(scope, frozenset() if level == "strict" else _containers(scope), level)
    scope |= {
        "__name__": "__main__",
        "__metaclass__": hooks.build,
        "__builtins__": _builtins(Facades(allow, trust), hooks),
        "_getattr_": hooks.getattr,
        "_getitem_": operator.getitem,
        "_getiter_": iter,
        "_write_": hooks.write,
        "_inplacevar_": hooks.in_place,
        "_augattr_": hooks.augment_attribute,
        "_augitem_": hooks.augment_item,
        "_unpack_sequence_": _GUARDS["guarded_unpack_sequence"],
        "_iter_unpack_sequence_": _GUARDS["guarded_iter_unpack_sequence"],
        "_apply_": _apply,
    }
    return scope


def _builtins(facades: Facades, hooks: Hooks) -> dict[str, Any]:
    safe: dict[str, Any] = {name: getattr(builtins, name) for name in [*_BUILTINS, *_EXCEPTIONS]}
    return safe | {
        "__import__": facades.import_,
        "getattr": hooks.getattr,
        "hasattr": hooks.hasattr,
        "print": _print,
    }


def _print(*values: object, sep: str | None = " ", end: str | None = "\n", flush: bool = False) -> None:
    """`print` without `file`: the child's stdout is the only place to print to."""
    print(*values, sep=sep, end=end, flush=flush)


def _apply(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class Hooks:
    """What attribute access and writes are rewritten to call. Keeps which classes the program itself made."""

    def __init__(self, scope: dict[str, Any], frozen: frozenset[int], level: RestrictedLevel) -> None:
        self._scope = scope
        self._frozen = frozen
        self._readonly = level == "readonly"
        self._own: set[type] = set()
        self.build = Metaclass(self._own)

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


class Metaclass:
    """Stands where `metaclass=` goes: builds the class as `type` (or `EnumType`, `ABCMeta`) would, and remembers it."""

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


class Facades:
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
        if name in self._made:
            return self._made[name]
        if name in self._trust:
            self._made[name] = _real(name)
            return self._made[name]
        facade = types.ModuleType(name)
        if name in EXPORTS and self._allowed(name):
            real = _real(name)
            for export in EXPORTS[name]:
                if hasattr(real, export):
                    setattr(facade, export, getattr(real, export))
        self._made[name] = facade
        return facade


def _real(name: str) -> types.ModuleType:
    from importlib import import_module

    return import_module(name)


def _containers(values: Mapping[str, Any]) -> frozenset[int]:
    """The identities of all containers reachable from the values."""
    found: set[int] = set()
    stack: list[Any] = list(values.values())
    while stack:
        value = stack.pop()
        if id(value) in found or isinstance(value, (str, bytes, int, float, bool, type(None))):
            continue
        found.add(id(value))
        if isinstance(value, dict):
            stack.extend(cast(dict[Any, Any], value).values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            stack.extend(cast(list[Any], value))
    return frozenset(found)
