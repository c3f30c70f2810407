"""`defserve uninstall`: remove a server from the settings of an MCP client."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from defserve.cli.commands.install import add_client_options, finish
from defserve.cli.parser import CommandParser
from defserve.errors import UsageError
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
    edit = files.remove(path, known.format, (known.key, options.name))
    if not edit.changes:
        there = ", ".join(files.holds(path, known.format).get(known.key) or ())
        fix = f"use one of {there}" if there else "it has none; choose other settings with --client and --scope"
        raise UsageError(f"there is no server {options.name!r} in {path}", fix=fix)
    if not options.dry_run and files.holds_only(path, known.format, (known.key, options.name)):
        files.discard(path)
        print(f"{path} held only {options.name}, so the file was removed")
        return 0
    return finish(edit, options.dry_run, f"{options.name} is no longer in {path}")
