"""`defserve uninstall`: remove a server from the settings of an MCP client."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from defserve.cli.commands.use.install import SettingsReport, add_client_options
from defserve.cli.parser import CommandParser
from defserve.errors import UsageError, did_you_mean
from defserve.host.clients.table import client
from defserve.tooling.clients import files

EXAMPLES: Final = """  defserve uninstall weather --client claude-desktop
  defserve uninstall weather --client claude-code --scope project --dry-run
"""


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve uninstall", "Remove a server from the settings of an MCP client.", EXAMPLES)
    parser.add_argument("name", help="what the client calls the server")
    add_client_options(parser)
    options = parser.parse_args(argv)
    known = client(options.client)
    path = known.path(options.scope, Path.cwd())
    report = SettingsReport(options.name, path, options)
    edit = files.remove(path, known.format, (known.key, options.name))
    if not edit.changes:
        there = list(files.holds(path, known.format).get(known.key) or ())
        none = "it has none; choose other settings with --client and --scope"
        fix = did_you_mean(options.name, there) if there else none
        raise UsageError(f"there is no server {options.name!r} in {path}", fix=fix)
    if not options.dry_run and files.holds_only(path, known.format, (known.key, options.name)):
        files.discard(path)
        return report.show(f"{path} held only {options.name}, so the file was removed")
    return report.finish(edit, f"{options.name} is no longer in {path}")
