"""`defserve package`: build all that is published of a project, and check that it agrees."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from defserve.cli.parser import CommandParser
from defserve.tooling.packaging.package import Package, make_package
from defserve.tooling.packaging.project import ProjectFolder, read_project
from defserve.tooling.scaffold.creating import questions
from defserve.tooling.scaffold.placeholders import Placeholder, placeholders

ABOUT: Final = """Build wheel, sdist, server.json, MCPB bundle and tools.json of a project, and check that they agree.

Exits with 6 if something is wrong with what was built."""
EXAMPLES: Final = """  defserve package
  defserve package weather-mcp --out release
"""
PROBLEMS: Final = 6


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve package", ABOUT, EXAMPLES)
    add_package_options(parser)
    parser.add_argument("--json", action="store_true", help="print what was built and found as JSON")
    options = parser.parse_args(argv)
    _, package, _ = packaged(options)
    if options.json:
        found = {
            "name": package.wheel.name,
            "version": package.wheel.version,
            "files": list(map(str, package.files)),
            "problems": package.problems,
        }
        print(json.dumps(found, indent=2))
    else:
        print(f"{package.wheel.name} {package.wheel.version}")
        for path in package.files:
            print(f"  {path}")
    if still := placeholders(Path(options.folder).resolve(), questions()):
        print(f"warning: {unedited(still)}", file=sys.stderr)
    return report(package)


def add_package_options(parser: CommandParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="the project (the current folder)")
    parser.add_argument("--out", metavar="DIR", help="where to put what is built (DIR/dist)")


def packaged(options: Namespace) -> tuple[ProjectFolder, Package, Path]:
    """The project, what was built of it, and where that is."""
    project = read_project(options.folder)
    out = Path(options.out).resolve() if options.out else project.folder / "dist"
    return project, make_package(project, out), out


def unedited(found: list[Placeholder]) -> str:
    """What nobody has made their own yet, and where."""
    files = dict.fromkeys(name for each in found for name in each.files)
    return f"still as 'new' made it: {', '.join(map(str, found))}\n  fix: edit {', '.join(files)}"


def report(package: Package) -> int:
    """Say what is wrong on stderr; the exit code."""
    for problem in package.problems:
        print(f"problem: {problem}", file=sys.stderr)
    return PROBLEMS if package.problems else 0
