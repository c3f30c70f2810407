"""The known programs, each with what is dangerous about it. Without an author's list, only `PROGRAMS` run.

A list of bad programs can never be complete, so this is a list of known ones. `ON_REQUEST` holds rules for
programs that run only when the author allows them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from defserve.guard.shell import archives, scripts
from defserve.guard.shell.git import GLOBAL, git
from defserve.guard.shell.places import copied, output, secret, written
from defserve.guard.shell.program_rules import Program, ProgramCheck, ShellMode, is_flag, names, operands, spelt
from defserve.guard.verdict import Violation


def _secrets(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    yield from secret(words)


def _secrets_after_pattern(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """The first operand of a search is the pattern, not a file, unless a flag gives the pattern."""
    flags = [word for word in words if is_flag(word)]
    read = (flag for word in flags for flag in spelt(word))
    given = any(flag in ("-e", "-f") or names(flag, "--regexp") or names(flag, "--file") for flag in read)
    yield from secret(flags + operands(words)[0 if given else 1 :])


def _reader(
    *danger: str, writing: tuple[str, ...] = (), valued: str = "", checks: tuple[ProgramCheck, ...] = ()
) -> Program:
    return Program(danger=danger, writing=writing, valued=valued, checks=(_secrets, *checks))


def _writer(*danger: str, valued: str = "", only: str = "", checks: tuple[ProgramCheck, ...] = (written,)) -> Program:
    flags = frozenset(only.split()) if only else None
    return Program(danger=danger, valued=valued, only=flags, writes=True, checks=(_secrets, *checks))


_PLAIN_READERS = """
    ls dir vdir cat head tail wc cut tr tac rev nl fold fmt expand unexpand paste join comm cmp
    column od hexdump strings md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum
    base32 basename dirname realpath readlink stat du df pwd which whereis pgrep pidof uname
    arch nproc whoami id groups users who w last uptime free vmstat pstree lscpu lsblk tty locale getconf
    cal sleep shasum zcat bzcat xzcat zstdcat
