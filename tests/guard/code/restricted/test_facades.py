"""Restricted code gets no attribute by a name that it made up, and no text of it becomes code behind the judge."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from importlib import import_module
from typing import Any

import pytest

from defserve.guard.code.allowed_names import SAFE_MODULE_EXPORTS
from defserve.guard.code.restricted import STAND_INS, compile_restricted, make_restricted_globals
from tests.rows import for_each_row

DUNDER = 'u = "_" + "_"\n'


def run(source: str, level: Any = "strict") -> Any:
    names = make_restricted_globals(level)
    exec(compile_restricted(ast.parse(source)), names)
    return names.get("result")


@for_each_row("name", ["globals", "dict", "code", "closure", "class", "init_subclass"])
@for_each_row("parameter", ["assigned", "updated"])
def test_wraps_copies_no_attribute_of_the_callers_choice(name: str, parameter: str) -> None:
    source = (
        f'import functools, json, types\n{DUNDER}g = u + "{name}" + u\nbox = {{}}\n'
        "a = types.SimpleNamespace(**{g: box})\n"
        f"functools.wraps(json.dumps, {parameter}=(g,))(a)\n"
    )
    with pytest.raises(TypeError):
        run(source)


def test_wraps_changes_no_object_that_the_program_did_not_define() -> None:
    source = "import functools, json\ndef f():\n    return 1\nfunctools.wraps(f)(json.dumps)\nresult = json.dumps"
    assert run(source).__name__ == "dumps"
    assert not hasattr(run(source), "__wrapped__")


def test_wraps_still_names_a_decorated_function() -> None:
    source = (
        "from functools import wraps\ndef twice(f):\n    @wraps(f)\n    def inner(*a):\n        return f(*a) * 2\n"
        "    return inner\n@twice\ndef one():\n    'text'\n    return 1\nresult = (one(), one)"
    )
    value, function = run(source)
    assert (value, function.__name__, function.__doc__) == (2, "one", "text")


@for_each_row("name", ["x,)\\n print(1)\\n(", "x y", "x=1", "", "1x", "if", "__globals__", "a.b", "x\\n"])
@for_each_row("form", ["dataclass(T)", "dataclass(init=False, repr=False)(T)"])
def test_a_field_of_a_dataclass_has_a_plain_name(name: str, form: str) -> None:
    source = f'from typing import TypedDict\nfrom dataclasses import dataclass\nT = TypedDict("T", {{"{name}": int}})\n'
    with pytest.raises(TypeError, match="is not a name of a field"):
        run(source + form)


def test_a_name_that_lies_about_itself_is_no_name_of_a_field() -> None:
    source = (
        "from typing import TypedDict\nfrom dataclasses import dataclass\nclass S(str):\n"
        '    def isidentifier(self):\n        return True\nT = TypedDict("T", {S("x y"): int})\ndataclass(T)'
    )
    with pytest.raises(TypeError, match="is not a name of a field"):
        run(source)


def test_a_dataclass_is_made_as_ever() -> None:
    source = (
        "from dataclasses import dataclass, field, asdict\n@dataclass(order=True)\nclass P:\n    x: int\n"
        "    y: int = 2\n"
        "    z: list = field(default_factory=list)\nresult = (asdict(P(1)), P(1) < P(2), P(1) == P(1), str(P(1)))"
    )
    asdict, less, equal, _ = run(source)
    assert (asdict, less, equal) == ({"x": 1, "y": 2, "z": []}, True, True)


@for_each_row("name", ["reduce_ex", "reduce", "copy", "deepcopy", "getattribute", "setstate", "class_getitem", "call"])
@for_each_row("kind", ["Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"])
def test_an_enumeration_gets_no_method_that_was_not_judged(name: str, kind: str) -> None:
    source = f'from enum import {kind}\n{DUNDER}{kind}("X", {{"A": 1, u + "{name}" + u: len}})'
    with pytest.raises(TypeError, match="is not a name of a member"):
        run(source)


@for_each_row("kind", ["Enum", "IntEnum", "Flag", "IntFlag"])
def test_an_enumeration_is_made_as_ever(kind: str) -> None:
    source = (
        f"from enum import {kind}, auto, unique\n@unique\nclass C({kind}):\n    A = 1\n    B = auto()\n"
        f"    def __str__(self):\n        return self.name\nD = {kind}('D', 'X Y')\n"
        "result = (C.B.value, str(C(1)), [c.name for c in C], D.Y.value, isinstance(C.A, C))"
    )
    assert run(source) == (2, "A", ["A", "B"], 2, True)


def test_no_export_takes_names_of_attributes_without_a_stand_in() -> None:
    """Parameters with these names are names of attributes, or text that becomes code."""
    suspicious = {"assigned", "updated", "attr", "attribute", "attrname", "globals", "globalns"}
    found = set[str]()
    for module, names in SAFE_MODULE_EXPORTS.items():
        try:
            real = import_module(module)
        except ImportError:
            continue
        for name in names:
            exported: Any = STAND_INS.get(module, {}).get(name, getattr(real, name, None))
            try:
                parameters = set(inspect.signature(exported).parameters)
            except (TypeError, ValueError):
                continue
            found |= {f"{module}.{name}"} if parameters & suspicious else set()
    assert found == set()
    assert STAND_INS["dataclasses"]["dataclass"] is not dataclasses.dataclass


def test_text_in_an_annotation_does_not_evaluate_itself() -> None:
    # Since Python 3.14 it could: an older one says that there is no such attribute.
    with pytest.raises(AttributeError, match="restricted code"):
        run('import typing\nresult = typing.Annotated["1 + 1", 1].evaluate()')
    assert run("class C:\n  def evaluate(self): return 2\nresult = C().evaluate()") == 2


def test_the_public_names_of_a_named_tuple_are_read_and_those_of_nothing_else() -> None:
    made = 'from collections import namedtuple\nP = namedtuple("P", "x y")\n'
    assert run(f"{made}result = P._make([1, 2])._replace(x=3)._asdict()") == {"x": 3, "y": 2}
    for other in ("[]", "P", "P(1, 2)", "object()"):
        with pytest.raises(AttributeError):
            run(f"{made}result = {other}.{'_make' if other in ('[]', 'object()') else '_source'}")
