"""A script passes only if all of it is read, and nothing in it runs, reads files, writes or shows the environment."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from defserve.guard.shell import languages
from tests.effort import cpu_within
from tests.rows import for_each_row

FindProblem = Callable[[str], str | None]

PROBLEMS = {
    "sed": languages.find_sed_problem,
    "awk": languages.find_awk_problem,
    "jq": languages.find_jq_problem,
    "yq": languages.find_yq_problem,
}


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
        ("awk", "BEGIN{while(²)x}"),
        ("awk", ""),
        ("awk", "{print a /=/ > 1}"),
        ("awk", "{(]}"),
        ("awk", "{print (1"),
        *(
            (language, form.format(name))
            for language in ("jq", "yq")
            for name in ("load", "load_str", "strload", "env", "strenv", "envsubst", "system", "eval", "halt_error")
            for form in (
                '{{{}("x") : 1}}',
                '{{{} ("x") : 1}}',
                "{{a: 1, {}(HOME): 1}}",
                '{{a, {}\n("x")}}',
                '{{{} "x" : 1}}',
                "{{{} | 1}}",
                "{{{}.x: 1}}",
                "{{{}; 1}}",
            )
        ),
        *(
            ("yq", form)
            for form in (
                "{env: 1}",
                "{a, system}",
                "{a: 1, load_str: 2}",
                "{eval, a}",
                "inputs",
                "def load: 1; load",
                "$ENV",
            )
        ),
        # Where the text ends depends on the version.
        ("yq", r'"a\\" , "load(' + "1" + r')"'),
        ("yq", r'"a\" load(\"/etc/shadow\")"'),
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
        ("yq", '.services | keys | .[] | select(test("^web"))'),
        ("yq", '{name: .a, "env": .env, b} | with_entries(.value |= tostring)'),
        ("yq", '.a = "x" | .b += 1 | del(.c)'),
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
    assert cpu_within(1, lambda: languages.find_awk_problem("/" + "[^x]" * count))


ENDLESS = {
    languages.find_awk_problem: [
        "BEGIN{while(1)print}",
        "BEGIN{for(;;)print}",
        "BEGIN{for(i=0;1;i++)print}",
        "BEGIN{while(x==x)x=x x}",
        "BEGIN{do x++; while(1)}",
        "BEGIN{for(i=0;i<1e12;i++)print}",
        "function f(n){return f(n)} BEGIN{f(1)}",
        'BEGIN{printf "%1000000000d",1}',
        'BEGIN{printf "%*d",1000000000,1}',
    ],
    languages.find_jq_problem: [
        "repeat(1)",
        "[range(1e12)]",
        "range(0;10;0)",
        "range(infinite)",
        "limit(infinite; .[])",
        "until(false;.)",
        "while(true;.)",
        "recurse(.)",
        "def f: f; f",
        "def f: [., f]; f",
        '"x" * 1000000000',
    ],
    languages.find_sed_problem: [":a;ba", ":a;s/^/x/;ba", ":x bx"],
    languages.find_sql_problem: [
        "with recursive c(x) as (select 1 union all select x+1 from c) select x from c",
        "with c(x) as (values(1) union all select x+1 from c) select x from c",
        "select printf('%1000000000d', 1)",
        "select * from generate_series(1, 9)",
    ],
}
ENDING = {
    languages.find_awk_problem: [
        "{for(i=1;i<=NF;i++) s+=$i}",
        "{while(i<3) i++}",
        "$1 > 1700000000",
        'BEGIN{printf "%-20s\\n", "x"}',
    ],
    languages.find_jq_problem: [
        "[range(10)]",
        "[range(0;.n;2)]",
        "recurse(.children[]?)",
        "[until(.>9;.*2)]",
        ".t > 1700000000000",
    ],
    languages.find_sed_problem: [":a;N;$!ba;s/\\n/ /g", ":a;s/xy/z/;ta", "/x/b end;s/a/b/;:end"],
    languages.find_sql_problem: [
        "select * from t",
        "with c as (select 1) select * from c",
        ".tables",
        "pragma table_info(t)",
    ],
}


@for_each_row(("find_problem", "script"), [(find, one) for find, all_of in ENDLESS.items() for one in all_of])
def test_what_plainly_never_ends_is_refused(find_problem: FindProblem, script: str) -> None:
    assert find_problem(script)


@for_each_row(("find_problem", "script"), [(find, one) for find, all_of in ENDING.items() for one in all_of])
def test_what_ends_passes(find_problem: FindProblem, script: str) -> None:
    assert find_problem(script) is None


@for_each_row(
    "text",
    [
        *(f"select {name}('x')" for name in ("load_extension", "readfile", "writefile", "edit", "zeroblob")),
        *('select "readfile"(1)', "select [readfile](1)", "select ReadFile(1)", "select readfile/**/(1)"),
        *("attach 'x' as y", "select 1; attach 'x' as y", "vacuum into 'x'", "drop table t", "delete from t"),
        *("create virtual table t using csv(filename='x')", "pragma writable_schema=1", "select * from fsdir('.')"),
        *(
            ".shell id",
            ".system id",
            ".read x",
            ".output x",
            ".once x",
            ".import a b",
            ".open x",
            ".save x",
            " .shell id",
        ),
        *(".dump |id", ".schema\t|id", "", "select 'x", ".backup x", ".log x", ".load x", ".archive -x", ".excel"),
    ],
)
def test_sql_that_reaches_further_than_its_data_base_is_refused(text: str) -> None:
    assert languages.find_sql_problem(text)
    assert languages.find_query_problem(text)


@for_each_row("text", ["select 1; delete from t", ";delete from t", "with a as (select 1) delete from t"])
def test_a_statement_that_deletes_every_row_is_refused_wherever_it_stands(text: str) -> None:
    assert languages.find_sql_problem(text) == "'delete' without 'where'"
    assert languages.find_sql_problem(f"{text} where a=1; select 1") is None


@for_each_row("text", ["insert into t values (1)", "update t set a=1", "delete from t where a=1", "create table t(a)"])
def test_sql_that_changes_does_not_ask(text: str) -> None:
    assert languages.find_sql_problem(text) is None
    assert languages.find_query_problem(text)
