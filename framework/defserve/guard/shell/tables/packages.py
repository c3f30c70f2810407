"""Package managers. They run what they install, and most read settings of the project, which may name programs.

So nearly all of it is for `sandbox` only. In `readonly` remain the lists that run nothing and ask nobody. What runs the
project's own code (`!x`) needs an author's list: yarn, pnpm and poetry load plug-ins of the project, uv asks its
interpreter, cargo takes variables from its settings, and an archive or a path is built. `pip install -r` installs what
the file names, also paths. npm runs no scripts in the `environment` of a judged command.
"""

from __future__ import annotations

from defserve.guard.shell.specs import Table, with_groups

_GROUPS = {
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

PACKAGES: Table = with_groups(
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
            "root prefix bin version": "-g --global --json |",
            "config": {"": "", "get": "| setting / name"},
            "pkg": {"": "", "get": "--json | pattern*"},
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
    _GROUPS,
)
