"""The tables name what modules give out. What their objects expose is looked for by walking through them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import io
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from defserve.guard.code import allowed_names, judge
from tests.rows import for_each_row

MODULES = {**allowed_names.SAFE_MODULE_EXPORTS, **allowed_names.STANDARD_LEVEL_EXPORTS}
# They wait, or end the process.
NOT_CALLED = frozenset({"asyncio.run", "time.sleep", "unittest.main", "asyncio.to_thread", "threading.Timer"})
ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), ("a",), (1,), (print,), ("a", "b"), ([1, 2],), ({},), (1, 2))
PLAIN = (str, bytes, int, float, complex, type(None), types.FunctionType, types.BuiltinFunctionType, types.MethodType)
DEPTH = 4


def objects(module: str) -> Iterator[tuple[str, object]]:
    """What a program gets from a module by its table: the exports, and what they return. Each with its source."""
    try:
        source = importlib.import_module(module)
    except ImportError:
        return
    for name in sorted(MODULES[module]):
        export = getattr(source, name, None)
        yield f"{module}.{name}", export
        if not callable(export) or f"{module}.{name}" in NOT_CALLED:
            continue
        for arguments in ARGUMENTS:
            with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
                spelt = ", ".join("print" if one is print else repr(one) for one in arguments)
                yield f"{module}.{name}({spelt})", export(*arguments)


def ways_to_modules(source: str, value: object, seen: set[int], depth: int = 0) -> Iterator[str]:
    """Every chain of attributes without dunders that ends at a module."""
    if id(value) in seen or depth > DEPTH or isinstance(value, PLAIN):
        return
    seen.add(id(value))
    for attribute in dir(value):
        if (
            allowed_names.is_dunder(attribute)
            or attribute in allowed_names.FRAME_ATTRIBUTES
            or allowed_names.is_restricted_python_hook(attribute)
        ):
            continue
        try:
            inner = getattr(value, attribute)
        except Exception:
            continue
        if isinstance(inner, types.ModuleType) or inner is sys.modules:
            yield f"{source}.{attribute}"
        else:
            yield from ways_to_modules(f"{source}.{attribute}", inner, seen, depth + 1)


def exposed(module: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen: set[int] = set()
        return [way for source, value in objects(module) for way in ways_to_modules(source, value, seen)]


@contextlib.contextmanager
def close_new_loops() -> Iterator[None]:
    """Some of what asyncio exports makes an event loop that nobody closes."""

    def loops() -> list[asyncio.AbstractEventLoop]:
        return [one for one in gc.get_objects() if issubclass(type(one), asyncio.BaseEventLoop)]

    before = {id(one) for one in loops()}
    try:
        yield
    finally:
        for one in loops():
            if id(one) not in before and not one.is_running():
                one.close()


def test_the_walk_finds_a_module_behind_an_object() -> None:
    """Else nothing below could fail."""
    assert "warnings.catch_warnings()._module" in exposed("warnings")


def test_no_object_of_any_allowed_module_gives_out_a_module() -> None:
    with close_new_loops():
        ways = [(module, way) for module in MODULES for way in exposed(module)]
    passing = [
        way
        for module, way in ways
        for level in ("standard", "strict")
        if allowed_names.find_exports(module, level == "strict") and judge(f"import {module}\nx = {way}", level=level)
    ]
    assert passing == []


@for_each_row(
    "source",
    [
        "import warnings\nwarnings.catch_warnings()._module.sys.modules['os']",
        "from warnings import catch_warnings as c\nc()._module",
        "import warnings\ngetattr(warnings.catch_warnings(), '_module')",
        "import warnings\nclass C(warnings.catch_warnings):\n    def f(self):\n        return self._module",
        "import warnings\nmatch warnings.catch_warnings():\n    case object(_module=m):\n        m",
        "import unittest\nunittest.main(module='os', exit=False).module",
        "import unittest\nx = unittest.main(exit=False).module",
        "import unittest\nunittest.main('os')",
        "import unittest\nunittest.main(defaultTest='os.getcwd')",
        "import unittest\nunittest.main(argv=['x', 'os.getcwd'])",
        "import unittest\nunittest.main(argv=words)",
        "import unittest\nunittest.main(*['os'])",
        "import unittest\nunittest.main(**{'module': 'os'})",
        "from unittest import main as m\nm('os')",
        "import unittest\nm = unittest.main\nm('os')",
        "import logging\nb = logging.basicConfig\nb(filename='x')",
        "import logging\nlogging.basicConfig(format='{name.__class__}', style='{')",
        "import logging\nlogging.Formatter('{name.__class__}', None, '{')",
        "from logging import Formatter\nclass F(Formatter):\n    pass",
        "import logging\nlogging.basicConfig()\ntype(logging.getLogger().handlers[0].formatter)",
        "from pathlib import PurePath\nPurePath('a').parser.os",
        "from pathlib import PurePath\nPurePath('a')._flavour",
        "import asyncio\nasyncio.Runner().get_loop().subprocess_shell",
        "import asyncio\nasync def f():\n    await asyncio.get_running_loop().create_connection(print, 'x', 1)",
        "import argparse\nargparse.ArgumentParser(fromfile_prefix_chars='@')",
        "def f(anything):\n    return anything.sys.modules",
        "import random\ntry:\n    random.binomialvariate\nexcept AttributeError as e:\n    e.obj",
        "def f(anything):\n    return anything._os",
        "import typing\ntry:\n    typing.override\nexcept AttributeError as e:\n    '{0.obj.sys.path}'.format(e)",
        "'{0.sys.path}'.format(1)",
        "from functools import wraps\nwraps(print, ('__self__',), ())",
        "from functools import wraps\nwraps(print, updated=())",
        "from functools import wraps\nwraps(*x)",
        "from functools import wraps\nw = wraps\nw(print, ('__self__',))",
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    __annotations__ = {'x=f()': int}",
        "from dataclasses import dataclass\nfrom typing import TypedDict\ndataclass(TypedDict('T', {'x=f()': int}))",
        "from dataclasses import dataclass\nd = dataclass\nd(x)",
        "from dataclasses import dataclass\n@dataclass(f())\nclass C:\n    pass",
        "import asyncio\nasync def f():\n    asyncio.get_running_loop()._ssock",
        "import asyncio\nasync def f():\n    asyncio.get_running_loop()._make_subprocess_transport",
        "from dataclasses import dataclass\nclass M(type):\n    pass\n@dataclass\nclass C(metaclass=M):\n    pass",
        "import asyncio\nasync def f():\n    asyncio.get_running_loop()._selector.get_map()",
        "import unittest\nc = unittest.TestCase().assertLogs()\nF = type(c.logger.handlers[0].formatter)",
        "f = open('a')\ntype(f.buffer.raw)('b', 'w')",
        "import logging\ntype(logging.StreamHandler().stream.detach().raw)('b', 'w')",
        "class M(type):\n    pass\nclass X(metaclass=M):\n    pass\nmatch 1:\n    case X(g):\n        g",
        "class M(type): pass\nclass X(metaclass=M): pass\nclass Y(X): pass\nmatch 1:\n    case Y(g): g",
        "from abc import ABC\nclass X(ABC):\n    a: int\nX.register(type(1))\nmatch 1:\n    case X(g):\n        g",
        "X = type('X', (), {'a': 1})\nmatch 1:\n    case X(g):\n        g",
        "def f(X):\n    match 1:\n        case X(g):\n            return g",
        "def f(anything):\n    return anything.os.system",
    ],
)
def test_what_objects_expose_is_refused(source: str) -> None:
    assert not judge(source)


@for_each_row(
    "source",
    [
        "import warnings\nwith warnings.catch_warnings(record=True) as caught:\n    warnings.simplefilter('ignore')",
        "import unittest\nif __name__ == '__main__':\n    unittest.main()",
        "import unittest\nunittest.main(argv=[''], exit=False, verbosity=2)",
        "import logging\nlogging.basicConfig(level=logging.INFO)",
        "from pathlib import PurePath\nPurePath('a/b').parent.name",
        "class C:\n    def __init__(self):\n        self.os = 1\n    def f(self):\n        return self.os",
        "class C:\n    _count = 0\n    def f(self):\n        C._count += 1\nC()._count",
        "from collections import namedtuple\nnamedtuple('P', 'x')(1)._asdict()",
        "from functools import wraps\ndef d(f):\n    @wraps(f)\n    def g():\n        return f()\n    return g",
        "import dataclasses as d\n@d.dataclass(frozen=True)\nclass C:\n    x: int\nmatch C(1):\n    case C(x): x",
        "import dataclasses as d\nclass A: pass\n@d.dataclass\nclass C(A):\n    x: int\nmatch 1:\n    case C(1): 1",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\nmatch P(1, 2):\n    case P(a, b): a",
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\nmatch P(1):\n    case P(a): a",
        "import abc\nfrom dataclasses import dataclass\n@dataclass\nclass C(metaclass=abc.ABCMeta):\n    x: int",
        "match 1:\n    case int(x) | str(x): x",
        "import json\nclass C:\n    def f(self):\n        self.raw = open('a')\n        json.dump(obj=self.obj, fp=f)",
        "'see www.example.com {0.name} {x[0]}'.format(x)",
    ],
)
def test_everyday_programs_pass(source: str) -> None:
    assert judge(source)
