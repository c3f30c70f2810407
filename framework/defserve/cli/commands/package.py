"""`defserve package`, `publish` and `test`: build what a project publishes, check and upload it; run its tests."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from defserve.cli.content import explain_write_errors
from defserve.cli.exits import print_error
from defserve.cli.parser import RESULT_JSON_FLAG, CommandArgument, CommandParser
from defserve.cli.screen import ProgressDisplay, format_problem, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledLine
from defserve.cli.target import split_server_command
from defserve.errors import UsageError, did_you_mean
from defserve.tooling.client_settings import format_install_command
from defserve.tooling.packaging.package import BuiltPackage, build_artefacts, check_upload_programs, plan_uploads
from defserve.tooling.packaging.project_documents import read_project
from defserve.tooling.project_template import Placeholder, find_placeholders, load_template_questions

ABOUT: Final = """Build wheel, sdist, server.json, MCPB bundle and tools.json of a project, and check that they agree.

Exits with 6 if they have problems. Nothing is built if a private file or a secret would be shipped."""
EXAMPLES: Final = """  defserve package
  defserve package weather-mcp --out release
"""
PROBLEMS: Final = 6


def run_package(argv: list[str]) -> int:
    options = CommandParser("defserve package", ABOUT, EXAMPLES).parse_options(argv, *PACKAGE_OPTIONS, RESULT_JSON_FLAG)
    with ProgressDisplay("Building") as work:
        package, _ = build_package(options, work)
    if options.json:
        about = {"name": package.wheel.name, "version": package.wheel.version}
        problems = [problem._asdict() for problem in package.problems]
        show_stdout(JsonBlock({**about, "files": list(map(str, package.files)), "problems": problems}))
    else:
        show_stdout(StyledLine((f"{package.wheel.name} {package.wheel.version}", "heading")))
        show_stdout(*(StyledLine("  ", (str(path.parent) + os.sep, "faint"), path.name) for path in package.files))
    if still := find_placeholders(Path(options.folder).resolve(), load_template_questions()):
        show_stderr(*format_problem("warning", format_placeholder_warning(still)))
    return report_problems(package)


PACKAGE_OPTIONS: Final = (
    CommandArgument("folder", nargs="?", default=".", metavar="DIR", help="the project (default: the current folder)"),
    CommandArgument("--out", metavar="DIR", help="where to put the files (default: DIR/dist)"),
    CommandArgument(
        "--allow",
        metavar="FILE",
        action="append",
        default=[],
        help="include this file, or all that match this pattern, even though it looks private; repeatable",
    ),
)


def build_package(options: Namespace, work: ProgressDisplay) -> tuple[BuiltPackage, Path]:
    """What was built, and where it is. `work` shows how far it is."""
    if Path(options.folder).is_file():
        name = Path(options.folder).stem.replace("_", "-")
        raise UsageError(
            f"{options.folder!r} is a file, and a package is made of a project: a folder with a pyproject.toml",
            fix=f"make one, then put your functions into its server.py: defserve new {name} --template minimal",
        )
    project = read_project(options.folder)
    out = Path(options.out).resolve() if options.out else project.folder / "dist"
    with explain_write_errors("name a folder that you can write: --out DIR"):
        return build_artefacts(project, out, options.allow, work.show_step), out


def format_placeholder_warning(found: list[Placeholder]) -> str:
    """What is still a default of the template, and where."""
    files = dict.fromkeys(name for each in found for name in each.files)
    return f"still the defaults of 'defserve new': {', '.join(map(str, found))}\n  fix: edit {', '.join(files)}"


def report_problems(package: BuiltPackage) -> int:
    """Print the problems to stderr and return the exit code."""
    for problem in package.problems:
        show_stderr(*format_problem("problem", str(problem)))
    return PROBLEMS if package.problems else 0


# -- `defserve publish`: check a project and show the commands that upload it; `--yes` runs them.


PUBLISH_ABOUT: Final = """Build and check a project as `defserve package` does, then show the commands that upload it.

Nothing is uploaded without --yes."""
PUBLISH_EXAMPLES: Final = """  defserve publish
  defserve publish weather-mcp --yes
