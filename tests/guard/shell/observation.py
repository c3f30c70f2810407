"""Runs a command without network under strace, and tells what it did: programs, writes, reads, connections."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from defserve.guard.shell.places import PathRules, make_command_environment

SECONDS = 2
ENVIRONMENT = "canary-of-the-environment"
"""A variable that every command has. Whoever prints it shows the environments of processes."""

_CHANGING = frozenset(
    """
    creat rename renameat renameat2 unlink unlinkat mkdir mkdirat rmdir link linkat symlink symlinkat chmod fchmod
    fchmodat chown fchown fchownat lchown truncate ftruncate utime utimes utimensat futimesat mknod mknodat setxattr
    lsetxattr fsetxattr removexattr mount umount2 sethostname settimeofday clock_settime kill tkill tgkill
    """.split()
)
_TRACED = ["execve", "execveat", "open", "openat", "openat2", "connect", *sorted(_CHANGING)]
_CALL = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+=\s+(-?\d+)(?:<(.*)>)?")

_ABORT = re.compile(r"^(\d+)\s+tgkill\(\1, \1, SIGABRT\)")
"""A program that ends itself, because it found a bug of its own (`git config --show-origin --default`)."""

# What the C library, the language settings and the programs themselves look at before they do their work.
_OF_THE_SYSTEM = re.compile(
    r"/(?:usr|lib|lib64|bin|sbin|opt|nix)(?:/.*)?|/etc/(?:ld\.so\.(?:cache|preload)|locale\.alias|localtime|timezone"
    r"|nsswitch\.conf|passwd|group|hosts|hostname|resolv\.conf|host\.conf|gai\.conf|magic(?:\.mime)?|gitconfig|mtab"
    r"|lsb-release|colordiffrc|ssl/certs(?:/.*)?"
    r"|iproute2/.*|os-release|services|protocols|mime\.types|DIR_COLORS|java.*|ssl/openssl\.cnf|alternatives/.*|perl/.*|dpkg/.*|apt/.*)"
    r"|/proc(?:/.*)?|/sys(?:/.*)?|/dev/(?:null|tty|console|zero|urandom|random|pts/.*)|/|/etc|/dev|/run|/var/run/utmp|/run/utmp"
    r"|/var/log/wtmp|/var/cache/man/.*|/etc/manpath\.config|/var/lib/(?:dpkg|apt)/.*|/var/cache/apt/.*|pipe:.*|socket:.*|anon_inode.*"
)

# Scripts and packers: what they are made of.
HELPERS: Mapping[str, frozenset[str]] = {
    # Some of its sub-commands are shell scripts.
    "git": frozenset("git git-submodule sh sed basename uname envsubst gettext".split()),
    "dpkg": frozenset({"dpkg-query"}),
    **dict.fromkeys("sdiff diff3 colordiff".split(), frozenset({"diff", "perl"})),
    **dict.fromkeys(
        "zdiff zcmp xzdiff bzgrep xzgrep zstdgrep lzgrep".split(),
        frozenset(
            "sh bash zdiff diff cmp grep egrep fgrep sed gzip bzip2 xz zstd zstdcat bzcat xzcat expr printf cat mktemp"
            " rm".split()
        ),
    ),
    "yq": frozenset({"jq"}),
    "tar": frozenset("gzip bzip2 xz zstd lzip lzma unzstd gunzip sh uncompress".split()),
    **dict.fromkeys(
        "zgrep zegrep zfgrep".split(), frozenset("sh dash bash grep egrep fgrep sed gzip zgrep expr printf cat".split())
    ),
    **dict.fromkeys(
        "zcat gzcat gunzip bzcat xzcat lzcat zstdcat unzstd".split(), frozenset("sh gzip xz bzip2 zstd".split())
    ),
    **dict.fromkeys(
        "which egrep fgrep lsb_release shasum ldd".split(),
        frozenset("sh grep perl which python3 getopt tr cut cat".split()),
    ),
}


@dataclass(frozen=True, slots=True)
class Deeds:
    """What a command did that a reading command must not do."""

    ran: frozenset[str]
    wrote: frozenset[str]
    read_outside: frozenset[str]
    connected: frozenset[str]
    printed: bytes

    def __bool__(self) -> bool:
        return bool(self.ran or self.wrote or self.read_outside or self.connected)


@functools.cache
def reason_not_to() -> str | None:
    """Why nothing can be observed on this machine, or None."""
    if not shutil.which("strace") or not shutil.which("unshare"):
        return "strace and unshare are needed: apt install strace util-linux"
    for prefix in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        if subprocess.run([*prefix, "strace", "-f", "-o", os.devnull, "true"], capture_output=True).returncode == 0:
            _prefix.extend(prefix)
            return None
    return "this machine allows no network namespace or no tracing"


_prefix: list[str] = []


def observe(argv: Sequence[str], root: Path, log: Path) -> Deeds:
    """Run `argv` in `root`. A command that takes too long is ended; what it did until then counts."""
    # A command that is ended before it begins leaves no log: that of another must not count.
    log.write_text("")
    strace = ["strace", "-f", "-qq", "-y", "-s", "4096", "-e", f"trace={','.join(_TRACED)}", "-o", str(log), *argv]
    process = subprocess.Popen(
        [*_prefix, "timeout", "--signal=KILL", str(SECONDS), *strace],
        cwd=root,
        env={**make_command_environment(), "HOME": str(root.parent / "home"), "CANARY": ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    printed = _some_output(process)
    calls = list(_calls(log.read_text(encoding="utf-8", errors="replace")))
    return Deeds(
        ran=frozenset(_ran(calls)) - {argv[0], *HELPERS.get(argv[0], ())},
        wrote=frozenset(_wrote(calls)),
        read_outside=frozenset(_read_outside(calls, root)),
        connected=frozenset(args for name, args, _, _ in calls if name == "connect" and "AF_INET" in args),
        printed=printed,
    )


def _some_output(process: subprocess.Popen[bytes]) -> bytes:
    """The first megabyte; whoever prints without end is ended."""
    assert process.stdout
    with process.stdout:
        printed = process.stdout.read(1 << 20)
    try:
        process.wait(SECONDS + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return printed


def _calls(log: str) -> Iterator[tuple[str, str, int, str]]:
    """Every call that succeeded, and every attempt to connect: name, arguments, what it returned, and its path."""
    for line in log.splitlines():
        found = _CALL.match(line) if not _ABORT.match(line) else None
        if found and (int(found[3]) >= 0 or found[1] == "connect"):
            yield found[1], found[2], int(found[3]), found[4] or ""


def _ran(calls: Sequence[tuple[str, str, int, str]]) -> Iterator[str]:
    for name, args, _, _ in calls:
        if name in ("execve", "execveat") and (path := re.match(r'"([^"]*)"', args)):
            yield path[1].rpartition("/")[2]


def _wrote(calls: Sequence[tuple[str, str, int, str]]) -> Iterator[str]:
    for name, args, _, path in calls:
        # A file without a name is gone with its process.
        if "O_TMPFILE" in args:
            continue
        if name in _CHANGING:
            yield f"{name}({args})"
        elif name.startswith("open") and re.search(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)", args):
            yield from [path] if not path.startswith("/dev/") else []


def _read_outside(calls: Sequence[tuple[str, str, int, str]], root: Path) -> Iterator[str]:
    places = PathRules()
    for name, _, _, path in calls:
        if not name.startswith("open") or path == str(root) or path.startswith((f"{root}/", str(root.parent / "home"))):
            continue
        refused = places.check_list(path) if os.path.isdir(path) else places.check_read(path)
        if refused and not _OF_THE_SYSTEM.fullmatch(path):
            yield path
