"""What restricted code can do when it runs: compute, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from defserve.guard.code.allowed_names import SAFE_MODULE_EXPORTS, STANDARD_LEVEL_EXPORTS, RestrictedLevel
from defserve.guard.code.restricted import compile_restricted, make_restricted_globals
from tests.rows import for_each_row

CORPORA = Path(__file__).parents[2] / "corpora"


def run(source: str, level: RestrictedLevel = "strict", **options: Any) -> dict[str, Any]:
    scope = make_restricted_globals(level, **options)
    exec(compile_restricted(source), scope)
    return scope


def benign(level: RestrictedLevel) -> Iterator[tuple[str, str]]:
    """Each everyday program that the level allows: its id and its source."""
    for name in ("code", "code_more"):
        for snippet in map(json.loads, (CORPORA / f"{name}.jsonl").read_text().splitlines()):
            if snippet["category"] == "benign" and snippet["expected"][level] == "A":
                yield snippet["id"], snippet["code"]


@pytest.mark.parametrize("level", ["strict", "readonly"])
def test_allowed_everyday_programs_run(level: RestrictedLevel) -> None:
    ran, failed = 0, dict[str, str]()
    for id, source in benign(level):
        ran += 1
        try:
            run(source, level)
        except Exception as error:
            failed[id] = repr(error)
    assert ran > 100 and not failed


@for_each_row(
    "source",
    [
        "import os",
        "import json\njson.codecs",
        "from operator import attrgetter",
        "import collections.abc\ncollections.abc.sys",
        "from string import Formatter",
        "import random\nrandom.seed(1)",
        "import json\njson.dumps = None",
        "from collections import Counter\nCounter.most_common = None",
        "'{0.__class__}'.format(1)",
        "'{0._x}'.format(1)",
        "str.format('{0.__class__}', 1)",
        "getattr(1, '__cl' + 'ass__')",
        "getattr((i for i in []), 'gi_' + 'frame')",
        "from random import Random\nRandom()._randbelow",
        "print('x', file=1)",
        "SystemExit",
        "open('x')",
        "type(1)",
    ],
)
def test_what_the_rules_would_refuse_fails_at_run_time_too(source: str) -> None:
    with pytest.raises((ImportError, AttributeError, TypeError, NameError, NotImplementedError, ValueError)):
        run(source)


def test_what_restricted_python_refuses_is_said() -> None:
    with pytest.raises(ValueError, match="AsyncFunctionDef"):
        compile_restricted("async def f(): pass")


WRITES = [
    "rows.append(1)",
    "rows[0] = 2",
    "data['k'].append(1)",
    "data['k'] += [1]",
    "list.append(rows, 1)",
    "dict.update(data, a=1)",
    "for f in [rows.append]: f(1)",
    "list(map(rows.append, [1]))",
    "del data['k']",
    "(lambda r: r.clear())(rows)",
]


@for_each_row("source", WRITES)
def test_readonly_code_cannot_change_its_inputs(source: str) -> None:
    inputs: dict[str, Any] = {"rows": [1], "data": {"k": [1]}}
    with pytest.raises(TypeError):
        run(source, "readonly", inputs=inputs)
    assert inputs == {"rows": [1], "data": {"k": [1]}}


def test_readonly_in_place_operators_make_new_objects() -> None:
    rows = [1]
    assert run("rows += [2]", "readonly", inputs={"rows": rows})["rows"] == [1, 2]
    assert rows == [1]


def test_strict_code_may_change_its_inputs() -> None:
    assert run("rows.append(2)\nrows[0] += 5", inputs={"rows": [1]})["rows"] == [6, 2]


def test_an_input_cannot_replace_a_hook() -> None:
    assert run("x = (1).real", inputs={"_getattr_": lambda ob, name: "stolen"})["x"] == 1


def test_only_allowed_modules_can_be_imported() -> None:
    run("import math", allow=["math"])
    with pytest.raises(ImportError):
        run("import json", allow=["math"])


def test_a_trusted_module_is_given_whole() -> None:
    assert run("import os\nx = os.sep", trust=["os"])["x"]


def test_a_bare_except_lets_the_interpreters_own_exceptions_through() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("try:\n    stop()\nexcept:\n    pass", inputs={"stop": stop})


def test_no_export_is_a_module_or_leads_to_one() -> None:
    import types
    from importlib import import_module

    for name in SAFE_MODULE_EXPORTS:
        module = import_module(name)
        for export in SAFE_MODULE_EXPORTS[name]:
            assert not isinstance(getattr(module, export, None), types.ModuleType), f"{name}.{export}"


def test_loose_tables_only_widen_the_strict_ones() -> None:
    for name in SAFE_MODULE_EXPORTS.keys() & STANDARD_LEVEL_EXPORTS.keys():
        assert SAFE_MODULE_EXPORTS[name] < STANDARD_LEVEL_EXPORTS[name]
