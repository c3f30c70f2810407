"""The tables of programs, as data in the notation of `grammar`: refused, on request, package managers, and all.

First come well-known programs that are not run, by the rule that a refusal names, and those that may tell their
version. The whole table, `PROGRAM_TABLE`, is put together at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

from defserve.guard.shell.developer_programs import DEVELOPER_TOOL_SPECS, GIT_SPECS
from defserve.guard.shell.developer_programs import SYNTAX_CHECK_SPECS as _CHECKS
from defserve.guard.shell.everyday_programs import FILE_PROGRAM_SPECS, SYSTEM_PROGRAM_SPECS, TEXT_PROGRAM_SPECS
from defserve.guard.shell.everyday_programs import TAR_SPECS as _TAR
from defserve.guard.shell.grammar import ProgramSpecTable, expand_table_groups, split_shared_keys

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

REFUSED_PROGRAM_KINDS: Mapping[str, str] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Why a well-known program is not run: the rule that a refusal names."""

WHOLE_COMMAND_KINDS = frozenset({"wrapper", "shell", "interactive"})
"""Kinds that can run any program, so an author can only allow whole command lines of them."""

# Not those that load the project's plug-ins or settings first, or run its own copy of themselves: pytest, tox, flake8,
# pylint, mvn, sbt, bundle, composer, poetry, pdm, yarn, nx, turbo, webpack, bazel, ansible, tflint, hg, packer, xmake,
# premake, liquibase, flyway.
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
    clang-format clang-tidy cppcheck autoconf automake libtool m4 bison flex swig scons conan vcpkg just
    task ag eza exa lsd fzf zoxide tokei scc cloc hyperfine difft jless fx gron xsv qsv mlr dasel yamllint shfmt
    stylelint jshint markdownlint vale codespell typos actionlint terraform tofu helm k9s kind minikube skaffold
    istioctl kustomize argocd flux aws gcloud az doctl flyctl svn jj glab tig lazygit gitk bzr cvs dvc pyenv rbenv
    nodenv asdf direnv fnm volta conda mamba micromamba hatch twine flit rye pixi nox coverage pyflakes pycodestyle
    bandit vulture autopep8 yapf ipython sphinx-build mkdocs uvicorn gunicorn convert magick identify exiftool ffprobe
    mediainfo sox gs pdftk qpdf pdflatex latex xelatex tectonic typst dot plantuml mmdc mongosh mongod mongo mysqld
    postgres pg_dump duckdb clickhouse etcdctl consul vault nats rabbitmqctl kafka-topics age sops gpg2 pass ssh-keygen
    rclone aria2c httpie http nc ncat socat nmap tcpdump iperf3 mtr lynx w3m links systemctl journalctl loginctl
    timedatectl hostnamectl crontab at lsof htop btop glances iotop dstat sar fuser pmap lshw dmidecode parted fdisk
    lvm cryptsetup qemu-img virsh buildah skopeo nerdctl crictl ctr crane ctags cscope indent astyle doxygen pstree
    entr watchexec parallel xz inotifywait xclip notify-send bc dc gettext msgfmt xgettext envsubst ksh dash tcsh nu
    pwsh caddy haproxy httpd apache2 traefik envoy memcached sqlx
