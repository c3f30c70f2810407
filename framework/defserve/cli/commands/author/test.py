"""`defserve test`: run the tests of a project, with our pytest plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from defserve.cli.parser import CommandParser
from defserve.cli.target.target import split_command
from defserve.errors import UsageError, did_you_mean
from defserve.tooling.installing import install_command

STARTER: Final = Path(__file__).parents[3] / "testing" / "start.py"
PLUGIN: Final = "defserve.testing.plugin"
NO_TESTS: Final = 5
PROJECT: Final = "a folder or file of the project, or the name of its server in .mcp.json (default: the current folder)"
EXAMPLES: Final = """  defserve test
  defserve test ~/code/weather-mcp
  defserve test -- -k forecast -x
"""


def main(argv: list[str]) -> int:
    before, more = split_command(argv) if argv[-1:] != ["--"] else (argv[:-1], None)
    parser = CommandParser("defserve test", "Run the tests of a project. Arguments after `--` go to pytest.", EXAMPLES)
    parser.add_argument("project", nargs="?", default=".", help=PROJECT)
    options = parser.parse_args(before)
    if find_spec("pytest") is None:
        raise UsageError("pytest is not installed", fix=install_command("pytest"))
    root = project_of(Path(options.project))
    # By its path, so that the package is not imported before pytest is.
    command = [sys.executable, "-P", str(STARTER), *plugin(), *(more or [])]
    code = subprocess.run(command, cwd=root, check=False).returncode
    if code == NO_TESTS and not more:
        raise UsageError(f"there are no tests in {root}", fix="write tests/test_server.py: def test_it(client): ...")
    return code


def project_of(start: Path) -> Path:
    """The folder with the `pyproject.toml` that `start` belongs to, or else its own folder."""
    place = (start if start.exists() else _configured(os.fspath(start))).resolve()
    folder = place if place.is_dir() else place.parent
    return next((each for each in (folder, *folder.parents) if (each / "pyproject.toml").is_file()), folder)


def _configured(name: str) -> Path:
    """The folder in which a server of `.mcp.json` starts."""
    from defserve.tooling.clients.configured import find, known

    found = find(name)
    if found is None:
        others = f", or a server in .mcp.json: {', '.join(known())}" if known() else ""
        fix = did_you_mean(name, known(), f"name a folder or file of the project{others}")
        raise UsageError(f"there is no {name!r}", fix=fix)
    return Path(found.folder)


def plugin() -> list[str]:
    """The option that loads the plugin, unless pytest finds it itself: loading it twice is an error."""
    return [] if any(entry.value == PLUGIN for entry in entry_points(group="pytest11")) else ["-p", PLUGIN]
