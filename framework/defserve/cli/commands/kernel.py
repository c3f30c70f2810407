"""`defserve kernel`: serve the servers of an mgp.toml as one, and operate a kernel that runs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Container, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from defserve.base.redaction import get_logger
from defserve.cli.content import print_file_check
from defserve.cli.exits import EXIT_OK
from defserve.cli.kernel_actions import CONFIG_HELP, format_member_note, list_kernel_commands, run_kernel_verb
from defserve.cli.parser import CommandArgument, CommandParser, make_flag
from defserve.cli.screen import (
    can_draw,
    format_fact,
    format_start_banner,
    format_time,
    make_console,
    show_start_at_terminal,
    show_stderr,
)
from defserve.cli.screen_blocks import StyledLine, format_count, measure_text_width
from defserve.errors import UsageError
from defserve.kernel.control import locate_config
from defserve.server.command_line import add_serving_options, read_serving_options

if TYPE_CHECKING:
    from rich.live import Live

    from defserve.kernel.config.entries import KernelConfig
    from defserve.kernel.kernel import Kernel
    from defserve.proxying.mounted import BackendTransition

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
    actions = words | FILE_ACTIONS
    match _move_action_first(argv, actions):
        case ["import", *rest]:
            return import_settings(rest)
        case ["schema", *rest]:
            return print_schema(rest)
        case [word, *rest] if word in words:
            return run_kernel_verb(word, rest)
        case _:
            pass
    about = "\n".join(f"  {name:11} {text}" for name, text in actions.items())
    parser = CommandParser("defserve kernel", f"{ABOUT}\n\nactions:\n{about}", EXAMPLES)
    parser.elsewhere = dict.fromkeys(("status", "list"), "did you mean 'ps'?")
    parser.add_arguments(
        CommandArgument("action", nargs="?", choices=actions, help="control a running kernel, or create a file"),
        CommandArgument("--config", metavar="FILE", help=CONFIG_HELP),
        make_flag("--check", help="only check the file"),
        make_flag("--json", help="with --check: print JSON"),
    )
    add_serving_options(parser)
    parser.set_defaults(on=None)
    options = parser.parse_args(argv)
    if options.action:  # it must not serve instead
        parser.error(f"write the action first: defserve kernel {options.action} …")
    # `ps` and the like need none of it.
    from defserve.kernel.config.loading import load_kernel_config

    file = locate_config(options.config)
    if options.json:
        return print_file_check(options, str(file), lambda: _summarize_config(load_kernel_config(file), options.on))
    config = load_kernel_config(file)
    if options.check:
        return _check(config, options.on)
    options.on = options.on or config.settings.on or "stdio:"
    for note in config.notes:
        print(f"note: {note}", file=sys.stderr)
    from defserve.kernel.kernel import Kernel

    kernel = Kernel(config)
    kernel.on = options.on
    for warning in kernel.find_open_servers():
        print(f"warning: {warning}", file=sys.stderr)
    with KernelStartDisplay(kernel, is_logged=bool(options.log_level or options.log_json)):
        kernel.server.run(**read_serving_options(options))
    return EXIT_OK


def _move_action_first(argv: list[str], actions: Container[str]) -> list[str]:
    """`--config FILE ps` is `ps --config FILE`."""
    at = 0
    while argv[at : at + 1] and argv[at].startswith("--"):
        at += 2 if argv[at] == "--config" else 1
    return [argv[at], *argv[:at], *argv[at + 1 :]] if at < len(argv) and argv[at] in actions else argv


# -- The servers of a kernel while they start: in place at a terminal, a line for each change elsewhere.


MAX_DRAWN_SECONDS: Final = 15.0
"""A server that is not ready by then has a line for each change, like everywhere else."""
MAX_REASON_LENGTH: Final = 300
SETTLED: Final = frozenset(("connected", "disconnected", "error"))
# State → what is shown of it, and its style.
STATE_WORDS: Final = {
    "registered": ("waiting", "faint"),
    "connecting": ("starting", "warning"),
    "connected": ("ready", "good"),
    "restarting": ("starting again", "warning"),
    "draining": ("ending", "warning"),
    "disconnected": ("ended", "faint"),
    "error": ("failed", "bad"),
}
DISABLED: Final = ("disabled", "faint")
RETRIED: Final = ("trying again", "warning")
"""A server at an address is not ours to start."""
ASLEEP: Final = ("ready, idle until its first call", "good")


class KernelStartDisplay:
    """`with KernelStartDisplay(kernel)`: shows on stderr how its servers start, and what becomes of them.

    Changes of states are not logged too, unless somebody asked for a log.
    """

    def __init__(self, kernel: Kernel, *, is_logged: bool = False, read_clock: Callable[[], float] = monotonic) -> None:
        self._kernel, self._is_logged, self._read_clock = kernel, is_logged, read_clock
        self._began: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._address = ""
        self._live: Live | None = None
        self._deadline = read_clock() + MAX_DRAWN_SECONDS

    def __enter__(self) -> KernelStartDisplay:
        if not self._is_logged:
            get_logger("proxying").addFilter(_is_other_news)
        for id, member in self._kernel.members.items():
            if member.backend is not None:
                member.backend.watch(partial(self._note_change, id))
        if can_draw(sys.stderr) and self._kernel.members:
            from rich.live import Live

            self._kernel.server.show_address = self._note_address
            self._live = Live(console=make_console(sys.stderr), auto_refresh=False, redirect_stdout=False)
            self._live.start()
            self._live.console.show_cursor(True)  # the shell needs it, whatever ends us
            self._draw()
        else:
            show_start_at_terminal(self._kernel.server)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_drawing()
        get_logger("proxying").removeFilter(_is_other_news)

    def _note_change(self, id: str, change: BackendTransition) -> None:
        if change.new in ("connecting", "restarting"):
            self._began[id] = self._read_clock()
        elif change.new == "connected":
            self._seconds[id] = self._read_clock() - self._began.get(id, self._read_clock())
        if id not in self._kernel.members or self._kernel.server.composition.draining:
            return  # all of them end
        if self._live is not None:
            self._draw()
        else:
            show_stderr(self.format_member(id, ": "))

    def _note_address(self, address: str) -> None:
        self._address = address
        if self._live is not None:
            self._draw()
        else:
            show_stderr(format_fact("address", address))

    def _draw(self) -> None:
        from defserve.cli.screen_drawing import render_blocks

        assert self._live is not None
        self._live.update(render_blocks(self.format_blocks(), self._live.console), refresh=True)
        backends = (member.backend for member in self._kernel.members.values())
        is_settled = all(backend is None or backend.state in SETTLED for backend in backends)
        is_served = bool(self._address) or self._kernel.on.startswith(("stdio", "mcpx+"))
        if (is_settled and is_served) or self._read_clock() > self._deadline:
            self._stop_drawing()

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def format_blocks(self) -> Iterator[StyledLine]:
        """All servers, each with its state, and the address once it is there."""
        members = self._kernel.members
        width = max(map(measure_text_width, members), default=0)
        facts = [self.format_member(id, " " * (width - measure_text_width(id) + 2), "  ") for id in members]
        facts += [StyledLine(), format_fact("address", self._address)] if self._address else []
        yield from format_start_banner(self._kernel.server.name, "", format_count(len(members), "server"), facts)

    def format_member(self, id: str, gap: str, indent: str = "") -> StyledLine:
        """`wiki  ready in 320 ms, 12 tools`, `mail  failed: exited with code 1: …`."""
        member, more = self._kernel.members[id], ""
        word, style = STATE_WORDS[member.state]
        if not member.entry.enabled:
            word, style = DISABLED
        elif member.state == "disconnected" and member.entry.start == "lazy":
            word, style = ASLEEP
        elif member.state == "restarting" and member.entry.launch.url:
            word, style = RETRIED
        elif member.state == "connected" and member.backend is not None and id in self._seconds:
            more = f" in {format_time(self._seconds[id])}, {format_count(member.backend.tools, 'tool')}"
        if member.state in ("error", "restarting"):
            why = format_member_note(member.make_ps_row())
            more = f": {why[:MAX_REASON_LENGTH]}" if why else ""
        return StyledLine(indent, (id, "title"), gap, (word, style), more, hang=len(f"{id}{gap}"))


def _is_other_news(record: logging.LogRecord) -> bool:
    """Whether a line of the log is about something else than the state of a server."""
    from defserve.kernel.members import is_transition_record

    return not is_transition_record(record)


# -- Files: checked, imported from the settings of a client, and their schema.


def _check(config: KernelConfig, on: str | None) -> int:
    """Say what is in the file. What this machine lacks, a variable or a program, is no mistake of the file."""
    print(f"{config.path} is valid: {format_count(len(config.servers), 'server')}")
    for note in config.notes:
        print(f"note: {note}")
    for warning in _find_warnings(config, on):
        print(f"warning: {warning}")
    for id, names in config.unset().items():
        print(f"note: {id} is not started here: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not set")
    return EXIT_OK


def _summarize_config(config: KernelConfig, on: str | None) -> dict[str, Any]:
    unset = {id: list(names) for id, names in config.unset().items()}
    warnings = [{"problem": one.problem, "where": one.where, "fix": one.fix} for one in _find_warnings(config, on)]
    servers = [entry.id for entry in config.servers]
    return {"servers": servers, "notes": list(config.notes), "warnings": warnings, "unset": unset}


def _find_warnings(config: KernelConfig, on: str | None) -> list[UsageError]:
    """What will go wrong, or is less safe than it looks, when the file is served here at `on`."""
    from defserve.kernel.governance.access import find_open_servers

    address = on or config.settings.on
    return [*_find_missing_programs(config), *find_open_servers(config, address, has_auth=bool(config.settings.keys))]


def _find_missing_programs(config: KernelConfig) -> Iterator[UsageError]:
    """Servers whose program is not on this machine. Variables may stand in the command."""
    from defserve.kernel.config.entries import list_unset_variables

    for entry in config.servers:
        launch = entry.launch
        if (
            not entry.enabled
            or not launch.command
            or list_unset_variables(launch.list_texts_with_variables(), os.environ)
        ):
            continue
        filled = launch.fill_variables(os.environ)
        if shutil.which(filled.command, path=filled.env.get("PATH")) is None:
            program, _, rest = launch.command.partition(" ")
            fix = f'write command = "{program}" and args = ["{rest}"]' if rest else "install it, or give its full path"
            problem = f"{entry.id} cannot start: there is no program {launch.command!r}"
            yield UsageError(problem, where=entry.where, fix=fix)


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
    from defserve.kernel.config.settings import read_shipped_schema

    parser = CommandParser(
        "defserve kernel schema",
        "Print the JSON Schema of mgp.toml, with which editors complete and check it.",
        "  defserve kernel schema > mgp.schema.json       and in mgp.toml: #:schema ./mgp.schema.json\n",
    )
    parser.parse_args(argv)
    print(read_shipped_schema(), end="")
    return EXIT_OK
