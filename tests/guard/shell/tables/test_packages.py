"""What package managers may do unasked: no form runs a file of the project, and no reading form asks a registry."""

from __future__ import annotations

from collections.abc import Iterator

from defserve.guard.shell.grammar import ProgramSpecTable, Shape, parse_program_spec, split_shared_keys
from defserve.guard.shell.judgement import judge
from defserve.guard.shell.kinds import KINDS
from defserve.guard.shell.places import PathRules, make_command_environment
from defserve.guard.shell.tables import PACKAGES
from tests.rows import for_each_row

ARCHIVES = (
    "zip whl egg tar tgz tbz tbz2 txz tlz tar.gz tar.bz2 tar.xz tar.lz tar.lzma tar.zst gem deb rpm apk crate rb"
).split()
PACKAGE_KINDS = ("pip-package", "npm-package", "package")


def shapes(entry: str | ProgramSpecTable, title: str) -> Iterator[tuple[str, Shape, tuple[str, ...]]]:
    if isinstance(entry, str):
        rules = parse_program_spec(entry, True)
        yield from ((title, shape, rules.effects) for shapes in rules.shapes for shape in shapes)
        return
    for name, inner in split_shared_keys(entry).items():
        yield from shapes(inner, f"{title} {name}")


EVERY = [found for name, entry in split_shared_keys(PACKAGES).items() for found in shapes(entry, name)]


@for_each_row("kind", PACKAGE_KINDS)
@for_each_row("ending", [*ARCHIVES, *(ending.upper() for ending in ARCHIVES)])
def test_an_archive_is_no_name_of_a_package(kind: str, ending: str) -> None:
    for word in (f"x.{ending}", f"x-1.0.{ending}", f"./x.{ending}", f"x.{ending}[all]", f"x@y.{ending}"):
        assert KINDS[kind].check(word, PathRules("")), word


@for_each_row("kind", PACKAGE_KINDS)
@for_each_row("path", [".", "./x", "./", "./x/y"])
def test_a_path_is_no_name_of_a_package(kind: str, path: str) -> None:
    assert KINDS[kind].check(path, PathRules(""))


@for_each_row("kind", PACKAGE_KINDS)
@for_each_row("name", ["requests", "ruamel.yaml", "zope.interface", "zipp", "is-zip", "socket.io", "chart.js"])
def test_a_name_with_a_dot_is_a_package(kind: str, name: str) -> None:
    assert not KINDS[kind].check(name, PathRules(""))


def test_whatever_takes_a_path_of_the_project_runs() -> None:
    local = {"pip-local", "npm-local", "package-local"}
    taking = [one for one in EVERY if local & {operand.kind for operand in one[1].operands}]
    assert len(taking) > 5
    assert [title for title, shape, effects in taking if "run" not in (shape.effect, *effects)] == []


# What asks the interpreter of the project, or its settings, which may name programs.
RUNNING = """
uv pip list|uv pip freeze|uv pip check|uv pip tree|uv pip show x|uv pip install x|uv pip uninstall x|uv python find
uv python find 3.12|uv venv|uv venv .venv|uv add --frozen x|uv remove --frozen x|uv init|uv tree|uv sync|uv lock
cargo tree|cargo fetch|cargo metadata|cargo metadata --no-deps|cargo add x|cargo update|cargo remove x|cargo search x
pip install evil.zip|pip install --dry-run x.zip|pip download x.tar.gz|pip wheel X.WHL|uv pip install x.zip
gem install x.gem|dnf install x.rpm|yum install d/x.rpm|apk add x.apk|apt install d/x.deb|brew install d/x.rb
npm install x.tgz|npm install ./x|npm install .|npm fund x|npm fund ./x|gem install x
uv pip install --python evil x|uv pip install --system ./x|uv pip install --system x.whl
""".replace("\n", "|").strip("|")


@for_each_row("command", RUNNING.split("|"))
def test_what_may_run_a_file_of_the_project_is_for_an_authors_list(command: str) -> None:
    for mode in ("readonly", "sandbox"):
        assert not judge(command, mode=mode).allowed


ASKING = """
npm fund x|npm view x|npm outdated|npm audit|npm ping|npm search x|npm whoami|pip index versions x|pip list -o
pip list --outdated|pip list --uptodate|cargo search x|npm docs x|npm home x|npm repo x|npm bugs x|npm doctor
npm stars|npm owner ls x|npm dist-tag ls x|npm access list|npm profile get|npm token list|npm org ls x|npm team ls x
gem search x|gem info x|brew info x|apk search x|dnf info x|git ls-remote origin|git fetch|uv pip list --outdated
gh pr list|gh browse
""".replace("\n", "|").strip("|")


@for_each_row("command", ASKING.split("|"))
def test_what_asks_a_registry_or_opens_a_browser_does_not_only_read(command: str) -> None:
    assert not judge(command, mode="readonly").allowed


@for_each_row(
    "command",
    ["npm fund", "npm fund --json", "npm ls x", "pip list", "pip show x", "gem list"],
)
def test_what_reads_the_installed_packages_passes(command: str) -> None:
    assert judge(command, mode="readonly").allowed


@for_each_row(
    "command",
    """pip install -r requirements.txt|pip install requests|pip install ruamel.yaml==0.18|npm install lodash|npm ci
npm install @types/node@20|npm init -y|cargo install ripgrep|cargo new x|gem install --remote rails|apt install jq
uv pip install --system requests|uv pip list --system
brew install user/tap/formula|apk add git""".replace("\n", "|").split("|"),
)
def test_installing_by_name_passes_in_the_sandbox(command: str) -> None:
    assert judge(command, mode="sandbox").allowed


@for_each_row(
    "command",
    [
        "pip install --help",
        "pip3 index versions --help",
        "npm ls --help",
        "uv pip install --help",
        "apt install --help",
    ],
)
def test_the_usage_of_a_subcommand_may_be_read(command: str) -> None:
    assert judge(command, mode="readonly").allowed


@for_each_row(
    "command",
    [
        "npm run --help",  # a script of the project may be called so
        "uv run --help",
        "pip '' --help",
        "pip install evil --help",
        "npm --help run",
        "cargo tree --help",  # starts man
        "git log --help",
        "poetry add --help",  # loads plug-ins that the project names
    ],
)
def test_help_passes_only_alone_behind_a_known_subcommand(command: str) -> None:
    assert not judge(command, mode="readonly").allowed


@for_each_row("setting", ["browser", "init_module", "script_shell", "editor", "viewer", "git", "node_options"])
def test_no_setting_of_a_project_names_a_program_for_npm(setting: str) -> None:
    for writing in (False, True):
        assert f"npm_config_{setting}" in make_command_environment(writing)
