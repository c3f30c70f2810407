"""The judge over its corpora, its lists, its words and its promises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve.guard.code import judge
from defserve.guard.code.allowed_names import CodeLevel
from tests.effort import calls_of, cpu_within, examples
from tests.rows import for_each_row

CORPORA = Path(__file__).parents[1] / "corpora"
LEVELS: tuple[CodeLevel, ...] = ("standard", "strict", "readonly")


def snippets(corpus: str, level: CodeLevel) -> Iterator[tuple[str, str, bool]]:
    """Each snippet that the judge decides about at this level: its id, its source, whether it is allowed."""
    for line in (CORPORA / f"{corpus}.jsonl").read_text().splitlines():
        snippet = json.loads(line)
        expected = snippet["expected"].get(level, "S")
        if expected != "S":
            source = snippet.get("code") or "".join(piece * count for piece, count in snippet["repeat"])
            yield snippet["id"], source, expected == "A"


@pytest.mark.req("MGP-7.2")
@for_each_row("level", LEVELS)
@for_each_row("corpus", ["code", "code_more"])
def test_the_corpora_are_judged_as_expected(corpus: str, level: CodeLevel) -> None:
    judged = wrong = 0
    told = ""
    for id, source, allowed in snippets(corpus, level):
        verdict = judge(source, level=level)
        judged += 1
        is_as_expected = verdict.allowed is allowed
        if level == "standard":  # how bytes are read has nothing to do with the level
            is_as_expected &= judge(source.encode(errors="surrogatepass"), level=level).allowed is allowed
        if not is_as_expected:
            wrong += 1
            told += f"\n{id}: {[str(violation) for violation in verdict.violations]}"
    assert judged and not wrong, f"{wrong} of {judged} snippets:{told}"


@settings(max_examples=examples(20), deadline=None)
@given(st.one_of(st.text(max_size=300), st.binary(max_size=300)), st.sampled_from(LEVELS))
def test_no_input_makes_the_judge_raise(source: str | bytes, level: CodeLevel) -> None:
    judge(source, level=level)


PIECES = st.sampled_from(
    "import os|from a import b|(|)|[|]|{|}|'|\"\"\"|f'{x}'|\\|\n|\n  |:|=|:=|lambda|def f(a=1):|class C:|match x:|case"
    "|async|await|global x|nonlocal y|x|eval|_getattr_|__class__|.|,|*|**|@|if|else|for x in|try:|except*|del"
    "|1|0x|é|\x00|type X[T]=|return|yield|with".split("|")
)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(PIECES, max_size=40), st.sampled_from(LEVELS))
def test_no_shuffled_program_makes_the_judge_raise(pieces: list[str], level: CodeLevel) -> None:
    judge(" ".join(pieces), level=level)


HOSTILE = {
    "statements": "f(x)\n" * 2000,
    "escapes": '"\\' * 5000,
    "triple quotes": "'''\\'\"\"\"\\\"" * 1000,
    "brackets": "(" * 10_000,
    "signs": "x=" + "-" * 9_990,
    "names": "x" * 10_000,
    "combining marks": "x" + "\u0316\u0301" * 2400,
    "lambdas": "lambda:" * 1400,
    "chains": ("json" + ".a" * 90 + "\n") * 50,
    "f-strings": "x=f'" + "{a}" * 3000 + "'",
    "elifs": "if a:pass\n" + "elif a:pass\n" * 800,
    "many own names": "x=[];x.pop\n" * 900,
    "unpacking": "a,b=c\n" * 500,
    "one wide unpacking": "a," * 1600 + "=" + "[]," * 1600 + "\na.append(1)",
    "format fields": f"'{'{' * 9_980}'.format(1)",
    "one text formatted often": f"t='{'{a} ' * 1500}'\n" + "t.format()\n" * 400,
    "a long text joined often": f"t='{'{a} ' * 1500}'\n" + ("('a'" + "+t" * 30 + ").format()\n") * 30,
    "many names of one text": "=".join(f"a{i}" for i in range(450))
    + "='x'\n"
    + "".join(f"a{i}.format()\n" for i in range(450)),
    "one base of many values": "from dataclasses import asdict\nasdict(1)\n"
    + "B=1\n" * 800
    + "class A(B): pass\n" * 350,
    "paths joined often": ("open(" + "+".join(["a"] * 90) + ")\n") * 50,
    "many kept rows": "x=[[0]];x[0].append(x)\n" * 400,
}


@pytest.mark.slow
@for_each_row("level", LEVELS)
@for_each_row("name", HOSTILE)
def test_ten_kilobytes_of_hostile_input_are_little_work(name: str, level: CodeLevel) -> None:
    # A million calls take about 100 ms. The time is for what is one call and may still be slow: regular expressions.
    assert calls_of(lambda: judge(HOSTILE[name], level=level)) < 1_000_000
    assert cpu_within(1, lambda: judge(HOSTILE[name], level=level))


def test_violations_use_the_words_of_the_specification_and_carry_line_and_rule() -> None:
    verdict = judge("import subprocess\nx = eval('1')")
    assert [v.message for v in verdict.violations] == ["Blocked import: 'subprocess'", "Blocked pattern: 'eval('"]
    assert [(v.line, v.rule) for v in verdict.violations] == [(1, "import"), (2, "builtin")]


def test_hints_tell_what_would_be_allowed() -> None:
    hints = judge("import os", allow=["json", "os"], block=["socket"], max_bytes=500).hints
    assert hints["allowed_imports"] == ["json"]
    assert {"os", "socket"} <= set(hints["blocked_imports"])
    assert hints["max_code_size_bytes"] == 500


def test_hints_hold_only_what_helps_to_correct_the_code() -> None:
    for level in ("standard", "strict", "readonly"):
        broken = judge("x = (", level=level)
        assert "allowed_imports" not in broken.hints and "unsupported_syntax" not in broken.hints
        assert len(json.dumps(broken.hints)) < 200
    assert judge("import os, json\nfrom subprocess import run").hints["blocked_imports"] == ["os", "subprocess"]
    assert "blocked_imports" not in judge("eval('1')").hints


def test_strict_hints_name_the_syntax_that_is_refused() -> None:
    hints = judge("async def f(): pass", level="strict").hints
    assert "async and await" in hints["unsupported_syntax"]
    assert "unsupported_syntax" not in judge("import os", level="standard").hints


def test_an_allow_list_is_the_whole_list_at_every_level() -> None:
    for level in LEVELS:
        assert judge("import json", level=level, allow=["json"])
        assert not judge("import math", level=level, allow=["json"])


def test_the_danger_list_wins_over_the_allow_list() -> None:
    for module in ("os", "sys", "subprocess", "importlib", "ctypes", "pickle", "inspect", "operator"):
        for level in LEVELS:
            assert not judge(f"import {module}", level=level, allow=[module])


def test_trust_opts_a_module_out_of_the_danger_list_by_name() -> None:
    assert judge("import os\nprint(os.getpid())", trust=["os"])
    assert judge("import os\nprint(os.getpid())", level="strict", trust=["os"])
    assert not judge("import subprocess", trust=["os"])
    assert judge("x = eval('1')", trust=["eval"])


def test_a_strict_module_without_an_export_table_needs_trust() -> None:
    assert not judge("import numpy", level="strict", allow=["numpy"])
    assert judge("import numpy", level="strict", trust=["numpy"])


@for_each_row(
    ("block", "source", "allowed"),
    [
        (["compile("], "import re\nre.compile('a')", True),
        (["print("], "p = print\np(1)", False),
        (["print("], "print (1)", False),
        (["print("], "def f(print):\n    return print(1)", True),
        (["json.loads"], "from json import loads as l\nl('1')", False),
        (["json.loads"], "import json as j\nj.loads('1')", False),
        (["json.loads"], "import json as j\nj.dumps('json.loads')", True),
        (["json"], "import json", False),
        (["json"], "from json import dumps", False),
        (["code"], "import codecs_like", True),
        (["while True"], "while  True:\n    pass", False),
        (["while True"], "x = 'while True'  # while True", True),
        (["lambda"], "f = lambda: 1", False),
        (["math.pi"], "from math import pi", False),
    ],
)
def test_block_matches_names_not_text(block: list[str], source: str, allowed: bool) -> None:
    assert judge(source, block=block).allowed is allowed


def test_a_size_limit_counts_bytes() -> None:
    assert judge("x = 'é'", max_bytes=8)
    assert judge("x = 'é'", max_bytes=7).violations[0].rule == "size"


@pytest.mark.req("MGP-7.2")
def test_unrestricted_code_is_only_measured_and_decoded() -> None:
    assert judge("import os; os.system('id')", level="unrestricted")
    assert not judge("x" * 100, level="unrestricted", max_bytes=99)
    assert not judge(b"\xff", level="unrestricted")


def test_an_odd_escape_is_no_syntax_error_where_warnings_are_errors() -> None:
    assert judge("import re\nre.findall('\\d', '1')", level="strict")


def test_importing_the_judge_imports_no_parser_and_no_pydantic() -> None:
    heavy = ("ast", "pydantic", "RestrictedPython")
    script = f"import sys, defserve.guard.code; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[3] / "framework"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pattern_reads_no_attribute_that_a_class_names_as_text() -> None:
    source = 'class A:\n    __match_args__ = ("__glo" + "bals__",)\n\n'
    source += "def f(x):\n    match x:\n        case A(y):\n            return y\n"
    assert not judge(source, level="standard").allowed


@for_each_row(
    "source",
    [
        "getattr('{0.__class__}', 'format')(1)",
        "f = getattr(str, 'format_map')\nf('{0.__class__}', {'0': 1})",
        "match '{0.__class__}':\n    case str(format=f):\n        f(1)",
        "class A:\n    def f(self, x):\n        return self.format(x)\n\nA.f('{0.__class__}', 1)",
    ],
)
def test_a_text_that_reads_attributes_is_formatted_in_no_other_way_either(source: str) -> None:
    assert [violation.rule for violation in judge(source, level="standard").violations] == ["format"]


@for_each_row(
    "source",
    [
        "import random\nrandom.Random(1).shuffle(data)",
        "import struct\nstruct.Struct('i').pack_into(data, 0, 1)",
        "import io\nio.BytesIO(b'x').readinto(data)",
        "getattr(data, 'append')(1)",
        "import random\nr = random.Random(1)\nr.shuffle(x=data)",
    ],
)
def test_readonly_code_changes_no_argument_through_a_method_of_its_own_object(source: str) -> None:
    assert "write" in {violation.rule for violation in judge(source, level="readonly").violations}
    assert judge("import random\nx = [1, 2]\nrandom.Random(1).shuffle(x)", level="readonly")