"""


def run_publish(argv: list[str]) -> int:
    parser = CommandParser("defserve publish", PUBLISH_ABOUT, PUBLISH_EXAMPLES)
    parser.add_arguments(*PACKAGE_OPTIONS)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only show the commands (default)")
    choice.add_argument("--yes", action="store_true", help="run them")
    options = parser.parse_options(argv, RESULT_JSON_FLAG)
    if still := find_placeholders(Path(options.folder).resolve(), load_template_questions()):
        return print_error(format_placeholder_warning(still), 1)
    with ProgressDisplay("Building") as work:
        package, out = build_package(options, work)
    if code := report_problems(package):
        return print_error("nothing was uploaded\n  fix: solve the problems above, and run it again", code)
    planned = plan_uploads(package, out)
    unsaid: list[StyledLine] = []
    told: Callable[[StyledLine], object] = unsaid.append if options.json else _show_line
    told(StyledLine((f"{package.wheel.name} {package.wheel.version} is ready.", "good")))
    if options.yes:
        check_upload_programs(planned)
    for upload in planned:
        told(StyledLine((f"  {upload.about}:", "heading")))
        told(
            StyledLine((f"    (cd {shlex.quote(str(upload.folder))} && {shlex.join(upload.command)})", "name"), hang=4)
        )
        if upload.fix and not options.yes:
            told(StyledLine(f"    first: {upload.fix}"))
        if options.yes and (code := subprocess.run(upload.command, cwd=upload.folder).returncode):
            return print_error(
                f"{shlex.join(upload.command[:3])} … ended with exit code {code}; the rest was not run", 1
            )
    if options.json:
        done = {"name": package.wheel.name, "version": package.wheel.version, "is_uploaded": options.yes}
        steps = [{"about": each.about, "command": each.command, "folder": str(each.folder)} for each in planned]
        show_stdout(JsonBlock({**done, "uploads": steps}))
    if not options.yes:
        show_stderr("Nothing was uploaded. Run it again with --yes to upload.")
    return 0


def _show_line(line: StyledLine) -> None:
    show_stdout(line)
    sys.stdout.flush()  # before what the uploading command prints


# -- `defserve test`: run the tests of a project, with our pytest plugin.


STARTER: Final = Path(__file__).parents[2] / "testing" / "start.py"
PLUGIN: Final = "defserve.testing.plugin"
NO_TESTS: Final = 5
PROJECT: Final = "a folder or file of the project, or the name of its server in .mcp.json (default: the current folder)"
TEST_EXAMPLES: Final = """  defserve test
  defserve test ~/code/weather-mcp
  defserve test -- -k forecast -x
"""


def run_test(argv: list[str]) -> int:
    before, more = split_server_command(argv) if argv[-1:] != ["--"] else (argv[:-1], None)
    parser = CommandParser(
        "defserve test", "Run the tests of a project. Arguments after `--` go to pytest.", TEST_EXAMPLES
    )
    options = parser.parse_options(before, CommandArgument("project", nargs="?", default=".", help=PROJECT))
    if find_spec("pytest") is None:
        raise UsageError("pytest is not installed", fix=format_install_command("pytest"))
    root = project_of(Path(options.project))
    # By its path, so that the package is not imported before pytest is.
    command = [sys.executable, "-P", str(STARTER), *plugin(), *(more or [])]
    code = subprocess.run(command, cwd=root, check=False).returncode
    if code == NO_TESTS and not more:
        raise UsageError(f"there are no tests in {root}", fix="write tests/test_server.py: def test_it(client): ...")
    return code


def project_of(start: Path) -> Path:
    """The folder with the `pyproject.toml` that `start` belongs to, or else its own folder."""
    place = (start if start.exists() else _find_configured_folder(os.fspath(start))).resolve()
    folder = place if place.is_dir() else place.parent
    return next((each for each in (folder, *folder.parents) if (each / "pyproject.toml").is_file()), folder)


def _find_configured_folder(name: str) -> Path:
    """The folder in which a server of `.mcp.json` starts."""
    from defserve.tooling.client_settings import find_mcp_json_server, list_configured_servers

    found = find_mcp_json_server(name)
    if found is None:
        others = (
            f", or a server in .mcp.json: {', '.join(list_configured_servers())}" if list_configured_servers() else ""
        )
        fix = did_you_mean(name, list_configured_servers(), f"name a folder or file of the project{others}")
        raise UsageError(f"there is no {name!r}", fix=fix)
    return Path(found.folder)


def plugin() -> list[str]:
    """The option that loads the plugin, unless pytest finds it itself: loading it twice is an error."""
    return [] if any(entry.value == PLUGIN for entry in entry_points(group="pytest11")) else ["-p", PLUGIN]
