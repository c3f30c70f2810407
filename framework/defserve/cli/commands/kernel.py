"""`defserve kernel`: serve the servers of an mgp.toml as one, and operate a kernel that runs."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

from defserve.cli.content import print_file_check
from defserve.cli.exits import EXIT_OK
from defserve.cli.kernel_actions import CONFIG_HELP, list_kernel_commands, run_kernel_verb
from defserve.cli.parser import CommandArgument, CommandParser, make_flag
from defserve.cli.screen_blocks import format_count
from defserve.kernel.control import locate_config
from defserve.server.command_line import add_serving_options, read_serving_options

if TYPE_CHECKING:
    from defserve.kernel.config.entries import KernelConfig

ABOUT: Final = """Serve the servers of an mgp.toml as one server, until it is interrupted.

With an ACTION it operates a kernel that runs, or makes a file: `defserve kernel ACTION --help` shows its options."""
EXAMPLES: Final = """  defserve kernel --on http://127.0.0.1:8000/mcp
  defserve kernel --config mgp.toml --check
  defserve kernel import .mcp.json > mgp.toml
  defserve kernel ps
  defserve kernel logs wiki -f
  defserve kernel restart wiki
  defserve kernel access grant ann wiki --reason "writes the handbook"
"""
FILE_ACTIONS: Final = {
    "import": "print an mgp.toml made from the settings of an MCP client",
    "schema": "print the JSON Schema of mgp.toml, for editors",
}


def main(argv: list[str]) -> int:
    words = list_kernel_commands()
    match argv:
        case ["import", *rest]:
            return import_settings(rest)
        case ["schema", *rest]:
            return print_schema(rest)
        case [word, *rest] if word in words:
            return run_kernel_verb(word, rest)
        case _:
            pass
    actions = words | FILE_ACTIONS
    about = "\n".join(f"  {name:11} {text}" for name, text in actions.items())
    parser = CommandParser("defserve kernel", f"{ABOUT}\n\nactions:\n{about}", EXAMPLES)
    parser.add_arguments(
        CommandArgument("action", nargs="?", choices=actions, help="control a running kernel, or create a file"),
        CommandArgument("--config", metavar="FILE", help=CONFIG_HELP),
        make_flag("--check", help="only check the file"),
        make_flag("--json", help="with --check: print JSON"),
    )
    add_serving_options(parser)
    parser.set_defaults(on=None)
    options = parser.parse_args(argv)
    # `ps` and the like need none of it.
    from defserve.kernel.config.loading import load_kernel_config

    file = locate_config(options.config)
    if options.json:
        return print_file_check(options, str(file), lambda: _summarize_config(load_kernel_config(file)))
    config = load_kernel_config(file)
    if options.check:
        return _check(config)
    options.on = options.on or config.settings.on or "stdio:"
    for note in config.notes:
        print(f"note: {note}", file=sys.stderr)
    from defserve.kernel.kernel import Kernel

    kernel = Kernel(config)
    kernel.on = options.on
    kernel.server.run(**read_serving_options(options))
    return EXIT_OK


def _check(config: KernelConfig) -> int:
    """Say what is in the file. A variable that is not set is no mistake of the file."""
    print(f"{config.path} is valid: {format_count(len(config.servers), 'server')}")
    for note in _notes(config):
        print(f"note: {note}")
    for id, names in config.unset().items():
        print(f"note: {id} is not started here: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not set")
    return EXIT_OK


def _summarize_config(config: KernelConfig) -> dict[str, Any]:
    unset = {id: list(names) for id, names in config.unset().items()}
    return {"servers": [entry.id for entry in config.servers], "notes": _notes(config), "unset": unset}


def _notes(config: KernelConfig) -> list[str]:
    """What should be known of the file, and commands that are whole lines of a shell: a program has no arguments."""
    lines = {entry.id: entry.launch.command for entry in config.servers if " " in entry.launch.command}
    return [
        *config.notes,
        *(
            f"{id}: there is no program {line!r}; its arguments belong in args = […]"
            for id, line in lines.items()
            if "${" not in line and not shutil.which(line)
        ),
    ]


def import_settings(argv: list[str]) -> int:
    """`defserve kernel import`. The file goes to stdout, everything else to stderr."""
    from defserve.client.known_clients import KNOWN_CLIENTS, SETTINGS_SCOPES
    from defserve.kernel.client_import import convert_client_settings, load_client_settings

    parser = CommandParser(
        "defserve kernel import",
        "Print an mgp.toml made from the settings of an MCP client. Secrets are left out.",
        "  defserve kernel import .mcp.json > mgp.toml\n  defserve kernel import claude-desktop > mgp.toml\n",
    )
    options = parser.parse_options(
        argv,
        CommandArgument("source", metavar="SOURCE", help=f"a settings file, or a client: {', '.join(KNOWN_CLIENTS)}"),
        CommandArgument("--scope", choices=SETTINGS_SCOPES, help="which settings of the client"),
    )
    made = convert_client_settings(load_client_settings(options.source, options.scope))
    print(made.text, end="")
    for name in made.left_out:
        print(f"note: {name!r} was left out; a comment says why", file=sys.stderr)
    if made.variables:
        print(f"note: set these before the kernel starts: {', '.join(made.variables)}", file=sys.stderr)
    return EXIT_OK


def print_schema(argv: list[str]) -> int:
    """`defserve kernel schema`."""
    from defserve.kernel.config.schema import read_shipped_schema

    parser = CommandParser(
        "defserve kernel schema",
        "Print the JSON Schema of mgp.toml, with which editors complete and check it.",
        "  defserve kernel schema > mgp.schema.json       and in mgp.toml: #:schema ./mgp.schema.json\n",
    )
    parser.parse_args(argv)
    print(read_shipped_schema(), end="")
    return EXIT_OK
