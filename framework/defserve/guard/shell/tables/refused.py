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

VERSIONED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        "python python2 python3 pypy pypy3 perl ruby node nodejs deno bun php java julia Rscript R bash zsh fish make"
        " gmake cmake gcc g++ cc clang clang++ curl wget docker vim nvim less sqlite3 psql mysql".split(),
        frozenset({"--version"}),
    ),
    **dict.fromkeys("python python2 python3 pypy pypy3".split(), frozenset({"--version", "-V"})),
    **dict.fromkeys("node nodejs perl ruby php".split(), frozenset({"--version", "-v"})),
    "java": frozenset({"--version", "-version"}),
}
"""Programs that tell their version and do nothing else."""
