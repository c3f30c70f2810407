"""A script passes only if all of it is read, and nothing in it runs, reads files, writes or shows the environment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from defserve.guard.shell.languages import awk, jq, sed
from tests.effort import cpu_within
from tests.rows import for_each_row

PROBLEMS = {"sed": sed.problem, "awk": awk.problem, "jq": jq.problem}


@for_each_row(
    ("language", "script"),
    [
        ("sed", "s/a/b/w out"),
        ("sed", "s/a/b/e"),
        ("sed", "1r /etc/passwd"),
        ("sed", "/[]/p;s/]/w out;s/"),
        ("sed", "s/[]/]/g;s/p;w out;s/x/"),
        ("sed", "s/[/]/;w out/"),
        ("sed", "\\,a,w out"),
        ("sed", ":a}e"),
        ("sed", "1,2"),
        ("sed", ""),
        ("awk", '{print > "out"}'),
        ("awk", '{print a ? b : c > "out"}'),
        ("awk", '{print a, (b) > "out"}'),
        ("awk", "{if (x) /(/; print}"),
        ("awk", "{x++ /(/ 1}"),
        ("awk", "$1 ~ /[/(]/"),
        # For awk, the set ends in the text, and the rest of that is code.
        ("awk", '/[^]/ ~ "]/; END { system(1) } #"'),
        ("awk", 'BEGIN{"id" | getline}'),
        ("awk", "{print ENVIRON[1]}"),
        ("awk", "function f(x) { system(x) } {f(1)}"),
        ("awk", 'function f(x) { print x > "out" } {f(1)}'),
        ("awk", "function f(x) { return /(/ x } {f(1)}"),
        ("awk", "function length(x) {}"),
        ("awk", '{print "function g("; g(1)}'),
        ("awk", "{f(1)}"),
        ("awk", "@load 'x'"),
        ("awk", ""),
        ("awk", "{print a /=/ > 1}"),
        ("awk", "{(]}"),
        ("awk", "{print (1"),
        ("jq", "env"),
        ("jq", "$ ENV"),
        ("jq", '"a\\("b\\(env)")"'),
        ("jq", "[1, env, 2]"),
        ("jq", "{a: 1, b: env}"),
        ("jq", "{a}, env"),
        ("jq", "{a: if true then 1, env else 2 end}"),
        ("jq", "{a: if true then 1, env, 2 else 3 end}"),
        ("jq", "{a: if . then {b: 1} else [2], env end, c}"),
        ("jq", "{a: if . then 1}"),
        ("jq", "{a: 1 end}"),
        ("jq", "[.)"),
        ("jq", "input_filename"),
        ("jq", 'import "a" as b; .'),
        ("jq", "def f: env; f"),
        ("jq", "def env: 1; env"),
        ("jq", "def f(env): env; f(1), env"),
        ("jq", "def f: (def env: 1; env); env"),
        ("jq", "{a: def f: 1, env; f}"),
        ("jq", "f, (def f: 1; f)"),
        ("jq", "def"),
        ("jq", '"a'),
        ("jq", "(."),
        ("jq", ".)"),
        ("jq", '"\\(.]"'),
        ("jq", "@nope"),
    ],
)
def test_what_could_do_more_than_compute_is_refused(language: str, script: str) -> None:
    assert PROBLEMS[language](script)


@for_each_row(
    ("language", "script"),
    [
        ("sed", "s/[][]//g"),
        ("sed", "s/[^]]*//"),
        ("sed", "s/[\\/]/-/"),
        ("sed", "/a/{s/b/c/;p}"),
        ("sed", "$!N;P;D"),
        ("awk", "/[^x]a[[:alpha:]^]/"),
        ("awk", "{a = b / c / d}"),
        ("awk", "$1 ~ /=/ {print $1 / 2}"),
        ("awk", "NR==FNR {a[$1]; next} ($1, $2) in a"),
        ("awk", "{do x++; while (x < 5); print (x > 3)}"),
        ("awk", "{print (a + b) / 2; if (x > 1) y = z > 2}"),
        ("awk", "function f(x, y) { return x > y ? x : y } {print f($1, $2)}"),
        ("awk", "{print f($1)} function f(x) { return g(x) } function g(x) { return x }"),
        ("jq", "def f: . + 1; f"),
        ("jq", "def f(g; $x): def h: 3; g + $x + h; f(.a; 1)"),
        ("jq", "{def: 1}"),
        ("jq", '.env, {env}, {"env": .env}, {env: 1}'),
        ("jq", '"\\(.a) \\("x\\(.b)")"'),
        ("jq", "{if: 1, end, a: if .b then 1, 2 elif .c then {env} else 3 end, env}"),
        ("jq", "reduce .[] as $x (0; . + $x) | if . > 1 then . else empty end"),
    ],
)
def test_what_computes_is_allowed(language: str, script: str) -> None:
    assert PROBLEMS[language](script) is None


@given(st.sampled_from(sorted(PROBLEMS)), st.text(alphabet="/[]()\\{}spw;,!$1x \"'|>~+-=?:.env@", max_size=40))
def test_any_script_is_judged(language: str, script: str) -> None:
    assert PROBLEMS[language](script) is None or PROBLEMS[language](script)


@for_each_row("language", sorted(PROBLEMS))
@for_each_row(
    "piece", ["(", "{", "[", "/[", "!", "-", "$", "s/a/b/;", '"\\(', "a?", "1,", "[]", "\\", "x ", "a[", "/(/ ", "[^x]"]
)
def test_a_long_script_is_judged_in_no_time(language: str, piece: str) -> None:
    assert cpu_within(1, lambda: PROBLEMS[language]((piece * 4096)[:4096]))


@for_each_row("count", [22, 1000])
def test_an_expression_without_an_end_is_refused_in_no_time(count: int) -> None:
    assert cpu_within(1, lambda: awk.problem("/" + "[^x]" * count))