"""
_SPEAKERS = "echo printf true false test seq expr factor numfmt"

_PIP = Program(
    danger=tuple(
        """
        -i --index-url --extra-index-url -f --find-links -t --target --prefix --root -C
        --config-settings --global-option --install-option --build-option --python --proxy --cert
        --client-cert --trusted-host --src --log --report --cache-dir --keyring-provider
        """.split()
    ),
    harmless=frozenset({"--pre"}),
    reads=frozenset("list show freeze check --version -V --help".split()),
    acts=frozenset("install download wheel".split()),
    valued="rce",
    checks=(archives.packages,),
)
_NODE_PACKAGES = Program(
    danger=tuple(
        """
        --script-shell --shell --prefix -C --dir --cwd --registry --userconfig --globalconfig
        --node-options --git --editor --viewer --init-module --cafile --proxy --https-proxy --call
        -c --cache
        """.split()
    ),
    checks=(archives.packages, archives.node_packages),
)
_SYSTEM_PACKAGES = Program(
    danger=tuple(
        """
        -o --option -c --config --config-file --setopt --root --installroot --repository -X
        """.split()
    ),
    reads=frozenset("list show search info --version --help".split()),
    acts=frozenset("install update upgrade add".split()),
    checks=(archives.packages,),
)
_PROJECT_PACKAGES = Program(
    danger=tuple(
        """
        --config --registry --index --git --path --manifest-path --directory --project -C -Z
        --index-url --default-index --extra-index-url --find-links --source --install-dir --bindir
        --config-file --script --python
        """.split()
    ),
    checks=(archives.packages,),
)


def _packages(rules: Program, reads: str, acts: str) -> Program:
    """The commands of a package manager. It may take an unknown word for the name of a script."""
    return replace(rules, reads=frozenset(f"{reads} --version".split()), acts=frozenset(acts.split()))


PROGRAMS: Mapping[str, Program] = {
    **{name: _reader() for name in _PLAIN_READERS.split()},
    **{name: Program() for name in _SPEAKERS.split()},
    **{name: Program(checks=(_secrets_after_pattern,)) for name in ("grep", "egrep", "fgrep", "zgrep")},
    "git": Program(checks=(git, _secrets), prelude=GLOBAL),
    "find": Program(checks=(scripts.find, _secrets)),
    "fd": _reader("-x", "--exec", "-X", "--exec-batch", valued="etdEcjS"),
    "rg": Program(
        danger=("--pre", "--hostname-bin", "-z", "--search-zip"),
        valued="efgtTABCmMjEr",
        checks=(_secrets_after_pattern,),
    ),
    "tree": _reader(writing=("-o", "--output", "-R"), valued="LPI", checks=(output,)),
    "sed": Program(checks=(scripts.sed, _secrets)),
    **{name: Program(checks=(scripts.awk, _secrets)) for name in ("awk", "gawk", "mawk")},
    "jq": _reader("-f", "--from-file", "-L", "--library-path", checks=(scripts.jq,)),
    "sort": _reader(
        "--compress-program",
        "-T",
        "--temporary-directory",
        writing=("-o", "--output"),
        valued="kStT",
        checks=(output,),
    ),
    "uniq": _reader(valued="fsw", checks=(archives.second_is_written,)),
    "xxd": _reader("-r", "-revert", valued="lscgob", checks=(archives.second_is_written,)),
    "diff": _reader("-l", "--paginate", valued="UCIxXFSW"),
    "file": _reader("-C", "--compile", "-z", "--uncompress", "-Z", "--uncompress-noreport", valued="fFmePS"),
    "iconv": _reader(writing=("-o", "--output"), valued="ft", checks=(output,)),
    "base64": _reader(writing=("-o", "--output"), valued="wi", checks=(output,)),
    "ps": _reader("-E", valued="opuUgGtCqs", checks=(archives.processes,)),
    "date": _reader("-s", "--set", valued="dfrI", checks=(archives.date,)),
    "hostname": _reader("-F", "--file", "-b", "--boot", checks=(archives.no_operands,)),
    "netstat": _reader(),
    "lsof": _reader("-D", valued="cdpuiF"),
    "ss": _reader("-K", "--kill", "-D", "--diag", "-F", "--filter", valued="fA"),
    "tar": Program(checks=(archives.tar, _secrets)),
    "unzip": Program(danger=("-:",), checks=(archives.unzip, _secrets)),
    "mkdir": _writer(valued="m"),
    "touch": _writer(valued="drt"),
    "tee": _writer(),
    "cp": _writer(valued="St", checks=(copied,)),
    "install": _writer("--strip-program", "-s", "--strip", valued="gmoSt", checks=(copied, archives.modes)),
    "mv": _writer(valued="St"),
    "ln": _writer(valued="St"),
    "chmod": _writer(checks=(written, archives.modes)),
    "chown": _writer(),
    "chgrp": _writer(),
    "mktemp": _writer(valued="p"),
    "split": _writer("--filter", valued="abClnt"),
    **{name: _writer("-S", "--suffix") for name in ("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz")},
    **{name: _writer("--rm") for name in ("zstd", "unzstd")},
    "zip": _writer(only="-r -q -v -j -u -# -x -i -y -X"),
    "rsync": _writer(
        only="-a -v -r -z -n -u -h -P -l -p -t -i -c --archive --verbose --recursive --progress --dry-run --exclude"
        " --include --stats --human-readable --update --checksum --itemize-changes --times --links --perms",
        checks=(copied, archives.local_only),
    ),
    "kill": Program(checks=(archives.kill,)),
    **dict.fromkeys(("pip", "pip3"), _PIP),
    "npm": _packages(_NODE_PACKAGES, "ls list view info outdated -v", "install i ci add update"),
    "pnpm": _packages(_NODE_PACKAGES, "ls list why outdated -v", "install i add update"),
    "yarn": _packages(_NODE_PACKAGES, "list info why outdated -v", "install add upgrade"),
    **dict.fromkeys(("apt", "apt-get", "apk", "dnf", "yum", "brew", "apt-cache"), _SYSTEM_PACKAGES),
    "cargo": _packages(_PROJECT_PACKAGES, "tree search metadata -V", "add install fetch update"),
    "uv": _packages(_PROJECT_PACKAGES, "tree -V", "add sync lock"),
    "poetry": _packages(_PROJECT_PACKAGES, "show -V", "add install lock update"),
    "gem": _packages(_PROJECT_PACKAGES, "list search info -v", "install fetch update"),
}


def _script_first(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """An interpreter must be given a file. Code on the command line or on standard input is refused."""
    first = words[0] if words else "-"
    if first.startswith("-") and list(words) not in (["--version"], ["-V"], ["-v"], ["--help"], ["-h"]):
        yield Violation("interpreter", f"Blocked code for an interpreter: '{first}'")


def _not_everything(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    for word in operands(words):
        if set(word) <= {".", "/", "*"}:
            yield Violation("delete", f"Blocked delete: '{word}' is everything here")


def _web_only(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    for word in operands(words):
        scheme, separator, _ = word.partition("://")
        if word.startswith("@") or (separator and scheme.lower() not in ("http", "https")):
            yield Violation("remote", f"Blocked operand: '{word}'")


def _no_settings(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """`make SHELL=x` chooses what runs the recipes."""
    for word in operands(words):
        if "=" in word:
            yield Violation("assignment", f"Blocked assignment: '{word}'")


_DELETER = Program(writes=True, danger=("--no-preserve-root",), checks=(written, _not_everything))
_DOWNLOADER = Program(
    danger=tuple(
        """
        -o -O -K -T -F -u -x -E -D -c -b -i -e -P -J --output --remote-name --config --upload-file
        --form --user --proxy --cert --key --dump-header --cookie-jar --cookie --trace --trace-ascii
        --unix-socket --netrc-file --next --engine --libcurl --input-file --execute
        --output-document --output-file --append-output --post-file --body-file --use-askpass
        --directory-prefix --save-cookies --load-cookies --warc-file --hsts --etag-save
        --data-binary --data-urlencode --socks5 --resolve --connect-to --remote-name-all
        --output-dir -d --data
        """.split()
    ),
    valued="HXAm",
    checks=(_web_only,),
)

_INTERPRETER_NAMES = """
    python python2 python3 pypy pypy3 perl ruby node nodejs deno bun php lua luajit tclsh wish
    Rscript R julia guile java groovy scala kotlin ghci elixir erl osascript gdb ipython irb racket
    sbcl ocaml swipl octave bc dc m4 psql mysql sqlite3
