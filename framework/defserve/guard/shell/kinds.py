"""The kinds of values and operands that the tables name: what a word of each kind may look like."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias
from urllib.parse import unquote

from defserve.guard import network
from defserve.guard.shell import languages
from defserve.guard.shell.places import PathRules
from defserve.guard.verdict import Violation

Check: TypeAlias = Callable[[str, PathRules], "Violation | bool | None"]
"""A violation, or True if the word is not of the kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    says: str
    check: Check
    effect: str = ""
    dashed: bool = False
    """Whether a value in a word of its own may start with a dash."""

    def find_problems(self, word: str, places: PathRules) -> Iterator[Violation | None]:
        """At most one: a violation, or None if the word is simply not of this kind."""
        found = self.check(word, places)
        if found:
            yield None if found is True else found


def _spelt(pattern: str, says: str, dashed: bool = False) -> Kind:
    # Compiled when it is first asked for: most servers never judge a command.
    return Kind(says, lambda word, places: not re.fullmatch(pattern, word, re.ASCII | re.DOTALL), dashed=dashed)


def _language(name: str, problem: Callable[[str], str | None]) -> Kind:
    def check(word: str, places: PathRules) -> Violation | None:
        found = problem(word)
        return Violation("script", f"Blocked {name}: {found}") if found else None

    return Kind(f"a {name}", check)


def _where(
    words: str, check: Callable[[PathRules, str], Violation | None], effect: str = "", local: bool = False
) -> Kind:
    def check_word(word: str, places: PathRules) -> Violation | None:
        if local and ":" in word:
            return Violation("remote", f"Blocked remote: '{word}'")
        return check(places, word)

    return Kind(words, check_word, effect)


def _is_wide(word: str) -> bool:
    """`%1000000000d`, or `1000000000/1 "x"` of hexdump, which repeats it so often."""
    return languages.has_large_width(word) or re.search(r"\d{4}/", word) is not None


def _here(places: PathRules, word: str) -> Violation | None:
    """A repository elsewhere brings its own settings, and some of them name programs."""
    if word.rstrip("/") in (".", places.root.rstrip("/") or "."):
        return None
    return Violation("place", f"Blocked directory: '{word}' may be a repository with settings of its own")


def _object(places: PathRules, word: str) -> Violation | None:
    """The programs of binutils take further options from `@file`, one of which loads a plug-in."""
    return Violation("flag", f"Blocked operand: '{word}'") if word[:1] in ("@", "+", "-") else places.check_read(word)


def _script(places: PathRules, word: str) -> Violation | None:
    """A file, not a sub-command that takes code (`deno eval`), nor standard input."""
    named = "." in word.strip(".-") or "/" in word
    return _object(places, word) if named else Violation("interpreter", f"Blocked code for an interpreter: '{word}'")


def _check_copy(places: PathRules, word: str) -> Violation | None:
    """An empty or endless device copied over a file destroys the file, or the disk."""
    return (
        Violation("place", f"Blocked copy: '{word}' is a device") if "/dev/" in f"{word}/" else places.check_read(word)
    )


def _check_named_copy(places: PathRules, word: str) -> Violation | None:
    """A copy in a directory has the name of its original."""
    return _check_copy(places, word) or places.check_copy_name(word)


# What packers take away from a name when they unpack.
_PACKED = re.compile(r"(?:\.(?:t?gz|t?xz|t?bz2?|tbz2|t?lzma|tlz|lz4?|t?zst|taz|t?z|br)|[-_]g?z)\Z", re.IGNORECASE)


def _check_pack(places: PathRules, word: str) -> Violation | None:
    """A file that is packed or unpacked in place: the name that it gets is written, too."""
    return places.check_write(word) or places.check_write(_PACKED.sub("", word))


def _member(word: str, places: PathRules) -> Violation | None:
    """What is taken out of an archive, under its own name."""
    return _check_undashed(word, places) or places.check_trusted_name(word)


