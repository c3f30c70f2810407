"""What the repository in a directory makes git run or read elsewhere. This looks at the disk, and runs nothing.

A `.git` directory may come from strangers: in an archive, or beside files that somebody else writes. git runs programs
that its settings name for harmless commands, such as `git diff`, and reads what they point to. Variables turn off some
of it (`places.make_command_environment`); what has a name of its author's choice (`diff.*`), leads elsewhere, or is too
dangerous to rely on them, is looked for here. Hooks are not: they are everywhere, and the variables turn them all off.

git takes the repository of the next directory above if there is none. That one lies outside the root.

Below: what the views and triggers of a data base make sqlite3 run, what a directory makes Python run, and what
settings make ruff and yamllint read.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from defserve.base.hidden_characters import replace_hidden_characters
from defserve.guard.shell.languages import find_lint_settings_problem
from defserve.guard.shell.places import is_below
from defserve.guard.verdict import Violation

MAX_SETTINGS_BYTES = 1024 * 1024
MAX_INDEX_BYTES = 64 * 1024 * 1024
MAX_REPOSITORIES = 200
"""How many submodules are looked at, at every depth."""
MAX_ALTERNATES = 1_000
"""How many lines of alternates are read, in all lists together."""

# A key stands at the beginning of a line, or behind the name of its section. What git takes for the rest of a value, or
# for a comment, is read as a setting as well: whoever is wrong about where those end overlooks one.
_SETTING = re.compile(r"(?:^|\])[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=([^\n]*)", re.MULTILINE)
_SECTION = re.compile(r"\[[ \t]*([A-Za-z0-9.-]+)(?:[ \t]+\"((?:[^\"\\\n]|\\.)*)\")?[ \t]*\]")
# Whatever their section is: some have a part of the author's choice, and git-lfs has settings of its own.
_PROGRAM_KEYS = frozenset(
    """
    textconv command cmd clean smudge process driver external uploadpack receivepack vcs update path helper program
    defaultkeycommand sshcommand askpass gitproxy editor alternaterefscommand recentobjectshook packobjectshook
    difffilter tunnel smtpserver sendmailcmd tocmd cccmd headercmd browser
    """.split()
)
_SWITCH = re.compile(r"(?i:true|false|yes|no|on|off|\d*)")
_HARMLESS_PROGRAM = re.compile(
    r"git-lfs (?:clean|smudge|filter-process)\b[^;&|`$<>\n]*|(?:none|checkout|rebase|merge)|"
)
# Settings that name a remote: they count for commands that talk to one.
_REMOTE_KEYS = frozenset("url pushurl insteadof pushinsteadof remote pushremote pushdefault".split())
_REMOTE_COMMANDS = frozenset("fetch pull push ls-remote clone archive".split())
_REMOTE_ACTIONS = {("remote", "update"), ("remote", "show"), ("remote", "prune"), ("submodule", "update")}
_OTHER_MACHINE = re.compile(r"(?!file:)[\w.@+-]+:(?!:).*|[\w.-]+")
# What is turned off, and so is not read: signing keys of an account lie in its home.
_UNREAD_KEYS = frozenset("signingkey hookspath templatedir".split())
_EXECUTED_STEP = re.compile(r"^[ \t]*(?:x|exec)\b", re.MULTILINE)


def find_repository_problem(argv: Sequence[str], root: str) -> Violation | None:
    """Why git may not run in the directory `root` as it is, or None. Never raises.

    `argv` begins with git itself, not with one that limits it (`timeout 5`).
    """
    try:
        return next(_Repositories(argv, root).find_problems(), None)
    except (OSError, ValueError, IndexError, struct.error) as problem:
        return Violation("run", f"Blocked command: the settings of this repository cannot be read ({problem})")


class _Repositories:
    """The repository that one command of git would use, and those inside it."""

    def __init__(self, argv: Sequence[str], root: str) -> None:
        self._words = [word for word in argv[1:] if word[:1] != "-"]
        self._root, self._seen = os.path.realpath(root), set[str]()
        self._alternates = 0
        pairs = zip(self._words, self._words[1:], strict=False)
        self._is_remote = not _REMOTE_COMMANDS.isdisjoint(self._words) or not _REMOTE_ACTIONS.isdisjoint(pairs)
        self._pushes = "push" in self._words

    def find_problems(self) -> Iterator[Violation]:
        here = os.path.join(self._root, ".git")
        if os.path.lexists(here):
            yield from self._find_in_folder(self._root)
        elif _is_git_folder(self._root):
            yield from self._find_in_git_folder(self._root)
        if not _is_git_folder(self._follow(here) or "") and (above := self._find_above()):
            yield Violation(
                "place",
                f"Blocked command: git would use the repository in '{above}', which is outside the working directory",
            )
        if self._pushes:
            for word in self._words:
                folder = os.path.join(self._root, word)
                if _is_git_folder(folder) or os.path.lexists(os.path.join(folder, ".git")):
                    yield _make_run_violation(f"the hooks of '{word}', a repository on this machine")

    def _find_above(self) -> str | None:
        """The nearest directory above the root that is in a repository."""
        folder = self._root
        while folder != (folder := os.path.dirname(folder)):
            if os.path.lexists(os.path.join(folder, ".git")) or _is_git_folder(folder):
                return folder
        return None

    def _follow(self, place: str) -> str | None:
        """The directory that a `.git` is or names."""
        if not os.path.isfile(place):
            return place if os.path.isdir(place) else None
        # As git reads it: what stands before the name is a part of it.
        named = _read(place, 4096).removeprefix("gitdir: ").rstrip("\r\n")
        return os.path.join(os.path.dirname(place), named)

    def _find_in_folder(self, folder: str) -> Iterator[Violation]:
        """Problems of the repository whose files lie in a folder."""
        if git := self._follow(os.path.join(folder, ".git")):
            yield from self._find_in_git_folder(git, folder)

    def _find_in_git_folder(self, git: str, folder: str | None = None) -> Iterator[Violation]:
        real = os.path.realpath(git)
        if real in self._seen:
            return
        self._seen.add(real)
        if len(self._seen) > MAX_REPOSITORIES:
            raise ValueError(f"it holds more than {MAX_REPOSITORIES} others")
        if not self._is_inside(git):
            yield self._make_place_violation(".git")
            return
        common = git
        if os.path.isfile(named := os.path.join(git, "commondir")):
            common = os.path.join(git, _read(named, 4096).rstrip("\r\n"))
            if not self._is_inside(common):
                yield self._make_place_violation("commondir")
                return
        for place in dict.fromkeys((git, common)):
            yield from self._find_links(place)
            yield from self._find_alternates(os.path.join(place, "objects"))
            for name in ("config", "config.worktree"):
                yield from self._find_in_settings(os.path.join(place, name), place)
            yield from self._find_in_old_remotes(place)
            yield from self._find_in_modules(os.path.join(place, "modules"))
        yield from self._find_steps(git)
        for name in _read_submodules(git) if folder else ():
            yield from self._find_in_folder(os.path.join(folder or "", name))

    def _find_links(self, git: str) -> Iterator[Violation]:
        """Links in a .git that lead out. git makes none."""
        for name in ("", "objects", "objects/info", "objects/pack", "info", "logs", "refs", "refs/heads", "refs/tags"):
            if os.path.isdir(folder := os.path.join(git, name)):
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_symlink() and not self._is_inside(entry.path):
                            yield self._make_place_violation(os.path.join(name, entry.name))

    def _find_alternates(self, objects: str, depth: int = 0) -> Iterator[Violation]:
        if not os.path.isfile(file := os.path.join(objects, "info", "alternates")):
            return
        for line in _read(file, MAX_SETTINGS_BYTES).split("\n"):  # as git does, and nowhere else
            self._alternates += 1
            if self._alternates > MAX_ALTERNATES:
                raise ValueError(f"it has more than {MAX_ALTERNATES} alternates")
            # In quotes, it may be any text.
            if line and line[0] != "#":
                other = os.path.join(objects, line)
                if line[0] == '"' or depth > 5 or not self._is_inside(other):  # git takes 5 in a row
                    yield self._make_place_violation("objects/info/alternates")
                    return
                yield from self._find_alternates(other, depth + 1)

    def _find_in_modules(self, folder: str) -> Iterator[Violation]:
        """The repositories of submodules, also of those that are not checked out. Their names may have slashes."""
        waiting = [folder] if os.path.isdir(folder) else []
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        continue
                    if os.path.lexists(os.path.join(entry.path, "HEAD")):
                        yield from self._find_in_git_folder(entry.path)
                    else:
                        waiting.append(entry.path)
                    if len(waiting) > MAX_REPOSITORIES:
                        raise ValueError(f"it holds more than {MAX_REPOSITORIES} others")

    def _find_steps(self, git: str) -> Iterator[Violation]:
        """Steps of a rebase that is under way."""
        if "rebase" not in self._words:
            return
        for name in ("rebase-merge/git-rebase-todo", "rebase-merge/git-rebase-todo.backup"):
            file = os.path.join(git, name)
            if os.path.isfile(file) and _EXECUTED_STEP.search(_read(file, MAX_SETTINGS_BYTES).replace("\r", "\n")):
                yield _make_run_violation("the steps of a rebase that is under way ('exec')")

    def _find_in_settings(self, file: str, git: str) -> Iterator[Violation]:
        text = _read_settings_text(file)
        for section, part in _SECTION.findall(text):
            if section.lower().partition(".")[0] == "alias":
                yield _make_settings_violation("alias")
            elif section.lower() == "url":
                yield from self._find_local_remote("url", _read_value(part))
        for name, value in _read_settings(text):
            section, key = name.partition(".")[0], name.rpartition(".")[2]
            if _names_program(section, key, value):
                yield _make_settings_violation(name)
            elif key in _REMOTE_KEYS:
                yield from self._find_local_remote(name, value)
            # The directory of files is taken from that of the settings, and the rest from where git runs.
            elif key not in _UNREAD_KEYS and self._leads_out(value, git if key == "worktree" else self._root):
                yield self._make_place_violation(name)

    def _find_in_old_remotes(self, git: str) -> Iterator[Violation]:
        """Before there were settings for them, each remote had a file."""
        for name in ("remotes", "branches"):
            if self._is_remote and os.path.isdir(folder := os.path.join(git, name)) and os.listdir(folder):
                yield self._make_place_violation(name)

    def _find_local_remote(self, name: str, value: str) -> Iterator[Violation]:
        """Another repository on this machine. Its hooks run when somebody pushes to it."""
        full = os.path.join(self._root, value)
        if not self._is_remote or value == "." or (_OTHER_MACHINE.fullmatch(value) and not os.path.isdir(full)):
            return
        # Where a text is put in the place of another, only the text counts.
        if name.startswith("url.") and re.match(r"[\w+]+:|[\w.-]+@", value):
            return
        if self._pushes:
            yield _make_run_violation(f"the hooks of a repository on this machine, '{value}' ('{name}')")
        elif value.startswith("file:") or not self._is_inside(full):
            yield self._make_place_violation(name)

    def _leads_out(self, value: str, base: str) -> bool:
        value = value.removeprefix(":(optional)")
        # `~` is a home, and `%(prefix)` where git is installed; a value that goes on below may end as anything, and
        # before 2.45, git reads a tab as a space.
        return (
            value.startswith(("~", "%(", "files://", "reftable://"))
            or value.endswith("\\")
            or "\t" in value
            or (bool(value) and not self._is_inside(os.path.join(base, value)))
        )

    def _is_inside(self, path: str) -> bool:
        return is_below(os.path.realpath(path), self._root)

    def _make_place_violation(self, what: str) -> Violation:
        return Violation(
            "place", f"Blocked command: '{_show(what)}' of this repository leads out of the working directory"
        )


def _make_run_violation(what: str) -> Violation:
    return Violation("run", f"Blocked command: git would run {_show(what)}")


def _make_settings_violation(name: str) -> Violation:
    return Violation(
        "run",
        f"Blocked command: git would run what this repository's settings name ('{_show(name)}'); take the setting"
        " out of .git/config",
    )


def _show(text: str) -> str:
    """A text of the repository for a message: it may be anything."""
    return replace_hidden_characters(text[:200], lambda _: "?")


def _names_program(section: str, key: str, value: str) -> bool:
    if section == "pager" or key in ("pager", "fsmonitor"):
        return not _SWITCH.fullmatch(value)
    return key in _PROGRAM_KEYS and not _HARMLESS_PROGRAM.fullmatch(value)


def _read_settings_text(file: str) -> str:
    text = _read(file, MAX_SETTINGS_BYTES).replace("\r\n", "\n") if os.path.isfile(file) else ""
    if "\r" in text:
        raise ValueError(f"{os.path.basename(file)} has a carriage return inside a line")
    return text


def _read_settings(text: str) -> Iterator[tuple[str, str]]:
    """The settings in a file of git: `section.part.key` with its key in lower case, and the value of the line."""
    sections = [(found.end(), ".".join(filter(None, found.groups()))) for found in _SECTION.finditer(text)]
    at = 0
    for found in _SETTING.finditer(text):
        while at < len(sections) and sections[at][0] <= found.start(1):
            at += 1
        section = sections[at - 1][1] if at else ""
        first, dot, part = section.partition(".")
        yield f"{first.lower()}{dot}{part}.{found[1].lower()}", _read_value(found[2])


def _read_value(text: str) -> str:
    """A value without its quotes, escapes and comment. One that goes on in the next line ends with a backslash.

    As in git, spaces around it are no part of it, unless they are quoted. Other characters are, whatever Python strips.
    """
    found, end, is_quoted = list[str](), 0, False
    for piece in re.findall(r"\\.|.", text):
        if piece in " \t" and not is_quoted:
            found += piece if found else ()
            continue
        if piece in "#;" and not is_quoted:
            break
        if piece == '"':
            is_quoted = not is_quoted
        else:
            found.append(_ESCAPES.get(str(piece), str(piece)[-1]))
        end = len(found)
    return "".join(found[:end])


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\b": "\b"}


def _read(file: str, most: int) -> str:
    """The text of a file. Raises ValueError if it is too long."""
    with open(file, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{os.path.basename(file)} is too long")
    return content.decode("utf-8", "surrogateescape")


def _is_git_folder(path: str) -> bool:
    """Whether git takes a directory for that of a repository."""
    head = os.path.join(path, "HEAD")
    if not path or not (os.path.islink(head) or os.path.isfile(head)):
        return False
    if os.path.isfile(named := os.path.join(path, "commondir")):
        path = os.path.join(path, _read(named, 4096).rstrip("\r\n"))
    is_valid = os.path.islink(head) or re.match(r"ref:\s*refs/|[0-9a-f]{40}", _read(head, 4096))
    return bool(is_valid) and all(os.path.isdir(os.path.join(path, name)) for name in ("objects", "refs"))


# -- Submodules: git looks at their files, with their settings. The index names their directories.


_LINK_MODE = b"\x00\x00\xe0\x00"


def _read_submodules(git: str) -> list[str]:
    """The directories of submodules. Raises ValueError if they cannot be told."""
    with os.scandir(git) as entries:
        files = [entry.path for entry in entries if entry.name == "index" or entry.name.startswith("sharedindex.")]
    found: list[str] = []
    for file in filter(os.path.isfile, files):
        if os.path.getsize(file) > MAX_INDEX_BYTES:
            raise ValueError("its index is too long")
        with open(file, "rb") as stream:
            content = stream.read()
        # Most have none, and then need not be read.
        if _LINK_MODE in content:
            digest = 32 if _has_long_digests(git) else 20
            found += [os.fsdecode(name) for mode, name in _read_index(content, digest) if mode == 0o160000]
    return found


def _has_long_digests(git: str) -> bool:
    file = os.path.join(git, "config")
    settings = dict(_read_settings(_read_settings_text(file)))
    return settings.get("extensions.objectformat", "").lower() == "sha256"


def _read_index(content: bytes, digest: int) -> Iterator[tuple[int, bytes]]:
    """The mode and the path of each entry."""
    magic, version, count = struct.unpack_from(">4sII", content)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("its index is of an unknown kind")
    at, name = 12, b""
    for _ in range(count):
        start = at
        (mode,) = struct.unpack_from(">I", content, at + 24)
        at += 40 + digest
        (flags,) = struct.unpack_from(">H", content, at)
        at += 4 if flags & 0x4000 else 2
        if version == 4:
            cut, at = _read_offset(content, at)
            end = content.index(b"\0", at)
            name = name[: len(name) - cut] + content[at:end]
            at = end + 1
        else:
            end = content.index(b"\0", at)
            name = content[at:end]
            at = start + (end - start + 8) // 8 * 8
        yield mode, name


def _read_offset(content: bytes, at: int) -> tuple[int, int]:
    """A number of git's own variable length, and where it ends."""
    byte = content[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = content[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1


# -- Data bases. The command line of sqlite3 has functions of its own: one runs a program, others read and write files.
#    Up to 3.40 it also runs them for a view or a trigger of the file that it opens, whatever the query asks for.


MAX_SCHEMA_ENTRIES = 10_000
_SCHEMA = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT ?"
# A table may have such a name; it stands behind one of these words. A comment behind the name may hide its bracket:
# where the comment ends isn't looked for, since a text full of them would take time without a bound.
_SHELL_FUNCTION = re.compile(
    r"(?:\b(table|into|references)\s+[\"'`\[]?)?\b(edit|readfile|writefile|load_extension|fsdir|zipfile)\b"
    r"[\"'`\]]?\s*+(?:\(|--|/\*)",
    re.IGNORECASE,
)


def find_database_problem(argv: Sequence[str], root: str) -> Violation | None:
    """Why sqlite3 may not open the files of a judged command, or None. Never raises.

    With `-safe`, sqlite3 itself refuses such functions.
    """
    if "-safe" in argv or "--safe" in argv:
        return None
    for word in argv[1:]:
        path = os.path.join(root, word)
        if word[:1] == "-" or "\0" in word or not os.path.isfile(path) or not os.path.getsize(path):
            continue
        try:
            name = _find_shell_function(path)
        except (sqlite3.Error, OSError, ValueError) as problem:
            # sqlite3 opens more than the library does: an archive, a data base behind another file.
            return Violation("run", f"Blocked command: what '{_show(word)}' runs cannot be read ({problem}); add -safe")
        if name:
            return Violation(
                "run", f"Blocked command: sqlite3 would run '{name}', which a view or trigger names; add -safe"
            )
    return None


def _find_shell_function(path: str) -> str | None:
    """The first function of the command line that the schema of a data base calls."""
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
        texts = connection.execute(_SCHEMA, (MAX_SCHEMA_ENTRIES + 1,)).fetchall()
    if len(texts) > MAX_SCHEMA_ENTRIES:
        raise ValueError(f"it has more than {MAX_SCHEMA_ENTRIES} tables and views")
    calls = (found for (text,) in texts for found in _SHELL_FUNCTION.finditer(str(text)) if not found[1])
    return next((found[2].lower() for found in calls), None)


# -- Python. `-m venv` keeps an interpreter that is there already, if it is a link, and runs it. Before 3.11, `-m` takes
#    modules of the working directory for its own, and no variable keeps it from that.


SEARCH_PATH = os.defpath
_SAFE_MINOR = 11


def find_module_problem(argv: Sequence[str], root: str) -> Violation | None:
    """Why `python -m MODULE …` may not run in the directory `root` as it is, or None. Never raises."""
    for word in argv[3:] if argv[2:3] == ["venv"] else ():
        for folder in ("bin", "Scripts"):
            if word[:1] != "-" and os.path.lexists(os.path.join(root, word, folder)):
                return Violation("run", f"Blocked command: '{word}' is there, and its python would run; name a new one")
    program = shutil.which(argv[0], path=SEARCH_PATH)
    version = re.search(r"python3\.(\d+)\Z", os.path.realpath(program)) if program else None
    if version is None or int(version[1]) >= _SAFE_MINOR:
        return None
    for name in (*sys.stdlib_module_names, "pip"):
        for part in (f"{name}.py", f"{name}.pyc", f"{name}/__init__.py"):
            if os.path.lexists(os.path.join(root, part)):
                return Violation("run", f"Blocked command: this Python would run '{part}' of the working directory")
    return None


# -- ruff and yamllint. Their settings may name others, lines of which they show where they are no settings, and ruff's
#    say where it keeps a cache.


MAX_WALKED_FOLDERS = 20_000
MAX_EXTENDED = 8
"""How many settings may extend each other in a row."""
_RUFF_FILES = ("ruff.toml", ".ruff.toml", "pyproject.toml")
_RUFF_PLACES = ("extend", "cache-dir")


def find_ruff_problem(argv: Sequence[str], root: str) -> Violation | None:
    """Why ruff may not run in the directory `root` as it is, or None. Never raises."""
    if "--isolated" in argv:
        return None
    top = os.path.realpath(root)
    try:
        for count, (here, _, files) in enumerate(os.walk(top)):
            if count > MAX_WALKED_FOLDERS:
                raise ValueError(f"more than {MAX_WALKED_FOLDERS} directories")
            for name in _RUFF_FILES:
                file = os.path.join(here, name)
                if name in files and (key := _find_ruff_place(file, here, top)):
                    shown = _show(os.path.relpath(file, top))
                    return Violation("place", f"Blocked command: '{key}' in {shown} leads out; add --isolated")
    except (OSError, ValueError) as problem:
        return Violation("place", f"Blocked command: settings of ruff cannot be read ({problem}); add --isolated")
    return None


def _find_ruff_place(file: str, folder: str, top: str, depth: int = 0) -> str | None:
    """The first setting of a file, or of one that it extends, that leads out of a directory."""
    import tomllib

    if depth > MAX_EXTENDED:
        return "extend"
    try:
        found: Any = tomllib.loads(_read(file, MAX_SETTINGS_BYTES))
    except tomllib.TOMLDecodeError:
        return None  # ruff says so, and shows a line of this file
    for name in ("tool", "ruff") if file.endswith("pyproject.toml") else ():
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return None
    table = cast("dict[str, Any]", found)
    for key in _RUFF_PLACES:
        value: Any = table.get(key, "")
        path = os.path.realpath(os.path.join(folder, value)) if isinstance(value, str) else top
        # ruff fills in variables and homes.
        if not is_below(path, top) or str(value).startswith("~") or "$" in str(value):
            return key
        is_extended = key == "extend" and os.path.isfile(path)
        if is_extended and (place := _find_ruff_place(path, os.path.dirname(path), top, depth + 1)):
            return place
    return None


_YAMLLINT_FILES = (".yamllint", ".yamllint.yaml", ".yamllint.yml")


def find_yamllint_problem(argv: Sequence[str], root: str) -> Violation | None:
    """Why yamllint may not run in the directory `root` as it is, or None. Never raises."""
    files = [*_YAMLLINT_FILES]
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word in ("-c", "--config-file"):
            files.append(following)
        elif word.startswith("--config-file="):
            files.append(word.partition("=")[2])
        elif word[:1] == "-" and word[1:2] != "-" and "c" in word:
            files.append(word.partition("c")[2] or following)
    try:
        for name in files:
            file = os.path.join(root, name)
            if os.path.isfile(file) and (why := find_lint_settings_problem(_read(file, MAX_SETTINGS_BYTES))):
                return Violation("place", f"Blocked command: settings of yamllint in {_show(name)}: {why}")
    except (OSError, ValueError) as problem:
        return Violation("place", f"Blocked command: settings of yamllint cannot be read ({problem})")
    return None