"""
_PYTHONS = "python python2 python3 pypy pypy3"

VERSION_ARGUMENTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_VERSION.split(), frozenset({"--version"})),
    **dict.fromkeys(_PYTHONS.split(), frozenset({"--version", "-V", "-VV", "--help", "-h"})),
    **dict.fromkeys("node nodejs".split(), frozenset({"--version", "-v", "--help", "-h"})),
    **dict.fromkeys("perl ruby php lua".split(), frozenset({"--version", "-v"})),
    **dict.fromkeys("curl wget ssh".split(), frozenset({"--version", "-V", "--help"})),
    **dict.fromkeys("make gmake cmake docker gcc gh ruff".split(), frozenset({"--version", "--help"})),
    "docker": frozenset({"--version", "-v", "--help", "compose version", "version --client"}),
    "docker-compose": frozenset({"--version", "version"}),
    **dict.fromkeys(
        "terraform tofu helm kind minikube zig hugo flyctl kustomize golangci-lint vault consul".split(),
        frozenset({"--version", "version", "-v"}),
    ),
    **dict.fromkeys(
        "rustc gcc g++ cc clang clang++ luac lua screen".split(),
        frozenset({"--version", "-V", "-v", "--help"}),
    ),
    # Not -v, nor -V of ctags: they work on what the project's settings name, and mypy loads its plug-ins.
    **dict.fromkeys("rustfmt ruff black mypy socat at".split(), frozenset({"--version", "-V", "--help"})),
    **dict.fromkeys("kotlin ksh ctags".split(), frozenset({"--version", "--help"})),
    "rustc": frozenset({"--version", "-V", "-vV", "--version --verbose", "--print target-list", "--help", "-h"}),
    "rustup": frozenset({"--version", "-V", "show", "toolchain list", "target list --installed"}),
    # Not --version, --info and --help: the SDK answers those, and global.json may name one of the project.
    "dotnet": frozenset({"--list-sdks", "--list-runtimes"}),
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
    # With the name of a sub-command, it starts a program that shows the manual.
    "git": frozenset({"--help", "-h", "help", "help -a", "help --all", "help -g", "help --guides"}),
    "kubectl": frozenset({"version --client", "version --client=true", "version --client -o json"}),
    "ffmpeg": frozenset({"-version"}),
    "nginx": frozenset({"-v"}),
    "tmux": frozenset({"-V"}),
    "sqlite3": frozenset({"--version", "-version"}),
}
"""Programs that tell their version or usage, and the words with which they do nothing else."""

# Not git, cargo and gem: they start a program that shows the manual, or read settings of the project first.
PROGRAMS_WITH_HELP: frozenset[str] = frozenset("pip pip3 npm uv apt apt-get".split())
"""Programs whose sub-commands print their usage for `--help`, and do nothing else."""


# -- Programs that run only when the author lists them by name.


# These take code in their operands, or options behind them.
_TAKES_CODE = "psql mysql gdb bc dc m4 erl ghci ipython irb octave swipl sbcl R expect"
_SCRIPT = " ".join(
    name for name, kind in REFUSED_PROGRAM_KINDS.items() if kind == "interpreter" and name not in _TAKES_CODE.split()
)
_TASKS = "ninja just rake gradle gradlew mvn ant task"

_ON_REQUEST_SPECS: ProgramSpecTable = {
    _TAKES_CODE: "%never",
    # The script is a file; what follows is for the script. Code in an option or on standard input is refused.
    _SCRIPT: "!x %leading | script pattern*",
    "rm": """
        !w -dfiIrRv --force --interactive?never|once|always --one-file-system --preserve-root --recursive --dir
        --verbose | delete+
    """,
    "rmdir": "!w -pv --ignore-fail-on-non-empty --parents --verbose | delete+",
    "unlink": "!w | delete",
    "shred": """
        !w -fuvxz -n,--iterations:number -s,--size:number --force --verbose --exact --zero --remove?name | delete+
    """,
    "truncate": "!w -co -s,--size:text --no-create --io-blocks | delete+",
    "curl": """
        !n -sSfgiIv46#N0 -G -k --silent --show-error --fail --fail-with-body --globoff --include --head --verbose
        --ipv4 --ipv6 --progress-bar --no-progress-meter --no-buffer --compressed --http1.1 --http2 --get --tlsv1.2
        --tlsv1.3 --raw --no-keepalive -q,--disable -X,--request:name!w -H,--header:header -A,--user-agent:text
        -e,--referer:text
        -m,--max-time,--connect-timeout,--retry,--retry-delay,--retry-max-time,--max-filesize,--limit-rate:number
        -r,--range:numbers -w,--write-out:written-out -d,--data,--data-ascii,--json:data!w --data-raw:text!w --url:url
        -o,--output:write | url*
    """,
    # wget follows redirects to hosts that nobody judged, unless it is told not to.
    "wget": """
        !n -qdS46 --quiet --verbose --no-verbose --spider --server-response --max-redirect:=0@1
        -T,--timeout,-t,--tries,-w,--wait,--limit-rate:number -U,--user-agent:text --header:header
        -O,--output-document:write --no-hsts --no-netrc --no-config | nothing+ | !w downloaded+
    """,
    # Not -o, -F, -J, -S and forwarding: they name programs of this machine, or reach others.
    "ssh": "!n %leading -46CqTvx -p:number -l:name -i:read | undashed pattern*",
    "scp": "!n !w -346Cpqrv -P:number -l:number -i:read | undashed+ write",
    "make gmake": """
        !x %tasks -kinsqtBerRSw -j,--jobs?number -l,--load-average?number -O,--output-sync?name --keep-going --dry-run
        --just-print --silent --quiet --always-make --ignore-errors --question --trace --no-print-directory
        --print-directory --warn-undefined-variables | task*
    """,
    _TASKS: "!x %tasks -qvn --quiet --verbose --dry-run --info --list -l | task*",
}

DANGEROUS_OPTIONS = frozenset(
    """
    --exec --exec-path --exec-batch --execute --command --eval --output --output-file --output-directory --out --pager
    --editor --shell --script-shell --upload-pack --receive-pack --rsh --rsh-command --rsync-path --pre --to-command
    --use-compress-program --compress-program --checkpoint-action --ext-diff --init-file --rcfile --proxy-command
    --filter-program --plugin --load --preload --require --toolexec --delete
