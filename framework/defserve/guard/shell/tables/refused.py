"""Well-known programs that are not run, by the rule that a refusal names; and those that may tell their version."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = {
    "interpreter": """
        python python2 python3 pypy pypy3 perl ruby node nodejs deno bun php lua luajit tclsh wish Rscript R julia
        guile java groovy scala kotlin ghci elixir erl osascript gdb ipython irb racket sbcl ocaml swipl octave bc dc
        m4 psql mysql
    """,
    "wrapper": """
        builtin env sudo su doas nice ionice nohup timeout time stdbuf setsid xargs parallel watch busybox
        toybox chroot unshare nsenter strace ltrace script expect flock setarch taskset chrt runuser pkexec run-parts
        start-stop-daemon systemd-run ssh-agent dbus-run-session eval exec source . coproc trap npx pnpx bunx uvx pipx
        entr
    """,
    "shell": """
        sh bash dash zsh ksh mksh ash csh tcsh fish rbash pwsh powershell cmd cmd.exe nu xonsh
    """,
    "interactive": """
        vi vim nvim view ex ed emacs nano pico less more most man info htop screen tmux
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

# Not those that load the project's plug-ins or settings first, or run its own copy of themselves: pytest, tox, flake8,
# pylint, mvn, sbt, bundle, composer, poetry, pdm, yarn, nx, turbo, webpack, bazel, ansible, tflint.
_VERSION = """
    cpio cpp sw_vers convert
    perl ruby node nodejs deno bun php java julia Rscript R lua bash zsh fish make gmake cmake ctest ninja meson gcc
    g++ cc c++ clang clang++ ld as ar gdb ld.lld llvm-config pkg-config curl wget ssh docker docker-compose podman vim
    nvim emacs nano less man sqlite3 psql mysql redis-cli ruff mypy black isort pyright pre-commit pipx virtualenv npx
    uvx tsc prettier gh git-lfs ffmpeg pandoc shellcheck hadolint protoc nginx redis-server bat delta tmux screen rsync
    xargs env timeout nice nohup time watch sudo strace busybox unshare gpg patch rm rmdir dd truncate shred unlink
    rustc rustup rustfmt cargo-clippy clippy-driver gofmt zig nim crystal ghc cabal stack ocaml dune swift swiftc
    kotlin kotlinc scala scalac groovy elixir dotnet mono csc luajit luac tclsh octave racket sbcl guile pypy pypy3 tcc
    gfortran nasm yasm valgrind perf objcopy strip ranlib lldb rust-analyzer gopls golangci-lint staticcheck delve dlv
    clang-format clang-tidy cppcheck autoconf automake libtool m4 bison flex swig scons xmake premake5 conan vcpkg just
    task ag eza exa lsd fzf zoxide tokei scc cloc hyperfine difft jless fx gron xsv qsv mlr dasel yamllint shfmt
    stylelint jshint markdownlint vale codespell typos actionlint terraform tofu packer helm k9s kind minikube skaffold
    istioctl kustomize argocd flux aws gcloud az doctl flyctl svn hg jj glab tig lazygit gitk bzr cvs dvc pyenv rbenv
    nodenv asdf direnv fnm volta conda mamba micromamba hatch twine flit rye pixi nox coverage pyflakes pycodestyle
    bandit vulture autopep8 yapf ipython sphinx-build mkdocs uvicorn gunicorn convert magick identify exiftool ffprobe
    mediainfo sox gs pdftk qpdf pdflatex latex xelatex tectonic typst dot plantuml mmdc mongosh mongod mongo mysqld
    postgres pg_dump duckdb clickhouse etcdctl consul vault nats rabbitmqctl kafka-topics age sops gpg2 pass ssh-keygen
    rclone aria2c httpie http nc ncat socat nmap tcpdump iperf3 mtr lynx w3m links systemctl journalctl loginctl
    timedatectl hostnamectl crontab at lsof htop btop glances iotop dstat sar fuser pmap lshw dmidecode parted fdisk
    lvm cryptsetup qemu-img virsh buildah skopeo nerdctl crictl ctr crane ctags cscope indent astyle doxygen pstree
    entr watchexec parallel xz inotifywait xclip notify-send bc dc gettext msgfmt xgettext envsubst ksh dash tcsh nu
    pwsh caddy haproxy httpd apache2 traefik envoy memcached sqlx liquibase flyway
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
    **dict.fromkeys(
        "terraform tofu packer helm kind minikube zig hugo flyctl kustomize golangci-lint vault consul deno".split(),
        frozenset({"--version", "version", "-v"}),
    ),
    **dict.fromkeys(
        "rustc gcc g++ cc clang clang++ rustfmt ruff black mypy kotlin luac lua ksh screen socat at ctags".split(),
        frozenset({"--version", "-V", "-v", "--help"}),
    ),
    "rustc": frozenset({"--version", "-V", "-vV", "--version --verbose", "--print target-list", "--help", "-h"}),
    "rustup": frozenset({"--version", "-V", "show", "toolchain list", "target list --installed"}),
    "dotnet": frozenset({"--version", "--info", "--list-sdks", "--list-runtimes", "--help"}),
    "aws": frozenset({"--version", "help"}),
    "ghc": frozenset({"--version", "-V", "--numeric-version"}),
    "gcc": frozenset({"--version", "-v", "-dumpversion", "-dumpmachine", "--help"}),
    "clang": frozenset({"--version", "-v", "-dumpversion", "--help"}),
    "kotlinc": frozenset({"-version"}),
    "scala": frozenset({"-version", "--version"}),
    "pyenv": frozenset({"--version", "versions", "version"}),
    "conda": frozenset({"--version", "-V"}),
    "ffprobe": frozenset({"-version"}),
    "identify": frozenset({"-version", "--version"}),
    "exiftool": frozenset({"-ver"}),
    "gh": frozenset({"--version", "version", "--help"}),
    "redis-cli": frozenset({"--version", "-v"}),
    "psql": frozenset({"--version", "-V"}),
    "mysql": frozenset({"--version", "-V"}),
    "ruby": frozenset({"--version", "-v"}),
    "hugo": frozenset({"version"}),
    "julia": frozenset({"--version", "-v"}),
    "vim": frozenset({"--version"}),
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
