"""What passes in `readonly` is run and watched: it starts no other program, writes nothing, reads nothing outside."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defserve.guard.shell.grammar import Grammar, ProgramSpecTable, Shape, parse_program_spec, split_shared_keys
from defserve.guard.shell.judgement import judge
from defserve.guard.shell.tables import PROGRAM_TABLE, TAR_TABLE
from tests.effort import examples
from tests.guard.shell.observation import ENVIRONMENT, Deeds, observe, reason_not_to

# Most commands are refused, and those that are run take long: neither is a fault of the test.
HEALTHY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]

CORPORA = Path(__file__).parents[1] / "corpora"
SECRET = "canary-7c1f"

# What is slow to start, waits, or keeps a cache of its own that is nobody else's.
NOT_RUN = frozenset("sleep npm pip pip3 apt apt-get apt-cache gem brew dmesg kill vmstat free".split())
RUN = sorted(name for name in PROGRAM_TABLE if name not in NOT_RUN and shutil.which(name))

pytestmark = pytest.mark.skipif(reason_not_to() is not None, reason=str(reason_not_to()))


class Jail:
    """A directory with files to read, and a secret outside of it."""

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, base / "root"
        for folder in ("root/src", "root/.git-like", "outside", "home"):
            (base / folder).mkdir(parents=True)
        (base / "outside/secret").write_text(f"{SECRET}\n")
        (base / "outside/x.py").write_text(f"{SECRET}\n")
        for name in ("a", "b", "f", "x", "in", "README.md", "src/main.py", "data.csv", "list", "-o", "1", "out.txt"):
            (self.root / name).write_text("one two, three\n/etc/passwd\n--output=written\n1 2 3\n")
        (self.root / "a.json").write_text('{"a": [1, {"name": "n"}], "b": {"c": "d"}}\n')
        (self.root / "run.sh").write_text("#!/bin/sh\ntouch ran\n")
        (self.root / "run.sh").chmod(0o755)
        for line in (
            "git init -q .",
            "git add a b src README.md",
            "git -c user.name=n -c user.email=e@x commit -qm one",
            "git tag v1",
            "tar cf a.tar a b",
            "tar czf a.tgz a b",
            "gzip -k data.csv",
            "xz -k data.csv",
            "bzip2 -k data.csv",
            "zstd -qk data.csv",
            "zip -q a.zip a b",
        ):
            if shutil.which(line.split()[0]):
                subprocess.run(shlex.split(line), cwd=self.root, check=True, capture_output=True)
        (self.root / "a").write_text("changed\n")
        self.before = self.contents()

    def contents(self) -> dict[str, tuple[int, bytes]]:
        """Every file with its time and content."""
        return {
            str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in self.base.rglob("*")
            if path.name != "log.txt" and not path.is_dir()
        }

    def run(self, argv: tuple[str, ...]) -> Deeds:
        return observe(argv, self.root, self.base / "log.txt")


@pytest.fixture(scope="module")
def jail(tmp_path_factory: pytest.TempPathFactory) -> Jail:
    return Jail(tmp_path_factory.mktemp("jail"))


def broken(jail: Jail, argv: tuple[str, ...]) -> str | None:
    """What running this breaks, or None."""
    deeds = jail.run(argv)
    if deeds:
        return f"{shlex.join(argv)}: {deeds}"
    if SECRET.encode() in deeds.printed:
        return f"{shlex.join(argv)} printed the secret"
    if ENVIRONMENT.encode() in deeds.printed:
        return f"{shlex.join(argv)} printed an environment"
    if jail.contents() != jail.before:
        return f"{shlex.join(argv)} changed files"
    return None


def test_the_observer_sees_programs_writes_reads_and_connections(tmp_path: Path) -> None:
    """Else nothing below could fail."""
    jail = Jail(tmp_path)
    assert jail.run(("sh", "-c", "cat a")).ran == {"cat"}
    assert jail.run(("cat", "../outside/secret")).read_outside
    assert SECRET.encode() in jail.run(("cat", "../outside/secret")).printed
    assert jail.run(("touch", "a")).wrote
    connecting = "import socket; socket.socket().connect_ex(('127.0.0.1', 1))"
    assert jail.run(("python3", "-c", connecting)).connected
    assert jail.contents() != jail.before


def everyday() -> list[str]:
    """The judged commands that pass in readonly and that can be run here."""
    rows = [
        json.loads(line)
        for name in ("shell", "shell_more", "shell_everyday")
        for line in (CORPORA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    passing = [row["command"] for row in rows if row["readonly"] == "A" and not row.get("allowed")]
    return [
        command for command in passing if command.split()[0] in RUN and not re.search(r"find / |-[fF] |-F", command)
    ]


EVERYDAY = everyday()


def test_everyday_commands_only_read(jail: Jail) -> None:
    some = random.Random(examples(1)).sample(EVERYDAY, min(examples(15), len(EVERYDAY)))
    found = [broken(jail, argv) for command in some if (argv := judge(command, mode="readonly").argv)]
    assert [what for what in found if what] == []


# Words that an attacker would try in any place.
HOSTILE = [
    *("../outside/secret", "/etc/shadow", "/proc/self/root/etc/passwd", "../outside", "/proc/self/environ", "@list"),
    *("-o", "written", "--output=written", "-owritten", "--output", "-i", "-i.bak", "-r", "-w", "-e", "-f", "-flist"),
    *(
        "--",
        "-",
        ".",
        "-x",
        "-X",
        "-C",
        "-C..",
        "-T",
        "-O",
        "-I",
        "./run.sh",
        "-c",
        "--exec=./run.sh",
        "--pre=./run.sh",
    ),
    *("env", "$ENV", "1e ./run.sh", "w written", "s/o/x/w written", "s/o/x/e", 'BEGIN{system("./run.sh")}', "-exec"),
    *(
        '{print > "written"}',
        '{print | "sh"}',
        "-delete",
        "--compress-program=./run.sh",
        "-z",
        "-Z",
        "-D",
        "-p",
        "-l",
        "-s",
    ),
    *(
        "--textconv",
        "--ext-diff",
        "--no-index",
        "core.pager",
        "x.y",
        "--help",
        "--file=list",
        "--files0-from=list",
        "-t",
        "+x",
    ),
]
PLAIN = [
    "a",
    "b",
    "f",
    "src",
    "README.md",
    "a.json",
    "a.tar",
    "a.tgz",
    "data.csv.gz",
    "1",
    "HEAD",
    "v1",
    "x",
    "src/main.py",
    ".",
]
VALUES = {
    "number": ["1", "-5", "+3", "10k"],
    "pattern": ["o", "-o", "[a-z]*", "written"],
    "sed": ["p", "1,3p", "s/o/x/g", "$!N", "s/a/b/w written", "y/a/b/", "1!d", "/[/]/w written", "a\\"],
    "awk": [
        "{print $1}",
        "1",
        'NR>1{print $1 > "written"}',
        "/a/",
        "{print $1/2/3}",
        '{x = 1 /(/ 1; print > "written" /)/ 1}',
    ],
    "jq": [".", ".a[0]", "env", '"\\(env)"', "{env}", ".. | .name?", "[limit(1; .[])]", "input_filename"],
    "columns": ["pid,comm", "environ", "args"],
    "format": ["+%F", "%F"],
}


def specs(entry: str | ProgramSpecTable, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Grammar]]:
    """Every form of a program: the words that choose it, and its grammar."""
    if isinstance(entry, str):
        yield words, parse_program_spec(entry, bool(words))
        return
    for name, inner in split_shared_keys(entry).items():
        if name:
            yield from specs(inner, (*words, name))


FORMS: list[tuple[str, tuple[str, ...], Grammar]] = [
    (name, words, rules)
    for name in RUN
    for words, rules in (
        specs(PROGRAM_TABLE[name])
        if name != "tar"
        else (((), parse_program_spec(str(spec))) for spec in TAR_TABLE.values())
    )
]


@st.composite
def command_lines(draw: st.DrawFn) -> str:
    """A command of a known program, by its grammar, with words that do not belong there."""
    name, words, rules = draw(st.sampled_from(FORMS))
    line = [name, *words]
    for option in draw(st.lists(st.sampled_from(sorted(rules.options) or ["-x"]), max_size=3)):
        line.append("-3" if option == "-#" else option)
        for kind in rules.options[option].kinds if option in rules.options else ():
            value = draw(st.sampled_from(VALUES.get(kind, kind.lstrip("=").split("|") if "|" in kind else PLAIN)))
            if draw(st.booleans()):
                line[-1] += f"={value}" if option.startswith("--") else value
            else:
                line.append(value)
    shape = draw(st.sampled_from(draw(st.sampled_from(rules.shapes))))
    for operand in shape.operands:
        words_of_kind = st.sampled_from(VALUES.get(operand.kind, PLAIN))
        line += draw(st.lists(words_of_kind, min_size=operand.least, max_size=operand.most or 2))
    for word in draw(st.lists(st.sampled_from(HOSTILE), max_size=2)):
        line.insert(draw(st.integers(1, len(line))), word)
    return shlex.join(line)


@st.composite
def changed_commands(draw: st.DrawFn) -> str:
    """An everyday command with words added, left out, doubled, swapped or stuck together."""
    words = shlex.split(draw(st.sampled_from(EVERYDAY)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(1, len(words)))
        change = draw(st.sampled_from(["add", "drop", "double", "move", "stick"]))
        if change == "add":
            words.insert(at, draw(st.sampled_from(HOSTILE + PLAIN)))
        elif at < len(words):
            word = words.pop(at)
            if change == "double":
                words[at:at] = [word, word]
            elif change == "move":
                words.append(word)
            elif change == "stick":
                words[at - 1 if at > 1 else at : at] = [words[at - 1] + word] if at > 1 else [word]
    return shlex.join(words)


# Pieces whose reading depends on what surrounds them, and what must never be read as a command.
PIECES = {
    "sed": r"""
        / / s y p d g ; ; , ! $ 1 { } [ ] ^ \ \] \[ \/ | x a\ i\ :a b t n N [^ [] [] ]] / w·written e·./run.sh w e r s/
        /g /p /;w·written /w·written; s/x/ s|a|b| [:alpha:] [\] = q l
    """,
    "awk": r"""
        / / ( ) ( ) { } { } [ ] ; ; , ++ -- + - * ~ !~ ! $ 1 x a "a" print print printf length in if else while for NR
        == > > >= < "written" >·"written" | "sh" |·"sh" getline /= = ? : && || /(/ /)/ /[/] \" \ return BEGIN END
    """,
    "jq": r"""
        env $ENV .env {env} . [ ] ( ) { } , , : | | " " \( ) .a "a" $x as reduce if then else end 1 == // ? ..
        input_filename def f: ; @base64 import {"a":env} limit( map( .[] \ error
    """,
}


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """A program with a script of pieces thrown together."""
    program = draw(st.sampled_from([name for name in PIECES if shutil.which(name)]))
    pieces = PIECES[program].replace("·", "\0").split()
    script = (
        draw(st.sampled_from(["", " "]))
        .join(draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=14)))
        .replace("\0", " ")
    )
    return shlex.join([program, *(["-n"] if draw(st.booleans()) else []), script, "a.json" if program == "jq" else "f"])


SETS = [
    "[]",
    "[^]",
    "[/]",
    "[^/]",
    "[]/]",
    "[[:alpha:]",
    "[\\]",
    "[a",
    "[[.].]",
    "\\[",
    "\\]",
    "[]x]",
    "[a\\]b]",
    "[\\/]",
    "[x]",
]
SED_TWO_WAYS = [
    "/{0}/p;s,/]/w written,x,",
    "s/{0}/]/g;s,x/w written,y,",
    "s/x/{0}/;s,/]/w written,y,",
    "y/{0}/{0}/;s,/]/w written,y,",
    "/{0}/,/x/s,/]/w written,y,",
    "/x/,/{0}/s,/]/w written,y,",
]
VALUES_OF_AWK = [
    "x",
    "1",
    '"a"',
    "$1",
    "(x)",
    "a[1]",
    "length",
    "length()",
    "x++",
    "x--",
    "if (x)",
    "while (x--)",
    "NF",
    "!x",
    "-x",
    "f (x)",
]
AWK_TWO_WAYS = [
    '{{{0} / 1; print > "written"; y = 1 / 1}}',
    '{{y = {0} / 1; print > "written"; y = 1 / 1}}',
    '{{{0} /(/ 1; print > "written" /)/ 1}}',
    '{{x = {0} /(/ 1; print > "written" /)/ 1}}',
    '{{{0} /=/ 1; print > "written" /=/ 1}}',
    '{{print {0} /x/ > "written" /1/ 1}}',
    '{0} /(/ {{print > "written"}} /)/',
    '{{print {0} /[/]/ 1; print > "written" /]/ 1}}',
]


@pytest.mark.slow
def test_what_can_be_read_in_two_ways_does_not_write(jail: Jail) -> None:
    tried = [("sed", form.format(one)) for form in SED_TWO_WAYS for one in SETS]
    tried += [("awk", form.format(one)) for form in AWK_TWO_WAYS for one in VALUES_OF_AWK]
    passing = [
        argv for program, script in tried if (argv := judge(shlex.join([program, script, "f"]), mode="readonly").argv)
    ]
    assert [what for argv in passing if shutil.which(argv[0]) and (what := broken(jail, argv))] == []


@settings(max_examples=min(examples(20), 5000), suppress_health_check=HEALTHY)
@given(scripts())
def test_whatever_script_passes_only_reads(jail: Jail, command: str) -> None:
    if argv := judge(command, mode="readonly").argv:
        assert broken(jail, argv) is None


@settings(max_examples=min(examples(20), 5000), suppress_health_check=HEALTHY)
@given(command_lines() | changed_commands())
def test_whatever_passes_only_reads(jail: Jail, command: str) -> None:
    argv = judge(command, mode="readonly").argv
    if argv is None or "find / " in command or ({"-f", "-F", "--follow"} & set(argv) and argv[0] == "tail"):
        return
    assert broken(jail, argv) is None


# What options act on: a file that each packer knows, a file, a directory.
ACTED_ON = ["data.csv.gz", "data.csv.xz", "data.csv.bz2", "data.csv.zst", "a.zip", "a", "src"]


def some_pairs(count: int, forms: Sequence[tuple[str, tuple[str, ...], Grammar]]) -> list[tuple[str, ...]]:
    """Of each form, up to `count` commands with two options that pass in readonly, on what the form takes."""
    dice, found = random.Random(count), list[tuple[str, ...]]()
    for name, words, rules in forms:
        options = [[], *(_spelt(option, rules) for option in sorted(rules.options))]
        shapes = [one for shapes in rules.shapes for one in shapes]
        tried = (_drawn(dice, [name, *words], options, shapes) for _ in range(count * 4))
        passing = (argv for line in tried if (argv := judge(line, mode="readonly").argv))
        found += itertools.islice(passing, count)
    return found


def _drawn(dice: random.Random, words: list[str], options: list[list[str]], shapes: list[Shape]) -> str:
    first, second, target = dice.choice(options), dice.choice(options), dice.choice(ACTED_ON)
    operands = [VALUES.get(one.kind, [target])[0] for one in dice.choice(shapes).operands]
    return shlex.join([*words, *first, *second, *operands])


def _spelt(option: str, rules: Grammar) -> list[str]:
    kinds = () if rules.options[option].optional else rules.options[option].kinds
    choices = [
        VALUES.get(kind, kind.lstrip("=").split("|") if "|" in kind or kind[0] == "=" else ["a"]) for kind in kinds
    ]
    return ["-3" if option == "-#" else option, *(choice[0] for choice in choices)]


def test_two_options_of_a_program_with_modes_only_read(jail: Jail) -> None:
    packers = [form for form in FORMS if form[0] in ("xz", "bzip2", "zstd", "gzip")]
    assert [what for argv in some_pairs(3, packers) if (what := broken(jail, argv))] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_options_of_any_program_only_read(jail: Jail, part: int) -> None:
    assert [what for argv in some_pairs(3, FORMS[part::10]) if (what := broken(jail, argv))] == []


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ps"), reason="ps is needed")
def test_no_three_options_of_ps_show_an_environment() -> None:
    rules = parse_program_spec(str(PROGRAM_TABLE["ps"]))
    values = {"columns": "pid,args", "numbers": "1", "names": "nobody-here", "number": "200"}
    words = [" ".join([flag, *(values[kind] for kind in option.kinds)]) for flag, option in rules.options.items()]
    words = [word for word in words if not word.startswith("--") or "user" in word or "forest" in word] + ["f", "ax"]
    dice = random.Random(1)
    tried = [" ".join(["ps", *dice.sample(words, dice.choice([2, 3]))]) for _ in range(2500)]
    passing = {line for line in tried if judge(line, mode="readonly")}
    assert len(passing) > 100
    env = {"PATH": os.defpath, "CANARY": ENVIRONMENT}
    shown = [
        line
        for line in sorted(passing)
        if ENVIRONMENT.encode() in subprocess.run(shlex.split(line), env=env, capture_output=True, check=False).stdout
    ]
    assert shown == []
