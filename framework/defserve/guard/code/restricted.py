"""Layer 2: how strict and readonly code is compiled, and the names it runs with (RestrictedPython with our hooks).

RestrictedPython is a compiler policy, not a sandbox: run the result in the jail. The jailed child imports this file
before it confines itself, so it imports little.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import inspect
import keyword
import operator
import re
import string
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from RestrictedPython import Guards
from RestrictedPython.compile import CompileResult, compile_restricted_exec
from RestrictedPython.transformer import INSPECT_ATTRIBUTES, IOPERATOR_TO_STR, RestrictingNodeTransformer

from defserve.guard.code.allowed_names import (
    FRAME_ATTRIBUTES,
    MUTATING_METHODS,
    NAMED_TUPLE_NAMES,
    SAFE_MODULE_EXPORTS,
    STRICT_SPECIAL_METHODS,
    RestrictedLevel,
    get_top_level_module,
    is_private_name,
    split_names,
)

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
_COMPLAINT = re.compile(r"Line (\d+|None): (.*)", re.DOTALL)


def compile_restricted(source: str | ast.Module) -> types.CodeType:
    """Code to `exec` with `make_restricted_globals(level, …)`. Raises ValueError with what RestrictedPython refuses."""
    result = _compile(source)
    if result.code is None:
        raise ValueError("; ".join(result.errors))
    return result.code


def find_restriction_errors(source: str | ast.Module) -> list[tuple[int | None, str]]:
    """What RestrictedPython refuses, as line and message. Raises RecursionError or MemoryError on absurd depth."""
    found: list[tuple[int | None, str]] = []
    for error in _compile(source).errors:
        parts = _COMPLAINT.match(error)
        line, message = (parts[1], parts[2]) if parts else ("None", error)
        found.append((int(line) if line.isdigit() else None, f"Blocked pattern: {message}"))
    return found


def _compile(source: str | ast.Module) -> CompileResult:
    return compile_restricted_exec(source, filename="<code>", policy=RestrictedDialect)


def make_restricted_globals(
    level: RestrictedLevel = "strict",
    allow: Collection[str] | None = None,
    *,
    trust: Collection[str] = (),
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The globals to run compiled code with: safe built-ins, facade modules, hooks, and the `inputs` by name.

    Readonly code cannot change a container that is reachable from `inputs`. `trust` names modules that are given out
    whole. One namespace serves one run.
    """
    scope: dict[str, Any] = dict(inputs or {})
    hooks = RuntimeHooks(scope, frozenset() if level == "strict" else _containers(scope), level)
    scope |= {
        "__name__": "__main__",
        "__metaclass__": hooks.build,
        "__builtins__": _builtins(FacadeImporter(allow, trust), hooks),
        "_getattr_": hooks.getattr,
        "_getitem_": operator.getitem,
        "_getiter_": iter,
        "_write_": hooks.write,
        "_inplacevar_": hooks.in_place,
        "_augattr_": hooks.augment_attribute,
        "_augitem_": hooks.augment_item,
        "_unpack_sequence_": GUARDS["guarded_unpack_sequence"],
        "_iter_unpack_sequence_": GUARDS["guarded_iter_unpack_sequence"],
        "_apply_": _apply,
    }
    return scope


def _builtins(importer: FacadeImporter, hooks: RuntimeHooks) -> dict[str, Any]:
    safe: dict[str, Any] = {name: getattr(builtins, name) for name in [*_BUILTINS, *_EXCEPTIONS]}
    return safe | {
        "__import__": importer.import_,
        "getattr": hooks.getattr,
        "hasattr": hooks.hasattr,
        "print": _print,
    }


def _print(*values: object, sep: str | None = " ", end: str | None = "\n", flush: bool = False) -> None:
    """`print` without `file`: the child's stdout is the only place to print to."""
    print(*values, sep=sep, end=end, flush=flush)