""".split()
)
"""For a program nobody knows that the author opened: the flags that run or write in the programs we know."""


# -- Package managers. They run what they install, and most read settings of the project, which may name programs.
#
# So nearly all of it is for `sandbox` only. In `readonly` remain the lists that run nothing and ask nobody. What runs
# the project's own code (`!x`) needs an author's list: yarn, pnpm and poetry load plug-ins of the project, uv asks its
# interpreter, cargo takes variables from its settings, and an archive or a path is built. `pip install -r` installs
# what the file names, also paths. npm runs no scripts in the `environment` of a judged command.


_PACKAGE_GROUPS = {
    "npm_look": """
        -alg --all --long --json --parseable -p --depth:number --global --link --omit:dev|optional|peer
        --include:prod|dev|optional|peer --production --prod --dev --only:prod|dev --silent -s
    """,
    "npm_install": """
        !w !n -DEOSPgfBNW -s --save --save-dev --save-exact --save-optional --save-peer --save-prod --no-save --global
        --force --legacy-peer-deps --strict-peer-deps --no-audit --no-fund --no-optional --omit:dev|optional|peer
        --ignore-scripts --prefer-offline --offline --production --dry-run --no-package-lock --package-lock-only
        --verbose --silent --quiet --frozen-lockfile --no-frozen-lockfile --dev --prod --exact --latest --json
        --loglevel:name
    """,
    "project": """
        -qvnDGEiU -p,--package:name --quiet --verbose --offline --locked --frozen --dev --no-dev --all-features
        --no-default-features --all --dry-run -F,--features:names --group,-G,--extra,-E:names
        --with,--without,--only:names --all-extras --upgrade --optional:name --latest --no-sync --depth:number
        --no-interaction --no-root --tree --outdated --top-level --no-dedupe --invert,-i:name --version,-v:name
        --no-document --user-install --conservative
    """,
    "system": """
        -aqyvud --quiet --yes --assume-yes --verbose --installed --upgradable --all-versions --no-install-recommends
        --names-only --full --no-cache --virtual,-t:name --update -n --dry-run --simulate -s --cask --formula
        --versions
    """,
}

PACKAGES: ProgramSpecTable = expand_table_groups(
    {
        "pip pip3": {
            "": "-Vhqv --version --help --quiet --verbose --no-input --no-color --disable-pip-version-check",
            "list": """
            -lev -o,--outdated!n -u,--uptodate!n --local --user --editable --pre --format:columns|freeze|json
            --not-required --exclude-editable --include-editable --exclude:name --disable-pip-version-check -q --quiet
            --verbose |
        """,
            "show": "-fqv --files --verbose --quiet --disable-pip-version-check | name+",
            "freeze": "-lq --local --user --all --exclude-editable --exclude:name -r,--requirement:local |",
            "check": "-qv |",
            "hash": "-a,--algorithm:name | read+",
            "index": {"": "", "versions": "!n --pre | name"},
            "uninstall": """
            !w -qv -y,--yes@1 -r,--requirement:local --quiet --verbose --break-system-packages | nothing+ | name*
        """,
            "inspect": "--local --user |",
            "debug": "-v |",
            "install download wheel": """
            !w !n -Uqv -r,--requirement:local -c,--constraint:local -e,--editable:pip-local!x --upgrade
            --upgrade-strategy:eager|only-if-needed --force-reinstall --ignore-installed -I --no-deps --user --pre
            --dry-run --no-build-isolation --no-cache-dir --no-compile --prefer-binary --only-binary,--no-binary:names
            --quiet --verbose --require-hashes --no-input --disable-pip-version-check --break-system-packages
            --no-warn-script-location -d,--dest,-w,--wheel-dir:write --progress-bar:name | pip-package* / !x pip-local*
        """,
        },
        "npm": {
            "": "-vh --version --help",
            "ls list ll la": "+npm_look | name*",
            # With a name, it asks the registry and opens a browser.
            "fund": "+npm_look | / !x name+",
            "view info show v outdated why explain search whoami ping": "!n +npm_look | npm-package? name*",
            "root prefix bin": "-g --global --json |",
            # Without the option it commits and tags.
            "version": "-g --global --json --no-git-tag-version@1 | | !w =patch / !w =minor / !w =major",
            "config": {"": "", "get": "| setting / name"},
            "pkg": {"": "", "get": "--json | pattern*", "set": "!w --json | assignment+"},
            "audit": "!n +npm_look --audit-level:name | / !w =fix",
            # With a name, it runs a program of that name.
            "init": "!w -y,--yes@1 -f --force | nothing+ |",
            "install i ci add update up prune dedupe uninstall un remove rm r": """
                +npm_install | npm-package* / !x npm-local*
            """,
            "pack": "!w --dry-run --json |",
        },
        "pnpm": {
            "": "!x -v --version",
            "ls list why outdated": "!x +npm_look -r --recursive | name*",
            "install i add update": "!x +npm_install | npm-local*",
        },
        "yarn": {
            "": "!x -v --version",
            "list info why outdated": "!x +npm_look --pattern:name | name*",
            "install add upgrade": "!x +npm_install | npm-local*",
        },
        "apt apt-get apt-cache": {
            "": "-v --version",
            "list show policy search depends rdepends": "+system | name*",
            "install update upgrade": "!w !n +system | package* / !x package-local*",
        },
        "dpkg": "-l,--list,-L,--listfiles,-s,--status,-S,--search@1 | | text*",
        "brew": {
            "": "-v --version",
            "list ls": "+system | name*",
            "info search outdated deps": "!n +system --json?v1|v2 --tree | name*",
            "install update upgrade": "!w !n +system | package* / !x package-local*",
        },
        "apk dnf yum": {
            "": "--version",
            "list show search info": "!n +system | name*",
            "install update upgrade add": "!w !n +system | package* / !x package-local*",
        },
        "cargo": {
            "": "-Vh --version --help --list",
            "version help": "|",
            # The settings of a project set variables for the compiler (LD_PRELOAD), and name programs for a registry.
            "tree search metadata": "!x !n +project --format-version:number --no-deps | name*",
            "new init": "!w -q --lib --bin --name:name --edition:number --vcs:none|git | touched?",
            "add fetch update remove rm": "!x !w !n +project | package-local*",
            # These read the settings of the account only.
            "install uninstall": "!w !n +project | package* / !x package-local*",
        },
        "uv": {
            "": "-Vhqv --version --help --quiet --verbose --offline --no-progress",
            "version": "--short --output-format:text|json |",
            # Most ask the interpreter that the project names (`.venv`, `.python-version`) what it is, and so run it.
            # `--system` does not.
            "tree": "!x !n +project |",
            "add remove": "!x !w !n +project --frozen | pip-local*",
            "sync lock": "!x !w !n +project | pip-local*",
            "init": "!x !w --name:name --lib --app --package --bare --no-readme --python,-p:name | touched?",
            "venv": "!x !w !n -qp:name --python:name --seed --quiet --system-site-packages | write?",
            "pip": {
                "": "",
                # They keep a cache.
                "list freeze check tree": """
                    !w -q --quiet --format:columns|freeze|json --outdated!n --strict --system@1 | !x |
                """,
                "show": "!w -fq --files --quiet --system@1 | !x name+ | name+",
                "install": """
                    !w !n -Uqv -r,--requirement,-c,--constraint:local -e,--editable:pip-local!x --upgrade --no-deps
                    --pre --prerelease:name --system@1 --reinstall --dry-run --quiet --verbose --require-hashes
                    --only-binary,--no-binary:names --no-build --no-cache --offline --extra:name --all-extras
                    --break-system-packages --compile-bytecode --strict --python,-p:name!x
                    | !x pip-local* | pip-package* / !x pip-local*
                """,
                "uninstall": """
                    !w -q -r,--requirement:local --quiet --system@1 --break-system-packages | !x name* | name*
                """,
            },
            "python": {"": "", "list": "!w --only-installed --all-versions --offline |", "find": "!x !w | name?"},
        },
        "poetry": {
            "": "!x -V --version",
            "show": "!x +project | name*",
            "add install lock update": "!x !w !n +project | pip-local*",
        },
        "gem": {
            "": "-v --version",
            "list": "-al --local --all --no-versions --details -d | name*",
            "search info": "!n +project | name*",
            # Without --remote, it prefers a file of the directory that has the package's name.
            "install fetch update": "!w !n +project -r,--remote@1 | !x package-local* | package*",
        },
    },
    _PACKAGE_GROUPS,
)


# -- What is known of programs, as data in the notation of `specs`. Whatever stands here is known to be harmless.
#
# Those of `PROGRAM_TABLE` run without an author's list, `OPT_IN_PROGRAM_TABLE` only with one. What is missing is
# refused: a program, an option, a form of its operands. Add an option only after reading its manual page: can it write,
# run, read elsewhere, talk to somebody, or take a file of further options?


PROGRAM_TABLE: dict[str, str | ProgramSpecTable] = split_shared_keys(
    {
        **TEXT_PROGRAM_SPECS,
        **FILE_PROGRAM_SPECS,
        **SYSTEM_PROGRAM_SPECS,
        **GIT_SPECS,
        **PACKAGES,
        **DEVELOPER_TOOL_SPECS,
        "tar": "%tar",
    }
)
SYNTAX_CHECK_TABLE: dict[tuple[str, ...], str] = {tuple(words.split()): str(rules) for words, rules in _CHECKS.items()}
TAR_TABLE: dict[str, str | ProgramSpecTable] = split_shared_keys(_TAR)
OPT_IN_PROGRAM_TABLE: dict[str, str | ProgramSpecTable] = split_shared_keys(_ON_REQUEST_SPECS)

__all__ = [
    "SYNTAX_CHECK_TABLE",
    "REFUSED_PROGRAM_KINDS",
    "WHOLE_COMMAND_KINDS",
    "OPT_IN_PROGRAM_TABLE",
    "PROGRAM_TABLE",
    "TAR_TABLE",
    "DANGEROUS_OPTIONS",
    "VERSION_ARGUMENTS",
]
