"""Well-known programs that are not run, by the rule that a refusal names; and those that may tell their version."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = {
    "interpreter": """
        python python2 python3 pypy pypy3 perl ruby node nodejs deno bun php lua luajit tclsh wish Rscript R julia
        guile java groovy scala kotlin ghci elixir erl osascript gdb ipython irb racket sbcl ocaml swipl octave bc dc
        m4 psql mysql sqlite3
    """,
    "wrapper": """
        command builtin env sudo su doas nice ionice nohup timeout time stdbuf setsid xargs parallel watch busybox
        toybox chroot unshare nsenter strace ltrace script expect flock setarch taskset chrt runuser pkexec run-parts
        start-stop-daemon systemd-run ssh-agent dbus-run-session eval exec source . coproc trap npx pnpx bunx uvx pipx
        entr
    """,
    "shell": """
        sh bash dash zsh ksh mksh ash csh tcsh fish rbash pwsh powershell cmd cmd.exe nu xonsh
    """,
    "interactive": """
        vi vim nvim view ex ed emacs nano pico less more most man info top htop screen tmux
    """,
    "delete": """
        rm rmdir unlink shred truncate dd wipe srm trash mkfs fdisk parted wipefs mkswap blkdiscard
    """,
    "network": """
        curl wget ssh scp sftp ftp nc ncat netcat socat telnet rclone aria2c http lynx
    """,
}

KINDS: Mapping[str, str] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Why a well-known program is not run: the rule that a refusal names."""

NEVER_OPEN = frozenset({"wrapper", "shell", "interactive"})
"""Kinds that can run any program, so an author can only allow whole command lines of them."""

# Not those that load the project's plug-ins or settings first: pytest, tox, flake8, mvn, sbt, bundle, poetry, yarn.
_VERSION = """
    perl ruby node nodejs deno bun php java julia Rscript R lua bash zsh fish make gmake cmake ctest ninja meson gcc g++
    cc c++ clang clang++ ld as ar gdb ld.lld llvm-config pkg-config curl wget ssh docker docker-compose podman vim nvim
    emacs nano less man sqlite3 psql mysql redis-cli ruff mypy black isort
    pyright pre-commit pipx virtualenv npx uvx tsc prettier gh git-lfs ffmpeg pandoc shellcheck hadolint protoc nginx
    redis-server bat delta tmux screen rsync xargs env timeout nice nohup time watch sudo strace busybox unshare gpg
    patch rm rmdir dd truncate shred unlink
"""
_PYTHONS = "python python2 python3 pypy pypy3"

VERSIONED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_VERSION.split(), frozenset({"--version"})),
    **dict.fromkeys(_PYTHONS.split(), frozenset({"--version", "-V", "-VV", "--help", "-h"})),
    **dict.fromkeys("node nodejs".split(), frozenset({"--version", "-v", "--help", "-h"})),
    **dict.fromkeys("perl ruby php lua".split(), frozenset({"--version", "-v"})),
    **dict.fromkeys("curl wget ssh".split(), frozenset({"--version", "-V", "--help"})),
    **dict.fromkeys("make gmake cmake docker gcc gh ruff".split(), frozenset({"--version", "--help"})),
    "docker": frozenset({"--version", "-v", "--help", "compose version", "version --client"}),
    "docker-compose": frozenset({"--version", "version"}),
    "java": frozenset({"--version", "-version", "--help"}),
    "javac": frozenset({"--version", "-version"}),
    # With a sub-command, it starts a pager.
    "git": frozenset({"--help", "-h"}),
    "kubectl": frozenset({"version --client", "version --client=true", "version --client -o json"}),
    "ffmpeg": frozenset({"-version"}),
    "nginx": frozenset({"-v"}),
    "tmux": frozenset({"-V"}),
    "sqlite3": frozenset({"--version", "-version"}),
}
"""Programs that tell their version or usage, and the words with which they do nothing else."""