"""
_WRAPPER_NAMES = """
    command builtin env sudo su doas nice ionice nohup timeout time stdbuf setsid xargs parallel
    watch busybox toybox chroot unshare nsenter strace ltrace script expect flock setarch taskset
    chrt runuser pkexec run-parts start-stop-daemon systemd-run ssh-agent dbus-run-session eval exec
    source . coproc trap npx pnpx bunx uvx pipx entr
"""
_SHELL_NAMES = "sh bash dash zsh ksh mksh ash csh tcsh fish rbash pwsh powershell cmd cmd.exe nu xonsh"
_EDITOR_NAMES = "vi vim nvim view ex ed emacs nano pico less more most man info top htop screen tmux"
_DELETER_NAMES = "rm rmdir unlink shred truncate dd wipe srm trash mkfs fdisk parted wipefs mkswap blkdiscard"
_TASK_RUNNER_NAMES = "ninja just rake gradle gradlew mvn ant task"
_NETWORK_NAMES = "curl wget ssh scp sftp ftp nc ncat netcat socat telnet rclone aria2c http lynx"

KINDS: Mapping[str, str] = {
    **dict.fromkeys(_INTERPRETER_NAMES.split(), "interpreter"),
    **dict.fromkeys(_WRAPPER_NAMES.split(), "wrapper"),
    **dict.fromkeys(_SHELL_NAMES.split(), "shell"),
    **dict.fromkeys(_EDITOR_NAMES.split(), "interactive"),
    **dict.fromkeys(_DELETER_NAMES.split(), "delete"),
    **dict.fromkeys(_NETWORK_NAMES.split(), "network"),
}
"""Why a well-known program is not run: the rule that a refusal names."""

NEVER_OPEN = frozenset({"wrapper", "shell", "interactive"})
"""Kinds that can run any program, so an author can only allow whole command lines of them."""

UNKNOWN = Program(
    danger=tuple(
        """
        --exec --exec-path --exec-batch --execute --command --eval --output --output-file
        --output-directory --out --pager --editor --shell --script-shell --upload-pack
        --receive-pack --rsh --rsh-command --rsync-path --pre --to-command --use-compress-program
        --compress-program --checkpoint-action --ext-diff --init-file --rcfile
        --proxy-command --filter-program --plugin --load --preload --require --toolexec --delete
        """.split()
    )
)
"""For an unknown program that the author allows: the flags that run or write in the programs we know."""

ON_REQUEST: Mapping[str, Program] = {
    **{name: Program(checks=(_script_first,)) for name, kind in KINDS.items() if kind == "interpreter"},
    **{name: _DELETER for name, kind in KINDS.items() if kind == "delete"},
    **dict.fromkeys(("curl", "wget"), _DOWNLOADER),
    **{
        name: Program(
            danger=("--eval", "-E", "-f", "--file", "--makefile", "-C", "--directory", "-I", "--include-dir"),
            valued="jlOoW",
            tasks=True,
            checks=(_no_settings,),
        )
        for name in ("make", "gmake")
    },
    **{name: replace(UNKNOWN, tasks=True, checks=(_no_settings,)) for name in _TASK_RUNNER_NAMES.split()},
}
