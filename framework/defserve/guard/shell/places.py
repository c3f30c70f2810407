"""Where a command may write: not into the system, not into files that run by themselves later, not onto devices.

This catches plain accidents and plain attacks. Which files an account may touch is up to the operating system. A tool
that takes paths guards them with `defserve.guard.paths`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from defserve.guard.shell.program_rules import ShellMode, is_flag, spelt
from defserve.guard.verdict import Violation

_SYSTEM = frozenset(
    "bin boot dev etc lib lib32 lib64 libx32 proc run sbin sys usr var system library applications private".split()
)
_HOMES = frozenset("home root users opt srv mnt media volumes".split())
_SCRATCH = ("/var/tmp/", "/private/tmp/", "/var/folders/", "/dev/shm/")

# Files that a shell, git, ssh, cron or an interpreter runs or believes without being asked.
_TRUSTED = frozenset(
    ".git .ssh .gnupg .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zprofile .zshenv"
    " .zlogin .cshrc .inputrc .envrc .gitconfig .gitmodules .netrc .npmrc .pypirc .vimrc .exrc .emacs"
    " .mailcap .pam_environment"
    " authorized_keys crontab sitecustomize.py usercustomize.py launchagents launchdaemons autostart".split()
)

_SECRET = frozenset("/etc/shadow /etc/gshadow /etc/sudoers /etc/shadow- /proc/kcore".split())

# Where accounts keep their keys and tokens, in any home directory.
_CREDENTIALS = frozenset(".ssh .gnupg .aws .azure .kube .netrc .pgpass .git-credentials".split())


def place_problem(path: str) -> str | None:
    """Why nothing may be written to `path`, or None."""
    clean = _absolute(path) or posixpath.normpath(path)
    # In lower case: some file systems ignore case.
    parts = [part for part in clean.lower().split("/") if part]
    if any(part in _TRUSTED or part.endswith(".pth") for part in parts):
        return "is trusted by other programs"
    climbed = [part for part in parts if part != ".."]
    outside = clean.startswith("/") or len(climbed) < len(parts)
    if clean == "/" or (clean.startswith("/") and len(parts) == 1 and parts[0] in _HOMES):
        return "is a root of the system"
    if outside and climbed and climbed[0] in _SYSTEM and not f"{clean}/".lower().startswith(_SCRATCH):
        return "belongs to the system"
    return None


def _values(word: str) -> Iterator[str]:
    """The paths a word can hold: itself, after `=`, or stuck to a letter (`-t/etc`)."""
    if not is_flag(word):
        yield word
    elif "=" in word:
        yield word.partition("=")[2]
    elif "/" in word:
        yield word[word.index("/") :]
        yield word[2:]


def written(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Every word is a place that is written, moved or removed."""
    for word in words:
        for path in _values(word):
            if problem := place_problem(path):
                yield Violation("place", f"Blocked write: '{path}' {problem}")


def copied(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """The last operand is written, the others are read. With `-t`, any of them may be the target directory."""
    sources = [index for index, word in enumerate(words) if not is_flag(word)][:-1]
    named = any(flag == "-t" or "--target-directory".startswith(flag) for word in words for flag in spelt(word, "St"))
    yield from written([word for index, word in enumerate(words) if named or index not in sources], mode)
    for index in sources:
        # An empty or endless device copied over a file destroys the file, or the disk.
        if _absolute(words[index]).startswith("/dev/"):
            yield Violation("place", f"Blocked copy: '{words[index]}' is a device")


def output(words: Sequence[str], mode: ShellMode) -> Iterator[Violation]:
    """Nothing is written without `-o`; with it, any word may be the place."""
    if any(flag == "-o" or (len(flag) > 2 and "--output".startswith(flag)) for word in words for flag in spelt(word)):
        yield from written(words, mode)


def _absolute(path: str) -> str:
    """`path` without detours, or an empty text if it is relative."""
    return posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else ""


def secret(words: Sequence[str]) -> Iterator[Violation]:
    """No program is handed the files that hold passwords and keys, a process's environment, or a device."""
    for word in words:
        for path in _values(word):
            if not _CREDENTIALS.isdisjoint(path.lower().split("/")):
                yield Violation("secret", f"Blocked path: '{path}' holds keys")
            if not (clean := _absolute(path)):
                continue
            parts = clean.split("/")
            process = parts[1] == "proc" and parts[-1] in ("environ", "mem", "cmdline") and len(parts) > 3
            device = parts[1] == "dev" and clean not in (
                "/dev/null",
                "/dev/stdin",
                "/dev/stdout",
                "/dev/stderr",
                "/dev",
            )
            if clean in _SECRET or process or (device and not clean.startswith("/dev/shm/")):
                yield Violation("secret", f"Blocked path: '{path}'")