def _check_download(word: str, places: PathRules) -> Violation | None:
    """A file gets the last name of its URL."""
    return _url(word, places) or places.check_trusted_name(unquote(re.split(r"[?#]", word)[0]).rpartition("/")[2])


def _check_clone(word: str, places: PathRules) -> Violation | None:
    """A directory gets the last name of its remote."""
    name = re.split(r"[/:]", unquote(word).rstrip("/"))[-1]
    return _remote(word, places) or places.check_trusted_name(name.removesuffix(".git") or name)


# By its name, cloc takes a word for an archive, which it unpacks by a shell, or for a revision, which it asks git for.
_UNPACKED = re.compile(
    r"'|\.(?:t?gz|t?xz|tbz2?|bz2|z|tar|zip|whl|[jwe]ar|rpm|deb)\Z|\A(?:[a-f\d]{5,40}|master|head)(?:~\d{1,9})?\Z",
    re.IGNORECASE,
)


def _check_shell_word(places: PathRules, word: str) -> Violation | None:
    """A file whose name the program puts into a command for a shell, as it is."""
    if not re.fullmatch(r"[\w./+,@=-]+", word):
        return Violation("run", f"Blocked file: a shell would read {word!r}; rename it, with letters and digits alone")
    return places.check_read(word)


def _counted(places: PathRules, word: str) -> Violation | None:
    if _UNPACKED.search(word):
        return Violation("run", f"Blocked operand: cloc would unpack '{word}', or ask git for it; write ./NAME/")
    return places.check_walk(word)


def _rewritten(places: PathRules, word: str) -> Violation | None:
    """A file that sed changes in place. Where `-i` takes the next word, the file is read as a script."""
    if re.search(r"[\s;{}]|(?:^|/)[gpiImM\d,$!~+]*[wWrR]/", word):
        return Violation("script", f"Blocked file of sed -i: some seds read '{word}' as a script; write -i.bak")
    return places.check_write(word)


def _is_everything(word: str, places: PathRules) -> bool:
    """Whether a word names all that is here: the working directory, however it is spelt, or a pattern for any name."""
    # Two slashes at the beginning are kept by `normpath`.
    full = posixpath.normpath(f"/{word.lstrip('/')}") if word[:1] == "/" else ""
    return set(word) <= {".", "/", "*", "?"} or full == (places.root.rstrip("/") or "/")


def _check_delete(places: PathRules, word: str) -> Violation | None:
    if _is_everything(word, places):
        return Violation("delete", f"Blocked delete: '{word}' is everything here")
    return places.check_write(word)


def _check_tracked_delete(places: PathRules, word: str) -> Violation | None:
    """What git deletes: a path, or a pattern. What begins with a colon (`:/`, `:!x`) may be everything."""
    plain = re.sub(r"\[[^]]*+\]", "*", word.removeprefix("./"))
    if word[:1] == ":" or _is_everything(plain, places):
        return Violation("delete", f"Blocked delete: '{word}' may be everything here")
    return places.check_write(word)


def _whole_tree(word: str, places: PathRules) -> Violation | None:
    """Throwing away one file's changes is an edit; throwing away all of them is a deletion."""
    if _is_everything(word, places) or word[:1] == ":" or "*" in word:
        return Violation("delete", f"Blocked path: '{word}' throws away every change")
    return _check_undashed(word, places) or places.check_trusted_name(word)


def _check_undashed(word: str, places: PathRules) -> Violation | None:
    """A revision or a path of the repository: git compares files that lie outside of it, too."""
    if word.startswith("-") and len(word) > 1:
        return Violation("flag", f"Blocked operand: '{word}' looks like a flag")
    return places.check_read(word)


def _refspec(word: str, places: PathRules) -> Violation | None:
    if word[:1] in ("+", ":"):
        return Violation("delete", f"Blocked refspec: '{word}' overwrites or deletes")
    return _check_undashed(word, places)


