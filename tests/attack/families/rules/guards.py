"""Rules of the guards, each with cases that nobody named: judged in this process, and never run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from defserve.guard import code, shell
from tests.attack.controls.patching import Removal
from tests.attack.controls.rules import (
    begin_any_name,
    forget_late_values,
    give_out_what_objects_hold,
    let_modes_clash,
    run_the_projects_code,
    take_any_name_of_code,
    walk_where_one_may_list,
    write_any_name,
)
from tests.attack.trial import Control, Family, Trial

FAMILY = Family("guard rules")
MODES = ("sandbox", "readonly")


def without(remove: Removal, case: str = "*") -> Control:
    return Control(remove, "passes", case, here=True)


def refuse(trial: Trial, commands: Iterable[str], modes: Iterable[str] = MODES) -> None:
    for command, _ in trial.choose(dict.fromkeys(commands)):
        for mode in modes:
            trial.expect(not shell.judge(command, mode=mode), f"{mode}: {command!r} passes")


def take(trial: Trial, *commands: str) -> None:
    for command in commands:
        trial.expect(shell.judge(command), f"{command!r}, an honest one, is refused")


# -- which of two modes wins -----------------------------------------------------------------------------

PACKERS = ("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "lzma", "unlzma", "zstd", "unzstd")
READING, WRITING = ("-t", "-l", "--test", "--list"), ("-z", "-d", "--compress", "--decompress", "--uncompress")


def clashing() -> list[str]:
    """One option that reads and one that writes, in both orders and in one word."""
    found = list[str]()
    for name in PACKERS:
        for one, two in itertools.product(READING, WRITING):
            found += [f"{name} {one} {two} f.xz", f"{name} {two} {one} f.xz", f"{name} {one} f.xz {two}"]
            if len(one) == len(two) == 2:
                found += [f"{name} {one}{two[1]} f.xz", f"{name} {two}{one[1]} f.xz", f"{name} -k{two[1]}{one[1]} f.xz"]
    return [*found, "unzip -l -p a.zip", "gzip -r -d src", "zstd -t -z f", "zstd --decompress --list f"]


@FAMILY.attack("two modes", without(let_modes_clash, "xz -t -z f.xz"), without(let_modes_clash, "bzip2 -tz f.xz"))
def _(trial: Trial) -> None:
    refuse(trial, clashing(), ["readonly"])
    take(trial, "gzip -dc f", "xz -t f.xz", "xz -l f.xz", "unzip -l a.zip")


@FAMILY.attack(
    "ps that shows environments", without(let_modes_clash, "ps -e -T"), without(let_modes_clash, "ps -auxww -e")
)
def _(trial: Trial) -> None:
    """Some readings of its options make `e` mean: show the environment."""
    with_e = [
        "-T",
        "-u x",
        "-U x",
        "-p 1",
        "-C x",
        "-t x",
        "-g x",
        "-aux",
        "-auxww",
        "-ax",
        "-axu",
        "--user x",
        "--pid 1",
    ]
    pairs = [f"ps {one} {two}" for each in with_e for one, two in ((each, "-e"), ("-e", each))]
    others = [
        "ps e",
        "ps aue",
        "ps auxe",
        "ps axe",
        "ps auxwwe",
        "ps eww",
        "ps -ef e",
        "ps e -f",
        "ps -o pid e",
        "ps axo pid,environ",
    ]
    refuse(trial, [*pairs, *others])
    take(trial, "ps aux", "ps -ef", "ps -e", "ps -o pid,comm -p 1")


# -- names that are written ------------------------------------------------------------------------------

TRUSTED = (
    ".envrc",
    ".bashrc",
    ".git/config",
    ".gitattributes",
    ".husky/pre-commit",
    "sitecustomize.py",
    "evil.pth",
    ".npmrc",
)


def writing() -> list[str]:
    """Ways on which a file gets a name that other programs trust."""
    found = list[str]()
    for name in TRUSTED:
        last = name.partition("/")[0]
        found += [f"{packer} {name}.{end}" for packer, end in {"gunzip": "gz", "unxz": "xz", "bunzip2": "bz2"}.items()]
        found += [f"gzip -d sub/{name}.gz", f"xz -d {name}.xz", f"zstd -d {name}.zst", f"gunzip -k {name}.gz"]
        found += [f"cp evil/{name} .", f"cp -t sub evil/{name}", f"mv evil/{name} .", f"install evil/{name} sub"]
        found += [f"cp a {name}", f"cp a ./{name}", f"cp a {name.upper()}", f"mv a sub/{name}", f"ln -s {name} x"]
        found += [f"tar xf a.tar {name}", f"unzip a.zip {name}", f"tee {name}", f"sort -o {name} f", f"touch {name}"]
        found += [
            f"git checkout other -- {name}",
            f"git restore {name}",
            f"git mv evil/{last} .",
            f"sed -i s/a/b/ {name}",
        ]
        found += [f"git clone https://example.com/{last}", f"git worktree add {name}", f"rsync evil/{last} sub"]
    return found


@FAMILY.attack(
    "names that other programs trust",
    without(write_any_name, "gunzip .envrc.gz"),
    without(write_any_name, "cp evil/.envrc ."),
    without(write_any_name, "tar xf a.tar .envrc"),
)
def _(trial: Trial) -> None:
    refuse(trial, writing())
    take(trial, "cp a b", "gunzip a.txt.gz", "mv a sub", "tar xf a.tar src")


@FAMILY.attack("names that only begin so", without(begin_any_name, "split f .en"))
def _(trial: Trial) -> None:
    refuse(
        trial,
        [f"split f {begin}" for begin in (".b", ".en", ".git/x", "sub/.envr", ".", "sitecustom", "usercust", ".ba")],
    )
    refuse(trial, ["split f x --additional-suffix=.pth", "cp -b -S .pth a b"]) if trial.case == "*" else None
    take(trial, "split f part_")


# -- walks and late values -------------------------------------------------------------------------------

WALKERS = (
    "ls -R",
    "ls -laR",
    "dir -R",
    "du",
    "du -a",
    "du -sh",
    "tree",
    "tree -L 3",
    "find",
    "fd x",
    "rg x",
    "grep -r x",
    "rg --files",
)
PLACES = (
    "/",
    "//",
    "/./",
    "/etc",
    "/home",
    "/root",
    "/var",
    "/tmp",
    "/opt",
    "/proc",
    "/sys",
    "/usr/..",
    "/boot",
    "/srv",
    "/media",
)


@FAMILY.attack("walks", without(walk_where_one_may_list, "find /"), without(walk_where_one_may_list, "ls -R /etc"))
def _(trial: Trial) -> None:
    more = ["find / -name x", "find / -path '/root/*'", "vdir -R /", "find -H /", "find . /", "du -sh . /home"]
    refuse(trial, [*(f"{walker} {place}" for walker in WALKERS for place in PLACES), *more])
    take(trial, "ls /", "find .", "ls -R src", "find /usr/share/doc")


@FAMILY.attack("values that may be files", without(forget_late_values, "grep x f -e /etc/shadow"))
def _(trial: Trial) -> None:
    """Where options end at the first operand, a value behind it is read as a file."""
    files = ("/etc/shadow", "/root/.ssh/id_rsa", "../secret", "/proc/1/environ")
    forms = (
        "grep x f -e {}",
        "grep x f --include {}",
        "sort f -t {}",
        "rg x f -g {}",
        "sed p f -e {}",
        "head f -n {}",
        "cut f -d {}",
    )
    refuse(trial, [form.format(file) for form in forms for file in files])


@FAMILY.attack(
    "the project's own code", without(run_the_projects_code, "pip install ."), without(run_the_projects_code, "uv sync")
)
def _(trial: Trial) -> None:
    names = """
    npm test|npm run build|npm exec x|npm start|npx x|cargo build|cargo run|cargo test|cargo bench|cargo install .
    uv run x|uv sync|uv add x|uv pip install .|uv pip install -e .|make|make test|make -C sub|pytest|go test ./x
    go generate|go run .|tox|nox|gradle build|mvn test|pre-commit run|pip install .|pip install -e .|pip install ./sub
    pip wheel .|python3 setup.py install|cmake --build build|yarn install|pnpm install|poetry install|git bisect run x
    git submodule foreach x|npm init x|apt install ./x.deb|gem install ./x.gem
    """
    refuse(trial, [name.strip() for line in names.strip().splitlines() for name in line.split("|")])


# -- what objects give out -------------------------------------------------------------------------------

EXPOSING = {
    "warnings": "import warnings\nwarnings.catch_warnings()._module.sys.modules['os']",
    "renamed": "from warnings import catch_warnings as c\nc()._module",
    "in a class": "import warnings\nclass C(warnings.catch_warnings):\n    def f(self):\n        return self._module",
    "a pattern": "import warnings\nmatch warnings.catch_warnings():\n    case object(_module=m):\n        m",
    "getattr": "import warnings\ngetattr(warnings.catch_warnings(), '_module')",
    "a path": "from pathlib import PurePath\nPurePath('a').parser.os",
    "an old path": "from pathlib import PurePath\nPurePath('a')._flavour",
    "pathmod": "from pathlib import PurePath as P\nP('a').pathmod",
    "a loop": "import asyncio\nasyncio.Runner().get_loop().subprocess_shell",
    "a connection": "import asyncio\nasync def f():\n    await asyncio.get_running_loop().create_connection(f, 'x', 1)",
    "a server": "import asyncio\nasync def f():\n    await asyncio.get_running_loop().create_server(print, 'x', 1)",
    "sendfile": "import asyncio\nasync def f(a, b):\n    await asyncio.get_running_loop().sendfile(a, b)",
    "a signal": "import asyncio\nasyncio.new_event_loop().add_signal_handler(1, print)",
    "argparse": "import argparse\nargparse.ArgumentParser(fromfile_prefix_chars='@')",
    "argparse, set": "import argparse\np = argparse.ArgumentParser()\np.fromfile_prefix_chars = '@'",
    "anything's sys": "def f(anything):\n    return anything.sys.modules",
    "anything's os": "def f(anything):\n    return anything.os.system",
    "deep": "def f(a):\n    return a.b.c.subprocess.run",
    "a test's module": "import unittest\nx = unittest.main(exit=False).module",
}
NAMING = {
    "a module": "import unittest\nunittest.main(module='os', exit=False)",
    "by place": "import unittest\nunittest.main('os')",
    "a default": "import unittest\nunittest.main(defaultTest='os.getcwd')",
    "a word": "import unittest\nunittest.main(argv=['x', 'os.getcwd'])",
    "words": "import unittest\nunittest.main(argv=words)",
    "starred": "import unittest\nunittest.main(*['os'])",
    "double starred": "import unittest\nunittest.main(**{'module': 'os'})",
    "renamed": "from unittest import main as m\nm('os')",
    "as a value": "import unittest\nm = unittest.main\nm('os')",
}


def refuse_code(trial: Trial, programs: dict[str, str]) -> None:
    for name, source in trial.choose(programs):
        for level in ("standard", "strict", "readonly"):
            trial.expect(not code.judge(source, level=level), f"{level}: {name}: {source!r} passes")


@FAMILY.attack(
    "objects that give out modules",
    without(give_out_what_objects_hold, "warnings"),
    without(give_out_what_objects_hold, "a loop"),
    without(give_out_what_objects_hold, "anything's os"),
)
def _(trial: Trial) -> None:
    refuse_code(trial, EXPOSING)
    for source in ("import unittest\nunittest.main()", "from pathlib import PurePath\nPurePath('a/b').parent.name"):
        trial.expect(code.judge(source), f"{source!r}, an honest one, is refused")


@FAMILY.attack("names that are code", without(take_any_name_of_code, "by place"))
def _(trial: Trial) -> None:
    refuse_code(trial, NAMING)
