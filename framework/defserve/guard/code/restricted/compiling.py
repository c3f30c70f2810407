"""Layer 2: how strict and readonly code is compiled, and the names it runs with (RestrictedPython with our hooks).

RestrictedPython is a compiler policy, not a sandbox: run the result in the jail. The jailed child imports this file,
so it imports little.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from RestrictedPython.compile import CompileResult, compile_restricted_exec

from defserve.guard.code.levels import RestrictedLevel
from defserve.guard.code.restricted.dialect import RestrictedDialect
from defserve.guard.code.restricted.facades import FacadeImporter
from defserve.guard.code.restricted.hooks import GUARDS, RuntimeHooks

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
    return compile_restricted_exec(source, filename="<code>", policy=RestrictedDialect)


def namespace(
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
