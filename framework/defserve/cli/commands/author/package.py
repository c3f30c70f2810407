"""`defserve package`: build everything that a project publishes, and check that it agrees."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Final

from defserve.cli.content.files import writing
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Data, Line
from defserve.cli.screen.progress import Working
from defserve.cli.screen.screen import problem_lines, show, tell
from defserve.tooling.packaging.package import Package, make_package
from defserve.tooling.packaging.project import read_project
from defserve.tooling.scaffold.creating import questions
from defserve.tooling.scaffold.placeholders import Placeholder, placeholders

ABOUT: Final = """Build wheel, sdist, server.json, MCPB bundle and tools.json of a project, and check that they agree.

Exits with 6 if they have problems. Nothing is built if a private file or a secret would be shipped."""
EXAMPLES: Final = """  defserve package
  defserve package weather-mcp --out release
"""
PROBLEMS: Final = 6


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve package", ABOUT, EXAMPLES)
    add_package_options(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    with Working("Building") as work:
        package, _ = packaged(options, work)
    if options.json:
        found = {
            "name": package.wheel.name,
            "version": package.wheel.version,
            "files": list(map(str, package.files)),
            "problems": package.problems,
        }
        show(Data(found))
    else:
        show(Line((f"{package.wheel.name} {package.wheel.version}", "heading")))
        show(*(Line("  ", (str(path.parent) + os.sep, "faint"), path.name) for path in package.files))
    if still := placeholders(Path(options.folder).resolve(), questions()):
        tell(*problem_lines("warning", unedited(still)))
    return report(package)


def add_package_options(parser: CommandParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="DIR", help="the project (default: the current folder)"
    )
    parser.add_argument("--out", metavar="DIR", help="where to put the files (default: DIR/dist)")
    parser.add_argument(
        "--allow",
        metavar="FILE",
        action="append",
        default=[],
        help="ship this file, or all that match this pattern, though it looks private; repeatable",
    )


def packaged(options: Namespace, work: Working) -> tuple[Package, Path]:
    """What was built, and where it is. `work` shows how far it is."""
    project = read_project(options.folder)
    out = Path(options.out).resolve() if options.out else project.folder / "dist"
    with writing("name a folder that you can write: --out DIR"):
        return make_package(project, out, options.allow, work.step), out


def unedited(found: list[Placeholder]) -> str:
    """What is still a default of the template, and where."""
    files = dict.fromkeys(name for each in found for name in each.files)
    return f"still the defaults of 'defserve new': {', '.join(map(str, found))}\n  fix: edit {', '.join(files)}"


def report(package: Package) -> int:
    """Print the problems to stderr and return the exit code."""
    for problem in package.problems:
        tell(*problem_lines("problem", problem))
    return PROBLEMS if package.problems else 0