def _apply(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


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


# -- RestrictedPython's language, with additions that everyday programs need and that its hooks can still guard.
#
# Added: annotated assignment, `d[k] += 1` and `x.n += 1`, `nonlocal`, `_private` names, plain `print`, a few more
# special methods, `__name__`. A bare `except:` becomes `except Exception:`.


class RestrictedDialect(RestrictingNodeTransformer):
    """The compile policy. Method names are RestrictedPython's."""

    def check_name(self, node: Any, name: str | None, allow_magic_methods: bool = False) -> None:
        if name is None or is_private_name(name) or name in ("print", "printed"):
            return
        if allow_magic_methods and name in STRICT_SPECIAL_METHODS and node.col_offset != 0:
            return
        super().check_name(node, name, False)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        # `print` stays a name: the namespace holds a safe one.
        if not (node.id == "__name__" and isinstance(node.ctx, ast.Load)):
            self.check_name(node, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not is_private_name(node.attr) or node.attr in INSPECT_ATTRIBUTES:
            return self._node(super().visit_Attribute(node))
        # Guarded at run time: `_getattr_` gives private attributes of the program's own objects only.
        name, node.attr = node.attr, "x"
        rewritten = self._node(super().visit_Attribute(node))
        if isinstance(rewritten, ast.Call):
            rewritten.args[1] = ast.copy_location(ast.Constant(name), node)
        elif isinstance(rewritten, ast.Attribute):
            rewritten.attr = name
        return rewritten

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        target = node.target
        if isinstance(target, ast.Name):
            return self._node(super().visit_AugAssign(node))
        load: ast.expr
        if isinstance(target, ast.Attribute):
            hook, load = "_augattr_", ast.Attribute(target.value, target.attr, ast.Load())
        else:
            hook, load = "_augitem_", ast.Subscript(target.value, target.slice, ast.Load())
        read = self.visit(ast.copy_location(load, target))
        symbol = cast(dict[type, str], IOPERATOR_TO_STR)[type(node.op)]
        arguments: list[ast.expr] = [ast.Constant(symbol), *read.args, self.visit(node.value)]
        call = ast.Call(ast.Name(hook, ast.Load()), arguments, [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if isinstance(node.target, ast.Name):
            return self.node_contents_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Nonlocal(self, node: ast.Nonlocal | ast.Global) -> ast.AST:
        for name in node.names:
            self.check_name(node, name)
        return node

    visit_Global = visit_Nonlocal

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        if node.type is None:
            node.type = ast.copy_location(ast.Name("Exception", ast.Load()), node)
        return super().visit_ExceptHandler(node)

    @staticmethod
    def _node(visited: Any) -> ast.AST:
        return visited


# -- The modules that restricted code imports: each holds what its export table lists, and nothing else.
#
# What reads or writes attributes by a name that its caller gives, or makes code out of such names, has a stand-in here.


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
        for name in _list_annotated_names(cls):
            if type(name) is not str or not name.isidentifier() or keyword.iskeyword(name) or name[:2] == "__":
                raise TypeError(f"{name!r} is not a name of a field")
        make: Any = dataclasses.dataclass(**options)
        return make(cast(Any, cls))

    return check_and_make if cls is None else check_and_make(cls)


def _list_annotated_names(cls: type) -> Iterable[object]:
    if sys.version_info >= (3, 14):
        lib = import_module("annotationlib")
        return list(lib.get_annotations(cls, format=lib.Format.FORWARDREF))
    return list(inspect.get_annotations(cls))


# What a class statement sets by itself.
_SET_BY_PYTHON = split_names(
    "__module__ __qualname__ __doc__ __annotations__ __classcell__ __firstlineno__ __static_attributes__ __annotate__"
    " __annotate_func__ __conditional_annotations__ __classdictcell__"
)


class _PlainMembers(enum.EnumMeta):
    """Makes enumerations. `Enum("X", {"__reduce_ex__": f})` would define a method that the judge never saw."""

    def __new__(metacls, cls: str, bases: tuple[type, ...], classdict: Any, **keywords: Any) -> Any:
        for name in classdict:
            if name[:2] == "__" and name not in STRICT_SPECIAL_METHODS and name not in _SET_BY_PYTHON:
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
        if level or not self._is_allowed(name):
            raise ImportError(f"import of {name!r} is not allowed")
        module = self._module(name)
        parent = name
        while "." in parent:
            parent, _, child = parent.rpartition(".")
            setattr(self._module(parent), child, self._made[f"{parent}.{child}"])
        for child in fromlist or ():
            if f"{name}.{child}" in SAFE_MODULE_EXPORTS and self._is_allowed(f"{name}.{child}"):
                setattr(module, child, self._module(f"{name}.{child}"))
        return module if fromlist else self._module(get_top_level_module(name))

    def _is_allowed(self, name: str) -> bool:
        listed = (
            self._allow is None
            or name == "__future__"
            or name in self._allow
            or get_top_level_module(name) in self._allow
        )
        return (listed and name in SAFE_MODULE_EXPORTS) or name in self._trust

    def _module(self, name: str) -> types.ModuleType:
        if name not in self._made:
            self._made[name] = import_module(name) if name in self._trust else self._facade(name)
        return self._made[name]

    def _facade(self, name: str) -> types.ModuleType:
        facade = types.ModuleType(name)
        if name in SAFE_MODULE_EXPORTS and self._is_allowed(name):
            real = import_module(name)
            facade.__dict__.update(
                {export: getattr(real, export) for export in SAFE_MODULE_EXPORTS[name] if hasattr(real, export)}
            )
            facade.__dict__.update(STAND_INS.get(name, {}))
        return facade


# -- What attribute access and writes of restricted code call at run time.
#
# The jailed child imports this file, so it imports little.


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

# Since Python 3.14, their `ForwardRef` evaluates the text of an annotation with all built-ins.
_EVALUATING_MODULES = frozenset({"typing", "annotationlib"})

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
        if type(name) is str and is_private_name(name) and self._is_own(ob):
            return getattr(ob, name, *default)
        if name in NAMED_TUPLE_NAMES and issubclass(ob if isinstance(ob, type) else type(ob), tuple):
            return getattr(ob, name, *default)
        if name == "format" and type(ob) is str:
            return _Format(self.getattr, ob)
        if name in FRAME_ATTRIBUTES or (name == "evaluate" and type(ob).__module__ in _EVALUATING_MODULES):
            raise AttributeError(f"{name!r} is not an attribute restricted code may read")
        if self._readonly and name in MUTATING_METHODS and (id(ob) in self._frozen or isinstance(ob, type)):
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
