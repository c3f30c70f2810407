"""Where a command may read and write: below its working directory, and nowhere that other programs trust.

Outside, a short list of public facts about the machine may be read, and a few directories may be listed. Paths are
judged by their text: a symbolic link is not followed, so `..` is refused wherever it stands. Which files an account may
touch is up to the operating system. A tool that takes paths guards them with `defserve.guard.paths`.
"""

from __future__ import annotations

import posixpath
import re
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
    .pre-commit-config.yaml .lefthook.yml lefthook.yml .overcommit.yml
    """.split()
)
_COMMAND_FOLDERS = re.compile(
    r"(?:^|/)(?:\.(?:github/(?:workflows|actions)|circleci|buildkite|gitea/workflows|forgejo/workflows|woodpecker|vscode"
    r"|idea|devcontainer|claude|config/systemd)/.|\.?(?:venv|env)[^/]*/(?:bin|scripts|lib)/.|node_modules/\.bin/.)"
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
    r"|/(?:usr|usr/local)/(?:share|include)(?:/[^/]+)+"
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
class Places:
    """What may be touched. Without a `root`, every absolute path is outside."""

    root: str = ""

    def read(self, path: str) -> Violation | None:
        """Why the content of `path` may not be read, or None."""
        return self._outside(path, _PUBLIC)

    def listed(self, path: str) -> Violation | None:
        """Why names and sizes in `path` may not be shown, or None. What lies deeper is not shown."""
        return self._outside(path, _LISTED)

    def walked(self, path: str) -> Violation | None:
        """Why names and sizes at every depth below `path` may not be shown, or None."""
        if (found := self.listed(path)) or not (found := self._outside(path, _WALKED)):
            return found
        return Violation(
            "place", f"Blocked walk: '{path}' holds places that may not be listed; list it, one level deep"
        )

    def inside(self, path: str) -> Violation | None:
        """Why `path` is not below the working directory, or None."""
        return self._outside(path, None)

    def written(self, path: str) -> Violation | None:
        """Why nothing may be written to `path`, or None."""
        return self.named(path) or self._outside(path, None)

    def named(self, path: str) -> Violation | None:
        """Why no text may be written to a file of this name, wherever it lies, or None."""
        return self.trusted(path) or self._commands(path)

    def touched(self, path: str) -> Violation | None:
        """Why nothing may be made at `path`, and no time or mode of it changed, or None. Its text stays as it is."""
        return self.trusted(path) or self._outside(path, None)

    def carried(self, path: str) -> Violation | None:
        """Why no copy of `path` may be made that keeps its name, or None. What lies at the top is copied downwards."""
        return self.trusted(path) or (self._commands(path) if "/" in path.rstrip("/") else None)

    def _commands(self, path: str) -> Violation | None:
        lower = posixpath.normpath(re.sub(r"\\", "/", path.lower()))
        name = posixpath.basename(lower).partition(":")[0].rstrip(". ")
        if name in _COMMANDS or name.endswith((".mk", ".service", ".desktop")) or _COMMAND_FOLDERS.search(lower):
            return Violation("place", f"Blocked write: '{path}' holds commands that other programs run")
        return None

    def trusted(self, path: str) -> Violation | None:
        """Why no file of this name may be written anywhere, or None."""
        # Windows drops dots and spaces at the end, and what follows a colon; `git~1` is its short name of `.git`.
        names = [part.partition(":")[0].rstrip(". ") for part in re.split(r"[/\\]", path.lower())]
        if any(name in _TRUSTED or name.endswith(".pth") for name in names):
            return Violation("place", f"Blocked write: '{path}' is trusted by other programs")
        return None

    def prefixed(self, path: str) -> Violation | None:
        """Why no files may be written whose names begin with `path`, or None."""
        name = re.split(r"[/\\]", path.lower())[-1]
        if name.startswith(".") or any(len(name) > 2 and one.startswith(name) for one in _TRUSTED):
            return Violation("place", f"Blocked write: names that begin with '{path}' may be trusted by other programs")
        return self.written(path)

    def _outside(self, path: str, but: re.Pattern[str] | None) -> Violation | None:
        # In lower case: some file systems ignore case. A backslash and a drive (`C:`) mean something to some.
        climbs = ".." in (parts := re.split(r"[/\\]", path.lower()))
        clean = posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else ""
        if not _CREDENTIALS.isdisjoint(parts):
            return Violation("secret", f"Blocked path: '{path}' holds keys")
        below = bool(self.root) and (clean == self.root or clean.startswith(f"{self.root.rstrip('/')}/"))
        drive = re.match(r"[A-Za-z]:[/\\]|\\", path)
        if not climbs and not drive and (not clean or below or (but is not None and but.fullmatch(clean))):
            return None
        if _SECRET.fullmatch(clean):
            return Violation("secret", f"Blocked path: '{path}' is not for reading")
        where = "climbs with '..'" if climbs else "is outside the working directory"
        return Violation("place", f"Blocked path: '{path}' {where}; name files relative to the working directory")
