"""A command is read as its program reads it, and refused with what would be allowed instead."""

from __future__ import annotations

import shlex
from typing import Any

from defserve import Shell
from defserve.guard.shell.judgement import judge
from defserve.guard.shell.tables import PROGRAM_TABLE
from tests.rows import for_each_row


def why(command: str, **options: Any) -> str:
    return str(judge(command, **options).violations[0])


@for_each_row(
    ("command", "message"),
    [
        (
            "sort --out=x f",
            "Blocked flag of sort: '--out' is not among those known to be harmless; did you mean '--output'?",
        ),
        ("head -n x f", "Blocked value of head -n: 'x' is not a number"),
        (
            "grep --binary-files=x a f",
            "Blocked value of grep --binary-files: 'x' is not one of binary, text, without-match",
        ),
        ("ls --all=x", "Blocked flag of ls: '--all' takes no value after '='"),
        ("head -n", "Blocked flag of head: '-n' needs a value"),
        ("git log -n --output=x", "Blocked value of git log -n: '--output=x' is not a number"),
        ("git log --author --all", "Blocked value of git log --author: '--all' starts with a dash"),
        ("git stats", "Blocked command: 'git stats'; did you mean 'status'?"),
        ("git", "Blocked command: 'git' without a sub-command"),
        ("diff a", "Blocked operands of diff: it takes a file to read, a file to read"),
        ("cat ../x", "Blocked path: '../x' climbs with '..'; name files relative to the working directory"),
        ("cat /x", "Blocked path: '/x' is outside the working directory; name files relative to the working directory"),
        ("sed 1e f", "Blocked sed script: the command 'e' in this form"),
        ("jq env", "Blocked jq filter: 'env' is not among the functions known to be harmless"),
        ("tar x -t -f a", "Blocked command: tar needs one operation, such as -t, -x or -c"),
        ("git branch -d --list x", "Blocked flags of git branch: '-d' and '--list' together"),
        ("ps -uroot", "Blocked flag of ps: write the value of '-u' apart"),
        ("xxd f -p", "Blocked flag of xxd: '-p' comes too late"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_is_near(command: str, message: str) -> None:
    assert message in {str(found) for found in judge(command).violations}


@for_each_row(
    ("command", "message"),
    [
        ("mkdir d", "Blocked write: 'mkdir'"),
        ("sort -o x f", "Blocked write flag of sort: '-o'"),
        ("sed -i p f", "Blocked write flag of sed: '-i'"),
        ("uniq a b", "Blocked write: 'uniq'"),
        ("git ls-remote origin", "Blocked network use: 'git ls-remote'"),
    ],
)
def test_readonly_refuses_by_what_a_form_does(command: str, message: str) -> None:
    assert judge(command)
    assert why(command, mode="readonly") == message


@for_each_row(
    "command",
    [
        "npm test",
        "npm run build",
        "npm exec x",
        "npm start",
        "cargo build",
        "cargo run",
        "cargo test",
        "cargo install .",
        "uv run x",
        "uv sync",
        "uv add x",
        "uv pip install .",
        "uv pip install -e .",
        "make",
        "make test",
        "pytest",
        "go test ./x",
        "go generate",
        "tox",
        "nox",
        "gradle build",
        "mvn test",
        "npx x",
        "pre-commit run",
        "pip install .",
        "pip install ./sub",
        "pip install -e .",
        "pip wheel .",
        "python3 setup.py install",
        "cmake --build build",
        "yarn install",
        "yarn --version",
        "hg --version",
        "dotnet --version",
        "dotnet --info",
        "scc -o json .",
        "diffstat 'x$(id).gz'",
        "diffstat 'x`id`.Z'",
        "diffstat 'a b.patch'",
        "qsv stats a.csv",
        "cloc a.tar",
        "cloc src/x.ZIP",
        "cloc HEAD~1",
        "cloc 1a2b3c4d",
        """cloc "a'; id; '.tar" """,
        "python3 -m compileall",
        "pnpm install",
        "poetry install",
        "apt install ./x.deb",
        "gem install ./x.gem",
        "git bisect run x",
        "git submodule foreach x",
        "npm init x",
    ],
)
def test_what_runs_the_projects_code_needs_an_authors_list(command: str) -> None:
    assert not judge(command)
    assert not judge(command, mode="readonly")
    assert judge(command, allowed=[command]) or command.split()[0] in ("git", "uv")


@for_each_row(
    ("command", "flags"),
    [
        ("xz -t -z f", "'-t' and '-z'"),
        ("bzip2 -tz f", "'-t' and '-z'"),
        ("unxz -l -z f", "'-l' and '-z'"),
        ("lzma -t -z f", "'-t' and '-z'"),
        ("zstd -t -z f", "'-t' and '-z'"),
        ("bzip2 -t -d f", "'-t' and '-d'"),
        ("gzip -d --test f", "'-d' and '--test'"),
        ("zstd --decompress --list f", "'--decompress' and '--list'"),
        ("unzip -l -p a.zip", "'-l' and '-p'"),
        ("ps -auxww -e", "'-auxww' and '-e'"),
        ("ps -e -T -H", "'-e' and '-T'"),
        ("ps -e -u x", "'-e' and '-u'"),
        ("zstd -r -d src", "'-r' and '-d'"),
    ],
)
def test_two_modes_exclude_each_other(command: str, flags: str) -> None:
    assert f"{flags} together" in why(command)


@for_each_row(
    "command",
    ["gzip -dc f", "xz -dc f", "zstd -dc f", "bzip2 -cd f", "unzip -lv a.zip", "ps -ef", "ps -ef f", "ps aux"],
)
def test_a_mode_goes_with_what_is_none(command: str) -> None:
    assert judge(command, mode="readonly")


@for_each_row(
    "command",
    [
        "grep x f -e /etc/shadow",
        "grep x f --include /etc/shadow",
        "sort f -t /etc/shadow",
        "rg x f -g /etc/shadow",
        "sed p f -e /etc/shadow",
    ],
)
def test_a_value_after_an_operand_may_be_read_as_a_file(command: str) -> None:
    assert not judge(command)


@for_each_row("command", ["sed -i p 'w /etc/x'", "sed -i p w/etc/x", "sed -i p s/a/b/w/etc/x", "sed -i p 2w/etc/x"])
def test_a_file_of_sed_in_place_is_no_script(command: str) -> None:
    assert not judge(command)


_ALONE = sorted(name for name, entry in PROGRAM_TABLE.items() if isinstance(entry, str) and name not in ("tar", "["))


@for_each_row("name", _ALONE)
def test_every_program_tells_its_version_and_usage(name: str) -> None:
    for flag in ("--version", "--help"):
        assert judge(f"{name} {flag}", mode="readonly")
        assert judge(f"{name} {flag} x", mode="readonly").argv != (name, flag)


@for_each_row(
    ("command", "readonly"),
    [
        ("git diff --no-index a b", True),
        ("git archive --list", True),
        ("jq 'def f: . + 1; .a | f' a.json", True),
        ("awk 'function f(x) { return x * 2 } { print f($1) }' f", True),
        ("cargo --version", True),
        ("git rm f", False),
        ("git worktree add wt", False),
        ("git submodule update --init", False),
        ("pip uninstall -y x", False),
        ("uv pip install --system x", False),
    ],
)
def test_everyday_forms_pass(command: str, readonly: bool) -> None:
    assert judge(command)
    assert bool(judge(command, mode="readonly")) is readonly


@for_each_row(
    "command",
    [
        "find -- -delete",
        "find . -- -exec touch ran ';'",
        "find -P -- . -fprintf out x",
        "sqlite3 -- -init select",
        "sqlite3 -readonly -- -init select",
    ],
)
def test_two_dashes_hide_no_option_of_a_program_that_reads_its_words_itself(command: str) -> None:
    assert [violation.rule for violation in judge(command).violations] == ["flag"]
    assert not judge(command, allowed={"find": None, "sqlite3": None})


@for_each_row(
    "command",
    [
        "ruff check -n @x",
        "ruff check -n --select @x a.py",
        "ruff check -n -- @x",
        "ruff format @x",
        "ruff rule @x",
        "clang-format --style @x a.c",
        "strings -s @x a",
        "addr2line @x",
        "c++filt @x",
        "scc @x",
        "ar t @x",
        "ar t a.a @x",
        "tar -cf a.tar @x",
        "tar rf a.tar @x",
    ],
)
def test_no_word_names_a_file_of_further_options(command: str) -> None:
    assert "flag" in {violation.rule for violation in judge(command).violations}
    assert judge(command.replace("@x", "x"))


@for_each_row(
    "command",
    [
        # It checks what mypy.ini names, with its plug-ins.
        "mypy -v",
        "black -v",
        # It writes what .ctags.d names.
        "ctags -V",
        "ctags -v",
        "ksh -v",
        # A task of the project.
        "deno version",
        # They load plug-ins, scripts or libraries of the working directory first.
        "packer version",
        "xmake --version",
        "liquibase --version",
        "flyway --version",
    ],
)
def test_what_works_on_the_project_tells_no_version(command: str) -> None:
    assert not judge(command)


@for_each_row(
    ("command", "harmless"),
    [
        ("git log --date=format:%90000d", "git log --date=format:%Y-%m-%d"),
        ("git blame --date format:%90000d a", "git blame --date format:%4d a"),
        ("git log --expand-tabs=90000", "git log --expand-tabs=4"),
        (
            "git for-each-ref --format='%(creatordate:format:%90000d)'",
            "git for-each-ref --format='%(creatordate:format:%Y-%m-%d)'",
        ),
        ("diff --line-format=%90000dn a b", "diff --line-format=%3dn:%L a b"),
        ("dpkg-query -W -f '${Package;90000}'", "dpkg-query -W -f '${Package;30}'"),
        ("xsv fixlengths -l 90000 a", "xsv fixlengths -l 9 a"),
    ],
)
def test_no_format_asks_for_a_large_width(command: str, harmless: str) -> None:
    assert not judge(command)
    assert judge(harmless, mode="readonly")


@for_each_row("name", ["foo-", "foo:amd64-", "foo=1-"])
def test_no_package_is_removed_while_others_are_installed(name: str) -> None:
    for program in ("apt", "apt-get"):
        assert not judge(f"{program} install -y {name}")
        assert judge(f"{program} install -y {name[:-1]}")


@for_each_row(
    ("settings", "passes"),
    [
        ("{extends: /etc/shadow}", False),
        ('{"extends": /etc/shadow}', False),
        ("{extends: relaxed/../../x}", False),
        ("{? extends\n: /etc/shadow}", False),
        ('{"ext\\x65nds": /etc/shadow}', False),
        ("{ignore-from-file: /etc/shadow}", False),
        ("/etc/shadow", False),
        ("{&a extends: relaxed, *a : /etc/shadow}", False),
        ("{extends: relaxed, extends: x/y}", False),
        ("{extends: relaxed, rules: {line-length: {max: 120}}}", True),
        ('{extends: "default"}', True),
        ("relaxed", True),
        ("{ignore: /vendor/}", True),
    ],
)
def test_settings_of_yamllint_name_no_file(settings: str, passes: bool) -> None:
    assert bool(judge(f"yamllint -d {shlex.quote(settings)} a.yaml".replace("\n", " "))) == passes


def test_absolute_paths_are_inside_if_they_are_below_the_root() -> None:
    assert judge("cat /work/project/a", root="/work/project")
    assert judge("ls /work/project", root="/work/project")
    assert judge("cp a /work/project/b", root="/work/project")
    assert Shell(root="/work/project").command("cat /work/project//a").argv == ("cat", "/work/project//a")
    for path in ("/work/projects/a", "/work", "/work/project/../x", "//work/project/../x", "/etc/shadow"):
        assert not judge(f"cat {path}", root="/work/project")
    assert not judge("cp a /work/project/.git/config", root="/work/project")


@for_each_row(
    ("command", "sandbox", "readonly"),
    [
        ("curl https://example.com/x", True, True),
        ("curl -sS -H 'Accept: text/html' https://example.com", True, True),
        ("curl -o out https://example.com", True, False),
        ("curl -d a=b https://example.com", True, False),
        ("curl -X DELETE https://example.com", True, False),
        *(
            (f"curl {words}", False, False)
            for words in (
                "-o /etc/x https://example.com",
                "-o .git/config https://example.com",
                "-O https://example.com/.bashrc",
                "-H@file https://example.com",
                "-H @file https://example.com",
                "-d @file https://example.com",
                "--data-binary @file https://example.com",
                "--url-query x@file https://example.com",
                "-w @file https://example.com",
                "-w '%output{x}' https://example.com",
                "-K cfg https://example.com",
                "--config cfg https://example.com",
                "--stderr f https://example.com",
                "--alt-svc f https://example.com",
                "--netrc https://example.com",
                "-n https://example.com",
                "--unix-socket s https://example.com",
                "--proxy http://p https://example.com",
                "-x p https://example.com",
                "--resolve a:80:127.0.0.1 https://example.com",
                "--connect-to ::127.0.0.1:80 https://example.com",
                "-L https://example.com",
                "-b file https://example.com",
                "-c file https://example.com",
                "-T file https://example.com",
                "-F a=@file https://example.com",
                "--trace f https://example.com",
                "-D f https://example.com",
                "-E cert https://example.com",
                "--libcurl f https://example.com",
                "file:///etc/passwd",
                "FILE:///etc/passwd",
                "ftp://example.com",
                "gopher://example.com",
                "example.com",
                "http://169.254.169.254/",
                "http://localhost/",
                "http://127.1/",
                "'http://127.0.0.{1,2}/'",
                "'https://example.com/[1-9]'",
                "https://example.com file:///etc/passwd",
                "--url file:///etc/passwd",
            )
        ),
        ("wget --max-redirect=0 -O out https://example.com", True, False),
        *(
            (f"wget {words}", False, False)
            for words in (
                "https://example.com",
                "-a f --max-redirect=0 https://example.com",
                "--max-redirect=5 https://example.com",
                "-i list --max-redirect=0",
                "-e x=y --max-redirect=0 https://example.com",
                "--post-file=x --max-redirect=0 https://example.com",
                "--max-redirect=0 file:///etc/passwd",
                "--max-redirect=0 -O /etc/x https://example.com",
                "--max-redirect=0 --use-askpass=id https://example.com",
            )
        ),
    ],
)
def test_a_listed_downloader_fetches_public_urls_and_no_file(command: str, sandbox: bool, readonly: bool) -> None:
    listed = ["curl", "wget"]
    assert bool(judge(command, allowed=listed)) is sandbox
    assert bool(judge(command, allowed=listed, mode="readonly")) is readonly


@for_each_row(
    ("command", "may"),
    [
        ("python3 x.py", True),
        ("python3 ./x --flag", True),
        ("python3 -V", True),
        ("bun x.ts", True),
        *((command, False) for command in ("python3", "python3 -", "python3 -c 1", "python3 -m x", "python3 ../x.py")),
        *((command, False) for command in ("deno eval 1", "node eval", "R CMD id", "sqlite3 x.db .shell", "gdb x.y")),
        *((command, False) for command in ("java @options", "octave x.m --eval 1", "perl -v -e 1")),
    ],
)
def test_a_listed_interpreter_runs_a_file_and_takes_no_code(command: str, may: bool) -> None:
    assert bool(judge(command, allowed=[command.split()[0]])) is may


PRIVATE = (
    "127.0.0.1 10.0.0.1 192.168.1.1 169.254.169.254 localhost 0 2130706433 0x7f.1 metadata.google.internal".split()
)


@for_each_row("host", PRIVATE)
@for_each_row("form", ["http://{}/x", "https://{}/x", "git://{}/x", "ssh://{}/x", "ssh://root@{}/x", "git@{}:x/y.git"])
@for_each_row("command", ["git clone", "git ls-remote", "git fetch", "git remote add o", "git push", "git pull"])
def test_a_remote_of_any_kind_is_judged_by_its_host(host: str, form: str, command: str) -> None:
    assert not judge(f"{command} {form.format(host)}").allowed


@for_each_row("remote", ["git://example.com:6379/x", "ssh://git@example.com:6379/x", "ssh://git@example.com:443/x"])
def test_a_remote_has_the_port_of_its_service(remote: str) -> None:
    assert not judge(f"git ls-remote {remote}").allowed


@for_each_row(
    "remote",
    [
        "git://example.com/x",
        "git://example.com:9418/x",
        "ssh://git@example.com:22/x.git",
        "git@github.com:a/b.git",
        "https://github.com/a/b",
    ],
)
def test_a_remote_at_a_public_host_passes(remote: str) -> None:
    assert judge(f"git clone {remote}").allowed


def test_a_refusal_names_the_option_that_is_missing_and_the_form_that_was_meant() -> None:
    assert str(judge("git clean").violations[0]) == "Blocked command: 'git clean' passes only with --dry-run or -n"
    assert "'alias.x' is not a setting that names no program" in str(judge("git config alias.x '!id'").violations[0])
