"""Where a command may read and write: below its working directory, and nowhere that other programs trust.

Outside, a short list of public facts about the machine may be read, and a few directories may be listed. Paths are
judged by their text: a symbolic link is not followed, so `..` is refused wherever it stands. Which files an account may
touch is up to the operating system. A tool that takes paths guards them with `defserve.guard.paths`. Below: links that
lead out, and the environment that a command runs in.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from defserve.guard.verdict import Violation

# Files that a shell, git, ssh, cron, an editor or an interpreter runs or believes without being asked.
_TRUSTED = frozenset(
    """
    .git git~1 .ssh .gnupg .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zprofile
    .zshenv .zlogin .cshrc .inputrc .envrc .gitconfig .gitmodules .gitattributes .netrc .npmrc .yarnrc .yarnrc.yml
    .pypirc .vimrc .exrc .emacs .mailcap .pam_environment .curlrc .wgetrc .ripgreprc .cargo .husky .githooks
    .pnpmfile.cjs .yarn .pnp.cjs .pnp.js .pnp.loader.mjs .direnv .mise.toml mise.toml .pdbrc .gdbinit .lldbinit
    .screenrc .tmux.conf .xinitrc .xprofile .xsession .kshrc .zlogout .tcshrc .login .hg .hgrc .mvn .git-credentials
    rust-toolchain rust-toolchain.toml .tool-versions .condarc .gemrc .irbrc .pryrc .sqliterc .psqlrc .rvmrc .pip
    pip.conf .bundle .ackrc .ctags.d .hushlogin .login_conf .fishrc config.fish .nanorc .emacs.d .vim .nvim
    .gvimrc .ideavimrc .rprofile .renviron authorized_keys crontab sitecustomize.py usercustomize.py
    launchagents launchdaemons autostart .ghci .octaverc .bazelrc bunfig.toml .python-version .dir-locals.el
    .nvim.lua .mcp.json
    """.split()
)

# Files whose text is commands: a task runner, a continuous integration, an editor or a test runner takes them by their
# name. Sources and manifests (package.json, pyproject.toml, Dockerfile) are edited every day, and are not among them.
_COMMANDS = frozenset(
    """
    makefile gnumakefile bsdmakefile makefile.am makefile.in justfile .justfile taskfile taskfile.yml taskfile.yaml
    taskfile.dist.yml rakefile procfile vagrantfile jenkinsfile fastfile noxfile.py conftest.py fabfile.py
    gruntfile.js gulpfile.js gradlew gradlew.bat mvnw mvnw.cmd .gitlab-ci.yml .travis.yml .drone.yml .woodpecker.yml
    azure-pipelines.yml bitbucket-pipelines.yml cloudbuild.yaml buildspec.yml appveyor.yml .appveyor.yml
    .pre-commit-config.yaml .lefthook.yml lefthook.yml .overcommit.yml .lefthook.toml lefthook.toml .cirrus.yml
    bitrise.yml earthfile tiltfile snakefile sconstruct sconscript wscript dodo.py magefile.go guardfile capfile
    dangerfile thorfile
    """.split()
)
# The settings of editors and of other agents name programs, too: language servers, tasks, hooks, servers of MCP.
_COMMAND_FOLDERS = re.compile(
    r"(?:^|/)(?:\.(?:github/(?:workflows|actions)|circleci|buildkite|semaphore|gitea/workflows|forgejo/workflows|woodpecker"
    r"|vscode|idea|run|zed|fleet|devcontainer|claude|cursor|gemini|codex|kiro|roo|windsurf|opencode"
    r"|config/(?:systemd|environment\.d|autostart|git|fish|zsh|nushell|nvim|vim|emacs|helix|tmux|zed|opencode|mise|direnv)"
    r"|local/(?:bin|share/(?:systemd|applications)))/."
    r"|\.?(?:venv|env)[^/]*/(?:bin|scripts|lib)/.|node_modules/\.bin/.)"
)

# Where accounts keep their keys and tokens, in any directory.
_CREDENTIALS = frozenset(".ssh .gnupg .aws .azure .kube .netrc .pgpass .git-credentials .pypirc".split())
_SECRET = re.compile(
    r"/etc/(?:g?shadow-?|sudoers(?:\.d)?|ssl/private|ssh)(?:/.*)?|/proc/(?!cpuinfo)[^/\n]*+/.*|/dev/.+"
)

_PUBLIC = re.compile(
    r"/etc/(?:os-release|lsb-release|debian_version|redhat-release|alpine-release|issue|hosts|hostname|timezone"
    r"|resolv\.conf|services|protocols|shells|nsswitch\.conf)"
    r"|/proc/(?:cpuinfo|meminfo|version|loadavg|uptime|stat|filesystems|swaps|partitions|diskstats|vmstat)"
    r"|/(?:usr|usr/local)/(?:share|include)(?:/[^/]+)+|/(?:usr/)?bin/[^/]+"
    r"|/var/log/(?:syslog|messages|kern\.log|dmesg|dpkg\.log|apt/[^/]+|(?:nginx|apache2|httpd)/[^/]+)(?:\.\d+)?(?:\.gz)?"
    r"|/dev/(?:null|stdin)"
)

# What holds nothing but public names, however deep one looks.
_WALKED = re.compile(rf"/(?:bin|lib|lib64|sbin|usr)(?:/.+)?|/var/log(?:/.+)?|{_PUBLIC.pattern}")
_LISTED = re.compile(
    r"/|/(?:bin|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|sbin|srv|sys|tmp|usr|var)|/(?:usr|opt)/.+"
    rf"|/var/log(?:/.+)?|{_PUBLIC.pattern}"
)


@dataclass(frozen=True, slots=True)
class PathRules:
    """What may be touched. Without a `root`, every absolute path is outside."""

    root: str = ""
    only_root: bool = False
    """Whether nothing outside may be named: no public facts and no folders that everyone may list, either."""

    def check_read(self, path: str) -> Violation | None:
        """Why the content of `path` may not be read, or None."""
        return self._outside(path, _PUBLIC)

    def check_list(self, path: str) -> Violation | None:
        """Why names and sizes in `path` may not be shown, or None. What lies deeper is not shown."""
        return self._outside(path, _LISTED)

    def check_walk(self, path: str) -> Violation | None:
        """Why names and sizes at every depth below `path` may not be shown, or None."""
        if (found := self.check_list(path)) or not (found := self._outside(path, _WALKED)):
            return found
        return Violation(
            "place", f"Blocked walk: '{path}' holds places that may not be listed; list it, one level deep"
        )

    def inside(self, path: str) -> Violation | None:
        """Why `path` is not below the working directory, or None."""
        return self._outside(path, None)

    def check_write(self, path: str) -> Violation | None:
        """Why nothing may be written to `path`, or None."""
        return self.check_name(path) or self._outside(path, None)

    def check_name(self, path: str) -> Violation | None:
        """Why no text may be written to a file of this name, wherever it lies, or None."""
        return self.check_trusted_name(path) or self._commands(path)

    def check_touch(self, path: str) -> Violation | None:
        """Why nothing may be made at `path`, and no time or mode of it changed, or None. Its text stays as it is."""
        return self.check_trusted_name(path) or self._outside(path, None)

    def check_copy_name(self, path: str) -> Violation | None:
        """Why no copy of `path` may be made that keeps its name, or None. What lies at the top is copied downwards."""
        return self.check_trusted_name(path) or (self._commands(path) if "/" in path.rstrip("/") else None)

    def _commands(self, path: str) -> Violation | None:
        lower = posixpath.normpath(re.sub(r"\\", "/", path.lower()))
        name = posixpath.basename(lower).partition(":")[0].rstrip(". ")
        if name in _COMMANDS or name.endswith((".mk", ".service", ".desktop")) or _COMMAND_FOLDERS.search(lower):
            return Violation("place", f"Blocked write: '{path}' holds commands that other programs run")
        return None

    def check_trusted_name(self, path: str) -> Violation | None:
        """Why no file of this name may be written anywhere, or None."""
        # Windows drops dots and spaces at the end, and what follows a colon; `git~1` is its short name of `.git`.
        names = [part.partition(":")[0].rstrip(". ") for part in re.split(r"[/\\]", path.lower())]
        if any(name in _TRUSTED or name.endswith(".pth") for name in names):
            return Violation("place", f"Blocked write: '{path}' is trusted by other programs")
        return None

    def check_prefix(self, path: str) -> Violation | None:
        """Why no files may be written whose names begin with `path`, or None."""
        name = re.split(r"[/\\]", path.lower())[-1]
        if name.startswith(".") or any(len(name) > 2 and one.startswith(name) for one in _TRUSTED):
            return Violation("place", f"Blocked write: names that begin with '{path}' may be trusted by other programs")
        return self.check_write(path)

    def _outside(self, path: str, but: re.Pattern[str] | None) -> Violation | None:
        # In lower case: some file systems ignore case. A backslash and a drive (`C:`) mean something to some.
        climbs = ".." in (parts := re.split(r"[/\\]", path.lower()))
        clean = posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else ""
        if not _CREDENTIALS.isdisjoint(parts):
            return Violation("secret", f"Blocked path: '{path}' holds keys")
        below = bool(self.root) and (clean == self.root or clean.startswith(f"{self.root.rstrip('/')}/"))
        drive = re.match(r"[A-Za-z]:[/\\]|\\", path)
        but = None if self.only_root else but
        if not climbs and not drive and (not clean or below or (but is not None and but.fullmatch(clean))):
            return None
        if _SECRET.fullmatch(clean):
            return Violation("secret", f"Blocked path: '{path}' is not for reading")
        where = "climbs with '..'" if climbs else "is outside the working directory"
        return Violation("place", f"Blocked path: '{path}' {where}; name files relative to the working directory")


# -- Symbolic links that lead out of the working directory. `judge` looks at text; this looks at the disk.
#
# A word that names a link, or a file behind one, is refused if what it leads to may not be read. Links that a program
# meets later, while it walks, are not seen here: options that follow those are refused by the tables. For the few
# programs that follow them by themselves, the links are looked for.


def find_escaping_link(argv: Sequence[str], root: str, only_root: bool = False) -> Violation | None:
    """The first word of a judged command that leads out of `root` through a link, as a violation. Never raises.

    `argv` begins with the program itself, not with one that limits it (`timeout 5`).
    """
    try:
        top = os.path.realpath(root)
        places, walk = PathRules(top, only_root), _make_walk() if _follows_links(argv) else None
        for word in argv[1:]:
            for path in _paths(word, root):
                full = os.path.join(root, path)
                for each in (full, *(walk.find_links(full) if walk is not None else ())):
                    real = os.path.realpath(each)
                    if places.check_read(real) and not is_below(real, top):
                        shown = word if each is full else os.path.relpath(each, root)
                        return Violation(
                            "place", f"Blocked path: '{shown}' leads out of the working directory by a link"
                        )
        for path in _list_unnamed_paths(argv, top):
            if not is_below(os.path.realpath(path), top):
                shown = os.path.relpath(path, top)
                return Violation("place", f"Blocked path: '{shown}' leads out of the working directory by a link")
    except (OSError, ValueError) as problem:
        return Violation("place", f"Blocked command: its paths cannot be looked at ({problem})")
    return None


# Programs that follow links on a walk by themselves: the options that make them walk, and those that keep them from it.
_FOLLOWING: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "zip": (frozenset({"-r"}), frozenset({"-y"})),
    **dict.fromkeys(("diff", "colordiff"), (frozenset({"-r", "--recursive"}), frozenset({"--no-dereference"}))),
}
MAX_WALKED = 10_000


def _follows_links(argv: Sequence[str]) -> bool:
    """Whether a command walks through directories, and through the links in them."""
    if argv[0] not in _FOLLOWING:
        return False
    walks, stays = _FOLLOWING[argv[0]]
    clusters = (word for word in argv if word[:1] == "-" and word[:2] != "--")
    options = {*argv, *(f"-{letter}" for word in clusters for letter in word[1:])}
    return not options.isdisjoint(walks) and options.isdisjoint(stays)


def _make_walk() -> _LinkWalk:
    return _LinkWalk(MAX_WALKED, "use zip -ry or diff -r --no-dereference")


class _LinkWalk:
    """Looks for the links that one command would meet. A caller may name a directory many times: it is walked once."""

    def __init__(self, most: int, fix: str) -> None:
        self._most, self._fix = most, fix
        self._left, self._walked = most, set[str]()

    def find_links(self, path: str) -> Iterator[str]:
        """The links in a directory, at any depth. Raises ValueError if there are too many entries to look at."""
        folders = [path] if os.path.isdir(path) else []
        while folders:
            folder = os.path.normpath(folders.pop())
            if folder in self._walked:
                continue
            self._walked.add(folder)
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise ValueError(f"more than {self._most} files; {self._fix}")
                    if entry.is_symlink():
                        yield entry.path
                    elif entry.is_dir():
                        folders.append(entry.path)


# What is written or read, though no word names it: a copy in a directory, a piece of a file, a member of an archive,
# the sources below a directory. Where a link has such a name, the program goes where it leads. Those that unpack do so
# only if it leads to a directory.
_UNPACKS: Mapping[str, re.Pattern[str]] = {
    "tar": re.compile(r"-?[A-Za-wyz]*+x[A-Za-z]*+|--(?:extract|get)"),
    "unzip": re.compile(r"(?!.* -[jnoquCXaL]*[lvtzpcZ]).*"),
    "7z": re.compile(r"[xe]"),
}
_PIECES: Mapping[str, str] = {"split": "x", "csplit": "xx"}
_CHECKERS = frozenset("ruff black isort gofmt shfmt yamllint".split())
"""They look at the sources in a directory, show lines of them, and some rewrite them."""
_COMPARERS = frozenset(("diff", "colordiff", "sdiff"))
"""They compare the files of two directories, or a file with that of the same name in a directory."""
_PYTHON = re.compile(r"python[\d.]*")
MAX_LOOKED_AT = 100_000
"""Entries in which links are looked for before something is unpacked, checked or copied there."""


def _list_unnamed_paths(argv: Sequence[str], root: str) -> Iterator[str]:
    """The paths that a command may write to, or show, without naming them. `root` has no links in it."""
    program, words = argv[0], argv[1:]
    program = "7z" if program in ("7za", "7zr", "7zz") else program
    walk = _LinkWalk(MAX_LOOKED_AT, "name a smaller directory")
    # Every word may be a directory to write to: which of them is one depends on options, and a mistake does no harm.
    named = [os.path.join(root, each) for word in words for each in _paths(word, root)]
    folders = [path for path in dict.fromkeys(named) if os.path.isdir(path)]
    below = folders or [root]
    if program == "cp":
        sources = dict.fromkeys(words)
        copies = (path for word in sources for folder in folders for path in _list_copies(word, folder, root))
        for count, path in enumerate(copies):
            if count >= MAX_LOOKED_AT:
                raise ValueError("too many files to copy; use rsync -a")
            yield path
    elif program in _COMPARERS and "--no-dereference" not in words:
        for folder in folders:
            with os.scandir(folder) as entries:
                yield from (entry.path for entry in entries if entry.is_symlink())
    elif program in _PIECES:
        for path in (*named, os.path.join(root, _PIECES[program])):
            folder, start = os.path.split(path)
            with os.scandir(folder if os.path.isdir(folder) else root) as entries:
                yield from (entry.path for entry in entries if entry.is_symlink() and entry.name.startswith(start))
    elif program in _CHECKERS or (program == "7z" and words[:1] in (["a"], ["u"])):
        links = (link for folder in below for link in walk.find_links(folder))
        # A virtual environment has a link to its interpreter.
        yield from (link for link in links if not _PYTHON.fullmatch(os.path.basename(os.path.realpath(link))))
    elif (unpacks := _UNPACKS.get(program)) is not None:
        told = " ".join(("", *words)) if program == "unzip" else words[0] if words else ""
        if unpacks.fullmatch(told) or (program == "tar" and any(map(unpacks.fullmatch, words))):
            yield from (link for folder in below for link in walk.find_links(folder) if os.path.isdir(link))


def _list_copies(word: str, folder: str, root: str) -> Iterator[str]:
    """Where a file, or those in a directory, may be copied to in a folder."""
    source = os.path.join(root, word)
    starts = [os.path.normpath(os.path.join(folder, part)) for part in (os.path.basename(word.rstrip("/")), word, ".")]
    if not os.path.isdir(source) or source == folder:
        yield from starts[:2] if os.path.isfile(source) else ()
        return
    left = MAX_WALKED
    for here, folders, files in os.walk(source):
        inside = os.path.relpath(here, source)
        for name in (*folders, *files):
            if (left := left - 1) < 0:
                raise ValueError(f"more than {MAX_WALKED} files to copy; use rsync -a")
            yield from (os.path.normpath(os.path.join(start, inside, name)) for start in starts)


def _paths(word: str, root: str) -> Iterator[str]:
    """What a word may name: itself, and the value in `--file=x`, `if=x` or `-fx`. Other texts were judged before."""
    values = [word, word.partition("=")[2], word[2:] if word[:1] == "-" and word[:2] != "--" else ""]
    for value in filter(None, values):
        inside = not os.path.isabs(value) or is_below(os.path.normpath(value), os.path.normpath(root))
        if inside and ".." not in value.split("/"):
            yield value


def is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


# -- The environment to run a judged command in: nothing of the server's own, and no program that settings may name.
#
# A repository brings settings along (`.git/config` in an unpacked archive, a bare repository inside another), and git
# runs what some of them name, even to show a status. Variables outrank these settings. They cannot turn off a setting
# whose name has a part of its author's choice: programs that filter, compare and merge (`filter.*`, `diff.*`,
# `merge.*`), those that serve a remote (`remote.*`), and the hooks that git 2.54 takes from settings (`hook.*`). Nor do
# variables reach a repository at a local path that is pushed to, or the steps of a rebase that is under way. With a
# root, `repositories` looks for all of them.


_GIT_SETTINGS: Mapping[str, str] = {
    "core.fsmonitor": "false",
    # Looking at differences would write the index.
    "diff.autoRefreshIndex": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.sshCommand": "ssh",
    "core.askPass": "",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.alternateRefsCommand": "",
    # The empty tree: a name that leads nowhere would be passed over, and the files of the project read.
    "attr.tree": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "commit.gpgSign": "false",
    "credential.helper": "",
    # Else the settings of a submodule count, of one that no index names.
    "diff.submodule": "short",
    "fetch.recurseSubmodules": "false",
    "gpg.format": "openpgp",
    "gpg.program": "false",
    "gpg.ssh.defaultKeyCommand": "false",
    "gpg.ssh.program": "false",
    "gpg.x509.program": "false",
    "log.showSignature": "false",
    # Collecting garbage runs gc.recentObjectsHook.
    "maintenance.auto": "false",
    "merge.verifySignatures": "false",
    "protocol.ext.allow": "never",
    "push.gpgSign": "false",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
    "tag.forceSignAnnotated": "false",
    "tag.gpgSign": "false",
}

# What other programs write, ask or run although nobody told them to. Variables outrank the files of a project.
_OTHERS: Mapping[str, str] = {
    # Python writes no compiled files beside those that it reads.
    "PYTHONDONTWRITEBYTECODE": "1",
    # Nor does it take a module of the project for one of its own (`-m venv`).
    "PYTHONSAFEPATH": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    # npm runs no scripts of a project or a package. It keeps no log: `logs_max` 0 would delete those of others.
    "npm_config_ignore_scripts": "true",
    "npm_config_git": "git",
    "npm_config_node_options": "",
    "npm_config_script_shell": "sh",
    "npm_config_browser": "false",
    "npm_config_editor": "true",
    "npm_config_viewer": "cat",
    # The script that asks for the fields of a new package.json.
    "npm_config_init_module": os.devnull,
    "npm_config_logs_dir": os.devnull,
    "npm_config_update_notifier": "false",
    # A project may name the tool chain, and wrappers for its compiler.
    "RUSTUP_TOOLCHAIN": "stable",
    "RUSTUP_AUTO_INSTALL": "0",
    "RUSTC": "rustc",
    "RUSTC_WRAPPER": "",
    "RUSTC_WORKSPACE_WRAPPER": "",
    "GOTOOLCHAIN": "local",
    # Without a home directory, it runs the settings in the one that it is started in.
    "EXIFTOOL_HOME": os.devnull,
    # Nobody is asked for a newer version.
    "CHECKPOINT_DISABLE": "1",
    "HOMEBREW_NO_AUTO_UPDATE": "1",
    "HOMEBREW_NO_ANALYTICS": "1",
}

# npm begins a cache in the home directory, and top one for settings. A directory that cannot be made is no error.
_READING: Mapping[str, str] = {"npm_config_cache": os.devnull, "XDG_CONFIG_HOME": os.devnull}


def make_command_environment(writing: bool = False) -> dict[str, str]:
    """The variables: a search path, a language, and what keeps programs from running, asking and writing unasked.

    `writing`: the command may write, so package managers have a cache.
    """
    settings = {
        f"GIT_CONFIG_{part}_{index}": text
        for index, pair in enumerate(_GIT_SETTINGS.items())
        for part, text in zip(("KEY", "VALUE"), pair, strict=True)
    }
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS)),
        **settings,
        "GIT_EDITOR": "true",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_PROXY_COMMAND": "",
        "GIT_SEQUENCE_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "PAGER": "cat",
        **_OTHERS,
        **({} if writing else _READING),
    }