def _mode(word: str, places: PathRules) -> Violation | bool:
    """No set-user-id and no set-group-id bit: they let others run a file with its owner's rights."""
    if re.fullmatch(r"0*[2-7][0-7]{3}", word) or re.search(r"(?:^|[,=])[ugoa]*[+=][rwxXt]*s", word):
        return Violation("mode", f"Blocked mode: '{word}' lends its owner's rights")
    return re.fullmatch(r"0*[01]?[0-7]{1,3}|[ugoa]*[-+=][rwxXtugo]*(?:,[ugoa]*[-+=][rwxXtugo]*)*", word) is None


_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*"
_REMOTE = re.compile(
    rf"\w[\w.-]*(?:/[\w.-]+)*|(?P<scheme>git|ssh)://(?:[\w.-]+@)?(?P<host>{_HOST})(?::(?P<port>\d+))?/[^:]*"
    rf"|[\w.]+@(?P<named>{_HOST}):[\w.~/][\w./~-]*",
    re.ASCII,
)
_GIT_PORTS: Mapping[str, str] = {"git": "9418", "ssh": "22"}


def _remote(word: str, places: PathRules) -> Violation | None:
    """A remote may name a helper (`ext::sh -c id`), hide a flag for ssh (`ssh://-oProxyCommand=…`), or be a service."""
    if word.startswith(("http://", "https://")):
        return _url(word, places)
    found = _REMOTE.fullmatch(word)
    if not found or ".." in word.split("/"):
        return Violation("remote", f"Blocked remote: '{word}'")
    usual = _GIT_PORTS.get(found["scheme"] or "", "")
    if found["port"] and found["port"] != usual:
        return Violation("remote", f"Blocked remote: '{word}' has another port than {usual}")
    # Where it leads is judged as if it were a page of that host.
    host = found["host"] or found["named"]
    return _url(f"https://{host}/", places) if host else None


def _url(word: str, places: PathRules) -> Violation | None:
    # curl expands brackets and braces to further URLs.
    if re.search(r"[][{}]", word):
        return Violation("remote", f"Blocked URL: '{word}' has brackets")
    verdict = network.judge(word)
    return None if verdict else Violation("remote", f"Blocked URL: {verdict.violations[0].message}")


_PROCESS_COLUMNS = (
    "%cpu %mem args blocked bsdstart bsdtime c cmd comm command cputime egid egroup elapsed etime etimes euid euser"
    " fgid fname group gid ignored lstart lwp maj_flt majflt min_flt minflt nice ni nlwp numa pcpu pgid pgrp pid pmem"
    " policy ppid pri priority psr rgid rgroup rss rssize rsz ruid ruser s sess session sid size sgi_p spid stat state"
    " start start_time stime suid suser sz tgid thcount tid time tname tpgid trs tt tty ucmd ucomm uid uname user vsize"
    " vsz wchan"
).split()
_COLUMN = rf"[-+]?(?:{'|'.join(map(re.escape, _PROCESS_COLUMNS))})(?::\d+)?(?:=[\w %]*+)?"
_SOCKET = (
    r"(?:state|[sd]port|src|dst|and|or|not|[<>=!]=?|[()]|[\d.]*(?::\d+)?(?:/\d+)?|all|established|connected|listening|listen"
    r"|syn-sent|syn-recv|fin-wait-[12]|time-wait|closed|close-wait|last-ack)"
)
_LOCAL = r"(?!.*(?:^|/)\.\.(?:/|$))\.(?:/[\w.-]+)*/?(?:\[[\w,.-]+\])?"
# A file of the project: its code runs when it is installed, or looked at.
_ARCHIVE = (
    r"(?![^\[]*\.(?i:zip|whl|egg|t?gz|tar|tar\.\w+|t?bz2?|tbz2|t?xz|tlz|t?lz|lzma|t?zst|gem|deb|rpm|apk|crate|rb|json)"
    r"(?:\[.*)?\Z)"
)
_PIP = rf"{_ARCHIVE}[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:[<>=!~][\w.*,<>=!~ +-]*)?"
_NPM = rf"{_ARCHIVE}(?:@[\w.-]+/)?[A-Za-z0-9][\w.-]*(?:@(?!\.)[\w.^~<>=*+-]*)?"
# With a dash at its end, apt removes it.
_NAMED = rf"(?!.*-\Z){_ARCHIVE}(?!.*(?:^|/)\.\.(?:/|$))(?:[@\w][\w.+-]*/)*[A-Za-z0-9][\w.+-]*(?:[=@:][\w.^~<>=*+-]*)?"

KINDS: Mapping[str, Kind] = {
    "text": Kind("a text", lambda word, places: None),
    "pattern": Kind("a pattern", lambda word, places: None, dashed=True),
    "glob": Kind("a glob", lambda word, places: None),
    # Where ls knows no such option, its value is a directory.
    "ignored": _spelt(r"[^/]*", "a glob without '/'"),
    "when": _spelt(r"(?!.*TZ=\"?[:/.]).*", "a time"),
    "charset": _spelt(r"[\w.:+-]+(?://(?:TRANSLIT|IGNORE)?)*", "a character set"),
    "script": _where("a script", _script),
    "format": Kind("a format with + and no large widths", lambda word, places: word[:1] != "+" or _is_wide(word)),
    # Numbers that say how much is printed, or how long it takes, are bounded.
    "whole": _spelt(r"[-+]?\d{1,7}", "a number of at most 7 digits", dashed=True),
    "step": _spelt(r"[-+]?0*[1-9]\d{0,6}", "a step of at most 7 digits", dashed=True),
    "small": _spelt(
        r"[-+]?(?:\d{1,4}(?:\.\d{1,3})?|\.\d{1,3})", "a number below 10000, up to 3 digits after the point", dashed=True
    ),
    "small-step": _spelt(
        r"[-+]?(?=[0.]*+[1-9])(?:\d{1,4}(?:\.\d{1,3})?|\.\d{1,3})",
        "a step, up to 3 digits after the point",
        dashed=True,
    ),
    "count": _spelt(r"\d{1,7}", "a number of at most 7 digits"),
    "range": _spelt(r"\d{1,7}-\d{1,7}", "a range such as 1-100, of at most 7 digits"),
    "width": _spelt(r"[-+]?\d{1,4}", "a number of at most 4 digits", dashed=True),
    "widths": _spelt(r"[/+]?\d{1,4}(?:[ ,][/+]?\d{1,4})*", "numbers of at most 4 digits"),
    "columns-of": _spelt(r"[^\w\d]?\d{0,3}", "a mark and a width"),
    "few": _spelt(r"\d{1,2}", "a number of at most 2 digits"),
    "memory": _spelt(r"\d{1,4}[bKMkm]?|[1-4]G|[1-9]\d?%", "a size such as 100M"),
    "pieces": _spelt(r"(?:[lr]/)?(?:\d{1,3}/)?\d{1,3}", "a number of pieces below 1000"),
    "pause": _spelt(r"(?:\d{1,3}(?:\.\d*)?|\.\d+)s?|[1-9]m|10m", "a pause of at most ten minutes"),
    "factored": _spelt(r"\d{1,18}", "a number of at most 18 digits"),
    # A width of a thousand million is as much output.
    "printed": Kind("a format without large widths", lambda word, places: _is_wide(word)),
    "number": _spelt(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[A-Za-z]{0,3}%?", "a number", dashed=True),
    "numbers": _spelt(r"[-+\d.,:~/nNK]+", "a list of numbers", dashed=True),
    "key": _spelt(r"[\d.,bdfgiMhnRrVz]+", "a sort key"),
    "char": _spelt(r"(?!/.).{0,8}", "a separator"),
    "name": _spelt(r"[\w.,+:@%*=-]*", "a name"),
    "names": _spelt(r"[\w.,+:@%*= ^-]*", "a list of names"),
    "suffix": _spelt(r"(?!.*\.pth\Z)(?:\.[\w.-]+|~)", "a suffix such as .bak"),
    "assignment": _spelt(r"[A-Za-z_]\w*=.*", "name=value"),
    "signal": _spelt(r"(?:SIG)?[A-Z][A-Z0-9+]{1,8}|\d{1,2}", "a signal"),
    "pid": _spelt(r"[1-9]\d{0,6}", "one process"),
    "address": _spelt(r"[46]?(?:tcp|udp|TCP|UDP)?(?:@[\d.]+)?(?::[\w,-]+)?", "an address such as :8080"),
    # A name would be looked up, and so told to somebody.
    "socket": _spelt(rf"{_SOCKET}(?: {_SOCKET})*", "a filter without names of hosts"),
    "columns": _spelt(rf"{_COLUMN}(?:[, ]{_COLUMN})*", "a list of columns", dashed=True),
    "letters": _spelt(r"[aAcfghjlLmnrsStTuvwxXz]*o?|[\d,]+", "a set of letters without e"),
    "task": _spelt(r"[\w.:/@%+-]*", "a task"),
    "setting": _spelt(r"[\w-]+\.[\w.-]+", "a setting"),
    "harmless-setting": _spelt(
        r"(?i:user\.(?:name|email)|core\.(?:autocrlf|safecrlf|eol|ignorecase|filemode|longpaths|quotepath|abbrev)"
        r"|pull\.(?:rebase|ff)|push\.(?:default|autosetupremote)|init\.defaultbranch|fetch\.prune|color\.ui"
        r"|merge\.(?:ff|conflictstyle)|rebase\.(?:autostash|autosquash)|diff\.(?:algorithm|renames|colormoved)"
        r"|rerere\.enabled|advice\.\w+)",
        "a setting that names no program, such as user.name",
    ),
    "shown": _spelt(
        r"(?!.*%[-+ ]?G)(?!.*signature)(?!.*[(:,=]\s*+\d{5})(?!.*%[^A-Za-z%(]*+(?<=\d{4})).*",
        "a format that checks no signature and has no large width",
    ),
    "package-fields": _spelt(r"(?!.*;-?\d{4}).*", "a format without large widths"),
    "lint-settings": _language(
        "settings of yamllint",
        # A word alone is what it extends.
        lambda word: languages.find_lint_settings_problem(word if ":" in word else f"extends: {word}"),
    ),
    "written-out": _spelt(r"(?!@)(?!.*%output).*", "a format that names no file"),
    "data": _spelt(r"(?!@).*", "data that is no @file"),
    "header": _spelt(r"[\w-]+[:;].*", "a header such as 'Accept: text/html'"),
    "owner": _spelt(r"[\w.-]*(?::[\w.-]*)?", "an owner"),
    # Of a path, the code is the project's own.
    "pip-package": _spelt(_PIP, "a package by its name: no path and no archive"),
    "pip-local": _spelt(rf"{_LOCAL}|{_PIP}", "a package"),
    "npm-package": _spelt(_NPM, "a package by its name: no path and no archive"),
    "npm-local": _spelt(rf"{_LOCAL}|{_NPM}", "a package"),
    "package": _spelt(_NAMED, "a package by its name: no path and no archive"),
    "package-local": _spelt(rf"{_LOCAL}|{_NAMED}", "a package"),
    "sed": _language("sed script", languages.find_sed_problem),
    "awk": _language("awk program", languages.find_awk_problem),
    "jq": _language("jq filter", languages.find_jq_problem),
    "yq": _language("yq expression", languages.find_yq_problem),
    "sql": _language("SQL", languages.find_sql_problem),
    "sql-asking": _language("SQL", languages.find_query_problem),
    # Not `@list`, which names further files.
    "seven-name": _spelt(r"(?!-)[^@]*", "a name without '@'"),
    "seven-set": _spelt(r"=?[\w=+-]{0,12}", "a setting such as =9"),
    "seven-archive": Kind("an archive", lambda word, places: _object(places, word) if ":" not in word else True),
    "seven-source": Kind("a file to pack", lambda word, places: _object(places, word) or _check_copy(places, word)),
    "seven-member": Kind(
        "a file of the archive", lambda word, places: _object(places, word) or places.check_trusted_name(word)
    ),
    "plain-archive": Kind(
        "an archive to write, .zip or .tar",
        lambda word, places: places.check_write(word) or not re.fullmatch(r"[^:]+\.(?:zip|tar)", word),
        "write",
    ),
    "split-name": _spelt(r"(?!.*\.pth\Z)(?!.*\d{4})[\w.%-]*", "a format such as %02d.txt"),
    "variable": _spelt(
        r"PATH|HOME|LANG|LANGUAGE|LC_[A-Z]+|PWD|OLDPWD|SHELL|USER|LOGNAME|TERM|TZ|EDITOR|VISUAL|PAGER|HOSTNAME|DISPLAY"
        r"|VIRTUAL_ENV|CONDA_PREFIX|PYTHONPATH|NODE_ENV|CI|DEBUG|JAVA_HOME|GOPATH|GOROOT|CARGO_HOME|RUSTUP_HOME|NVM_DIR"
        r"|XDG_[A-Z_]+|COLUMNS|LINES|COLORTERM|SHLVL|TMPDIR|MANPATH|HOSTTYPE|OSTYPE",
        "a variable that holds no secret",
    ),
    "mode": Kind("a mode", _mode),
    "undashed": Kind("a file or a revision", _check_undashed),
    # With a prefix (`amend:`), it starts an editor.
    "fixed": Kind("a commit", lambda word, places: _check_undashed(word, places) or ":" in word),
    "file-of-tree": Kind("a file", _whole_tree),
    "refspec": Kind("a refspec", _refspec),
    "remote": Kind("a remote", _remote, "network-use"),
    "remote-name": Kind("a remote", _remote),
    "cloned": Kind("a remote", _check_clone, "network-use"),
    "url": Kind("a URL", _url, "network-use"),
    "downloaded": Kind("a URL", _check_download, "network-use"),
    "read": _where("a file to read", PathRules.check_read),
    "inside": _where("a directory here", PathRules.inside),
    "here": _where("the working directory", _here),
    "object": _where("a file to read", _object),
    "local": _where("a file to read", PathRules.check_read, local=True),
    "source": _where("a file to copy", _check_copy),
    "copied": _where("a file to copy", _check_named_copy),
    "local-copied": _where("a file to copy", _check_named_copy, local=True),
    "listed": _where("a file to look at", PathRules.check_list),
    "shell-word": _where("a file with a plain name", _check_shell_word),
    "counted": _where("a directory or a file to count in", _counted),
    "walked": _where("a directory to walk", PathRules.check_walk),
    "write": _where("a file to write", PathRules.check_write, "write"),
    "touched": _where("a file or directory to make", PathRules.check_touch, "write"),
    "packed": _where("a file to pack or unpack", _check_pack, "write"),
    "rewritten": _where("a file to change", _rewritten, "write"),
    "prefix": _where("the beginning of the names to write", PathRules.check_prefix, "write"),
    "member": Kind("a file of the archive", _member),
    "local-write": _where("a file to write", PathRules.check_write, "write", local=True),
    "delete": _where("a file to delete", _check_delete, "write"),
    "tracked-delete": _where("a file to delete", _check_tracked_delete, "write"),
    "nothing": Kind("allowed", lambda word, places: True),
}


@cache
def find_word_kind(name: str) -> Kind:
    """The kind of this name. `a|b` and `=a` are choices."""
    if "|" not in name and name[:1] != "=":
        return KINDS[name]
    choices = name.lstrip("=").split("|")
    says = f"one of {', '.join(choices)}" if len(choices) > 1 else f"'{choices[0]}'"
    return Kind(says, lambda word, places: word not in choices)
